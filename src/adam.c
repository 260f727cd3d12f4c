#include "adam.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

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

enum status adam_create(struct adam *a, struct model *m, const struct adam_options *o)
{
    *a = (struct adam){.m = m, .o = *o, .elems = adam_elems(m)};
    a->offset = calloc((size_t)m->n_buckets + 1, sizeof *a->offset);
    if (!a->offset) return FAIL(ERR_MEMORY, "offsets of %d buckets", m->n_buckets);
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off, n;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
        a->offset[i + 1] = a->offset[i] + n;
    }
    a->arena = arena_measure(m->ops->place, "adam");
    TRY(carve(a));
    a->arena.size = a->arena.used;
    a->arena.used = 0;
    void *base = NULL;
    TRY(m->ops->alloc(&base, a->arena.size ? a->arena.size : 1, m->ops->place));
    a->arena.base = base;
    TRY(carve(a));
    return adam_reset(a);
}

void adam_destroy(struct adam *a)
{
    if (a->arena.base) a->m->ops->release(a->arena.base, a->arena.place);
    free(a->offset);
    *a = (struct adam){0};
}

enum status adam_reset(struct adam *a)
{
    struct model *m = a->m;
    a->step = 0;
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
    for (int i = 0; i < m->n_buckets; i++) {
        const struct bucket *b = &m->buckets[i];
        int64_t g_off, w_off, n;
        grads_share(m, b, &g_off, &w_off, &n);
        u.master = tensor_flat(a->master, a->offset[i], n);
        u.exp_avg = tensor_flat(a->exp_avg, a->offset[i], n);
        u.exp_avg_sq = tensor_flat(a->exp_avg_sq, a->offset[i], n);
        u.grad = tensor_flat(m->grad, g_off, n);
        u.weight = tensor_flat(m->store[b->store], w_off, n);
        u.decay = b->decay ? a->o.weight_decay : 0;
        TRY(m->ops->adamw(&u, m->stream));
        TRY(gather_weights(a, b));
    }
    return OK;
}
