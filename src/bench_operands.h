/* What the ops of `m3 bench ops` work on: tensors of one layer's shapes, made once and shared by all cases. */
#ifndef BENCH_OPERANDS_H
#define BENCH_OPERANDS_H
#include "bench.h"

/* Letters as in kernels/ops.h; M tokens are routed here, S sequences share T tokens, N sequences decode at
 * `kv` keys. */
struct widths {
    int64_t T, S, M, C, H, K, D, I, Di, E, k, F, Fd, V, logit_rows, N, kv, state;
    int rotary, block, topk, page;
    enum dtype dtype;
};

struct operands {
    struct bench *b;
    struct widths w;
    struct arena arena;
    struct tensor x, y, z, x_out, norm, d_norm, rstd, ids, table, d_table;                      /* [T, C] ... */
    struct tensor qkv_w, d_qkv_w, qkv_x;                                                  /* the projection */
    struct tensor logits, targets, stats, logp, entropy, lse, dlogp, u, pick_logits, pick_ids, pick_logp, sample_work;
    struct tensor gate_w, d_gate_w, router, bias, experts, weights, d_weights, offsets, row_token, row_of;
    struct tensor rows, w13, d_w13, w2, d_w2, gu, act, tokens;
    struct tensor f32, bf16, sum;
    struct qkv_args qkv;
    struct attend_args dense, sparse;
    struct select_args select;
    struct paged_args paged, paged_dense;
    struct adamw_args adamw;
};

/* Allocates at the bench's device and fills: random numbers in [-1, 1), and where an op finds what another one makes,
 * what that one made. ERR_MEMORY. */
enum status operands_create(struct operands *o, struct bench *b, const struct widths *w);
void operands_destroy(struct operands *o);
#endif
