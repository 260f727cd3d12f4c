/* AdamW with float32 master weights. Each rank holds the state of its share of every bucket: master, exp_avg, exp_avg_sq
 * (RESIDENT: in memory; SPILL: streamed through a file, one bucket at a time). After the update the shares' new weights
 * are gathered over the ranks that hold the same shard. */
#ifndef ADAM_H
#define ADAM_H
#include "grads.h"

struct adam_options {
    float beta1, beta2, eps, weight_decay;
    enum dtype moments;      /* F32 or BF16 */
};

struct adam {
    struct model *m;
    struct adam_options o;
    struct arena arena;      /* "adam" */
    int64_t step;            /* updates made */
    int64_t elems;           /* of this rank */
    struct tensor master, exp_avg, exp_avg_sq; /* [elems], bucket shares one behind the other */
    int64_t *offset;         /* [n_buckets] where a bucket's share starts in them */
};

/* Elements of Adam state that this rank owns. */
int64_t adam_elems(const struct model *m);
enum status adam_create(struct adam *a, struct model *m, const struct adam_options *o);
void adam_destroy(struct adam *a);
/* master = the weights as they are; moments 0; step 0. */
enum status adam_reset(struct adam *a);
/* One update: g * grad_scale, at learning rate lr; then every rank has the new weights. Collective over the mesh. */
enum status adam_update(struct adam *a, double lr, double grad_scale);
#endif
