#include "adam.h"

#include "sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t adam_elems(const struct model *m)
{
    int64_t sum = 0;
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off, n;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
        sum += n;
    }
    return sum;
}

static enum status carve(struct adam *a)
{
    TRY(tensor_alloc(&a->arena, &a->master, DT_F32, 1, a->elems, 1, 1, 1));
    TRY(tensor_alloc(&a->arena, &a->exp_avg, a->o.moments, 1, a->elems, 1, 1, 1));
    return tensor_alloc(&a->arena, &a->exp_avg_sq, a->o.moments, 1, a->elems, 1, 1, 1);
}

/* A name for the spill's file that the same run folder always gets: its last component and a hash of its path. */
static void spill_name(const char *run, char out[64])
{
    const char *base = strrchr(run, '/');
    base = base ? base + 1 : run;
    int n = 0;
    for (; n < 40 && base[n]; n++) {
        bool plain = (base[n] >= '0' && base[n] <= '9') || (base[n] >= 'a' && base[n] <= 'z') || (base[n] >= 'A' && base[n] <= 'Z');
        out[n] = plain ? base[n] : '_';
    }
    snprintf(out + n, (size_t)(64 - n), "%s%08x", n ? "-" : "run-", (unsigned)(rng_name(run) & 0xffffffffu));
}

static enum status open_resident(struct adam *a)
{
    void *base = NULL;
    a->arena = arena_measure(a->m->ops->place, "adam");
    TRY(carve(a));
    a->arena.size = a->arena.used;
    a->arena.used = 0;
    TRY(a->m->ops->alloc(&base, a->arena.size ? a->arena.size : 1, a->m->ops->place));
    a->arena.base = base;
    return carve(a);
}

enum status adam_create(struct adam *a, struct model *m, const struct adam_options *o)
{
    *a = (struct adam){.m = m, .o = *o, .elems = adam_elems(m)};
    a->offset = calloc((size_t)m->n_buckets + 1, 2 * sizeof *a->offset);
    if (!a->offset) return FAIL(ERR_MEMORY, "offsets of %d buckets", m->n_buckets);
    a->share = a->offset + m->n_buckets + 1;
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &a->share[i]);
        a->offset[i + 1] = a->offset[i] + a->share[i];
    }
    if (!o->spill_dir || !*o->spill_dir) {
        TRY(open_resident(a));
        return adam_reset(a);
    }
    char name[64];
    spill_name(o->run ? o->run : "run", name);
    return adam_spill_create(&a->spill, m, o->moments, o->spill_dir, name, a->share);
}

void adam_destroy(struct adam *a)
{
    if (a->arena.base) a->m->ops->release(a->arena.base, a->arena.place);
    adam_spill_destroy(&a->spill);
    free(a->offset);
    *a = (struct adam){0};
}

size_t adam_bytes(const struct adam *a) { return a->spill ? adam_spill_bytes(a->spill) : a->arena.size; }

static struct tensor array(const struct adam *a, int kind)
{
    return kind == 0 ? a->master : kind == 1 ? a->exp_avg : a->exp_avg_sq;
}

enum status adam_fetch(struct adam *a, int kind, int bucket, struct tensor *t)
{
    if (a->spill) return adam_spill_fetch(a->spill, kind, bucket, t);
    *t = tensor_flat(array(a, kind), a->offset[bucket], a->share[bucket]);
    return OK;
}

enum status adam_room(struct adam *a, int kind, int bucket, struct tensor *t)
{
    return a->spill ? adam_spill_room(a->spill, kind, bucket, t) : adam_fetch(a, kind, bucket, t);
}

enum status adam_store(struct adam *a, int kind, int bucket)
{
    return a->spill ? adam_spill_store(a->spill, kind, bucket) : OK;
}

enum status adam_reset(struct adam *a)
{
    struct model *m = a->m;
    a->step = 0;
    if (a->spill) {
        adam_spill_reset(a->spill);
        return OK;
    }
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off, n;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
        struct tensor w = tensor_flat(m->store[m->buckets[i].store], w_off, n);
        TRY(m->ops->cast(tensor_flat(a->master, a->offset[i], n), w, m->stream));
    }
    TRY(m->ops->zero(a->exp_avg, m->stream));
    return m->ops->zero(a->exp_avg_sq, m->stream);
}

/* Everyone's shares of a bucket's new weights to everyone who holds it. */
static enum status gather_weights(struct adam *a, const struct bucket *b)
{
    struct group *g = model_group(a->m, b->replica);
    if (g->size == 1) return OK;
    int64_t rows[g->size], first, n;
    for (int r = 0; r < g->size; r++) bucket_share(b, r, g->size, &first, &rows[r]);
    bucket_share(b, g->rank, g->size, &first, &n);
    struct tensor store = a->m->store[b->store];
    return comm_all_gather(g, tensor_flat(store, b->w_off, b->n), tensor_flat(store, b->w_off + first, n), rows, NULL);
}

enum status adam_update(struct adam *a, double lr, double grad_scale)
{
    struct model *m = a->m;
    a->step++;
    struct adamw_args u = {.lr = (float)lr, .beta1 = a->o.beta1, .beta2 = a->o.beta2, .eps = a->o.eps,
                           .bias1 = (float)(1 - pow(a->o.beta1, (double)a->step)),
                           .bias2 = (float)(1 - pow(a->o.beta2, (double)a->step)), .grad_scale = (float)grad_scale};
    if (a->spill) TRY(adam_spill_begin(a->spill));
    for (int i = 0; i < m->n_buckets; i++) {
        const struct bucket *b = &m->buckets[i];
        struct tensor kind[ADAM_KINDS];
        int64_t g_off, w_off, n;
        grads_share(m, b, &g_off, &w_off, &n);
        if (a->spill) TRY(adam_spill_take(a->spill, i, kind));
        for (int k = 0; k < ADAM_KINDS && !a->spill; k++) TRY(adam_fetch(a, k, i, &kind[k]));
        u.master = kind[0];
        u.exp_avg = kind[1];
        u.exp_avg_sq = kind[2];
        u.grad = tensor_flat(m->grad, g_off, n);
        u.weight = tensor_flat(m->store[b->store], w_off, n);
        u.decay = b->decay ? a->o.weight_decay : 0;
        TRY(m->ops->adamw(&u, m->stream));
        if (a->spill) TRY(adam_spill_put(a->spill, i));
        TRY(gather_weights(a, b));
    }
    return a->spill ? adam_spill_end(a->spill) : OK;
}
