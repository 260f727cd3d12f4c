/* The q, k, v and index projections of a token: per-head RMSNorm (Gemma style), RoPE on the first `rotary` channels
 * (NeoX halves), and the row's way into the paged caches.
 *
 * One head: n = x * rstd, z = n * (1 + w), y = rope(z); backward dz = rope^T(dy), dw += dz * n, g = dz * (1 + w),
 * dx = rstd * (g - n * mean(g * n)). */
#include "cpu.h"
#include "ops_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { HEAD_MAX = 1024 }; /* largest head size: what a thread's stack holds comfortably */

/* cos and sin of a position's angles. */
struct rope {
    float inv_freq[HEAD_MAX / 2], cosine[HEAD_MAX / 2], sine[HEAD_MAX / 2];
    int half;
};

static enum status check_head(const char *op, int64_t D)
{
    return D <= HEAD_MAX ? OK : FAIL(ERR_INTERNAL, "%s: head size %" PRId64 " is beyond %d", op, D, HEAD_MAX);
}

/* 1 / theta^(2j/rotary) in the roundings of the reference: the exponent, the power and the quotient are float32. */
static void rope_init(struct rope *r, float theta, int rotary)
{
    r->half = rotary / 2;
    for (int j = 0; j < r->half; j++) {
        float exponent = (float)(2 * j) / (float)rotary;
        r->inv_freq[j] = 1.0f / (float)pow((double)theta, (double)exponent);
    }
}

static void rope_at(struct rope *r, int32_t pos)
{
    for (int j = 0; j < r->half; j++) cpu_sincos((float)pos * r->inv_freq[j], &r->sine[j], &r->cosine[j]);
}

static void rotate(const struct rope *r, float *x)
{
    for (int j = 0; j < r->half; j++) {
        float a = x[j], b = x[j + r->half];
        x[j] = a * r->cosine[j] - b * r->sine[j];
        x[j + r->half] = b * r->cosine[j] + a * r->sine[j];
    }
}

static void rotate_back(const struct rope *r, float *x)
{
    for (int j = 0; j < r->half; j++) {
        float a = x[j], b = x[j + r->half];
        x[j] = a * r->cosine[j] + b * r->sine[j];
        x[j + r->half] = b * r->cosine[j] - a * r->sine[j];
    }
}

/* Heads in_at, in_at + D, ... of the qkv row to out; rstd (may be NULL) gets one number a head. */
static void heads_forward(const struct rope *r, struct tensor out, int64_t out_at, struct tensor qkv, int64_t in_at,
                          int64_t heads, int64_t D, const float *w, float eps, float *rstd)
{
    float buf[HEAD_MAX], y[HEAD_MAX];
    for (int64_t h = 0; h < heads; h++) {
        const float *x = cpu_load(qkv, in_at + h * D, D, buf);
        float scale = 1.0f / sqrtf(cpu_dot(x, x, D) / (float)D + eps);
        if (rstd) rstd[h] = scale;
        float *to = cpu_open(out, out_at + h * D, y);
        for (int64_t i = 0; i < D; i++) to[i] = x[i] * scale * (1.0f + w[i]);
        rotate(r, to);
        cpu_close(out, out_at + h * D, D, to);
    }
}

/* n elements between tensors of one dtype. */
static void copy_row(struct tensor dst, int64_t to, struct tensor src, int64_t from, int64_t n)
{
    size_t size = dtype_size(src.dtype);
    memcpy((char *)dst.data + (size_t)to * size, (const char *)src.data + (size_t)from * size, (size_t)n * size);
}

static enum status check_slots(const struct qkv_args *a)
{
    if (tensor_none(a->k_cache)) return OK;
    const int32_t *slot = a->slot.data;
    for (int64_t t = 0; t < a->qkv.dim[0]; t++)
        if (slot[t] < -1 || slot[t] >= a->k_cache.dim[0])
            return FAIL(ERR_INTERNAL, "qkv_forward: row %" PRId64 " goes to slot %d of %" PRId64, t, slot[t],
                        a->k_cache.dim[0]);
    return OK;
}

enum status qkv_forward_cpu(const struct qkv_args *a, struct stream *s)
{
    (void)s;
    TRY(check_qkv_forward(a));
    int64_t T = a->qkv.dim[0], H = a->q.dim[1], K = a->k.dim[1], D = a->q.dim[2];
    int64_t I = tensor_none(a->iq_norm) ? 0 : a->iq.dim[1], Di = I ? a->iq_norm.dim[0] : 0;
    TRY(check_head("qkv_forward", cpu_max(D, Di)));
    TRY(check_slots(a));
    float buf[4][HEAD_MAX];
    const float *qw = cpu_load(a->q_norm, 0, D, buf[0]), *kw = cpu_load(a->k_norm, 0, D, buf[1]);
    const float *iqw = I ? cpu_load(a->iq_norm, 0, Di, buf[2]) : NULL;
    const float *ikw = I ? cpu_load(a->ik_norm, 0, Di, buf[3]) : NULL;
    struct rope rope;
    rope_init(&rope, a->theta, a->rotary);
#pragma omp parallel for num_threads(cpu_share(T * (H + K) * D)) schedule(static) firstprivate(rope)
    for (int64_t t = 0; t < T; t++) {
        int64_t at = t * a->qkv.ld;
        float *rstd = tensor_none(a->rstd) ? NULL : (float *)a->rstd.data + t * (H + K);
        rope_at(&rope, ((int32_t *)a->pos.data)[t]);
        if (I) {
            heads_forward(&rope, a->iq, t * I * Di, a->qkv, at, I, Di, iqw, a->eps, NULL);
            heads_forward(&rope, a->ik, t * Di, a->qkv, at + I * Di, 1, Di, ikw, a->eps, NULL);
            at += (I + 1) * Di;
        }
        heads_forward(&rope, a->q, t * H * D, a->qkv, at, H, D, qw, a->eps, rstd);
        heads_forward(&rope, a->k, t * K * D, a->qkv, at + H * D, K, D, kw, a->eps, rstd ? rstd + H : NULL);
        int32_t slot = tensor_none(a->k_cache) ? -1 : ((int32_t *)a->slot.data)[t];
        if (slot < 0) continue;
        copy_row(a->k_cache, slot * K * D, a->k, t * K * D, K * D);
        copy_row(a->v_cache, slot * K * D, a->qkv, at + (H + K) * D, K * D);
        if (I) copy_row(a->ik_cache, slot * Di, a->ik, t * Di, Di);
    }
    return OK;
}

/* Gradients of `heads` heads of one token; dw [D] += of this token. */
static void heads_backward(const struct rope *r, struct tensor dqkv, int64_t out_at, struct tensor dy, int64_t dy_at,
                           struct tensor qkv, int64_t in_at, int64_t heads, int64_t D, const float *w,
                           const float *rstd, float *dw)
{
    float buf[2][HEAD_MAX], dz[HEAD_MAX];
    for (int64_t h = 0; h < heads; h++) {
        const float *x = cpu_load(qkv, in_at + h * D, D, buf[0]), *d = cpu_load(dy, dy_at + h * D, D, buf[1]);
        memcpy(dz, d, (size_t)D * sizeof *dz);
        rotate_back(r, dz);
        float total = 0;
        for (int64_t i = 0; i < D; i++) dw[i] += dz[i] * (x[i] * rstd[h]);
        for (int64_t i = 0; i < D; i++) dz[i] *= 1.0f + w[i];
        total = cpu_dot(dz, x, D);
        float mean = total / (float)D * rstd[h] * rstd[h];
        float *out = cpu_open(dqkv, out_at + h * D, buf[1]);
        for (int64_t i = 0; i < D; i++) out[i] = rstd[h] * (dz[i] - x[i] * mean);
        cpu_close(dqkv, out_at + h * D, D, out);
    }
}

/* The tokens of one part; sum [2][HEAD_MAX] gets its share of dq_norm and dk_norm. */
static void part_backward(const struct qkv_args *a, struct rope *rope, int64_t first, int64_t end, const float *qw,
                          const float *kw, float sum[2][HEAD_MAX])
{
    int64_t H = a->dq.dim[1], K = a->dk.dim[1], D = a->dq.dim[2];
    int64_t I = tensor_none(a->iq_norm) ? 0 : a->iq.dim[1], skip = I ? (I + 1) * a->iq_norm.dim[0] : 0;
    for (int64_t t = first; t < end; t++) {
        int64_t in = t * a->qkv.ld + skip, out = t * a->dqkv.ld;
        const float *rstd = (float *)a->rstd.data + t * (H + K);
        rope_at(rope, ((int32_t *)a->pos.data)[t]);
        heads_backward(rope, a->dqkv, out, a->dq, t * H * D, a->qkv, in, H, D, qw, rstd, sum[0]);
        heads_backward(rope, a->dqkv, out + H * D, a->dk, t * K * D, a->qkv, in + H * D, K, D, kw, rstd + H, sum[1]);
    }
}

enum status qkv_backward_cpu(const struct qkv_args *a, struct stream *s)
{
    (void)s;
    TRY(check_qkv_backward(a));
    int64_t T = a->qkv.dim[0], H = a->dq.dim[1], K = a->dk.dim[1], D = a->dq.dim[2];
    TRY(check_head("qkv_backward", D));
    float buf[2][HEAD_MAX], sum[CPU_PARTS][2][HEAD_MAX];
    const float *qw = cpu_load(a->q_norm, 0, D, buf[0]), *kw = cpu_load(a->k_norm, 0, D, buf[1]);
    struct rope rope;
    rope_init(&rope, a->theta, a->rotary);
    int64_t part = (T + CPU_PARTS - 1) / CPU_PARTS;
#pragma omp parallel for num_threads(cpu_share(T * (H + K) * D)) schedule(static) firstprivate(rope)
    for (int p = 0; p < CPU_PARTS; p++) {
        for (int i = 0; i < 2; i++) memset(sum[p][i], 0, (size_t)D * sizeof(float));
        part_backward(a, &rope, cpu_min(T, p * part), cpu_min(T, (p + 1) * part), qw, kw, sum[p]);
    }
    for (int p = 0; p < CPU_PARTS; p++)
        for (int64_t i = 0; i < D; i++) {
            ((float *)a->dq_norm.data)[i] += sum[p][0][i];
            ((float *)a->dk_norm.data)[i] += sum[p][1][i];
        }
    return OK;
}
