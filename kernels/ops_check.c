#include "ops_check.h"

#include <inttypes.h>
#include <stdio.h>

static void list_types(char *text, size_t n, unsigned types)
{
    size_t used = 0;
    text[0] = 0;
    for (int t = 0; t < DT_COUNT; t++)
        if (types & IS(t) && used < n)
            used += (size_t)snprintf(text + used, n - used, "%s%s", used ? " or " : "", dtype_name((enum dtype)t));
}

enum status check_tensor(const char *op, const char *name, struct tensor t, unsigned types, int64_t d0, int64_t d1,
                         int64_t d2)
{
    char wanted[64];
    if (t.data == NULL && d0 * d1 * d2 == 0) return OK;
    if (t.data == NULL)
        return FAIL(ERR_INTERNAL, "%s: %s is missing, expected [%" PRId64 ", %" PRId64 ", %" PRId64 "]", op, name, d0,
                    d1, d2);
    list_types(wanted, sizeof wanted, types);
    if (t.dim[0] != d0 || t.dim[1] != d1 || t.dim[2] != d2 || t.dim[3] != 1 || (unsigned)t.dtype >= DT_COUNT ||
        !(types & IS(t.dtype)))
        return FAIL(ERR_INTERNAL, "%s: %s is [%" PRId64 ", %" PRId64 ", %" PRId64 "] %s, expected [%" PRId64 ", %"
                    PRId64 ", %" PRId64 "] %s", op, name, t.dim[0], t.dim[1], t.dim[2],
                    (unsigned)t.dtype < DT_COUNT ? dtype_name(t.dtype) : "?", d0, d1, d2, wanted);
    if (types & IS_STRIDED ? t.ld < tensor_row(t) && t.dim[0] > 1 : !tensor_contiguous(t))
        return FAIL(ERR_INTERNAL, "%s: the rows of %s are %" PRId64 " elements apart, a row has %" PRId64, op, name,
                    t.ld, tensor_row(t));
    return OK;
}

enum status check_optional(const char *op, const char *name, struct tensor t, unsigned types, int64_t d0, int64_t d1,
                           int64_t d2)
{
    return t.data ? check_tensor(op, name, t, types, d0, d1, d2) : OK;
}

enum status check_work(const char *op, struct tensor work, size_t bytes)
{
    if (bytes == 0 || (work.data && tensor_bytes(work) >= bytes)) return OK;
    return FAIL(ERR_INTERNAL, "%s: work holds %zu bytes, %zu are needed", op, work.data ? tensor_bytes(work) : 0,
                bytes);
}

/* The name of the calling check_<op>, without its prefix. */
#define OP (__func__ + sizeof "check_" - 1)
#define NEED(t, types, d0, d1, d2) TRY(check_tensor(OP, #t, t, types, d0, d1, d2))
#define MAY(t, types, d0, d1, d2) TRY(check_optional(OP, #t, t, types, d0, d1, d2))
#define REFUSE(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (condition) return FAIL(ERR_INTERNAL, __VA_ARGS__);                                                         \
    } while (0)

enum status check_copy(struct tensor dst, struct tensor src)
{
    return check_tensor(OP, "dst", dst, IS(src.dtype) | IS_STRIDED, src.dim[0], src.dim[1], src.dim[2]);
}

enum status check_cast(struct tensor dst, struct tensor src)
{
    NEED(src, IS_FLOAT | IS_STRIDED, src.dim[0], src.dim[1], src.dim[2]);
    return check_tensor(OP, "dst", dst, IS_FLOAT | IS_STRIDED, src.dim[0], src.dim[1], src.dim[2]);
}

enum status check_add(struct tensor y, struct tensor a, struct tensor b)
{
    NEED(y, IS_FLOAT, y.dim[0], y.dim[1], y.dim[2]);
    NEED(a, IS(y.dtype), y.dim[0], y.dim[1], y.dim[2]);
    NEED(b, IS(y.dtype), y.dim[0], y.dim[1], y.dim[2]);
    return OK;
}

enum status check_square_sum(struct tensor sum, struct tensor x)
{
    NEED(sum, IS_F64, 1, 1, 1);
    NEED(x, IS_FLOAT, x.dim[0], x.dim[1], x.dim[2]);
    return OK;
}

enum status check_adamw(const struct adamw_args *a)
{
    int64_t n = a->master.dim[0];
    NEED(a->master, IS_F32, n, 1, 1);
    NEED(a->exp_avg, IS_FLOAT, n, 1, 1);
    NEED(a->exp_avg_sq, IS_FLOAT, n, 1, 1);
    NEED(a->grad, IS_FLOAT, n, 1, 1);
    NEED(a->weight, IS_FLOAT, n, 1, 1);
    return OK;
}

enum status check_embed_forward(struct tensor y, struct tensor ids, struct tensor w)
{
    NEED(y, IS_FLOAT, ids.dim[0], w.dim[1], 1);
    NEED(ids, IS_I32, ids.dim[0], 1, 1);
    NEED(w, IS(y.dtype), w.dim[0], w.dim[1], 1);
    return OK;
}

enum status check_embed_backward(struct tensor dw, struct tensor dy, struct tensor ids)
{
    NEED(dw, IS_F32, dw.dim[0], dw.dim[1], 1);
    NEED(dy, IS_FLOAT, ids.dim[0], dw.dim[1], 1);
    NEED(ids, IS_I32, ids.dim[0], 1, 1);
    return OK;
}

enum status check_rmsnorm_forward(struct tensor y, struct tensor rstd, struct tensor x_out, struct tensor x,
                                  struct tensor add, struct tensor w)
{
    int64_t T = x.dim[0], C = x.dim[1];
    NEED(y, IS_FLOAT, T, C, 1);
    MAY(rstd, IS_F32, T, 1, 1);
    NEED(x, IS(y.dtype), T, C, 1);
    NEED(w, IS(y.dtype), C, 1, 1);
    MAY(add, IS(y.dtype), T, C, 1);
    MAY(x_out, IS(y.dtype), T, C, 1);
    REFUSE(T && tensor_none(add) != tensor_none(x_out), "rmsnorm_forward: add without x_out, or x_out without add");
    return OK;
}

enum status check_rmsnorm_backward(struct tensor dx, struct tensor dw, struct tensor dy, struct tensor x,
                                   struct tensor w, struct tensor rstd, struct tensor d_residual)
{
    int64_t T = x.dim[0], C = x.dim[1];
    NEED(dx, IS_FLOAT, T, C, 1);
    NEED(dw, IS_F32, C, 1, 1);
    NEED(dy, IS(dx.dtype), T, C, 1);
    NEED(x, IS(dx.dtype), T, C, 1);
    NEED(w, IS(dx.dtype), C, 1, 1);
    NEED(rstd, IS_F32, T, 1, 1);
    MAY(d_residual, IS(dx.dtype), T, C, 1);
    return OK;
}

static enum status check_rotary(const char *op, const struct qkv_args *a, int64_t D, int64_t Di)
{
    REFUSE(a->rotary < 0 || a->rotary % 2 || a->rotary > D || (Di && a->rotary > Di),
           "%s: rotary %d does not fit head size %" PRId64 " and index head size %" PRId64, op, a->rotary, D, Di);
    return OK;
}

enum status check_qkv_forward(const struct qkv_args *a)
{
    int64_t T = a->qkv.dim[0], H = a->q.dim[1], K = a->k.dim[1], D = a->q.dim[2];
    bool index = !tensor_none(a->iq_norm);
    int64_t I = index ? a->iq.dim[1] : 0, Di = index ? a->iq_norm.dim[0] : 0;
    unsigned same = IS(a->qkv.dtype);
    NEED(a->qkv, IS_FLOAT | IS_STRIDED, T, (I + (index ? 1 : 0)) * Di + (H + 2 * K) * D, 1);
    NEED(a->q, same, T, H, D);
    NEED(a->k, same, T, K, D);
    NEED(a->q_norm, same, D, 1, 1);
    NEED(a->k_norm, same, D, 1, 1);
    NEED(a->pos, IS_I32, T, 1, 1);
    MAY(a->rstd, IS_F32, T, H + K, 1);
    if (index) {
        NEED(a->ik_norm, same, Di, 1, 1);
        NEED(a->iq, same, T, I, Di);
        NEED(a->ik, same, T, Di, 1);
    }
    if (!tensor_none(a->k_cache)) {
        int64_t slots = a->k_cache.dim[0];
        NEED(a->k_cache, same, slots, K, D);
        NEED(a->v_cache, same, slots, K, D);
        if (index) NEED(a->ik_cache, same, slots, Di, 1);
        NEED(a->slot, IS_I32, T, 1, 1);
    }
    return check_rotary(OP, a, D, Di);
}

enum status check_qkv_backward(const struct qkv_args *a)
{
    int64_t T = a->qkv.dim[0], H = a->dq.dim[1], K = a->dk.dim[1], D = a->dq.dim[2];
    bool index = !tensor_none(a->iq_norm);
    int64_t I = index ? a->iq.dim[1] : 0, Di = index ? a->iq_norm.dim[0] : 0;
    unsigned same = IS(a->qkv.dtype);
    NEED(a->qkv, IS_FLOAT | IS_STRIDED, T, (I + (index ? 1 : 0)) * Di + (H + 2 * K) * D, 1);
    NEED(a->dq, same, T, H, D);
    NEED(a->dk, same, T, K, D);
    NEED(a->dqkv, same | IS_STRIDED, T, (H + 2 * K) * D, 1);
    NEED(a->q_norm, same, D, 1, 1);
    NEED(a->k_norm, same, D, 1, 1);
    NEED(a->dq_norm, IS_F32, D, 1, 1);
    NEED(a->dk_norm, IS_F32, D, 1, 1);
    NEED(a->pos, IS_I32, T, 1, 1);
    NEED(a->rstd, IS_F32, T, H + K, 1);
    return check_rotary(OP, a, D, 0);
}

/* Activations and weights of one dtype, or the router's mix. */
static enum status check_mix(const char *op, enum dtype x, enum dtype w, enum dtype y)
{
    REFUSE(!(x == w && w == y) && !(x == DT_BF16 && w == DT_F32 && y == DT_F32),
           "%s: x %s with w %s and y %s", op, dtype_name(x), dtype_name(w), dtype_name(y));
    return OK;
}

enum status check_linear_forward(struct tensor y, struct tensor x, struct tensor w)
{
    NEED(y, IS_FLOAT | IS_STRIDED, x.dim[0], w.dim[0], 1);
    NEED(x, IS_FLOAT | IS_STRIDED, x.dim[0], w.dim[1], 1);
    NEED(w, IS_FLOAT, w.dim[0], w.dim[1], 1);
    return check_mix(OP, x.dtype, w.dtype, y.dtype);
}

enum status check_linear_dx(struct tensor dx, struct tensor dy, struct tensor w)
{
    NEED(dx, IS_FLOAT | IS_STRIDED, dy.dim[0], w.dim[1], 1);
    NEED(dy, IS_FLOAT | IS_STRIDED, dy.dim[0], w.dim[0], 1);
    NEED(w, IS_FLOAT, w.dim[0], w.dim[1], 1);
    return check_mix(OP, dx.dtype, w.dtype, dy.dtype);
}

enum status check_linear_dw(struct tensor dw, struct tensor dy, struct tensor x)
{
    NEED(dw, IS_F32, dy.dim[1], x.dim[1], 1);
    NEED(dy, IS_FLOAT | IS_STRIDED, x.dim[0], dy.dim[1], 1);
    NEED(x, IS_FLOAT | IS_STRIDED, x.dim[0], x.dim[1], 1);
    REFUSE(dy.dtype == DT_BF16 && x.dtype == DT_F32, "linear_dw: dy %s with x %s", dtype_name(dy.dtype),
           dtype_name(x.dtype));
    return OK;
}

enum status check_grouped_forward(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets)
{
    NEED(y, IS_FLOAT, x.dim[0], w.dim[1], 1);
    NEED(x, IS(y.dtype), x.dim[0], w.dim[2], 1);
    NEED(w, IS(y.dtype), w.dim[0], w.dim[1], w.dim[2]);
    NEED(offsets, IS_I32, w.dim[0] + 1, 1, 1);
    return OK;
}

enum status check_grouped_dx(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets)
{
    NEED(dx, IS_FLOAT, dy.dim[0], w.dim[2], 1);
    NEED(dy, IS(dx.dtype), dy.dim[0], w.dim[1], 1);
    NEED(w, IS(dx.dtype), w.dim[0], w.dim[1], w.dim[2]);
    NEED(offsets, IS_I32, w.dim[0] + 1, 1, 1);
    return OK;
}

enum status check_grouped_dw(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets)
{
    NEED(dw, IS_F32, dw.dim[0], dw.dim[1], dw.dim[2]);
    NEED(dy, IS_FLOAT, x.dim[0], dw.dim[1], 1);
    NEED(x, IS(dy.dtype), x.dim[0], dw.dim[2], 1);
    NEED(offsets, IS_I32, dw.dim[0] + 1, 1, 1);
    return OK;
}

static enum status check_heads(const char *op, int64_t H, int64_t K)
{
    REFUSE(K < 1 || H % K, "%s: %" PRId64 " query heads do not divide over %" PRId64 " KV heads", op, H, K);
    return OK;
}

enum status check_attend(const struct attend_args *a, bool backward)
{
    int64_t T = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2], K = a->k.dim[1], S = a->cu_seqlens.dim[0] - 1;
    unsigned same = IS(a->q.dtype);
    TRY(check_heads(OP, H, K));
    NEED(a->q, IS_FLOAT, T, H, D);
    NEED(a->k, same | IS_STRIDED, T, K, D);
    NEED(a->v, same | IS_STRIDED, T, K, D);
    NEED(a->cu_seqlens, IS_I32, S + 1, 1, 1);
    NEED(a->o, same, T, H, D);
    NEED(a->lse, IS_F32, H, T, 1);
    MAY(a->sel, IS_I32, K, T, a->sel.dim[2]);
    REFUSE(a->sel.data && a->block < 1, "attend: key blocks of %d tokens", a->block);
    if (!backward) return OK;
    NEED(a->d_o, same, T, H, D);
    NEED(a->dq, same, T, H, D);
    NEED(a->dk, same | IS_STRIDED, T, K, D);
    NEED(a->dv, same | IS_STRIDED, T, K, D);
    return OK;
}

static enum status check_choice(const char *op, int block, int topk, int init, int local)
{
    REFUSE(block < 1 || topk < 1 || init < 0 || local < 0, "%s: block %d, topk %d, init %d, local %d", op, block, topk,
           init, local);
    return OK;
}

enum status check_select(const struct select_args *a)
{
    int64_t T = a->iq.dim[0], I = a->iq.dim[1], Di = a->iq.dim[2], S = a->cu_seqlens.dim[0] - 1;
    NEED(a->iq, IS_FLOAT, T, I, Di);
    NEED(a->ik, IS(a->iq.dtype), T, Di, 1);
    NEED(a->cu_seqlens, IS_I32, S + 1, 1, 1);
    NEED(a->sel, IS_I32, I, T, a->topk);
    return check_choice(OP, a->block, a->topk, a->init, a->local);
}

static enum status check_pages(const char *op, const struct paged_args *a)
{
    int64_t S = a->kv_len.dim[0];
    TRY(check_tensor(op, "page_table", a->page_table, IS_I32, S, a->page_table.dim[1], 1));
    TRY(check_tensor(op, "q_start", a->q_start, IS_I32, S + 1, 1, 1));
    TRY(check_tensor(op, "kv_len", a->kv_len, IS_I32, S, 1, 1));
    REFUSE(a->page < 1, "%s: pages of %d tokens", op, a->page);
    REFUSE(a->sel.data && (a->block < 1 || a->page % a->block), "%s: pages of %d tokens and key blocks of %d", op,
           a->page, a->block);
    return OK;
}

enum status check_select_paged(const struct paged_args *a)
{
    int64_t N = a->iq.dim[0], I = a->iq.dim[1], Di = a->iq.dim[2];
    NEED(a->iq, IS_FLOAT, N, I, Di);
    NEED(a->ik_cache, IS(a->iq.dtype), a->ik_cache.dim[0], Di, 1);
    NEED(a->sel, IS_I32, I, N, a->topk);
    TRY(check_choice(OP, a->block, a->topk, a->init, a->local));
    return check_pages(OP, a);
}

enum status check_attend_paged(const struct paged_args *a)
{
    int64_t N = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2], K = a->k_cache.dim[1];
    unsigned same = IS(a->q.dtype);
    TRY(check_heads(OP, H, K));
    NEED(a->q, IS_FLOAT, N, H, D);
    NEED(a->k_cache, same, a->k_cache.dim[0], K, D);
    NEED(a->v_cache, same, a->k_cache.dim[0], K, D);
    NEED(a->o, same, N, H, D);
    MAY(a->sel, IS_I32, K, N, a->topk);
    return check_pages(OP, a);
}

enum status check_swiglu_forward(struct tensor y, struct tensor gu)
{
    NEED(y, IS_FLOAT, gu.dim[0], y.dim[1], 1);
    NEED(gu, IS(y.dtype), gu.dim[0], 2 * y.dim[1], 1);
    return OK;
}

enum status check_swiglu_backward(struct tensor dgu, struct tensor dy, struct tensor gu)
{
    NEED(dgu, IS_FLOAT, gu.dim[0], 2 * dy.dim[1], 1);
    NEED(dy, IS(dgu.dtype), gu.dim[0], dy.dim[1], 1);
    NEED(gu, IS(dgu.dtype), gu.dim[0], 2 * dy.dim[1], 1);
    return OK;
}

enum status check_route_forward(struct tensor experts, struct tensor weights, struct tensor logits, struct tensor bias,
                                int64_t valid)
{
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
    NEED(experts, IS_I32, T, k, 1);
    NEED(weights, IS_F32, T, k, 1);
    NEED(logits, IS_F32, T, E, 1);
    NEED(bias, IS_F32, E, 1, 1);
    REFUSE(k < 1 || k > E, "route_forward: %" PRId64 " of %" PRId64 " experts", k, E);
    REFUSE(valid < 0 || valid > T, "route_forward: %" PRId64 " valid rows of %" PRId64, valid, T);
    return OK;
}

enum status check_route_backward(struct tensor dlogits, struct tensor dweights, struct tensor experts,
                                 struct tensor logits)
{
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
    NEED(dlogits, IS_F32, T, E, 1);
    NEED(dweights, IS_F32, T, k, 1);
    NEED(experts, IS_I32, T, k, 1);
    NEED(logits, IS_F32, T, E, 1);
    return OK;
}

enum status check_dispatch(struct tensor offsets, struct tensor row_token, struct tensor row_of, struct tensor experts)
{
    int64_t T = experts.dim[0], k = experts.dim[1];
    NEED(offsets, IS_I32, offsets.dim[0], 1, 1);
    NEED(row_token, IS_I32, T * k, 1, 1);
    NEED(row_of, IS_I32, T, k, 1);
    NEED(experts, IS_I32, T, k, 1);
    REFUSE(offsets.dim[0] < 1, "dispatch: no room for offsets");
    return OK;
}

enum status check_gather_rows(struct tensor y, struct tensor x, struct tensor index)
{
    NEED(y, IS_FLOAT, index.dim[0], x.dim[1], 1);
    NEED(x, IS(y.dtype), x.dim[0], x.dim[1], 1);
    NEED(index, IS_I32, index.dim[0], 1, 1);
    return OK;
}

enum status check_combine_forward(struct tensor y, struct tensor rows, struct tensor row_of, struct tensor weights,
                                  struct tensor base)
{
    int64_t T = row_of.dim[0], k = row_of.dim[1], C = y.dim[1];
    NEED(y, IS_FLOAT, T, C, 1);
    NEED(rows, IS(y.dtype), rows.dim[0], C, 1);
    NEED(row_of, IS_I32, T, k, 1);
    MAY(weights, IS_F32, T, k, 1);
    MAY(base, IS(y.dtype), T, C, 1);
    return OK;
}

enum status check_combine_backward(struct tensor drows, struct tensor dweights, struct tensor dy, struct tensor rows,
                                   struct tensor row_of, struct tensor weights)
{
    int64_t T = row_of.dim[0], k = row_of.dim[1], C = dy.dim[1], R = rows.dim[0];
    NEED(drows, IS_FLOAT, R, C, 1);
    NEED(rows, IS(drows.dtype), R, C, 1);
    NEED(dy, IS(drows.dtype), T, C, 1);
    NEED(row_of, IS_I32, T, k, 1);
    MAY(dweights, IS_F32, T, k, 1);
    MAY(weights, IS_F32, T, k, 1);
    return OK;
}

enum status check_vocab_stats(struct tensor stats, struct tensor logits, struct tensor targets)
{
    int64_t T = targets.dim[0];
    NEED(stats, IS_F32, T, 4, 1);
    NEED(logits, IS_FLOAT, T, logits.dim[1], 1);
    NEED(targets, IS_I32, T, 1, 1);
    return OK;
}

enum status check_vocab_join(struct tensor logp, struct tensor entropy, struct tensor lse, struct tensor stats,
                             struct tensor targets)
{
    int64_t T = targets.dim[0];
    NEED(logp, IS_F32, T, 1, 1);
    NEED(entropy, IS_F32, T, 1, 1);
    NEED(lse, IS_F32, T, 1, 1);
    NEED(stats, IS_F32, stats.dim[0], T, 4);
    NEED(targets, IS_I32, T, 1, 1);
    REFUSE(stats.dim[0] < 1 && T, "vocab_join: statistics of no rank");
    return OK;
}

enum status check_vocab_backward(struct tensor dlogits, struct tensor logits, struct tensor targets, struct tensor lse,
                                 struct tensor entropy, struct tensor dlogp, struct tensor dentropy)
{
    int64_t T = targets.dim[0], V = logits.dim[1];
    NEED(dlogits, IS_FLOAT, T, V, 1);
    NEED(logits, IS(dlogits.dtype), T, V, 1);
    NEED(targets, IS_I32, T, 1, 1);
    NEED(lse, IS_F32, T, 1, 1);
    NEED(dlogp, IS_F32, T, 1, 1);
    MAY(dentropy, IS_F32, T, 1, 1);
    if (!tensor_none(dentropy)) NEED(entropy, IS_F32, T, 1, 1);
    return OK;
}

enum status check_sample(struct tensor ids, struct tensor logp, struct tensor logits, struct tensor u)
{
    int64_t N = logits.dim[0];
    NEED(ids, IS_I32, N, 1, 1);
    NEED(logp, IS_F32, N, 1, 1);
    NEED(logits, IS_FLOAT, N, logits.dim[1], 1);
    NEED(u, IS_F64, N, 1, 1);
    REFUSE(N && logits.dim[1] < 1, "sample: an empty vocabulary");
    return OK;
}
