/* Tensors, places and arenas.
 *
 * A tensor is a view: pointer, shape, dtype, place. It never owns and never frees; arenas own. Views are passed by
 * value. dim[0] may be strided (`ld` elements from one row to the next), everything inside a row is contiguous.
 * Memory has a place; code in src/ never dereferences PLACE_DEVICE memory, only ops do.
 *
 * An arena is one block of one place for one purpose, handed out by bumping. Sizes are found by running the same
 * carving code over a measuring arena (base NULL), so that the size and the layout cannot disagree. */
#ifndef TENSOR_H
#define TENSOR_H
#include "status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DT_F32, DT_BF16, DT_F16, DT_F64, DT_F8_E4M3, DT_U8, DT_I8, DT_I32, DT_I64, DT_COUNT };
enum place { PLACE_HOST, PLACE_PINNED, PLACE_DEVICE };

enum { TENSOR_MAX_RANK = 4, ARENA_ALIGN = 256 };

struct tensor {
    void *data;
    int64_t dim[TENSOR_MAX_RANK];
    int64_t ld; /* elements between rows of dim[0]; the product of dim[1..] when contiguous */
    int rank;
    enum dtype dtype;
    enum place place;
};

size_t dtype_size(enum dtype t);
const char *dtype_name(enum dtype t); /* the safetensors spelling: "F32", "BF16", ... */

/* Contiguous view of `data`; unused dims are 1. */
struct tensor tensor_view(void *data, enum dtype dtype, enum place place, int rank, int64_t d0, int64_t d1, int64_t d2,
                          int64_t d3);
int64_t tensor_count(struct tensor t);                              /* elements */
size_t tensor_bytes(struct tensor t);                               /* of a contiguous tensor */
bool tensor_contiguous(struct tensor t);
int64_t tensor_row(struct tensor t);                                /* elements in one row: product of dim[1..] */
struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n);   /* rows [first, first + n) of dim 0 */
struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n);   /* columns of a [rows, cols] matrix, strided */
struct tensor tensor_reshape(struct tensor t, int rank, int64_t d0, int64_t d1, int64_t d2); /* contiguous in and out,
                                       or [rows, a*b] strided to [rows, a, b] */
struct tensor tensor_flat(struct tensor t, int64_t first, int64_t n);   /* n elements from `first`, as [n] */
static inline bool tensor_none(struct tensor t) { return t.data == NULL; }
#define TENSOR_NONE ((struct tensor){0})

/* Round to nearest even, NaN stays NaN. */
static inline uint16_t bf16_from_float(float f)
{
    union { float f; uint32_t u; } v = {f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40u);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
static inline float float_from_bf16(uint16_t h)
{
    union { uint32_t u; float f; } v = {(uint32_t)h << 16};
    return v.f;
}

struct arena {
    char *base;           /* NULL: measuring */
    size_t size, used, high;
    enum place place;
    const char *purpose;  /* "weights", "gradients", ...: the name in the memory report */
};

/* Takes n elements; aligned to ARENA_ALIGN bytes. In a measuring arena the view's data is a non-NULL marker that must
 * not be touched. ERR_MEMORY with purpose, wanted and left when the arena is full. */
enum status tensor_alloc(struct arena *a, struct tensor *out, enum dtype dtype, int rank, int64_t d0, int64_t d1,
                         int64_t d2, int64_t d3);
struct arena arena_measure(enum place place, const char *purpose);
static inline size_t arena_mark(const struct arena *a) { return a->used; }
static inline void arena_reset(struct arena *a, size_t mark) { a->used = mark; }

#ifdef __cplusplus
}
#endif
#endif
