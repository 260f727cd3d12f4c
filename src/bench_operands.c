#include "bench_operands.h"

#include "sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- carving ---------------------------------------- */

static enum status take(struct operands *o, struct tensor *t, enum dtype dtype, int rank, int64_t d0, int64_t d1,
                        int64_t d2)
{
    return tensor_alloc(&o->arena, t, dtype, rank, d0, d1, d2, 1);
}

static enum status take_tokens(struct operands *o)
{
    const struct widths *w = &o->w;
    TRY(take(o, &o->x, w->dtype, 2, w->T, w->C, 1));
    TRY(take(o, &o->y, w->dtype, 2, w->T, w->C, 1));
    TRY(take(o, &o->z, w->dtype, 2, w->T, w->C, 1));
    TRY(take(o, &o->x_out, w->dtype, 2, w->T, w->C, 1));
    TRY(take(o, &o->norm, w->dtype, 1, w->C, 1, 1));
    TRY(take(o, &o->d_norm, DT_F32, 1, w->C, 1, 1));
    TRY(take(o, &o->rstd, DT_F32, 1, w->T, 1, 1));
    TRY(take(o, &o->ids, DT_I32, 1, w->T, 1, 1));
    TRY(take(o, &o->table, w->dtype, 2, w->V, w->C, 1));
    TRY(take(o, &o->d_table, DT_F32, 2, w->V, w->C, 1));
    TRY(take(o, &o->logits, w->dtype, 2, w->logit_rows, w->V, 1));
    TRY(take(o, &o->targets, DT_I32, 1, w->logit_rows, 1, 1));
    TRY(take(o, &o->stats, DT_F32, 2, w->logit_rows, 4, 1));
    struct tensor *column[] = {&o->logp, &o->entropy, &o->lse, &o->dlogp};
    for (int i = 0; i < 4; i++) TRY(take(o, column[i], DT_F32, 1, w->logit_rows, 1, 1));
    TRY(take(o, &o->u, DT_F64, 1, w->N, 1, 1));
    TRY(take(o, &o->pick_ids, DT_I32, 1, w->N, 1, 1));
    TRY(take(o, &o->pick_logp, DT_F32, 1, w->N, 1, 1));
    o->pick_logits = tensor_rows(o->logits, 0, w->N);
    TRY(take(o, &o->sample_work, DT_U8, 1, (int64_t)o->b->ops->sample_work(w->N, w->V) + 1, 1, 1));
    TRY(take(o, &o->f32, DT_F32, 1, w->state, 1, 1));
    TRY(take(o, &o->bf16, DT_BF16, 1, w->state, 1, 1));
    TRY(take(o, &o->sum, DT_F64, 1, 1, 1, 1));
    o->adamw = (struct adamw_args){.grad = o->f32, .weight = o->bf16, .lr = 1e-6f, .beta1 = 0.9f, .beta2 = 0.95f,
                                   .eps = 1e-8f, .bias1 = 0.1f, .bias2 = 0.05f, .grad_scale = 1};
    TRY(take(o, &o->adamw.master, DT_F32, 1, w->state, 1, 1));
    TRY(take(o, &o->adamw.exp_avg, DT_F32, 1, w->state, 1, 1));
    return take(o, &o->adamw.exp_avg_sq, DT_F32, 1, w->state, 1, 1);
}

static enum status take_moe(struct operands *o)
{
    const struct widths *w = &o->w;
    int64_t R = w->M * w->k;
    TRY(take(o, &o->gate_w, DT_F32, 2, w->E, w->C, 1));
    TRY(take(o, &o->d_gate_w, DT_F32, 2, w->E, w->C, 1));
    TRY(take(o, &o->router, DT_F32, 2, w->M, w->E, 1));
    TRY(take(o, &o->bias, DT_F32, 1, w->E, 1, 1));
    TRY(take(o, &o->experts, DT_I32, 2, w->M, w->k, 1));
    TRY(take(o, &o->weights, DT_F32, 2, w->M, w->k, 1));
    TRY(take(o, &o->d_weights, DT_F32, 2, w->M, w->k, 1));
    TRY(take(o, &o->offsets, DT_I32, 1, w->E + 1, 1, 1));
    TRY(take(o, &o->row_token, DT_I32, 1, R, 1, 1));
    TRY(take(o, &o->row_of, DT_I32, 2, w->M, w->k, 1));
    TRY(take(o, &o->rows, w->dtype, 2, R, w->C, 1));
    TRY(take(o, &o->gu, w->dtype, 2, R, 2 * w->F, 1));
    TRY(take(o, &o->act, w->dtype, 2, R, w->F, 1));
    TRY(take(o, &o->w13, w->dtype, 3, w->E, 2 * w->F, w->C));
    TRY(take(o, &o->d_w13, DT_F32, 3, w->E, 2 * w->F, w->C));
    TRY(take(o, &o->w2, w->dtype, 3, w->E, w->C, w->F));
    TRY(take(o, &o->d_w2, DT_F32, 3, w->E, w->C, w->F));
    o->tokens = tensor_rows(o->x, 0, w->M);
    return OK;
}

static enum status take_qkv(struct operands *o)
{
    const struct widths *w = &o->w;
    struct qkv_args *q = &o->qkv;
    int64_t index = (w->I + 1) * w->Di, cols = index + (w->H + 2 * w->K) * w->D;
    *q = (struct qkv_args){.theta = 5e6f, .eps = 1e-6f, .rotary = w->rotary};
    TRY(take(o, &o->qkv_w, w->dtype, 2, cols, w->C, 1));
    TRY(take(o, &o->d_qkv_w, DT_F32, 2, cols, w->C, 1));
    TRY(take(o, &q->qkv, w->dtype, 2, w->T, cols, 1));
    struct tensor *norm[] = {&q->q_norm, &q->k_norm}, *index_norm[] = {&q->iq_norm, &q->ik_norm};
    for (int i = 0; i < 2; i++) TRY(take(o, norm[i], w->dtype, 1, w->D, 1, 1));
    for (int i = 0; i < 2; i++) TRY(take(o, index_norm[i], w->dtype, 1, w->Di, 1, 1));
    TRY(take(o, &q->dq_norm, DT_F32, 1, w->D, 1, 1));
    TRY(take(o, &q->dk_norm, DT_F32, 1, w->D, 1, 1));
    TRY(take(o, &q->pos, DT_I32, 1, w->T, 1, 1));
    TRY(take(o, &q->q, w->dtype, 3, w->T, w->H, w->D));
    TRY(take(o, &q->k, w->dtype, 3, w->T, w->K, w->D));
    TRY(take(o, &q->iq, w->dtype, 3, w->T, w->I, w->Di));
    TRY(take(o, &q->ik, w->dtype, 2, w->T, w->Di, 1));
    TRY(take(o, &q->rstd, DT_F32, 2, w->T, w->H + w->K, 1));
    TRY(take(o, &q->dq, w->dtype, 3, w->T, w->H, w->D));
    TRY(take(o, &q->dk, w->dtype, 3, w->T, w->K, w->D));
    TRY(take(o, &q->dqkv, w->dtype, 2, w->T, (w->H + 2 * w->K) * w->D, 1));
    return OK;
}

static enum status take_attention(struct operands *o)
{
    const struct widths *w = &o->w;
    const struct ops *ops = o->b->ops;
    struct attend_args *a = &o->sparse;
    *a = (struct attend_args){.q = o->qkv.q, .k = o->qkv.k, .block = w->block,
                              .max_seqlen = (int)((w->T + w->S - 1) / w->S), .scale = 1 / sqrtf((float)w->D),
                              .dq = o->qkv.dq, .dk = o->qkv.dk, .deterministic = true};
    TRY(take(o, &a->v, w->dtype, 3, w->T, w->K, w->D));
    TRY(take(o, &a->dv, w->dtype, 3, w->T, w->K, w->D));
    TRY(take(o, &a->o, w->dtype, 3, w->T, w->H, w->D));
    TRY(take(o, &a->d_o, w->dtype, 3, w->T, w->H, w->D));
    TRY(take(o, &a->lse, DT_F32, 2, w->H, w->T, 1));
    TRY(take(o, &a->cu_seqlens, DT_I32, 1, w->S + 1, 1, 1));
    TRY(take(o, &a->sel, DT_I32, 3, w->K, w->T, w->topk));
    struct select_args *s = &o->select;
    *s = (struct select_args){.iq = o->qkv.iq, .ik = o->qkv.ik, .cu_seqlens = a->cu_seqlens,
                              .max_seqlen = a->max_seqlen, .block = w->block, .topk = w->topk, .local = 1,
                              .sel = a->sel};
    o->dense = *a;
    o->dense.sel = TENSOR_NONE;
    size_t need = ops->select_work(s);
    for (int backward = 0; backward < 2; backward++) {
        size_t d = ops->attend_work(&o->dense, backward), p = ops->attend_work(a, backward);
        if (d > need) need = d;
        if (p > need) need = p;
    }
    TRY(take(o, &a->work, DT_U8, 1, (int64_t)need + 1, 1, 1));
    s->work = o->dense.work = a->work;
    return OK;
}

static enum status take_paged(struct operands *o)
{
    const struct widths *w = &o->w;
    struct paged_args *p = &o->paged;
    int64_t pages = (w->kv + w->page - 1) / w->page;
    *p = (struct paged_args){.page = w->page, .max_kv_len = (int)w->kv, .max_q_len = 1, .block = w->block,
                             .topk = w->topk, .local = 1, .scale = 1 / sqrtf((float)w->D)};
    TRY(take(o, &p->q, w->dtype, 3, w->N, w->H, w->D));
    TRY(take(o, &p->o, w->dtype, 3, w->N, w->H, w->D));
    TRY(take(o, &p->iq, w->dtype, 3, w->N, w->I, w->Di));
    TRY(take(o, &p->k_cache, w->dtype, 3, w->N * pages * w->page, w->K, w->D));
    TRY(take(o, &p->v_cache, w->dtype, 3, w->N * pages * w->page, w->K, w->D));
    TRY(take(o, &p->ik_cache, w->dtype, 2, w->N * pages * w->page, w->Di, 1));
    TRY(take(o, &p->page_table, DT_I32, 2, w->N, pages, 1));
    TRY(take(o, &p->q_start, DT_I32, 1, w->N + 1, 1, 1));
    TRY(take(o, &p->kv_len, DT_I32, 1, w->N, 1, 1));
    TRY(take(o, &p->sel, DT_I32, 3, w->K, w->N, w->topk));
    TRY(take(o, &p->work, DT_U8, 1, (int64_t)o->b->ops->paged_work(p) + 1, 1, 1));
    o->paged_dense = *p;
    o->paged_dense.sel = TENSOR_NONE;
    return OK;
}

static enum status take_all(struct operands *o)
{
    TRY(take_tokens(o));
    TRY(take_moe(o));
    TRY(take_qkv(o));
    TRY(take_attention(o));
    return take_paged(o);
}

/* ---------------------------------------------------------------- values ----------------------------------------- */

/* i -> its value in an index tensor. */
static int32_t number_of(const struct operands *o, const struct tensor *t, int64_t i)
{
    const struct widths *w = &o->w;
    int64_t len = o->dense.max_seqlen, j = i < w->S ? i * len : w->T;
    if (t == &o->qkv.pos) return (int32_t)(i % len);
    if (t == &o->dense.cu_seqlens) return (int32_t)(j < w->T ? j : w->T);
    if (t == &o->paged.page_table || t == &o->paged.q_start) return (int32_t)i;
    if (t == &o->paged.kv_len) return (int32_t)w->kv;
    return (int32_t)((uint64_t)i * 2654435761u % (uint64_t)w->V);
}

static enum status fill_numbers(struct operands *o)
{
    struct tensor *index[] = {&o->ids, &o->targets, &o->qkv.pos, &o->dense.cu_seqlens, &o->paged.page_table,
                              &o->paged.q_start, &o->paged.kv_len};
    for (size_t t = 0; t < sizeof index / sizeof *index; t++) {
        int64_t n = tensor_count(*index[t]);
        int32_t *host = malloc((size_t)n * sizeof *host);
        if (!host) return FAIL(ERR_MEMORY, "%" PRId64 " indices", n);
        for (int64_t i = 0; i < n; i++) host[i] = number_of(o, index[t], i);
        struct tensor from = tensor_view(host, DT_I32, PLACE_HOST, 1, n, 1, 1, 1);
        enum status s = o->b->ops->copy(tensor_flat(*index[t], 0, n), from, o->b->stream);
        if (!s) s = o->b->ops->wait(o->b->stream);
        free(host);
        TRY(s);
    }
    return OK;
}

/* The arena in pieces of the same random numbers in [-1, 1): as F32 or as BF16 pairs they are in that range. */
static enum status fill_random(struct operands *o)
{
    enum { PIECE = 1 << 20 };
    const struct ops *ops = o->b->ops;
    float *some = malloc(PIECE);
    if (!some) return FAIL(ERR_MEMORY, "%d bytes of random numbers", PIECE);
    for (size_t i = 0; i < PIECE / sizeof *some; i++) {
        uint32_t high = bf16_from_float((float)(2 * rng_uniform(3, 0, 0, 0, i) - 1));
        uint32_t bits = high << 16 | bf16_from_float((float)(2 * rng_uniform(4, 0, 0, 0, i) - 1));
        memcpy(&some[i], &bits, sizeof bits);
    }
    enum status s = OK;
    for (size_t at = 0; at < o->arena.used && !s; at += PIECE) {
        int64_t n = (int64_t)(o->arena.used - at < PIECE ? o->arena.used - at : PIECE);
        s = ops->copy(tensor_view(o->arena.base + at, DT_U8, ops->place, 1, n, 1, 1, 1),
                      tensor_view(some, DT_U8, PLACE_HOST, 1, n, 1, 1, 1), o->b->stream);
    }
    if (!s) s = ops->wait(o->b->stream);
    free(some);
    return s;
}

/* What ops find is what other ops made. */
static enum status prepare(struct operands *o)
{
    const struct ops *ops = o->b->ops;
    struct stream *s = o->b->stream;
    TRY(fill_random(o));
    TRY(ops->zero(o->adamw.exp_avg_sq, s));
    TRY(fill_numbers(o));
    TRY(ops->qkv_forward(&o->qkv, s));
    TRY(ops->select_forward(&o->select, s));
    TRY(ops->select_paged(&o->paged, s));
    TRY(ops->route_forward(o->experts, o->weights, o->router, o->bias, o->w.M, false, s));
    TRY(ops->dispatch(o->offsets, o->row_token, o->row_of, o->experts, s));
    TRY(ops->vocab_stats(o->stats, o->logits, o->targets, 0, 1, s));
    struct tensor stats = tensor_view(o->stats.data, DT_F32, ops->place, 3, 1, o->w.logit_rows, 4, 1);
    TRY(ops->vocab_join(o->logp, o->entropy, o->lse, stats, o->targets, s));
    return ops->wait(s);
}

enum status operands_create(struct operands *o, struct bench *b, const struct widths *w)
{
    *o = (struct operands){.b = b, .w = *w, .arena = arena_measure(b->ops->place, "bench")};
    TRY(take_all(o));
    size_t bytes = o->arena.used;
    void *base = NULL;
    TRY(b->ops->alloc(&base, bytes, b->ops->place));
    *o = (struct operands){.b = b, .w = *w, .arena = {.base = base, .size = bytes, .place = b->ops->place}};
    o->arena.purpose = "bench";
    enum status s = take_all(o);
    if (!s) s = prepare(o);
    if (s) operands_destroy(o);
    return s;
}

void operands_destroy(struct operands *o)
{
    if (o->arena.base) o->b->ops->release(o->arena.base, o->b->ops->place);
    *o = (struct operands){0};
}
