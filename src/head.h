/* The two ends of the model: token embedding, and final norm + vocabulary projection + log-probs. The vocabulary is split
 * over tp; logits are never gathered in training: each rank reduces its columns to four numbers a token, which are
 * gathered and joined. Logits exist for `chunk` tokens at a time; with one chunk the backward finds them where the
 * forward left them, with several it makes them again. */
#ifndef HEAD_H
#define HEAD_H
#include "block.h"

struct head {
    int64_t chunk;               /* tokens a chunk */
    struct tensor h_shard, h;    /* [Tl, C] [T, C] normalised */
    struct tensor rstd;          /* [Tl] f32 */
    struct tensor logits;        /* [chunk, Vl] */
    struct tensor stats, all_stats; /* [chunk, 4] [tp, chunk, 4] f32 */
    struct tensor logp, entropy, lse; /* [T] f32 */
    struct tensor dlogp, dentropy;  /* [T] f32: set by the caller before head_backward */
    struct tensor dh, dh_shard;  /* [T, C] [Tl, C] */
    struct tensor picked;        /* [chunk, C] decoding: rows whose logits are wanted */
    struct tensor gathered, whole; /* [chunk V] [chunk, V] decoding with tp > 1 */
    const void *holds;           /* whose logits `logits` are: data of x, when it is a single chunk */
};

/* What the head is for decides what it carves: HEAD_DECODE has no log-probs, `chunk` is the rows picked at most. */
enum head_use { HEAD_TRAIN, HEAD_SCORE, HEAD_DECODE };
enum status head_carve(struct head *hd, const struct model *m, int64_t T, int64_t chunk, enum head_use use,
                       struct arena *a);

/* x [Tl, C] = embeddings of ids [T]. Collective over tp. `part` [T, C] is scratch. */
enum status embed_forward(const struct model *m, struct tensor x, struct tensor ids, struct tensor part);
enum status embed_backward(const struct model *m, struct tensor dx, struct tensor ids, struct tensor full);

/* logp, entropy, lse [T] of targets [T] (-1: none) given the stage output x [Tl, C]. Collective over tp. */
enum status head_forward(const struct model *m, struct head *hd, int64_t T, struct tensor x, struct tensor targets,
                         float inv_temp);
/* dx [Tl, C] = from hd->dlogp and, when `entropy`, hd->dentropy; += d_head, d_final_norm. */
enum status head_backward(const struct model *m, struct head *hd, int64_t T, struct tensor dx, struct tensor x,
                          struct tensor targets, float inv_temp, bool entropy);
/* *out [N, V]: whole-vocabulary logits of rows index [N] i32 of the packed tokens, N <= chunk. Collective over tp. */
enum status head_logits(const struct model *m, struct head *hd, int64_t T, struct tensor x, struct tensor index,
                        struct tensor *out);
#endif
