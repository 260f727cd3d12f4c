#include "attend_tile.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_KEYS = 128, FEW_ROWS = 4 /* up to here turning the keys costs more than it saves */,
       PAD = 16 /* floats: rows of a buffer at multiples of 512 bytes would share few sets of the L1 cache */ };

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

/* Where token `from` lies, and how many of the n from there on lie in consecutive rows. */
static int64_t keys_run(const struct keys *k, int64_t from, int64_t n, int64_t *run)
{
    *run = n;
    if (!k->pages) return k->first + from;
    int64_t p = from / k->page, end = (p + 1) * k->page;
    for (; end < from + n && k->pages[end / k->page] == k->pages[end / k->page - 1] + 1; end += k->page) {}
    *run = cpu_min(n, end - from);
    return k->pages[p] * k->page + from % k->page;
}

const float *keys_load(const struct keys *k, int64_t head, int64_t D, int64_t from, int64_t n, float *buf, int64_t *ld)
{
    int64_t run, row = keys_run(k, from, n, &run);
    *ld = k->t.ld;
    if (run == n && k->t.dtype == DT_F32) return (const float *)k->t.data + row * k->t.ld + head * D;
    *ld = D;
    for (int64_t done = 0; done < n; done += run) {
        row = keys_run(k, from + done, n - done, &run);
        for (int64_t i = 0; i < run; i++) {
            float *out = buf + (done + i) * D;
            const float *in = cpu_load(k->t, (row + i) * k->t.ld + head * D, D, out);
            if (in != out) memcpy(out, in, (size_t)D * sizeof *out);
        }
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
    z.lds = z.keys + PAD;
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
    int64_t RD = z->R * z->D, KD = z->keys * z->D, RK = z->R * z->lds;
    *w = (struct attend_space){0};
    w->q = take(base, &used, RD, f);
    w->o = take(base, &used, RD, f);
    w->s = take(base, &used, RK, f);
    w->top = take(base, &used, z->R, f);
    w->sum = take(base, &used, z->R, f);
    w->rows = take(base, &used, KD, f);
    w->turned = take(base, &used, (z->keys + PAD) * z->D, f);
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

void attend_scores(const struct attend_space *w, const struct keys *k, int64_t head, int64_t from, int64_t M, int64_t N,
                   int64_t D, const float *q, float *s, int64_t lds)
{
    int64_t ld, wide = (N + 7) / 8 * 8, turned = wide + PAD;
    const float *rows = keys_load(k, head, D, from, N, w->rows, &ld);
    if (M <= FEW_ROWS) {
        cpu_dots(M, N, D, q, D, rows, ld, s, lds);
        return;
    }
    cpu_transpose(w->turned, turned, rows, ld, N, D);
    cpu_mix(M, wide, D, q, D, 1, w->turned, turned, s, lds, false);
}

/* One row's step of the online softmax over n of nk scores: s becomes exp(s - maximum), 0 from n on; returns what
 * everything gathered before is to be multiplied by. n is a multiple of 8 or nk. */
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
        const float *picked = attend_gather(w->picked_q, w->q, w, z, p);
        attend_scores(w, &u->k, u->head, from, p.n * G, p.nk, D, picked, w->s, z->lds);
        for (int64_t i = 0; i < p.n; i++) {
            int64_t query = attend_query(w, p, i);
            for (int64_t g = 0; g < G; g++) {
                float *s = w->s + (i * G + g) * z->lds, *o = w->o + (query * G + g) * D;
                int64_t n = attend_mask(s, w, z, u, query, from, p.nk), r = query * G + g;
                float keep = softmax_step(s, n, p.nk, &w->top[r], &w->sum[r]);
                if (keep != 1)
                    for (int64_t c = 0; c < D; c++) o[c] *= keep;
            }
        }
        int64_t ldv;
        const float *v = keys_load(&u->v, u->head, D, from, p.nk, w->rows, &ldv);
        float *o = p.run >= 0 ? w->o + p.run * G * D : w->picked_o;
        cpu_mix(p.n * G, D, p.nk, w->s, z->lds, 1, v, ldv, o, D, p.run >= 0);
        attend_scatter_add(w->o, w->picked_o, w, z, p);
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
