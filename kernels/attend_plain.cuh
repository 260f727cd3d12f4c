/* Attention on the ordinary cores, in float32: for F32 tensors, and for BF16 ones whose sizes the tensor-core kernels do
 * not take. Any head size up to 256, any block size. */
#ifndef ATTEND_PLAIN_CUH
#define ATTEND_PLAIN_CUH
#include "keys.cuh"

enum { PLAIN_HEAD_MAX = 256 };

enum status attend_plain_forward(const struct attend_args *a, struct stream *s);
/* delta: [H, T] f32 scratch. */
enum status attend_plain_backward(const struct attend_args *a, float *delta, struct stream *s);
enum status attend_plain_paged(const struct paged_args *a, struct stream *s);
/* delta[h, t] = sum over channels of d_o * o: the backward's first step. */
enum status attend_delta(float *delta, const struct attend_args *a, struct stream *s);

#endif
