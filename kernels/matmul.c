/* Matrix products: OpenBLAS on one thread a block of the output, the blocks over our threads. A product of few rows
 * (decoding) is dot products along the rows of w, which reads w once and packs nothing. BF16 operands are widened block
 * by block into the thread's scratch, summed in float32 and rounded once. */
#include "cpu.h"
#include "ops_check.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    FEW_ROWS = 24,                              /* up to here dot products beat packing */
    BLOCK_M = 192, BLOCK_N = 256, BLOCK_K = 512, /* of the widened path: three blocks of scratch, 1.1 MiB a thread */
    SCRATCH = BLOCK_M * BLOCK_K + BLOCK_N * BLOCK_K + BLOCK_M * BLOCK_N /* floats */
};

struct matrix {
    void *data;
    int64_t ld;
    enum dtype dtype;
};

/* c [M, N] = or += op(a) op(b), op(a) [M, K], op(b) [K, N]. */
struct product {
    struct matrix c, a, b;
    bool ta, tb, accumulate;
    int64_t M, N, K;
    float *scratch; /* SCRATCH floats a thread of the team; NULL when all is F32 */
};

static struct matrix matrix_of(struct tensor t) { return (struct matrix){t.data, t.ld, t.dtype}; }

static struct matrix matrix_at(struct matrix m, int64_t row, int64_t col)
{
    m.data = (char *)m.data + (row * m.ld + col) * (int64_t)dtype_size(m.dtype);
    return m;
}

static bool all_f32(const struct product *p)
{
    return p->c.dtype == DT_F32 && p->a.dtype == DT_F32 && p->b.dtype == DT_F32;
}

/* Scratch for a team of this thread's: made at the first widened product, kept, grown when the team has. */
static enum status ensure_scratch(struct product *p)
{
    static _Thread_local float *kept;
    static _Thread_local int size;
    int n = cpu_threads();
    if (all_f32(p)) return OK;
    if (size < n) {
        free(kept);
        kept = aligned_alloc(ARENA_ALIGN, sizeof(float) * SCRATCH * (size_t)n);
        size = kept ? n : 0;
    }
    p->scratch = kept;
    return kept ? OK : FAIL(ERR_MEMORY, "no scratch for a matrix product on %d threads", n);
}

/* rows x cols of m as floats, cols apart. */
static void widen(float *out, struct matrix m, int64_t rows, int64_t cols)
{
    struct tensor t = {.data = m.data, .dtype = m.dtype};
    for (int64_t i = 0; i < rows; i++) {
        const float *in = cpu_load(t, i * m.ld, cols, out + i * cols);
        for (int64_t j = 0; in != out + i * cols && j < cols; j++) out[i * cols + j] = in[j];
    }
}

static void narrow(struct matrix m, const float *in, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        if (m.dtype == DT_BF16) cpu_narrow((uint16_t *)m.data + i * m.ld, in + i * cols, cols);
        else
            for (int64_t j = 0; j < cols; j++) ((float *)m.data)[i * m.ld + j] = in[i * cols + j];
    }
}

/* One block of the output through scratch. */
static void widened_block(const struct product *p, int64_t m0, int64_t M, int64_t n0, int64_t N)
{
    float *a = p->scratch + cpu_thread() * SCRATCH, *b = a + BLOCK_M * BLOCK_K, *c = b + BLOCK_N * BLOCK_K;
    struct matrix out = matrix_at(p->c, m0, n0);
    if (p->accumulate) widen(c, out, M, N);
    for (int64_t k = 0; k < p->K; k += BLOCK_K) {
        int64_t K = cpu_min(BLOCK_K, p->K - k);
        if (p->ta) widen(a, matrix_at(p->a, k, m0), K, M);
        else widen(a, matrix_at(p->a, m0, k), M, K);
        if (p->tb) widen(b, matrix_at(p->b, n0, k), N, K);
        else widen(b, matrix_at(p->b, k, n0), K, N);
        cpu_gemm(p->ta, p->tb, M, N, K, 1, a, p->ta ? M : K, b, p->tb ? K : N, k || p->accumulate ? 1 : 0, c, N);
    }
    narrow(out, c, M, N);
}

/* Rows [m0, m0 + M) and columns [n0, n0 + N) of the output, on the calling thread. */
static void product_part(const struct product *p, int64_t m0, int64_t M, int64_t n0, int64_t N)
{
    if (M < 1 || N < 1) return;
    if (!all_f32(p)) {
        for (int64_t m = m0; m < m0 + M; m += BLOCK_M)
            for (int64_t n = n0; n < n0 + N; n += BLOCK_N)
                widened_block(p, m, cpu_min(BLOCK_M, m0 + M - m), n, cpu_min(BLOCK_N, n0 + N - n));
        return;
    }
    const float *a = p->ta ? matrix_at(p->a, 0, m0).data : matrix_at(p->a, m0, 0).data;
    const float *b = p->tb ? matrix_at(p->b, n0, 0).data : matrix_at(p->b, 0, n0).data;
    float *c = matrix_at(p->c, m0, n0).data;
    if (M <= FEW_ROWS && !p->ta && p->tb && !p->accumulate)
        cpu_dots(M, N, p->K, a, p->a.ld, b, p->b.ld, c, p->c.ld);
    else cpu_gemm(p->ta, p->tb, M, N, p->K, 1, a, p->a.ld, b, p->b.ld, p->accumulate ? 1 : 0, c, p->c.ld);
}

/* Cuts the longer side (rows when there are enough of them) into one piece a thread, in whole tiles of 32. */
static enum status product_run(struct product *p)
{
    if (p->M == 0 || p->N == 0) return OK;
    if (p->K == 0 && p->accumulate) return OK;
    TRY(ensure_scratch(p));
    int n = cpu_share(p->M * p->N * (p->K + 1) / 8);
    bool rows = p->M >= 64 * n || p->M >= p->N;
    int64_t size = rows ? p->M : p->N, step = ((size + n - 1) / n + 31) / 32 * 32;
#pragma omp parallel for num_threads(n) schedule(static)
    for (int i = 0; i < n; i++) {
        int64_t from = cpu_min(size, i * step), len = cpu_min(step, size - from);
        if (rows) product_part(p, from, len, 0, p->N);
        else product_part(p, 0, p->M, from, len);
    }
    return OK;
}

enum status linear_forward_cpu(struct tensor y, struct tensor x, struct tensor w, struct stream *s)
{
    (void)s;
    TRY(check_linear_forward(y, x, w));
    return product_run(&(struct product){.c = matrix_of(y), .a = matrix_of(x), .b = matrix_of(w), .tb = true,
                                         .M = x.dim[0], .N = w.dim[0], .K = w.dim[1]});
}

enum status linear_dx_cpu(struct tensor dx, struct tensor dy, struct tensor w, bool accumulate, struct stream *s)
{
    (void)s;
    TRY(check_linear_dx(dx, dy, w));
    return product_run(&(struct product){.c = matrix_of(dx), .a = matrix_of(dy), .b = matrix_of(w),
                                         .accumulate = accumulate, .M = dy.dim[0], .N = w.dim[1], .K = w.dim[0]});
}

enum status linear_dw_cpu(struct tensor dw, struct tensor dy, struct tensor x, struct stream *s)
{
    (void)s;
    TRY(check_linear_dw(dw, dy, x));
    return product_run(&(struct product){.c = matrix_of(dw), .a = matrix_of(dy), .b = matrix_of(x), .ta = true,
                                         .accumulate = true, .M = dw.dim[0], .N = dw.dim[1], .K = x.dim[0]});
}

/* Offsets rise from 0 to at most `rows`. */
static enum status check_offsets(const int32_t *offsets, int64_t E, int64_t rows)
{
    for (int64_t e = 0; e < E; e++)
        if (offsets[e] < 0 || offsets[e + 1] < offsets[e] || offsets[e + 1] > rows)
            return FAIL(ERR_INTERNAL, "expert %" PRId64 " has rows %d to %d of %" PRId64, e, offsets[e], offsets[e + 1],
                        rows);
    return OK;
}

/* c[e] = a[e] op(w[e]) over each expert's rows, cut into pieces of `step` rows and `cols` columns. Experts are uneven,
 * so pieces go to whoever is free. */
static enum status grouped_rows(struct tensor c, struct tensor a, struct tensor w, struct tensor offsets, bool tb)
{
    int64_t E = w.dim[0], N = c.dim[1], K = a.dim[1], each = w.dim[1] * w.dim[2];
    const int32_t *from = offsets.data;
    TRY(check_offsets(from, E, a.dim[0]));
    int64_t total = from[E] - from[0];
    if (total == 0 || N == 0) return OK;
    struct product p = {.c = matrix_of(c), .a = matrix_of(a), .b = {NULL, w.dim[2], w.dtype}, .tb = tb, .N = N, .K = K};
    TRY(ensure_scratch(&p));
    int n = cpu_share(total * N * (K + 1) / 8);
    int64_t step = n == 1 ? total : cpu_max(64, (total / (4 * n) + 31) / 32 * 32);
    int64_t cols = n == 1 || total > 64 * n ? N : ((N + 2 * n - 1) / (2 * n) + 31) / 32 * 32;
    int64_t bands = (N + cols - 1) / cols;
#pragma omp parallel num_threads(n) firstprivate(p)
    for (int64_t e = 0; e < E; e++) {
        int64_t first = from[e], rows = from[e + 1] - first, pieces = (rows + step - 1) / step;
        p.b.data = (char *)w.data + e * each * (int64_t)dtype_size(w.dtype);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < pieces * bands; i++) {
            int64_t m = i / bands * step, c0 = i % bands * cols;
            product_part(&p, first + m, cpu_min(step, rows - m), c0, cpu_min(cols, N - c0));
        }
    }
    return OK;
}

enum status grouped_forward_cpu(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets,
                                struct stream *s)
{
    (void)s;
    TRY(check_grouped_forward(y, x, w, offsets));
    return grouped_rows(y, x, w, offsets, true);
}

enum status grouped_dx_cpu(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets, struct stream *s)
{
    (void)s;
    TRY(check_grouped_dx(dx, dy, w, offsets));
    return grouped_rows(dx, dy, w, offsets, false);
}

enum status grouped_dw_cpu(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets, struct stream *s)
{
    (void)s;
    TRY(check_grouped_dw(dw, dy, x, offsets));
    int64_t E = dw.dim[0], N = dw.dim[1], K = dw.dim[2], step = 256, pieces = (N + step - 1) / step;
    const int32_t *from = offsets.data;
    TRY(check_offsets(from, E, x.dim[0]));
    struct product p = {.c = {NULL, K, DT_F32}, .a = matrix_of(dy), .b = matrix_of(x), .ta = true, .accumulate = true,
                        .M = N, .N = K};
    TRY(ensure_scratch(&p));
    int n = cpu_share((from[E] - from[0]) * N * (K + 1) / 8);
#pragma omp parallel for num_threads(n) schedule(dynamic, 1) firstprivate(p)
    for (int64_t i = 0; i < E * pieces; i++) {
        int64_t e = i / pieces, row = i % pieces * step;
        p.K = from[e + 1] - from[e];
        if (p.K == 0) continue;
        p.c.data = (float *)dw.data + e * N * K;
        p.a = matrix_at(matrix_of(dy), from[e], 0);
        p.b = matrix_at(matrix_of(x), from[e], 0);
        product_part(&p, row, cpu_min(step, N - row), 0, K);
    }
    return OK;
}
