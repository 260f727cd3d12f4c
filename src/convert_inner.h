/* What the files of convert share: convert.c is the order of things, convert_plan.c decides what becomes of each tensor,
 * convert_config.c edits the JSON files, convert_copy.c moves the data. Not for others. */
#ifndef CONVERT_INNER_H
#define CONVERT_INNER_H
#include "arch.h"
#include "convert.h"
#include "release.h"
#include "safetensors_write.h"

enum { CONVERT_NAME = ST_NAME_MAX + 64 };

/* Where a planned tensor comes from: stored bytes, or (when `decoded`) values made BF16. */
struct convert_item {
    const struct release_raw *raw;
    const struct release_tensor *decoded;
};

struct convert {
    const struct convert_args *args;
    struct release *r;
    struct arch arch;                    /* of the source */
    int new_layer[ARCH_MAX_LAYERS];      /* number in the destination; -1: dropped */
    bool made_dense[ARCH_MAX_LAYERS];    /* sparse layer without index tensors, under dense_attention */
    int layers;                          /* of the destination */
    struct st_plan plan;
    struct convert_item *items;          /* one a planned tensor */
    uint64_t id;                         /* hash of source, choices and plan: a record of another conversion is not ours */
    char *dst, *tmp;
    int rank, size;
    bool *finished;                      /* shards of this rank that an earlier run completed */
};

/* Architecture, layer choice, names and shapes against the architecture; then the plan. */
enum status convert_plan(struct convert *c);
/* The destination's name of a tensor or module of the language model: layer renumbered, the dense MLPs' alias undone.
 * False when its layer is dropped. */
bool convert_rename(const struct convert *c, const char *name, char out[CONVERT_NAME]);

/* config.json and, where it stays, hf_quant_config.json into c->tmp. */
enum status convert_write_config(const struct convert *c);

/* Writes this rank's unfinished shards. */
enum status convert_copy(struct convert *c);
/* Reads a shard of c->tmp and compares its checksum with its record; *ok false when it must be written (again). */
enum status convert_check_record(const struct convert *c, int shard, bool *ok);
/* Compares this rank's shards on disk with the source. */
enum status convert_verify(struct convert *c);
/* "model-00001-of-00002.safetensors.done" */
const char *convert_record_name(const struct convert *c, int shard, char name[80]);
#endif
