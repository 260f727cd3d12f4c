#include "head.h"

enum status head_carve(struct head *hd, const struct model *m, int64_t T, int64_t chunk, enum head_use use,
                       struct arena *a)
{
    int64_t C = m->arch.hidden, V = m->arch.vocab, tp = m->mesh->tp, Tl = T / tp;
    *hd = (struct head){.chunk = chunk < T ? chunk : T};
    TRY(tensor_alloc(a, &hd->h_shard, m->dtype, 2, Tl, C, 1, 1));
    if (tp > 1) TRY(tensor_alloc(a, &hd->h, m->dtype, 2, T, C, 1, 1));
    TRY(tensor_alloc(a, &hd->rstd, DT_F32, 1, Tl, 1, 1, 1));
    TRY(tensor_alloc(a, &hd->logits, m->dtype, 2, hd->chunk, m->vocab_here, 1, 1));
    if (use == HEAD_DECODE) {
        TRY(tensor_alloc(a, &hd->picked, m->dtype, 2, hd->chunk, C, 1, 1));
        if (tp > 1) TRY(tensor_alloc(a, &hd->gathered, m->dtype, 1, hd->chunk * V, 1, 1, 1));
        if (tp > 1) TRY(tensor_alloc(a, &hd->whole, m->dtype, 2, hd->chunk, V, 1, 1));
        return OK;
    }
    TRY(tensor_alloc(a, &hd->stats, DT_F32, 2, hd->chunk, 4, 1, 1));
    if (tp > 1) TRY(tensor_alloc(a, &hd->all_stats, DT_F32, 3, tp, hd->chunk, 4, 1));
    struct tensor *rows[] = {&hd->logp, &hd->entropy, &hd->lse, &hd->dlogp, &hd->dentropy};
    for (int i = 0; i < (use == HEAD_TRAIN ? 5 : 3); i++) TRY(tensor_alloc(a, rows[i], DT_F32, 1, T, 1, 1, 1));
    if (use != HEAD_TRAIN) return OK;
    TRY(tensor_alloc(a, &hd->dh, m->dtype, 2, T, C, 1, 1));
    if (tp > 1) TRY(tensor_alloc(a, &hd->dh_shard, m->dtype, 2, Tl, C, 1, 1));
    return OK;
}

enum status embed_forward(const struct model *m, struct tensor x, struct tensor ids, struct tensor part)
{
    if (m->mesh->tp == 1) return m->ops->embed_forward(x, ids, m->embed, m->vocab_first, m->stream);
    struct tensor full = fit2(part, ids.dim[0], m->arch.hidden), shard = x;
    TRY(m->ops->embed_forward(full, ids, m->embed, m->vocab_first, m->stream));
    return tp_scatter(m, &shard, full);
}

enum status embed_backward(const struct model *m, struct tensor dx, struct tensor ids, struct tensor full)
{
    struct tensor dy = fit2(full, ids.dim[0], m->arch.hidden);
    TRY(tp_gather(m, &dy, dx));
    return m->ops->embed_backward(m->d_embed, dy, ids, m->vocab_first, m->stream);
}

static enum status normalise(const struct model *m, struct head *hd, int64_t T, struct tensor x, struct tensor *h)
{
    struct tensor none = TENSOR_NONE, shard = fit2(hd->h_shard, x.dim[0], m->arch.hidden);
    TRY(m->ops->rmsnorm_forward(shard, fit1(hd->rstd, x.dim[0]), none, x, none, m->final_norm, m->arch.rms_eps,
                                m->stream));
    *h = fit2(hd->h, T, m->arch.hidden);
    return tp_gather(m, h, shard);
}

enum status head_forward(const struct model *m, struct head *hd, int64_t T, struct tensor x, struct tensor targets,
                         float inv_temp)
{
    struct tensor h;
    TRY(normalise(m, hd, T, x, &h));
    for (int64_t t = 0; t < T; t += hd->chunk) {
        int64_t n = T - t < hd->chunk ? T - t : hd->chunk;
        struct tensor logits = fit2(hd->logits, n, m->vocab_here), stats = fit2(hd->stats, n, 4);
        struct tensor all = tensor_view(hd->all_stats.data, DT_F32, stats.place, 3, m->mesh->tp, n, 4, 1);
        struct tensor target = tensor_rows(targets, t, n);
        TRY(m->ops->linear_forward(logits, tensor_rows(h, t, n), m->head, m->stream));
        TRY(m->ops->vocab_stats(stats, logits, target, m->vocab_first, inv_temp, m->stream));
        if (m->mesh->tp == 1) all = tensor_view(stats.data, DT_F32, stats.place, 3, 1, n, 4, 1);
        else TRY(comm_all_gather((struct group *)&m->mesh->tp_group, fit2(all, m->mesh->tp * n, 4), stats, NULL, NULL));
        TRY(m->ops->vocab_join(tensor_rows(hd->logp, t, n), tensor_rows(hd->entropy, t, n), tensor_rows(hd->lse, t, n),
                               all, target, m->stream));
    }
    hd->holds = T <= hd->chunk ? x.data : NULL;
    return OK;
}

enum status head_backward(const struct model *m, struct head *hd, int64_t T, struct tensor dx, struct tensor x,
                          struct tensor targets, float inv_temp, bool entropy)
{
    struct tensor h = m->mesh->tp > 1 ? fit2(hd->h, T, m->arch.hidden) : fit2(hd->h_shard, T, m->arch.hidden);
    struct tensor dh = fit2(hd->dh, T, m->arch.hidden), none = TENSOR_NONE;
    bool kept = T <= hd->chunk && hd->holds == x.data;
    if (!kept) TRY(normalise(m, hd, T, x, &h));
    for (int64_t t = 0; t < T; t += hd->chunk) {
        int64_t n = T - t < hd->chunk ? T - t : hd->chunk;
        struct tensor logits = fit2(hd->logits, n, m->vocab_here), rows = tensor_rows(h, t, n);
        if (!kept) TRY(m->ops->linear_forward(logits, rows, m->head, m->stream));
        TRY(m->ops->vocab_backward(logits, logits, tensor_rows(targets, t, n), m->vocab_first, inv_temp,
                                   tensor_rows(hd->lse, t, n), tensor_rows(hd->entropy, t, n),
                                   tensor_rows(hd->dlogp, t, n), entropy ? tensor_rows(hd->dentropy, t, n) : none,
                                   m->stream));
        TRY(m->ops->linear_dw(m->d_head, logits, rows, m->stream));
        TRY(m->ops->linear_dx(tensor_rows(dh, t, n), logits, m->head, false, m->stream));
    }
    hd->holds = NULL;
    struct tensor shard = fit2(hd->dh_shard, x.dim[0], m->arch.hidden);
    TRY(tp_scatter(m, &shard, dh));
    return m->ops->rmsnorm_backward(dx, m->d_final_norm, shard, x, m->final_norm, fit1(hd->rstd, x.dim[0]), none,
                                    m->stream);
}

enum status head_logits(const struct model *m, struct head *hd, int64_t T, struct tensor x, struct tensor index,
                        struct tensor *out)
{
    int64_t N = index.dim[0], tp = m->mesh->tp, V = m->arch.vocab;
    struct tensor h, rows = fit2(hd->picked, N, m->arch.hidden), mine = fit2(hd->logits, N, m->vocab_here);
    TRY(normalise(m, hd, T, x, &h));
    TRY(m->ops->gather_rows(rows, h, index, m->stream));
    TRY(m->ops->linear_forward(mine, rows, m->head, m->stream));
    *out = mine;
    if (tp == 1) return OK;
    int64_t count[tp], at = 0;
    for (int64_t r = 0; r < tp; r++) count[r] = N * (V * (r + 1) / tp - V * r / tp);
    TRY(comm_all_gather((struct group *)&m->mesh->tp_group, fit1(hd->gathered, N * V), fit1(mine, N * m->vocab_here),
                        count, NULL));
    *out = fit2(hd->whole, N, V);
    for (int64_t r = 0; r < tp; at += count[r], r++) {
        int64_t v0 = V * r / tp, n = count[r] / (N ? N : 1);
        TRY(m->ops->copy(tensor_cols(*out, v0, n), fit2(tensor_flat(hd->gathered, at, count[r]), N, n), m->stream));
    }
    return OK;
}
