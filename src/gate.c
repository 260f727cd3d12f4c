#include "gate.h"

#include "metrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum status read_recorded(struct gates *g)
{
    struct metrics_table t;
    TRY(metrics_read(&t, g->file));
    const struct series *s = metrics_series(&t, "grad_norm");
    enum status st = s && s->n > 0 ? OK : FAIL(ERR_FORMAT, "gates.grad_norm_file: %s has no grad_norm", g->file);
    if (!st) {
        g->n = s->n;
        g->step = calloc((size_t)s->n, sizeof *g->step);
        g->grad_norm = calloc((size_t)s->n, sizeof *g->grad_norm);
        if (!g->step || !g->grad_norm) st = FAIL(ERR_MEMORY, "%" PRId64 " recorded steps", s->n);
    }
    if (!st) {
        memcpy(g->step, s->step, (size_t)s->n * sizeof *g->step);
        memcpy(g->grad_norm, s->value, (size_t)s->n * sizeof *g->grad_norm);
    }
    metrics_table_free(&t);
    return st;
}

enum status gates_open(struct gates *g, const struct config *c)
{
    *g = (struct gates){.ppo_kl = c->gates.ppo_kl, .clip_fraction = c->gates.clip_fraction, .ref_kl = c->gates.ref_kl,
                        .logprob_abs_diff = c->gates.logprob_abs_diff, .mean_logprob_diff = c->gates.mean_logprob_diff,
                        .grad_norm_rel = c->gates.grad_norm_rel};
    if (!config_is_set(g->grad_norm_rel)) return OK;
    g->file = strdup(c->gates.grad_norm_file);
    enum status s = g->file ? read_recorded(g) : FAIL(ERR_MEMORY, "gates.grad_norm_file");
    if (s) gates_close(g);
    return s;
}

void gates_close(struct gates *g)
{
    free(g->file);
    free(g->step);
    free(g->grad_norm);
    *g = (struct gates){.ppo_kl = NAN, .clip_fraction = NAN, .ref_kl = NAN, .logprob_abs_diff = NAN,
                        .mean_logprob_diff = NAN, .grad_norm_rel = NAN};
}

/* |value| < limit; NaN is not below anything. */
static enum status below(const char *key, const char *metric, double limit, double value, int64_t step)
{
    if (!config_is_set(limit) || fabs(value) < limit) return OK;
    if (isnan(value))
        return FAIL(ERR_GATE, "gate %s=%g failed at step %" PRId64 ": %s is NaN or missing", key, limit, step, metric);
    return FAIL(ERR_GATE, "gate %s=%g failed at step %" PRId64 ": |%s| is %.9g", key, limit, step, metric, fabs(value));
}

/* The recorded value of a step: the last one of that number, NAN when there is none. */
static double recorded(const struct gates *g, int64_t step)
{
    for (int64_t i = g->n - 1; i >= 0; i--)
        if (g->step[i] == (double)step) return g->grad_norm[i];
    return NAN;
}

enum status gate_check_norm(const struct gates *g, int64_t step, double grad_norm)
{
    if (!config_is_set(g->grad_norm_rel)) return OK;
    double was = recorded(g, step);
    if (fabs(grad_norm - was) <= g->grad_norm_rel * fabs(was)) return OK;
    if (isnan(was))
        return FAIL(ERR_GATE, "gate gates.grad_norm_rel=%g failed at step %" PRId64 ": grad_norm is %.9g, and %s has "
                    "none for this step", g->grad_norm_rel, step, grad_norm, g->file);
    return FAIL(ERR_GATE, "gate gates.grad_norm_rel=%g failed at step %" PRId64 ": grad_norm is %.9g, %.9g in %s",
                g->grad_norm_rel, step, grad_norm, was, g->file);
}

enum status gate_check(const struct gates *g, const struct gate_values *v)
{
    if (v->step == 1) {
        if (v->trainer_old) {
            TRY(below("gates.ppo_kl", "ppo_kl", g->ppo_kl, v->ppo_kl, v->step));
            TRY(below("gates.clip_fraction", "clip_fraction", g->clip_fraction, v->clip_fraction, v->step));
        }
        TRY(below("gates.ref_kl", "ref_kl", g->ref_kl, v->ref_kl, v->step));
    }
    TRY(below("gates.logprob_abs_diff", "train_rollout_logprob_abs_diff", g->logprob_abs_diff, v->logprob_abs_diff,
              v->step));
    TRY(below("gates.mean_logprob_diff", "train_rollout_logprob_diff", g->mean_logprob_diff, v->mean_logprob_diff,
              v->step));
    return gate_check_norm(g, v->step, v->grad_norm);
}
