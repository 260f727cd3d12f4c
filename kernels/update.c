/* Flat element-wise work: casts, sums, the squared norm and AdamW. */
#include "cpu.h"
#include "ops_check.h"

#include <math.h>
#include <string.h>

/* A tensor as rows of equal distance: contiguous ones become a single row, so that chunks are long. */
static struct tensor flat(struct tensor t)
{
    return tensor_contiguous(t) ? tensor_view(t.data, t.dtype, t.place, 2, 1, tensor_count(t), 1, 1) : t;
}

static void cast_chunk(struct tensor dst, int64_t to, struct tensor src, int64_t from, int64_t n)
{
    if (dst.dtype == src.dtype)
        memmove((char *)dst.data + (size_t)to * dtype_size(dst.dtype),
                (char *)src.data + (size_t)from * dtype_size(src.dtype), (size_t)n * dtype_size(src.dtype));
    else if (dst.dtype == DT_F32) cpu_widen((float *)dst.data + to, (uint16_t *)src.data + from, n);
    else cpu_narrow((uint16_t *)dst.data + to, (float *)src.data + from, n);
}

enum status cast_cpu(struct tensor dst, struct tensor src, struct stream *s)
{
    (void)s;
    TRY(check_cast(dst, src));
    if (tensor_contiguous(dst) && tensor_contiguous(src)) dst = flat(dst), src = flat(src);
    int64_t rows = src.dim[0], n = tensor_row(src), chunks = (n + CPU_CHUNK - 1) / CPU_CHUNK;
#pragma omp parallel for num_threads(cpu_share(rows * n / 4)) schedule(static)
    for (int64_t i = 0; i < rows * chunks; i++) {
        int64_t row = i / chunks, c = i % chunks * CPU_CHUNK;
        cast_chunk(dst, row * dst.ld + c, src, row * src.ld + c, cpu_chunk(n, c));
    }
    return OK;
}

enum status add_cpu(struct tensor y, struct tensor a, struct tensor b, struct stream *s)
{
    (void)s;
    TRY(check_add(y, a, b));
    int64_t n = tensor_count(y);
#pragma omp parallel for num_threads(cpu_share(n / 4)) schedule(static)
    for (int64_t c = 0; c < n; c += CPU_CHUNK) {
        float buf[3][CPU_CHUNK];
        int64_t m = cpu_chunk(n, c);
        const float *p = cpu_load(a, c, m, buf[0]), *q = cpu_load(b, c, m, buf[1]);
        float *out = cpu_open(y, c, buf[2]);
        for (int64_t i = 0; i < m; i++) out[i] = p[i] + q[i];
        cpu_close(y, c, m, out);
    }
    return OK;
}

enum status square_sum_cpu(struct tensor sum, struct tensor x, struct stream *s)
{
    (void)s;
    TRY(check_square_sum(sum, x));
    int64_t n = tensor_count(x), part = (n + CPU_PARTS - 1) / CPU_PARTS;
    double parts[CPU_PARTS] = {0};
#pragma omp parallel for num_threads(cpu_share(n / 4)) schedule(static)
    for (int p = 0; p < CPU_PARTS; p++) {
        float buf[CPU_CHUNK];
        int64_t end = cpu_min(n, (p + 1) * part);
        for (int64_t c = p * part; c < end; c += CPU_CHUNK) {
            int64_t m = cpu_chunk(end, c);
            const float *v = cpu_load(x, c, m, buf);
            double total = 0;
#pragma omp simd reduction(+ : total)
            for (int64_t i = 0; i < m; i++) total += (double)v[i] * (double)v[i];
            parts[p] += total;
        }
    }
    double *out = sum.data;
    for (int p = 0; p < CPU_PARTS; p++) *out += parts[p];
    return OK;
}

/* One chunk, every array as floats. */
static void adamw_chunk(const struct adamw_args *a, int64_t n, float *restrict master, float *restrict m,
                        float *restrict v, const float *restrict grad)
{
    float to_m = 1 - a->beta1, to_v = 1 - a->beta2, m_hat = 1 / a->bias1, v_hat = 1 / sqrtf(a->bias2);
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * a->grad_scale;
        m[i] = a->beta1 * m[i] + to_m * g;
        v[i] = a->beta2 * v[i] + to_v * g * g;
        float step = m[i] * m_hat / (sqrtf(v[i]) * v_hat + a->eps);
        master[i] -= a->lr * (step + a->decay * master[i]);
    }
}

enum status adamw_cpu(const struct adamw_args *a, struct stream *s)
{
    (void)s;
    TRY(check_adamw(a));
    int64_t n = a->master.dim[0];
#pragma omp parallel for num_threads(cpu_share(n)) schedule(static)
    for (int64_t c = 0; c < n; c += CPU_CHUNK) {
        float buf[3][CPU_CHUNK];
        int64_t k = cpu_chunk(n, c);
        float *master = (float *)a->master.data + c;
        float *m = cpu_open(a->exp_avg, c, buf[0]), *v = cpu_open(a->exp_avg_sq, c, buf[1]);
        cpu_load(a->exp_avg, c, k, m);
        cpu_load(a->exp_avg_sq, c, k, v);
        adamw_chunk(a, k, master, m, v, cpu_load(a->grad, c, k, buf[2]));
        cpu_close(a->exp_avg, c, k, m);
        cpu_close(a->exp_avg_sq, c, k, v);
        if (a->weight.dtype == DT_BF16) cpu_narrow((uint16_t *)a->weight.data + c, master, k);
        else memmove((float *)a->weight.data + c, master, (size_t)k * sizeof *master);
    }
    return OK;
}
