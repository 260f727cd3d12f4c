/* Attention over paged caches on tensor cores (paged_fast.cu): BF16, head sizes 64 and 128, blocks and pages of a multiple
 * of 16 tokens. */
#ifndef PAGED_FAST_CUH
#define PAGED_FAST_CUH
#include "keys.cuh"

bool paged_fast_fits(const struct paged_args *a);
/* Enough for any number of rows. */
size_t paged_fast_bytes(const struct paged_args *a);
enum status paged_fast(const struct paged_args *a, struct stream *s);

#endif
