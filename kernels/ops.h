/* The op table: every numeric operation of the program, once, with its shapes. It is filled twice: ops_cpu
 * (kernels/<op>.c, plain C, the executable specification) and ops_cuda (kernels/<op>.cu). src/ calls `ops->name(...)`
 * and never asks which one it has.
 *
 * Letters: T tokens of a packed micro-batch here, S sequences, C hidden, H query heads here, K key/value heads here,
 * D head size, I index heads here (= K), Di index head size, B tokens a key block, E experts, k experts a token,
 * R dispatched rows, F expert width, V vocabulary rows here, N new tokens (decoding), P pages.
 *
 * Rules every op keeps:
 * - outputs first, then inputs, then scalars, the stream last (NULL on the CPU); sizes come from the tensors;
 * - `=` writes every element of the output, `+=` adds to it; an output aliases an input only where said;
 * - activations and weights are F32 or BF16 (all of one call the same unless said); BF16 is loaded, computed in
 *   float32 and rounded once when stored. Statistics, router numbers and log-probs are F32, indices I32;
 * - tensors are contiguous except those marked (strided), whose rows may be apart (tensor.ld);
 * - no op allocates, and none waits for the device; scratch is `work`, as large as the op's *_work function says;
 * - ERR_INTERNAL with both shapes when the arguments do not fit together; zero rows are always fine. */
#ifndef OPS_H
#define OPS_H
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct stream; /* an ordered queue of work on a device; the CPU has none and takes NULL */

/* q, k, v and index projections arrive as one product. Columns of qkv: index_q (I*Di) | index_k (Di) | q (H*D) |
 * k (K*D) | v (K*D); on dense layers the index columns are absent. q, k, index_q, index_k get their per-head RMSNorm
 * (Gemma style, weight 1 + w) and RoPE on the first `rotary` channels (NeoX halves; angle (float)pos * inv_freq[j] in
 * float32, inv_freq[j] = 1 / theta^(2j/rotary) with exponent, power and quotient each rounded to float32). */
struct qkv_args {
    struct tensor qkv;              /* [T, columns] (strided) in */
    struct tensor q_norm, k_norm;   /* [D] */
    struct tensor iq_norm, ik_norm; /* [Di], or none on dense layers */
    struct tensor pos;              /* [T] i32 position in its own sequence */
    float theta, eps;
    int rotary;
    struct tensor q, k;             /* [T, H, D] [T, K, D] = */
    struct tensor iq, ik;           /* [T, I, Di] [T, Di] =, or none */
    struct tensor rstd;             /* [T, H + K] f32 =, kept for the backward; or none */
    /* cache write: row t of k, v and ik goes to token slot[t] of the pages (page * page tokens + offset); -1: nowhere */
    struct tensor k_cache, v_cache; /* [slots, K, D] or none */
    struct tensor ik_cache;         /* [slots, Di] or none */
    struct tensor slot;             /* [T] i32 or none */
    /* backward */
    struct tensor dq, dk;           /* [T, H, D] [T, K, D] in */
    struct tensor dqkv;             /* [T, (H + 2K) D] (strided) =, columns q | k only; the v columns are the attention's */
    struct tensor dq_norm, dk_norm; /* [D] f32 += */
};

/* Attention over packed sequences: causal; with `sel`, restricted to the selected key blocks of each query (blocks of
 * `block` tokens counted from the sequence's own start; -1 slots are empty; a query's own block may be partial).
 * Query head h reads KV head h / (H/K). Rows beyond cu_seqlens[S] belong to no sequence: o = 0, lse = 0, gradients 0. */
struct attend_args {
    struct tensor q;          /* [T, H, D] */
    struct tensor k, v;       /* [T, K, D] (strided) */
    struct tensor cu_seqlens; /* [S + 1] i32 */
    int max_seqlen;           /* of any sequence: host knowledge for grids */
    struct tensor sel;        /* [K, T, slots] i32, or none: dense */
    int block;
    float scale;              /* D^-1/2 */
    struct tensor o;          /* [T, H, D] = (in for the backward) */
    struct tensor lse;        /* [H, T] f32 = natural log of the sum of exp(scale q.k) (in for the backward) */
    struct tensor d_o;        /* [T, H, D] in */
    struct tensor dq, dk, dv; /* = shapes of q, k, v; dk and dv (strided) */
    struct tensor work;       /* [bytes] u8 */
    bool deterministic;
};

/* The indexer's choice. M[g,t,b] = max over keys j of block b, j <= t, of <iq[t,g], ik[j]> in float32; the last `local`
 * blocks up to the query's own and the first `init` blocks are forced in; the rest of the topk slots go to the highest
 * M, equal scores to the lower block; unused slots are -1 at the end; no block twice. Order inside a row is free. */
struct select_args {
    struct tensor iq;         /* [T, I, Di] */
    struct tensor ik;         /* [T, Di] */
    struct tensor cu_seqlens; /* [S + 1] i32 */
    int max_seqlen, block, topk, init, local;
    struct tensor sel;        /* [I, T, topk] i32 = ; rows beyond the sequences: all -1 */
    struct tensor work;
};

/* The same two over paged caches. Row i of sequence s (rows q_start[s] .. q_start[s+1]) stands at position
 * kv_len[s] - (q_start[s+1] - q_start[s]) + i; the keys of positions < kv_len[s] are in the pages. Token j of sequence s
 * is row page_table[s][j / page] * page + j % page of the caches; `page` is a multiple of `block`. */
struct paged_args {
    struct tensor q;                 /* [N, H, D] */
    struct tensor k_cache, v_cache;  /* [slots, K, D] */
    struct tensor iq;                /* [N, I, Di] (select) */
    struct tensor ik_cache;          /* [slots, Di] (select) */
    struct tensor page_table;        /* [S, max pages] i32 */
    struct tensor q_start, kv_len;   /* [S + 1] [S] i32 */
    int page, max_kv_len, max_q_len; /* host knowledge for grids */
    struct tensor sel;               /* [K, N, topk] i32: output of select_paged, input of attend_paged (none: dense) */
    int block, topk, init, local;
    float scale;
    struct tensor o;                 /* [N, H, D] = (attend) */
    struct tensor work;
};

/* AdamW with decoupled decay on one flat slice: g = grad * grad_scale; m, v updated; master -= lr * (mhat / (sqrt(vhat)
 * + eps) + decay * master); weight = master rounded to its dtype. bias1 = 1 - beta1^t, bias2 = 1 - beta2^t. */
struct adamw_args {
    struct tensor master;             /* [n] f32 in and out */
    struct tensor exp_avg, exp_avg_sq; /* [n] f32 or bf16 in and out */
    struct tensor grad;               /* [n] f32 or bf16 */
    struct tensor weight;             /* [n] = */
    float lr, beta1, beta2, eps, decay, bias1, bias2, grad_scale;
};

struct ops {
    const char *name;  /* "cpu" or "cuda" */
    enum place place;  /* where the tensors of numeric ops must live */

    /* ---- device: a queue of work for this process (NULL on the CPU); `local_rank` picks the device ---- */
    enum status (*open)(struct stream **s, int local_rank);
    void (*close)(struct stream *s);

    /* ---- memory ---- */
    enum status (*alloc)(void **p, size_t bytes, enum place place);
    void (*release)(void *p, enum place place);
    /* Rows may be strided on either side; places may differ; dtypes are equal. */
    enum status (*copy)(struct tensor dst, struct tensor src, struct stream *s);
    enum status (*zero)(struct tensor t, struct stream *s); /* (strided) */
    enum status (*wait)(struct stream *s);                  /* until everything queued on s is done */

    /* ---- elementwise ---- */
    enum status (*cast)(struct tensor dst, struct tensor src, struct stream *s);               /* F32 <-> BF16 (strided) */
    enum status (*add)(struct tensor y, struct tensor a, struct tensor b, struct stream *s);   /* y = a + b, y may be a */
    enum status (*square_sum)(struct tensor sum, struct tensor x, struct stream *s);           /* [1] f64 += sum x^2 */
    enum status (*adamw)(const struct adamw_args *a, struct stream *s);

    /* ---- embedding: ids outside [first, first + V) give zero rows (they live on another rank) ---- */
    enum status (*embed_forward)(struct tensor y /* [T, C] = */, struct tensor ids /* [T] i32 */,
                                 struct tensor w /* [V, C] */, int64_t first, struct stream *s);
    enum status (*embed_backward)(struct tensor dw /* [V, C] f32 += */, struct tensor dy, struct tensor ids,
                                  int64_t first, struct stream *s);

    /* ---- RMSNorm, Gemma style: y = x * rstd * (1 + w), rstd = 1 / sqrt(mean(x^2) + eps) ---- */
    /* With `add`: x_out = x + add first (x_out may be x), and x_out is what is normalised. add and x_out none: plain. */
    enum status (*rmsnorm_forward)(struct tensor y /* [T, C] = */, struct tensor rstd /* [T] f32 = */,
                                   struct tensor x_out, struct tensor x, struct tensor add, struct tensor w, float eps,
                                   struct stream *s);
    /* dx = d_residual + (gradient through the norm); d_residual none: just that. dx may be d_residual or dy. */
    enum status (*rmsnorm_backward)(struct tensor dx, struct tensor dw /* [C] f32 += */, struct tensor dy,
                                    struct tensor x, struct tensor w, struct tensor rstd, struct tensor d_residual,
                                    struct stream *s);
    enum status (*qkv_forward)(const struct qkv_args *a, struct stream *s);
    enum status (*qkv_backward)(const struct qkv_args *a, struct stream *s);

    /* ---- matrix products. The router mixes dtypes: w, y and dy F32 beside BF16 x and dx (F32 arithmetic) ---- */
    enum status (*linear_forward)(struct tensor y /* [T, N] (strided) = x w^T */, struct tensor x /* [T, Kc] (strided) */,
                                  struct tensor w /* [N, Kc] */, struct stream *s);
    enum status (*linear_dx)(struct tensor dx /* [T, Kc] (strided) = or += dy w */, struct tensor dy /* (strided) */,
                             struct tensor w, bool accumulate, struct stream *s);
    enum status (*linear_dw)(struct tensor dw /* [N, Kc] f32 += dy^T x */, struct tensor dy /* (strided) */,
                             struct tensor x /* (strided) */, struct stream *s);
    /* Expert e owns rows offsets[e] .. offsets[e+1]; rows from offsets[E] on are neither read nor written. */
    enum status (*grouped_forward)(struct tensor y /* [R, N] = */, struct tensor x /* [R, Kc] */,
                                   struct tensor w /* [E, N, Kc] */, struct tensor offsets /* [E + 1] i32 */,
                                   struct stream *s);
    enum status (*grouped_dx)(struct tensor dx /* [R, Kc] = dy w */, struct tensor dy, struct tensor w,
                              struct tensor offsets, struct stream *s);
    enum status (*grouped_dw)(struct tensor dw /* [E, N, Kc] f32 += */, struct tensor dy, struct tensor x,
                              struct tensor offsets, struct stream *s);

    /* ---- attention ---- */
    size_t (*attend_work)(const struct attend_args *a, bool backward); /* shapes and max_seqlen are read */
    enum status (*attend_forward)(const struct attend_args *a, struct stream *s);
    enum status (*attend_backward)(const struct attend_args *a, struct stream *s);
    size_t (*select_work)(const struct select_args *a);
    enum status (*select_forward)(const struct select_args *a, struct stream *s);
    size_t (*paged_work)(const struct paged_args *a);
    enum status (*select_paged)(const struct paged_args *a, struct stream *s);
    enum status (*attend_paged)(const struct paged_args *a, struct stream *s);

    /* ---- gated activation: gu = gate | up; g = min(gate, limit), u = clamp(up, +-limit), y = (u + 1) g sigmoid(alpha g) */
    enum status (*swiglu_forward)(struct tensor y /* [R, F] = */, struct tensor gu /* [R, 2F] */, float alpha,
                                  float limit, struct stream *s);
    enum status (*swiglu_backward)(struct tensor dgu /* [R, 2F] =, may be gu */, struct tensor dy, struct tensor gu,
                                   float alpha, float limit, struct stream *s);

    /* ---- routing ---- */
    /* The k experts with the largest sigmoid(logit) + bias (equal: the lower number); weights are the chosen sigmoids
     * over their sum. Rows from `valid` on belong to no sequence: experts -1, weights 0. `replay`: experts are given. */
    enum status (*route_forward)(struct tensor experts /* [T, k] i32 = */, struct tensor weights /* [T, k] f32 = */,
                                 struct tensor logits /* [T, E] f32 */, struct tensor bias /* [E] f32 */, int64_t valid,
                                 bool replay, struct stream *s);
    enum status (*route_backward)(struct tensor dlogits /* [T, E] f32 = */, struct tensor dweights /* [T, k] f32 */,
                                  struct tensor experts, struct tensor logits, struct stream *s);
    /* Stable counting sort of the T*k choices by expert: offsets[e] rows before expert e's first; row_token[r] the
     * token of sorted row r (-1 beyond the last); row_of[t, j] the row of token t's j-th choice (-1: none). */
    enum status (*dispatch)(struct tensor offsets /* [E + 1] i32 = */, struct tensor row_token /* [T*k] i32 = */,
                            struct tensor row_of /* [T, k] i32 = */, struct tensor experts, struct stream *s);
    enum status (*gather_rows)(struct tensor y /* [R, C] = */, struct tensor x /* [T, C] */,
                               struct tensor index /* [R] i32; -1: a row of zeros */, struct stream *s);
    /* y[t] = base[t] + scale * sum_j weights[t,j] rows[row_of[t,j]]; weights none: all 1; base none: 0. y may be base. */
    enum status (*combine_forward)(struct tensor y /* [T, C] = */, struct tensor rows /* [R, C] */,
                                   struct tensor row_of /* [T, k] i32 */, struct tensor weights, float scale,
                                   struct tensor base, struct stream *s);
    /* drows[row_of[t,j]] = scale weights[t,j] dy[t] (other rows untouched); dweights[t,j] = scale <dy[t], rows[...]> */
    enum status (*combine_backward)(struct tensor drows, struct tensor dweights /* [T, k] f32 = */, struct tensor dy,
                                    struct tensor rows, struct tensor row_of, struct tensor weights, float scale,
                                    struct stream *s);

    /* ---- vocabulary: logits are this rank's columns [first, first + V); x = logit * inv_temp ---- */
    /* stats[t] = max x, sum exp(x - max), x of the target (0 when elsewhere), sum exp(x - max) x. target -1: none. */
    enum status (*vocab_stats)(struct tensor stats /* [T, 4] f32 = */, struct tensor logits /* [T, V] */,
                               struct tensor targets /* [T] i32 */, int64_t first, float inv_temp, struct stream *s);
    /* Joins the ranks' stats: log-prob of the target (0 when it has none), entropy, log-sum-exp. */
    enum status (*vocab_join)(struct tensor logp, struct tensor entropy, struct tensor lse /* each [T] f32 = */,
                              struct tensor stats /* [ranks, T, 4] f32 */, struct tensor targets, struct stream *s);
    /* dlogits = inv_temp (dlogp (onehot - p) + dentropy * d entropy / dx), p = exp(x - lse); dentropy none: 0.
     * dlogits may be logits. */
    enum status (*vocab_backward)(struct tensor dlogits /* [T, V] = */, struct tensor logits, struct tensor targets,
                                  int64_t first, float inv_temp, struct tensor lse, struct tensor entropy,
                                  struct tensor dlogp /* [T] f32 */, struct tensor dentropy, struct stream *s);
    /* One token a row from whole-vocabulary logits; temperature 0: the largest, lowest id first. top_k 0 and top_p 1:
     * off. logp is of the temperature-scaled, unfiltered distribution (temperature 1 when greedy). */
    size_t (*sample_work)(int64_t rows, int64_t vocab);
    enum status (*sample)(struct tensor ids /* [N] i32 = */, struct tensor logp /* [N] f32 = */,
                          struct tensor logits /* [N, V] */, struct tensor u /* [N] f64 in [0, 1) */, float temperature,
                          int top_k, float top_p, struct tensor work, struct stream *s);
};

extern const struct ops ops_cpu;
/* The table for a device by name ("cpu", "cuda", "auto": cuda where it was built and a device answers).
 * ERR_CONFIG when the name cannot be had here, with the reason. */
enum status ops_find(const struct ops **ops, const char *device);
/* Threads the CPU table uses (per process). */
void ops_cpu_threads(int n);
/* Makes idle threads of the CPU table sleep after some microseconds instead of spinning for milliseconds, which starves
 * whoever shares the cores. OpenMP takes that from the environment when it is loaded, so this sets it and executes the
 * program once more. First thing in main(), before MPI; returns when it is set already, or cannot be. */
void ops_cpu_sleep(char **argv);

#ifdef __cplusplus
}
#endif
#endif
