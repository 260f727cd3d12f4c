/* Attention over packed sequences: which kernel takes what. */
#include "attend_dense.cuh"
#include "attend_plain.cuh"

/* Room for whichever kernel takes the call: when memory is planned there are shapes, but no addresses to choose by. */
extern "C" size_t attend_work_cuda(const struct attend_args *a, bool backward)
{
    size_t plain = backward ? (size_t)(a->q.dim[0] * a->q.dim[1]) * sizeof(float) : 0, dense = attend_dense_bytes(a, backward);
    return plain > dense ? plain : dense;
}

extern "C" enum status attend_forward_cuda(const struct attend_args *a, struct stream *s)
{
    TRY(check_attend(a, false));
    NEED_STREAM("attend_forward", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    TRY(check_work("attend_forward", a->work, attend_work_cuda(a, false)));
    return attend_dense_fits(a) ? attend_dense_forward(a, s) : attend_plain_forward(a, s);
}

extern "C" enum status attend_backward_cuda(const struct attend_args *a, struct stream *s)
{
    TRY(check_attend(a, true));
    NEED_STREAM("attend_backward", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    TRY(check_work("attend_backward", a->work, attend_work_cuda(a, true)));
    return attend_dense_fits(a) ? attend_dense_backward(a, s) : attend_plain_backward(a, (float *)a->work.data, s);
}
