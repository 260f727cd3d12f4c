/* Every op of the op table at the shapes of one layer. The cases are a table: name, shape, arithmetic and bytes that
 * must move at least; a new op is a CALL and a row. */
#include "bench_operands.h"

#include <stdio.h>
#include <stdlib.h>

static const struct widths demo = {
    .T = 2048, .S = 12, .M = 2048, .C = 192, .H = 8, .K = 4, .D = 32, .I = 4, .Di = 32, .E = 8, .k = 2, .F = 128,
    .Fd = 512, .V = 2048, .logit_rows = 2048, .N = 32, .kv = 256, .state = 4 << 20,
    .rotary = 16, .block = 16, .topk = 4,
    .page = 16, .dtype = DT_F32};
/* One of 32 GPUs with TP4 x PP4 x EP8: a quarter of the heads, the dense FFN and the vocabulary, 16 experts. */
static const struct widths full = {
    .T = 16384, .S = 1, .M = 4096, .C = 6144, .H = 16, .K = 1, .D = 128, .I = 1, .Di = 128, .E = 16, .k = 4, .F = 3072,
    .Fd = 3072, .V = 50016, .logit_rows = 4096, .N = 64, .kv = 8192, .state = 256 << 20, .rotary = 64, .block = 128,
    .topk = 16, .page = 128, .dtype = DT_BF16};

typedef enum status (*call_fn)(struct operands *o);

#define CALL(what, ...)                                                                                                \
    static enum status what(struct operands *o)                                                                        \
    {                                                                                                                  \
        struct stream *s = o->b->stream;                                                                               \
        return o->b->ops->__VA_ARGS__;                                                                                 \
    }
#define NONE TENSOR_NONE
#define LAST(t) tensor_view((t).data, (t).dtype, (t).place, 3, 1, (t).dim[0], (t).dim[1], 1)

CALL(add, add(o->z, o->x, o->y, s))
CALL(cast, cast(o->bf16, o->f32, s))
CALL(square_sum, square_sum(o->sum, o->f32, s))
CALL(adamw, adamw(&o->adamw, s))
CALL(embed_forward, embed_forward(o->z, o->ids, o->table, 0, s))
CALL(embed_backward, embed_backward(o->d_table, o->y, o->ids, 0, s))
CALL(rmsnorm_forward, rmsnorm_forward(o->z, o->rstd, NONE, o->x, NONE, o->norm, 1e-6f, s))
CALL(rmsnorm_add, rmsnorm_forward(o->z, o->rstd, o->x_out, o->x, o->y, o->norm, 1e-6f, s))
CALL(rmsnorm_backward, rmsnorm_backward(o->z, o->d_norm, o->y, o->x, o->norm, o->rstd, o->y, s))
CALL(qkv_forward, qkv_forward(&o->qkv, s))
CALL(qkv_backward, qkv_backward(&o->qkv, s))
CALL(linear_forward, linear_forward(o->qkv.qkv, o->x, o->qkv_w, s))
CALL(linear_dx, linear_dx(o->z, o->qkv.qkv, o->qkv_w, false, s))
CALL(linear_dw, linear_dw(o->d_qkv_w, o->qkv.qkv, o->x, s))
CALL(router_forward, linear_forward(o->router, o->tokens, o->gate_w, s))
CALL(router_dx, linear_dx(tensor_rows(o->z, 0, o->w.M), o->router, o->gate_w, false, s))
CALL(router_dw, linear_dw(o->d_gate_w, o->router, o->tokens, s))
CALL(up_forward, grouped_forward(o->gu, o->rows, o->w13, o->offsets, s))
CALL(up_dx, grouped_dx(o->rows, o->gu, o->w13, o->offsets, s))
CALL(up_dw, grouped_dw(o->d_w13, o->gu, o->rows, o->offsets, s))
CALL(down_forward, grouped_forward(o->rows, o->act, o->w2, o->offsets, s))
CALL(down_dx, grouped_dx(o->act, o->rows, o->w2, o->offsets, s))
CALL(down_dw, grouped_dw(o->d_w2, o->rows, o->act, o->offsets, s))
CALL(dense_forward, attend_forward(&o->dense, s))
CALL(dense_backward, attend_backward(&o->dense, s))
CALL(select_keys, select_forward(&o->select, s))
CALL(sparse_forward, attend_forward(&o->sparse, s))
CALL(sparse_backward, attend_backward(&o->sparse, s))
CALL(paged_select, select_paged(&o->paged, s))
CALL(paged_sparse, attend_paged(&o->paged, s))
CALL(paged_dense, attend_paged(&o->paged_dense, s))
CALL(swiglu_forward, swiglu_forward(o->act, o->gu, 1.702f, 7, s))
CALL(swiglu_backward, swiglu_backward(o->gu, o->act, o->gu, 1.702f, 7, s))
CALL(route_forward, route_forward(o->experts, o->weights, o->router, o->bias, o->w.M, false, s))
CALL(route_backward, route_backward(o->router, o->d_weights, o->experts, o->router, s))
CALL(dispatch, dispatch(o->offsets, o->row_token, o->row_of, o->experts, s))
CALL(gather_rows, gather_rows(o->rows, o->tokens, o->row_token, s))
CALL(combine_forward, combine_forward(tensor_rows(o->z, 0, o->w.M), o->rows, o->row_of, o->weights, 2, NONE, s))
CALL(combine_backward, combine_backward(o->rows, o->d_weights, tensor_rows(o->y, 0, o->w.M), o->rows, o->row_of,
                                        o->weights, 2, s))
CALL(vocab_stats, vocab_stats(o->stats, o->logits, o->targets, 0, 1, s))
CALL(vocab_join, vocab_join(o->logp, o->entropy, o->lse, LAST(o->stats), o->targets, s))
CALL(vocab_backward, vocab_backward(o->logits, o->logits, o->targets, 0, 1, o->lse, NONE, o->dlogp, NONE, s))
CALL(sample, sample(o->pick_ids, o->pick_logp, o->pick_logits, o->u, 1, 0, 1, o->sample_work, s))
CALL(sample_filtered, sample(o->pick_ids, o->pick_logp, o->pick_logits, o->u, 1, 50, 0.9f, o->sample_work, s))

/* ---------------------------------------------------------------- the table -------------------------------------- */

struct op_row {
    const char *name;
    call_fn call;
    const char *shape;
    double flops, bytes;
};

/* (query, key) pairs that attention looks at: causal, and within the selected blocks. */
static double pairs(const struct widths *w, double keys)
{
    double len = (double)w->T / (double)w->S, reach = keys < len ? keys : len;
    return (double)w->S * (reach * (reach + 1) / 2 + (len - reach) * reach);
}

static enum status time_call(struct bench *b, struct operands *o, call_fn call, double *seconds)
{
    *seconds = 0;
    TRY(call(o));
    TRY(b->ops->wait(b->stream));
    int n = 1;
    for (int round = 0; round < 3;) {
        double start = time_now();
        for (int i = 0; i < n; i++) TRY(call(o));
        TRY(b->ops->wait(b->stream));
        double spent = time_now() - start;
        if (round == 0 && spent < b->seconds && n < 1 << 20) {
            double more = spent > 0 ? b->seconds / spent : 64;
            n *= more < 1 ? 2 : more > 63 ? 64 : (int)more + 1;
            continue;
        }
        if (round == 0 || spent / n < *seconds) *seconds = spent / n;
        round++;
    }
    return OK;
}

static enum status run_table(struct bench *b, struct operands *o)
{
    const struct widths *w = &o->w;
    const double z = (double)dtype_size(w->dtype), T = (double)w->T, C = (double)w->C, M = (double)w->M;
    const double E = (double)w->E, TC = T * C * z, MC = M * C * z, n = (double)w->state;
    const double V = (double)w->V, D = (double)w->D;
    const double R = M * (double)w->k, RC = R * C * z, RF = R * (double)w->F * z, W = (double)o->qkv_w.dim[0];
    const double q = T * (double)w->H * D * z, kv = T * (double)w->K * D * z, LV = (double)w->logit_rows * V * z;
    const double blocks = (double)(w->topk * w->block), HD = (double)w->H * D;
    const double dense = 4 * pairs(w, T) * HD, sparse = 4 * pairs(w, blocks) * HD;
    const double linear = 2 * T * C * W, linear_bytes = TC + T * W * z + C * W * z, router = 2 * M * C * E;
    const double up = 4 * R * C * (double)w->F, up_w = 2 * E * C * (double)w->F, down = up / 2, down_w = up_w / 2;
    const double N = (double)w->N, keys = (double)w->kv, seen = keys < blocks ? keys : blocks;
    const double index_flops = 2 * pairs(w, T) * (double)(w->I * w->Di);
    const double index_bytes = T * (double)((w->I + 1) * w->Di) * z;
    char tokens[48], flat[48], linears[48], ups[48], downs[48], heads[48], index[48], paged[48], moe[48], vocab[48];
    char picks[48];
#define SHAPE(text, ...) snprintf(text, sizeof text, __VA_ARGS__)
#define L(x) (long long)(x)
    SHAPE(tokens, "T %lld C %lld", L(w->T), L(w->C));
    SHAPE(flat, "%lld M elements", L(w->state >> 20));
    SHAPE(linears, "%lld x %lld x %lld", L(w->T), L(w->C), L(W));
    SHAPE(ups, "%lld rows, %lld of %lld x %lld", L(R), L(w->E), L(2 * w->F), L(w->C));
    SHAPE(downs, "%lld rows, %lld of %lld x %lld", L(R), L(w->E), L(w->C), L(w->F));
    SHAPE(heads, "T %lld in %lld, %lld/%lld x %lld", L(w->T), L(w->S), L(w->H), L(w->K), L(w->D));
    SHAPE(index, "T %lld in %lld, %lld x %lld, %d of %d", L(w->T), L(w->S), L(w->I), L(w->Di), w->topk, w->block);
    SHAPE(paged, "%lld rows, %lld keys", L(w->N), L(w->kv));
    SHAPE(moe, "T %lld E %lld k %lld C %lld", L(w->M), L(w->E), L(w->k), L(w->C));
    SHAPE(vocab, "T %lld V %lld", L(w->logit_rows), L(w->V));
    SHAPE(picks, "%lld rows V %lld", L(w->N), L(w->V));
#undef L
#undef SHAPE
    const struct op_row table[] = {
        {"linear_forward", linear_forward, linears, linear, linear_bytes},
        {"linear_dx", linear_dx, linears, linear, linear_bytes},
        {"linear_dw", linear_dw, linears, linear, linear_bytes},
        {"grouped_forward", up_forward, ups, up, RC + 2 * RF + up_w * z},
        {"grouped_dx", up_dx, ups, up, RC + 2 * RF + up_w * z},
        {"grouped_dw", up_dw, ups, up, RC + 2 * RF + 8 * up_w},
        {"grouped_forward", down_forward, downs, down, RC + RF + down_w * z},
        {"grouped_dx", down_dx, downs, down, RC + RF + down_w * z},
        {"grouped_dw", down_dw, downs, down, RC + RF + 8 * down_w},
        {"linear_forward router", router_forward, moe, router, MC},
        {"linear_dx router", router_dx, moe, router, MC},
        {"linear_dw router", router_dw, moe, router, MC},
        {"attend_forward", dense_forward, heads, dense, 2 * q + 2 * kv},
        {"attend_backward", dense_backward, heads, 2.5 * dense, 4 * q + 4 * kv},
        {"select_forward", select_keys, index, index_flops, index_bytes},
        {"attend_forward sparse", sparse_forward, heads, sparse, 2 * q + 2 * kv},
        {"attend_backward sparse", sparse_backward, heads, 2.5 * sparse, 4 * q + 4 * kv},
        {"attend_paged", paged_dense, paged, 0, 2 * N * keys * (double)w->K * D * z},
        {"select_paged", paged_select, paged, 0, N * keys * (double)w->Di * z},
        {"attend_paged sparse", paged_sparse, paged, 0, 2 * N * seen * (double)w->K * D * z},
        {"qkv_forward", qkv_forward, heads, 0, 2 * T * W * z},
        {"qkv_backward", qkv_backward, heads, 0, 3 * (q + kv)},
        {"rmsnorm_forward", rmsnorm_forward, tokens, 0, 2 * TC},
        {"rmsnorm_forward + add", rmsnorm_add, tokens, 0, 4 * TC},
        {"rmsnorm_backward", rmsnorm_backward, tokens, 0, 4 * TC},
        {"swiglu_forward", swiglu_forward, ups, 0, 3 * RF},
        {"swiglu_backward", swiglu_backward, ups, 0, 5 * RF},
        {"add", add, tokens, 0, 3 * TC},
        {"route_forward", route_forward, moe, 0, 4 * M * E},
        {"route_backward", route_backward, moe, 0, 8 * M * E},
        {"dispatch", dispatch, moe, 0, 12 * R},
        {"gather_rows", gather_rows, moe, 0, 2 * RC},
        {"combine_forward", combine_forward, moe, 0, RC + MC},
        {"combine_backward", combine_backward, moe, 0, 2 * RC + MC},
        {"embed_forward", embed_forward, tokens, 0, 2 * TC},
        {"embed_backward", embed_backward, tokens, 0, TC + 8 * T * C},
        {"vocab_stats", vocab_stats, vocab, 0, LV},
        {"vocab_join", vocab_join, vocab, 0, 28 * (double)w->logit_rows},
        {"vocab_backward", vocab_backward, vocab, 0, 2 * LV},
        {"sample", sample, picks, 0, N * V * z},
        {"sample k 50, p 0.9", sample_filtered, picks, 0, N * V * z},
        {"cast f32 to bf16", cast, flat, 0, 6 * n},
        {"square_sum", square_sum, flat, 0, 4 * n},
        {"adamw", adamw, flat, 0, 30 * n},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double seconds;
        enum status s = time_call(b, o, table[i].call, &seconds);
        if (s) return status_prefix(s, "bench %s", table[i].name);
        bench_print(b, &(struct bench_row){.part = "ops", .name = table[i].name, .shape = table[i].shape,
                                           .seconds = seconds, .flops = table[i].flops, .bytes = table[i].bytes});
    }
    return OK;
}

/* ---------------------------------------------------------------- ceilings --------------------------------------- */

static enum status large_product(struct operands *o)
{
    return o->b->ops->linear_forward(o->z, o->x, o->y, o->b->stream);
}

static enum status large_copy(struct operands *o) { return o->b->ops->copy(o->y, o->x, o->b->stream); }

/* A square product and a copy that no cache holds: what shares are of. */
static enum status ceilings(struct bench *b)
{
    int64_t side = b->wide ? 8192 : 1024, bytes = b->wide ? 1ll << 31 : 128 << 20;
    struct operands o = {.b = b};
    enum place place = b->ops->place;
    enum dtype dtype = b->wide ? full.dtype : demo.dtype;
    void *base = NULL;
    double seconds = 0;
    char shape[48];
    TRY(b->ops->alloc(&base, 2 * (size_t)bytes, place));
    char *at = base;
    enum status s = b->ops->zero(tensor_view(base, DT_U8, place, 1, 2 * bytes, 1, 1, 1), b->stream);
    struct tensor *square[] = {&o.x, &o.y, &o.z};
    for (int i = 0; i < 3; i++, at += side * side * 4) *square[i] = tensor_view(at, dtype, place, 2, side, side, 1, 1);
    if (!s) s = time_call(b, &o, large_product, &seconds);
    double flops = 2.0 * (double)side * (double)side * (double)side;
    b->peak_flops = flops / seconds;
    snprintf(shape, sizeof shape, "%d x %d x %d %s", (int)side, (int)side, (int)side, dtype_name(dtype));
    if (!s) bench_print(b, &(struct bench_row){.part = "ops", .name = "ceiling: product", .shape = shape,
                                               .seconds = seconds, .flops = flops});
    o.x = tensor_view(base, DT_U8, place, 1, bytes, 1, 1, 1);
    o.y = tensor_view((char *)base + bytes, DT_U8, place, 1, bytes, 1, 1, 1);
    if (!s) s = time_call(b, &o, large_copy, &seconds);
    b->peak_bytes = 2.0 * (double)bytes / seconds;
    snprintf(shape, sizeof shape, "%lld MiB", (long long)(bytes >> 20));
    if (!s) bench_print(b, &(struct bench_row){.part = "ops", .name = "ceiling: copy", .shape = shape,
                                               .seconds = seconds, .bytes = 2.0 * (double)bytes});
    b->ops->release(base, place);
    return s;
}

enum status bench_ops(struct bench *b)
{
    struct operands o;
    TRY(ceilings(b));
    TRY(operands_create(&o, b, b->wide ? &full : &demo));
    enum status s = run_table(b, &o);
    operands_destroy(&o);
    return s;
}
