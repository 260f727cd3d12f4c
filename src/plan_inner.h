/* Between the files of the planner. */
#ifndef PLAN_INNER_H
#define PLAN_INNER_H
#include "plan.h"

/* The op table that arenas are measured with: memory of the machine's place that is reserved but never touched. Numeric
 * operations do nothing. */
const struct ops *plan_ops(const struct plan_machine *m);
/* A model of the planned training mesh as `rank` sees it, its mesh in *mesh; model_destroy() frees it. */
enum status plan_model(const struct plan *p, const struct plan_input *in, int rank, struct mesh *mesh, struct model *m);
/* Everything of plan_rank up to `spill` but for the rollout's, given the model. Stages with equal layers may share one
 * model: only its mesh is read for the stage. */
enum status plan_memory(const struct plan *p, const struct plan_input *in, const struct model *m, struct plan_rank *r);
/* Rollout weights, KV pages and workspaces, and the bytes that a sync brings to a rank: the same for all ranks. */
struct plan_decode {
    int64_t weights, kv, work, host, sync_bytes;
    int64_t samples, sync_host; /* host memory */
    int64_t dense_bytes, expert_bytes; /* of the weights, for decoding's time */
    int64_t page_bytes;
};
enum status plan_rollout_memory(struct plan *p, const struct plan_input *in, struct plan_decode *d);
/* Seconds of each part, from p->stage; `models` are those of the stages. */
void plan_times(struct plan *p, const struct plan_input *in, const struct plan_decode *d);
/* What leaves and what is computed in a step. */
void plan_counts(const struct plan *p, const struct plan_input *in, const struct model *m, struct plan_rank *r);
/* Share of a group's other members, `size` of them `stride` apart, that the fast links of this rank do not reach. */
double plan_outside(const struct plan_machine *m, int rank, int stride, int size);

static inline int64_t plan_align(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
#endif
