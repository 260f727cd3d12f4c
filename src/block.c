/* One block, forward and backward, and the memory behind it. */
#include "block.h"

#include <stdlib.h>

struct tensor fit2(struct tensor b, int64_t d0, int64_t d1)
{
    return b.data ? tensor_view(b.data, b.dtype, b.place, 2, d0, d1, 1, 1) : b;
}
struct tensor fit1(struct tensor b, int64_t d0)
{
    return b.data ? tensor_view(b.data, b.dtype, b.place, 1, d0, 1, 1, 1) : b;
}

enum status tp_gather(const struct model *m, struct tensor *full, struct tensor shard)
{
    if (m->mesh->tp > 1) return comm_all_gather((struct group *)&m->mesh->tp_group, *full, shard, NULL, NULL);
    *full = shard;
    return OK;
}
enum status tp_scatter(const struct model *m, struct tensor *shard, struct tensor full)
{
    if (m->mesh->tp > 1) return comm_reduce_scatter((struct group *)&m->mesh->tp_group, *shard, full, NULL, NULL);
    *shard = full;
    return OK;
}

enum status block_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_layer *s,
                          struct workspace *w, struct tensor x, struct tensor out)
{
    struct tensor attended;
    TRY(attention_forward(m, y, p, &s->attention, w, x, &attended));
    return ffn_forward(m, y, p, &s->ffn, w, x, attended, out);
}

enum status block_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_layer *s,
                           struct workspace *w, enum recompute r, struct tensor dx, struct tensor dy)
{
    int64_t Tl = dy.dim[0], C = m->arch.hidden;
    struct tensor x = fit2(s->x, Tl, C), dx1 = fit2(w->dx[0], Tl, C), again;
    if (r == RECOMPUTE_LAYER) TRY(block_forward(m, y, p, s, w, x, fit2(w->dx[1], Tl, C)));
    TRY(ffn_backward(m, y, p, &s->ffn, w, dx1, dy));
    if (r == RECOMPUTE_ATTENTION) TRY(attention_forward(m, y, p, &s->attention, w, x, &again));
    return attention_backward(m, y, p, &s->attention, w, x, dx, dx1);
}

/* ---------------------------------------------------------------- memory ----------------------------------------- */

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Widths over the layers of this stage. */
struct widths {
    int64_t C, H, K, D, Di, cols, ffn, k, E, El, F;
    bool sparse, moe;
};

static struct widths widths_of(const struct model *m)
{
    const struct arch *a = &m->arch;
    struct widths x = {.C = a->hidden, .H = a->heads / m->mesh->tp, .K = m->mesh->kv_heads, .D = a->head_dim,
                       .Di = a->index_dim, .k = a->experts_per_token, .E = a->experts, .El = a->experts / m->mesh->ep,
                       .F = a->expert_ffn};
    for (int i = 0; i < m->mesh->layers; i++) {
        int l = m->mesh->first_layer + i;
        if (a->sparse[l]) x.sparse = true;
        if (a->moe[l]) x.moe = true;
        x.ffn = max64(x.ffn, (a->moe[l] ? a->shared_ffn : a->dense_ffn) / m->mesh->tp);
    }
    x.cols = (x.sparse ? (x.K + 1) * x.Di : 0) + (x.H + 2 * x.K) * x.D;
    return x;
}

#define TAKE(t, type, ...) TRY(take(a, &(t), type, (const int64_t[2]){__VA_ARGS__}))
static enum status take(struct arena *a, struct tensor *t, enum dtype type, const int64_t dim[2])
{
    return tensor_alloc(a, t, type, dim[1] ? 2 : 1, dim[0], dim[1] ? dim[1] : 1, 1, 1);
}

/* Scratch for every op that asks for some, at the limits. */
static size_t scratch_bytes(const struct model *m, const struct block_limits *l, const struct widths *x)
{
    enum place at = m->ops->place;
    enum dtype t = m->dtype;
    void *some = (void *)ARENA_ALIGN;
    int topk = m->arch.topk_blocks;
    struct attend_args dense = {.q = tensor_view(some, t, at, 3, l->T, x->H, x->D, 1),
        .k = tensor_view(some, t, at, 3, l->T, x->K, x->D, 1), .v = tensor_view(some, t, at, 3, l->T, x->K, x->D, 1),
        .cu_seqlens = tensor_view(some, DT_I32, at, 1, l->S + 1, 1, 1, 1), .max_seqlen = l->max_seqlen,
        .block = m->arch.block_size, .deterministic = l->deterministic};
    struct attend_args sparse = dense;
    sparse.sel = tensor_view(some, DT_I32, at, 3, x->K, l->T, topk, 1);
    struct select_args sel = {.iq = tensor_view(some, t, at, 3, l->T, x->K, x->Di, 1),
        .ik = tensor_view(some, t, at, 2, l->T, x->Di, 1, 1), .cu_seqlens = dense.cu_seqlens,
        .max_seqlen = l->max_seqlen, .block = m->arch.block_size, .topk = topk, .sel = sparse.sel};
    size_t n = 0;
    size_t need[8] = {0};
    int i = 0;
    if (!l->cache) {
        need[i++] = m->ops->attend_work(&dense, false);
        if (l->train) need[i++] = m->ops->attend_work(&dense, true);
        if (x->sparse) need[i++] = m->ops->select_work(&sel);
        if (x->sparse) need[i++] = m->ops->attend_work(&sparse, false);
        if (x->sparse && l->train) need[i++] = m->ops->attend_work(&sparse, true);
    } else {
        int64_t max_pages = (l->max_seqlen + l->cache->page - 1) / l->cache->page;
        struct paged_args pg = {.q = dense.q, .k_cache = tensor_view(some, t, at, 3, l->cache->pages * l->cache->page,
            x->K, x->D, 1), .iq = sel.iq, .page_table = tensor_view(some, DT_I32, at, 2, l->S, max_pages, 1, 1),
            .q_start = dense.cu_seqlens, .kv_len = tensor_view(some, DT_I32, at, 1, l->S, 1, 1, 1),
            .page = l->cache->page, .max_kv_len = l->max_seqlen, .max_q_len = (int)l->T,
            .block = m->arch.block_size, .topk = topk};
        pg.v_cache = pg.k_cache;
        need[i++] = m->ops->paged_work(&pg);
        pg.ik_cache = tensor_view(some, t, at, 2, l->cache->pages * l->cache->page, x->Di, 1, 1);
        pg.sel = sparse.sel;
        if (x->sparse) need[i++] = m->ops->paged_work(&pg);
    }
    while (i--) n = need[i] > n ? need[i] : n;
    return n;
}

enum status workspace_carve(struct workspace *w, const struct model *m, const struct block_limits *l, struct arena *a,
                            struct arena *host)
{
    struct widths x = widths_of(m);
    int64_t T = l->T, Tl = T / m->mesh->tp, R = x.moe ? moe_max_rows(m, T) : 0, sent = x.moe ? Tl * x.k : 0;
    bool train = l->train, ep = m->mesh->ep > 1 && x.moe;
    enum dtype t = m->dtype;
    *w = (struct workspace){0};
    TAKE(w->h_shard, t, Tl, x.C);
    if (m->mesh->tp > 1) TAKE(w->h, t, T, x.C);
    TAKE(w->part, t, T, x.C);
    if (m->mesh->tp > 1) TAKE(w->out, t, Tl, x.C);
    else TAKE(w->out, t, T, x.C);
    TAKE(w->rstd, DT_F32, T);
    TAKE(w->q, t, T, x.H * x.D);
    TAKE(w->k, t, T, x.K * x.D);
    if (x.sparse) TAKE(w->iq, t, T, x.K * x.Di);
    if (x.sparse) TAKE(w->ik, t, T, x.Di);
    if (x.ffn) TAKE(w->act, t, T, x.ffn);
    if (train) {
        if (m->mesh->tp > 1) TAKE(w->d_full, t, T, x.C);
        TAKE(w->dx[0], t, Tl, x.C);
        TAKE(w->dx[1], t, Tl, x.C);
        TAKE(w->d_o, t, T, x.H * x.D);
        TAKE(w->dq, t, T, x.H * x.D);
        TAKE(w->dk, t, T, x.K * x.D);
        TAKE(w->dqkv, t, T, (x.H + 2 * x.K) * x.D);
        if (x.ffn) TAKE(w->d_act, t, T, x.ffn);
        if (x.ffn) TAKE(w->d_gate_up, t, T, 2 * x.ffn);
    }
    if (x.moe) {
        TAKE(w->row_token, DT_I32, sent);
        TAKE(w->offsets_all, DT_I32, x.E + 1);
        TAKE(w->e_act, t, R, x.F);
        if (ep || train) TAKE(w->send, t, sent, x.C);
        if (ep) TAKE(w->arrived, t, R, x.C);
        if (ep) TAKE(w->e_rows, t, R, x.C);
        if (train) {
            TAKE(w->back, t, R, x.C);
            TAKE(w->e_dact, t, R, x.F);
            TAKE(w->e_dh, t, R, 2 * x.F);
            TAKE(w->d_weights, DT_F32, Tl, x.k);
            TAKE(w->d_logits, DT_F32, Tl, x.E);
        }
    }
    size_t scratch = scratch_bytes(m, l, &x);
    if (scratch) TAKE(w->scratch, DT_U8, (int64_t)scratch);
    if (ep) {
        a = host;
        TAKE(w->host_offsets, DT_I32, x.E + 1);
        for (int i = 0; i < 2; i++) TAKE(w->host_counts[i], DT_I32, x.E);
        for (int i = 0; i < 2; i++) TAKE(w->host_index[i], DT_I32, R);
    }
    return OK;
}

static enum status carve_attention(struct saved_attention *s, const struct model *m, const struct widths *x, bool sparse,
                                   int64_t T, struct arena *a)
{
    TAKE(s->rstd, DT_F32, T / m->mesh->tp);
    TAKE(s->qkv, m->dtype, T, x->cols);
    TAKE(s->rstd_qk, DT_F32, T, x->H + x->K);
    if (sparse) TAKE(s->sel, DT_I32, x->K * T, m->arch.topk_blocks);
    TAKE(s->o, m->dtype, T, x->H * x->D);
    TAKE(s->lse, DT_F32, x->H, T);
    return OK;
}

static enum status carve_ffn(struct saved_ffn *s, const struct model *m, const struct widths *x, bool moe, int64_t ffn,
                             int64_t T, struct arena *a, struct arena *host)
{
    int64_t Tl = T / m->mesh->tp, ep = m->mesh->ep, R = moe_max_rows(m, T);
    TAKE(s->x1, m->dtype, Tl, x->C);
    TAKE(s->rstd, DT_F32, Tl);
    if (ffn) TAKE(s->gate_up, m->dtype, T, 2 * ffn);
    if (!moe) return OK;
    TAKE(s->logits, DT_F32, Tl, x->E);
    TAKE(s->experts, DT_I32, Tl, x->k);
    TAKE(s->weights, DT_F32, Tl, x->k);
    TAKE(s->offsets, DT_I32, x->El + 1);
    TAKE(s->row_of, DT_I32, Tl, x->k);
    TAKE(s->x, m->dtype, R, x->C);
    TAKE(s->h, m->dtype, R, 2 * x->F);
    TAKE(s->rows, m->dtype, Tl * x->k, x->C);
    if (ep == 1) return OK;
    TAKE(s->by_expert, DT_I32, R);
    TAKE(s->by_source, DT_I32, R);
    struct tensor rows[2];
    a = host;
    for (int i = 0; i < 2; i++) TAKE(rows[i], DT_I64, ep);
    s->send_rows = rows[0].data;
    s->recv_rows = rows[1].data;
    return OK;
}

enum status activations_carve(struct activations *act, struct saved_layer *shared, const struct model *m,
                              const struct block_limits *l, struct arena *a, struct arena *host)
{
    struct widths x = widths_of(m);
    int64_t T = l->T, Tl = T / m->mesh->tp;
    bool share_attention = !l->train || l->recompute != RECOMPUTE_NONE;
    bool share_ffn = !l->train || l->recompute == RECOMPUTE_LAYER;
    if (share_attention && !shared->attention.qkv.data)
        TRY(carve_attention(&shared->attention, m, &x, x.sparse, T, a));
    if (share_ffn && !shared->ffn.x1.data) TRY(carve_ffn(&shared->ffn, m, &x, x.moe, x.ffn, T, a, host));
    if (!act->layer) act->layer = calloc((size_t)m->n_layers, sizeof *act->layer);
    if (!act->layer) return FAIL(ERR_MEMORY, "activations of %d layers", m->n_layers);
    act->n_layers = m->n_layers;
    struct tensor ping[2] = {TENSOR_NONE, TENSOR_NONE};
    for (int i = 0; !l->train && i < 2; i++) TAKE(ping[i], m->dtype, Tl, x.C);
    for (int i = 0; i < m->n_layers; i++) {
        struct saved_layer *s = &act->layer[i];
        int g = m->mesh->first_layer + i;
        int64_t ffn = (m->arch.moe[g] ? m->arch.shared_ffn : m->arch.dense_ffn) / m->mesh->tp;
        if (l->train) TAKE(s->x, m->dtype, Tl, x.C);
        else s->x = ping[i % 2];
        if (share_attention) s->attention = shared->attention;
        else TRY(carve_attention(&s->attention, m, &x, m->arch.sparse[g], T, a));
        if (share_ffn) s->ffn = shared->ffn;
        else TRY(carve_ffn(&s->ffn, m, &x, m->arch.moe[g], ffn, T, a, host));
    }
    if (l->train) TAKE(act->out, m->dtype, Tl, x.C);
    else act->out = ping[m->n_layers % 2];
    return OK;
}

void activations_free(struct activations *act)
{
    free(act->layer);
    *act = (struct activations){0};
}
