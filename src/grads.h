/* Gradients after the backward: each bucket is reduced over the ranks that hold the same shard, and every rank keeps its
 * share of it (ZeRO-1). Buckets start while the backward goes on, in the same order on every rank; then the global norm,
 * in which every element of the model counts once because every element has one owner. */
#ifndef GRADS_H
#define GRADS_H
#include "model.h"

enum { GRADS_IN_FLIGHT = 4 };

struct grads {
    struct model *m;
    int *order;                  /* [n_buckets] the order they become complete in */
    int next;                    /* first of `order` not yet started */
    struct pending flight[GRADS_IN_FLIGHT];
    int64_t started;
    struct tensor sum;           /* [1] f64 at ops->place */
    double host_sum;
};

enum status grads_create(struct grads *g, struct model *m);
void grads_destroy(struct grads *g);
/* Zeroes the gradients for a new step. */
enum status grads_begin(struct grads *g);
/* The gradients of `layer` and above are complete (layers: the head's; -1: all): starts the reduction of what they fill. */
enum status grads_ready(struct grads *g, int layer);
/* Waits for all reductions; *norm is the global 2-norm. Collective over the mesh. */
enum status grads_finish(struct grads *g, double *norm);
/* This rank's share of bucket b in gradient elements: offset and count. */
void grads_share(const struct model *m, const struct bucket *b, int64_t *g_off, int64_t *w_off, int64_t *n);
#endif
