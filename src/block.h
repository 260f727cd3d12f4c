/* One transformer block and everything it needs around the weights: the pass (which tokens, how), what a layer keeps
 * from its forward to its backward, and the workspace that all layers share.
 *
 * Training, scoring, prefill and decoding run the same block_forward(): a pass with a KV cache appends to it and attends
 * to it, a pass without attends within its packed sequences.
 *
 * Sequence parallelism: between layers a rank holds Tl = T / tp tokens (rows tp_rank * Tl ...); projections see all T. */
#ifndef BLOCK_H
#define BLOCK_H
#include "config.h"
#include "kvcache.h"
#include "model.h"

/* Which tokens go through, where they stand. Tensors live at ops->place; the numbers are host knowledge. */
struct pass {
    int64_t T;               /* packed tokens, a multiple of tp: filled with rows of no sequence */
    int64_t valid;           /* rows that belong to a sequence */
    int64_t S;               /* sequences */
    int max_seqlen;
    struct tensor ids;       /* [T] i32, -1 on fill rows */
    struct tensor pos;       /* [T] i32, from 0 in each sequence */
    struct tensor cu_seqlens; /* [S + 1] i32 */
    struct tensor replay;    /* [layers of the stage, Tl, k] i32 experts to take instead of choosing; none: choose */
    struct kvcache *cache;   /* NULL: no cache; otherwise: */
    struct tensor slot;      /* [T] i32 cache row of each token, -1 on fill rows */
    struct tensor page_table, kv_len; /* [S, max pages] [S] i32; cu_seqlens counts the new tokens */
    int max_kv_len;
};

/* Sizes that workspaces are carved for. */
struct block_limits {
    int64_t T, S;
    int max_seqlen;          /* in the attention's workspaces */
    bool train, deterministic;
    enum recompute recompute;
    struct kvcache *cache;   /* decoding: its shape bounds the paged workspaces */
};

/* What a layer keeps. With recompute, the parts that are computed again are views of one shared set. */
struct saved_attention {
    struct tensor rstd;      /* [Tl] f32 of the input norm */
    struct tensor qkv;       /* [T, index_cols + (H + 2K) D] before norm and RoPE */
    struct tensor rstd_qk;   /* [T, H + K] f32 */
    struct tensor sel;       /* [K, T, topk] i32, sparse layers */
    struct tensor o;         /* [T, H D] */
    struct tensor lse;       /* [H, T] f32 */
};
struct saved_ffn {
    struct tensor x1;        /* [Tl, C] residual stream after attention */
    struct tensor rstd;      /* [Tl] f32 of the second norm */
    struct tensor gate_up;   /* [T, 2 Fd/tp] dense MLP or shared expert */
    struct tensor logits;    /* [Tl, E] f32 router */
    struct tensor experts;   /* [Tl, k] i32 */
    struct tensor weights;   /* [Tl, k] f32 */
    struct tensor offsets;   /* [El + 1] i32 rows of my experts among the received */
    struct tensor row_of;    /* [Tl, k] i32 row of each choice among the sent */
    struct tensor x;         /* [R, C] rows my experts received, by expert */
    struct tensor h;         /* [R, 2F] gate | up of the experts */
    struct tensor rows;      /* [Tl k, C] what came back, in the order sent */
    /* ep > 1: received rows arrive by source; by_expert[r] is where sorted row r arrived, by_source the inverse */
    struct tensor by_expert, by_source; /* [R] i32 */
    int64_t sent, received;
    int64_t *send_rows, *recv_rows;     /* [ep] */
};
struct saved_layer {
    struct tensor x;         /* [Tl, C] input of the layer */
    struct saved_attention attention;
    struct saved_ffn ffn;
};
/* One micro-batch in flight: every layer's saved part and the stage's output. */
struct activations {
    struct saved_layer *layer; /* [n_layers] */
    struct tensor out;         /* [Tl, C] */
    int n_layers;
};

struct workspace {
    struct tensor h_shard;   /* [Tl, C] */
    struct tensor h, part;   /* [T, C] gathered input; partial output before the reduce-scatter */
    struct tensor d_full;    /* [T, C] gathered output gradient */
    struct tensor out;       /* [Tl, C] */
    struct tensor dx[2];     /* [Tl, C] gradient between the halves; a recomputed layer's output, thrown away */
    struct tensor rstd;      /* [T] f32, thrown away */
    struct tensor q, k, iq, ik, d_o, dq, dk, dqkv;
    struct tensor act, d_act, d_gate_up; /* [T, Fd/tp] twice, [T, 2 Fd/tp] */
    struct tensor send, back;            /* [Tl k, C] */
    struct tensor arrived;               /* [R, C] as they arrive, by source; ep > 1 */
    struct tensor e_act, e_dact, e_dh, e_rows; /* [R, F] twice, [R, 2F], [R, C] */
    struct tensor d_weights, d_logits;   /* [Tl, k] [Tl, E] f32 */
    struct tensor row_token;             /* [Tl k] i32 */
    struct tensor offsets_all;           /* [E + 1] i32 */
    struct tensor host_offsets, host_counts[2], host_index[2]; /* host: [E + 1], [E] twice, [R] twice; i32 */
    struct tensor scratch;               /* [bytes] u8 for the ops' work */
};

/* Carving; run once over a measuring arena and once over the real one. `host` takes the few host-side arrays. */
enum status workspace_carve(struct workspace *w, const struct model *m, const struct block_limits *l, struct arena *a,
                            struct arena *host);
/* `shared` holds what recomputation writes again; carved on first use, pass the same one for every slot. */
enum status activations_carve(struct activations *act, struct saved_layer *shared, const struct model *m,
                              const struct block_limits *l, struct arena *a, struct arena *host);
void activations_free(struct activations *act);

/* Rows that my experts can receive at most for T packed tokens. */
int64_t moe_max_rows(const struct model *m, int64_t T);

/* y = block(x). Collective over tp and ep. x is [Tl, C]; with training, x is s->x. */
enum status block_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_layer *s,
                          struct workspace *w, struct tensor x, struct tensor out);
/* dx [Tl, C] = gradient of the input given dy [Tl, C] (dx may be dy); += weight gradients. Recomputes what was not kept. */
enum status block_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_layer *s,
                           struct workspace *w, enum recompute r, struct tensor dx, struct tensor dy);

/* The two halves, each: out [Tl, C] is what the residual stream gains (attention) or becomes (ffn). */
enum status attention_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_attention *s,
                              struct workspace *w, struct tensor x, struct tensor *out);
/* dx = d_out + gradient through the attention and its norm. */
enum status attention_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_attention *s,
                               struct workspace *w, struct tensor x, struct tensor dx, struct tensor d_out);
/* x1 = x + add is formed first (and kept); out = x1 + ffn(norm(x1)). */
enum status ffn_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                        struct workspace *w, struct tensor x, struct tensor add, struct tensor out);
enum status ffn_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                         struct workspace *w, struct tensor dx1, struct tensor d_out);
enum status moe_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                        struct workspace *w, struct tensor h, struct tensor out);
enum status moe_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                         struct workspace *w, struct tensor dh, struct tensor h, struct tensor d_out);

/* A buffer seen with smaller sizes (contiguous from its start). */
struct tensor fit2(struct tensor buffer, int64_t d0, int64_t d1);
struct tensor fit1(struct tensor buffer, int64_t d0);
/* [Tl, C] -> [T, C] over tp; *full is the buffer, and the shard itself when tp is 1. */
enum status tp_gather(const struct model *m, struct tensor *full, struct tensor shard);
/* Sum over tp of [T, C], my rows; *shard is the buffer, and the input itself when tp is 1. */
enum status tp_scatter(const struct model *m, struct tensor *shard, struct tensor full);
#endif
