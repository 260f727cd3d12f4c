/* Cases of ops_harness.h: elementwise ops, products, norms. */
#ifndef OPS_CASES_PRODUCTS_H
#define OPS_CASES_PRODUCTS_H
#include "ops_harness.h"
#include "ops_reference.h"

static const struct tensor nothing;

/* ---- elementwise ---- */
static void build_cast(struct op_test *t)
{
    int64_t T = draw(t, 0, 70), C = PICK(t, 1, 7, 64, 2500);
    enum dtype other = t->dtype == DT_F32 ? DT_BF16 : DT_F32;
    t->gap = PICK(t, 0, 3);
    operand(t, "dst", OUT, other, T, C, 1);
    t->gap = PICK(t, 0, 5);
    operand(t, "src", IN, t->dtype, T, C, 1);
}
static enum status call_cast(struct op_test *t, const struct tensor *x) { return t->ops->cast(x[0], x[1], t->stream); }
static void expect_cast(struct op_test *t)
{
    for (int64_t i = 0; i < count(t, 0); i++)
        val(t, 0)[i] = t->dtype == DT_F32 ? float_from_bf16(bf16_from_float((float)val(t, 1)[i])) : val(t, 1)[i];
    t->x[0].tol = 1e-30;
}

static void build_copy(struct op_test *t)
{
    int64_t T = draw(t, 0, 20), C = PICK(t, 1, 7, 64);
    t->gap = PICK(t, 0, 3);
    operand(t, "dst", OUT, t->dtype, T, C, 2);
    t->gap = PICK(t, 0, 5);
    operand(t, "src", IN, t->dtype, T, C, 2);
    t->gap = PICK(t, 0, 1);
    operand(t, "zeroed", OUT, t->dtype, T, C, 1);
}
static enum status call_copy(struct op_test *t, const struct tensor *x)
{
    TRY(t->ops->zero(x[2], t->stream));
    return t->ops->copy(x[0], x[1], t->stream);
}
static void expect_copy(struct op_test *t)
{
    memcpy(val(t, 0), val(t, 1), (size_t)count(t, 0) * sizeof(double));
    memset(val(t, 2), 0, (size_t)count(t, 2) * sizeof(double));
    t->x[0].tol = 1e-30;
}

static void build_add(struct op_test *t)
{
    int64_t T = draw(t, 0, 70), C = PICK(t, 1, 7, 64, 2500);
    operand(t, "y", OUT, t->dtype, T, C, 1);
    operand(t, "a", IN, t->dtype, T, C, 1);
    operand(t, "b", IN, t->dtype, T, C, 1);
    if (draw(t, 0, 1)) t->x[0].alias = 1;
}
static enum status call_add(struct op_test *t, const struct tensor *x)
{
    return t->ops->add(x[0], x[1], x[2], t->stream);
}
static void expect_add(struct op_test *t)
{
    for (int64_t i = 0; i < count(t, 0); i++) val(t, 0)[i] = val(t, 1)[i] + val(t, 2)[i];
}

static void build_square_sum(struct op_test *t)
{
    operand(t, "sum", ACC, DT_F64, 1, 1, 1);
    operand(t, "x", IN, t->dtype, PICK(t, 0, 1, 33, 2049, 100000), PICK(t, 1, 3), 1);
    t->x[0].tol = 1e-9; /* float64 sums of exact squares */
}
static enum status call_square_sum(struct op_test *t, const struct tensor *x)
{
    return t->ops->square_sum(x[0], x[1], t->stream);
}
static void expect_square_sum(struct op_test *t)
{
    for (int64_t i = 0; i < count(t, 1); i++) val(t, 0)[0] += val(t, 1)[i] * val(t, 1)[i];
}

static void build_adamw(struct op_test *t)
{
    int64_t n = PICK(t, 0, 1, 100, 2049, 30000);
    enum dtype state = draw(t, 0, 1) ? DT_F32 : t->dtype, grad = draw(t, 0, 1) ? DT_F32 : t->dtype;
    operand(t, "master", KEPT, DT_F32, n, 1, 1);
    operand(t, "exp_avg", KEPT, state, n, 1, 1);
    operand(t, "exp_avg_sq", KEPT, state, n, 1, 1);
    operand(t, "grad", IN, grad, n, 1, 1);
    operand(t, "weight", OUT, t->dtype, n, 1, 1);
    for (int64_t i = 0; i < n; i++) val(t, 2)[i] = fabs(val(t, 2)[i]);
    t->p[0] = draw(t, 1, 50);
}
static struct adamw_args adamw_of(const struct op_test *t, const struct tensor *x)
{
    return (struct adamw_args){.master = x[0], .exp_avg = x[1], .exp_avg_sq = x[2], .grad = x[3], .weight = x[4],
        .lr = 0.02f, .beta1 = 0.875f, .beta2 = 0.9375f, .eps = 1e-4f, .decay = 0.125f,
        .bias1 = (float)(1 - pow(0.875, (double)t->p[0])), .bias2 = (float)(1 - pow(0.9375, (double)t->p[0])),
        .grad_scale = 0.5f};
}
static enum status call_adamw(struct op_test *t, const struct tensor *x)
{
    struct adamw_args a = adamw_of(t, x);
    return t->ops->adamw(&a, t->stream);
}
static void expect_adamw(struct op_test *t)
{
    struct adamw_args a = adamw_of(t, t->dev);
    for (int64_t i = 0; i < count(t, 0); i++) {
        double g = val(t, 3)[i] * (double)a.grad_scale, *m = &val(t, 1)[i], *v = &val(t, 2)[i], *w = &val(t, 0)[i];
        *m = a.beta1 * *m + (1 - (double)a.beta1) * g;
        *v = a.beta2 * *v + (1 - (double)a.beta2) * g * g;
        *w -= a.lr * (*m / a.bias1 / (sqrt(*v / a.bias2) + a.eps) + a.decay * *w);
        val(t, 4)[i] = *w;
    }
    t->x[0].tol = 2e-6;
}

/* ---- products ---- */
static void build_linear(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 2, 5, 16, 33, 130, 300), N = PICK(t, 1, 8, 50, 129, 300), K = PICK(t, 1, 8, 31, 64, 520);
    t->gap = PICK(t, 0, 0, 9);
    operand(t, "y", IN, t->dtype, T, N, 1);
    t->gap = PICK(t, 0, 0, 7);
    operand(t, "x", IN, t->dtype, T, K, 1);
    operand(t, "w", IN, t->dtype, N, K, 1);
    t->p[0] = T, t->p[1] = N, t->p[2] = K;
    if (t->dtype == DT_BF16 && draw(t, 0, 2) == 0) t->x[0].host.dtype = t->x[2].host.dtype = DT_F32; /* the router's */
}
static void build_linear_forward(struct op_test *t)
{
    build_linear(t);
    t->x[0].role = OUT;
}
static enum status call_linear_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->linear_forward(x[0], x[1], x[2], t->stream);
}
static void expect_linear_forward(struct op_test *t)
{
    ref_linear(val(t, 0), val(t, 1), val(t, 2), t->p[0], t->p[1], t->p[2]);
}
static void build_linear_dx(struct op_test *t)
{
    build_linear(t);
    t->p[3] = draw(t, 0, 1);
    t->x[1].role = t->p[3] ? ACC : OUT;
}
static enum status call_linear_dx(struct op_test *t, const struct tensor *x)
{
    return t->ops->linear_dx(x[1], x[0], x[2], t->p[3], t->stream);
}
static void expect_linear_dx(struct op_test *t)
{
    if (!t->p[3]) memset(val(t, 1), 0, (size_t)count(t, 1) * sizeof(double));
    ref_linear_dx(val(t, 1), val(t, 0), val(t, 2), t->p[0], t->p[1], t->p[2]);
}
static void build_linear_dw(struct op_test *t)
{
    build_linear(t);
    t->x[2].role = ACC;
    t->x[2].host.dtype = DT_F32;
}
static enum status call_linear_dw(struct op_test *t, const struct tensor *x)
{
    return t->ops->linear_dw(x[2], x[0], x[1], t->stream);
}
static void expect_linear_dw(struct op_test *t)
{
    ref_linear_dw(val(t, 2), val(t, 0), val(t, 1), t->p[0], t->p[1], t->p[2]);
}

/* Rows of E experts, some without any, some rows beyond the last expert's. */
static void build_grouped(struct op_test *t)
{
    int64_t E = PICK(t, 1, 2, 5, 9), most = PICK(t, 0, 1, 9, 90), R = 0, ends[16] = {0};
    for (int64_t e = 0; e < E; e++) R += draw(t, 0, 2) ? draw(t, 0, most) : 0, ends[e + 1] = R;
    int64_t all = R + PICK(t, 0, 3), N = PICK(t, 1, 24, 70, 300), K = PICK(t, 5, 32, 130);
    operand(t, "y", IN, t->dtype, all, N, 1);
    operand(t, "x", IN, t->dtype, all, K, 1);
    operand(t, "w", IN, t->dtype, E, N, K);
    operand(t, "offsets", IN, DT_I32, E + 1, 1, 1);
    for (int64_t e = 0; e <= E; e++) val(t, 3)[e] = (double)ends[e];
    t->p[0] = E, t->p[1] = N, t->p[2] = K;
}
static void build_grouped_forward(struct op_test *t)
{
    build_grouped(t);
    t->x[0].role = KEPT; /* the rows beyond are not written */
}
static enum status call_grouped_forward(struct op_test *t, const struct tensor *x)
{
    return t->ops->grouped_forward(x[0], x[1], x[2], x[3], t->stream);
}
static void expect_grouped_forward(struct op_test *t)
{
    int64_t N = t->p[1], K = t->p[2];
    for (int64_t e = 0; e < t->p[0]; e++) {
        int64_t r = (int64_t)val(t, 3)[e], n = (int64_t)val(t, 3)[e + 1] - r;
        ref_linear(val(t, 0) + r * N, val(t, 1) + r * K, val(t, 2) + e * N * K, n, N, K);
    }
}
static void build_grouped_dx(struct op_test *t)
{
    build_grouped(t);
    t->x[1].role = KEPT;
}
static enum status call_grouped_dx(struct op_test *t, const struct tensor *x)
{
    return t->ops->grouped_dx(x[1], x[0], x[2], x[3], t->stream);
}
static void expect_grouped_dx(struct op_test *t)
{
    int64_t N = t->p[1], K = t->p[2];
    for (int64_t e = 0; e < t->p[0]; e++) {
        int64_t r = (int64_t)val(t, 3)[e], n = (int64_t)val(t, 3)[e + 1] - r;
        memset(val(t, 1) + r * K, 0, (size_t)(n * K) * sizeof(double));
        ref_linear_dx(val(t, 1) + r * K, val(t, 0) + r * N, val(t, 2) + e * N * K, n, N, K);
    }
}
static void build_grouped_dw(struct op_test *t)
{
    build_grouped(t);
    t->x[2].role = ACC;
    t->x[2].host.dtype = DT_F32;
}
static enum status call_grouped_dw(struct op_test *t, const struct tensor *x)
{
    return t->ops->grouped_dw(x[2], x[0], x[1], x[3], t->stream);
}
static void expect_grouped_dw(struct op_test *t)
{
    int64_t N = t->p[1], K = t->p[2];
    for (int64_t e = 0; e < t->p[0]; e++) {
        int64_t r = (int64_t)val(t, 3)[e], n = (int64_t)val(t, 3)[e + 1] - r;
        ref_linear_dw(val(t, 2) + e * N * K, val(t, 0) + r * N, val(t, 1) + r * K, n, N, K);
    }
}

/* ---- norms ---- */
enum { NORM_EPS = 0 };
static void build_rmsnorm_forward(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 7, 150), C = PICK(t, 1, 16, 100, 256, 2500);
    operand(t, "y", OUT, t->dtype, T, C, 1);
    operand(t, "rstd", OUT, DT_F32, T, 1, 1);
    operand(t, "x_out", OUT, t->dtype, T, C, 1);
    operand(t, "x", IN, t->dtype, T, C, 1);
    operand(t, "add", IN, t->dtype, T, C, 1);
    operand(t, "w", IN, t->dtype, C, 1, 1);
    t->p[0] = draw(t, 0, 1); /* with add */
    if (!t->p[0]) t->x[2].role = IN;
    else if (draw(t, 0, 1)) t->x[2].alias = 3;
    t->f[NORM_EPS] = 1e-3f;
}
static enum status call_rmsnorm_forward(struct op_test *t, const struct tensor *x)
{
    bool add = t->p[0];
    return t->ops->rmsnorm_forward(x[0], x[1], add ? x[2] : nothing, x[3], add ? x[4] : nothing, x[5], t->f[NORM_EPS],
                                   t->stream);
}
static void expect_rmsnorm_forward(struct op_test *t)
{
    int64_t C = dim(t, 0, 1);
    double row[2500];
    for (int64_t r = 0; r < dim(t, 0, 0); r++) {
        for (int64_t i = 0; i < C; i++) {
            row[i] = val(t, 3)[r * C + i];
            if (!t->p[0]) continue;
            row[i] += val(t, 4)[r * C + i];
            if (t->dtype == DT_BF16) row[i] = float_from_bf16(bf16_from_float((float)row[i]));
            val(t, 2)[r * C + i] = row[i];
        }
        val(t, 1)[r] = ref_norm(val(t, 0) + r * C, row, val(t, 5), C, t->f[NORM_EPS]);
    }
}

static double loss_rmsnorm(struct op_test *t)
{
    int64_t C = dim(t, 3, 1);
    double loss = 0, y[64];
    for (int64_t r = 0; r < dim(t, 3, 0); r++) {
        ref_norm(y, val(t, 3) + r * C, val(t, 4), C, t->f[NORM_EPS]);
        for (int64_t i = 0; i < C; i++)
            loss += y[i] * val(t, 2)[r * C + i] + val(t, 3)[r * C + i] * val(t, 6)[r * C + i];
    }
    return loss;
}
static void build_rmsnorm_backward(struct op_test *t)
{
    int64_t T = PICK(t, 0, 1, 5, 60), C = PICK(t, 1, 16, 33, 64);
    operand(t, "dx", OUT, t->dtype, T, C, 1);
    operand(t, "dw", ACC, DT_F32, C, 1, 1);
    operand(t, "dy", IN, t->dtype, T, C, 1);
    operand(t, "x", IN, t->dtype, T, C, 1);
    operand(t, "w", IN, t->dtype, C, 1, 1);
    operand(t, "rstd", IN, DT_F32, T, 1, 1);
    operand(t, "d_residual", IN, t->dtype, T, C, 1);
    t->f[NORM_EPS] = 1e-3f;
    settle(t);
    t->p[0] = draw(t, 0, 1);
    for (int64_t i = 0; !t->p[0] && i < count(t, 6); i++) val(t, 6)[i] = 0;
    if (draw(t, 0, 2) == 0) t->x[0].alias = 2;
    else if (t->p[0] && draw(t, 0, 1)) t->x[0].alias = 6;
    double y[64];
    for (int64_t r = 0; r < T; r++) val(t, 5)[r] = ref_norm(y, val(t, 3) + r * C, val(t, 4), C, t->f[NORM_EPS]);
}
static enum status call_rmsnorm_backward(struct op_test *t, const struct tensor *x)
{
    return t->ops->rmsnorm_backward(x[0], x[1], x[2], x[3], x[4], x[5], t->p[0] ? x[6] : nothing, t->stream);
}
static void expect_rmsnorm_backward(struct op_test *t)
{
    derive(t, 0, 3, loss_rmsnorm, 300);
    derive(t, 1, 4, loss_rmsnorm, 64);
}

/* ---- q, k, v and index projections ---- */
enum { P_H, P_K, P_D, P_I, P_DI, P_ROTARY, P_CACHE, P_RSTD };
enum { Q_QKV, Q_QN, Q_KN, Q_IQN, Q_IKN, Q_POS, Q_Q, Q_K, Q_IQ, Q_IK, Q_RSTD, Q_KC, Q_VC, Q_IKC, Q_SLOT };
static void build_qkv_sizes(struct op_test *t)
{
    int64_t K = PICK(t, 1, 2, 4);
    t->p[P_K] = K;
    t->p[P_H] = K * PICK(t, 1, 3, 8, 16);
    t->p[P_D] = PICK(t, 16, 32, 128, 256);
    t->p[P_ROTARY] = PICK(t, 0, 8, 16);
    t->f[0] = 10000.0f, t->f[1] = 1e-3f;
}
static void build_qkv_forward(struct op_test *t)
{
    build_qkv_sizes(t);
    int64_t T = PICK(t, 0, 1, 3, 40), H = t->p[P_H], K = t->p[P_K], D = t->p[P_D], slots = T + 5;
    int64_t I = t->p[P_I] = draw(t, 0, 1) ? K : 0, Di = t->p[P_DI] = I ? PICK(t, 16, 64) : 0;
    t->p[P_CACHE] = draw(t, 0, 1), t->p[P_RSTD] = draw(t, 0, 1);
    t->gap = PICK(t, 0, 11);
    operand(t, "qkv", IN, t->dtype, T, (I ? I + 1 : 0) * Di + (H + 2 * K) * D, 1);
    operand(t, "q_norm", IN, t->dtype, D, 1, 1);
    operand(t, "k_norm", IN, t->dtype, D, 1, 1);
    operand(t, "iq_norm", IN, t->dtype, Di, 1, 1);
    operand(t, "ik_norm", IN, t->dtype, Di, 1, 1);
    operand(t, "pos", IN, DT_I32, T, 1, 1);
    operand(t, "q", OUT, t->dtype, T, H, D);
    operand(t, "k", OUT, t->dtype, T, K, D);
    operand(t, "iq", OUT, t->dtype, I ? T : 0, I, Di);
    operand(t, "ik", OUT, t->dtype, I ? T : 0, Di, 1);
    operand(t, "rstd", t->p[P_RSTD] ? OUT : IN, DT_F32, T, H + K, 1);
    operand(t, "k_cache", KEPT, t->dtype, slots, K, D);
    operand(t, "v_cache", KEPT, t->dtype, slots, K, D);
    operand(t, "ik_cache", KEPT, t->dtype, I ? slots : 0, Di, 1);
    operand(t, "slot", IN, DT_I32, T, 1, 1);
    for (int64_t i = 0; i < T; i++) {
        val(t, Q_POS)[i] = (double)(draw(t, 0, 3) ? draw(t, 0, 500) : draw(t, 0, 520000));
        val(t, Q_SLOT)[i] = draw(t, 0, 4) ? (double)((i * 7 + 3) % slots) : -1;
        for (int64_t j = 0; j < i; j++)
            if (val(t, Q_SLOT)[j] == val(t, Q_SLOT)[i]) val(t, Q_SLOT)[i] = -1;
    }
}
static enum status call_qkv_forward(struct op_test *t, const struct tensor *x)
{
    bool index = t->p[P_I] > 0, cache = t->p[P_CACHE];
    struct qkv_args a = {.qkv = x[Q_QKV], .q_norm = x[Q_QN], .k_norm = x[Q_KN], .pos = x[Q_POS], .theta = t->f[0],
        .eps = t->f[1], .rotary = (int)t->p[P_ROTARY], .q = x[Q_Q], .k = x[Q_K]};
    if (t->p[P_RSTD]) a.rstd = x[Q_RSTD];
    if (index) a.iq_norm = x[Q_IQN], a.ik_norm = x[Q_IKN], a.iq = x[Q_IQ], a.ik = x[Q_IK];
    if (cache) a.k_cache = x[Q_KC], a.v_cache = x[Q_VC], a.slot = x[Q_SLOT];
    if (cache && index) a.ik_cache = x[Q_IKC];
    return t->ops->qkv_forward(&a, t->stream);
}
static void expect_heads(struct op_test *t, double *out, const double *in, int64_t heads, int64_t D, int norm,
                         int64_t pos, double *rstd)
{
    for (int64_t h = 0; h < heads; h++) {
        double r = ref_norm(out + h * D, in + h * D, val(t, norm), D, t->f[1]);
        if (rstd) rstd[h] = r;
        ref_rope(out + h * D, pos, t->f[0], t->p[P_ROTARY]);
    }
}
static void expect_qkv_forward(struct op_test *t)
{
    int64_t H = t->p[P_H], K = t->p[P_K], D = t->p[P_D], I = t->p[P_I], Di = t->p[P_DI], cols = dim(t, Q_QKV, 1);
    for (int64_t r = 0; r < dim(t, Q_QKV, 0); r++) {
        const double *in = val(t, Q_QKV) + r * cols;
        double *rstd = t->p[P_RSTD] ? val(t, Q_RSTD) + r * (H + K) : NULL, *k = val(t, Q_K) + r * K * D;
        int64_t pos = (int64_t)val(t, Q_POS)[r], slot = t->p[P_CACHE] ? (int64_t)val(t, Q_SLOT)[r] : -1;
        if (I) {
            expect_heads(t, val(t, Q_IQ) + r * I * Di, in, I, Di, Q_IQN, pos, NULL);
            expect_heads(t, val(t, Q_IK) + r * Di, in + I * Di, 1, Di, Q_IKN, pos, NULL);
            in += (I + 1) * Di;
        }
        expect_heads(t, val(t, Q_Q) + r * H * D, in, H, D, Q_QN, pos, rstd);
        expect_heads(t, k, in + H * D, K, D, Q_KN, pos, rstd ? rstd + H : NULL);
        if (slot < 0) continue;
        memcpy(val(t, Q_KC) + slot * K * D, k, (size_t)(K * D) * sizeof(double));
        memcpy(val(t, Q_VC) + slot * K * D, in + (H + K) * D, (size_t)(K * D) * sizeof(double));
        if (I) memcpy(val(t, Q_IKC) + slot * Di, val(t, Q_IK) + r * Di, (size_t)Di * sizeof(double));
    }
}

enum { B_QKV, B_QN, B_KN, B_POS, B_RSTD, B_DQ, B_DK, B_DQKV, B_DQN, B_DKN };
static double loss_heads(struct op_test *t, int64_t row, int64_t col, int64_t heads, int norm, int grad, double *rstd)
{
    int64_t D = t->p[P_D], pos = (int64_t)val(t, B_POS)[row];
    double y[256 * 64], loss = 0;
    expect_heads(t, y, val(t, B_QKV) + row * dim(t, B_QKV, 1) + col, heads, D, norm, pos, rstd);
    for (int64_t i = 0; i < heads * D; i++) loss += y[i] * val(t, grad)[row * heads * D + i];
    return loss;
}
static double loss_qkv(struct op_test *t)
{
    int64_t H = t->p[P_H], K = t->p[P_K], D = t->p[P_D];
    double loss = 0;
    for (int64_t r = 0; r < dim(t, B_QKV, 0); r++)
        loss += loss_heads(t, r, 0, H, B_QN, B_DQ, NULL) + loss_heads(t, r, H * D, K, B_KN, B_DK, NULL);
    return loss;
}
static void build_qkv_backward(struct op_test *t)
{
    build_qkv_sizes(t);
    int64_t T = PICK(t, 0, 1, 3, 33), H = t->p[P_H], K = t->p[P_K], D = t->p[P_D], cols = (H + 2 * K) * D;
    t->gap = PICK(t, 0, 11);
    operand(t, "qkv", IN, t->dtype, T, cols, 1);
    operand(t, "q_norm", IN, t->dtype, D, 1, 1);
    operand(t, "k_norm", IN, t->dtype, D, 1, 1);
    operand(t, "pos", IN, DT_I32, T, 1, 1);
    operand(t, "rstd", IN, DT_F32, T, H + K, 1);
    operand(t, "dq", IN, t->dtype, T, H, D);
    operand(t, "dk", IN, t->dtype, T, K, D);
    t->gap = PICK(t, 0, 13);
    operand(t, "dqkv", KEPT, t->dtype, T, cols, 1);
    operand(t, "dq_norm", ACC, DT_F32, D, 1, 1);
    operand(t, "dk_norm", ACC, DT_F32, D, 1, 1);
    settle(t);
    for (int64_t r = 0; r < T; r++) {
        val(t, B_POS)[r] = (double)draw(t, 0, 500);
        double *rstd = val(t, B_RSTD) + r * (H + K);
        loss_heads(t, r, 0, H, B_QN, B_DQ, rstd);
        loss_heads(t, r, H * D, K, B_KN, B_DK, rstd + H);
    }
}
static enum status call_qkv_backward(struct op_test *t, const struct tensor *x)
{
    struct qkv_args a = {.qkv = x[B_QKV], .q_norm = x[B_QN], .k_norm = x[B_KN], .pos = x[B_POS], .theta = t->f[0],
        .eps = t->f[1], .rotary = (int)t->p[P_ROTARY], .rstd = x[B_RSTD], .dq = x[B_DQ], .dk = x[B_DK],
        .dqkv = x[B_DQKV], .dq_norm = x[B_DQN], .dk_norm = x[B_DKN]};
    return t->ops->qkv_backward(&a, t->stream);
}
static void expect_qkv_backward(struct op_test *t)
{
    int64_t cols = dim(t, B_QKV, 1), written = (t->p[P_H] + t->p[P_K]) * t->p[P_D];
    for (int64_t i = 0; i < count(t, B_DQKV); i++)
        if (i % cols < written) val(t, B_DQKV)[i] = 0;
    double *v = checked(malloc((size_t)(count(t, B_DQKV) + 1) * sizeof *v));
    memcpy(v, val(t, B_DQKV), (size_t)count(t, B_DQKV) * sizeof *v);
    derive(t, B_DQKV, B_QKV, loss_qkv, 60);
    for (int64_t i = 0; i < count(t, B_DQKV); i++)
        if (i % cols >= written) val(t, B_DQKV)[i] = v[i];
    free(v);
    derive(t, B_DQN, B_QN, loss_qkv, 16);
    derive(t, B_DKN, B_KN, loss_qkv, 16);
}
#endif
