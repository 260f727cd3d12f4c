/* The router's products, BF16 rows beside float32 weights, on tensor cores (mixed.cu). */
#ifndef MIXED_CUH
#define MIXED_CUH
#include "cuda_util.cuh"

/* c [n, m] row-major = left^T right in cuBLAS's column-major terms (matmul.cu). */
struct blas_operand {
    struct tensor t;
    bool transposed;
};
enum status blas_product(struct tensor c, struct blas_operand left, struct blas_operand right, int64_t m, int64_t n,
                         int64_t k, bool accumulate, struct stream *s);

/* Whether scratch holds the pieces of E experts of K channels. */
bool mixed_fits(int64_t E, int64_t K);
enum status mixed_forward(struct tensor y, struct tensor x, struct tensor w, struct stream *s);
enum status mixed_dx(struct tensor dx, struct tensor dy, struct tensor w, bool accumulate, struct stream *s);
enum status mixed_dw(struct tensor dw, struct tensor dy, struct tensor x, struct stream *s);

#endif
