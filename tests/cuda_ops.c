/* Every op of the device against its CPU twin on random shapes: float32 within 1e-5, bf16 within 8e-3 (2-norm of the
 * difference over 2-norm of the reference), bitwise repeatable. Prints a table and `N passed, N failed`.
 *
 *   cuda_ops            all cases
 *   cuda_ops --short    few and small ones, for compute-sanitizer
 *   cuda_ops PREFIX     cases whose name starts so */
#include "cuda_pairs.h"
#include "cuda_cases.h"

static bool short_run;
static const char *only = "";

static double tolerance(enum dtype t) { return t == DT_F32 ? 1e-5 : 8e-3; }

static bool wanted(const char *name) { return strncmp(name, only, strlen(only)) == 0; }

static void end(struct bench *b, const char *name, enum dtype t, const char *format, ...)
{
    char shape[128];
    va_list v;
    va_start(v, format);
    vsnprintf(shape, sizeof shape, format, v);
    va_end(v);
    pair_end(b, name, t == DT_F32 ? "f32" : "bf16", shape);
}

static void flat(struct bench *b, enum dtype t, int64_t rows, int64_t cols, int64_t ld)
{
    if (!wanted("flat")) return;
    enum dtype u = t == DT_F32 ? DT_BF16 : DT_F32;
    struct pair *x = pair_random(b, "x", t, rows, cols, 0, ld, 1, 0), *y = pair_out(b, "cast", u, rows, cols, 0, ld);
    struct pair *p = pair_in(b, "a", t, rows, cols, 0), *q = pair_in(b, "b", t, rows, cols, 0);
    struct pair *sum = pair_random(b, "square_sum", DT_F64, 1, 0, 0, 0, 1, 0), *c = pair_out(b, "copy", t, rows, cols, 0, ld);
    struct pair *z = pair_in(b, "zero", t, rows, cols, 0);
    z->t[0].ld = z->t[1].ld = z->t[2].ld = cols;
    EACH(b, i)
    {
        OP(cast, y->t[i], x->t[i]);
        OP(add, p->t[i], p->t[i], q->t[i]);
        OP(square_sum, sum->t[i], q->t[i]);
        OP(copy, c->t[i], x->t[i]);
        OP(zero, cols > 2 ? tensor_cols(z->t[i], 1, cols - 2) : z->t[i]);
    }
    pair_check(b, y, 0);
    pair_check(b, p, tolerance(t));
    pair_check(b, sum, 1e-6);
    pair_check(b, c, 0);
    pair_check(b, z, 0);
    end(b, "flat", t, "[%lld, %lld] ld %lld", (long long)rows, (long long)cols, (long long)ld);
}

static void adamw(struct bench *b, enum dtype t, int64_t n)
{
    if (!wanted("adamw")) return;
    struct pair *master = pair_in(b, "master", DT_F32, n, 0, 0), *m = pair_in(b, "exp_avg", t, n, 0, 0);
    struct pair *v = pair_in(b, "exp_avg_sq", t, n, 0, 0), *g = pair_in(b, "grad", t, n, 0, 0);
    struct pair *w = pair_out(b, "weight", DT_BF16, n, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) pair_set(v->t[0], i, fabs(pair_get(v->t[0], i)) + 0.01);
    pair_upload(b, v);
    EACH(b, i)
    {
        struct adamw_args a = {.master = master->t[i], .exp_avg = m->t[i], .exp_avg_sq = v->t[i], .grad = g->t[i],
            .weight = w->t[i], .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .bias1 = 0.19f,
            .bias2 = 0.0975f, .grad_scale = 0.5f};
        OP(adamw, &a);
    }
    pair_check(b, master, 1e-5);
    pair_check(b, m, tolerance(t));
    pair_check(b, v, tolerance(t));
    pair_check(b, w, 8e-3);
    end(b, "adamw", t, "%lld", (long long)n);
}

static void norm(struct bench *b, enum dtype t, int64_t T, int64_t C)
{
    if (!wanted("rmsnorm")) return;
    struct pair *x = pair_in(b, "x", t, T, C, 0), *add = pair_in(b, "add", t, T, C, 0), *w = pair_in(b, "w", t, C, 0, 0);
    struct pair *y = pair_out(b, "y", t, T, C, 0, 0), *r = pair_out(b, "rstd", DT_F32, T, 0, 0, 0);
    struct pair *plain = pair_out(b, "plain y", t, T, C, 0, 0), *none_r = pair_out(b, "plain rstd", DT_F32, T, 0, 0, 0);
    struct pair *dy = pair_in(b, "dy", t, T, C, 0), *res = pair_in(b, "dx over d_residual", t, T, C, 0);
    struct pair *dx = pair_out(b, "dx", t, T, C, 0, 0);
    struct pair *dw = pair_in(b, "dw", DT_F32, C, 0, 0), *dw2 = pair_in(b, "dw", DT_F32, C, 0, 0);
    EACH(b, i)
    {
        OP(rmsnorm_forward, plain->t[i], none_r->t[i], TENSOR_NONE, x->t[i], TENSOR_NONE, w->t[i], 1e-6f);
        OP(rmsnorm_forward, y->t[i], r->t[i], x->t[i], x->t[i], add->t[i], w->t[i], 1e-6f);
    }
    /* Both backwards start from one x and rstd, or their roundings would be compared. */
    pair_check(b, r, tolerance(DT_F32));
    pair_check(b, x, tolerance(t));
    pair_upload(b, x);
    pair_upload(b, r);
    EACH(b, i)
    {
        OP(rmsnorm_backward, dx->t[i], dw->t[i], dy->t[i], x->t[i], w->t[i], r->t[i], TENSOR_NONE);
        OP(rmsnorm_backward, res->t[i], dw2->t[i], dy->t[i], x->t[i], w->t[i], r->t[i], res->t[i]);
    }
    pair_check(b, plain, tolerance(t));
    pair_check(b, y, tolerance(t));
    pair_check(b, dx, tolerance(t));
    pair_check(b, res, tolerance(t));
    pair_check(b, dw, 1e-5);
    pair_check(b, dw2, 1e-5);
    end(b, "rmsnorm", t, "[%lld, %lld]", (long long)T, (long long)C);
}

static void qkv(struct bench *b, enum dtype t, int64_t T, int H, int K, int D, int Di, int rotary)
{
    if (!wanted("qkv")) return;
    int I = Di ? K : 0, skip = Di ? (I + 1) * Di : 0;
    int64_t columns = skip + (H + 2 * K) * D, slots = 2 * T + 3;
    struct pair *x = pair_random(b, "qkv", t, T, columns, 0, columns + 8, 1, 0);
    struct pair *qn = pair_in(b, "q_norm", t, D, 0, 0), *kn = pair_in(b, "k_norm", t, D, 0, 0);
    struct pair *iqn = pair_in(b, "iq_norm", t, Di ? Di : 1, 0, 0), *ikn = pair_in(b, "ik_norm", t, Di ? Di : 1, 0, 0);
    struct pair *pos = pair_new(b, "pos", DT_I32, T, 0, 0, 0), *slot = pair_new(b, "slot", DT_I32, T, 0, 0, 0);
    for (int64_t i = 0; i < T; i++) {
        pair_set(pos->t[0], i, (double)(i * 997 % 100000));
        pair_set(slot->t[0], i, i % 5 == 3 ? -1 : (double)(2 * i + 1));
    }
    pair_upload(b, pos);
    pair_upload(b, slot);
    struct pair *q = pair_out(b, "q", t, T, H, D, 0), *k = pair_out(b, "k", t, T, K, D, 0);
    struct pair *iq = pair_out(b, "iq", t, T, I ? I : 1, Di ? Di : 1, 0), *ik = pair_out(b, "ik", t, T, Di ? Di : 1, 0, 0);
    struct pair *r = pair_out(b, "rstd", DT_F32, T, H + K, 0, 0);
    struct pair *kc = pair_out(b, "k_cache", t, slots, K, D, 0), *vc = pair_out(b, "v_cache", t, slots, K, D, 0);
    struct pair *ic = pair_out(b, "ik_cache", t, slots, Di ? Di : 1, 0, 0);
    struct pair *dq = pair_in(b, "dq", t, T, H, D), *dk = pair_in(b, "dk", t, T, K, D);
    struct pair *dqkv = pair_out(b, "dqkv", t, T, (H + 2 * K) * D, 0, 0);
    struct pair *dqn = pair_in(b, "dq_norm", DT_F32, D, 0, 0), *dkn = pair_in(b, "dk_norm", DT_F32, D, 0, 0);
    EACH(b, i)
    {
        struct qkv_args a = {.qkv = x->t[i], .q_norm = qn->t[i], .k_norm = kn->t[i], .pos = pos->t[i], .theta = 5e6f,
            .eps = 1e-6f, .rotary = rotary, .q = q->t[i], .k = k->t[i], .rstd = r->t[i], .k_cache = kc->t[i],
            .v_cache = vc->t[i], .slot = slot->t[i], .dq = dq->t[i], .dk = dk->t[i], .dqkv = dqkv->t[i],
            .dq_norm = dqn->t[i], .dk_norm = dkn->t[i]};
        if (Di) {
            a.iq_norm = iqn->t[i], a.ik_norm = ikn->t[i], a.iq = iq->t[i], a.ik = ik->t[i];
            a.ik_cache = ic->t[i];
        }
        OP(qkv_forward, &a);
        OP(qkv_backward, &a);
    }
    struct pair *out[] = {q, k, iq, ik, kc, vc, ic, dqkv};
    for (int i = 0; i < 8; i++) pair_check(b, out[i], tolerance(t));
    pair_check(b, r, 1e-5);
    pair_check(b, dqn, 1e-5);
    pair_check(b, dkn, 1e-5);
    end(b, "qkv", t, "T %lld H %d K %d D %d Di %d rotary %d", (long long)T, H, K, D, Di, rotary);
}

static void linear(struct bench *b, enum dtype t, bool mixed, int64_t T, int64_t N, int64_t K, int pad)
{
    if (!wanted("linear")) return;
    enum dtype u = mixed ? DT_F32 : t;
    struct pair *x = pair_random(b, "x", t, T, K, 0, K + pad, 1, 0), *w = pair_in(b, "w", u, N, K, 0);
    struct pair *y = pair_out(b, "y", u, T, N, 0, N + pad), *dy = pair_random(b, "dy", u, T, N, 0, N + pad, 1, 0);
    struct pair *dx = pair_out(b, "dx", t, T, K, 0, K + pad), *more = pair_random(b, "dx +=", t, T, K, 0, K + pad, 1, 0);
    struct pair *dw = pair_in(b, "dw", DT_F32, N, K, 0);
    EACH(b, i)
    {
        OP(linear_forward, y->t[i], x->t[i], w->t[i]);
        OP(linear_dx, dx->t[i], dy->t[i], w->t[i], false);
        OP(linear_dx, more->t[i], dy->t[i], w->t[i], true);
        OP(linear_dw, dw->t[i], dy->t[i], x->t[i]);
    }
    pair_check(b, y, tolerance(u));
    pair_check(b, dx, tolerance(t));
    pair_check(b, more, tolerance(t));
    pair_check(b, dw, 1e-5);
    end(b, mixed ? "linear mixed" : "linear", t, "T %lld N %lld K %lld pad %d", (long long)T, (long long)N, (long long)K, pad);
}

/* Every third expert has no row; `spare` rows belong to none. */
static void grouped(struct bench *b, enum dtype t, int E, int most, int64_t N, int64_t K, int spare)
{
    if (!wanted("grouped")) return;
    int32_t offsets[E + 1];
    offsets[0] = 0;
    for (int e = 0; e < E; e++) offsets[e + 1] = offsets[e] + (e % 3 == 2 ? 0 : 1 + pair_below(b, most));
    int64_t R = offsets[E] + spare;
    struct pair *off = pair_ints(b, "offsets", offsets, E + 1);
    struct pair *x = pair_in(b, "x", t, R, K, 0), *w = pair_in(b, "w", t, E, N, K), *dy = pair_in(b, "dy", t, R, N, 0);
    struct pair *y = pair_out(b, "y", t, R, N, 0, 0), *dx = pair_out(b, "dx", t, R, K, 0, 0);
    struct pair *dw = pair_in(b, "dw", DT_F32, E, N, K);
    for (int s = 0; s < spare; s++) /* what no expert owns must not be read */
        for (int64_t c = 0; c < (N > K ? N : K); c++) {
            if (c < K) pair_set(x->t[0], (offsets[E] + s) * K + c, NAN);
            if (c < N) pair_set(dy->t[0], (offsets[E] + s) * N + c, NAN);
        }
    pair_upload(b, x);
    pair_upload(b, dy);
    EACH(b, i)
    {
        OP(grouped_forward, y->t[i], x->t[i], w->t[i], off->t[i]);
        OP(grouped_dx, dx->t[i], dy->t[i], w->t[i], off->t[i]);
        OP(grouped_dw, dw->t[i], dy->t[i], x->t[i], off->t[i]);
    }
    pair_check(b, y, tolerance(t));
    pair_check(b, dx, tolerance(t));
    pair_check(b, dw, 1e-5);
    end(b, "grouped", t, "E %d rows %lld N %lld K %lld", E, (long long)R, (long long)N, (long long)K);
}

static void swiglu(struct bench *b, enum dtype t, int64_t R, int64_t F)
{
    if (!wanted("swiglu")) return;
    struct pair *gu = pair_random(b, "gu", t, R, 2 * F, 0, 0, 9, 0), *dy = pair_in(b, "dy", t, R, F, 0);
    struct pair *y = pair_out(b, "y", t, R, F, 0, 0), *dgu = pair_out(b, "dgu", t, R, 2 * F, 0, 0);
    EACH(b, i)
    {
        OP(swiglu_forward, y->t[i], gu->t[i], 1.702f, 7.0f);
        OP(swiglu_backward, dgu->t[i], dy->t[i], gu->t[i], 1.702f, 7.0f);
        OP(swiglu_backward, gu->t[i], dy->t[i], gu->t[i], 1.702f, 7.0f);
    }
    pair_check(b, y, tolerance(t));
    pair_check(b, dgu, tolerance(t));
    pair_check(b, gu, tolerance(t));
    end(b, "swiglu", t, "[%lld, %lld]", (long long)R, (long long)F);
}

static void route(struct bench *b, enum dtype t, int64_t T, int E, int k, int64_t C, int64_t valid)
{
    if (!wanted("route")) return;
    int64_t R = T * k;
    struct pair *logits = pair_random(b, "logits", DT_F32, T, E, 0, 0, 4, 64); /* a grid: ties are ties on both sides */
    struct pair *bias = pair_random(b, "bias", DT_F32, E, 0, 0, 0, 0.25, 16);
    struct pair *experts = pair_out(b, "experts", DT_I32, T, k, 0, 0), *weights = pair_out(b, "weights", DT_F32, T, k, 0, 0);
    struct pair *again = pair_out(b, "weights of a replay", DT_F32, T, k, 0, 0);
    struct pair *dw = pair_in(b, "dweights", DT_F32, T, k, 0), *dl = pair_out(b, "dlogits", DT_F32, T, E, 0, 0);
    struct pair *off = pair_out(b, "offsets", DT_I32, E + 1, 0, 0, 0), *token = pair_out(b, "row_token", DT_I32, R, 0, 0, 0);
    struct pair *row = pair_out(b, "row_of", DT_I32, T, k, 0, 0), *x = pair_in(b, "x", t, T, C, 0);
    struct pair *rows = pair_out(b, "rows", t, R, C, 0, 0), *y = pair_out(b, "y", t, T, C, 0, 0);
    struct pair *base = pair_in(b, "y over base", t, T, C, 0), *dy = pair_in(b, "dy", t, T, C, 0);
    struct pair *drows = pair_in(b, "drows", t, R, C, 0), *dwe = pair_out(b, "dweights of combine", DT_F32, T, k, 0, 0);
    EACH(b, i)
    {
        OP(route_forward, experts->t[i], weights->t[i], logits->t[i], bias->t[i], valid, false);
        OP(route_forward, experts->t[i], again->t[i], logits->t[i], bias->t[i], valid, true);
        OP(route_backward, dl->t[i], dw->t[i], experts->t[i], logits->t[i]);
        OP(dispatch, off->t[i], token->t[i], row->t[i], experts->t[i]);
        OP(gather_rows, rows->t[i], x->t[i], token->t[i]);
        OP(combine_forward, y->t[i], rows->t[i], row->t[i], weights->t[i], 2.0f, TENSOR_NONE);
        OP(combine_forward, base->t[i], rows->t[i], row->t[i], TENSOR_NONE, 1.0f, base->t[i]);
        OP(combine_backward, drows->t[i], dwe->t[i], dy->t[i], rows->t[i], row->t[i], weights->t[i], 2.0f);
    }
    struct pair *equal[] = {experts, off, token, row, rows}, *close[] = {weights, again, dl, dwe}, *moved[] = {y, base, drows};
    for (int i = 0; i < 5; i++) pair_check(b, equal[i], 0);
    for (int i = 0; i < 4; i++) pair_check(b, close[i], 1e-5);
    for (int i = 0; i < 3; i++) pair_check(b, moved[i], tolerance(t));
    end(b, "route", t, "T %lld E %d k %d C %lld valid %lld", (long long)T, E, k, (long long)C, (long long)valid);
}

static void vocab(struct bench *b, enum dtype t, int64_t T, int64_t V, int64_t C)
{
    if (!wanted("vocab")) return;
    int64_t first = 1000;
    struct pair *ids = pair_new(b, "ids", DT_I32, T, 0, 0, 0);
    for (int64_t i = 0; i < T; i++) pair_set(ids->t[0], i, i % 7 == 6 ? -1 : first - 20 + pair_below(b, (int)V / 4 + 40));
    pair_upload(b, ids);
    struct pair *w = pair_in(b, "w", t, V, C, 0), *e = pair_out(b, "embedding", t, T, C, 0, 0);
    struct pair *dy = pair_in(b, "dy", t, T, C, 0), *dw = pair_in(b, "embedding dw", DT_F32, V, C, 0);
    struct pair *x = pair_random(b, "logits", t, T, V, 0, 0, 6, 0), *st = pair_out(b, "stats", DT_F32, T, 4, 0, 0);
    struct pair *two = pair_random(b, "stats of two", DT_F32, 2, T, 4, 0, 1, 0);
    for (int64_t i = 0; i < 2 * T; i++) pair_set(two->t[0], 4 * i + 1, 5 + pair_uniform(b));
    pair_upload(b, two);
    struct pair *logp = pair_out(b, "logp", DT_F32, T, 0, 0, 0), *ent = pair_out(b, "entropy", DT_F32, T, 0, 0, 0);
    struct pair *lse = pair_out(b, "lse", DT_F32, T, 0, 0, 0), *dl = pair_in(b, "dlogp", DT_F32, T, 0, 0);
    struct pair *de = pair_in(b, "dentropy", DT_F32, T, 0, 0), *dx = pair_out(b, "dlogits", t, T, V, 0, 0);
    EACH(b, i)
    {
        OP(embed_forward, e->t[i], ids->t[i], w->t[i], first);
        OP(embed_backward, dw->t[i], dy->t[i], ids->t[i], first);
        OP(vocab_stats, st->t[i], x->t[i], ids->t[i], first, 1.25f);
        OP(vocab_join, logp->t[i], ent->t[i], lse->t[i], two->t[i], ids->t[i]);
    }
    pair_check(b, lse, 1e-5);
    pair_check(b, ent, 1e-5);
    EACH(b, i)
    {
        struct tensor one = tensor_view(st->t[i].data, DT_F32, st->t[i].place, 3, 1, T, 4, 1);
        OP(vocab_join, logp->t[i], ent->t[i], lse->t[i], one, ids->t[i]);
        OP(vocab_backward, dx->t[i], x->t[i], ids->t[i], first, 1.25f, lse->t[i], ent->t[i], dl->t[i], de->t[i]);
        OP(vocab_backward, x->t[i], x->t[i], ids->t[i], first, 1.25f, lse->t[i], ent->t[i], dl->t[i], TENSOR_NONE);
    }
    pair_check(b, e, 0);
    pair_check(b, dw, 1e-5);
    pair_check(b, st, 1e-5);
    pair_check(b, logp, 1e-5);
    pair_check(b, ent, 1e-4);
    pair_check(b, dx, t == DT_F32 ? 2e-5 : 8e-3);
    pair_check(b, x, t == DT_F32 ? 2e-5 : 8e-3);
    end(b, "vocab", t, "T %lld V %lld C %lld", (long long)T, (long long)V, (long long)C);
}

static void sample(struct bench *b, enum dtype t, int64_t N, int64_t V, float temperature, int top_k, float top_p)
{
    if (!wanted("sample")) return;
    struct pair *x = pair_random(b, "logits", t, N, V, 0, 0, 5, V % 2 ? 8 : 0), *u = pair_new(b, "u", DT_F64, N, 0, 0, 0);
    for (int64_t i = 0; i < N; i++) pair_set(u->t[0], i, (pair_uniform(b) + 1) / 2);
    pair_upload(b, u);
    struct pair *ids = pair_out(b, "ids", DT_I32, N, 0, 0, 0), *logp = pair_out(b, "logp", DT_F32, N, 0, 0, 0);
    EACH(b, i)
    {
        struct tensor work = pair_work(b, i, b->ops[i]->sample_work(N, V));
        OP(sample, ids->t[i], logp->t[i], x->t[i], u->t[i], temperature, top_k, top_p, work);
    }
    pair_check(b, ids, 0);
    pair_check(b, logp, 1e-5);
    end(b, "sample", t, "N %lld V %lld temperature %g top_k %d top_p %g", (long long)N, (long long)V, (double)temperature,
        top_k, (double)top_p);
}

static void elementwise(struct bench *b, enum dtype t)
{
    flat(b, t, 5, 24, 32);
    flat(b, t, 3, 7, 9);
    flat(b, t, 1, 1, 0);
    adamw(b, t, 1003);
    norm(b, t, 3, 64);
    norm(b, t, 2, 37);
    qkv(b, t, 5, 4, 2, 16, 16, 8);
    qkv(b, t, 3, 4, 1, 128, 0, 64);
    linear(b, t, false, 7, 24, 40, 0);
    linear(b, t, true, 9, 8, 72, 0);
    grouped(b, t, 5, 9, 64, 48, 3);
    swiglu(b, t, 3, 40);
    route(b, t, 9, 6, 2, 64, 7);
    vocab(b, t, 7, 200, 64);
    sample(b, t, 3, 301, 0.8f, 20, 0.9f);
    if (short_run) return;
    flat(b, t, 300, 6144, 0);
    adamw(b, t, 1 << 20);
    norm(b, t, 517, 6144);
    norm(b, t, 300, 96);
    norm(b, t, 40, 16384);
    norm(b, t, 33, 20000);
    norm(b, t, 21, 1001);
    qkv(b, t, 300, 64, 4, 128, 128, 64);
    qkv(b, t, 77, 8, 2, 256, 64, 32);
    qkv(b, t, 40, 6, 3, 20, 36, 10);
    linear(b, t, false, 300, 520, 1000, 24);
    linear(b, t, false, 1, 128, 64, 0);
    linear(b, t, true, 700, 128, 2048, 0);
    linear(b, t, true, 131, 16, 64, 8);
    grouped(b, t, 3, 300, 768, 512, 0);
    grouped(b, t, 16, 200, 640, 328, 65);
    grouped(b, t, 8, 40, 33, 21, 5);
    grouped(b, t, 2, 1, 1024, 256, 1);
    swiglu(b, t, 300, 3072);
    swiglu(b, t, 31, 33);
    route(b, t, 700, 128, 4, 512, 690);
    route(b, t, 3000, 32, 8, 40, 3000);
    route(b, t, 5, 3, 3, 7, 5);
    vocab(b, t, 200, 4096, 512);
    vocab(b, t, 33, 1001, 33);
    for (int i = 0; i < 4; i++) {
        int64_t V = i % 2 ? 20000 : 5001;
        sample(b, t, 20, V, 0, 0, 1);
        sample(b, t, 20, V, 1, 0, 1);
        sample(b, t, 20, V, 0.7f, 50, 1);
        sample(b, t, 20, V, 1.3f, 0, 0.8f);
        sample(b, t, 20, V, 0.9f, 300, 0.5f);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--short") == 0) short_run = true;
        else only = argv[i];
    struct bench b = {.seed = 1};
    const struct ops *device;
    if (ops_find(&device, "cuda")) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    for (int i = 0; i < SIDES; i++) {
        b.ops[i] = i ? device : &ops_cpu;
        if (i < 2 && b.ops[i]->open(&b.stream[i], 0)) {
            printf("%s (%s)\n0 passed, 1 failed\n", status_message(), status_where());
            return 1;
        }
    }
    b.stream[2] = b.stream[1];
    for (int i = 0; i < 2; i++) {
        elementwise(&b, i ? DT_BF16 : DT_F32);
        if (wanted("attend")) attend_cases(&b, i ? DT_BF16 : DT_F32, short_run);
        if (wanted("select")) select_cases(&b, i ? DT_BF16 : DT_F32, short_run);
        if (wanted("paged")) paged_cases(&b, i ? DT_BF16 : DT_F32, short_run);
    }
    device->close(b.stream[1]);
    ops_cpu.close(b.stream[0]);
    printf("%d passed, %d failed\n", b.passed, b.failed);
    return b.failed != 0;
}
