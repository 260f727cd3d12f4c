/* Seconds. A product takes the larger of its operations at the machine's share of peak and of its weights through memory;
 * everything elementwise takes its bytes; collectives take latency and bytes at the slower of the links they cross, and are
 * not hidden unless said. The pipeline takes one micro-batch through all stages and then the slowest stage for each of
 * the others. */
#include "plan_inner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const plan_part_name[PLAN_PARTS] = {"rollout", "old_logprobs", "ref_logprobs", "forward_backward", "reduce", "adam", "sync"};

enum { KERNELS = 30 }; /* launches of a layer's forward */

/* Where a pass of a stage spends its time. */
enum { COST_DENSE, COST_EXPERTS, COST_ATTENTION, COST_MEMORY, COST_TP, COST_EP, COST_PP, COSTS };
static const char *const cost_name[COSTS] = {"matrix products", "expert products", "attention", "memory traffic",
                                             "tensor-parallel traffic", "expert-parallel traffic", "pipeline traffic"};

struct cost {
    double s[COSTS];
};

static double total(const struct cost *c)
{
    double sum = 0;
    for (int i = 0; i < COSTS; i++) sum += c->s[i];
    return sum;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Seconds of `bytes` leaving a rank over a group, `outside` of it beyond the fast links, in `calls` operations. */
static double traffic(const struct plan_machine *m, double bytes, double outside, double calls)
{
    double fast = bytes * (1 - outside) / (m->link_bytes_s * m->link_share);
    double slow = bytes * outside / (m->network_bytes_s * m->network_share);
    return calls * (outside > 0 ? m->network_latency_s : m->link_latency_s) + larger(fast, slow);
}

/* A ring that leaves the fast links anywhere moves at the network's pace. */
static double ring(const struct plan_machine *m, double bytes, double outside, double calls)
{
    return traffic(m, bytes, outside > 0 ? 1 : 0, calls);
}

struct stage {
    const struct plan *p;
    const struct plan_input *in;
    const struct plan_rank *r;
    double rows;             /* of the mean micro-batch */
    double expert_bytes, dense_bytes; /* of weights */
    double sent[2][PLAN_NETS]; /* forward; forward and backward: of one micro-batch */
};

static double elementwise_bytes(const struct stage *t)
{
    const struct arch *a = t->in->arch;
    double tp = t->p->shape.tp, e = (double)dtype_size(t->p->dtype), sum = 0;
    for (int i = 0; i < t->r->layers; i++) {
        int l = t->r->first_layer + i;
        double cols = (double)(a->heads + 2 * a->kv_heads) * a->head_dim, ffn = a->moe[l] ? a->shared_ffn : a->dense_ffn;
        double routed = a->moe[l] ? a->experts_per_token * (2.0 * a->hidden + 3.0 * a->expert_ffn) : 0;
        sum += 4.0 * a->hidden + 2 * cols + 3 * ffn + routed;
    }
    return 2 * sum * t->rows / tp * e; /* written and read */
}

/* One micro-batch through a stage: `work` times a forward's operations in all but attention, `attention` there. */
static struct cost pass(const struct stage *t, bool backward)
{
    const struct plan_machine *m = t->in->machine;
    const struct mesh_shape *s = &t->p->shape;
    bool last = t->r->stage == t->p->n_stages - 1;
    struct plan_flops f = plan_flops(t->in->arch, t->r->first_layer, t->r->layers, last, t->in->sample_tokens);
    double share = t->rows / s->tp, work = backward ? 3 : 1, attend = backward ? 3.5 : 1, again = 0;
    if (backward && t->p->recompute == RECOMPUTE_LAYER) work += 1, attend += 1, again = 1;
    if (backward && t->p->recompute == RECOMPUTE_ATTENTION) attend += 1;
    double bw = m->memory_bytes_s * m->memory_share;
    const double *sent = t->sent[backward];
    double layer_calls = backward ? 10 + 4 * again : 4, expert_calls = backward ? 5 + 3 * again : 3;
    struct cost c = {0};
    c.s[COST_DENSE] = larger((f.dense * work + f.frozen * (1 + again)) * share / (m->flops * m->gemm_share),
                             work * t->dense_bytes / bw);
    if (f.experts > 0)
        c.s[COST_EXPERTS] = larger(f.experts * work * share / (m->flops * m->grouped_share), work * t->expert_bytes / bw);
    c.s[COST_ATTENTION] = f.attention * attend * share / (m->flops * m->attention_share);
    c.s[COST_MEMORY] = work * (elementwise_bytes(t) / bw + KERNELS * t->r->layers * m->launch_s);
    if (s->tp > 1)
        c.s[COST_TP] = ring(m, sent[PLAN_TP], plan_outside(m, t->r->rank, 1, s->tp), layer_calls * t->r->layers);
    if (sent[PLAN_EP] > 0)
        c.s[COST_EP] = traffic(m, sent[PLAN_EP], plan_outside(m, t->r->rank, 1, s->ep), expert_calls * t->r->layers);
    if (s->pp > 1)
        c.s[COST_PP] = ring(m, sent[PLAN_PP], plan_outside(m, t->r->rank, s->tp * s->dp, s->pp), backward ? 2 : 1);
    return c;
}

static struct stage stage_of(const struct plan *p, const struct plan_input *in, const struct plan_rank *r)
{
    struct stage t = {.p = p, .in = in, .r = r};
    const struct arch *a = in->arch;
    struct mesh mesh;
    t.rows = p->tokens / p->shape.dp / (double)(p->micro_batches * p->updates);
    double e = (double)dtype_size(p->dtype), experts = 0;
    for (int i = 0; i < r->layers; i++)
        if (a->moe[r->first_layer + i]) experts += 3.0 * a->hidden * a->expert_ffn * a->experts / p->shape.ep;
    t.expert_bytes = experts * e;
    t.dense_bytes = (double)r->weights - t.expert_bytes;
    if (r->stage == 0) t.dense_bytes -= (double)a->vocab * a->hidden / p->shape.tp * e; /* looked up, not multiplied */
    if (mesh_plan(&mesh, p->shape, a, p->ranks, r->rank)) return t;
    struct model view = {.arch = *a, .mesh = &mesh, .dtype = p->dtype, .first = r->stage == 0,
                         .last = r->stage == p->n_stages - 1};
    int64_t rows = plan_align((int64_t)ceil(t.rows), p->shape.tp);
    for (int b = 0; b < 2; b++)
        plan_sent_micro(&view, rows, in->config->train.logits_chunk, p->recompute, b, t.sent[b]);
    return t;
}

/* All micro-batches of one update through the pipeline; *slow is the slowest stage's cost of one. */
static double pipeline_time(const struct plan *p, const struct plan_input *in, bool backward, struct cost *slow)
{
    double once = 0, worst = 0;
    for (int i = 0; i < p->n_stages; i++) {
        struct stage t = stage_of(p, in, &p->stage[i]);
        struct cost c = pass(&t, backward);
        once += total(&c);
        if (total(&c) > worst) worst = total(&c), *slow = c;
    }
    return once + (double)(p->micro_batches - 1) * worst;
}

/* ---------------------------------------------------------------- the other parts -------------------------------- */

static const struct plan_rank *most_adam(const struct plan *p)
{
    const struct plan_rank *r = &p->stage[0];
    for (int i = 1; i < p->n_stages; i++)
        if (p->stage[i].adam_elems > r->adam_elems) r = &p->stage[i];
    return r;
}

/* Gradients reduced while the last micro-batch's backward runs: only what is longer than it shows. */
static void update_times(struct plan *p, const struct plan_input *in, double backward_s)
{
    const struct plan_machine *m = in->machine;
    const struct plan_rank *r = most_adam(p);
    double element = in->config->adam.moments == DTYPE_BF16 ? 8 : 12, e = (double)dtype_size(p->dtype);
    double outside = plan_outside(m, r->rank, p->shape.tp, p->shape.dp), elems = (double)r->adam_elems;
    double bytes = 0, reduced = (double)r->gradients;
    for (int i = 0; i < p->n_stages; i++) bytes = larger(bytes, (double)p->stage[i].sent[PLAN_DP] / p->updates);
    double share = reduced > 0 ? 4 / (4 + e) : 0, bw = m->memory_bytes_s * m->memory_share;
    double reduce = bytes > 0 ? ring(m, bytes * share, outside, 1) - backward_s : 0;
    double gather = bytes > 0 ? ring(m, bytes * (1 - share), outside, 1) : 0;
    double update = elems * (2 * element + 4 + e) / bw;
    if (p->spilled) {
        double read = m->disk_read_bytes_s / p->ranks_per_node, write = m->disk_write_bytes_s / p->ranks_per_node;
        update = larger(update + gather, elems * element / read + elems * element / write);
        gather = 0;
    }
    p->time[PLAN_REDUCE] = p->updates * larger(reduce, 0);
    p->time[PLAN_ADAM] = p->updates * (update + gather);
}

/* Prompts once a group, then one row a sequence until all have their responses: weights and caches through memory, the
 * collectives' latencies. */
static double rollout_time(const struct plan *p, const struct plan_input *in, const struct plan_decode *d)
{
    const struct plan_machine *m = in->machine;
    const struct arch *a = in->arch;
    const struct mesh_shape *s = &p->rollout_shape;
    double mine = ceil(p->samples / s->dp), batch = fmin(mine, (double)in->config->rollout.max_batch);
    double passes = larger(in->response_tokens, mine * in->response_tokens / batch), bw = m->memory_bytes_s * m->memory_share;
    double chosen = 1 - pow(1 - (double)a->experts_per_token / a->experts, batch * s->dp);
    double context = in->prompt_tokens + in->response_tokens / 2, page = (double)d->page_bytes / (double)p->page_tokens;
    struct plan_flops f = plan_flops(a, 0, a->layers, true, context), prompt = plan_flops(a, 0, a->layers, false, in->prompt_tokens);
    double e = (double)dtype_size(p->rollout_dtype), wide = batch * a->hidden * e;
    double one = ((double)d->dense_bytes + chosen * (double)d->expert_bytes + batch * context * page) / bw +
                 KERNELS * a->layers * m->launch_s;
    one = larger(one, batch * (f.dense + f.experts + f.attention + f.frozen) / s->tp / (m->flops * m->gemm_share));
    if (s->tp > 1)
        one += ring(m, 4 * a->layers * wide * (s->tp - 1) / s->tp, plan_outside(m, 0, 1, s->tp), 4.0 * a->layers);
    if (s->ep > 1)
        one += traffic(m, 2 * a->layers * wide / s->tp * a->experts_per_token, plan_outside(m, 0, 1, s->ep), 3.0 * a->layers);
    double prompts = ceil(mine / (double)in->config->rollout.samples_per_prompt) * in->prompt_tokens;
    double fill = prompts * (prompt.dense + prompt.experts + prompt.attention + prompt.frozen) / s->tp /
                  (m->flops * m->grouped_share);
    return fill + passes * one;
}

static void name_limit(struct plan *p, const struct cost *slow)
{
    int most = 0, cost = 0;
    for (int i = 1; i < PLAN_PARTS; i++)
        if (p->time[i] > p->time[most]) most = i;
    for (int i = 1; i < COSTS; i++)
        if (slow->s[i] > slow->s[cost]) cost = i;
    double share = 100 * p->time[most] / p->step_s;
    static const char *const because[PLAN_PARTS] = {
        [PLAN_ROLLOUT] = "decoding reads every weight for each token", [PLAN_OLD] = "the trainer's own log-probs",
        [PLAN_REF] = "the reference's log-probs",
        [PLAN_REDUCE] = "gradients over the data-parallel network", [PLAN_SYNC_TIME] = "weights to the rollout mesh"};
    if (most == PLAN_FORWARD_BACKWARD)
        snprintf(p->limit, sizeof p->limit, "forward_backward, %.0f%% of the step: %s takes %.0f%% of the slowest stage, "
                 "stages wait %.0f%%", share, cost_name[cost], 100 * slow->s[cost] / total(slow), 100 * p->bubble);
    else
        snprintf(p->limit, sizeof p->limit, "%s, %.0f%% of the step: %s", plan_part_name[most], share,
                 most != PLAN_ADAM ? because[most] : p->spilled ? "the local disks" : "memory bandwidth");
}

void plan_times(struct plan *p, const struct plan_input *in, const struct plan_decode *d)
{
    const struct plan_machine *m = in->machine;
    struct cost slow = {0}, forward = {0};
    double once = pipeline_time(p, in, true, &slow);
    memset(p->time, 0, sizeof p->time);
    p->time[PLAN_FORWARD_BACKWARD] = p->updates * once;
    p->bubble = 1 - (double)p->micro_batches * total(&slow) / once;
    double only = pipeline_time(p, in, false, &forward);
    update_times(p, in, total(&slow) - total(&forward));
    if (p->rl) {
        p->time[PLAN_OLD] = p->updates * only;
        if (in->config->rl.kl_coef != 0 || in->config->ref.report) p->time[PLAN_REF] = p->updates * only;
        if (p->rollouts) p->time[PLAN_ROLLOUT] = rollout_time(p, in, d);
        if (p->rollouts && !p->aliased) p->time[PLAN_SYNC_TIME] = traffic(m, (double)d->sync_bytes, p->nodes > 1 ? 1 : 0, 1);
    }
    p->step_s = 0;
    for (int i = 0; i < PLAN_PARTS; i++) p->step_s += p->time[i];
    struct plan_flops f = plan_flops(in->arch, 0, in->arch->layers, true, in->sample_tokens);
    p->model_flops = p->tokens * 3 * (f.dense + f.experts + f.attention);
    p->tokens_per_s = p->tokens / p->step_s;
    p->mfu = p->model_flops / (p->step_s * m->flops * p->ranks);
    p->checkpoint_s = (double)p->checkpoint / (m->shared_bytes_s * p->nodes);
    name_limit(p, &slow);
}
