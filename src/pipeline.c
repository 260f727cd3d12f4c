#include "pipeline.h"

#include "grads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- memory ----------------------------------------- */

static enum status carve(struct pipeline *p, const struct pipeline_options *o, struct arena *a, struct arena *host)
{
    const struct model *m = p->m;
    int64_t Tl = o->T / m->mesh->tp, C = m->arch.hidden;
    struct block_limits l = {.T = o->T, .S = o->S, .max_seqlen = o->max_seqlen, .train = o->train,
                             .deterministic = o->deterministic, .recompute = o->recompute};
    p->limits = l;
    TRY(workspace_carve(&p->work, m, &l, a, host));
    p->shared = (struct saved_layer){0};
    for (int i = 0; i < p->slots; i++) {
        struct in_flight *s = &p->slot[i];
        TRY(activations_carve(&s->act, &p->shared, m, &l, a, host));
        TRY(tensor_alloc(a, &s->ids, DT_I32, 1, o->T, 1, 1, 1));
        TRY(tensor_alloc(a, &s->pos, DT_I32, 1, o->T, 1, 1, 1));
        TRY(tensor_alloc(a, &s->targets, DT_I32, 1, o->T, 1, 1, 1));
        TRY(tensor_alloc(a, &s->cu_seqlens, DT_I32, 1, o->S + 1, 1, 1, 1));
        if (o->replay) TRY(tensor_alloc(a, &s->replay, DT_I32, 3, m->n_layers, Tl, m->arch.experts_per_token, 1));
    }
    for (int i = 0; o->train && i < 2; i++) TRY(tensor_alloc(a, &p->dy[i], m->dtype, 2, Tl, C, 1, 1));
    int64_t chunk = o->logits_chunk > 0 ? o->logits_chunk : o->T;
    if (m->last) TRY(head_carve(&p->head, m, o->T, chunk, o->train ? HEAD_TRAIN : HEAD_SCORE, a));
    struct tensor rows;
    TRY(tensor_alloc(host, &rows, DT_F32, 2, 4, o->T, 1, 1));
    p->host = rows.data;
    if (o->count_experts) {
        TRY(tensor_alloc(host, &rows, DT_I32, 3, m->n_layers, Tl, m->arch.experts_per_token, 1));
        p->host_experts = rows.data;
        TRY(tensor_alloc(host, &rows, DT_F64, 2, m->arch.layers, m->arch.experts, 1, 1));
        p->expert_rows = rows.data;
    }
    if (!o->replay) return OK;
    TRY(tensor_alloc(host, &rows, DT_I32, 3, m->n_layers, Tl, m->arch.experts_per_token, 1));
    p->host_replay = rows.data;
    return OK;
}

static enum status prepare(struct pipeline *p, struct model *m, const struct pipeline_options *o)
{
    *p = (struct pipeline){.m = m, .slots = o->train ? m->mesh->pp - m->mesh->pp_rank : 1};
    p->slot = calloc((size_t)p->slots, sizeof *p->slot);
    if (!p->slot) return FAIL(ERR_MEMORY, "%d micro-batches in flight", p->slots);
    p->device = arena_measure(m->ops->place, "activations");
    p->host_arena = arena_measure(PLACE_HOST, "activations (host)");
    return carve(p, o, &p->device, &p->host_arena);
}

enum status pipeline_bytes(const struct model *m, const struct pipeline_options *o, size_t *device, size_t *host)
{
    struct pipeline p;
    enum status s = prepare(&p, (struct model *)m, o);
    *device = p.device.used;
    *host = p.host_arena.used;
    pipeline_destroy(&p);
    return s;
}

enum status pipeline_create(struct pipeline *p, struct model *m, const struct pipeline_options *o)
{
    TRY(prepare(p, m, o));
    struct arena *arenas[] = {&p->device, &p->host_arena};
    for (int i = 0; i < 2; i++) {
        void *base = NULL;
        arenas[i]->size = arenas[i]->used;
        TRY(m->ops->alloc(&base, arenas[i]->size ? arenas[i]->size : 1, arenas[i]->place));
        arenas[i]->base = base;
        arenas[i]->used = 0;
    }
    for (int i = 0; i < p->slots; i++) activations_free(&p->slot[i].act);
    TRY(carve(p, o, &p->device, &p->host_arena));
    if (p->expert_rows) memset(p->expert_rows, 0, (size_t)(m->arch.layers * m->arch.experts) * sizeof *p->expert_rows);
    return OK;
}

void pipeline_destroy(struct pipeline *p)
{
    for (int i = 0; p->slot && i < p->slots; i++) activations_free(&p->slot[i].act);
    if (p->device.base) p->m->ops->release(p->device.base, p->device.place);
    if (p->host_arena.base) p->m->ops->release(p->host_arena.base, p->host_arena.place);
    free(p->slot);
    free(p->steps);
    *p = (struct pipeline){0};
}

/* ---------------------------------------------------------------- one micro-batch -------------------------------- */

static struct tensor host_i32(const int32_t *x, int64_t n)
{
    return tensor_view((void *)x, DT_I32, PLACE_HOST, 1, n, 1, 1, 1);
}

static enum status load_replay(struct pipeline *p, struct in_flight *s, const struct micro *u)
{
    const struct model *m = p->m;
    int64_t Tl = u->T / m->mesh->tp, k = m->arch.experts_per_token, n = m->n_layers * Tl * k;
    p->replay.fill(p->replay.ctx, u, p->host_replay);
    s->pass.replay = tensor_view(s->replay.data, DT_I32, m->ops->place, 3, m->n_layers, Tl, k, 1);
    return m->ops->copy(fit1(s->replay, n), host_i32(p->host_replay, n), m->stream);
}

/* Brings the micro-batch to the device and describes the pass. */
static enum status load(struct pipeline *p, struct in_flight *s, const struct micro *u)
{
    const struct ops *ops = p->m->ops;
    if (u->T > p->limits.T || u->S > p->limits.S || u->max_seqlen > p->limits.max_seqlen)
        return FAIL(ERR_INTERNAL, "micro-batch of %" PRId64 " rows, %d sequences, longest %d: planned for %" PRId64
                    ", %" PRId64 ", %d", u->T, u->S, u->max_seqlen, p->limits.T, p->limits.S, p->limits.max_seqlen);
    s->pass = (struct pass){.T = u->T, .valid = u->valid, .S = u->S, .max_seqlen = u->max_seqlen,
                            .ids = fit1(s->ids, u->T), .pos = fit1(s->pos, u->T),
                            .cu_seqlens = fit1(s->cu_seqlens, u->S + 1)};
    TRY(ops->copy(s->pass.ids, host_i32(u->ids, u->T), p->m->stream));
    TRY(ops->copy(s->pass.pos, host_i32(u->pos, u->T), p->m->stream));
    TRY(ops->copy(fit1(s->targets, u->T), host_i32(u->targets, u->T), p->m->stream));
    TRY(ops->copy(s->pass.cu_seqlens, host_i32(u->cu_seqlens, u->S + 1), p->m->stream));
    return p->replay.fill ? load_replay(p, s, u) : OK;
}

/* Layer l's experts to the host, before another layer may take the same memory. */
static enum status keep_experts(struct pipeline *p, const struct in_flight *s, const struct micro *u, int l)
{
    const struct model *m = p->m;
    if (!p->expert_rows || !m->layers[l].moe) return OK;
    int64_t n = u->T / m->mesh->tp * m->arch.experts_per_token;
    struct tensor to = tensor_view(p->host_experts + l * n, DT_I32, PLACE_HOST, 1, n, 1, 1, 1);
    return m->ops->copy(to, fit1(s->act.layer[l].ffn.experts, n), m->stream);
}

static enum status forward(struct pipeline *p, struct in_flight *s, const struct micro *u, int micro,
                           const struct observer *seen)
{
    struct model *m = p->m;
    struct mesh *mesh = (struct mesh *)m->mesh;
    int64_t Tl = u->T / mesh->tp, C = m->arch.hidden;
    TRY(load(p, s, u));
    struct tensor x = fit2(m->n_layers ? s->act.layer[0].x : s->act.out, Tl, C);
    if (m->first && p->fetch.layer) TRY(p->fetch.layer(p->fetch.ctx, -1));
    if (m->first) TRY(embed_forward(m, x, s->pass.ids, p->work.part));
    else TRY(comm_recv(&mesh->pp_group, x, mesh->pp_rank - 1, NULL));
    for (int l = 0; l < m->n_layers; l++) {
        if (p->fetch.layer) TRY(p->fetch.layer(p->fetch.ctx, l));
        struct tensor out = fit2(l + 1 < m->n_layers ? s->act.layer[l + 1].x : s->act.out, Tl, C);
        TRY(block_forward(m, &m->layers[l], &s->pass, &s->act.layer[l], &p->work, x, out));
        TRY(keep_experts(p, s, u, l));
        x = out;
    }
    if (m->last && p->fetch.layer) TRY(p->fetch.layer(p->fetch.ctx, m->n_layers));
    if (m->last) TRY(head_forward(m, &p->head, u->T, x, fit1(s->targets, u->T), p->inv_temp));
    else {
        TRY(comm_wait(&p->send_down));
        TRY(comm_send(&mesh->pp_group, x, mesh->pp_rank + 1, &p->send_down));
    }
    return seen ? seen->seen(seen->ctx, u, micro, &s->act, &p->head) : OK;
}

/* Adds the experts that this rank's rows of the micro-batch took. */
static enum status count_experts(struct pipeline *p, const struct micro *u)
{
    const struct model *m = p->m;
    int64_t Tl = u->T / m->mesh->tp, k = m->arch.experts_per_token, E = m->arch.experts;
    TRY(m->ops->wait(m->stream));
    for (int l = 0; l < m->n_layers; l++) {
        double *rows = p->expert_rows + m->layers[l].index * E;
        const int32_t *expert = p->host_experts + l * Tl * k;
        for (int64_t i = 0; m->layers[l].moe && i < Tl * k; i++)
            if (expert[i] >= 0) rows[expert[i]]++;
    }
    return OK;
}

/* Log-probs to the host, the objective's gradient back. */
static enum status objective_run(struct pipeline *p, const struct micro *u, const struct objective *o, bool train,
                                 bool *use_entropy)
{
    const struct ops *ops = p->m->ops;
    int64_t T = u->T;
    float *logp = p->host, *entropy = logp + T, *dlogp = entropy + T, *dentropy = dlogp + T;
    struct tensor row = tensor_view(logp, DT_F32, PLACE_HOST, 1, T, 1, 1, 1), next = row;
    TRY(ops->copy(row, fit1(p->head.logp, T), p->m->stream));
    next.data = entropy;
    TRY(ops->copy(next, fit1(p->head.entropy, T), p->m->stream));
    TRY(ops->wait(p->m->stream));
    memset(dlogp, 0, (size_t)T * 2 * sizeof *dlogp);
    TRY(o->loss(o->ctx, u, logp, entropy, dlogp, dentropy, use_entropy));
    if (!train) return OK;
    next.data = dlogp;
    TRY(ops->copy(fit1(p->head.dlogp, T), next, p->m->stream));
    next.data = dentropy;
    return *use_entropy ? ops->copy(fit1(p->head.dentropy, T), next, p->m->stream) : OK;
}

static enum status backward(struct pipeline *p, struct in_flight *s, const struct micro *u, bool use_entropy,
                            struct grads *grads, bool last_micro)
{
    struct model *m = p->m;
    struct mesh *mesh = (struct mesh *)m->mesh;
    int64_t Tl = u->T / mesh->tp, C = m->arch.hidden;
    struct tensor dy = fit2(p->dy[0], Tl, C);
    TRY(comm_wait(&p->send_up)); /* dy may still be leaving */
    if (m->last)
        TRY(head_backward(m, &p->head, u->T, dy, fit2(s->act.out, Tl, C), fit1(s->targets, u->T), p->inv_temp,
                          use_entropy));
    else TRY(comm_recv(&mesh->pp_group, dy, mesh->pp_rank + 1, NULL));
    if (last_micro) TRY(grads_ready(grads, m->arch.layers));
    for (int l = m->n_layers - 1; l >= 0; l--) {
        TRY(block_backward(m, &m->layers[l], &s->pass, &s->act.layer[l], &p->work, p->limits.recompute, dy, dy));
        if (last_micro) TRY(grads_ready(grads, m->layers[l].index));
    }
    if (m->first) TRY(embed_backward(m, dy, s->pass.ids, p->work.part));
    else TRY(comm_send(&mesh->pp_group, dy, mesh->pp_rank - 1, &p->send_up));
    return last_micro ? grads_ready(grads, -1) : OK;
}

/* ---------------------------------------------------------------- the run ---------------------------------------- */

enum status pipeline_run(struct pipeline *p, const struct batch *b, const struct objective *o, struct grads *grads,
                         const struct observer *seen)
{
    const struct mesh *mesh = p->m->mesh;
    bool train = grads != NULL, use_entropy = false;
    if (2 * b->n_micro > p->steps_cap) {
        free(p->steps);
        p->steps = calloc((size_t)b->n_micro * 2, sizeof *p->steps);
        p->steps_cap = p->steps ? 2 * b->n_micro : 0;
        if (!p->steps) return FAIL(ERR_MEMORY, "schedule of %d micro-batches", b->n_micro);
    }
    p->inv_temp = o && o->inv_temp > 0 ? o->inv_temp : 1.0f;
    int n = schedule_build(p->steps, mesh->pp, mesh->pp_rank, b->n_micro, !train);
    for (int i = 0; i < n; i++) {
        int k = p->steps[i].micro;
        const struct micro *u = &b->micro[k];
        struct in_flight *s = &p->slot[k % p->slots];
        if (p->steps[i].kind == STEP_FORWARD) {
            if (!train) TRY(comm_wait(&p->send_down)); /* the only slot is about to be written */
            TRY(forward(p, s, u, k, seen));
            if (train && p->expert_rows) TRY(count_experts(p, u));
            if (p->m->last && o) TRY(objective_run(p, u, o, train, &use_entropy));
        } else {
            TRY(backward(p, s, u, use_entropy, grads, k == b->n_micro - 1));
        }
    }
    TRY(comm_wait(&p->send_down));
    return comm_wait(&p->send_up);
}
