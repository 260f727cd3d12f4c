/* The formulas of kernels/ops.h in float64, written as plainly as they stand there. */
#ifndef OPS_REFERENCE_H
#define OPS_REFERENCE_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* y [T, N] = x [T, K] w^T, w [N, K] */
static inline void ref_linear(double *y, const double *x, const double *w, int64_t T, int64_t N, int64_t K)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += x[t * K + k] * w[n * K + k];
            y[t * N + n] = sum;
        }
}

/* dx [T, K] += dy [T, N] w */
static inline void ref_linear_dx(double *dx, const double *dy, const double *w, int64_t T, int64_t N, int64_t K)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) dx[t * K + k] += dy[t * N + n] * w[n * K + k];
}

/* dw [N, K] += dy^T x */
static inline void ref_linear_dw(double *dw, const double *dy, const double *x, int64_t T, int64_t N, int64_t K)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) dw[n * K + k] += dy[t * N + n] * x[t * K + k];
}

/* One row; returns rstd. */
static inline double ref_norm(double *y, const double *x, const double *w, int64_t C, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < C; i++) sum += x[i] * x[i];
    double rstd = 1 / sqrt(sum / (double)C + eps);
    for (int64_t i = 0; i < C; i++) y[i] = x[i] * rstd * (1 + w[i]);
    return rstd;
}

/* One head in place. The angle is float32 by contract. */
static inline void ref_rope(double *x, int64_t pos, float theta, int64_t rotary)
{
    for (int64_t j = 0; j < rotary / 2; j++) {
        float inv = 1.0f / (float)pow((double)theta, (double)((float)(2 * j) / (float)rotary));
        float angle = (float)pos * inv;
        double a = x[j], b = x[j + rotary / 2], c = cos((double)angle), s = sin((double)angle);
        x[j] = a * c - b * s;
        x[j + rotary / 2] = b * c + a * s;
    }
}

static inline double ref_swiglu(double gate, double up, double alpha, double limit)
{
    double g = fmin(gate, limit), u = fmax(-limit, fmin(up, limit));
    return (u + 1) * g * ref_sigmoid(alpha * g);
}

/* Does query `pos` see key `j`? sel: its slots, NULL: dense. */
static inline bool ref_sees(int64_t pos, int64_t j, const double *sel, int64_t slots, int64_t block)
{
    if (j > pos) return false;
    for (int64_t i = 0; sel && i < slots; i++)
        if ((int64_t)sel[i] == j / block) return true;
    return !sel;
}

/* One query of one head at position `pos` over keys 0..pos, key j at k + j * stride: o [D], returns lse (0 without
 * keys); p [pos + 1] are the probabilities. */
static inline double ref_attend(double *o, double *p, const double *q, const double *k, const double *v,
                                int64_t stride, int64_t D, int64_t pos, const double *sel, int64_t slots, int64_t block,
                                double scale)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= pos; j++) {
        p[j] = -INFINITY;
        if (!ref_sees(pos, j, sel, slots, block)) continue;
        p[j] = 0;
        for (int64_t i = 0; i < D; i++) p[j] += q[i] * k[j * stride + i];
        p[j] *= scale;
        most = fmax(most, p[j]);
    }
    for (int64_t i = 0; i < D; i++) o[i] = 0;
    for (int64_t j = 0; j <= pos; j++) sum += p[j] = isinf(p[j]) ? 0 : exp(p[j] - most);
    for (int64_t j = 0; j <= pos && sum > 0; j++) {
        p[j] /= sum;
        for (int64_t i = 0; i < D; i++) o[i] += p[j] * v[j * stride + i];
    }
    return sum > 0 ? most + log(sum) : 0;
}

/* The choice of one (query, index head): out [topk], in any order. score [blocks] of blocks 0..own. */
static inline void ref_choose(double *out, double *score, int64_t own, int64_t topk, int64_t init, int64_t local)
{
    int64_t n = 0;
    for (int64_t b = 0; b <= own; b++)
        if (b > own - local || b < init) score[b] = INFINITY;
    while (n < topk && n <= own) {
        int64_t best = 0;
        for (int64_t b = 1; b <= own; b++)
            if (score[b] > score[best]) best = b;
        score[best] = -INFINITY;
        out[n++] = (double)best;
    }
    while (n < topk) out[n++] = -1;
}
#endif
