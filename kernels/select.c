#include "select_tile.h"
#include "ops_check.h"

#include <inttypes.h>
#include <math.h>

enum { TILE_ROWS = 128, TILE_KEYS = 256, MOST_MAX = 1 << 20 /* floats of `most`: 4 MiB a thread at any length */ };

struct select_shape select_shape_of(int64_t I, int64_t D, int64_t max_len, int block, int topk, int init, int local)
{
    struct select_shape z = {.I = I, .D = D, .keys = TILE_KEYS, .block = block, .topk = topk, .init = init,
                             .local = local};
    z.max_blocks = cpu_max(1, (max_len + block - 1) / block);
    z.queries = cpu_max(1, cpu_min(TILE_ROWS, MOST_MAX / z.max_blocks) / I);
    return z;
}

static void *take(char *base, size_t *used, int64_t n)
{
    size_t at = *used;
    *used += ((size_t)n * sizeof(float) + 63) / 64 * 64;
    return base ? base + at : NULL;
}

size_t select_carve(struct select_space *w, char *base, const struct select_shape *z)
{
    size_t used = 0;
    int64_t rows = z->queries * z->I;
    w->q = take(base, &used, rows * z->D);
    w->s = take(base, &used, rows * z->keys);
    w->most = take(base, &used, rows * z->max_blocks);
    w->rows = take(base, &used, z->keys * z->D);
    w->turned = take(base, &used, (z->keys + 16) * z->D);
    w->best = take(base, &used, z->topk);
    return used;
}

/* most [blocks] of one row takes in n scores of the keys from token `from` on. */
static void block_maxima(float *most, const float *s, int64_t from, int64_t n, int64_t block)
{
    for (int64_t key = 0; key < n;) {
        int64_t b = (from + key) / block, end = cpu_min(n, (b + 1) * block - from);
        float m = cpu_largest(s + key, end - key);
        most[b] = m > most[b] ? m : most[b];
        key = end;
    }
}

/* The r best of blocks [from, end), best first, equal ones by number, appended to out. `best` keeps their scores; a
 * block whose scores are all NaN stands at -inf and can still fill a slot. */
static void choose(int32_t *out, float *best, int64_t r, const float *most, int64_t from, int64_t end)
{
    int64_t n = 0;
    for (int64_t b = from; b < end; b++) {
        float x = most[b];
        if (n == r && !(x > best[n - 1])) continue;
        int64_t at = n < r ? n++ : n - 1;
        for (; at > 0 && x > best[at - 1]; at--) best[at] = best[at - 1], out[at] = out[at - 1];
        best[at] = x;
        out[at] = (int32_t)b;
    }
}

/* One row: forced local blocks, forced first blocks, the best of those between, -1. */
static void choose_row(int32_t *out, float *best, const float *most, int64_t pos, const struct select_shape *z)
{
    int64_t own = pos / z->block, n = 0, local = cpu_max(0, own + 1 - z->local), init = cpu_min(z->init, local);
    for (int64_t b = own; b >= local && n < z->topk; b--) out[n++] = (int32_t)b;
    for (int64_t b = 0; b < init && n < z->topk; b++) out[n++] = (int32_t)b;
    int64_t r = cpu_min(z->topk - n, local - init);
    if (r > 0) choose(out + n, best, r, most, init, local), n += r;
    while (n < z->topk) out[n++] = -1;
}

void select_tile(const struct select_space *w, const struct select_shape *z, struct tensor sel, struct tensor iq,
                 const struct keys *ik, int64_t first, int64_t n, int64_t pos)
{
    int64_t rows = n * z->I, last = pos + n - 1, blocks = last / z->block + 1;
    const float *q = cpu_load(iq, first * z->I * z->D, rows * z->D, w->q);
    for (int64_t i = 0; i < rows * blocks; i++) w->most[i] = -INFINITY;
    /* Everything fits and every block is taken: the scores do not matter. */
    for (int64_t from = 0; from <= last && blocks > z->topk; from += z->keys) {
        int64_t nk = cpu_min(z->keys, last + 1 - from);
        struct attend_space keys = {.rows = w->rows, .turned = w->turned};
        attend_scores(&keys, ik, 0, from, rows, nk, z->D, q, w->s, z->keys);
        for (int64_t r = 0; r < rows; r++)
            block_maxima(w->most + r * blocks, w->s + r * z->keys, from, cpu_min(nk, pos + r / z->I - from + 1),
                         z->block);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t g = r % z->I, t = r / z->I;
        int32_t *out = (int32_t *)sel.data + (g * sel.dim[1] + first + t) * z->topk;
        choose_row(out, w->best, w->most + r * blocks, pos + t, z);
    }
}

void select_none(struct tensor sel, int64_t first)
{
    int64_t row = sel.dim[2];
    for (int64_t g = 0; g < sel.dim[0]; g++)
        for (int64_t i = first * row; i < sel.dim[1] * row; i++) ((int32_t *)sel.data)[g * sel.dim[1] * row + i] = -1;
}

static struct select_shape shape_of(const struct select_args *a)
{
    return select_shape_of(a->iq.dim[1], a->iq.dim[2], a->max_seqlen, a->block, a->topk, a->init, a->local);
}

size_t select_work_cpu(const struct select_args *a)
{
    struct select_space w;
    struct select_shape z = shape_of(a);
    return select_carve(&w, NULL, &z) * (size_t)cpu_threads();
}

enum status select_forward_cpu(const struct select_args *a, struct stream *s)
{
    (void)s;
    TRY(check_select(a));
    int64_t S = a->cu_seqlens.dim[0] - 1, T = a->iq.dim[0], steps = 0;
    if (T == 0) return OK;
    TRY(check_sequences("select", a->cu_seqlens, T, a->max_seqlen));
    TRY(check_work("select_forward", a->work, select_work_cpu(a)));
    struct select_shape z = shape_of(a);
    const int32_t *cu = a->cu_seqlens.data;
    for (int64_t q = 0; q < S; q++) steps += (int64_t)(cu[q + 1] - cu[q]) * (cu[q + 1] - cu[q]) / 8 * z.I * z.D;
    select_none(a->sel, cu[S]);
#pragma omp parallel num_threads(cpu_share(steps))
    {
        struct select_space w;
        size_t each = select_carve(&w, NULL, &z);
        select_carve(&w, (char *)a->work.data + (size_t)cpu_thread() * each, &z);
        for (int64_t q = 0; q < S; q++) {
            struct keys ik = {.t = a->ik, .first = cu[q]};
            int64_t len = cu[q + 1] - cu[q], tiles = (len + z.queries - 1) / z.queries;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t i = 0; i < tiles; i++) { /* the long tiles first */
                int64_t pos = (tiles - 1 - i) * z.queries;
                select_tile(&w, &z, a->sel, a->iq, &ik, cu[q] + pos, cpu_min(z.queries, len - pos), pos);
            }
        }
    }
    return OK;
}
