/* Gates: limits on a step's numbers that end the run with status 3 and the metric's name. A limit that is not set is no
 * gate; a value that is NaN, or missing (NAN too), passes none that is set.
 *
 *   first step    gates.ppo_kl, gates.clip_fraction   only when the trainer's own numerics made `old`
 *                 gates.ref_kl
 *   each step     gates.logprob_abs_diff, gates.mean_logprob_diff
 *                 gates.grad_norm_rel                 against the same step of gates.grad_norm_file
 *
 * Rank 0 has one; nothing here is collective. */
#ifndef GATE_H
#define GATE_H
#include "config.h"

struct gates {
    double ppo_kl, clip_fraction, ref_kl, logprob_abs_diff, mean_logprob_diff, grad_norm_rel; /* NAN: no gate */
    char *file;               /* of the recorded run */
    double *step, *grad_norm; /* [n] of the recorded run, in the file's order */
    int64_t n;
};

/* What is known after a step; NAN: nothing. */
struct gate_values {
    int64_t step;             /* from 1 */
    double ppo_kl, clip_fraction, ref_kl; /* of the step's first update */
    double grad_norm;
    double logprob_abs_diff;  /* train_rollout_logprob_abs_diff */
    double mean_logprob_diff; /* train_rollout_logprob_diff: mean over loss tokens of old - rollout, signed */
    bool trainer_old;         /* `old` was computed by the trainer */
};

/* Reads the recorded run where there is one. ERR_IO, ERR_FORMAT (it has no grad_norm), ERR_MEMORY. */
enum status gates_open(struct gates *g, const struct config *c);
void gates_close(struct gates *g);
/* ERR_GATE with the metric, its value and the limit. */
enum status gate_check(const struct gates *g, const struct gate_values *v);
/* Only gates.grad_norm_rel: the one that SFT has. */
enum status gate_check_norm(const struct gates *g, int64_t step, double grad_norm);
#endif
