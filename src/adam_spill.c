#include "adam_spill.h"

#include "grads.h"
#include "spill.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    char *host[ADAM_KINDS], *device[ADAM_KINDS]; /* device NULL: the ops compute in host memory */
    int64_t read[ADAM_KINDS], write[ADAM_KINDS]; /* tickets; -1: none */
};

struct adam_spill {
    struct model *m;
    struct spill *file;
    struct group node;
    const int64_t *elements;
    enum dtype dtype[ADAM_KINDS];
    struct slot slot[ADAM_RING];
    void *host_block, *device_block;
    int64_t ring;
    bool fresh;          /* nothing is on disk yet */
};

int64_t adam_ring_bytes(int64_t most, enum dtype moments)
{
    return ADAM_RING * (spill_round(most, DT_F32) + 2 * spill_round(most, moments));
}

static enum status open_ring(struct adam_spill *s, int64_t most)
{
    const struct ops *ops = s->m->ops;
    bool device = ops->place == PLACE_DEVICE;
    s->ring = adam_ring_bytes(most, s->dtype[1]);
    TRY(ops->alloc(&s->host_block, (size_t)s->ring + SPILL_ALIGN, device ? PLACE_PINNED : PLACE_HOST));
    if (device) TRY(ops->alloc(&s->device_block, (size_t)s->ring, PLACE_DEVICE));
    char *host = (char *)(((uintptr_t)s->host_block + SPILL_ALIGN - 1) / SPILL_ALIGN * SPILL_ALIGN), *there = s->device_block;
    memset(host, 0, (size_t)s->ring); /* what lies behind the elements goes to disk with them */
    for (int i = 0; i < ADAM_RING; i++)
        for (int k = 0; k < ADAM_KINDS; k++) {
            int64_t bytes = spill_round(most, s->dtype[k]);
            s->slot[i].host[k] = host;
            s->slot[i].device[k] = device ? there : NULL;
            s->slot[i].read[k] = s->slot[i].write[k] = -1;
            host += bytes;
            if (device) there += bytes;
        }
    return OK;
}

enum status adam_spill_create(struct adam_spill **out, struct model *m, enum dtype moments, const char *dir, const char *run,
                              const int64_t *elements)
{
    static const char *const name[] = {"master", "exp_avg", "exp_avg_sq"};
    struct adam_spill *s = *out = calloc(1, sizeof *s);
    struct spill_kind kind[ADAM_KINDS];
    int64_t most = 0;
    enum status st = s ? OK : FAIL(ERR_MEMORY, "a spill");
    TRY(comm_agree((struct group *)&m->mesh->world, st));
    s->m = m;
    s->elements = elements;
    s->fresh = true;
    for (int k = 0; k < ADAM_KINDS; k++) {
        s->dtype[k] = k ? moments : DT_F32;
        kind[k] = (struct spill_kind){name[k], s->dtype[k]};
    }
    for (int i = 0; i < m->n_buckets; i++)
        if (elements[i] > most) most = elements[i];
    TRY(comm_agree((struct group *)&m->mesh->world, open_ring(s, most)));
    TRY(group_node(&s->node));
    struct spill_options o = {.dir = dir, .run = run, .node = s->node.comm, .rank = m->mesh->world.rank, .kind = kind,
                              .kinds = ADAM_KINDS, .elements = elements, .buckets = m->n_buckets, .checksums = true};
    TRY(comm_agree((struct group *)&m->mesh->world, spill_create(&s->file, &o)));
    if (s->node.rank == 0) {
        log_info("optimizer state streams through %s", spill_path(s->file));
        if (*spill_warning(s->file)) log_warn("adam.spill_dir: %s", spill_warning(s->file));
    }
    return OK;
}

void adam_spill_destroy(struct adam_spill **out)
{
    struct adam_spill *s = *out;
    if (!s) return;
    spill_destroy(&s->file);
    group_destroy(&s->node);
    if (s->host_block) s->m->ops->release(s->host_block, s->device_block ? PLACE_PINNED : PLACE_HOST);
    if (s->device_block) s->m->ops->release(s->device_block, PLACE_DEVICE);
    free(s);
    *out = NULL;
}

void adam_spill_reset(struct adam_spill *s) { s->fresh = true; }

size_t adam_spill_bytes(const struct adam_spill *s) { return (size_t)s->ring; }

void adam_spill_moved(struct adam_spill *s, int64_t *read, int64_t *written)
{
    struct io_stats t = io_queue_stats(spill_queue(s->file));
    *read = t.read;
    *written = t.written;
}

/* ---------------------------------------------------------------- the ring --------------------------------------- */

static struct tensor view(const struct adam_spill *s, int k, int bucket, bool host)
{
    struct slot *at = (struct slot *)&s->slot[bucket % ADAM_RING];
    bool device = !host && at->device[k];
    return tensor_view(device ? at->device[k] : at->host[k], s->dtype[k],
                       device ? PLACE_DEVICE : s->device_block ? PLACE_PINNED : PLACE_HOST, 1, s->elements[bucket], 1, 1, 1);
}

static enum status wait_for(struct adam_spill *s, int64_t *ticket)
{
    if (*ticket < 0) return OK;
    int64_t t = *ticket;
    *ticket = -1;
    return spill_wait(s->file, t);
}

/* Starts reading a bucket into its slot, once the write that still uses it is done. */
static enum status start_read(struct adam_spill *s, int bucket)
{
    if (bucket >= s->m->n_buckets) return OK;
    struct slot *at = &s->slot[bucket % ADAM_RING];
    for (int k = 0; k < ADAM_KINDS; k++) {
        TRY(wait_for(s, &at->write[k]));
        if (!s->fresh && s->elements[bucket]) TRY(spill_read(s->file, k, bucket, at->host[k], &at->read[k]));
    }
    return OK;
}

/* What a bucket is before its first update. */
static enum status make(struct adam_spill *s, int bucket, struct tensor kind[ADAM_KINDS])
{
    const struct ops *ops = s->m->ops;
    const struct bucket *b = &s->m->buckets[bucket];
    int64_t g_off, w_off, n;
    grads_share(s->m, b, &g_off, &w_off, &n);
    TRY(ops->cast(kind[0], tensor_flat(s->m->store[b->store], w_off, n), s->m->stream));
    TRY(ops->zero(kind[1], s->m->stream));
    return ops->zero(kind[2], s->m->stream);
}

enum status adam_spill_begin(struct adam_spill *s) { return start_read(s, 0); }

enum status adam_spill_take(struct adam_spill *s, int bucket, struct tensor kind[ADAM_KINDS])
{
    struct slot *at = &s->slot[bucket % ADAM_RING];
    TRY(start_read(s, bucket + 1));
    for (int k = 0; k < ADAM_KINDS; k++) {
        kind[k] = view(s, k, bucket, false);
        TRY(wait_for(s, &at->read[k]));
        if (!s->fresh && at->device[k]) TRY(s->m->ops->copy(kind[k], view(s, k, bucket, true), s->m->stream));
    }
    return s->fresh ? make(s, bucket, kind) : OK;
}

enum status adam_spill_put(struct adam_spill *s, int bucket)
{
    struct slot *at = &s->slot[bucket % ADAM_RING];
    if (!s->elements[bucket]) return OK;
    for (int k = 0; k < ADAM_KINDS && at->device[k]; k++)
        TRY(s->m->ops->copy(view(s, k, bucket, true), view(s, k, bucket, false), s->m->stream));
    if (s->device_block) TRY(s->m->ops->wait(s->m->stream));
    for (int k = 0; k < ADAM_KINDS; k++) TRY(spill_write(s->file, k, bucket, at->host[k], &at->write[k]));
    return OK;
}

enum status adam_spill_end(struct adam_spill *s)
{
    for (int i = 0; i < ADAM_RING; i++)
        for (int k = 0; k < ADAM_KINDS; k++) TRY(wait_for(s, &s->slot[i].write[k]));
    s->fresh = false;
    return OK;
}

/* ---------------------------------------------------------------- one array by itself ---------------------------- */

enum status adam_spill_room(struct adam_spill *s, int kind, int bucket, struct tensor *host)
{
    *host = view(s, kind, bucket, true);
    return OK;
}

enum status adam_spill_fetch(struct adam_spill *s, int kind, int bucket, struct tensor *host)
{
    struct tensor all[ADAM_KINDS];
    struct slot *at = &s->slot[bucket % ADAM_RING];
    *host = view(s, kind, bucket, true);
    if (!s->elements[bucket]) return OK;
    if (!s->fresh) {
        TRY(spill_read(s->file, kind, bucket, at->host[kind], &at->read[kind]));
        return wait_for(s, &at->read[kind]);
    }
    for (int k = 0; k < ADAM_KINDS; k++) all[k] = view(s, k, bucket, false);
    TRY(make(s, bucket, all));
    if (at->device[kind]) TRY(s->m->ops->copy(*host, all[kind], s->m->stream));
    return s->m->ops->wait(s->m->stream);
}

/* The state is on disk once every array was stored: the loader stores all of them. */
enum status adam_spill_store(struct adam_spill *s, int kind, int bucket)
{
    struct slot *at = &s->slot[bucket % ADAM_RING];
    if (s->elements[bucket]) {
        TRY(spill_write(s->file, kind, bucket, at->host[kind], &at->write[kind]));
        TRY(wait_for(s, &at->write[kind]));
    }
    s->fresh = false;
    return OK;
}
