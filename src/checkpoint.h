/* Checkpoints (FORMATS.md, "HDF5"): DIR/checkpoints/step_00000010/ holds model.h5 and optimizer.h5, global arrays under
 * the release's names, so that any mesh and any HDF5 tool can read them, beside config.json and tokenizer.json.
 *
 * A checkpoint is written as step_00000010.tmp, synced, its files marked complete, and then renamed: a folder under its
 * own name is whole, and one without the mark is passed over with a word. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "adam.h"

struct train_state {
    int64_t step;            /* updates made */
    int64_t samples;         /* drawn from the data order since the start */
    uint64_t seed;
    double best_loss;        /* of the held-out evaluations; infinity before the first */
};

struct checkpoint_args {
    const char *run_dir;
    const char *source;      /* the release the run started from: passed tensors and dtypes of an export */
    const char *files;       /* a folder with config.json, tokenizer.json and their like, to be copied */
    const char *config_text; /* the run's configuration as written back */
    int keep;                /* newest to keep; 0: all */
};

/* Writes the checkpoint of state->step. Collective over the mesh. */
enum status checkpoint_write(const struct checkpoint_args *c, const struct model *m, const struct adam *a,
                             const struct train_state *state);
/* RUN/checkpoints/best -> the checkpoint of that step, which checkpoint.keep then never removes. */
enum status checkpoint_mark_best(const char *run_dir, int64_t step);
/* The folder of a checkpoint: PATH itself, or the newest complete one of the run folder PATH (PATH@10: that step). *dir is
 * the caller's. ERR_IO when there is none; complete ones that are passed over are named in the log. */
enum status checkpoint_find(const char *path, char **dir);
/* The same for a run folder that may have none yet: *dir NULL. */
enum status checkpoint_newest(const char *run_dir, char **dir);
enum status checkpoint_arch(const char *dir, struct arch *a);
/* The release folder that the run started from; the caller's. */
enum status checkpoint_source(const char *dir, char **source);
enum status checkpoint_load_weights(const char *dir, struct model *m);
/* Weights, Adam state and counters. Collective over the mesh. */
enum status checkpoint_load(const char *dir, struct model *m, struct adam *a, struct train_state *state);
#endif
