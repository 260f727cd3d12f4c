/* The table of a CUDA device. */
#ifdef HAVE_CUDA_BUILD
#include "ops_cuda.h"

#define SLOT(op) .op = op##_cuda
extern const struct ops ops_cuda;
const struct ops ops_cuda = {
    .name = "cuda", .place = PLACE_DEVICE,
    SLOT(open), SLOT(close), SLOT(alloc), SLOT(release), SLOT(copy), SLOT(zero), SLOT(wait),
    SLOT(cast), SLOT(add), SLOT(square_sum), SLOT(adamw),
    SLOT(embed_forward), SLOT(embed_backward),
    SLOT(rmsnorm_forward), SLOT(rmsnorm_backward), SLOT(qkv_forward), SLOT(qkv_backward),
    SLOT(linear_forward), SLOT(linear_dx), SLOT(linear_dw),
    SLOT(grouped_forward), SLOT(grouped_dx), SLOT(grouped_dw),
    SLOT(attend_work), SLOT(attend_forward), SLOT(attend_backward), SLOT(select_work), SLOT(select_forward),
    SLOT(paged_work), SLOT(select_paged), SLOT(attend_paged),
    SLOT(swiglu_forward), SLOT(swiglu_backward),
    SLOT(route_forward), SLOT(route_backward), SLOT(dispatch), SLOT(gather_rows),
    SLOT(combine_forward), SLOT(combine_backward),
    SLOT(vocab_stats), SLOT(vocab_join), SLOT(vocab_backward), SLOT(sample_work), SLOT(sample),
};
#else
typedef int ops_cuda_is_empty;
#endif
