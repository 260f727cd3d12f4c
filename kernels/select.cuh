/* The indexer in two steps over chunks of rows (t, g): the block maxima M [rows, blocks] in float32, then the choice. The
 * chunk bounds the scratch, whatever the length. */
#ifndef SELECT_CUH
#define SELECT_CUH
#include "keys.cuh"

struct select_shape {
    struct key_map map;
    const void *iq, *ik; /* [rows / I, I, D], keys of D */
    int64_t tokens;      /* rows of iq */
    int I, D, block, topk, init, local;
    int blocks;          /* columns of scores: blocks of the longest sequence */
    int max_len;
    float *scores;       /* [chunk, blocks] */
    int64_t first, n;    /* this chunk's rows */
};

/* Block maxima on tensor cores. select_fits says whether they take these tensors. */
bool select_fits(const struct select_shape *z, enum dtype t);
enum status select_scores_bf16(const struct select_shape *z, struct stream *s);

#endif
