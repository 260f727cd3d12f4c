/* What the CPU kernels share: threads, rows as floats whatever their dtype, exp and sincos that vectorise, and the
 * single-threaded products that everything else is built from.
 *
 * Threads are OpenMP's, all of them or one: a loop asks cpu_share() how many its work is worth. (libgomp ends threads
 * when a team shrinks to a size between, so that is never asked for.) How idle threads wait is OpenMP's own setting,
 * read when it is loaded: ops_cpu_sleep() sees to it. With one thread nothing waits and nothing spins. Every result is the same for any schedule of the same thread count,
 * and nearly all for any thread count: work is cut by its own sizes, partial sums are added in a fixed order. */
#ifndef CPU_H
#define CPU_H
#include "ops.h"

enum {
    CPU_CHUNK = 2048, /* elements of a row worked on at once where rows can be long: two or three fit the L1 cache */
    CPU_PARTS = 32    /* pieces of a reduction over everything: fixed, so that the sum does not depend on threads */
};

/* Threads this process uses; the first call settles them and tells OpenBLAS to start none of its own. */
int cpu_threads(void);
/* cpu_threads() when `steps` elementary operations are worth waking the others for, else 1. */
int cpu_share(int64_t steps);
int cpu_thread(void); /* number of the calling thread in its team */

/* ---- rows as floats ---- */
void cpu_widen(float *out, const uint16_t *in, int64_t n);
void cpu_narrow(uint16_t *out, const float *in, int64_t n);

/* n elements of t from element `at` (counted in memory, not in rows): in place when F32, else converted into buf. */
static inline const float *cpu_load(struct tensor t, int64_t at, int64_t n, float *buf)
{
    if (t.dtype == DT_F32) return (const float *)t.data + at;
    cpu_widen(buf, (const uint16_t *)t.data + at, n);
    return buf;
}

/* Where to write those elements: in place when F32, else buf. cpu_close() rounds and stores what was written to buf. */
static inline float *cpu_open(struct tensor t, int64_t at, float *buf)
{
    return t.dtype == DT_F32 ? (float *)t.data + at : buf;
}
static inline void cpu_close(struct tensor t, int64_t at, int64_t n, const float *buf)
{
    if (t.dtype != DT_F32) cpu_narrow((uint16_t *)t.data + at, buf, n);
}

/* Length of the chunk at c of a row of n. */
static inline int64_t cpu_chunk(int64_t n, int64_t c) { return n - c < CPU_CHUNK ? n - c : CPU_CHUNK; }
static inline int64_t cpu_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t cpu_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- functions ---- */
/* e^x within 1.5 ulp; 0 where it is below the smallest normal number, inf from 88.38 on, NaN stays NaN. Loops over it
 * vectorise: no branch, no table. e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and
 * e^r = 1 + r + r^2 P(r), P the polynomial that meets (e^r - 1 - r) / r^2 at five Chebyshev points. */
static inline float cpu_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float c = x > 88.5f ? 88.5f : x; /* these pass NaN on */
    c = c < -87.3365448f ? -87.3365448f : c;
    union { float f; uint32_t u; } n = {__builtin_fmaf(c, 1.44269504088896341f, magic)};
    float k = n.f - magic;
    float r = __builtin_fmaf(k, -0.693145751953125f, c);
    r = __builtin_fmaf(k, -1.42860682030941723e-6f, r);
    float p = 1.3926213466332444e-3f;
    p = __builtin_fmaf(p, r, 8.363202971575855e-3f);
    p = __builtin_fmaf(p, r, 4.166655443768594e-2f);
    p = __builtin_fmaf(p, r, 1.6666576845993977e-1f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    union { uint32_t u; float f; } scale = {(n.u - 0x4b400000u + 127u) << 23};
    return x < -87.3365448f ? 0.0f : p * scale.f;
}

static inline float cpu_sigmoid(float x) { return 1.0f / (1.0f + cpu_exp(-x)); }

/* sin and cos of a float angle, correctly rounded but for rare ties, for |x| < 2^26: reduced and computed in double.
 * Vectorises; libm's reduction of large angles does not. */
static inline void cpu_sincos(float x, float *sine, float *cosine)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    union { double f; int64_t i; } n = {(double)x * 0.63661977236758134308 + magic};
    double k = n.f - magic;
    double r = __builtin_fma(k, -1.57079632673412561417e+00, (double)x);
    r = __builtin_fma(k, -6.07710050650619224932e-11, r);
    double z = r * r;
    double s = 1.0 / 6227020800, c = 1.0 / 479001600;
    s = __builtin_fma(s, z, -1.0 / 39916800);
    s = __builtin_fma(s, z, 1.0 / 362880);
    s = __builtin_fma(s, z, -1.0 / 5040);
    s = __builtin_fma(s, z, 1.0 / 120);
    s = __builtin_fma(s, z, -1.0 / 6);
    s = __builtin_fma(s * z, r, r);
    c = __builtin_fma(c, z, -1.0 / 3628800);
    c = __builtin_fma(c, z, 1.0 / 40320);
    c = __builtin_fma(c, z, -1.0 / 720);
    c = __builtin_fma(c, z, 1.0 / 24);
    c = __builtin_fma(c, z, -0.5);
    c = __builtin_fma(c, z, 1.0);
    double a = n.i & 1 ? c : s, b = n.i & 1 ? s : c;
    *sine = (float)(n.i & 2 ? -a : a);
    *cosine = (float)((n.i + 1) & 2 ? -b : b);
}

/* Sums over floats in a fixed order of eight or more lanes. */
static inline float cpu_dot(const float *a, const float *b, int64_t n)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

/* Eight floats at any address; the compiler splits them where the machine's vectors are shorter. */
typedef float lane __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t lane_mask __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANE = 8 };

static inline lane lane_largest(lane a, lane b)
{
    lane_mask m = a > b;
    return (lane)(((lane_mask)a & m) | ((lane_mask)b & ~m));
}

/* Largest of n floats, -inf when there are none; a NaN is passed over. */
static inline float cpu_largest(const float *x, int64_t n)
{
    float most = -__builtin_inff();
    int64_t i = 0;
    if (n >= 2 * LANE) {
        lane a = {most, most, most, most, most, most, most, most}, b = a;
        for (; i + 2 * LANE <= n; i += 2 * LANE) {
            a = lane_largest(*(const lane *)(x + i), a);
            b = lane_largest(*(const lane *)(x + i + LANE), b);
        }
        a = lane_largest(a, b);
        for (int j = 0; j < LANE; j++) most = a[j] > most ? a[j] : most;
    }
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* ---- products, on the calling thread, row-major floats ---- */
/* c [M, N] = alpha op(a) op(b) + beta c, through OpenBLAS. beta 0 never reads c. */
void cpu_gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float *a, int64_t lda,
              const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* c [M, N] = a [M, K] b^T with b [N, K], for few rows: no packing, b is read once for every three rows. */
void cpu_dots(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
              int64_t ldc);
/* c [M, N] = or += a b for blocks that lie in the caches, without packing: element (i, k) of a [M, K] is
 * a[i * row + k * step] (so that a may lie transposed), b [K, N]. Quick where 8 divides N. */
void cpu_mix(int64_t M, int64_t N, int64_t K, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
             float *c, int64_t ldc, bool add);

/* out [cols, ld], ld a multiple of 8 and at least rows: in [rows, cols] turned, zeros from column `rows` on. */
void cpu_transpose(float *out, int64_t ld, const float *in, int64_t ldin, int64_t rows, int64_t cols);

/* ---- the table's functions: declared with the types of their slots ---- */
#define CPU_OP(op) __typeof__(*((const struct ops *)0)->op) op##_cpu
CPU_OP(open);
CPU_OP(close);
CPU_OP(alloc);
CPU_OP(release);
CPU_OP(copy);
CPU_OP(zero);
CPU_OP(wait);
CPU_OP(cast);
CPU_OP(add);
CPU_OP(square_sum);
CPU_OP(adamw);
CPU_OP(embed_forward);
CPU_OP(embed_backward);
CPU_OP(rmsnorm_forward);
CPU_OP(rmsnorm_backward);
CPU_OP(qkv_forward);
CPU_OP(qkv_backward);
CPU_OP(linear_forward);
CPU_OP(linear_dx);
CPU_OP(linear_dw);
CPU_OP(grouped_forward);
CPU_OP(grouped_dx);
CPU_OP(grouped_dw);
CPU_OP(attend_work);
CPU_OP(attend_forward);
CPU_OP(attend_backward);
CPU_OP(select_work);
CPU_OP(select_forward);
CPU_OP(paged_work);
CPU_OP(select_paged);
CPU_OP(attend_paged);
CPU_OP(swiglu_forward);
CPU_OP(swiglu_backward);
CPU_OP(route_forward);
CPU_OP(route_backward);
CPU_OP(dispatch);
CPU_OP(gather_rows);
CPU_OP(combine_forward);
CPU_OP(combine_backward);
CPU_OP(vocab_stats);
CPU_OP(vocab_join);
CPU_OP(vocab_backward);
CPU_OP(sample_work);
CPU_OP(sample);
#endif
