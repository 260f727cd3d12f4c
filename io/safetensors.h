/* struct st_file: one safetensors file, open for reading. st_open() reads the header and proves the file whole before
 * any tensor is handed out; data is then read by position, so several threads may read the same file at once. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "tensor.h"

enum { ST_MAX_RANK = 8, ST_NAME_MAX = 512 };
enum { ST_MAX_HEADER = 100 * 1000 * 1000 }; /* bytes of JSON, exclusive */

struct st_tensor {
    char *name;
    enum dtype dtype;
    int rank;               /* 0: a scalar */
    int64_t dim[ST_MAX_RANK];
    uint64_t begin, end;    /* bytes, counted from the start of the data area */
};

struct st_file {
    char *path;
    int fd;
    uint64_t data_start;    /* of the data area in the file */
    uint64_t data_bytes;
    struct st_tensor *tensors; /* sorted by name */
    int64_t count;
};

/* Opens and validates: header length inside the file and below ST_MAX_HEADER, well-formed header without duplicate
 * keys, known dtypes, size = dtype x shape, ranges that fill the data area without hole or overlap, and a file size equal to
 * what the header promises. ERR_IO, ERR_FORMAT or ERR_MEMORY naming the file; on failure *f is closed. */
enum status st_open(struct st_file *f, const char *path);
/* NULL-safe on a zeroed struct; leaves it zeroed. */
void st_close(struct st_file *f);

/* The tensor of that name or NULL. */
const struct st_tensor *st_find(const struct st_file *f, const char *name);
static inline uint64_t st_bytes(const struct st_tensor *t) { return t->end - t->begin; }
int64_t st_elements(const struct st_tensor *t);
/* Rows (dim[0]; 1 for a scalar) and columns (product of the other dims; 1 for a vector). */
int64_t st_rows(const struct st_tensor *t);
int64_t st_cols(const struct st_tensor *t);

/* Reads `bytes` bytes at byte `offset` of the tensor. ERR_INTERNAL outside the tensor, ERR_IO with both numbers when the
 * file turns out shorter. */
enum status st_read(const struct st_file *f, const struct st_tensor *t, uint64_t offset, size_t bytes, void *dst);

/* "F32", "BF16", ...: false when the spelling is not one of FORMATS' dtypes. */
bool st_dtype(const char *name, enum dtype *out);
/* "[64, 96]" into text; returns text. */
const char *st_shape_text(int rank, const int64_t *dim, char text[128]);
#endif
