/* Attention of one block: norm, q/k/v/index in one product, per-head norm + RoPE, block selection on sparse layers,
 * attention, output projection. Forward first, backward in reverse with the same names and a d prefix. The indexer is
 * frozen: nothing flows through the selection. */
#include "block.h"

#include <math.h>

/* The columns of a qkv row from column `first`, as [T, heads, dim]. */
static struct tensor heads_view(struct tensor qkv, int64_t first, int64_t heads, int64_t dim)
{
    return tensor_reshape(tensor_cols(qkv, first, heads * dim), 3, qkv.dim[0], heads, dim);
}

static struct tensor fit3(struct tensor b, int64_t d0, int64_t d1, int64_t d2)
{
    return b.data ? tensor_view(b.data, b.dtype, b.place, 3, d0, d1, d2, 1) : b;
}

/* Everything of qkv_forward but what it keeps: used by the forward and by the backward's recomputation. */
static struct qkv_args project_args(const struct model *m, const struct layer *y, const struct pass *p,
                                    struct workspace *w, struct tensor qkv)
{
    const struct arch *a = &m->arch;
    int64_t H = a->heads / m->mesh->tp, K = m->mesh->kv_heads, D = a->head_dim;
    struct qkv_args q = {.qkv = qkv, .q_norm = y->q_norm, .k_norm = y->k_norm, .pos = p->pos, .theta = a->rope_theta,
                         .eps = a->rms_eps, .rotary = a->rotary_dim, .q = fit3(w->q, p->T, H, D),
                         .k = fit3(w->k, p->T, K, D)};
    return q;
}

static void add_index(const struct model *m, const struct layer *y, const struct pass *p, struct workspace *w,
                      struct qkv_args *q)
{
    if (!y->sparse) return;
    q->iq_norm = y->iq_norm;
    q->ik_norm = y->ik_norm;
    q->iq = fit3(w->iq, p->T, m->mesh->kv_heads, m->arch.index_dim);
    q->ik = fit2(w->ik, p->T, m->arch.index_dim);
}

static enum status attend_packed(const struct model *m, struct layer *y, const struct pass *p,
                                 struct saved_attention *s, struct workspace *w, const struct qkv_args *q,
                                 struct tensor v)
{
    const struct arch *a = &m->arch;
    struct tensor none = TENSOR_NONE;
    if (y->sparse) {
        struct select_args sel = {.iq = q->iq, .ik = q->ik, .cu_seqlens = p->cu_seqlens, .max_seqlen = p->max_seqlen,
                                  .block = a->block_size, .topk = a->topk_blocks, .init = a->init_blocks,
                                  .local = a->local_blocks, .sel = fit3(s->sel, q->k.dim[1], p->T, a->topk_blocks),
                                  .work = w->scratch};
        TRY(m->ops->select_forward(&sel, m->stream));
    }
    struct attend_args at = {.q = q->q, .k = q->k, .v = v, .cu_seqlens = p->cu_seqlens, .max_seqlen = p->max_seqlen,
                             .sel = y->sparse ? fit3(s->sel, q->k.dim[1], p->T, a->topk_blocks) : none,
                             .block = a->block_size, .scale = 1.0f / sqrtf((float)a->head_dim),
                             .o = fit3(s->o, p->T, q->q.dim[1], a->head_dim), .lse = fit2(s->lse, q->q.dim[1], p->T),
                             .work = w->scratch};
    return m->ops->attend_forward(&at, m->stream);
}

static enum status attend_cached(const struct model *m, struct layer *y, const struct pass *p,
                                 struct saved_attention *s, struct workspace *w, const struct qkv_args *q)
{
    const struct arch *a = &m->arch;
    int64_t K = m->mesh->kv_heads;
    struct paged_args pg = {.q = q->q, .k_cache = q->k_cache, .v_cache = q->v_cache, .iq = q->iq,
                            .ik_cache = q->ik_cache, .page_table = p->page_table, .q_start = p->cu_seqlens,
                            .kv_len = p->kv_len, .page = p->cache->page, .max_kv_len = p->max_kv_len,
                            .max_q_len = p->max_seqlen, .block = a->block_size, .topk = a->topk_blocks,
                            .init = a->init_blocks, .local = a->local_blocks,
                            .scale = 1.0f / sqrtf((float)a->head_dim), .o = fit3(s->o, p->T, q->q.dim[1], a->head_dim),
                            .work = w->scratch};
    if (y->sparse) {
        pg.sel = fit3(s->sel, K, p->T, a->topk_blocks);
        TRY(m->ops->select_paged(&pg, m->stream));
    }
    return m->ops->attend_paged(&pg, m->stream);
}

enum status attention_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_attention *s,
                              struct workspace *w, struct tensor x, struct tensor *out)
{
    const struct arch *a = &m->arch;
    const struct ops *ops = m->ops;
    struct tensor none = TENSOR_NONE;
    int64_t C = a->hidden, Tl = x.dim[0], K = m->mesh->kv_heads, H = a->heads / m->mesh->tp, D = a->head_dim;
    int64_t columns = y->index_cols + (H + 2 * K) * D;

    struct tensor h_shard = fit2(w->h_shard, Tl, C), h = fit2(w->h, p->T, C);
    TRY(ops->rmsnorm_forward(h_shard, fit1(s->rstd, Tl), none, x, none, y->input_norm, a->rms_eps, m->stream));
    TRY(tp_gather(m, &h, h_shard));
    struct tensor qkv = fit2(s->qkv, p->T, columns);
    TRY(ops->linear_forward(qkv, h, y->qkv, m->stream));

    struct qkv_args q = project_args(m, y, p, w, qkv);
    add_index(m, y, p, w, &q);
    q.rstd = fit2(s->rstd_qk, p->T, H + K);
    if (p->cache) {
        int l = y->index - m->mesh->first_layer;
        q.k_cache = p->cache->k[l];
        q.v_cache = p->cache->v[l];
        q.ik_cache = p->cache->ik[l];
        q.slot = p->slot;
    }
    TRY(ops->qkv_forward(&q, m->stream));
    if (p->cache) TRY(attend_cached(m, y, p, s, w, &q));
    else TRY(attend_packed(m, y, p, s, w, &q, heads_view(qkv, columns - K * D, K, D)));

    struct tensor part = fit2(w->part, p->T, C);
    TRY(ops->linear_forward(part, fit2(s->o, p->T, H * D), y->o, m->stream));
    *out = fit2(w->out, Tl, C);
    return tp_scatter(m, out, part);
}

enum status attention_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_attention *s,
                               struct workspace *w, struct tensor x, struct tensor dx, struct tensor d_out)
{
    const struct arch *a = &m->arch;
    const struct ops *ops = m->ops;
    struct tensor none = TENSOR_NONE;
    int64_t C = a->hidden, Tl = x.dim[0], T = p->T, K = m->mesh->kv_heads, H = a->heads / m->mesh->tp, D = a->head_dim;
    int64_t columns = y->index_cols + (H + 2 * K) * D;

    struct tensor d_part = fit2(w->d_full, T, C), o = fit2(s->o, T, H * D), d_o = fit2(w->d_o, T, H * D);
    TRY(tp_gather(m, &d_part, d_out));
    TRY(ops->linear_dw(y->d_o, d_part, o, m->stream));
    TRY(ops->linear_dx(d_o, d_part, y->o, false, m->stream));

    struct tensor qkv = fit2(s->qkv, T, columns), dqkv = fit2(w->dqkv, T, (H + 2 * K) * D);
    struct qkv_args q = project_args(m, y, p, w, tensor_cols(qkv, y->index_cols, (H + 2 * K) * D));
    TRY(ops->qkv_forward(&q, m->stream)); /* q and k once more: cheaper than keeping them */
    struct attend_args at = {.q = q.q, .k = q.k, .v = heads_view(qkv, columns - K * D, K, D),
                             .cu_seqlens = p->cu_seqlens, .max_seqlen = p->max_seqlen,
                             .sel = y->sparse ? fit3(s->sel, K, T, a->topk_blocks) : none, .block = a->block_size,
                             .scale = 1.0f / sqrtf((float)D), .o = fit3(s->o, T, H, D), .lse = fit2(s->lse, H, T),
                             .d_o = fit3(w->d_o, T, H, D), .dq = fit3(w->dq, T, H, D), .dk = fit3(w->dk, T, K, D),
                             .dv = heads_view(dqkv, (H + K) * D, K, D), .work = w->scratch, .deterministic = true};
    TRY(ops->attend_backward(&at, m->stream));
    q.rstd = fit2(s->rstd_qk, T, H + K);
    q.dq = at.dq;
    q.dk = at.dk;
    q.dqkv = dqkv;
    q.dq_norm = y->d_q_norm;
    q.dk_norm = y->d_k_norm;
    TRY(ops->qkv_backward(&q, m->stream));

    struct tensor h_shard = fit2(w->h_shard, Tl, C), h = fit2(w->h, T, C), dh = fit2(w->part, T, C);
    TRY(ops->rmsnorm_forward(h_shard, fit1(w->rstd, Tl), none, x, none, y->input_norm, a->rms_eps, m->stream));
    TRY(tp_gather(m, &h, h_shard));
    TRY(ops->linear_dw(y->d_qkv, dqkv, h, m->stream));
    TRY(ops->linear_dx(dh, dqkv, tensor_rows(y->qkv, y->index_cols, (H + 2 * K) * D), false, m->stream));
    struct tensor dh_shard = fit2(w->out, Tl, C);
    TRY(tp_scatter(m, &dh_shard, dh));
    return ops->rmsnorm_backward(dx, y->d_input_norm, dh_shard, x, y->input_norm, fit1(s->rstd, Tl), d_out,
                                 m->stream);
}
