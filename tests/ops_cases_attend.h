/* Cases of ops_harness.h: attention and block selection, packed and paged. */
#ifndef OPS_CASES_ATTEND_H
#define OPS_CASES_ATTEND_H
#include "ops_harness.h"
#include "ops_reference.h"

enum { A_H, A_K, A_D, A_SPARSE, A_BLOCK, A_SLOTS, A_T, A_S, A_LONGEST, A_INIT, A_LOCAL, A_PAGE };

/* Heads and blocks over the range that is promised; `cost` keeps long sequences to small heads. */
static void draw_heads(struct op_test *t)
{
    t->p[A_K] = PICK(t, 1, 2, 4);
    t->p[A_H] = t->p[A_K] * PICK(t, 1, 2, 3, 16);
    t->p[A_D] = t->p[A_H] > 16 ? PICK(t, 16, 32) : PICK(t, 16, 24, 64, 128, 256);
    t->p[A_SPARSE] = draw(t, 0, 2) > 0;
    t->p[A_BLOCK] = PICK(t, 4, 16, 48, 128);
    t->p[A_SLOTS] = PICK(t, 1, 3, 5, 16);
}

/* cu [S + 1] of random sequences, one of them empty, and a few rows beyond. Short ones for central differences. */
static void draw_sequences(struct op_test *t, bool small, int64_t cu[8])
{
    int64_t S = t->p[A_S] = PICK(t, 1, 2, 5), most = small ? 12 : PICK(t, 9, 70, 300);
    if (!small && t->p[A_H] * t->p[A_D] > 1000 && most > 70) most = 150;
    cu[0] = 0;
    t->p[A_LONGEST] = 1;
    for (int64_t s = 0; s < S; s++) {
        int64_t n = s == 2 ? 0 : draw(t, 1, S > 2 ? most / 2 + 1 : most);
        if (n > t->p[A_LONGEST]) t->p[A_LONGEST] = n;
        cu[s + 1] = cu[s] + n;
    }
    t->p[A_T] = cu[S] + PICK(t, 0, 3);
}

/* A query's blocks: its own, others at random, -1 where there are fewer than slots. */
static void draw_selection(struct op_test *t, double *sel, int64_t pos)
{
    int64_t own = pos / t->p[A_BLOCK], slots = t->p[A_SLOTS], n = 1;
    sel[0] = (double)own;
    for (int64_t b = own - 1; b >= 0 && n < slots; b--)
        if (draw(t, 0, 2) || b < slots - n) sel[n++] = (double)b;
    while (n < slots) sel[n++] = -1;
}

/* ---- packed ---- */
enum { X_Q, X_K, X_V, X_CU, X_SEL, X_O, X_LSE, X_DO, X_DQ, X_DK, X_DV };
static void build_attend_inputs(struct op_test *t, bool small)
{
    int64_t cu[8];
    draw_heads(t);
    if (small) t->p[A_D] = 16, t->p[A_BLOCK] = 4;
    draw_sequences(t, small, cu);
    int64_t T = t->p[A_T], K = t->p[A_K], D = t->p[A_D], S = t->p[A_S], slots = t->p[A_SLOTS];
    operand(t, "q", IN, t->dtype, T, t->p[A_H], D);
    t->gap = PICK(t, 0, 10);
    operand(t, "k", IN, t->dtype, T, K, D);
    t->gap = PICK(t, 0, 6);
    operand(t, "v", IN, t->dtype, T, K, D);
    operand(t, "cu_seqlens", IN, DT_I32, S + 1, 1, 1);
    operand(t, "sel", IN, DT_I32, t->p[A_SPARSE] ? K : 0, T, slots);
    for (int64_t i = 0; i < count(t, X_Q); i++) val(t, X_Q)[i] *= 3; /* probabilities far from even */
    for (int64_t s = 0; s <= S; s++) val(t, X_CU)[s] = (double)cu[s];
    for (int64_t i = 0; i < count(t, X_SEL); i++) val(t, X_SEL)[i] = -1;
    for (int64_t g = 0; g < K && t->p[A_SPARSE]; g++)
        for (int64_t s = 0; s < S; s++)
            for (int64_t r = cu[s]; r < cu[s + 1]; r++)
                draw_selection(t, val(t, X_SEL) + (g * T + r) * slots, r - cu[s]);
}
static struct attend_args attend_of(struct op_test *t, const struct tensor *x)
{
    struct attend_args a = {.q = x[X_Q], .k = x[X_K], .v = x[X_V], .cu_seqlens = x[X_CU],
        .max_seqlen = (int)t->p[A_LONGEST], .block = (int)t->p[A_BLOCK], .scale = 1 / sqrtf((float)t->p[A_D]),
        .o = x[X_O], .lse = x[X_LSE], .deterministic = true};
    if (t->p[A_SPARSE]) a.sel = x[X_SEL];
    return a;
}
/* o and lse of every row; with dk and dv also the backward's plain formulas. */
static void attend(struct op_test *t, double *o, double *lse, double *dq, double *dk, double *dv)
{
    int64_t T = t->p[A_T], H = t->p[A_H], K = t->p[A_K], D = t->p[A_D], slots = t->p[A_SLOTS];
    double scale = (double)(1 / sqrtf((float)D)), *p = checked(malloc((size_t)(t->p[A_LONGEST] + 1) * sizeof *p));
    for (int64_t s = 0; s < t->p[A_S]; s++)
        for (int64_t r = (int64_t)val(t, X_CU)[s], first = r; r < (int64_t)val(t, X_CU)[s + 1]; r++)
            for (int64_t h = 0; h < H; h++) {
                int64_t g = h / (H / K), key = (first * K + g) * D, pos = r - first;
                const double *sel = t->p[A_SPARSE] ? val(t, X_SEL) + (g * T + r) * slots : NULL;
                const double *q = val(t, X_Q) + (r * H + h) * D, *k = val(t, X_K) + key, *v = val(t, X_V) + key;
                lse[h * T + r] = ref_attend(o + (r * H + h) * D, p, q, k, v, K * D, D, pos, sel, slots, t->p[A_BLOCK],
                                            scale);
                const double *go = dq ? val(t, X_DO) + (r * H + h) * D : NULL;
                double delta = 0;
                for (int64_t i = 0; dq && i < D; i++) delta += go[i] * o[(r * H + h) * D + i];
                for (int64_t j = 0; dq && j <= pos; j++) {
                    double dp = 0;
                    for (int64_t i = 0; i < D; i++) dp += go[i] * v[j * K * D + i];
                    double ds = scale * p[j] * (dp - delta);
                    for (int64_t i = 0; i < D; i++) {
                        dq[(r * H + h) * D + i] += ds * k[j * K * D + i];
                        dk[key + j * K * D + i] += ds * q[i];
                        dv[key + j * K * D + i] += p[j] * go[i];
                    }
                }
            }
    free(p);
}
static void clear(struct op_test *t, int from, int to)
{
    for (int i = from; i <= to; i++) memset(val(t, i), 0, (size_t)count(t, i) * sizeof(double));
}
static void build_attend_forward(struct op_test *t)
{
    build_attend_inputs(t, false);
    operand(t, "o", OUT, t->dtype, t->p[A_T], t->p[A_H], t->p[A_D]);
    operand(t, "lse", OUT, DT_F32, t->p[A_H], t->p[A_T], 1);
}
static enum status call_attend_forward(struct op_test *t, const struct tensor *x)
{
    struct attend_args a = attend_of(t, x);
    a.work = work_of(t, t->ops->attend_work(&a, false));
    return t->ops->attend_forward(&a, t->stream);
}
static void expect_attend_forward(struct op_test *t)
{
    clear(t, X_O, X_LSE);
    attend(t, val(t, X_O), val(t, X_LSE), NULL, NULL, NULL);
}

static void add_gradients(struct op_test *t)
{
    int64_t T = t->p[A_T], K = t->p[A_K], D = t->p[A_D];
    operand(t, "o", IN, t->dtype, T, t->p[A_H], D);
    operand(t, "lse", IN, DT_F32, t->p[A_H], T, 1);
    operand(t, "d_o", IN, t->dtype, T, t->p[A_H], D);
    operand(t, "dq", OUT, t->dtype, T, t->p[A_H], D);
    t->gap = PICK(t, 0, 10);
    operand(t, "dk", OUT, t->dtype, T, K, D);
    t->gap = PICK(t, 0, 6);
    operand(t, "dv", OUT, t->dtype, T, K, D);
    settle(t);
    clear(t, X_O, X_LSE);
    attend(t, val(t, X_O), val(t, X_LSE), NULL, NULL, NULL);
}
static void build_attend_backward(struct op_test *t)
{
    build_attend_inputs(t, false);
    add_gradients(t);
}
static enum status call_attend_backward(struct op_test *t, const struct tensor *x)
{
    struct attend_args a = attend_of(t, x);
    a.d_o = x[X_DO], a.dq = x[X_DQ], a.dk = x[X_DK], a.dv = x[X_DV];
    a.work = work_of(t, t->ops->attend_work(&a, true));
    return t->ops->attend_backward(&a, t->stream);
}
static void expect_attend_backward(struct op_test *t)
{
    double *o = checked(malloc((size_t)(count(t, X_O) + 1) * sizeof *o));
    double *lse = checked(malloc((size_t)(count(t, X_LSE) + 1) * sizeof *lse));
    clear(t, X_DQ, X_DV);
    attend(t, o, lse, val(t, X_DQ), val(t, X_DK), val(t, X_DV));
    free(o);
    free(lse);
}
static void build_attend_differences(struct op_test *t)
{
    build_attend_inputs(t, true);
    add_gradients(t);
}
static double loss_attend(struct op_test *t)
{
    int64_t n = count(t, X_O);
    double *o = checked(calloc((size_t)n + 1, sizeof *o));
    double *lse = checked(calloc((size_t)count(t, X_LSE) + 1, sizeof *lse));
    double loss = 0;
    attend(t, o, lse, NULL, NULL, NULL);
    for (int64_t i = 0; i < n; i++) loss += o[i] * val(t, X_DO)[i];
    free(o);
    free(lse);
    return loss;
}
static void expect_attend_differences(struct op_test *t)
{
    derive(t, X_DQ, X_Q, loss_attend, 150);
    derive(t, X_DK, X_K, loss_attend, 150);
    derive(t, X_DV, X_V, loss_attend, 150);
}

/* ---- selection ---- */
/* Whole numbers: scores are exact in every order of summation, and equal ones are frequent. */
static void whole(struct op_test *t, int i)
{
    for (int64_t j = 0; j < count(t, i); j++) val(t, i)[j] = floor(val(t, i)[j] * 2.99 + 0.5);
}
static void draw_choice(struct op_test *t)
{
    t->p[A_INIT] = PICK(t, 0, 0, 1), t->p[A_LOCAL] = PICK(t, 1, 1, 2, 0);
    t->p[A_SLOTS] = t->p[A_INIT] + t->p[A_LOCAL] + PICK(t, 1, 2, 13);
}
/* sel of one row, in the order in which the op gave it if that is the same set. Order is free but -1 comes last. */
static void expect_row(struct op_test *t, double *out, const double *iq, const double *ik, int64_t pos, int64_t D)
{
    int64_t B = t->p[A_BLOCK], own = pos / B;
    double *score = checked(malloc((size_t)(own + 1) * sizeof *score));
    for (int64_t b = 0; b <= own; b++) score[b] = -INFINITY;
    for (int64_t j = 0; j <= pos; j++) {
        double s = 0;
        for (int64_t i = 0; i < D; i++) s += iq[i] * ik[j * D + i];
        score[j / B] = fmax(score[j / B], s);
    }
    ref_choose(out, score, own, t->p[A_SLOTS], t->p[A_INIT], t->p[A_LOCAL]);
    free(score);
}
static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (x < 0 || y < 0) return (x < 0) - (y < 0);
    return (x > y) - (x < y);
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    if (x < 0 || y < 0) return (x < 0) - (y < 0);
    return (x > y) - (x < y);
}
static void sort_expected(struct op_test *t, int i)
{
    int64_t slots = t->p[A_SLOTS];
    for (int64_t r = 0; r < count(t, i) / slots; r++)
        qsort(val(t, i) + r * slots, (size_t)slots, sizeof(double), by_value);
}
/* Sorts each row of the op's selection where it lies; fails when a -1 stands before a block. */
static enum status sort_selection(struct op_test *t, struct tensor sel)
{
    struct tensor host = sel;
    int64_t slots = t->p[A_SLOTS], rows = tensor_count(sel) / slots;
    int32_t *s = checked(malloc((size_t)(rows * slots + 1) * sizeof *s));
    host.data = s, host.place = PLACE_HOST;
    TRY(t->ops->copy(host, sel, t->stream));
    TRY(t->ops->wait(t->stream));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 1; i < slots; i++)
            if (s[r * slots + i] >= 0 && s[r * slots + i - 1] < 0) fail_msg("%s: -1 before a block", t->what->name);
        qsort(s + r * slots, (size_t)slots, sizeof *s, by_number);
    }
    TRY(t->ops->copy(sel, host, t->stream));
    TRY(t->ops->wait(t->stream));
    free(s);
    return OK;
}

enum { S_IQ, S_IK, S_CU, S_SEL };
static void build_select(struct op_test *t)
{
    int64_t cu[8];
    draw_heads(t);
    draw_choice(t);
    t->p[A_H] = 1, t->p[A_D] = PICK(t, 16, 32, 128);
    draw_sequences(t, false, cu);
    operand(t, "iq", IN, t->dtype, t->p[A_T], t->p[A_K], t->p[A_D]);
    operand(t, "ik", IN, t->dtype, t->p[A_T], t->p[A_D], 1);
    operand(t, "cu_seqlens", IN, DT_I32, t->p[A_S] + 1, 1, 1);
    operand(t, "sel", OUT, DT_I32, t->p[A_K], t->p[A_T], t->p[A_SLOTS]);
    whole(t, S_IQ);
    whole(t, S_IK);
    for (int64_t s = 0; s <= t->p[A_S]; s++) val(t, S_CU)[s] = (double)cu[s];
}
static enum status call_select(struct op_test *t, const struct tensor *x)
{
    struct select_args a = {.iq = x[S_IQ], .ik = x[S_IK], .cu_seqlens = x[S_CU], .max_seqlen = (int)t->p[A_LONGEST],
        .block = (int)t->p[A_BLOCK], .topk = (int)t->p[A_SLOTS], .init = (int)t->p[A_INIT],
        .local = (int)t->p[A_LOCAL], .sel = x[S_SEL]};
    a.work = work_of(t, t->ops->select_work(&a));
    TRY(t->ops->select_forward(&a, t->stream));
    return sort_selection(t, x[S_SEL]);
}
static void expect_select(struct op_test *t)
{
    int64_t T = t->p[A_T], I = t->p[A_K], D = t->p[A_D], slots = t->p[A_SLOTS];
    for (int64_t i = 0; i < count(t, S_SEL); i++) val(t, S_SEL)[i] = -1;
    for (int64_t s = 0; s < t->p[A_S]; s++)
        for (int64_t r = (int64_t)val(t, S_CU)[s], first = r; r < (int64_t)val(t, S_CU)[s + 1]; r++)
            for (int64_t g = 0; g < I; g++)
                expect_row(t, val(t, S_SEL) + (g * T + r) * slots, val(t, S_IQ) + (r * I + g) * D,
                           val(t, S_IK) + first * D, r - first, D);
    sort_expected(t, S_SEL);
}

/* ---- paged: sequences of random length, of which the last rows are the queries; pages in random order, and what no
 * sequence owns is NaN ---- */
enum { G_Q, G_KC, G_VC, G_TABLE, G_START, G_LEN, G_SEL, G_O };
static int64_t slot_of(struct op_test *t, int64_t s, int64_t token)
{
    int64_t page = t->p[A_PAGE];
    return (int64_t)val(t, G_TABLE)[s * dim(t, G_TABLE, 1) + token / page] * page + token % page;
}
/* q and caches of `heads` and `kv` heads; `values` false: ik_cache, and an empty v_cache. */
static void build_paged(struct op_test *t, int64_t heads, int64_t kv, bool values)
{
    int64_t S = t->p[A_S] = PICK(t, 1, 3, 7), D = t->p[A_D], N = 0, pages = 0, len[8], rows[8], order[256];
    int64_t page = t->p[A_PAGE] = (16 + t->p[A_BLOCK] - 1) / t->p[A_BLOCK] * t->p[A_BLOCK] * PICK(t, 1, 2);
    bool decode = draw(t, 0, 1);
    t->p[A_LONGEST] = 1;
    for (int64_t s = 0; s < S; s++) {
        len[s] = draw(t, 1, PICK(t, 20, 300));
        rows[s] = decode ? 1 : s == 2 ? 0 : draw(t, 1, len[s]);
        if (rows[s] > 60) rows[s] = 60;
        if (len[s] > t->p[A_LONGEST]) t->p[A_LONGEST] = len[s];
        N += rows[s];
        pages += (len[s] + page - 1) / page;
    }
    int64_t wide = (t->p[A_LONGEST] + page - 1) / page + 1, all = (pages + 2) * page;
    t->p[A_T] = N + PICK(t, 0, 2);
    operand(t, "q", IN, t->dtype, t->p[A_T], heads, D);
    operand(t, "k_cache", IN, t->dtype, all, kv, D);
    operand(t, "v_cache", IN, t->dtype, values ? all : 0, kv, D);
    operand(t, "page_table", IN, DT_I32, S, wide, 1);
    operand(t, "q_start", IN, DT_I32, S + 1, 1, 1);
    operand(t, "kv_len", IN, DT_I32, S, 1, 1);
    operand(t, "sel", values ? IN : OUT, DT_I32, t->p[A_K], t->p[A_T], t->p[A_SLOTS]);
    for (int64_t i = 0; i < pages + 2; i++) { /* a random permutation, built by insertion */
        int64_t at = draw(t, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    bool *owned = checked(calloc((size_t)all, sizeof *owned));
    for (int64_t s = 0, next = 0; s < S; s++) {
        val(t, G_LEN)[s] = (double)len[s];
        val(t, G_START)[s + 1] = val(t, G_START)[s] + (double)rows[s];
        for (int64_t i = 0; i < wide; i++)
            val(t, G_TABLE)[s * wide + i] = i * page < len[s] ? (double)order[next++] : -1;
        for (int64_t i = 0; i < len[s]; i++) owned[slot_of(t, s, i)] = true;
    }
    if (!values) whole(t, G_Q), whole(t, G_KC);
    for (int64_t i = 0; i < all * kv * D; i++) {
        if (!owned[i / (kv * D)]) val(t, G_KC)[i] = NAN;
        if (values && !owned[i / (kv * D)]) val(t, G_VC)[i] = NAN;
    }
    free(owned);
}
static struct paged_args paged_of(struct op_test *t, const struct tensor *x)
{
    int64_t most = 1;
    for (int64_t s = 0; s < t->p[A_S]; s++) {
        int64_t n = (int64_t)(val(t, G_START)[s + 1] - val(t, G_START)[s]);
        most = n > most ? n : most;
    }
    return (struct paged_args){.page_table = x[G_TABLE], .q_start = x[G_START], .kv_len = x[G_LEN],
        .page = (int)t->p[A_PAGE], .max_kv_len = (int)t->p[A_LONGEST], .max_q_len = (int)most,
        .block = (int)t->p[A_BLOCK], .topk = (int)t->p[A_SLOTS], .init = (int)t->p[A_INIT],
        .local = (int)t->p[A_LOCAL], .scale = 1 / sqrtf((float)t->p[A_D])};
}
/* Calls f for each row with its sequence and position. */
static void each_row(struct op_test *t, void (*f)(struct op_test *t, int64_t row, int64_t s, int64_t pos))
{
    for (int64_t s = 0; s < t->p[A_S]; s++) {
        int64_t first = (int64_t)val(t, G_START)[s], end = (int64_t)val(t, G_START)[s + 1];
        for (int64_t r = first; r < end; r++) f(t, r, s, (int64_t)val(t, G_LEN)[s] - (end - r));
    }
}

static void select_row(struct op_test *t, int64_t row, int64_t s, int64_t pos)
{
    (void)s;
    for (int64_t g = 0; g < t->p[A_K]; g++)
        draw_selection(t, val(t, G_SEL) + (g * t->p[A_T] + row) * t->p[A_SLOTS], pos);
}
static void build_attend_paged(struct op_test *t)
{
    draw_heads(t);
    build_paged(t, t->p[A_H], t->p[A_K], true);
    operand(t, "o", OUT, t->dtype, t->p[A_T], t->p[A_H], t->p[A_D]);
    for (int64_t i = 0; i < count(t, G_SEL); i++) val(t, G_SEL)[i] = -1;
    each_row(t, select_row);
}
static enum status call_attend_paged(struct op_test *t, const struct tensor *x)
{
    struct paged_args a = paged_of(t, x);
    a.q = x[G_Q], a.k_cache = x[G_KC], a.v_cache = x[G_VC], a.o = x[G_O];
    if (t->p[A_SPARSE]) a.sel = x[G_SEL];
    a.work = work_of(t, t->ops->paged_work(&a));
    return t->ops->attend_paged(&a, t->stream);
}
static void attend_row(struct op_test *t, int64_t row, int64_t s, int64_t pos)
{
    int64_t H = t->p[A_H], K = t->p[A_K], D = t->p[A_D], slots = t->p[A_SLOTS];
    double k[300 * 256], v[300 * 256], p[300];
    for (int64_t h = 0; h < H; h++) {
        int64_t g = h / (H / K);
        for (int64_t j = 0; j <= pos; j++) {
            int64_t at = (slot_of(t, s, j) * K + g) * D;
            memcpy(k + j * D, val(t, G_KC) + at, (size_t)D * sizeof *k);
            memcpy(v + j * D, val(t, G_VC) + at, (size_t)D * sizeof *v);
        }
        const double *sel = t->p[A_SPARSE] ? val(t, G_SEL) + (g * t->p[A_T] + row) * slots : NULL;
        ref_attend(val(t, G_O) + (row * H + h) * D, p, val(t, G_Q) + (row * H + h) * D, k, v, D, D, pos, sel, slots,
                   t->p[A_BLOCK], (double)(1 / sqrtf((float)D)));
    }
}
static void expect_attend_paged(struct op_test *t)
{
    clear(t, G_O, G_O);
    each_row(t, attend_row);
}

static void build_select_paged(struct op_test *t)
{
    draw_heads(t);
    draw_choice(t);
    t->p[A_D] = PICK(t, 16, 128);
    build_paged(t, t->p[A_K], 1, false);
    for (int64_t i = 0; i < count(t, G_SEL); i++) val(t, G_SEL)[i] = -1;
}
static enum status call_select_paged(struct op_test *t, const struct tensor *x)
{
    struct paged_args a = paged_of(t, x);
    a.iq = x[G_Q], a.sel = x[G_SEL];
    a.ik_cache = tensor_reshape(x[G_KC], 2, dim(t, G_KC, 0), t->p[A_D], 1);
    a.work = work_of(t, t->ops->paged_work(&a));
    TRY(t->ops->select_paged(&a, t->stream));
    return sort_selection(t, x[G_SEL]);
}
static void choose_row(struct op_test *t, int64_t row, int64_t s, int64_t pos)
{
    int64_t I = t->p[A_K], D = t->p[A_D];
    double ik[300 * 128];
    for (int64_t j = 0; j <= pos; j++) memcpy(ik + j * D, val(t, G_KC) + slot_of(t, s, j) * D, (size_t)D * sizeof *ik);
    for (int64_t g = 0; g < I; g++)
        expect_row(t, val(t, G_SEL) + (g * t->p[A_T] + row) * t->p[A_SLOTS], val(t, G_Q) + (row * I + g) * D, ik, pos,
                   D);
}
static void expect_select_paged(struct op_test *t)
{
    each_row(t, choose_row);
    sort_expected(t, G_SEL);
}
#endif
