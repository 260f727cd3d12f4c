/* Attention over packed sequences: which kernel takes what. */
#include "attend_plain.cuh"

/* Scratch of a call is laid out by one function that also measures it (base NULL). */
static size_t backward_bytes(const struct attend_args *a)
{
    return (size_t)(a->q.dim[0] * a->q.dim[1]) * sizeof(float);
}

extern "C" size_t attend_work_cuda(const struct attend_args *a, bool backward)
{
    return backward ? backward_bytes(a) : 0;
}

extern "C" enum status attend_forward_cuda(const struct attend_args *a, struct stream *s)
{
    TRY(check_attend(a, false));
    NEED_STREAM("attend_forward", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    TRY(check_work("attend_forward", a->work, attend_work_cuda(a, false)));
    return attend_plain_forward(a, s);
}

extern "C" enum status attend_backward_cuda(const struct attend_args *a, struct stream *s)
{
    TRY(check_attend(a, true));
    NEED_STREAM("attend_backward", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    TRY(check_work("attend_backward", a->work, attend_work_cuda(a, true)));
    return attend_plain_backward(a, (float *)a->work.data, s);
}
