/* Attention over paged caches: which kernel takes what. */
#include "attend_plain.cuh"
#include "paged_fast.cuh"

size_t select_paged_bytes(const struct paged_args *a);

extern "C" size_t paged_work_cuda(const struct paged_args *a)
{
    size_t select = a->iq.data ? select_paged_bytes(a) : 0, fast = paged_fast_bytes(a);
    return select > fast ? select : fast;
}

extern "C" enum status attend_paged_cuda(const struct paged_args *a, struct stream *s)
{
    TRY(check_attend_paged(a));
    NEED_STREAM("attend_paged", s);
    if (a->q.dim[0] * a->q.dim[1] == 0) return OK;
    return paged_fast_fits(a) ? paged_fast(a, s) : attend_plain_paged(a, s);
}
