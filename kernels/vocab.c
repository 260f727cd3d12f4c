/* The vocabulary's ends: embedding rows, and log-probabilities of targets over logits that may be split over ranks. */
#include "cpu.h"
#include "ops_check.h"

#include <math.h>
#include <string.h>

enum status embed_forward_cpu(struct tensor y, struct tensor ids, struct tensor w, int64_t first, struct stream *s)
{
    (void)s;
    TRY(check_embed_forward(y, ids, w));
    int64_t T = ids.dim[0], V = w.dim[0];
    size_t row = (size_t)w.dim[1] * dtype_size(w.dtype);
#pragma omp parallel for num_threads(cpu_share(T * w.dim[1] / 4)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        int64_t id = ((int32_t *)ids.data)[t] - first;
        char *to = (char *)y.data + (size_t)t * row;
        if (id < 0 || id >= V) memset(to, 0, row);
        else memcpy(to, (char *)w.data + (size_t)id * row, row);
    }
    return OK;
}

/* A thread owns a band of columns: rows that meet in one id are added in token order. */
enum status embed_backward_cpu(struct tensor dw, struct tensor dy, struct tensor ids, int64_t first, struct stream *s)
{
    (void)s;
    TRY(check_embed_backward(dw, dy, ids));
    int64_t T = ids.dim[0], V = dw.dim[0], C = dw.dim[1];
    int n = cpu_share(T * C);
    int64_t band = cpu_min(CPU_CHUNK, ((C + n - 1) / n + 15) / 16 * 16);
#pragma omp parallel for num_threads(n) schedule(static)
    for (int64_t c = 0; c < C; c += band) {
        float buf[CPU_CHUNK];
        int64_t m = cpu_min(band, C - c);
        for (int64_t t = 0; t < T; t++) {
            int64_t id = ((int32_t *)ids.data)[t] - first;
            if (id < 0 || id >= V) continue;
            const float *d = cpu_load(dy, t * C + c, m, buf);
            float *out = (float *)dw.data + id * C + c;
            for (int64_t i = 0; i < m; i++) out[i] += d[i];
        }
    }
    return OK;
}

static float row_max(struct tensor logits, int64_t at, int64_t V, float inv_temp)
{
    float buf[CPU_CHUNK], most = -INFINITY;
    for (int64_t c = 0; c < V; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(V, c);
        float m = cpu_largest(cpu_load(logits, at + c, n, buf), n);
        most = m > most ? m : most;
    }
    return most * inv_temp;
}

/* stats: max x, sum e, x of the target, sum e x, with e = exp(x - max). A token of probability 0 (logit -inf) adds
 * nothing to the last. */
static void row_stats(float *stats, struct tensor logits, int64_t at, int64_t V, int64_t target, float inv_temp)
{
    float buf[CPU_CHUNK], most = row_max(logits, at, V, inv_temp);
    double sum = 0, mean = 0;
    float base = most == -INFINITY ? 0 : most;
    for (int64_t c = 0; c < V; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(V, c);
        const float *x = cpu_load(logits, at + c, n, buf);
        float s = 0, m = 0;
#pragma omp simd reduction(+ : s, m)
        for (int64_t i = 0; i < n; i++) {
            float v = x[i] * inv_temp, e = cpu_exp(v - base);
            s += e;
            m += e == 0 ? 0 : e * v;
        }
        sum += (double)s;
        mean += (double)m;
    }
    float own[1];
    stats[0] = most;
    stats[1] = (float)sum;
    stats[2] = target >= 0 && target < V ? cpu_load(logits, at + target, 1, own)[0] * inv_temp : 0;
    stats[3] = (float)mean;
}

enum status vocab_stats_cpu(struct tensor stats, struct tensor logits, struct tensor targets, int64_t first,
                            float inv_temp, struct stream *s)
{
    (void)s;
    TRY(check_vocab_stats(stats, logits, targets));
    int64_t T = targets.dim[0], V = logits.dim[1];
#pragma omp parallel for num_threads(cpu_share(T * V)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        int32_t target = ((int32_t *)targets.data)[t];
        row_stats((float *)stats.data + t * 4, logits, t * V, V, target < 0 ? -1 : target - first, inv_temp);
    }
    return OK;
}

enum status vocab_join_cpu(struct tensor logp, struct tensor entropy, struct tensor lse, struct tensor stats,
                           struct tensor targets, struct stream *s)
{
    (void)s;
    TRY(check_vocab_join(logp, entropy, lse, stats, targets));
    int64_t T = targets.dim[0], ranks = stats.dim[0];
    for (int64_t t = 0; t < T; t++) {
        const float *part = (float *)stats.data + t * 4;
        double most = -INFINITY, sum = 0, own = 0, mean = 0;
        for (int64_t r = 0; r < ranks; r++) most = fmax(most, (double)part[r * T * 4]);
        for (int64_t r = 0; r < ranks; r++) {
            const float *p = part + r * T * 4;
            double scale = (double)p[0] == most ? 1 : exp((double)p[0] - most);
            sum += p[1] * scale;
            own += p[2];
            mean += p[3] * scale;
        }
        double total = most + log(sum);
        ((float *)lse.data)[t] = (float)total;
        ((float *)entropy.data)[t] = (float)(total - mean / sum);
        ((float *)logp.data)[t] = ((int32_t *)targets.data)[t] < 0 ? 0 : (float)(own - total);
    }
    return OK;
}

/* With H the entropy: dH/dx_i = -p_i (x_i - lse + H). */
static void row_backward(struct tensor dlogits, struct tensor logits, int64_t at, int64_t V, int64_t target,
                         float inv_temp, float lse, float dlogp, float dentropy, float entropy)
{
    float buf[2][CPU_CHUNK];
    bool none = dlogp == 0 && dentropy == 0;
    for (int64_t c = 0; c < V; c += CPU_CHUNK) {
        int64_t n = cpu_chunk(V, c);
        const float *x = none ? NULL : cpu_load(logits, at + c, n, buf[0]);
        float *out = cpu_open(dlogits, at + c, buf[1]);
        if (none) memset(out, 0, (size_t)n * sizeof *out);
        else if (dentropy == 0) {
            float a = -inv_temp * dlogp;
            for (int64_t i = 0; i < n; i++) out[i] = a * cpu_exp(x[i] * inv_temp - lse);
        } else {
            for (int64_t i = 0; i < n; i++) {
                float v = x[i] * inv_temp - lse, p = cpu_exp(v);
                out[i] = p == 0 ? 0 : -inv_temp * p * (dlogp + dentropy * (v + entropy));
            }
        }
        if (target >= c && target < c + n) out[target - c] += inv_temp * dlogp;
        cpu_close(dlogits, at + c, n, out);
    }
}

enum status vocab_backward_cpu(struct tensor dlogits, struct tensor logits, struct tensor targets, int64_t first,
                               float inv_temp, struct tensor lse, struct tensor entropy, struct tensor dlogp,
                               struct tensor dentropy, struct stream *s)
{
    (void)s;
    TRY(check_vocab_backward(dlogits, logits, targets, lse, entropy, dlogp, dentropy));
    int64_t T = targets.dim[0], V = logits.dim[1];
#pragma omp parallel for num_threads(cpu_share(T * V)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        int32_t target = ((int32_t *)targets.data)[t];
        bool with = !tensor_none(dentropy);
        row_backward(dlogits, logits, t * V, V, target < 0 ? -1 : target - first, inv_temp, ((float *)lse.data)[t],
                     target < 0 ? 0 : ((float *)dlogp.data)[t], with ? ((float *)dentropy.data)[t] : 0,
                     with ? ((float *)entropy.data)[t] : 0);
    }
    return OK;
}
