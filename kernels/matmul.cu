/* Matrix products: y = x w^T, dx = dy w, dw += dy^T x. Plain ones are cuBLAS's, float32 ones without TF32; the router's
 * mix of dtypes is mixed.cu's, the experts' grouped products of BF16 are grouped.cu's; what those cannot address, and
 * grouped float32, is gemm_plain's. */
#include "cuda_util.cuh"
#include "gemm_plain.cuh"
#include "grouped.cuh"
#include "mixed.cuh"

/* Row-major c [M, N] = a [M, K] b^T is column-major c^T = b a^T: operands change places. `ta`, `tb`: the stored matrix
 * is op(a)^T, op(b)^T. */
enum status blas_product(struct tensor c, struct blas_operand left, struct blas_operand right, int64_t m, int64_t n,
                         int64_t k, bool accumulate, struct stream *s)
{
    const float one = 1, beta = accumulate ? 1.0f : 0.0f;
    cudaDataType_t in = left.t.dtype == DT_F32 ? CUDA_R_32F : CUDA_R_16BF, out = c.dtype == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
    if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || c.ld > INT32_MAX || left.t.ld > INT32_MAX ||
        right.t.ld > INT32_MAX)
        return FAIL(ERR_INTERNAL, "product of %lld x %lld x %lld is beyond cuBLAS", (long long)m, (long long)n,
                    (long long)k);
    TRY_CUBLAS(cublasGemmEx(s->blas, left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            (int)m, (int)n, (int)k, &one, left.t.data, in, (int)left.t.ld, right.t.data, in,
                            (int)right.t.ld, &beta, c.data, out, (int)c.ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return OK;
}

/* A single row's ld means nothing; cuBLAS checks it all the same. */
static struct tensor with_ld(struct tensor t)
{
    if (t.ld < t.dim[1]) t.ld = t.dim[1];
    return t;
}

/* BF16 rows beside float32 weights, of a size and alignment that cuBLAS's fast kernels take. */
static bool mixed_ok(struct tensor rows, struct tensor w)
{
    return rows.dtype == DT_BF16 && w.dtype == DT_F32 && is_wide(rows) && mixed_fits(w.dim[0], w.dim[1]);
}

extern "C" enum status linear_forward_cuda(struct tensor y, struct tensor x, struct tensor w, struct stream *s)
{
    TRY(check_linear_forward(y, x, w));
    NEED_STREAM("linear_forward", s);
    int64_t T = x.dim[0], N = w.dim[0], K = w.dim[1];
    if (T * N == 0) return OK;
    if (K == 0) return zero_cuda(y, s);
    if (x.dtype != w.dtype && mixed_ok(x, w)) return mixed_forward(y, x, w, s);
    if (x.dtype != w.dtype) {
        struct plain_product p = {{x.data, x.ld, 1, 0}, {w.data, K, 1, 0}, y.data, y.ld, 0, T, N, K, NULL, 0, false, false};
        return gemm_plain(&p, x.dtype, w.dtype, y.dtype, s);
    }
    return blas_product(with_ld(y), {with_ld(w), true}, {with_ld(x), false}, N, T, K, false, s);
}

extern "C" enum status linear_dx_cuda(struct tensor dx, struct tensor dy, struct tensor w, bool accumulate,
                                      struct stream *s)
{
    TRY(check_linear_dx(dx, dy, w));
    NEED_STREAM("linear_dx", s);
    int64_t T = dy.dim[0], N = w.dim[0], K = w.dim[1];
    if (T * K == 0) return OK;
    if (N == 0) return accumulate ? OK : zero_cuda(dx, s);
    if (dx.dtype != w.dtype && mixed_ok(dx, w)) return mixed_dx(dx, dy, w, accumulate, s);
    if (dx.dtype != w.dtype) {
        struct plain_product p = {{dy.data, dy.ld, 1, 0}, {w.data, 1, K, 0}, dx.data, dx.ld, 0, T, K, N, NULL, 0, false,
                                  accumulate};
        return gemm_plain(&p, dy.dtype, w.dtype, dx.dtype, s);
    }
    return blas_product(with_ld(dx), {with_ld(w), false}, {with_ld(dy), false}, K, T, N, accumulate, s);
}

extern "C" enum status linear_dw_cuda(struct tensor dw, struct tensor dy, struct tensor x, struct stream *s)
{
    TRY(check_linear_dw(dw, dy, x));
    NEED_STREAM("linear_dw", s);
    int64_t T = x.dim[0], N = dw.dim[0], K = dw.dim[1];
    if (T * N * K == 0) return OK;
    if (x.dtype != dy.dtype && mixed_ok(x, dw)) return mixed_dw(dw, dy, x, s);
    if (x.dtype != dy.dtype) {
        struct plain_product p = {{dy.data, 1, dy.ld, 0}, {x.data, 1, x.ld, 0}, dw.data, K, 0, N, K, T, NULL, 0, false, true};
        return gemm_plain(&p, dy.dtype, x.dtype, dw.dtype, s);
    }
    return blas_product(with_ld(dw), {with_ld(x), false}, {with_ld(dy), true}, K, N, T, true, s);
}

/* ---- grouped ---- */
extern "C" enum status grouped_forward_cuda(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets,
                                            struct stream *s)
{
    TRY(check_grouped_forward(y, x, w, offsets));
    NEED_STREAM("grouped_forward", s);
    int64_t R = x.dim[0], E = w.dim[0], N = w.dim[1], K = w.dim[2];
    if (R * E * N == 0) return OK;
    if (grouped_fits(y, x, w)) return grouped_bf16_forward(y, x, w, offsets, s);
    struct plain_product p = {{x.data, K, 1, 0}, {w.data, K, 1, N * K}, y.data, N, 0, R, N, K,
                              (const int32_t *)offsets.data, (int)E, false, false};
    return gemm_plain(&p, x.dtype, w.dtype, y.dtype, s);
}

extern "C" enum status grouped_dx_cuda(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets,
                                       struct stream *s)
{
    TRY(check_grouped_dx(dx, dy, w, offsets));
    NEED_STREAM("grouped_dx", s);
    int64_t R = dy.dim[0], E = w.dim[0], N = w.dim[1], K = w.dim[2];
    if (R * E * K == 0) return OK;
    if (grouped_fits(dx, dy, w)) return grouped_bf16_dx(dx, dy, w, offsets, s);
    struct plain_product p = {{dy.data, N, 1, 0}, {w.data, 1, K, N * K}, dx.data, K, 0, R, K, N,
                              (const int32_t *)offsets.data, (int)E, false, false};
    return gemm_plain(&p, dy.dtype, w.dtype, dx.dtype, s);
}

extern "C" enum status grouped_dw_cuda(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets,
                                       struct stream *s)
{
    TRY(check_grouped_dw(dw, dy, x, offsets));
    NEED_STREAM("grouped_dw", s);
    int64_t R = x.dim[0], E = dw.dim[0], N = dw.dim[1], K = dw.dim[2];
    if (R * E * N * K == 0) return OK;
    if (grouped_fits(dw, dy, x)) return grouped_bf16_dw(dw, dy, x, offsets, s);
    struct plain_product p = {{dy.data, 1, N, 0}, {x.data, 1, K, 0}, dw.data, K, N * K, N, K, R,
                              (const int32_t *)offsets.data, (int)E, true, true};
    return gemm_plain(&p, dy.dtype, x.dtype, dw.dtype, s);
}
