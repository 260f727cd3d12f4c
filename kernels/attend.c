/* Attention over packed sequences, dense and sparse.
 *
 *   s = scale q k^T, p = exp(s - lse), o = p v
 *   delta = rowsum(d_o * o), dv = p^T d_o, dp = d_o v^T, ds = p (dp - delta), dk = scale ds^T q, dq = scale ds k
 *
 * Forward: tiles of queries over the threads. Backward: a thread takes a whole (sequence, KV head), so that dk and dv
 * have one writer; where a few long sequences would leave threads idle, all threads share one (sequence, KV head), its
 * query tiles dealt out in turn, and add up their dk and dv in the threads' order. */
#include "attend_tile.h"
#include "ops_check.h"

#include <omp.h>
#include <string.h>

static struct attend_shape shape_of(const struct attend_args *a)
{
    return attend_shape_of(a->q.dim[1], a->k.dim[1], a->q.dim[2], a->max_seqlen, a->sel, a->block, a->scale);
}

size_t attend_work_cpu(const struct attend_args *a, bool backward)
{
    struct attend_space w;
    struct attend_shape z = shape_of(a);
    return attend_carve(&w, NULL, &z, backward) * (size_t)cpu_threads();
}

static struct attend_tile tile_at(const struct attend_args *a, const struct attend_shape *z, int64_t head,
                                  int64_t start, int64_t end, int64_t tile)
{
    struct attend_tile u = {.head = head, .pos = tile * z->queries, .k = {.t = a->k, .first = start},
                            .v = {.t = a->v, .first = start}};
    u.first = start + u.pos;
    u.n = cpu_min(z->queries, end - u.first);
    if (z->slots) u.sel = (int32_t *)a->sel.data + (head * a->sel.dim[1] + u.first) * z->slots;
    return u;
}

static void zero_tail(struct tensor t, int64_t first)
{
    if (t.data && first < t.dim[0]) zero_cpu(tensor_rows(t, first, t.dim[0] - first), NULL);
}

/* Products of the whole call, to see whether threads are worth it. */
static int64_t cost_of(const struct attend_args *a)
{
    const int32_t *cu = a->cu_seqlens.data;
    int64_t cost = 0;
    for (int64_t s = 0; s + 1 < a->cu_seqlens.dim[0]; s++) {
        int64_t n = cu[s + 1] - cu[s];
        cost += n * (a->sel.data ? cpu_min(n, a->sel.dim[2] * a->block) : n);
    }
    return cost * a->q.dim[1] * a->q.dim[2] / 8;
}

enum status attend_forward_cpu(const struct attend_args *a, struct stream *s)
{
    (void)s;
    TRY(check_attend(a, false));
    if (a->q.dim[0] == 0) return OK;
    TRY(check_sequences("attend", a->cu_seqlens, a->q.dim[0], a->max_seqlen));
    TRY(check_work("attend_forward", a->work, attend_work_cpu(a, false)));
    struct attend_shape z = shape_of(a);
    const int32_t *cu = a->cu_seqlens.data;
    int64_t S = a->cu_seqlens.dim[0] - 1, T = a->q.dim[0], used = cu[S];
    zero_tail(a->o, used);
    for (int64_t h = 0; h < z.H; h++)
        memset((float *)a->lse.data + h * T + used, 0, (size_t)(T - used) * sizeof(float));
#pragma omp parallel num_threads(cpu_share(cost_of(a)))
    {
        struct attend_space w;
        size_t each = attend_carve(&w, NULL, &z, false);
        attend_carve(&w, (char *)a->work.data + (size_t)cpu_thread() * each, &z, false);
        for (int64_t q = 0; q < S; q++) {
            int64_t tiles = (cu[q + 1] - cu[q] + z.queries - 1) / z.queries;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t i = 0; i < tiles * z.K; i++) { /* the long tiles first */
                struct attend_tile u = tile_at(a, &z, i % z.K, cu[q], cu[q + 1], tiles - 1 - i / z.K);
                attend_tile_forward(&w, &z, &u, a->q);
                attend_tile_store(&w, &z, &u, a->o, a->lse.data, T);
            }
        }
    }
    return OK;
}

/* What the backward of a tile needs of its rows: q (scaled), d_o, lse, delta; dq starts at 0. */
static void load_rows(const struct attend_args *a, const struct attend_space *w, const struct attend_shape *z,
                      const struct attend_tile *u)
{
    int64_t T = a->q.dim[0], D = z->D;
    attend_pack(w->q, a->q, z, u, z->scale);
    attend_pack(w->d_o, a->d_o, z, u, 1);
    attend_pack(w->o, a->o, z, u, 1);
    for (int64_t r = 0; r < u->n * z->G; r++) {
        w->delta[r] = cpu_dot(w->d_o + r * D, w->o + r * D, D);
        w->lse[r] = ((float *)a->lse.data)[(u->head * z->G + r % z->G) * T + u->first + r / z->G];
    }
    memset(w->dq, 0, (size_t)(u->n * z->G * D) * sizeof(float));
}

/* s becomes p, dp becomes ds. */
static void softmax_backward(float *restrict s, float *restrict dp, int64_t n, int64_t nk, float lse, float delta)
{
    for (int64_t i = 0; i < n; i++) {
        s[i] = cpu_exp(s[i] - lse);
        dp[i] = s[i] * (dp[i] - delta);
    }
    for (int64_t i = n; i < nk; i++) s[i] = dp[i] = 0;
}

/* One tile of queries: w->dq of it, and its share of w->dk and w->dv of the whole sequence. */
static void tile_backward(const struct attend_args *a, const struct attend_space *w, const struct attend_shape *z,
                          const struct attend_tile *u)
{
    int64_t G = z->G, D = z->D, last = u->pos + u->n - 1;
    load_rows(a, w, z, u);
    attend_touch(w, z, u);
    for (int64_t from = 0; from <= last; from += z->keys) {
        struct attend_picked p = attend_pick(w, z, u, from);
        if (p.n == 0) continue;
        int64_t ldk, rows = p.n * G, lds = z->lds;
        const float *q = attend_gather(w->picked_q, w->q, w, z, p);
        const float *d_o = attend_gather(w->picked_d_o, w->d_o, w, z, p);
        attend_scores(w, &u->k, u->head, from, rows, p.nk, D, q, w->s, lds);
        attend_scores(w, &u->v, u->head, from, rows, p.nk, D, d_o, w->dp, lds);
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = attend_query(w, p, r / G), row = query * G + r % G;
            int64_t n = attend_mask(w->s + r * lds, w, z, u, query, from, p.nk);
            softmax_backward(w->s + r * lds, w->dp + r * lds, n, p.nk, w->lse[row], w->delta[row]);
        }
        cpu_mix(p.nk, D, rows, w->s, 1, lds, d_o, D, w->dv + from * D, D, true);
        cpu_mix(p.nk, D, rows, w->dp, 1, lds, q, D, w->dk + from * D, D, true);
        const float *k = keys_load(&u->k, u->head, D, from, p.nk, w->rows, &ldk);
        float *dq = p.run >= 0 ? w->dq + p.run * G * D : w->picked_dq;
        cpu_mix(rows, D, p.nk, w->dp, lds, 1, k, ldk, dq, D, p.run >= 0);
        attend_scatter_add(w->dq, w->picked_dq, w, z, p);
    }
    for (int64_t i = 0; i < u->n * G * D; i++) w->dq[i] *= z->scale;
    attend_unpack(a->dq, w->dq, z, u);
}

/* Token rows [first, end) of dk and dv of one head: the sum of the threads' buffers. */
static void store_keys(const struct attend_args *a, const struct attend_space *spaces, int threads, int64_t start,
                       int64_t head, int64_t D, int64_t first, int64_t end)
{
    float buf[CPU_CHUNK];
    for (int64_t i = first; i < end; i++)
        for (int which = 0; which < 2; which++)
            for (int64_t c = 0; c < D; c += CPU_CHUNK) {
                struct tensor t = which ? a->dv : a->dk;
                int64_t at = (start + i) * t.ld + head * D + c, n = cpu_chunk(D, c);
                float *out = cpu_open(t, at, buf);
                for (int thread = 0; thread < threads; thread++) {
                    const float *in = (which ? spaces[thread].dv : spaces[thread].dk) + i * D + c;
                    for (int64_t j = 0; j < n; j++) out[j] = thread ? out[j] + in[j] : in[j];
                }
                cpu_close(t, at, n, out);
            }
}

static void clear_keys(const struct attend_space *w, int64_t n, int64_t D)
{
    memset(w->dk, 0, (size_t)(n * D) * sizeof(float));
    memset(w->dv, 0, (size_t)(n * D) * sizeof(float));
}

/* One (sequence, KV head) on the calling thread. */
static void head_alone(const struct attend_args *a, const struct attend_space *w, const struct attend_shape *z,
                       int64_t head, int64_t start, int64_t end)
{
    clear_keys(w, end - start, z->D);
    for (int64_t i = 0; i * z->queries < end - start; i++) {
        struct attend_tile u = tile_at(a, z, head, start, end, i);
        tile_backward(a, w, z, &u);
    }
    store_keys(a, w, 1, start, head, z->D, 0, end - start);
}

/* One (sequence, KV head) by the whole team: every thread of it calls this. */
static void head_together(const struct attend_args *a, const struct attend_space *spaces, const struct attend_shape *z,
                          int64_t head, int64_t start, int64_t end)
{
    const struct attend_space *w = &spaces[cpu_thread()];
    int threads = omp_get_num_threads();
    int64_t n = end - start, tiles = (n + z->queries - 1) / z->queries;
    clear_keys(w, n, z->D);
#pragma omp for schedule(static, 1)
    for (int64_t i = 0; i < tiles; i++) {
        struct attend_tile u = tile_at(a, z, head, start, end, i);
        tile_backward(a, w, z, &u);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++) store_keys(a, spaces, threads, start, head, z->D, i, i + 1);
}

/* A sequence whose one head is more than half a thread's share of all work is shared. */
static bool heavy(const int32_t *cu, int64_t S, int64_t K, int64_t s, int threads)
{
    double all = 0, n = cu[s + 1] - cu[s];
    for (int64_t i = 0; i < S; i++) all += (double)(cu[i + 1] - cu[i]) * (cu[i + 1] - cu[i]);
    return threads > 1 && n * n * 2 * threads > all * (double)K;
}

enum status attend_backward_cpu(const struct attend_args *a, struct stream *s)
{
    (void)s;
    TRY(check_attend(a, true));
    if (a->q.dim[0] == 0) return OK;
    TRY(check_sequences("attend", a->cu_seqlens, a->q.dim[0], a->max_seqlen));
    TRY(check_work("attend_backward", a->work, attend_work_cpu(a, true)));
    struct attend_shape z = shape_of(a);
    const int32_t *cu = a->cu_seqlens.data;
    int64_t S = a->cu_seqlens.dim[0] - 1;
    zero_tail(a->dq, cu[S]);
    zero_tail(a->dk, cu[S]);
    zero_tail(a->dv, cu[S]);
    int threads = cpu_share(cost_of(a));
    struct attend_space spaces[threads];
    size_t each = attend_carve(spaces, NULL, &z, true);
    for (int i = 0; i < threads; i++) attend_carve(&spaces[i], (char *)a->work.data + (size_t)i * each, &z, true);
#pragma omp parallel num_threads(threads)
    {
        for (int64_t q = 0; q < S; q++)
            for (int64_t h = 0; h < z.K && heavy(cu, S, z.K, q, threads); h++)
                head_together(a, spaces, &z, h, cu[q], cu[q + 1]);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < S * z.K; i++) {
            int64_t q = i / z.K;
            if (!heavy(cu, S, z.K, q, threads))
                head_alone(a, &spaces[cpu_thread()], &z, i % z.K, cu[q], cu[q + 1]);
        }
    }
    return OK;
}
