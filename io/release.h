/* struct release: a model release on disk, a folder of config.json, safetensors shards and an index. release_open()
 * proves the whole folder consistent (index and shards both ways, every file whole, quantised storage against its map)
 * before anything else is allocated. Afterwards a tensor is found under the release's own name, however it is stored:
 * the alias of dense MLPs is undone and quantised matrices are decoded to bfloat16 on the way.
 *
 * Reading is by position and thread-safe; the struct itself is never changed after release_open(). */
#ifndef RELEASE_H
#define RELEASE_H
#include "quant.h"
#include "safetensors.h"

/* A tensor as a file holds it. */
struct release_raw {
    const struct st_tensor *t;
    int shard;
    bool side;                       /* a scale of a quantised language-model tensor */
};

/* A tensor as the model sees it. Rows and columns: [n] is n x 1, [n, ...] is n x the product of the rest, a scalar 1 x 1. */
struct release_tensor {
    char *name;                      /* the release's: no alias, X.weight where the file holds X.weight_packed */
    const struct release_raw *data;  /* values, packed values */
    enum quant quant;
    const struct release_raw *scale, *scalar; /* of quantised tensors */
    int rank;                        /* logical shape: unpacked */
    int64_t dim[ST_MAX_RANK];
    int64_t rows, cols;
    bool passed;                     /* vision, projector, MTP: never loaded, copied byte for byte */
};

struct release {
    char *dir;
    json_t *config;                  /* config.json */
    struct st_file *shards;
    int n_shards;
    struct release_raw *raw;         /* every stored tensor, sorted by stored name */
    int64_t n_raw;
    struct release_tensor *tensors;  /* every logical tensor, sorted by name; scales are not among them */
    int64_t count;
    struct quant_map map;
};

/* Opens DIR. ERR_IO or ERR_FORMAT naming file, tensor and module; on failure *r is NULL. */
enum status release_open(struct release **r, const char *dir);
/* NULL-safe; sets *r to NULL. */
void release_close(struct release **r);

/* The tensor under the release's name; NULL when there is none. Dense MLPs that are stored as
 * layers.N.block_sparse_moe.{gate,up,down}_proj are found as layers.N.mlp.*. */
const struct release_tensor *release_find(const struct release *r, const char *name);
const struct release_raw *release_find_raw(const struct release *r, const char *stored_name);

/* Reads rows [row0, row0 + nrows) and columns [col0, col0 + ncols) of a tensor stored as F32, BF16, F16 or quantised into
 * dst, contiguous [nrows, ncols] of `out` (DT_F32 or DT_BF16). Quantised values are their exact bfloat16 (a float32
 * result is that, widened). ERR_FORMAT naming the tensor: other dtypes, a rectangle outside the tensor, NaN scales, values
 * that do not fit bfloat16. ERR_IO on a short read. */
enum status release_read(const struct release *r, const struct release_tensor *t, int64_t row0, int64_t nrows,
                         int64_t col0, int64_t ncols, enum dtype out, void *dst);
/* The same by name; ERR_FORMAT when there is no such tensor. */
enum status release_read_rows(const struct release *r, const char *name, int64_t row0, int64_t nrows, int64_t col0,
                              int64_t ncols, enum dtype out, void *dst);
/* Stored bytes of a raw tensor. */
enum status release_read_raw(const struct release *r, const struct release_raw *raw, uint64_t offset, size_t bytes,
                             void *dst);

/* Vision tower, projector, patch merger or MTP: passed through, never loaded. */
bool release_is_passed(const char *name);

/* An indexer tensor (self_attn.index_*): for release_check_names() where layers run with dense attention. */
bool release_is_indexer(void *ctx, const char *name);

/* What release_check_names() found. */
struct release_report {
    int64_t missing, unknown;
    char first_missing[320], first_unknown[320]; /* the first names, separated by ", " */
};
/* Compares the logical tensors with `expected` (n names, any order). Passed tensors are not unknown, nor is what
 * `also(ctx, name)` accepts (NULL: nothing). ERR_FORMAT with counts and first names when something is missing or
 * unknown; `report` (or NULL) is filled either way. */
enum status release_check_names(const struct release *r, const char *const *expected, int64_t n,
                                bool (*also)(void *ctx, const char *name), void *ctx, struct release_report *report);

/* Copies what belongs to a release beside weights, config.json, index and quantisation map: tokenizer, generation
 * config, templates, code, licence, README; byte for byte. A link is copied as the file it leads to; folders are left. */
enum status release_copy_side_files(const char *src, const char *dst);
bool release_is_side_file(const char *name); /* would be copied */
/* Nothing of that name (a dangling link is something). */
bool release_file_absent(const char *path);
/* One file, through DST.tmp, fsync and rename. */
enum status release_copy_file(const char *src, const char *dst);
/* mkdir -p with mode 0700; an existing folder is fine. */
enum status release_make_dir(const char *path);
#endif
