/* m3 plan: what a configuration takes on a machine, without the machine: memory of every rank from the arenas' own size
 * functions, bytes on disk and on each network, floating-point operations, the time of a step by stage, whether it fits
 * and what would instead.
 *
 * Ranks of one pipeline stage differ by less than a bucket's alignment; each stage is represented by the rank that holds
 * the most of it. Bytes on networks are what leaves that rank in a step, counted as comm.h counts them. Times are
 * estimates from the machine file: each stage of the step is the sum of its parts' larger of compute and memory time,
 * plus the communication that nothing hides. */
#ifndef PLAN_H
#define PLAN_H
#include "config.h"
#include "model.h"
#include "plan_machine.h"
#include "rollout.h"

/* What is planned. plan_input_default() fills the last six from the configuration; a run that knows its data sets them. */
struct plan_input {
    const struct config *config;
    const struct arch *arch;
    const struct plan_machine *machine;
    int ranks;
    int32_t longest;         /* tokens of the longest sample */
    int64_t sequences;       /* most of them in one micro-batch */
    double sample_tokens;    /* mean tokens of a sample */
    int32_t prompt_tokens;   /* RL: longest prompt */
    int64_t held_out;        /* RL: prompts of an evaluation */
    double response_tokens;  /* RL: mean tokens of a response */
};

enum plan_net { PLAN_TP, PLAN_EP, PLAN_PP, PLAN_DP, PLAN_SYNC, PLAN_NETS };
extern const char *const plan_net_name[PLAN_NETS];

/* A rank of one pipeline stage. Bytes unless said. */
struct plan_rank {
    int stage, rank, first_layer, layers;
    int64_t params, trained;  /* parameters it holds */
    int64_t adam_elems;       /* trained parameters, and padding between them, whose Adam state it owns */
    int64_t weights, rollout_weights, gradients;
    int64_t activations[3];   /* by enum recompute; the configuration's counts */
    int64_t adam;             /* resident state, or the buckets of a streamed one */
    int64_t kv, rollout_work; /* KV pages; the decoding's workspaces */
    int64_t lent;             /* of these two, what lies in the memory of gradients and activations between steps */
    int64_t reference;        /* the reference model: all of it on a CPU, else where one layer at a time passes through */
    int64_t comm, reserved;   /* communication buffers; what the machine keeps for itself */
    int64_t peak;             /* all of the above where the tensors live: GPU, or host on a CPU */
    int64_t host;             /* host memory beside that, the sum of the next five */
    int64_t host_work, host_adam, host_samples, host_sync; /* micro-batches; pinned buckets of a streamed Adam; the step's
                                 samples; exchange of weights with the rollout mesh */
    int64_t host_reference;   /* the reference model, pinned */
    int64_t spill;            /* of the optimizer state on local disk */
    int64_t sent[PLAN_NETS];  /* leaving it in a step */
    double flops;             /* it computes in a step's forwards and backwards, recomputation included */
};

enum plan_part { PLAN_ROLLOUT, PLAN_OLD, PLAN_REF, PLAN_FORWARD_BACKWARD, PLAN_REDUCE, PLAN_ADAM, PLAN_SYNC_TIME, PLAN_PARTS };
extern const char *const plan_part_name[PLAN_PARTS];

struct plan {
    struct mesh_shape shape, rollout_shape; /* dp filled in */
    int ranks, nodes, ranks_per_node;
    enum dtype dtype, rollout_dtype;
    enum recompute recompute;
    int64_t params, trained;   /* of the model */
    int64_t adam_state;        /* bytes of Adam state of the model: master and moments */
    bool spilled, aliased, rl, rollouts; /* rollouts: RL that generates, not replays */
    int64_t rows, micro_batches; /* rows of the largest micro-batch; micro-batches of an update on each rank */
    int updates;               /* of a step */
    int64_t page_tokens, pages; /* KV */
    double samples, tokens;    /* of a step, all ranks */
    int n_stages, worst;       /* worst: the stage with the largest peak */
    struct plan_rank stage[MESH_MAX_STAGES];
    int64_t host_node, spill_node, checkpoint; /* worst node; a whole checkpoint */
    double time[PLAN_PARTS], step_s, bubble, checkpoint_s; /* bubble: share of forward_backward that stages wait */
    double model_flops;        /* of a step: forward, and twice that for what is trained; no recomputation */
    double tokens_per_s, mfu;
    char limit[200];           /* what takes most of the step */
    bool fits;
    char why[300];             /* not: the memory or disk that is too small, with both numbers */
    char instead[300];         /* not: keys that would make it fit, "" when none was found */
};

void plan_input_default(struct plan_input *in, const struct config *c, const struct arch *a, const struct plan_machine *m,
                        int ranks);
/* ERR_CONFIG when the mesh is impossible, with mesh_check()'s message; one that does not fit is no failure: p->fits. */
enum status plan_compute(struct plan *p, const struct plan_input *in);
/* The same without the search for what would fit instead. */
enum status plan_estimate(struct plan *p, const struct plan_input *in);
void plan_print(const struct plan *p, const struct plan_input *in, FILE *out);
enum status plan_print_json(const struct plan *p, const struct plan_input *in, FILE *out);

/* Meshes for `in->ranks` ranks, the fastest first; those that cannot be with the reason. */
struct plan_candidate {
    struct mesh_shape shape;
    bool possible, fits;
    double tokens_per_s, mfu, step_s;
    int64_t peak;
    char why[200];
};
struct plan_sweep {
    struct plan_candidate *list; /* owned */
    int n;
};
enum status plan_sweep_run(struct plan_sweep *s, const struct plan_input *in);
void plan_sweep_free(struct plan_sweep *s);
/* The best mesh for in->ranks, twice as many, ... `most` ranks: the batch as it is (strong) and growing with the ranks (weak).
 * A table on `out` and, unless NULL, curves in `picture`, .svg or (any other name) PNG. */
enum status plan_scaling(const struct plan_input *in, int most, const char *picture, FILE *out);
void plan_sweep_print(const struct plan_sweep *s, int show, FILE *out);
enum status plan_sweep_json(const struct plan_sweep *s, FILE *out);

/* One rank by itself: memory, what it sends and computes. `p` comes from plan_estimate() or plan_compute(). */
enum status plan_rank_of(const struct plan *p, const struct plan_input *in, int rank, struct plan_rank *r);

struct trainer;
/* Logs what the run planned for this rank against what its arenas took, and the largest difference of all ranks; a warning
 * where that is over 3%. Collective over the world. */
enum status plan_compare(struct trainer *t);

/* Floating-point operations of one token of a sample of `sample_tokens`, forward, through layers [first, first + n) and
 * the head: a rank has 1/tp of it. */
struct plan_flops {
    double dense, experts, attention; /* products with weights that all tokens share; with routed experts; of attention */
    double frozen;                    /* the indexer's part, which has no backward */
};
struct plan_flops plan_flops(const struct arch *a, int first, int n, bool head, double sample_tokens);
/* += bytes that leave a rank in one micro-batch of `rows` rows (tp's multiple), forward, or forward and backward; and in
 * one update. Expert rows are taken as spread evenly. `chunk` as in pipeline_options. */
void plan_sent_micro(const struct model *m, int64_t rows, int64_t chunk, enum recompute r, bool backward,
                     double sent[PLAN_NETS]);
void plan_sent_update(const struct model *m, double sent[PLAN_NETS]);

/* m3 plan CONFIG.yaml [key=value ...] */
enum status command_plan(int argc, char **argv);
#endif
