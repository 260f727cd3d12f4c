/* What a run planned for itself against what it took. */
#include "plan_inner.h"
#include "trainer.h"

#include "rl.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { WEIGHTS, ROLLOUT, GRADIENTS, ACTIVATIONS, ADAM, DECODING, REFERENCE, HOST, KINDS };
static const char *const kind_name[KINDS] = {"weights", "rollout weights", "gradients", "activations", "adam",
                                             "KV and decoding", "reference", "host buffers"};

static int64_t held(const struct model *m) { return (int64_t)(m->weights[0].size + m->weights[1].size); }

/* The run's own sizes, where the configuration only knows limits. */
static void describe(struct plan_input *in, const struct trainer *t, const struct plan_machine *m)
{
    plan_input_default(in, &t->config, &t->model.arch, m, t->mesh.world.size);
    in->longest = t->pipeline.limits.max_seqlen;
    in->sequences = t->pipeline.limits.S;
    if (in->sample_tokens > in->longest) in->sample_tokens = in->longest;
    if (!t->rl) return;
    in->prompt_tokens = t->rl->e.max_prompt;
    in->held_out = t->rl->greedy.n;
}

static void planned(const struct plan_rank *r, int64_t x[KINDS])
{
    x[WEIGHTS] = r->weights;
    x[ROLLOUT] = r->rollout_weights;
    x[GRADIENTS] = r->gradients;
    x[ACTIVATIONS] = r->activations[RECOMPUTE_NONE];
    x[ADAM] = r->adam;
    x[DECODING] = r->kv + r->rollout_work - r->lent;
    x[REFERENCE] = r->reference;
    x[HOST] = r->host;
}

static int64_t experience_held(const struct experience *e)
{
    return experience_bytes(e->capacity, e->max_prompt, e->max_new, e->moe_layers, e->k);
}

static void taken(const struct trainer *t, int64_t x[KINDS])
{
    x[WEIGHTS] = held(&t->model);
    x[GRADIENTS] = (int64_t)t->model.grads.size;
    x[ACTIVATIONS] = (int64_t)t->pipeline.device.size;
    x[ADAM] = (int64_t)adam_bytes(&t->adam);
    x[HOST] = (int64_t)t->pipeline.host_arena.size;
    if (t->adam.spill && t->ops->place != PLACE_HOST) x[HOST] += x[ADAM]; /* the ring's pinned copy */
    if (!t->rl) return;
    const struct worker *w = &t->rl->worker;
    const struct reference *ref = &t->rl->reference;
    bool staged = ref->trained && ref->host;
    x[ROLLOUT] = w->sync.aliased ? 0 : held(&w->model);
    x[DECODING] = (int64_t)(w->engine.page_bytes + w->engine.work_bytes - w->engine.lent_bytes);
    x[REFERENCE] = !ref->trained ? 0 : staged ? (int64_t)ref->staging.size : held(&ref->m);
    x[HOST] += experience_held(&t->rl->e) + experience_held(&t->rl->greedy) + (int64_t)w->engine.host_arena.size +
               (staged ? held(&ref->m) : 0);
    if (w->sync.window_bytes) x[HOST] += w->sync.window_bytes * (t->mesh.world.size + 2);
}

static double share(int64_t is, int64_t plan) { return 100 * ((double)is - (double)plan) / (double)(plan > 0 ? plan : 1); }

static void show(const struct plan_rank *r, const int64_t plan[KINDS], const int64_t is[KINDS])
{
    const double mib = 1.0 / (1 << 20);
    struct rusage u;
    char line[1024];
    int at = 0;
    for (int k = 0; k < KINDS; k++)
        if (plan[k] || is[k])
            at += snprintf(line + at, sizeof line - (size_t)at, "%s %s %.1f / %.1f", at ? "," : "", kind_name[k],
                           mib * (double)plan[k], mib * (double)is[k]);
    getrusage(RUSAGE_SELF, &u);
    log_info("memory of rank %d, planned / taken, MiB:%s; the process reached %.1f", r->rank, line, (double)u.ru_maxrss / 1024);
}

enum status plan_compare(struct trainer *t)
{
    struct plan_machine m = {.name = "this one", .gpu = t->ops->place != PLACE_HOST, .ranks_per_node = comm_local_size(),
                             .link_ranks = comm_local_size(), .flops = 1, .gemm_share = 1, .grouped_share = 1,
                             .attention_share = 1, .memory_bytes_s = 1, .memory_share = 1, .memory_bytes = 1e18,
                             .link_bytes_s = 1, .link_share = 1, .network_bytes_s = 1, .network_share = 1, .host_bytes = 1e18,
                             .disk_bytes = 1e18, .disk_read_bytes_s = 1, .disk_write_bytes_s = 1, .shared_bytes_s = 1};
    struct plan_input in;
    struct plan_rank r = {0};
    struct plan *p = malloc(sizeof *p);
    int64_t plan[KINDS] = {0}, is[KINDS] = {0}, all[2] = {0};
    enum status s = p ? OK : FAIL(ERR_MEMORY, "a plan");
    describe(&in, t, &m);
    if (!s) s = plan_estimate(p, &in);
    if (!s) s = plan_rank_of(p, &in, t->mesh.world.rank, &r);
    if (!s) {
        planned(&r, plan);
        plan[ACTIVATIONS] = r.activations[p->recompute];
        taken(t, is);
    }
    free(p);
    TRY(comm_agree(&t->mesh.world, s));
    for (int k = 0; k < KINDS; k++) all[0] += plan[k], all[1] += is[k];
    double worst[2] = {share(all[1], all[0]), -share(all[1], all[0])};
    TRY(comm_max_double(&t->mesh.world, worst, 2));
    if (t->mesh.world.rank == 0) {
        show(&r, plan, is);
        double off = fabs(worst[0] > worst[1] ? worst[0] : worst[1]);
        if (off > 3) log_warn("memory: a rank is %.1f%% away from its plan", off);
        else log_info("memory: every rank within %.1f%% of its plan", off);
    }
    return OK;
}
