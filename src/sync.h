/* Weight sync: from the training mesh to the rollout mesh, walked by the parameter table. For every parameter each rank
 * knows, from the table alone, which rectangle every rank holds on both meshes; the overlaps travel in one all-to-all a
 * bucket, converted to the rollout's dtype on the way. Same mesh and dtype: the rollout model aliases the trained one and
 * nothing is copied. */
#ifndef SYNC_H
#define SYNC_H
#include "model.h"

struct sync {
    struct model *from, *to;
    bool aliased;
    int64_t window_bytes;    /* of the model that travel in one exchange: bounds the extra memory */
    struct tensor send, recv, cast; /* host bytes: [world * window], [window], [window] */
    enum dtype to_dtype;     /* of the parameter being packed */
    bool keep_f32;
    int64_t count;           /* syncs made: the weights' version */
    uint64_t hash;           /* of all weights, after sync_check() */
    int64_t *send_rows, *recv_rows;
};

/* `to` was created on its own mesh; sync_create() allocates its weights, or aliases them. Collective over the world. */
enum status sync_create(struct sync *s, struct model *from, struct model *to, int64_t bucket_bytes);
/* Host memory of the exchange where weights are copied. For planning. */
int64_t sync_host_bytes(const struct model *from, int world, int64_t bucket_bytes);
void sync_destroy(struct sync *s);
/* Brings `to` up to date. Collective over the world. */
enum status sync_weights(struct sync *s);
/* Proves it: every rollout tensor against what the trainer holds, after the dtype's own conversion, bit for bit; ERR_GATE
 * with the parameter's name. On aliased weights the check runs on a temporary copy of each. Collective over the world. */
enum status sync_check(struct sync *s);
/* Fills the rollout weights with a pattern that no sync leaves behind (before the first one). */
enum status sync_scribble(struct sync *s);
#endif
