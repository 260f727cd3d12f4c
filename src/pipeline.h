/* Micro-batches through the stages: the 1F1B schedule as data, and the run of it.
 *
 * Stage s of pp runs min(pp - s - 1, n) forwards ahead, then one forward and one backward in turn, then the backwards
 * that are left, so that at most pp - s micro-batches are in flight:
 *
 *   pp 2, n 3   stage 0:  F0 F1 B0 F2 B1 B2        between stages: activations [Tl, C] down, gradients [Tl, C] up,
 *               stage 1:  F0 B0 F1 B1 F2 B2        each tp rank to the same tp rank of the next stage
 *
 * Without pipeline parallelism it is F0 B0 F1 B1 ...: embed, blocks, head, loss, and back. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "batch.h"
#include "head.h"

struct grads;

enum step_kind { STEP_FORWARD, STEP_BACKWARD };
struct schedule_step {
    enum step_kind kind;
    int micro;
};
/* Writes 2 n steps (n when forward_only) for this stage, returns how many. */
int schedule_build(struct schedule_step *steps, int pp, int stage, int n, bool forward_only);
/* The whole schedule as text, a line a stage. */
void schedule_print(int pp, int n, void (*line)(void *ctx, const char *text), void *ctx);

/* What the last stage does with a micro-batch's log-probs: fills d loss / d logp [T] (0 where there is no target) and,
 * when it sets *use_entropy, d loss / d entropy [T]. Called on every tp rank of the last stage with the same numbers. */
struct objective {
    enum status (*loss)(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                        float *dentropy, bool *use_entropy);
    void *ctx;
    float inv_temp;              /* logits are divided by the temperature; 0 is 1 */
};

/* Looks at a micro-batch on the way (score): after the stage's forward, before buffers are reused. */
struct observer {
    enum status (*seen)(void *ctx, const struct micro *u, int micro, struct activations *act, struct head *hd);
    void *ctx;
};

/* Routing replay: the experts of this rank's rows of a micro-batch, [layers of the stage, Tl, k], dense layers untouched. */
struct replay {
    void (*fill)(void *ctx, const struct micro *u, int32_t *experts);
    void *ctx;
};

/* Brings in the weights of layer l of the stage before its forward (-1: the embedding, n_layers: norm and head). */
struct fetch {
    enum status (*layer)(void *ctx, int l);
    void *ctx;
};

/* One micro-batch in flight. */
struct in_flight {
    struct activations act;
    struct tensor ids, pos, targets, cu_seqlens; /* [T] [T] [T] [S + 1] at ops->place */
    struct tensor replay;        /* [layers of the stage, Tl, k] i32, with options.replay */
    struct pass pass;
};

struct pipeline {
    struct model *m;
    struct block_limits limits;
    struct workspace work;
    struct saved_layer shared;
    struct head head;
    struct in_flight *slot;      /* [slots] */
    int slots;
    struct tensor dy[2];         /* [Tl, C] gradients of the stage's output and input, in turn */
    struct pending send_down, send_up;
    struct schedule_step *steps;
    int steps_cap;
    float inv_temp;              /* of the run under way */
    struct replay replay;        /* set by the caller, with options.replay */
    struct fetch fetch;          /* of a model whose weights are elsewhere */
    int32_t *host_replay;        /* [layers of the stage, Tl, k] */
    int32_t *host_experts;       /* [layers of the stage, Tl, k] */
    double *expert_rows;         /* [layers of the model, E] rows that this rank's tokens sent to each expert in training
                                    passes since the caller zeroed it; NULL: not counted */
    float *host;                 /* [4, T] logp, entropy, dlogp, dentropy on the host */
    struct arena device, host_arena;
    void *host_block;
};

struct pipeline_options {
    int64_t T, S;                /* largest micro-batch: rows and sequences */
    int max_seqlen;
    int64_t logits_chunk;        /* 0: all rows at once */
    enum recompute recompute;
    bool train, deterministic;
    bool replay;                 /* room for routing replay */
    bool count_experts;          /* add up pipeline.expert_rows */
};

/* Bytes at ops->place that pipeline_create() will take: the same code over a measuring arena. */
enum status pipeline_bytes(const struct model *m, const struct pipeline_options *o, size_t *device, size_t *host);
enum status pipeline_create(struct pipeline *p, struct model *m, const struct pipeline_options *o);
void pipeline_destroy(struct pipeline *p);

/* All micro-batches of `b`, forward and, when `grads` is not NULL, backward (+= gradients; each bucket is handed to
 * `grads` when its last gradient is done). Collective over the mesh. */
enum status pipeline_run(struct pipeline *p, const struct batch *b, const struct objective *o, struct grads *grads,
                         const struct observer *seen);
#endif
