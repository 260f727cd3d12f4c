/* struct trainer: everything that one `m3 train` holds, opened once and used by every step. */
#ifndef TRAINER_H
#define TRAINER_H
#include "adam.h"
#include "checkpoint.h"
#include "config.h"
#include "data.h"
#include "gate.h"
#include "metrics.h"
#include "pipeline.h"
#include "profile.h"
#include "source.h"

struct trainer {
    struct config config;
    struct source source;        /* the release or checkpoint that the weights come from */
    struct tokenizer *tok;
    const struct ops *ops;
    struct stream *stream;
    struct mesh mesh;
    struct model model;
    struct pipeline pipeline;
    struct grads grads;
    struct adam adam;
    struct dataset train, eval;
    struct data_order order;
    struct batch batch, eval_batch;
    struct sample *samples;      /* of the step, all ranks */
    struct train_state state;
    struct metrics *metrics;
    struct profile_run profile;
    struct gates gates;          /* of SFT, on rank 0 */
    int64_t adam_read, adam_written; /* bytes up to the step before */
    struct rl *rl;               /* NULL: SFT */
    char *config_text;
    bool resumed;                /* from a checkpoint of its own folder */
    bool fresh;                  /* an old run folder is set aside first */
};

/* Opens all of it: agrees over the ranks at every point where one may fail. Collective over the job. */
enum status trainer_open(struct trainer *t);
void trainer_close(struct trainer *t);
/* Steps until the end, a stop request or a failure. */
enum status trainer_run(struct trainer *t);

/* Learning rate of update number `step` (from 1): warm-up from 0, then the schedule down to min_lr at `steps`. */
double learning_rate(const struct config *c, int64_t step);
/* Mean loss per target token of held-out samples. Collective over the mesh. */
enum status evaluate(struct trainer *t, double *loss);

/* One update in two halves, used by both objectives. Forward and backward of t->batch into reduced gradients and their
 * global norm; then clipping and Adam, refused (ERR_GATE) when loss or norm is not finite. time[3] grows by the seconds of
 * forward and backward, of the reduction's rest, and of Adam. Collective over the mesh. */
enum status compute_gradients(struct trainer *t, const struct objective *o, double *norm, double time[3]);
enum status apply_gradients(struct trainer *t, double lr, double loss, double norm, double time[3]);

/* The 1F1B schedule of one step's micro-batches, a line a stage, on rank 0. */
void trainer_print_schedule(struct trainer *t);
#endif
