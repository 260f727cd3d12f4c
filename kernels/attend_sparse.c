/* Which queries take part in a key tile, and which of its keys each may see. */
#include "attend_tile.h"

#include <math.h>
#include <string.h>

/* Positions are counted from the sequence's start; a query sees keys up to its own. */
static int64_t position(const struct attend_tile *u, int64_t query) { return u->pos + query; }

/* Keys of the tile from token `from` that a query at `pos` may see causally. */
static int64_t visible(int64_t pos, int64_t from, int64_t nk) { return cpu_max(0, cpu_min(nk, pos - from + 1)); }

void attend_touch(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u)
{
    if (!u->sel) return;
    memset(w->touched, 0, (size_t)(position(u, u->n - 1) / z->keys + 1));
    for (int64_t i = 0; i < u->n; i++)
        for (int64_t j = 0; j < z->slots; j++) {
            int64_t b = u->sel[i * z->slots + j], from = b * z->block, pos = position(u, i);
            if (b < 0 || from > pos) continue;
            int64_t end = cpu_min(pos, from + z->block - 1);
            for (int64_t tile = from / z->keys; tile <= end / z->keys; tile++) w->touched[tile] = 1;
        }
}

/* The selected blocks that lie in the key tile from token `from`, bit 0 the block of its first key. */
static uint64_t selected(const struct attend_shape *z, const struct attend_tile *u, int64_t query, int64_t from)
{
    int64_t first = from / z->block, end = cpu_min(from + z->keys - 1, position(u, query)) / z->block;
    uint64_t mask = 0;
    for (int64_t j = 0; j < z->slots; j++) {
        int64_t b = u->sel[query * z->slots + j];
        if (b >= first && b <= end) mask |= (uint64_t)1 << (b - first);
    }
    return mask;
}

struct attend_picked attend_pick(const struct attend_space *w, const struct attend_shape *z,
                                 const struct attend_tile *u, int64_t from)
{
    struct attend_picked p = {.nk = visible(position(u, u->n - 1), from, z->keys)};
    int64_t first = cpu_max(0, from - u->pos); /* queries before it see none of these keys */
    if (!u->sel) {
        p.run = first;
        p.n = u->n - first;
        return p;
    }
    if (!w->touched[from / z->keys]) return p;
    for (int64_t i = first; i < u->n; i++) {
        w->mask[i] = selected(z, u, i, from);
        if (w->mask[i]) w->pick[p.n++] = (int32_t)i;
    }
    p.run = p.n && w->pick[p.n - 1] - w->pick[0] == p.n - 1 ? w->pick[0] : -1;
    return p;
}

int64_t attend_mask(float *s, const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                    int64_t query, int64_t from, int64_t nk)
{
    int64_t n = visible(position(u, query), from, nk), whole = cpu_min(nk, (n + 7) / 8 * 8);
    for (int64_t key = n; key < whole; key++) s[key] = -INFINITY;
    uint64_t mask = u->sel ? w->mask[query] : 0;
    for (int64_t key = 0; u->sel && key < n; mask >>= 1) {
        int64_t end = cpu_min(n, ((from + key) / z->block + 1) * z->block - from);
        if (mask & 1) key = end;
        else
            for (; key < end; key++) s[key] = -INFINITY;
    }
    return whole;
}

float *attend_gather(float *into, float *b, const struct attend_space *w, const struct attend_shape *z,
                     struct attend_picked p)
{
    int64_t n = z->G * z->D;
    if (p.run >= 0) return b + p.run * n;
    for (int64_t i = 0; i < p.n; i++) memcpy(into + i * n, b + w->pick[i] * n, (size_t)n * sizeof *b);
    return into;
}

void attend_scatter_add(float *b, const float *from, const struct attend_space *w, const struct attend_shape *z,
                        struct attend_picked p)
{
    int64_t n = z->G * z->D;
    for (int64_t i = 0; p.run < 0 && i < p.n; i++)
        for (int64_t j = 0; j < n; j++) b[w->pick[i] * n + j] += from[i * n + j];
}
