/* RMSNorm, Gemma style, forward and backward; with n = x * rstd: y = n * (1 + w),
 * dx = rstd * (g - n * mean(g * n)) with g = dy * (1 + w), dw = sum over rows of dy * n. */
#include "cpu.h"
#include "ops_check.h"

#include <math.h>

/* x_out = x + add for one row when there is an add; the sum of squares of what is to be normalised. What was rounded
 * to BF16 is what is normalised, here and in the backward. */
static double row_squares(struct tensor x_out, struct tensor x, struct tensor add, int64_t at, int64_t C)
{
    float buf[2][CPU_CHUNK];
    double total = 0;
    for (int64_t c = 0; c < C; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(C, c);
        const float *v = cpu_load(x, at + c, n, buf[0]);
        if (!tensor_none(add)) {
            const float *more = cpu_load(add, at + c, n, buf[1]);
            float *out = cpu_open(x_out, at + c, buf[0]);
            for (int64_t i = 0; i < n; i++) out[i] = v[i] + more[i];
            cpu_close(x_out, at + c, n, out);
            v = cpu_load(x_out, at + c, n, buf[0]);
        }
        total += (double)cpu_dot(v, v, n);
    }
    return total;
}

enum status rmsnorm_forward_cpu(struct tensor y, struct tensor rstd, struct tensor x_out, struct tensor x,
                                struct tensor add, struct tensor w, float eps, struct stream *s)
{
    (void)s;
    TRY(check_rmsnorm_forward(y, rstd, x_out, x, add, w));
    int64_t T = x.dim[0], C = x.dim[1];
    struct tensor in = tensor_none(add) ? x : x_out;
#pragma omp parallel for num_threads(cpu_share(T * C / 2)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float buf[3][CPU_CHUNK];
        float r = 1.0f / sqrtf((float)(row_squares(x_out, x, add, t * C, C) / (double)C) + eps);
        if (!tensor_none(rstd)) ((float *)rstd.data)[t] = r;
        for (int64_t c = 0; c < C; c += CPU_CHUNK) {
            int64_t n = cpu_chunk(C, c);
            const float *v = cpu_load(in, t * C + c, n, buf[0]), *g = cpu_load(w, c, n, buf[1]);
            float *out = cpu_open(y, t * C + c, buf[2]);
            for (int64_t i = 0; i < n; i++) out[i] = v[i] * r * (1.0f + g[i]);
            cpu_close(y, t * C + c, n, out);
        }
    }
    return OK;
}

/* dw over all rows for one band of columns: a thread owns its columns, so that rows are added in order. */
static void norm_dw(struct tensor dw, struct tensor dy, struct tensor x, const float *rstd, int64_t c, int64_t n)
{
    float buf[2][CPU_CHUNK], sum[CPU_CHUNK] = {0};
    for (int64_t t = 0; t < x.dim[0]; t++) {
        const float *d = cpu_load(dy, t * x.dim[1] + c, n, buf[0]), *v = cpu_load(x, t * x.dim[1] + c, n, buf[1]);
        for (int64_t i = 0; i < n; i++) sum[i] += d[i] * (v[i] * rstd[t]);
    }
    for (int64_t i = 0; i < n; i++) ((float *)dw.data)[c + i] += sum[i];
}

static void norm_dx(struct tensor dx, struct tensor dy, struct tensor x, struct tensor w, float r,
                    struct tensor d_residual, int64_t at, int64_t C)
{
    float buf[5][CPU_CHUNK];
    double total = 0;
    for (int64_t c = 0; c < C; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(C, c);
        const float *d = cpu_load(dy, at + c, n, buf[0]), *v = cpu_load(x, at + c, n, buf[1]);
        const float *g = cpu_load(w, c, n, buf[2]);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < n; i++) part += d[i] * (1.0f + g[i]) * v[i];
        total += (double)part;
    }
    float mean = (float)(total / (double)C) * r * r; /* mean(g * n) * rstd: what multiplies x before the last rstd */
    for (int64_t c = 0; c < C; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(C, c);
        const float *d = cpu_load(dy, at + c, n, buf[0]), *v = cpu_load(x, at + c, n, buf[1]);
        const float *g = cpu_load(w, c, n, buf[2]);
        const float *res = tensor_none(d_residual) ? NULL : cpu_load(d_residual, at + c, n, buf[3]);
        float *out = cpu_open(dx, at + c, buf[4]);
        if (res)
            for (int64_t i = 0; i < n; i++) out[i] = res[i] + r * (d[i] * (1.0f + g[i]) - v[i] * mean);
        else
            for (int64_t i = 0; i < n; i++) out[i] = r * (d[i] * (1.0f + g[i]) - v[i] * mean);
        cpu_close(dx, at + c, n, out);
    }
}

enum status rmsnorm_backward_cpu(struct tensor dx, struct tensor dw, struct tensor dy, struct tensor x,
                                 struct tensor w, struct tensor rstd, struct tensor d_residual, struct stream *s)
{
    (void)s;
    TRY(check_rmsnorm_backward(dx, dw, dy, x, w, rstd, d_residual));
    int64_t T = x.dim[0], C = x.dim[1];
    int n = cpu_share(T * C);
    int64_t band = cpu_min(CPU_CHUNK, ((C + n - 1) / n + 15) / 16 * 16); /* dw first: dx may be dy */
#pragma omp parallel for num_threads(n) schedule(static)
    for (int64_t c = 0; c < C; c += band) norm_dw(dw, dy, x, rstd.data, c, cpu_min(band, C - c));
#pragma omp parallel for num_threads(n) schedule(static)
    for (int64_t t = 0; t < T; t++) norm_dx(dx, dy, x, w, ((float *)rstd.data)[t], d_residual, t * C, C);
    return OK;
}
