/* Attention over paged caches: which kernel takes what. */
#include "attend_plain.cuh"

size_t select_paged_bytes(const struct paged_args *a);

extern "C" size_t paged_work_cuda(const struct paged_args *a)
{
    return a->iq.data ? select_paged_bytes(a) : 0;
}

extern "C" enum status attend_paged_cuda(const struct paged_args *a, struct stream *s)
{
    TRY(check_attend_paged(a));
    NEED_STREAM("attend_paged", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    return attend_plain_paged(a, s);
}
