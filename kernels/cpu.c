#include "cpu.h"

#include <cblas.h>
#include <omp.h>
#include <stdatomic.h>

static atomic_int threads;

/* OpenBLAS only: weak, so that another CBLAS links too. */
void openblas_set_num_threads(int n) __attribute__((weak));

void ops_cpu_threads(int n)
{
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    atomic_store(&threads, n > 1 ? n : 1);
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

/* Eight floats at any address; the compiler splits them where the machine's vectors are shorter. */
typedef float lane __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANE = 8 };

static inline float lane_sum(lane v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

/* m x n dot products at once; m and n are constants after inlining, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void dots(int m, int n, int64_t K, const float *a, int64_t lda,
                                                       const float *b, int64_t ldb, float *c, int64_t ldc)
{
    lane sum[4][3] = {{{0}}};
    int64_t k = 0;
    for (; k + LANE <= K; k += LANE)
        for (int j = 0; j < n; j++) {
            lane y = *(const lane *)(b + j * ldb + k);
            for (int i = 0; i < m; i++) sum[i][j] += *(const lane *)(a + i * lda + k) * y;
        }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float s = lane_sum(sum[i][j]);
            for (int64_t t = k; t < K; t++) s += a[i * lda + t] * b[j * ldb + t];
            c[i * ldc + j] = s;
        }
}

static inline __attribute__((always_inline)) void dots_rows(int m, int64_t N, int64_t K, const float *a, int64_t lda,
                                                            const float *b, int64_t ldb, float *c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + 3 <= N; j += 3) dots(m, 3, K, a, lda, b + j * ldb, ldb, c + j, ldc);
    for (; j < N; j++) dots(m, 1, K, a, lda, b + j * ldb, ldb, c + j, ldc);
}

void cpu_dots(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
              int64_t ldc)
{
    int64_t i = 0;
    for (; i + 4 <= M; i += 4) dots_rows(4, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 3) dots_rows(3, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 2) dots_rows(2, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 1) dots_rows(1, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}

/* m rows of n lanes of c. */
static inline __attribute__((always_inline)) void mix(int m, int n, int64_t K, const float *a, int64_t lda,
                                                      const float *b, int64_t ldb, float *c, int64_t ldc)
{
    lane sum[4][2];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sum[i][j] = *(const lane *)(c + i * ldc + j * LANE);
    for (int64_t k = 0; k < K; k++)
        for (int j = 0; j < n; j++) {
            lane y = *(const lane *)(b + k * ldb + j * LANE);
            for (int i = 0; i < m; i++) sum[i][j] += a[i * lda + k] * y;
        }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) *(lane *)(c + i * ldc + j * LANE) = sum[i][j];
}

static inline __attribute__((always_inline)) void mix_rows(int m, int64_t N, int64_t K, const float *a, int64_t lda,
                                                           const float *b, int64_t ldb, float *c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + 2 * LANE <= N; j += 2 * LANE) mix(m, 2, K, a, lda, b + j, ldb, c + j, ldc);
    for (; j + LANE <= N; j += LANE) mix(m, 1, K, a, lda, b + j, ldb, c + j, ldc);
    for (; j < N; j++)
        for (int i = 0; i < m; i++) {
            float s = c[i * ldc + j];
            for (int64_t k = 0; k < K; k++) s += a[i * lda + k] * b[k * ldb + j];
            c[i * ldc + j] = s;
        }
}

void cpu_mix(int64_t M, int64_t N, int64_t K, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
             int64_t ldc)
{
    int64_t i = 0;
    for (; i + 4 <= M; i += 4) mix_rows(4, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 3) mix_rows(3, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 2) mix_rows(2, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (M - i == 1) mix_rows(1, N, K, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}
