/* Every mesh for a number of ranks. */
#include "plan_inner.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status add(struct plan_sweep *s, int *cap, const struct plan_candidate *c)
{
    if (s->n == *cap) {
        *cap = *cap ? 2 * *cap : 64;
        struct plan_candidate *grown = realloc(s->list, (size_t)*cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%d meshes", *cap);
        s->list = grown;
    }
    s->list[s->n++] = *c;
    return OK;
}

/* Fitting ones by speed, then those that do not fit by memory, then the impossible. */
static int best_first(const void *x, const void *y)
{
    const struct plan_candidate *a = x, *b = y;
    int ka = a->fits ? 0 : a->possible ? 1 : 2, kb = b->fits ? 0 : b->possible ? 1 : 2;
    if (ka != kb) return ka - kb;
    if (ka == 0 && a->tokens_per_s != b->tokens_per_s) return a->tokens_per_s < b->tokens_per_s ? 1 : -1;
    if (ka == 1 && a->peak != b->peak) return a->peak > b->peak ? 1 : -1;
    int da = a->shape.tp * 65536 + a->shape.pp * 256 + a->shape.ep, db = b->shape.tp * 65536 + b->shape.pp * 256 + b->shape.ep;
    return (da > db) - (da < db);
}

static enum status try_one(struct plan_candidate *c, const struct plan_input *in, struct plan *p)
{
    struct config config = *in->config;
    struct plan_input now = *in;
    now.config = &config;
    config.mesh.tp = c->shape.tp;
    config.mesh.pp = c->shape.pp;
    config.mesh.ep = c->shape.ep;
    config.mesh.dp = config.rollout.dp = 0;
    config.mesh.layers_per_stage = (struct int_list){0};
    enum status s = plan_estimate(p, &now);
    if (s && s != ERR_CONFIG) return s;
    if (s) {
        snprintf(c->why, sizeof c->why, "%s", status_message());
        return OK;
    }
    c->shape = p->shape;
    c->possible = true;
    c->fits = p->fits;
    c->tokens_per_s = p->tokens_per_s;
    c->mfu = p->mfu;
    c->step_s = p->step_s;
    c->peak = p->stage[p->worst].peak;
    snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, p->fits ? "" : p->why);
    return OK;
}

/* Divisors of the job, each up to twice what the model could allow, so that the table says why not. */
enum status plan_sweep_run(struct plan_sweep *s, const struct plan_input *in)
{
    int cap = 0, ranks = in->ranks;
    struct plan *p = malloc(sizeof *p);
    *s = (struct plan_sweep){0};
    if (!p) return FAIL(ERR_MEMORY, "a plan");
    enum status st = OK;
    for (int tp = 1; tp <= ranks && tp <= 2 * in->arch->heads && !st; tp++) {
        if (ranks % tp) continue;
        for (int pp = 1; pp <= ranks / tp && pp <= 2 * in->arch->layers && !st; pp++) {
            if (ranks / tp % pp) continue;
            int plane = ranks / pp;
            for (int ep = 1; ep <= plane && ep <= 2 * in->arch->experts && !st; ep++) {
                if (plane % ep) continue;
                struct plan_candidate c = {.shape = {.tp = tp, .pp = pp, .ep = ep, .dp = ranks / tp / pp}};
                st = try_one(&c, in, p);
                if (!st) st = add(s, &cap, &c);
            }
        }
    }
    free(p);
    if (s->n) qsort(s->list, (size_t)s->n, sizeof *s->list, best_first);
    return st;
}

void plan_sweep_free(struct plan_sweep *s)
{
    free(s->list);
    *s = (struct plan_sweep){0};
}

void plan_sweep_print(const struct plan_sweep *s, int show, FILE *out)
{
    int kind[3] = {0}, n[3] = {0};
    for (int i = 0; i < s->n; i++) n[s->list[i].fits ? 0 : s->list[i].possible ? 1 : 2]++;
    fprintf(out, "%d meshes: %d fit, %d do not fit, %d are impossible\n", s->n, n[0], n[1], n[2]);
    fprintf(out, "    tp   pp   ep    dp    tokens/s     step s    MFU  peak GB\n");
    for (int i = 0; i < s->n; i++) {
        const struct plan_candidate *c = &s->list[i];
        int k = c->fits ? 0 : c->possible ? 1 : 2;
        if (kind[k]++ == show && show > 0) fprintf(out, "  ... and %d more\n", n[k] - show);
        if (kind[k] > show && show > 0) continue;
        fprintf(out, "  %4d %4d %4d %5d", c->shape.tp, c->shape.pp, c->shape.ep, c->shape.dp);
        if (c->possible)
            fprintf(out, "  %10.0f %10.4g %5.1f%% %8.1f", c->tokens_per_s, c->step_s, 100 * c->mfu, 1e-9 * (double)c->peak);
        fprintf(out, "  %s\n", c->why);
    }
}

enum status plan_sweep_json(const struct plan_sweep *s, FILE *out)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++) {
        const struct plan_candidate *c = &s->list[i];
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:i, s:b, s:b, s:f, s:f, s:f, s:I, s:s}", "tp", c->shape.tp,
                                              "pp", c->shape.pp, "ep", c->shape.ep, "dp", c->shape.dp, "possible",
                                              c->possible, "fits", c->fits, "tokens_per_s", c->tokens_per_s, "step_s",
                                              c->step_s, "mfu", c->mfu, "peak_bytes", (json_int_t)c->peak, "why", c->why));
    }
    int failed = json_dumpf(list, out, JSON_INDENT(2));
    json_decref(list);
    if (failed || fprintf(out, "\n") < 0) return FAIL(ERR_IO, "the sweep could not be written");
    return OK;
}
