#include "grads.h"

#include <math.h>
#include <stdlib.h>

void grads_share(const struct model *m, const struct bucket *b, int64_t *g_off, int64_t *w_off, int64_t *n)
{
    const struct group *g = model_group(m, b->replica);
    int64_t first;
    bucket_share(b, g->rank, g->size, &first, n);
    *g_off = b->g_off + first;
    *w_off = b->w_off + first;
}

enum status grads_create(struct grads *g, struct model *m)
{
    *g = (struct grads){.m = m};
    g->order = calloc((size_t)m->n_buckets + 1, sizeof *g->order);
    if (!g->order) return FAIL(ERR_MEMORY, "order of %d buckets", m->n_buckets);
    for (int i = 0; i < m->n_buckets; i++) { /* stable insertion by layer_min, last layer first */
        int at = i;
        for (; at > 0 && m->buckets[g->order[at - 1]].layer_min < m->buckets[i].layer_min; at--)
            g->order[at] = g->order[at - 1];
        g->order[at] = i;
    }
    void *sum = NULL;
    TRY(m->ops->alloc(&sum, sizeof(double), m->ops->place));
    g->sum = tensor_view(sum, DT_F64, m->ops->place, 1, 1, 1, 1, 1);
    return OK;
}

void grads_destroy(struct grads *g)
{
    if (g->sum.data) g->m->ops->release(g->sum.data, g->sum.place);
    free(g->order);
    *g = (struct grads){0};
}

enum status grads_begin(struct grads *g)
{
    g->next = 0;
    return g->m->ops->zero(g->m->grad, g->m->stream);
}

static enum status reduce(struct grads *g, const struct bucket *b)
{
    struct group *group = model_group(g->m, b->replica);
    if (group->size == 1) return OK;
    struct pending *p = &g->flight[g->started++ % GRADS_IN_FLIGHT];
    TRY(comm_wait(p));
    int64_t rows[group->size], first, n;
    for (int r = 0; r < group->size; r++) bucket_share(b, r, group->size, &first, &rows[r]);
    bucket_share(b, group->rank, group->size, &first, &n);
    struct tensor all = tensor_flat(g->m->grad, b->g_off, b->n);
    return comm_reduce_scatter(group, tensor_flat(g->m->grad, b->g_off + first, n), all, rows, p);
}

enum status grads_ready(struct grads *g, int layer)
{
    for (; g->next < g->m->n_buckets; g->next++) {
        const struct bucket *b = &g->m->buckets[g->order[g->next]];
        if (b->layer_min < layer) break;
        TRY(reduce(g, b));
    }
    return OK;
}

enum status grads_finish(struct grads *g, double *norm)
{
    TRY(grads_ready(g, -1));
    for (int i = 0; i < GRADS_IN_FLIGHT; i++) TRY(comm_wait(&g->flight[i]));
    struct model *m = g->m;
    TRY(m->ops->zero(g->sum, m->stream));
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off, n;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
        TRY(m->ops->square_sum(g->sum, tensor_flat(m->grad, g_off, n), m->stream));
    }
    TRY(m->ops->copy(tensor_view(&g->host_sum, DT_F64, PLACE_HOST, 1, 1, 1, 1, 1), g->sum, m->stream));
    TRY(m->ops->wait(m->stream));
    TRY(comm_sum_double((struct group *)&m->mesh->world, &g->host_sum, 1));
    *norm = sqrt(g->host_sum);
    return OK;
}
