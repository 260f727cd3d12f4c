/* Host memory for the CPU table. Pinned memory is ordinary memory here. */
#include "cpu.h"
#include "ops_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20 }; /* the size of a huge page: fewer TLB misses in the large arenas */

enum status open_cpu(struct stream **s, int local_rank)
{
    (void)local_rank;
    *s = NULL;
    return OK;
}

void close_cpu(struct stream *s) { (void)s; }

enum status alloc_cpu(void **p, size_t bytes, enum place place)
{
    *p = NULL;
    if (place == PLACE_DEVICE) return FAIL(ERR_INTERNAL, "%zu bytes of device memory wanted from the CPU table", bytes);
    size_t align = bytes >= 2 * HUGE ? HUGE : ARENA_ALIGN;
    if (bytes > SIZE_MAX - align) return FAIL(ERR_MEMORY, "%zu bytes of host memory wanted", bytes);
    size_t rounded = (bytes + align - 1) / align * align;
    *p = aligned_alloc(align, rounded ? rounded : align);
    if (!*p) return FAIL(ERR_MEMORY, "%zu bytes of host memory wanted: the system has no more", bytes);
    if (align == HUGE) madvise(*p, rounded, MADV_HUGEPAGE); /* advice: refused is fine */
    return OK;
}

void release_cpu(void *p, enum place place)
{
    (void)place;
    free(p);
}

enum status copy_cpu(struct tensor dst, struct tensor src, struct stream *s)
{
    (void)s;
    TRY(check_copy(dst, src));
    if (dst.place == PLACE_DEVICE || src.place == PLACE_DEVICE)
        return FAIL(ERR_INTERNAL, "copy: device memory given to the CPU table");
    size_t size = dtype_size(src.dtype), row = (size_t)tensor_row(src) * size;
    if (tensor_count(src) == 0 || dst.data == src.data) return OK;
    if (tensor_contiguous(dst) && tensor_contiguous(src)) {
        memcpy(dst.data, src.data, row * (size_t)src.dim[0]);
        return OK;
    }
    for (int64_t i = 0; i < src.dim[0]; i++)
        memcpy((char *)dst.data + (size_t)(i * dst.ld) * size, (char *)src.data + (size_t)(i * src.ld) * size, row);
    return OK;
}

enum status zero_cpu(struct tensor t, struct stream *s)
{
    (void)s;
    size_t size = dtype_size(t.dtype), row = (size_t)tensor_row(t) * size;
    if (tensor_count(t) == 0) return OK;
    if (t.place == PLACE_DEVICE) return FAIL(ERR_INTERNAL, "zero: device memory given to the CPU table");
    if (tensor_contiguous(t)) {
        memset(t.data, 0, row * (size_t)t.dim[0]);
        return OK;
    }
    for (int64_t i = 0; i < t.dim[0]; i++) memset((char *)t.data + (size_t)(i * t.ld) * size, 0, row);
    return OK;
}

enum status wait_cpu(struct stream *s)
{
    (void)s;
    return OK;
}
