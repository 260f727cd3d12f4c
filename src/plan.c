#include "plan.h"

#include "plan_inner.h"
#include "pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- what is asked ---------------------------------- */

static bool is_rl(const struct config *c) { return c->train.objective == OBJECTIVE_RL; }

void plan_input_default(struct plan_input *in, const struct config *c, const struct arch *a, const struct plan_machine *m,
                        int ranks)
{
    *in = (struct plan_input){.config = c, .arch = a, .machine = m, .ranks = ranks};
    int64_t limit = c->data.max_tokens > 0 ? c->data.max_tokens : c->train.micro_batch_tokens;
    if (is_rl(c)) {
        in->prompt_tokens = (int32_t)(c->data.max_tokens > 0 ? c->data.max_tokens : 512);
        in->response_tokens = (double)c->rollout.max_new_tokens / 2;
        limit = in->prompt_tokens + c->rollout.max_new_tokens;
    }
    if (limit > a->max_positions) limit = a->max_positions;
    in->longest = (int32_t)limit;
    in->sample_tokens = is_rl(c) ? in->prompt_tokens + in->response_tokens : (double)limit;
    in->sequences = is_rl(c) ? c->rl.prompts_per_step * c->rollout.samples_per_prompt / c->rl.updates_per_batch
                             : c->train.global_batch;
    if (is_rl(c)) in->held_out = c->eval.samples;
    else if (c->eval.samples > in->sequences) in->sequences = c->eval.samples;
}

static enum dtype dtype_of(enum dtype_choice c, bool gpu)
{
    return c == DTYPE_BF16 || (c == DTYPE_AUTO && gpu) ? DT_BF16 : DT_F32;
}

static enum status describe(struct plan *p, const struct plan_input *in)
{
    const struct config *c = in->config;
    const struct arch *a = in->arch;
    *p = (struct plan){.ranks = in->ranks, .ranks_per_node = in->machine->ranks_per_node, .recompute = c->train.recompute,
                       .rl = is_rl(c), .rollouts = is_rl(c) && !*c->train.replay, .spilled = *c->adam.spill_dir != 0};
    if (p->ranks_per_node > p->ranks) p->ranks_per_node = p->ranks;
    p->nodes = (p->ranks + p->ranks_per_node - 1) / p->ranks_per_node;
    p->shape = (struct mesh_shape){.tp = (int)c->mesh.tp, .pp = (int)c->mesh.pp, .ep = (int)c->mesh.ep,
                                   .dp = (int)c->mesh.dp,
                                   .layers_per_stage = c->mesh.layers_per_stage.n ? c->mesh.layers_per_stage.v : NULL};
    if (p->shape.layers_per_stage && c->mesh.layers_per_stage.n != p->shape.pp)
        return FAIL(ERR_CONFIG, "mesh.layers_per_stage has %d entries, mesh.pp is %d", c->mesh.layers_per_stage.n,
                    p->shape.pp);
    TRY(mesh_check(&p->shape, a, p->ranks));
    p->n_stages = p->shape.pp;
    p->dtype = dtype_of(c->run.dtype, in->machine->gpu);
    p->rollout_dtype = c->rollout.dtype == DTYPE_AUTO ? p->dtype : dtype_of(c->rollout.dtype, in->machine->gpu);
    p->rows = batch_max_rows(c->train.micro_batch_tokens, in->longest, p->shape.tp);
    p->updates = 1;
    p->samples = (double)c->train.global_batch;
    if (!p->rl) return OK;
    p->updates = (int)c->rl.updates_per_batch;
    p->samples = (double)(c->rl.prompts_per_step * c->rollout.samples_per_prompt);
    p->rollout_shape = (struct mesh_shape){.tp = (int)(c->rollout.tp ? c->rollout.tp : c->mesh.tp), .pp = 1,
                                           .ep = (int)(c->rollout.ep ? c->rollout.ep : c->mesh.ep),
                                           .dp = (int)c->rollout.dp};
    if (!p->rollouts) return OK;
    if (!c->rollout.ep && p->ranks % p->rollout_shape.ep) p->rollout_shape.ep = 1;
    enum status s = mesh_check(&p->rollout_shape, a, p->ranks);
    if (s) return status_prefix(s, "the rollout's mesh");
    p->aliased = p->shape.pp == 1 && p->shape.tp == p->rollout_shape.tp && p->shape.ep == p->rollout_shape.ep &&
                 p->dtype == p->rollout_dtype;
    return OK;
}

/* Samples are spread evenly and packed as full as their mean length allows. */
static void count_batches(struct plan *p, const struct plan_input *in)
{
    double mine = ceil(p->samples / p->updates / p->shape.dp);
    double fit = floor((double)p->rows / in->sample_tokens);
    p->micro_batches = (int64_t)ceil(mine / (fit < 1 ? 1 : fit));
    p->tokens = p->samples * in->sample_tokens;
}

/* ---------------------------------------------------------------- memory ----------------------------------------- */

/* Between steps the gradients' and the activations' memory holds nothing: KV pages and the decoding's workspaces lie in the
 * first of them with room, else in memory of their own (rollout.c). */
static int64_t lent(const struct plan *p, const struct plan_rank *r)
{
    int64_t room[] = {r->gradients, r->activations[p->recompute]}, want[] = {r->kv, r->rollout_work}, sum = 0;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            if (want[i] > room[k]) continue;
            room[k] -= plan_align(want[i], ARENA_ALIGN);
            sum += want[i];
            break;
        }
    return sum;
}

static void add_up(const struct plan *p, const struct plan_input *in, const struct plan_decode *d, struct plan_rank *r)
{
    r->rollout_weights = d->weights;
    r->kv = d->kv;
    r->rollout_work = d->work;
    r->lent = lent(p, r);
    r->host_work += d->host;
    r->host_samples = d->samples;
    r->host_sync = d->sync_host;
    if (!in->machine->gpu) { /* one memory for both */
        r->reference = r->host_reference;
        r->host_reference = 0;
    }
    r->host = r->host_work + r->host_adam + r->host_samples + r->host_sync + r->host_reference;
    r->peak = r->weights + r->rollout_weights + r->gradients + r->activations[p->recompute] + r->adam + r->kv +
              r->rollout_work - r->lent + r->reference + r->comm + r->reserved;
}

/* Bytes of the node that holds the most, its ranks being consecutive: `of` picks the number. */
static int64_t worst_node(const struct plan *p, const struct plan_input *in, int64_t (*of)(const struct plan_rank *, bool))
{
    int64_t worst = 0;
    int plane = p->shape.tp * p->shape.dp;
    for (int node = 0; node < p->nodes; node++) {
        int64_t sum = 0;
        for (int i = 0; i < p->ranks_per_node; i++) {
            int rank = node * p->ranks_per_node + i;
            if (rank < p->ranks) sum += of(&p->stage[rank / plane], in->machine->gpu);
        }
        if (sum > worst) worst = sum;
    }
    return worst;
}

static int64_t host_of(const struct plan_rank *r, bool gpu) { return gpu ? r->host : r->host + r->peak; }
static int64_t spill_of(const struct plan_rank *r, bool gpu) { return (void)gpu, r->spill; }

/* What makes two stages' tables equal but for the layers' numbers. */
static bool same_layers(const struct arch *a, const struct mesh *x, const struct mesh *y)
{
    if (x->layers != y->layers || x->pp_rank == 0 || y->pp_rank == 0 || x->pp_rank == x->pp - 1 || y->pp_rank == y->pp - 1)
        return false;
    for (int i = 0; i < x->layers; i++)
        if (a->moe[x->first_layer + i] != a->moe[y->first_layer + i] ||
            a->sparse[x->first_layer + i] != a->sparse[y->first_layer + i])
            return false;
    return true;
}

/* The last tp rank has the most of an uneven vocabulary. */
static int representative(const struct plan *p, int stage) { return stage * p->shape.tp * p->shape.dp + p->shape.tp - 1; }

static enum status fill_stages(struct plan *p, const struct plan_input *in, const struct plan_decode *d)
{
    struct model m = {0};
    struct mesh mesh = {0}, next;
    enum status s = OK;
    for (int i = 0; i < p->n_stages && !s; i++) {
        struct plan_rank *r = &p->stage[i];
        *r = (struct plan_rank){.stage = i, .rank = representative(p, i)};
        s = mesh_plan(&next, p->shape, in->arch, p->ranks, r->rank);
        if (s) break;
        if (m.params && same_layers(in->arch, &mesh, &next)) {
            mesh = next; /* the model reads its stage from here */
        } else {
            model_destroy(&m);
            s = plan_model(p, in, r->rank, &mesh, &m);
        }
        if (!s) s = plan_memory(p, in, &m, r);
        if (s) break;
        plan_counts(p, in, &m, r);
        r->sent[PLAN_SYNC] = d->sync_bytes;
        add_up(p, in, d, r);
        if (i == 0) p->params = model_count(&m, false), p->trained = model_count(&m, true);
        if (r->peak > p->stage[p->worst].peak) p->worst = i;
    }
    model_destroy(&m);
    return s;
}

enum status plan_rank_of(const struct plan *p, const struct plan_input *in, int rank, struct plan_rank *r)
{
    struct model m;
    struct mesh mesh;
    struct plan copy = *p;
    struct plan_decode d;
    *r = (struct plan_rank){.stage = rank / (p->shape.tp * p->shape.dp), .rank = rank};
    TRY(plan_rollout_memory(&copy, in, &d));
    TRY(plan_model(p, in, rank, &mesh, &m));
    enum status s = plan_memory(p, in, &m, r);
    if (!s) {
        plan_counts(p, in, &m, r);
        r->sent[PLAN_SYNC] = d.sync_bytes;
        add_up(p, in, &d, r);
    }
    model_destroy(&m);
    return s;
}

/* ---------------------------------------------------------------- the plan --------------------------------------- */

static void judge(struct plan *p, const struct plan_input *in)
{
    const struct plan_machine *m = in->machine;
    const struct plan_rank *r = &p->stage[p->worst];
    p->fits = false;
    if ((double)r->peak > m->memory_bytes)
        snprintf(p->why, sizeof p->why, "stage %d needs %.1f GB a rank, %s has %.1f GB", p->worst, 1e-9 * (double)r->peak,
                 m->name, 1e-9 * m->memory_bytes);
    else if ((double)p->host_node > m->host_bytes)
        snprintf(p->why, sizeof p->why, "a node's ranks need %.1f GB of host memory, it has %.1f GB",
                 1e-9 * (double)p->host_node, 1e-9 * m->host_bytes);
    else if ((double)p->spill_node > m->disk_bytes)
        snprintf(p->why, sizeof p->why, "a node's optimizer state takes %.1f GB of local disk, it has %.1f GB",
                 1e-9 * (double)p->spill_node, 1e-9 * m->disk_bytes);
    else p->fits = true;
}

enum status plan_estimate(struct plan *p, const struct plan_input *in)
{
    struct plan_decode d;
    TRY(describe(p, in));
    count_batches(p, in);
    TRY(plan_rollout_memory(p, in, &d));
    TRY(fill_stages(p, in, &d));
    int64_t element = in->config->adam.moments == DTYPE_BF16 ? 8 : 12;
    p->adam_state = p->trained * element;
    p->checkpoint = p->adam_state + p->params * (int64_t)dtype_size(p->dtype);
    p->host_node = worst_node(p, in, host_of);
    p->spill_node = worst_node(p, in, spill_of);
    judge(p, in);
    plan_times(p, in, &d);
    return OK;
}

/* ---------------------------------------------------------------- what would fit --------------------------------- */

enum { MORE_RANKS = 7 };

/* Changes in the order they cost; from MORE_RANKS on each doubles the ranks. False: it would change nothing. */
static bool change(struct config *c, struct plan_input *in, const struct plan *p, int step, char *said, size_t size)
{
    switch (step) {
    case 0:
        if (*c->adam.spill_dir) return false;
        c->adam.spill_dir = (char *)"/local";
        snprintf(said, size, "adam.spill_dir=<local disk>");
        return true;
    case 1:
        if (c->train.recompute != RECOMPUTE_NONE) return false;
        c->train.recompute = RECOMPUTE_ATTENTION;
        return snprintf(said, size, "train.recompute=attention"), true;
    case 2:
        if (c->train.recompute == RECOMPUTE_LAYER) return false;
        c->train.recompute = RECOMPUTE_LAYER;
        return snprintf(said, size, "train.recompute=layer"), true;
    case 3:
        if (c->train.logits_chunk > 0 && c->train.logits_chunk <= 1024) return false;
        c->train.logits_chunk = 1024;
        return snprintf(said, size, "train.logits_chunk=1024"), true;
    case 4:
        if (c->train.micro_batch_tokens <= in->longest) return false;
        c->train.micro_batch_tokens = in->longest;
        return snprintf(said, size, "train.micro_batch_tokens=%d", in->longest), true;
    case 5:
        if (!p->rl || c->rollout.kv_pages > 0 || c->rollout.max_batch <= 8) return false;
        c->rollout.max_batch = 8;
        return snprintf(said, size, "rollout.max_batch=8"), true;
    case 6:
        if (c->adam.moments == DTYPE_BF16) return false;
        c->adam.moments = DTYPE_BF16;
        return snprintf(said, size, "adam.moments=bf16"), true;
    default:
        in->ranks *= 2;
        c->mesh.dp = c->rollout.dp = 0;
        return snprintf(said, size, "%d ranks (dp %d)", in->ranks, in->ranks / (p->shape.tp * p->shape.pp)), true;
    }
}

enum { CHANGES = 12, SAID = 64 };

/* Whether the changes in `use` make it fit; `said` gets their words, `use` loses those that would change nothing. */
static bool fits_with(const struct plan *p, const struct plan_input *in, bool use[CHANGES], char said[CHANGES][SAID])
{
    struct config c = *in->config;
    struct plan_input now = *in;
    struct plan other;
    now.config = &c;
    for (int k = 0; k < CHANGES; k++)
        if (use[k]) use[k] = change(&c, &now, p, k, said[k], SAID);
    return plan_estimate(&other, &now) == OK && other.fits;
}

/* Adds changes until it fits, then leaves out those that were not needed. */
static void search(struct plan *p, const struct plan_input *in)
{
    char said[CHANGES][SAID] = {""};
    bool use[CHANGES] = {false};
    int n = 0;
    do {
        if (n == CHANGES) return;
        use[n] = true;
    } while (!fits_with(p, in, use, said) && ++n);
    for (int k = 0; k < n; k++) {
        bool fewer[CHANGES];
        memcpy(fewer, use, sizeof use);
        fewer[k] = false;
        if (use[k] && fits_with(p, in, fewer, said)) memcpy(use, fewer, sizeof use);
    }
    bool again = fits_with(p, in, use, said); /* the words of what is left */
    size_t at = 0;
    for (int k = 0; k < CHANGES && again; k++) {
        bool superseded = k >= MORE_RANKS && k + 1 < CHANGES && use[k + 1]; /* 64 ranks, 128 ranks: the last one counts */
        if (use[k] && !superseded && at + SAID + 1 < sizeof p->instead)
            at += (size_t)snprintf(p->instead + at, sizeof p->instead - at, "%s%s", at ? " " : "", said[k]);
    }
}

enum status plan_compute(struct plan *p, const struct plan_input *in)
{
    TRY(plan_estimate(p, in));
    if (!p->fits) search(p, in);
    return OK;
}
