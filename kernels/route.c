/* Routing: which experts a token takes and with what weights, the order of rows by expert, the way there and back. */
#include "cpu.h"
#include "ops_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The k largest of score = sigmoid(logit) + bias into chosen, largest first, equal ones by number. A NaN counts as the
 * smallest, so that even then k different experts come out. Order of (score, -number) is total: each next choice is the
 * largest below the one before, which needs no marks. */
static void choose(int32_t *chosen, const float *logit, const float *bias, int64_t E, int64_t k)
{
    float last = INFINITY;
    int64_t last_e = -1;
    for (int64_t j = 0; j < k; j++) {
        float best = -INFINITY;
        int64_t best_e = -1;
        for (int64_t e = 0; e < E; e++) {
            float x = cpu_sigmoid(logit[e]) + bias[e];
            if (x != x) x = -INFINITY;
            bool below = x < last || (x == last && e > last_e);
            if (below && (best_e < 0 || x > best)) best = x, best_e = e;
        }
        chosen[j] = (int32_t)best_e;
        last = best;
        last_e = best_e;
    }
}

static bool known(int32_t e, int64_t E) { return e >= 0 && e < E; }

/* Weights of one token: its experts' sigmoids over their sum (all 0 when that is 0: every chosen logit below -87). */
static void weigh(float *weight, const int32_t *expert, const float *logit, int64_t E, int64_t k)
{
    float sum = 0;
    for (int64_t j = 0; j < k; j++) {
        weight[j] = known(expert[j], E) ? cpu_sigmoid(logit[expert[j]]) : 0;
        sum += weight[j];
    }
    for (int64_t j = 0; j < k; j++) weight[j] = sum == 0 ? 0 : weight[j] / sum;
}

enum status route_forward_cpu(struct tensor experts, struct tensor weights, struct tensor logits, struct tensor bias,
                              int64_t valid, bool replay, struct stream *s)
{
    (void)s;
    TRY(check_route_forward(experts, weights, logits, bias, valid));
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
#pragma omp parallel for num_threads(cpu_share(T * E * k * 4)) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        int32_t *chosen = (int32_t *)experts.data + t * k;
        float *weight = (float *)weights.data + t * k;
        const float *logit = (float *)logits.data + t * E;
        if (t >= valid) {
            for (int64_t j = 0; j < k; j++) chosen[j] = -1, weight[j] = 0;
            continue;
        }
        if (!replay) choose(chosen, logit, bias.data, E, k);
        weigh(weight, chosen, logit, E, k);
    }
    return OK;
}

/* With s_j the chosen sigmoids and w_j = s_j / sum: dw_j/dlogit_i = (delta_ij - w_j) w_i (1 - s_i). */
enum status route_backward_cpu(struct tensor dlogits, struct tensor dweights, struct tensor experts,
                               struct tensor logits, struct stream *s)
{
    (void)s;
    TRY(check_route_backward(dlogits, dweights, experts, logits));
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
#pragma omp parallel for num_threads(cpu_share(T * (E + k * 16))) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        const int32_t *chosen = (int32_t *)experts.data + t * k;
        const float *logit = (float *)logits.data + t * E, *dw = (float *)dweights.data + t * k;
        float *out = (float *)dlogits.data + t * E, sum = 0, mean = 0;
        memset(out, 0, (size_t)E * sizeof *out);
        for (int64_t j = 0; j < k; j++)
            if (known(chosen[j], E)) {
                float sig = cpu_sigmoid(logit[chosen[j]]);
                sum += sig;
                mean += dw[j] * sig;
            }
        if (sum == 0) continue;
        mean /= sum;
        for (int64_t j = 0; j < k; j++)
            if (known(chosen[j], E)) {
                float sig = cpu_sigmoid(logit[chosen[j]]);
                out[chosen[j]] += (dw[j] - mean) * (sig / sum) * (1 - sig);
            }
    }
    return OK;
}

enum status dispatch_cpu(struct tensor offsets, struct tensor row_token, struct tensor row_of, struct tensor experts,
                         struct stream *s)
{
    (void)s;
    TRY(check_dispatch(offsets, row_token, row_of, experts));
    int64_t T = experts.dim[0], k = experts.dim[1], E = offsets.dim[0] - 1, n = T * k;
    int32_t *from = offsets.data, *token = row_token.data, *row = row_of.data;
    const int32_t *expert = experts.data;
    memset(from, 0, (size_t)(E + 1) * sizeof *from);
    for (int64_t i = 0; i < n; i++) {
        if (expert[i] < -1 || expert[i] >= E)
            return FAIL(ERR_INTERNAL, "dispatch: token %" PRId64 " chose expert %d of %" PRId64, i / k, expert[i], E);
        if (expert[i] >= 0) from[expert[i] + 1]++;
    }
    for (int64_t e = 0; e < E; e++) from[e + 1] += from[e];
    /* from[e] runs to the end of its expert while rows are placed, then the whole moves one place up again. */
    for (int64_t i = 0; i < n; i++) {
        row[i] = expert[i] < 0 ? -1 : from[expert[i]]++;
        if (row[i] >= 0) token[row[i]] = (int32_t)(i / k);
    }
    memmove(from + 1, from, (size_t)E * sizeof *from);
    from[0] = 0;
    for (int64_t r = from[E]; r < n; r++) token[r] = -1;
    return OK;
}

/* Every index must be -1 or a row. */
static enum status check_index(const char *op, const int32_t *index, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] < -1 || index[i] >= rows)
            return FAIL(ERR_INTERNAL, "%s: index %" PRId64 " is %d of %" PRId64 " rows", op, i, index[i], rows);
    return OK;
}

enum status gather_rows_cpu(struct tensor y, struct tensor x, struct tensor index, struct stream *s)
{
    (void)s;
    TRY(check_gather_rows(y, x, index));
    const int32_t *from = index.data;
    int64_t R = index.dim[0];
    TRY(check_index("gather_rows", from, R, x.dim[0]));
    size_t row = (size_t)x.dim[1] * dtype_size(x.dtype);
#pragma omp parallel for num_threads(cpu_share(R * x.dim[1] / 4)) schedule(static)
    for (int64_t r = 0; r < R; r++) {
        char *to = (char *)y.data + (size_t)r * row;
        if (from[r] < 0) memset(to, 0, row);
        else memcpy(to, (char *)x.data + (size_t)from[r] * row, row);
    }
    return OK;
}

enum status combine_forward_cpu(struct tensor y, struct tensor rows, struct tensor row_of, struct tensor weights,
                                float scale, struct tensor base, struct stream *s)
{
    (void)s;
    TRY(check_combine_forward(y, rows, row_of, weights, base));
    int64_t T = row_of.dim[0], k = row_of.dim[1], C = y.dim[1];
    const int32_t *row = row_of.data;
    const float *weight = weights.data;
    TRY(check_index("combine_forward", row, T * k, rows.dim[0]));
#pragma omp parallel for num_threads(cpu_share(T * k * C / 2)) schedule(static)
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < C; c += CPU_CHUNK) {
            float buf[2][CPU_CHUNK], sum[CPU_CHUNK];
            int64_t n = cpu_chunk(C, c);
            if (tensor_none(base)) memset(sum, 0, (size_t)n * sizeof *sum);
            else memcpy(sum, cpu_load(base, t * C + c, n, buf[0]), (size_t)n * sizeof *sum);
            for (int64_t j = 0; j < k; j++) {
                if (row[t * k + j] < 0) continue;
                float w = weight ? scale * weight[t * k + j] : scale;
                const float *in = cpu_load(rows, row[t * k + j] * C + c, n, buf[0]);
                for (int64_t i = 0; i < n; i++) sum[i] += w * in[i];
            }
            float *out = cpu_open(y, t * C + c, buf[1]);
            memcpy(out, sum, (size_t)n * sizeof *out);
            cpu_close(y, t * C + c, n, out);
        }
    return OK;
}

enum status combine_backward_cpu(struct tensor drows, struct tensor dweights, struct tensor dy, struct tensor rows,
                                 struct tensor row_of, struct tensor weights, float scale, struct stream *s)
{
    (void)s;
    TRY(check_combine_backward(drows, dweights, dy, rows, row_of, weights));
    int64_t T = row_of.dim[0], k = row_of.dim[1], C = dy.dim[1];
    const int32_t *row = row_of.data;
    const float *weight = weights.data;
    TRY(check_index("combine_backward", row, T * k, rows.dim[0]));
#pragma omp parallel for num_threads(cpu_share(T * k * C / 2)) schedule(static)
    for (int64_t i = 0; i < T * k; i++) {
        float buf[3][CPU_CHUNK], w = weight ? scale * weight[i] : scale;
        double dot = 0;
        for (int64_t c = 0; row[i] >= 0 && c < C; c += CPU_CHUNK) {
            int64_t n = cpu_chunk(C, c), at = row[i] * C + c;
            const float *d = cpu_load(dy, i / k * C + c, n, buf[0]), *in = cpu_load(rows, at, n, buf[1]);
            dot += (double)cpu_dot(d, in, n); /* before drows is written: it may be rows */
            float *out = cpu_open(drows, at, buf[2]);
            for (int64_t m = 0; m < n; m++) out[m] = w * d[m];
            cpu_close(drows, at, n, out);
        }
        if (!tensor_none(dweights)) ((float *)dweights.data)[i] = scale * (float)dot;
    }
    return OK;
}
