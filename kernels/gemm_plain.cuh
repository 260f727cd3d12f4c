/* A product on the ordinary cores, in float32, for what the tensor cores would round (float32 operands, the router's mix)
 * or cannot address (odd sizes): c(m, n) = or += sum over k of a(m, k) b(n, k), every operand with its own strides, for
 * one product or for the experts' groups. Slow and exact: tiles of 64 x 64, 4 x 4 a thread, sums in order of k. */
#ifndef GEMM_PLAIN_CUH
#define GEMM_PLAIN_CUH
#include "cuda_util.cuh"

struct plain_operand {
    const void *data;
    int64_t row, k, group; /* elements from one m (n) to the next, from one k to the next, from one expert to the next */
};
struct plain_product {
    struct plain_operand a, b;
    void *c;
    int64_t c_row, c_group; /* c's columns are contiguous */
    int64_t M, N, K;
    const int32_t *offsets; /* NULL: one product */
    int groups;
    bool group_k;           /* expert e owns offsets[e] .. offsets[e+1] of k; else of m. Operands and c move with it */
    bool accumulate;
};

/* Instances: operands (a, b) and c of F32/F32/F32, BF16/BF16/BF16, BF16/BF16/F32, BF16/F32/F32, F32/F32/BF16,
 * F32/BF16/F32. */
enum status gemm_plain(const struct plain_product *p, enum dtype a, enum dtype b, enum dtype c, struct stream *s);

#endif
