#include "cpu.h"

#include <cblas.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int threads;

/* OpenBLAS only: weak, so that another CBLAS links too. */
void openblas_set_num_threads(int n) __attribute__((weak));

void ops_cpu_threads(int n)
{
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    atomic_store(&threads, n > 1 ? n : 1);
}

void ops_cpu_sleep(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
    setenv("GOMP_SPINCOUNT", "2000", 1); /* libgomp: some 30 us */
    setenv("KMP_BLOCKTIME", "0", 1);     /* clang's: none */
    execv("/proc/self/exe", argv);
}

int cpu_threads(void)
{
    int n = atomic_load_explicit(&threads, memory_order_relaxed);
    if (n == 0) ops_cpu_threads(n = omp_get_max_threads());
    return n;
}

int cpu_share(int64_t steps)
{
    int n = cpu_threads();
    return steps < 20000 || omp_in_parallel() ? 1 : n;
}

int cpu_thread(void) { return omp_get_thread_num(); }

void cpu_widen(float *restrict out, const uint16_t *restrict in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = float_from_bf16(in[i]);
}

void cpu_narrow(uint16_t *restrict out, const float *restrict in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = bf16_from_float(in[i]);
}

void cpu_gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float *a, int64_t lda,
              const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)M, (int)N, (int)K,
                alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

typedef float half __attribute__((vector_size(16), aligned(4), may_alias));

static inline half fold(lane v)
{
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}

/* The sums of four vectors' elements, as one vector. */
static inline half sum4(half a, half b, half c, half d)
{
    half x = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
    half y = __builtin_shufflevector(c, d, 0, 4, 2, 6) + __builtin_shufflevector(c, d, 1, 5, 3, 7);
    return __builtin_shufflevector(x, y, 0, 1, 4, 5) + __builtin_shufflevector(x, y, 2, 3, 6, 7);
}

/* m x n dot products at once; m and n are constants after inlining, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void dots(int m, int n, int64_t K, const float *a, int64_t lda,
                                                       const float *b, int64_t ldb, float *c, int64_t ldc)
{
    lane sum[4][4] = {{{0}}};
    int64_t k = 0;
    for (; k + LANE <= K; k += LANE)
        for (int j = 0; j < n; j++) {
            lane y = *(const lane *)(b + j * ldb + k);
            for (int i = 0; i < m; i++) sum[i][j] += *(const lane *)(a + i * lda + k) * y;
        }
    for (int i = 0; i < m; i++) {
        half s = sum4(fold(sum[i][0]), fold(sum[i][1]), fold(sum[i][2]), fold(sum[i][3]));
        for (int64_t t = k; t < K; t++)
            for (int j = 0; j < n; j++) s[j] += a[i * lda + t] * b[j * ldb + t];
        if (n == 4) *(half *)(c + i * ldc) = s;
        else
            for (int j = 0; j < n; j++) c[i * ldc + j] = s[j];
    }
}

static inline __attribute__((always_inline)) void dots_rows(int m, int64_t N, int64_t K, const float *a, int64_t lda,
                                                            const float *b, int64_t ldb, float *c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + 4 <= N; j += 4) dots(m, 4, K, a, lda, b + j * ldb, ldb, c + j, ldc);
    for (; j < N; j++) dots(m, 1, K, a, lda, b + j * ldb, ldb, c + j, ldc);
}

void cpu_dots(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
              int64_t ldc)
{
    int64_t i = 0;
    for (; i + 3 <= M; i += 3) dots_rows(3, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 2) dots_rows(2, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 1) dots_rows(1, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}

/* m rows of n lanes of c; twelve sums, two vectors of b and one number of a fill sixteen registers. */
static inline __attribute__((always_inline)) void block(int m, int n, int64_t K, const float *a, int64_t row,
                                                        int64_t step, const float *b, int64_t ldb, float *c,
                                                        int64_t ldc, bool add)
{
    lane sum[6][2] = {{{0}}};
    for (int i = 0; add && i < m; i++)
        for (int j = 0; j < n; j++) sum[i][j] = *(const lane *)(c + i * ldc + j * LANE);
    for (int64_t k = 0; k < K; k++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) sum[i][j] += a[i * row + k * step] * *(const lane *)(b + k * ldb + j * LANE);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) *(lane *)(c + i * ldc + j * LANE) = sum[i][j];
}

static inline __attribute__((always_inline)) void panel(int n, int64_t M, int64_t K, const float *a, int64_t row,
                                                        int64_t step, const float *b, int64_t ldb, float *c,
                                                        int64_t ldc, bool add)
{
    int64_t i = 0;
    for (; i + 6 <= M; i += 6) block(6, n, K, a + i * row, row, step, b, ldb, c + i * ldc, ldc, add);
    a += i * row;
    c += i * ldc;
    switch (M - i) {
    case 5: block(5, n, K, a, row, step, b, ldb, c, ldc, add); break;
    case 4: block(4, n, K, a, row, step, b, ldb, c, ldc, add); break;
    case 3: block(3, n, K, a, row, step, b, ldb, c, ldc, add); break;
    case 2: block(2, n, K, a, row, step, b, ldb, c, ldc, add); break;
    case 1: block(1, n, K, a, row, step, b, ldb, c, ldc, add); break;
    }
}

void cpu_mix(int64_t M, int64_t N, int64_t K, const float *a, int64_t row, int64_t step, const float *b, int64_t ldb,
             float *c, int64_t ldc, bool add)
{
    int64_t j = 0;
    for (; j + 2 * LANE <= N; j += 2 * LANE) panel(2, M, K, a, row, step, b + j, ldb, c + j, ldc, add);
    for (; j + LANE <= N; j += LANE) panel(1, M, K, a, row, step, b + j, ldb, c + j, ldc, add);
    for (; j < N; j++)
        for (int64_t i = 0; i < M; i++) {
            float s = add ? c[i * ldc + j] : 0;
            for (int64_t k = 0; k < K; k++) s += a[i * row + k * step] * b[k * ldb + j];
            c[i * ldc + j] = s;
        }
}

/* Four rows of four: out[j] holds element j of each. */
static inline void turn4(float *out, int64_t ld, const float *in, int64_t ldin)
{
    half a = *(const half *)in, b = *(const half *)(in + ldin), c = *(const half *)(in + 2 * ldin);
    half d = *(const half *)(in + 3 * ldin);
    half ac = __builtin_shufflevector(a, c, 0, 4, 1, 5), bd = __builtin_shufflevector(b, d, 0, 4, 1, 5);
    half AC = __builtin_shufflevector(a, c, 2, 6, 3, 7), BD = __builtin_shufflevector(b, d, 2, 6, 3, 7);
    *(half *)out = __builtin_shufflevector(ac, bd, 0, 4, 1, 5);
    *(half *)(out + ld) = __builtin_shufflevector(ac, bd, 2, 6, 3, 7);
    *(half *)(out + 2 * ld) = __builtin_shufflevector(AC, BD, 0, 4, 1, 5);
    *(half *)(out + 3 * ld) = __builtin_shufflevector(AC, BD, 2, 6, 3, 7);
}

void cpu_transpose(float *out, int64_t ld, const float *in, int64_t ldin, int64_t rows, int64_t cols)
{
    int64_t i = 0, whole = cols / 4 * 4;
    for (; i + 4 <= rows; i += 4) {
        for (int64_t j = 0; j < whole; j += 4) turn4(out + j * ld + i, ld, in + i * ldin + j, ldin);
        for (int64_t j = whole; j < cols; j++)
            for (int64_t r = i; r < i + 4; r++) out[j * ld + r] = in[r * ldin + j];
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * ld + i] = in[i * ldin + j];
    for (int64_t j = 0; j < cols; j++)
        for (i = rows; i < ld; i++) out[j * ld + i] = 0;
}
