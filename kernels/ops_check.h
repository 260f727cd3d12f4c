/* Argument checks of the op table, shared by the CPU and the CUDA side: one function an op. They look at shapes, dtypes
 * and strides, never at the data. ERR_INTERNAL names the op, the tensor, what it is and what it should be. */
#ifndef OPS_CHECK_H
#define OPS_CHECK_H
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets of dtypes. */
#define IS(t) (1u << (t))
#define IS_FLOAT (IS(DT_F32) | IS(DT_BF16))
#define IS_F32 IS(DT_F32)
#define IS_F64 IS(DT_F64)
#define IS_I32 IS(DT_I32)
#define IS_STRIDED (1u << 31)

/* t must be [d0, d1, d2] (trailing ones do not count) of one of `types`, contiguous unless IS_STRIDED is among them, and
 * must not be none unless it has no rows. */
enum status check_tensor(const char *op, const char *name, struct tensor t, unsigned types, int64_t d0, int64_t d1,
                         int64_t d2);
/* The same, and none is fine. */
enum status check_optional(const char *op, const char *name, struct tensor t, unsigned types, int64_t d0, int64_t d1,
                           int64_t d2);
/* work must hold `bytes`. */
enum status check_work(const char *op, struct tensor work, size_t bytes);

enum status check_copy(struct tensor dst, struct tensor src);
enum status check_cast(struct tensor dst, struct tensor src);
enum status check_add(struct tensor y, struct tensor a, struct tensor b);
enum status check_square_sum(struct tensor sum, struct tensor x);
enum status check_adamw(const struct adamw_args *a);
enum status check_embed_forward(struct tensor y, struct tensor ids, struct tensor w);
enum status check_embed_backward(struct tensor dw, struct tensor dy, struct tensor ids);
enum status check_rmsnorm_forward(struct tensor y, struct tensor rstd, struct tensor x_out, struct tensor x,
                                  struct tensor add, struct tensor w);
enum status check_rmsnorm_backward(struct tensor dx, struct tensor dw, struct tensor dy, struct tensor x,
                                   struct tensor w, struct tensor rstd, struct tensor d_residual);
enum status check_qkv_forward(const struct qkv_args *a);
enum status check_qkv_backward(const struct qkv_args *a);
enum status check_linear_forward(struct tensor y, struct tensor x, struct tensor w);
enum status check_linear_dx(struct tensor dx, struct tensor dy, struct tensor w);
enum status check_linear_dw(struct tensor dw, struct tensor dy, struct tensor x);
enum status check_grouped_forward(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets);
enum status check_grouped_dx(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets);
enum status check_grouped_dw(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets);
enum status check_attend(const struct attend_args *a, bool backward);
enum status check_select(const struct select_args *a);
enum status check_select_paged(const struct paged_args *a);
enum status check_attend_paged(const struct paged_args *a);
enum status check_swiglu_forward(struct tensor y, struct tensor gu);
enum status check_swiglu_backward(struct tensor dgu, struct tensor dy, struct tensor gu);
enum status check_route_forward(struct tensor experts, struct tensor weights, struct tensor logits, struct tensor bias,
                                int64_t valid);
enum status check_route_backward(struct tensor dlogits, struct tensor dweights, struct tensor experts,
                                 struct tensor logits);
enum status check_dispatch(struct tensor offsets, struct tensor row_token, struct tensor row_of, struct tensor experts);
enum status check_gather_rows(struct tensor y, struct tensor x, struct tensor index);
enum status check_combine_forward(struct tensor y, struct tensor rows, struct tensor row_of, struct tensor weights,
                                  struct tensor base);
enum status check_combine_backward(struct tensor drows, struct tensor dweights, struct tensor dy, struct tensor rows,
                                   struct tensor row_of, struct tensor weights);
enum status check_vocab_stats(struct tensor stats, struct tensor logits, struct tensor targets);
enum status check_vocab_join(struct tensor logp, struct tensor entropy, struct tensor lse, struct tensor stats,
                             struct tensor targets);
enum status check_vocab_backward(struct tensor dlogits, struct tensor logits, struct tensor targets, struct tensor lse,
                                 struct tensor entropy, struct tensor dlogp, struct tensor dentropy);
enum status check_sample(struct tensor ids, struct tensor logp, struct tensor logits, struct tensor u);

#ifdef __cplusplus
}
#endif
#endif
