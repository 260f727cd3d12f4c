/* The rollout side of a step: a mesh and a model of its own (rollout.tp, rollout.ep, rollout.dp; no pipeline), kept equal
 * to the trained one by sync.c, and the engine that generates. The ranks are those of the training mesh. */
#ifndef WORKER_H
#define WORKER_H
#include "experience.h"
#include "sync.h"

struct worker {
    struct mesh mesh;
    struct model model;
    struct sync sync;
    struct rollout engine;
    bool check;               /* rl.check_weight_update_equal */
    struct request *request;  /* [capacity] of this rank's dp group */
    int *owner;               /* [capacity] dp coordinate that generates a sample */
    int capacity;
};

/* Builds mesh, model and engine for prompts of at most max_prompt tokens and `capacity` samples at a time. KV pages and
 * workspace are carved out of the n_lenders arenas where there is room (they hold nothing between steps), else
 * allocated. Collective over the world. */
enum status worker_open(struct worker *w, const struct config *c, struct model *trained, int max_prompt, int max_new,
                        int capacity, struct arena *const *lender, int n_lenders);
void worker_close(struct worker *w);
/* Brings the rollout weights up to the trained ones and, where asked, proves it; scribbles over them before the first
 * time. Collective over the world. */
enum status worker_update(struct worker *w);
/* Generates samples which[0..n) of e, whose prompts are set, and shares them with all ranks. ERR_STOPPED on every rank
 * when one was asked to stop. Collective over the world. */
enum status worker_generate(struct worker *w, struct experience *e, const int *which, int n,
                            const struct rollout_run *run);
#endif
