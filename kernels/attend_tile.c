#include "attend_tile.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_KEYS = 128, FEW_ROWS = 16 };

enum status check_sequences(const char *op, struct tensor cu_seqlens, int64_t T, int64_t max_seqlen)
{
    const int32_t *cu = cu_seqlens.data;
    if (cu_seqlens.dim[0] < 1 || cu[0] != 0)
        return FAIL(ERR_INTERNAL, "%s: the first of %" PRId64 " sequence ends is not 0", op, cu_seqlens.dim[0]);
    for (int64_t s = 0; s + 1 < cu_seqlens.dim[0]; s++)
        if (cu[s + 1] < cu[s] || cu[s + 1] > T || cu[s + 1] - cu[s] > max_seqlen)
            return FAIL(ERR_INTERNAL, "%s: sequence %" PRId64 " has rows %d to %d of %" PRId64 ", longest %" PRId64, op,
                        s, cu[s], cu[s + 1], T, max_seqlen);
    return OK;
}

const float *keys_load(const struct keys *k, int64_t head, int64_t D, int64_t from, int64_t n, float *buf, int64_t *ld)
{
    int64_t row = k->pages ? k->pages[from / k->page] * k->page + from % k->page : k->first + from;
    bool whole = !k->pages || from / k->page == (from + n - 1) / k->page;
    *ld = k->t.ld;
    if (whole && k->t.dtype == DT_F32) return (const float *)k->t.data + row * k->t.ld + head * D;
    *ld = D;
    for (int64_t i = 0; i < n; i++) {
        if (k->pages && i && (from + i) % k->page == 0) row = k->pages[(from + i) / k->page] * k->page - i;
        const float *in = cpu_load(k->t, (row + i) * k->t.ld + head * D, D, buf + i * D);
        if (in != buf + i * D) memcpy(buf + i * D, in, (size_t)D * sizeof *buf);
    }
    return buf;
}

struct attend_shape attend_shape_of(int64_t H, int64_t K, int64_t D, int64_t max_len, struct tensor sel, int block,
                                    float scale)
{
    struct attend_shape z = {.H = H, .K = K, .G = H / K, .D = D, .max_len = max_len, .block = block, .scale = scale};
    z.slots = tensor_none(sel) ? 0 : sel.dim[2];
    z.queries = cpu_max(1, TILE_ROWS / z.G);
    z.R = z.queries * z.G;
    z.keys = z.slots ? cpu_min(TILE_KEYS, 32 * (int64_t)block) : TILE_KEYS; /* the blocks of a tile fit a mask */
    return z;
}

static void *take(char *base, size_t *used, int64_t n, size_t size)
{
    size_t at = *used;
    *used += ((size_t)n * size + 63) / 64 * 64;
    return base ? base + at : NULL;
}

size_t attend_carve(struct attend_space *w, char *base, const struct attend_shape *z, bool backward)
{
    size_t used = 0, f = sizeof(float);
    int64_t RD = z->R * z->D, KD = z->keys * z->D, RK = z->R * z->keys;
    *w = (struct attend_space){0};
    w->q = take(base, &used, RD, f);
    w->o = take(base, &used, RD, f);
    w->s = take(base, &used, RK, f);
    w->top = take(base, &used, z->R, f);
    w->sum = take(base, &used, z->R, f);
    w->k = take(base, &used, KD, f);
    w->v = take(base, &used, KD, f);
    w->picked_q = take(base, &used, RD, f);
    w->picked_o = take(base, &used, RD, f);
    w->mask = take(base, &used, z->queries, sizeof *w->mask);
    w->pick = take(base, &used, z->queries, sizeof *w->pick);
    w->touched = take(base, &used, z->max_len / z->keys + 1, 1);
    if (!backward) return used;
    w->d_o = take(base, &used, RD, f);
    w->dq = take(base, &used, RD, f);
    w->dp = take(base, &used, RK, f);
    w->picked_d_o = take(base, &used, RD, f);
    w->picked_dq = take(base, &used, RD, f);
    w->delta = take(base, &used, z->R, f);
    w->lse = take(base, &used, z->R, f);
    w->dk = take(base, &used, z->max_len * z->D, f);
    w->dv = take(base, &used, z->max_len * z->D, f);
    return used;
}

void attend_pack(float *out, struct tensor t, const struct attend_shape *z, const struct attend_tile *u, float scale)
{
    int64_t n = z->G * z->D;
    for (int64_t i = 0; i < u->n; i++) {
        const float *in = cpu_load(t, (u->first + i) * t.ld + u->head * n, n, out + i * n);
        for (int64_t j = 0; j < n; j++) out[i * n + j] = in[j] * scale;
    }
}

void attend_unpack(struct tensor t, const float *in, const struct attend_shape *z, const struct attend_tile *u)
{
    int64_t n = z->G * z->D;
    for (int64_t i = 0; i < u->n; i++) {
        int64_t at = (u->first + i) * t.ld + u->head * n;
        if (t.dtype == DT_F32) memcpy((float *)t.data + at, in + i * n, (size_t)n * sizeof *in);
        else cpu_narrow((uint16_t *)t.data + at, in + i * n, n);
    }
}

void attend_scores(int64_t M, int64_t N, int64_t D, const float *q, const float *k, int64_t ldk, float *s, int64_t lds)
{
    if (M <= FEW_ROWS) cpu_dots(M, N, D, q, D, k, ldk, s, lds);
    else cpu_gemm(false, true, M, N, D, 1, q, D, k, ldk, 0, s, lds);
}

void attend_values(int64_t M, int64_t N, int64_t D, const float *s, int64_t lds, const float *v, int64_t ldv, float *o)
{
    if (M <= FEW_ROWS) cpu_mix(M, D, N, s, lds, v, ldv, o, D);
    else cpu_gemm(false, false, M, D, N, 1, s, lds, v, ldv, 1, o, D);
}

/* One row's step of the online softmax over n of nk scores: s becomes exp(s - maximum), 0 from n on; returns what
 * everything gathered before is to be multiplied by. */
static float softmax_step(float *s, int64_t n, int64_t nk, float *top, float *sum)
{
    float most = cpu_largest(s, n), total = 0;
    most = most > *top ? most : *top;
    float base = most == -INFINITY ? 0 : most, keep = cpu_exp(*top - base);
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; i++) {
        s[i] = cpu_exp(s[i] - base);
        total += s[i];
    }
    for (int64_t i = n; i < nk; i++) s[i] = 0;
    *top = most;
    *sum = *sum * keep + total;
    return keep;
}

void attend_tile_forward(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                         struct tensor q)
{
    int64_t rows = u->n * z->G, G = z->G, D = z->D, last = u->pos + u->n - 1;
    attend_pack(w->q, q, z, u, z->scale);
    memset(w->o, 0, (size_t)(rows * D) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) w->top[r] = -INFINITY, w->sum[r] = 0;
    attend_touch(w, z, u);
    for (int64_t from = 0; from <= last; from += z->keys) {
        struct attend_picked p = attend_pick(w, z, u, from);
        if (p.n == 0) continue;
        int64_t ldk, ldv;
        const float *k = keys_load(&u->k, u->head, D, from, p.nk, w->k, &ldk);
        const float *v = keys_load(&u->v, u->head, D, from, p.nk, w->v, &ldv);
        attend_scores(p.n * G, p.nk, D, attend_gather(w->picked_q, w->q, w, z, p), k, ldk, w->s, z->keys);
        for (int64_t i = 0; i < p.n; i++) {
            int64_t query = attend_query(w, p, i);
            for (int64_t g = 0; g < G; g++) {
                float *s = w->s + (i * G + g) * z->keys, *o = w->o + (query * G + g) * D;
                int64_t n = attend_mask(s, w, z, u, query, from, p.nk), r = query * G + g;
                float keep = softmax_step(s, n, p.nk, &w->top[r], &w->sum[r]);
                if (keep != 1)
                    for (int64_t c = 0; c < D; c++) o[c] *= keep;
            }
        }
        if (p.run >= 0) attend_values(p.n * G, p.nk, D, w->s, z->keys, v, ldv, w->o + p.run * G * D);
        else {
            memset(w->picked_o, 0, (size_t)(p.n * G * D) * sizeof(float));
            attend_values(p.n * G, p.nk, D, w->s, z->keys, v, ldv, w->picked_o);
            attend_scatter_add(w->o, w->picked_o, w, z, p);
        }
    }
}

void attend_tile_store(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                       struct tensor o, float *lse, int64_t T)
{
    for (int64_t r = 0; r < u->n * z->G; r++) {
        float *row = w->o + r * z->D, scale = w->sum[r] == 0 ? 0 : 1.0f / w->sum[r];
        for (int64_t c = 0; c < z->D; c++) row[c] *= scale;
        int64_t h = u->head * z->G + r % z->G, t = u->first + r / z->G;
        if (lse) lse[h * T + t] = w->sum[r] == 0 ? 0 : w->top[r] + logf(w->sum[r]);
    }
    attend_unpack(o, w->o, z, u);
}
