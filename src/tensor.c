#include "tensor.h"

#include <inttypes.h>

size_t dtype_size(enum dtype t)
{
    static const unsigned char size[DT_COUNT] = {[DT_F32] = 4, [DT_BF16] = 2, [DT_F16] = 2, [DT_F64] = 8,
        [DT_F8_E4M3] = 1, [DT_U8] = 1, [DT_I8] = 1, [DT_I32] = 4, [DT_I64] = 8};
    return size[t];
}

const char *dtype_name(enum dtype t)
{
    static const char *const name[DT_COUNT] = {[DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F16] = "F16",
        [DT_F64] = "F64", [DT_F8_E4M3] = "F8_E4M3", [DT_U8] = "U8", [DT_I8] = "I8", [DT_I32] = "I32", [DT_I64] = "I64"};
    return name[t];
}

struct tensor tensor_view(void *data, enum dtype dtype, enum place place, int rank, int64_t d0, int64_t d1, int64_t d2,
                          int64_t d3)
{
    struct tensor t = {data, {d0, d1, d2, d3}, 0, rank, dtype, place};
    for (int i = rank; i < TENSOR_MAX_RANK; i++) t.dim[i] = 1;
    t.ld = tensor_row(t);
    return t;
}

int64_t tensor_row(struct tensor t) { return t.dim[1] * t.dim[2] * t.dim[3]; }
int64_t tensor_count(struct tensor t) { return t.dim[0] * tensor_row(t); }
size_t tensor_bytes(struct tensor t) { return (size_t)tensor_count(t) * dtype_size(t.dtype); }
bool tensor_contiguous(struct tensor t) { return t.ld == tensor_row(t) || t.dim[0] <= 1; }

static void *at(struct tensor t, int64_t element) { return (char *)t.data + element * (int64_t)dtype_size(t.dtype); }

struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n)
{
    t.data = at(t, first * t.ld);
    t.dim[0] = n;
    return t;
}

struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n)
{
    t.data = at(t, first);
    t.dim[1] = n;
    return t;
}

struct tensor tensor_reshape(struct tensor t, int rank, int64_t d0, int64_t d1, int64_t d2)
{
    struct tensor r = tensor_view(t.data, t.dtype, t.place, rank, d0, d1, d2, 1);
    if (!tensor_contiguous(t)) r.ld = t.ld;
    return r;
}

struct tensor tensor_flat(struct tensor t, int64_t first, int64_t n)
{
    return tensor_view(at(t, first), t.dtype, t.place, 1, n, 1, 1, 1);
}

struct arena arena_measure(enum place place, const char *purpose)
{
    return (struct arena){.size = SIZE_MAX / 2, .place = place, .purpose = purpose};
}

enum status tensor_alloc(struct arena *a, struct tensor *out, enum dtype dtype, int rank, int64_t d0, int64_t d1,
                         int64_t d2, int64_t d3)
{
    *out = tensor_view(NULL, dtype, a->place, rank, d0, d1, d2, d3);
    size_t bytes = tensor_bytes(*out), from = (a->used + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (from > a->size || bytes > a->size - from)
        return FAIL(ERR_MEMORY, "%s arena: %zu bytes wanted, %zu of %zu left", a->purpose, bytes,
                    from > a->size ? 0 : a->size - from, a->size);
    out->data = a->base ? a->base + from : (char *)ARENA_ALIGN;
    a->used = from + bytes;
    if (a->used > a->high) a->high = a->used;
    return OK;
}
