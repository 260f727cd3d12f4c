/* The indexer's scores and choice for a tile of queries, packed or paged: M[g,t,b] = max over keys j <= t of block b of
 * <iq[t,g], ik[j]>, then the blocks of each (t, g). All index heads share one key, so the rows of a tile are (t, g) as
 * they lie in iq. */
#ifndef SELECT_TILE_H
#define SELECT_TILE_H
#include "attend_tile.h"

struct select_shape {
    int64_t I, D;
    int64_t queries, keys; /* of a tile */
    int64_t max_blocks, block, topk, init, local;
};
struct select_shape select_shape_of(int64_t I, int64_t D, int64_t max_len, int block, int topk, int init, int local);

/* A thread's memory. */
struct select_space {
    float *q;     /* [queries * I, D] */
    float *s;     /* [queries * I, keys] */
    float *most;  /* [queries * I, max_blocks] */
    float *rows, *turned; /* [keys, D] [D, keys] */
    float *best;  /* [topk] */
};
/* As attend_carve(). */
size_t select_carve(struct select_space *w, char *base, const struct select_shape *z);

/* Queries [first, first + n) of iq [rows, I, D], the first at position `pos` of its sequence, against the keys ik;
 * writes sel [I, rows, topk]. */
void select_tile(const struct select_space *w, const struct select_shape *z, struct tensor sel, struct tensor iq,
                 const struct keys *ik, int64_t first, int64_t n, int64_t pos);
/* sel rows [first, all) of every head become -1. */
void select_none(struct tensor sel, int64_t first);
#endif
