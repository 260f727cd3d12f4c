/* Samples, and how a step's samples become micro-batches.
 *
 * A sample is one sequence of token ids; token t is predicted from those before it when mask[t] is 1. Each
 * data-parallel rank takes its share of a batch and packs it into micro-batches of at most `budget` tokens, a sample
 * never split; one longer than the budget has a micro-batch of its own. The assignment is a function of the lengths and
 * the mesh alone, the same on every rank. The number of micro-batches is the largest of any rank: ranks that have fewer
 * run empty ones, because expert groups span dp. */
#ifndef BATCH_H
#define BATCH_H
#include "status.h"
#include <stdint.h>

struct sample {
    int64_t id;              /* its number in the dataset or rollout: follows it everywhere */
    int32_t n;               /* tokens */
    const int32_t *ids;      /* [n] */
    const uint8_t *mask;     /* [n], mask[0] is never a target */
};

/* One packed micro-batch, host arrays. Row t carries the loss of predicting token t + 1 of its sequence. */
struct micro {
    int64_t T, valid;        /* rows, and those of a sequence; T is a multiple of tp */
    int S, max_seqlen;
    int32_t *ids, *pos;      /* [T]; fill rows: -1, 0 */
    int32_t *targets;        /* [T] next token where it is a target, else -1 */
    int32_t *cu_seqlens;     /* [S + 1] */
    int32_t *sample;         /* [S] index in the batch's samples */
};

struct batch {
    const struct sample *samples;
    int n;
    int n_micro;             /* agreed */
    struct micro *micro;
    int64_t tokens, targets; /* of the whole batch, all ranks */
    int64_t *arena;          /* one block behind the micro-batches; grows, is reused by the next batch */
    size_t arena_bytes;
    int micro_cap;
};

/* Rows that the longest micro-batch can have: max(budget, longest sample) rounded up to tp. */
int64_t batch_max_rows(int64_t budget, int64_t longest_sample, int tp);
/* Fills b with this rank's micro-batches of `samples`. `b` starts zeroed and is reused. */
enum status batch_pack(struct batch *b, const struct sample *samples, int n, int64_t budget, int tp, int dp,
                       int dp_rank);
void batch_free(struct batch *b);
#endif
