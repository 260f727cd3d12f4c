/* The RL step: roll out, reward, advantage, old and reference log-probs, updates, sync, gates (RL.md).
 *
 *   sync ─► rollout ─► reward ─► advantage ─┬─► refill flat groups (dynamic sampling)
 *                                           └─► old, ref: forward only ─► updates_per_batch x (forward, backward, Adam)
 *
 * The step's samples are on every rank (struct experience); each update packs its share of them over the training mesh.
 * `old` is computed with the packing of its update, so that the first update of on-policy weights has a ratio of 1 to
 * the last bit. */
#ifndef RL_H
#define RL_H
#include "gate.h"
#include "policy.h"
#include "record.h"
#include "reference.h"
#include "reward.h"
#include "worker.h"

struct trainer;

struct rl {
    struct worker worker;
    struct prompts prompts, held_out;
    struct data_order order;      /* of the prompts */
    struct experience e, greedy;  /* of the step; of the held-out prompts */
    struct reward *reward;        /* rank 0 */
    struct record_reader *replay; /* rank 0, with train.replay */
    struct reference reference;
    bool use_reference;
    bool replay_mode;             /* every rank: train.replay is set */
    struct gates gates;
    struct gate_values gate;      /* of the last step */
    struct policy_args policy;
    struct policy_total total;    /* denominators of the update under way */
    struct policy_sums sums;      /* of the update under way, this rank's part */
    double *row;                  /* [7, max_new] one sample's arrays for policy_sample() */
    int *which;                   /* [samples] being generated */
    char **answer;                /* [samples] rank 0 */
    double *gaps;                 /* [samples] for the quantile */
    int32_t stop;                 /* id that ends a response; -1: none */
    int64_t flat_groups, refills, bad_rewards, truncated;
};

/* Tokens of the longest prompt, so that memory can be planned: reads prompts before the pipeline exists. Collective over
 * the world. */
enum status rl_open_data(struct trainer *t);
/* Longest sample, and samples of an update. */
int64_t rl_longest(const struct trainer *t);
int64_t rl_share(const struct trainer *t);
/* The rest, once weights, gradients and pipeline exist. Collective over the world. */
enum status rl_open(struct trainer *t);
void rl_close(struct trainer *t);
/* One step; adds its numbers to t->metrics. ERR_STOPPED when asked to stop while generating: nothing was changed.
 * Collective over the world. */
enum status rl_step(struct trainer *t);
/* The gates of the step before, once its line is written: ERR_GATE with the metric's name. Collective over the world. */
enum status rl_gates(struct trainer *t);
/* The held-out prompts, greedily: share of rewards of at least 1, and their mean. Collective over the world. */
enum status rl_evaluate(struct trainer *t, double *accuracy, double *mean);
/* For pipeline.replay, ctx: the trainer. */
void rl_fill_replay(void *ctx, const struct micro *u, int32_t *experts);
#endif
