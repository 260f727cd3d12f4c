/* Writing safetensors. struct st_plan lists tensors and cuts them into shards; struct st_out writes one file of a plan at
 * any offsets; struct st_writer does a whole release folder in declared order on top of both. A file stands under its own
 * name only when it is complete and synced, a folder likewise. */
#ifndef SAFETENSORS_WRITE_H
#define SAFETENSORS_WRITE_H
#include "safetensors.h"

struct st_plan {
    struct st_tensor *tensors;  /* in declared order; begin and end within their shard */
    int *shard;                 /* of each tensor */
    int64_t count, room;
    int n_shards;
    uint64_t total;             /* bytes of data */
};

/* Adds a tensor; the name is copied. ERR_FORMAT for a rank, shape or name that the format does not hold. */
enum status st_plan_add(struct st_plan *p, const char *name, enum dtype dtype, int rank, const int64_t *dim);
/* Cuts into shards of at most max_bytes of data in declared order (a larger tensor has a shard of its own; 0: one shard)
 * and places the tensors of a shard, widest dtype first. ERR_FORMAT when a name stands twice. */
enum status st_plan_cut(struct st_plan *p, uint64_t max_bytes);
void st_plan_destroy(struct st_plan *p);
/* "model-00002-of-00007.safetensors", counted from shard 0. Returns name. */
const char *st_plan_name(const struct st_plan *p, int shard, char name[64]);
/* Bytes of the file of a shard. */
enum status st_plan_file_bytes(const struct st_plan *p, int shard, uint64_t *bytes);
/* DIR/model.safetensors.index.json. */
enum status st_plan_write_index(const struct st_plan *p, const char *dir);

/* One file being written: PATH.tmp until st_out_close(). */
struct st_out {
    char *path;
    int fd;
    uint64_t data_start, data_bytes, written;
};

/* Creates PATH.tmp (0600) and writes the header of `shard`. ERR_IO with the path. */
enum status st_out_open(struct st_out *o, const struct st_plan *p, int shard, const char *path);
/* Writes `bytes` at byte `offset` of the tensor. Ranges may come in any order, each once. */
enum status st_out_write(struct st_out *o, const struct st_tensor *t, uint64_t offset, const void *data, size_t bytes);
/* Checks that all bytes were written, syncs and renames to PATH. On failure the temporary file is removed. */
enum status st_out_close(struct st_out *o);
/* Removes the temporary file. NULL-safe on a zeroed or closed struct. */
void st_out_abort(struct st_out *o);

/* A release folder: DST.tmp until st_writer_close() renames it. */
struct st_writer {
    char *dst, *tmp;
    struct st_plan plan;
    struct st_out out;
    int64_t at;                 /* tensor being written */
    uint64_t offset;            /* bytes of it that are there */
    int open_shard;             /* the last that was opened; -1: none yet */
};

/* DST must not exist or be an empty folder (ERR_IO otherwise). A left-over DST.tmp of an earlier run is emptied of what
 * a release consists of. */
enum status st_writer_open(struct st_writer *w, const char *dst);
/* Declare every tensor, in the order in which the data will come. */
enum status st_writer_add(struct st_writer *w, const char *name, enum dtype dtype, int rank, const int64_t *dim);
/* Ends the declarations. shard_bytes 0: one shard. */
enum status st_writer_begin(struct st_writer *w, uint64_t shard_bytes);
/* The next bytes of the tensor that is due, named for checking; a tensor may come in several pieces. */
enum status st_writer_write(struct st_writer *w, const char *name, const void *data, size_t bytes);
/* Writes the index, syncs and renames DST.tmp to DST. The folder for side files until then is w->tmp. */
enum status st_writer_close(struct st_writer *w);
/* Removes what was written. NULL-safe on a zeroed or closed struct. */
void st_writer_abort(struct st_writer *w);

/* A single result file from host memory, through PATH.tmp. */
struct st_item {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t dim[ST_MAX_RANK];
    const void *data;
};
enum status st_write_file(const char *path, const struct st_item *items, int64_t n);

/* Refuses a DST that exists and is not an empty folder. */
enum status st_check_destination(const char *dst);
/* Syncs a folder's entries. */
enum status st_sync_dir(const char *dir);
#endif
