/* The experts' products of BF16 tensors on tensor cores (grouped.cu). */
#ifndef GROUPED_CUH
#define GROUPED_CUH
#include "cuda_util.cuh"

/* Whether they take these tensors: BF16 operands, rows and addresses on 16 bytes. */
bool grouped_fits(struct tensor out, struct tensor a, struct tensor b);
enum status grouped_bf16_forward(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets, struct stream *s);
enum status grouped_bf16_dx(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets, struct stream *s);
enum status grouped_bf16_dw(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets, struct stream *s);

#endif
