/* Attention on the CPU by tiles, the parts that packed and paged attention share.
 *
 * A task is a tile: up to `queries` consecutive queries of one sequence and one KV head, with the G query heads that
 * read it: rows r = query * G + head, up to R of them, packed as floats. Keys come in tiles of `keys` tokens counted
 * from the sequence's start. Softmax is online, so that nothing grows with the square of the length. A sparse query
 * takes part in the key tiles that its selected blocks touch (its rows are picked into a smaller product), and blocks
 * of the tile it did not select are masked; a dense tile is the same with every row picked and nothing masked.
 *
 * Memory is `work`, one piece a thread, cut by attend_carve(). */
#ifndef ATTEND_TILE_H
#define ATTEND_TILE_H
#include "cpu.h"

/* Rows of keys or values (or index keys) of one sequence, packed or in pages. */
struct keys {
    struct tensor t;      /* [rows, heads, D] */
    int64_t first;        /* packed: row of token 0 */
    const int32_t *pages; /* paged: this sequence's pages, else NULL */
    int64_t page;
};

/* Packed sequences must lie in the T rows and be no longer than announced: work is cut for that. */
enum status check_sequences(const char *op, struct tensor cu_seqlens, int64_t T, int64_t max_seqlen);

/* n tokens from token `from` of one head as floats: in place where they lie so, else through buf [n, D]. *ld is the
 * distance of tokens. */
const float *keys_load(const struct keys *k, int64_t head, int64_t D, int64_t from, int64_t n, float *buf, int64_t *ld);

/* Sizes of one call. */
struct attend_shape {
    int64_t H, K, G, D;
    int64_t queries, keys, R; /* of a tile */
    int64_t lds;              /* distance of the rows of s and dp */
    int64_t max_len;          /* tokens of the longest sequence */
    int64_t block, slots;     /* slots 0: dense */
    float scale;
};
struct attend_shape attend_shape_of(int64_t H, int64_t K, int64_t D, int64_t max_len, struct tensor sel, int block,
                                    float scale);

/* A thread's memory. */
struct attend_space {
    float *q, *o, *s;               /* [R, D] [R, D] [R, lds] */
    float *top, *sum;               /* [R] running maximum and sum */
    float *rows, *turned;           /* [keys, D] for keys_load, [D, keys + 16] of a product */
    float *picked_q, *picked_o;     /* [R, D] */
    uint64_t *mask;                 /* [queries] selected blocks of the key tile, bit 0 its first */
    int32_t *pick;                  /* [queries] queries that take part in it */
    uint8_t *touched;               /* [key tiles] */
    /* backward */
    float *d_o, *dq, *dp;           /* [R, D] [R, D] [R, lds] */
    float *picked_d_o, *picked_dq;  /* [R, D] */
    float *delta, *lse;             /* [R] */
    float *dk, *dv;                 /* [max_len, D] */
};
/* Bytes of one thread's piece, a multiple of 64; with base, also the pointers. */
size_t attend_carve(struct attend_space *w, char *base, const struct attend_shape *z, bool backward);

/* One tile: queries [first, first + n) of q (rows of a [rows, H, D] tensor), the first at position `pos`. */
struct attend_tile {
    int64_t head;       /* KV head */
    int64_t first, n;
    int64_t pos;
    struct keys k, v;
    const int32_t *sel; /* [n, slots] of this head, or NULL */
};

/* rows of t for the tile, times scale: out [n * G, D]. */
void attend_pack(float *out, struct tensor t, const struct attend_shape *z, const struct attend_tile *u, float scale);
void attend_unpack(struct tensor t, const float *in, const struct attend_shape *z, const struct attend_tile *u);

/* The rows that take part in the key tile from token `from`. */
struct attend_picked {
    int64_t n;          /* queries */
    int64_t run;        /* the first one when they are consecutive, else -1: see space->pick */
    int64_t nk;         /* keys of this tile that any query may see */
};
/* Before the tile's first key tile: which key tiles matter. */
void attend_touch(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u);
struct attend_picked attend_pick(const struct attend_space *w, const struct attend_shape *z,
                                 const struct attend_tile *u, int64_t from);
/* -inf over what row s of a picked query may not see, causally or by selection; returns how many keys are to be looked
 * at, rounded up to whole vectors (those after are to be taken as 0). */
int64_t attend_mask(float *s, const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                    int64_t query, int64_t from, int64_t nk);
/* Query rows of buffer b [n * G, D] that were picked: in place when they are a run, else gathered into `into`. */
float *attend_gather(float *into, float *b, const struct attend_space *w, const struct attend_shape *z,
                     struct attend_picked p);
static inline int64_t attend_query(const struct attend_space *w, struct attend_picked p, int64_t i)
{
    return p.run >= 0 ? p.run + i : w->pick[i];
}
/* b rows += from, which attend_gather made (nothing to do for a run: it was worked on in place). */
void attend_scatter_add(float *b, const float *from, const struct attend_space *w, const struct attend_shape *z,
                        struct attend_picked p);

/* s [M, N] = q k^T over N tokens of one head from token `from`; N rounded up to 8 columns are written. */
void attend_scores(const struct attend_space *w, const struct keys *k, int64_t head, int64_t from, int64_t M, int64_t N,
                   int64_t D, const float *q, float *s, int64_t lds);

/* Forward of one tile: w->o holds the outputs, w->top and w->sum the softmax' maximum and sum. */
void attend_tile_forward(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                         struct tensor q);
/* Stores w->o / sum, and with lse [H, T] the log-sum-exp. A query without a key gets 0 and 0. */
void attend_tile_store(const struct attend_space *w, const struct attend_shape *z, const struct attend_tile *u,
                       struct tensor o, float *lse, int64_t T);
#endif
