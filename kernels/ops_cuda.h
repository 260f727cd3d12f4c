/* The CUDA functions of the op table, declared with the types of their slots. */
#ifndef OPS_CUDA_H
#define OPS_CUDA_H
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_OP(op) __typeof__(*((const struct ops *)0)->op) op##_cuda
CUDA_OP(open);
CUDA_OP(close);
CUDA_OP(alloc);
CUDA_OP(release);
CUDA_OP(copy);
CUDA_OP(zero);
CUDA_OP(wait);
CUDA_OP(cast);
CUDA_OP(add);
CUDA_OP(square_sum);
CUDA_OP(adamw);
CUDA_OP(embed_forward);
CUDA_OP(embed_backward);
CUDA_OP(rmsnorm_forward);
CUDA_OP(rmsnorm_backward);
CUDA_OP(qkv_forward);
CUDA_OP(qkv_backward);
CUDA_OP(linear_forward);
CUDA_OP(linear_dx);
CUDA_OP(linear_dw);
CUDA_OP(grouped_forward);
CUDA_OP(grouped_dx);
CUDA_OP(grouped_dw);
CUDA_OP(attend_work);
CUDA_OP(attend_forward);
CUDA_OP(attend_backward);
CUDA_OP(select_work);
CUDA_OP(select_forward);
CUDA_OP(paged_work);
CUDA_OP(select_paged);
CUDA_OP(attend_paged);
CUDA_OP(swiglu_forward);
CUDA_OP(swiglu_backward);
CUDA_OP(route_forward);
CUDA_OP(route_backward);
CUDA_OP(dispatch);
CUDA_OP(gather_rows);
CUDA_OP(combine_forward);
CUDA_OP(combine_backward);
CUDA_OP(vocab_stats);
CUDA_OP(vocab_join);
CUDA_OP(vocab_backward);
CUDA_OP(sample_work);
CUDA_OP(sample);

#ifdef __cplusplus
}
#endif
#endif
