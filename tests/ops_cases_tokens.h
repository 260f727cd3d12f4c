/* Cases of ops_harness.h: activation, routing, vocabulary. */
#ifndef OPS_CASES_TOKENS_H
#define OPS_CASES_TOKENS_H
#include "ops_harness.h"
#include "ops_reference.h"

/* ---- swiglu ---- */
enum { ALPHA, LIMIT };
static void build_swiglu(struct op_test *t)
{
    int64_t R = PICK(t, 0, 1, 7, 40), F = PICK(t, 1, 8, 33, 64);
    operand(t, "y", OUT, t->dtype, R, F, 1);
    operand(t, "gu", IN, t->dtype, R, 2 * F, 1);
    for (int64_t i = 0; i < count(t, 1); i++) val(t, 1)[i] *= 4;
    settle(t);
    for (int64_t i = 0; i < count(t, 1); i++) /* not on the edge, where there is no derivative */
        if (fabs(val(t, 1)[i]) == 2.5) val(t, 1)[i] = 2;
    t->f[ALPHA] = 1.702f, t->f[LIMIT] = 2.5f; /* both sides of every clamp are met */
}
static enum status call_swiglu_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->swiglu_forward(x[0], x[1], t->f[ALPHA], t->f[LIMIT], t->stream);
}
static double swiglu_at(struct op_test *t, int64_t i)
{
    int64_t F = dim(t, 0, 1), row = i / F * 2 * F, c = i % F;
    return ref_swiglu(val(t, 1)[row + c], val(t, 1)[row + F + c], t->f[ALPHA], t->f[LIMIT]);
}
static void expect_swiglu_forward(struct op_test *t)
{
    for (int64_t i = 0; i < count(t, 0); i++) val(t, 0)[i] = swiglu_at(t, i);
}
static void build_swiglu_backward(struct op_test *t)
{
    build_swiglu(t);
    t->x[0].role = IN, t->x[0].name = "dy";
    operand(t, "dgu", OUT, t->dtype, dim(t, 1, 0), dim(t, 1, 1), 1);
    if (draw(t, 0, 1)) t->x[2].alias = 1;
}
static enum status call_swiglu_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->swiglu_backward(x[2], x[0], x[1], t->f[ALPHA], t->f[LIMIT], t->stream);
}
static double loss_swiglu(struct op_test *t)
{
    double loss = 0;
    for (int64_t i = 0; i < count(t, 0); i++) loss += val(t, 0)[i] * swiglu_at(t, i);
    return loss;
}
static void expect_swiglu_backward(struct op_test *t) { derive(t, 2, 1, loss_swiglu, 500); }

/* ---- routing ---- */
enum { R_EXPERTS, R_WEIGHTS, R_LOGITS, R_BIAS };
static void build_route(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 5, 60), E = PICK(t, 4, 8, 128), k = PICK(t, 1, 2, 4);
    operand(t, "experts", OUT, DT_I32, T, k, 1);
    operand(t, "weights", OUT, DT_F32, T, k, 1);
    operand(t, "logits", IN, DT_F32, T, E, 1);
    operand(t, "bias", IN, DT_F32, E, 1, 1);
    /* Eighths: many logits are equal, and equal scores go to the lower number. */
    for (int64_t i = 0; i < T * E; i++) val(t, R_LOGITS)[i] = floor(val(t, R_LOGITS)[i] * 24) / 8;
    for (int64_t i = 0; i < E; i++) val(t, R_BIAS)[i] = draw(t, 0, 1) ? 0.25 : 0;
    t->p[0] = T - (T ? draw(t, 0, 1) * draw(t, 0, T) : 0); /* valid rows */
    t->p[1] = draw(t, 0, 3) == 0;                          /* replay */
    if (!t->p[1]) return;
    t->x[R_EXPERTS].role = KEPT;
    for (int64_t i = 0; i < T * k; i++) val(t, R_EXPERTS)[i] = (double)((i % k + i / k) % E);
}
static enum status call_route_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->route_forward(x[0], x[1], x[2], x[3], t->p[0], t->p[1], t->stream);
}
static void weigh_row(const double *logit, const double *expert, double *weight, int64_t k)
{
    double sum = 0;
    for (int64_t j = 0; j < k; j++) sum += weight[j] = ref_sigmoid(logit[(int64_t)expert[j]]);
    for (int64_t j = 0; j < k; j++) weight[j] /= sum;
}
static void expect_route_forward(struct op_test *t)
{
    int64_t E = dim(t, R_LOGITS, 1), k = dim(t, R_EXPERTS, 1);
    for (int64_t r = 0; r < dim(t, R_LOGITS, 0); r++) {
        double *expert = val(t, R_EXPERTS) + r * k, *weight = val(t, R_WEIGHTS) + r * k, score[128];
        const double *logit = val(t, R_LOGITS) + r * E;
        for (int64_t e = 0; e < E; e++) score[e] = ref_sigmoid(logit[e]) + val(t, R_BIAS)[e];
        for (int64_t j = 0; j < k && r >= t->p[0]; j++) expert[j] = -1, weight[j] = 0;
        if (r >= t->p[0]) continue;
        for (int64_t j = 0; j < k && !t->p[1]; j++) {
            int64_t best = 0;
            for (int64_t e = 1; e < E; e++)
                if (score[e] > score[best]) best = e;
            expert[j] = (double)best;
            score[best] = -INFINITY;
        }
        weigh_row(logit, expert, weight, k);
    }
}
static void build_route_backward(struct op_test *t)
{
    build_route(t);
    int64_t T = dim(t, 2, 0), E = dim(t, 2, 1), k = dim(t, 0, 1);
    t->x[R_EXPERTS].role = t->x[R_WEIGHTS].role = IN, t->x[R_WEIGHTS].name = "dweights";
    operand(t, "dlogits", OUT, DT_F32, T, E, 1);
    for (int64_t i = 0; i < T * k; i++) val(t, R_EXPERTS)[i] = i / k < t->p[0] ? (double)((i % k + i / k) % E) : -1;
}
static enum status call_route_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->route_backward(x[4], x[1], x[0], x[2], t->stream);
}
static double loss_route(struct op_test *t)
{
    int64_t E = dim(t, 2, 1), k = dim(t, 0, 1);
    double loss = 0, weight[8];
    for (int64_t r = 0; r < t->p[0]; r++) {
        weigh_row(val(t, 2) + r * E, val(t, 0) + r * k, weight, k);
        for (int64_t j = 0; j < k; j++) loss += weight[j] * val(t, 1)[r * k + j];
    }
    return loss;
}
static void expect_route_backward(struct op_test *t) { derive(t, 4, R_LOGITS, loss_route, 1000); }

enum { D_OFFSETS, D_TOKEN, D_ROW, D_EXPERTS };
static void fill_experts(struct op_test *t, int i, int64_t E) /* expert 1 gets none, some choices are -1 */
{
    for (int64_t j = 0; j < count(t, i); j++) {
        int64_t e = draw(t, -1, E - 1);
        val(t, i)[j] = (double)(e == 1 ? 0 : e);
    }
}
static void build_dispatch(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 9, 400), E = PICK(t, 1, 4, 8, 128), k = PICK(t, 1, 2, 4);
    operand(t, "offsets", OUT, DT_I32, E + 1, 1, 1);
    operand(t, "row_token", OUT, DT_I32, T * k, 1, 1);
    operand(t, "row_of", OUT, DT_I32, T, k, 1);
    operand(t, "experts", IN, DT_I32, T, k, 1);
    fill_experts(t, D_EXPERTS, E);
}
static enum status call_dispatch(struct op_test *t, const struct tensor *x)
{
    return t->ops->dispatch(x[0], x[1], x[2], x[3], t->stream);
}
static void expect_dispatch(struct op_test *t)
{
    int64_t n = count(t, D_EXPERTS), E = dim(t, D_OFFSETS, 0) - 1, k = dim(t, D_EXPERTS, 1), row = 0;
    for (int64_t i = 0; i < n; i++) val(t, D_ROW)[i] = val(t, D_TOKEN)[i] = -1;
    for (int64_t e = 0; e < E; e++) {
        val(t, D_OFFSETS)[e] = (double)row;
        for (int64_t i = 0; i < n; i++)
            if ((int64_t)val(t, D_EXPERTS)[i] == e) {
                val(t, D_TOKEN)[row] = (double)(i / k);
                val(t, D_ROW)[i] = (double)row++;
            }
    }
    val(t, D_OFFSETS)[E] = (double)row;
}

static void build_gather(struct op_test *t)
{
    int64_t R = PICK(t, 0, 1, 50), T = PICK(t, 1, 20), C = PICK(t, 1, 33, 256);
    operand(t, "y", OUT, t->dtype, R, C, 1);
    operand(t, "x", IN, t->dtype, T, C, 1);
    operand(t, "index", IN, DT_I32, R, 1, 1);
    for (int64_t r = 0; r < R; r++) val(t, 2)[r] = (double)draw(t, -1, T - 1);
    t->x[0].tol = 1e-30;
}
static enum status call_gather(struct op_test *t, const struct tensor *x)
{
    return t->ops->gather_rows(x[0], x[1], x[2], t->stream);
}
static void expect_gather(struct op_test *t)
{
    int64_t C = dim(t, 0, 1);
    for (int64_t i = 0; i < count(t, 0); i++) {
        int64_t row = (int64_t)val(t, 2)[i / C];
        val(t, 0)[i] = row < 0 ? 0 : val(t, 1)[row * C + i % C];
    }
}

enum { C_Y, C_ROWS, C_ROW_OF, C_WEIGHTS, C_BASE, C_DROWS, C_DWEIGHTS };
static void build_combine(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 12, 40), k = PICK(t, 1, 2, 4), C = PICK(t, 1, 33, 64), R = T * k + 2;
    operand(t, "y", OUT, t->dtype, T, C, 1);
    operand(t, "rows", IN, t->dtype, R, C, 1);
    operand(t, "row_of", IN, DT_I32, T, k, 1);
    operand(t, "weights", IN, DT_F32, T, k, 1);
    operand(t, "base", IN, t->dtype, T, C, 1);
    for (int64_t i = 0; i < T * k; i++) /* every row once, some choices nowhere */
        val(t, C_ROW_OF)[i] = draw(t, 0, 5) ? (double)((i + 3) % R) : -1;
    t->p[0] = draw(t, 0, 2) > 0, t->p[1] = draw(t, 0, 1); /* weights, base */
    if (t->p[1] && draw(t, 0, 1)) t->x[C_Y].alias = C_BASE;
    t->f[0] = 2.0f;
}
static enum status call_combine_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->combine_forward(x[0], x[1], x[2], t->p[0] ? x[3] : TENSOR_NONE, t->f[0],
                                   t->p[1] ? x[4] : TENSOR_NONE, t->stream);
}
static void combine(struct op_test *t, double *y)
{
    int64_t C = dim(t, C_Y, 1), k = dim(t, C_ROW_OF, 1);
    for (int64_t i = 0; i < count(t, C_Y); i++) {
        int64_t row = i / C;
        y[i] = t->p[1] ? val(t, C_BASE)[i] : 0;
        for (int64_t j = row * k; j < (row + 1) * k; j++)
            if (val(t, C_ROW_OF)[j] >= 0)
                y[i] += t->f[0] * (t->p[0] ? val(t, C_WEIGHTS)[j] : 1) *
                        val(t, C_ROWS)[(int64_t)val(t, C_ROW_OF)[j] * C + i % C];
    }
}
static void expect_combine_forward(struct op_test *t) { combine(t, val(t, C_Y)); }
static void build_combine_backward(struct op_test *t)
{
    build_combine(t);
    t->x[C_Y].role = IN, t->x[C_Y].name = "dy", t->x[C_Y].alias = -1;
    t->p[1] = 0;
    operand(t, "drows", KEPT, t->dtype, dim(t, C_ROWS, 0), dim(t, C_ROWS, 1), 1);
    operand(t, "dweights", OUT, DT_F32, dim(t, C_ROW_OF, 0), dim(t, C_ROW_OF, 1), 1);
    t->p[0] = 1;
}
static enum status call_combine_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->combine_backward(x[5], x[6], x[0], x[1], x[2], x[3], t->f[0], t->stream);
}
static double loss_combine(struct op_test *t)
{
    double loss = 0, y[40 * 64];
    combine(t, y);
    for (int64_t i = 0; i < count(t, C_Y); i++) loss += y[i] * val(t, C_Y)[i];
    return loss;
}
static void expect_combine_backward(struct op_test *t)
{
    int64_t C = dim(t, C_ROWS, 1), n = count(t, C_DROWS);
    double *before = checked(malloc((size_t)(n + 1) * sizeof *before));
    bool *written = checked(calloc((size_t)dim(t, C_ROWS, 0), sizeof *written));
    memcpy(before, val(t, C_DROWS), (size_t)n * sizeof *before);
    for (int64_t i = 0; i < count(t, C_ROW_OF); i++)
        if (val(t, C_ROW_OF)[i] >= 0) written[(int64_t)val(t, C_ROW_OF)[i]] = true;
    for (int64_t i = 0; i < n; i++) val(t, C_DROWS)[i] = 0;
    derive(t, C_DROWS, C_ROWS, loss_combine, 500);
    derive(t, C_DWEIGHTS, C_WEIGHTS, loss_combine, 200);
    for (int64_t i = 0; i < n; i++)
        if (!written[i / C]) val(t, C_DROWS)[i] = before[i];
    free(before);
    free(written);
}

/* ---- embedding ---- */
static void build_embed(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 9, 120), V = PICK(t, 1, 10, 50), C = PICK(t, 1, 33, 256);
    operand(t, "y", OUT, t->dtype, T, C, 1);
    operand(t, "ids", IN, DT_I32, T, 1, 1);
    operand(t, "w", IN, t->dtype, V, C, 1);
    t->p[0] = PICK(t, 0, 20);
    for (int64_t i = 0; i < T; i++) val(t, 1)[i] = (double)draw(t, 0, V + 30); /* some live on other ranks */
}
static enum status call_embed_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->embed_forward(x[0], x[1], x[2], t->p[0], t->stream);
}
static void expect_embed_forward(struct op_test *t)
{
    int64_t C = dim(t, 0, 1);
    for (int64_t i = 0; i < count(t, 0); i++) {
        int64_t id = (int64_t)val(t, 1)[i / C] - t->p[0];
        val(t, 0)[i] = id < 0 || id >= dim(t, 2, 0) ? 0 : val(t, 2)[id * C + i % C];
    }
    t->x[0].tol = 1e-30;
}
static void build_embed_backward(struct op_test *t)
{
    build_embed(t);
    t->x[0].role = IN, t->x[0].name = "dy";
    t->x[2].role = ACC, t->x[2].host.dtype = DT_F32, t->x[2].tol = 1e-6;
}
static enum status call_embed_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->embed_backward(x[2], x[0], x[1], t->p[0], t->stream);
}
static void expect_embed_backward(struct op_test *t)
{
    int64_t C = dim(t, 0, 1);
    for (int64_t i = 0; i < count(t, 0); i++) {
        int64_t id = (int64_t)val(t, 1)[i / C] - t->p[0];
        if (id >= 0 && id < dim(t, 2, 0)) val(t, 2)[id * C + i % C] += val(t, 0)[i];
    }
}

/* ---- log-probabilities ---- */
enum { V_LOGITS, V_TARGETS, V_STATS };
static void build_vocab(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 6, 25), V = PICK(t, 1, 20, 65, 2500);
    operand(t, "logits", IN, t->dtype, T, V, 1);
    operand(t, "targets", IN, DT_I32, T, 1, 1);
    for (int64_t i = 0; i < T * V; i++) val(t, 0)[i] *= 8;
    t->p[0] = PICK(t, 0, 30); /* the first column's id */
    for (int64_t i = 0; i < T; i++) val(t, 1)[i] = (double)draw(t, -1, V + 40);
    t->f[0] = draw(t, 0, 1) ? 1.0f : 1.25f;
}
static void build_vocab_stats(struct op_test *t)
{
    build_vocab(t);
    operand(t, "stats", OUT, DT_F32, dim(t, 0, 0), 4, 1);
    if (dim(t, 0, 1) > 1 && count(t, 0)) val(t, 0)[1] = -INFINITY; /* a token that cannot be */
}
static enum status call_vocab_stats(struct op_test *t, const struct tensor *x)
{
    return t->ops->vocab_stats(x[2], x[0], x[1], t->p[0], t->f[0], t->stream);
}
static void expect_vocab_stats(struct op_test *t)
{
    int64_t V = dim(t, 0, 1);
    for (int64_t r = 0; r < dim(t, 0, 0); r++) {
        const double *x = val(t, 0) + r * V;
        double *s = val(t, 2) + r * 4, temp = t->f[0];
        int64_t target = (int64_t)val(t, 1)[r] - t->p[0];
        s[0] = -INFINITY, s[1] = s[3] = 0;
        for (int64_t i = 0; i < V; i++) s[0] = fmax(s[0], x[i] * temp);
        s[2] = val(t, 1)[r] >= 0 && target >= 0 && target < V ? x[target] * temp : 0;
        for (int64_t i = 0; i < V; i++) {
            double e = exp(x[i] * temp - s[0]);
            s[1] += e;
            s[3] += e > 0 ? e * x[i] * temp : 0;
        }
    }
}

static void build_vocab_join(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 30), ranks = PICK(t, 1, 2, 4);
    operand(t, "logp", OUT, DT_F32, T, 1, 1);
    operand(t, "entropy", OUT, DT_F32, T, 1, 1);
    operand(t, "lse", OUT, DT_F32, T, 1, 1);
    operand(t, "stats", IN, DT_F32, ranks, T, 4);
    operand(t, "targets", IN, DT_I32, T, 1, 1);
    for (int64_t i = 0; i < ranks * T; i++) {
        double *s = val(t, 3) + i * 4;
        s[0] *= 9;
        s[1] = 1 + fabs(s[1]) * 50;
        s[2] = i / T == 1 % ranks ? s[0] - 2 : 0; /* one rank has the target */
        s[3] = s[1] * (s[0] - 1.5);
    }
    for (int64_t i = 0; i < T; i++) val(t, 4)[i] = (double)draw(t, 0, 3) - 1;
}
static enum status call_vocab_join(struct op_test *t, const struct tensor *x)
{
    return t->ops->vocab_join(x[0], x[1], x[2], x[3], x[4], t->stream);
}
static void expect_vocab_join(struct op_test *t)
{
    int64_t T = dim(t, 0, 0), ranks = dim(t, 3, 0);
    for (int64_t i = 0; i < T; i++) {
        double sum = 0, mean = 0, own = 0;
        for (int64_t r = 0; r < ranks; r++) {
            const double *s = val(t, 3) + (r * T + i) * 4;
            sum += s[1] * exp(s[0]), mean += s[3] * exp(s[0]), own += s[2];
        }
        val(t, 2)[i] = log(sum);
        val(t, 1)[i] = log(sum) - mean / sum;
        val(t, 0)[i] = val(t, 4)[i] < 0 ? 0 : own - log(sum);
    }
}

enum { VB_DLOGITS = 2, VB_LSE, VB_ENTROPY, VB_DLOGP, VB_DENTROPY };
/* lse, and with h the entropy, of one row. */
static double row_lse(struct op_test *t, int64_t r, double *h)
{
    int64_t V = dim(t, 0, 1);
    const double *x = val(t, 0) + r * V;
    double sum = 0, mean = 0, temp = t->f[0];
    for (int64_t i = 0; i < V; i++) sum += exp(x[i] * temp), mean += exp(x[i] * temp) * x[i] * temp;
    *h = log(sum) - mean / sum;
    return log(sum);
}
static double loss_vocab(struct op_test *t)
{
    int64_t V = dim(t, 0, 1);
    double loss = 0;
    for (int64_t r = 0; r < dim(t, 0, 0); r++) {
        int64_t target = (int64_t)val(t, 1)[r] - t->p[0];
        double h, lse = row_lse(t, r, &h);
        bool here = target >= 0 && target < V;
        if (val(t, 1)[r] >= 0)
            loss += val(t, VB_DLOGP)[r] * ((here ? val(t, 0)[r * V + target] * t->f[0] : 0) - lse);
        if (t->p[1]) loss += val(t, VB_DENTROPY)[r] * h;
    }
    return loss;
}
static void build_vocab_backward(struct op_test *t)
{
    build_vocab(t);
    int64_t T = dim(t, 0, 0);
    operand(t, "dlogits", OUT, t->dtype, T, dim(t, 0, 1), 1);
    operand(t, "lse", IN, DT_F32, T, 1, 1);
    operand(t, "entropy", IN, DT_F32, T, 1, 1);
    operand(t, "dlogp", IN, DT_F32, T, 1, 1);
    operand(t, "dentropy", IN, DT_F32, T, 1, 1);
    t->p[1] = draw(t, 0, 1);
    if (draw(t, 0, 1)) t->x[VB_DLOGITS].alias = V_LOGITS;
    settle(t);
    for (int64_t r = 0; r < T; r++) {
        val(t, VB_LSE)[r] = row_lse(t, r, &val(t, VB_ENTROPY)[r]);
        if (draw(t, 0, 3) == 0) val(t, VB_DLOGP)[r] = 0; /* a token without loss */
    }
}
static enum status call_vocab_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->vocab_backward(x[2], x[0], x[1], t->p[0], t->f[0], x[3], x[4], x[5], t->p[1] ? x[6] : TENSOR_NONE,
                                  t->stream);
}
static void expect_vocab_backward(struct op_test *t) { derive(t, VB_DLOGITS, V_LOGITS, loss_vocab, 100); }

static void build_sample(struct op_test *t)
{
    int64_t N = PICK(t, 0, 1, 20), V = PICK(t, 1, 12, 300);
    operand(t, "ids", OUT, DT_I32, N, 1, 1);
    operand(t, "logp", OUT, DT_F32, N, 1, 1);
    operand(t, "logits", IN, t->dtype, N, V, 1);
    operand(t, "u", IN, DT_F64, N, 1, 1);
    /* Whole numbers: equal ones are frequent, and the largest is the same in both dtypes. */
    for (int64_t i = 0; i < N * V; i++) val(t, 2)[i] = floor(val(t, 2)[i] * 5);
    for (int64_t i = 0; i < N; i++) val(t, 3)[i] = fabs(val(t, 3)[i]);
    t->p[0] = draw(t, 0, 1) ? 1 : 0; /* top_k 1 at a temperature, or greedy: both take the first of the largest */
}
static enum status call_sample(struct op_test *t, const struct tensor *x)
{
    struct tensor work = work_of(t, t->ops->sample_work(dim(t, 2, 0), dim(t, 2, 1)));
    return t->ops->sample(x[0], x[1], x[2], x[3], t->p[0] ? 0.5f : 0.0f, (int)t->p[0], 1.0f, work, t->stream);
}
static void expect_sample(struct op_test *t)
{
    int64_t V = dim(t, 2, 1);
    for (int64_t r = 0; r < dim(t, 2, 0); r++) {
        const double *x = val(t, 2) + r * V;
        double sum = 0, temp = t->p[0] ? 0.5 : 1;
        int64_t best = 0;
        for (int64_t i = 0; i < V; i++) sum += exp(x[i] / temp), best = x[i] > x[best] ? i : best;
        val(t, 0)[r] = (double)best;
        val(t, 1)[r] = x[best] / temp - log(sum);
    }
}
#endif
