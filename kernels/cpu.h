/* What the CPU kernels share: threads, rows as floats whatever their dtype, exp and sincos that vectorise, and the
 * single-threaded products that everything else is built from.
 *
 * Threads are OpenMP's, all of them or one: a loop asks cpu_share() how many its work is worth. (libgomp ends threads
 * when a team shrinks to a size between, so that is never asked for.) How idle threads wait is OpenMP's own setting and
 * cannot be changed after start: where many ranks share cores, run with one thread a rank or OMP_WAIT_POLICY=passive.
 * With one thread nothing waits and nothing spins. Every result is the same for any schedule of the same thread count,
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
/* e^x within 1.5 ulp; below the smallest normal number 0, above the largest inf, NaN stays NaN. Loops over it
 * vectorise: no branch, no table. e^x = 2^n e^r with n = round(x / ln 2) and a polynomial for |r| <= ln 2 / 2. */
static inline float cpu_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float c = x < 89.0f ? x : 89.0f;
    c = c > -88.0f ? c : -88.0f;
    union { float f; int32_t i; } n = {c * 1.44269504088896341f + magic};
    float k = n.f - magic;
    float r = __builtin_fmaf(k, -0.693145751953125f, c);
    r = __builtin_fmaf(k, -1.42860682030941723e-6f, r);
    float p = 1.0f / 5040;
    p = __builtin_fmaf(p, r, 1.0f / 720);
    p = __builtin_fmaf(p, r, 1.0f / 120);
    p = __builtin_fmaf(p, r, 1.0f / 24);
    p = __builtin_fmaf(p, r, 1.0f / 6);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    /* 2^n in two factors, so that n = 128 does not overflow before the product does. */
    int32_t e = n.i - 0x4b400000, half = e >> 1;
    union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(e - half + 127) << 23};
    float y = p * a.f * b.f;
    y = x > -87.3365448f ? y : 0.0f;
    return x != x ? x : y;
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

/* Largest of n floats, -inf when there are none; a NaN is passed over. */
static inline float cpu_largest(const float *x, int64_t n)
{
    enum { LANES = 16 };
    float most[LANES];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) most[j] = -__builtin_inff();
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (; i < n; i++) most[0] = x[i] > most[0] ? x[i] : most[0];
    for (int j = 1; j < LANES; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

/* ---- products, on the calling thread, row-major floats ---- */
/* c [M, N] = alpha op(a) op(b) + beta c, through OpenBLAS. beta 0 never reads c. */
void cpu_gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float *a, int64_t lda,
              const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* c [M, N] = a [M, K] b^T with b [N, K], for few rows: no packing, b is read once for every four rows. */
void cpu_dots(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
              int64_t ldc);
/* c [M, N] += a [M, K] b [K, N], for few rows. */
void cpu_mix(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
             int64_t ldc);

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
