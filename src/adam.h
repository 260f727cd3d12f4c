/* AdamW with float32 master weights. Each rank holds the state of its share of every bucket: master, exp_avg, exp_avg_sq
 * (RESIDENT: in memory; SPILL: streamed through a file, one bucket at a time). After the update the shares' new weights
 * are gathered over the ranks that hold the same shard. */
#ifndef ADAM_H
#define ADAM_H
#include "adam_spill.h"
#include "grads.h"

struct adam_options {
    float beta1, beta2, eps, weight_decay;
    enum dtype moments;      /* F32 or BF16 */
    const char *spill_dir;   /* local disk to stream the state through; NULL or "": keep it in memory */
    const char *run;         /* path of the run folder, which names the spill's file */
};

struct adam {
    struct model *m;
    struct adam_options o;
    struct arena arena;      /* "adam" */
    int64_t step;            /* updates made */
    int64_t elems;           /* of this rank */
    struct tensor master, exp_avg, exp_avg_sq; /* [elems], bucket shares one behind the other */
    int64_t *offset;         /* [n_buckets] where a bucket's share starts in them */
    int64_t *share;          /* [n_buckets] its elements */
    struct adam_spill *spill; /* or NULL: resident */
};

/* Elements of Adam state that this rank owns. */
int64_t adam_elems(const struct model *m);
enum status adam_create(struct adam *a, struct model *m, const struct adam_options *o);
void adam_destroy(struct adam *a);
/* master = the weights as they are; moments 0; step 0. */
enum status adam_reset(struct adam *a);
/* Array `kind` (0 master, 1 exp_avg, 2 exp_avg_sq) of a bucket's share, for checkpoints: a view of what is resident or a
 * host buffer read from the spill, valid until the next call. adam_room() is for loading: fill it, then adam_store(). */
enum status adam_fetch(struct adam *a, int kind, int bucket, struct tensor *t);
enum status adam_room(struct adam *a, int kind, int bucket, struct tensor *t);
enum status adam_store(struct adam *a, int kind, int bucket);
/* Bytes of memory for the state: all of it, or the ring of buckets. */
size_t adam_bytes(const struct adam *a);
/* One update: g * grad_scale, at learning rate lr; then every rank has the new weights. Collective over the mesh. */
enum status adam_update(struct adam *a, double lr, double grad_scale);
#endif
