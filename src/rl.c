#include "rl.h"

#include "run_dir.h"
#include "trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct tensor host_view(void *x, enum dtype t, int64_t n) { return tensor_view(x, t, PLACE_HOST, 1, n, 1, 1, 1); }

/* ---------------------------------------------------------------- rolling out ------------------------------------ */

static void set_prompt(struct experience *e, int i, const struct prompts *p, int64_t which, uint64_t draw)
{
    e->prompt[i] = which;
    e->draw[i] = draw;
    e->n_prompt[i] = (int32_t)(p->offset[which + 1] - p->offset[which]);
    e->n_new[i] = 0;
    memcpy(experience_ids(e, i), p->ids + p->offset[which], (size_t)e->n_prompt[i] * sizeof *e->ids);
}

/* The next prompts of the order for these groups. */
static enum status draw_prompts(struct trainer *t, const int *group, int n)
{
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    for (int k = 0; k < n; k++) {
        int64_t draw = t->state.samples++, which;
        TRY(data_order_at(&rl->order, draw, &which));
        for (int j = 0; j < e->group; j++) set_prompt(e, group[k] * e->group + j, &rl->prompts, which, (uint64_t)draw);
    }
    return OK;
}

static bool cancelled(void *ctx)
{
    (void)ctx;
    return stop_requested();
}

static enum status generate(struct trainer *t, struct experience *e, const int *which, int n, bool greedy)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    struct rollout_run run = {.seed = t->state.seed, .step = (uint64_t)t->state.step + 1, .stop = &rl->stop,
                              .n_stop = rl->stop >= 0, .cancelled = cancelled};
    if (!greedy)
        run.sampling = (struct sampling){(float)c->rollout.temperature, (int)c->rollout.top_k, c->rollout.top_p};
    TRY(worker_generate(&rl->worker, e, which, n, &run));
    for (int k = 0; k < n; k++) {
        int i = which[k];
        uint8_t *mask = e->mask + (int64_t)i * (e->max_prompt + e->max_new);
        memset(mask, 0, (size_t)(e->max_prompt + e->max_new));
        memset(mask + e->n_prompt[i], 1, (size_t)e->n_new[i]);
        e->dropped[i] = false;
    }
    return OK;
}

/* ---------------------------------------------------------------- rewards ---------------------------------------- */

/* The response as text, without the token that ended it. */
static enum status response_text(const struct rl *rl, const struct tokenizer *tok, const struct experience *e, int i,
                                 struct text *text)
{
    const int32_t *ids = experience_ids(e, i) + e->n_prompt[i];
    int32_t n = e->n_new[i];
    if (n > 0 && ids[n - 1] == rl->stop) n--;
    if (tok) TRY(tokenizer_decode(tok, ids, (size_t)n, false, text));
    return text_push(text, "", 1);
}

static enum status score_here(struct trainer *t, struct experience *e, const struct prompts *p, const int *which, int n)
{
    struct rl *rl = t->rl;
    struct reward_sample *s = calloc((size_t)n, sizeof *s);
    struct text *text = calloc((size_t)n, sizeof *text);
    double *out = calloc((size_t)n, sizeof *out);
    enum status st = s && text && out ? OK : FAIL(ERR_MEMORY, "%d rewards", n);
    for (int k = 0; k < n && !st; k++) {
        int i = which[k];
        st = response_text(rl, t->tok, e, i, &text[k]);
        s[k] = (struct reward_sample){.ids = experience_ids(e, i), .n_prompt = e->n_prompt[i],
                                      .n = e->n_prompt[i] + e->n_new[i], .prompt_text = p->text[e->prompt[i]],
                                      .response_text = text[k].data, .label = p->label[e->prompt[i]],
                                      .truncated = e->finish[i] == FINISH_LENGTH};
    }
    if (!st) st = reward_score(rl->reward, n, s, out);
    for (int k = 0; k < n && !st; k++) {
        e->unshaped[which[k]] = out[k];
        if (e != &rl->e) continue;
        free(rl->answer[which[k]]);
        rl->answer[which[k]] = NULL;
        st = reward_answer(rl->reward, &s[k], &rl->answer[which[k]]);
    }
    for (int k = 0; text && k < n; k++) text_free(&text[k]);
    free(s);
    free(text);
    free(out);
    return st;
}

/* Rank 0 scores; everybody knows. */
static enum status reward(struct trainer *t, struct experience *e, const struct prompts *p, const int *which, int n)
{
    struct group *world = &t->mesh.world;
    TRY(comm_agree(world, world->rank == 0 ? score_here(t, e, p, which, n) : OK));
    return comm_broadcast(world, host_view(e->unshaped, DT_F64, e->n), 0);
}

/* Groups of flat rewards, into group[]; how many. */
static int flat_groups(const struct experience *e, int *group)
{
    int n = 0;
    for (int g = 0; g < e->n / e->group; g++)
        if (policy_group_flat(e->unshaped + g * e->group, e->group)) group[n++] = g;
    return n;
}

/* Prompts, responses and rewards of the step, refilled until no group is flat where that is asked for. */
static enum status collect(struct trainer *t, double clock[2])
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    int groups = e->n / e->group, group[groups], n = groups;
    for (int g = 0; g < groups; g++) group[g] = g;
    rl->refills = 0;
    clock[0] = clock[1] = 0;
    for (;;) {
        double start = time_now();
        TRY(draw_prompts(t, group, n));
        for (int k = 0; k < n * e->group; k++) rl->which[k] = group[k / e->group] * e->group + k % e->group;
        TRY(generate(t, e, rl->which, n * e->group, false));
        clock[0] += time_now() - start;
        start = time_now();
        TRY(reward(t, e, &rl->prompts, rl->which, n * e->group));
        clock[1] += time_now() - start;
        rl->flat_groups = n = flat_groups(e, group);
        if (!c->rl.dynamic_sampling || n == 0) return OK;
        if (rl->refills == c->rl.max_refills)
            return FAIL(ERR_GATE, "step %" PRId64 ": %d of %d groups still have equal rewards after rl.max_refills=%" PRId64
                        " rounds of new prompts", t->state.step + 1, n, groups, c->rl.max_refills);
        rl->refills++;
    }
}

/* The step's samples from the records instead. */
static enum status replay(struct trainer *t)
{
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    struct group *world = &t->mesh.world;
    int64_t n = e->n, row = e->max_prompt + e->max_new;
    TRY(comm_agree(world, world->rank == 0 ? record_read(rl->replay, e, e->n, t->tok, t->source.arch.vocab) : OK));
    TRY(comm_broadcast(world, host_view(e->draw, DT_I64, n), 0));
    TRY(comm_broadcast(world, host_view(e->prompt, DT_I64, n), 0));
    TRY(comm_broadcast(world, host_view(e->n_prompt, DT_I32, 3 * e->capacity), 0)); /* and n_new and finish behind it */
    TRY(comm_broadcast(world, host_view(e->ids, DT_I32, n * row), 0));
    TRY(comm_broadcast(world, host_view(e->mask, DT_U8, n * row), 0));
    TRY(comm_broadcast(world, host_view(e->rollout, DT_F32, n * e->max_new), 0));
    TRY(comm_broadcast(world, host_view(e->unshaped, DT_F64, n), 0));
    for (int i = 0; i < e->n; i++) e->dropped[i] = false;
    t->state.samples += e->n / e->group;
    return OK;
}

/* Shaped rewards, advantages, and who is left out. The same on every rank. */
static void advantages(struct trainer *t)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    rl->bad_rewards = rl->truncated = 0;
    for (int i = 0; i < e->n; i++)
        e->reward[i] = e->unshaped[i] + policy_overlong(e->n_new[i], e->max_new, c->rl.overlong_buffer);
    for (int i = 0; i < e->n; i += e->group)
        rl->bad_rewards += advantage_grpo(e->reward + i, e->group, c->rl.std_norm, e->advantage + i, e->dropped + i);
    for (int i = 0; i < e->n; i++) {
        rl->truncated += e->finish[i] == FINISH_LENGTH;
        if (c->rl.mask_truncated && e->finish[i] == FINISH_LENGTH) e->dropped[i] = true;
    }
}

/* ---------------------------------------------------------------- objectives ------------------------------------- */

/* What a pass over a micro-batch does with its log-probs. */
struct capture {
    struct trainer *t;
    float *into;              /* [n, max_new] */
};

static int sample_at(const struct trainer *t, const struct micro *u, int s)
{
    return (int)t->batch.samples[u->sample[s]].id;
}

/* The row that predicts the first token of the response of the micro-batch's sequence s. */
static int64_t first_row(const struct experience *e, const struct micro *u, int s, int i)
{
    return u->cu_seqlens[s] + e->n_prompt[i] - 1;
}

static enum status capture(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                           float *dentropy, bool *use_entropy)
{
    struct capture *c = ctx;
    const struct experience *e = &c->t->rl->e;
    (void)entropy, (void)dlogp, (void)dentropy, (void)use_entropy;
    for (int s = 0; s < u->S; s++) {
        int i = sample_at(c->t, u, s);
        memcpy(c->into + (int64_t)i * e->max_new, logp + first_row(e, u, s, i), (size_t)e->n_new[i] * sizeof *logp);
    }
    return OK;
}

static enum status policy_loss(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                               float *dentropy, bool *use_entropy)
{
    struct trainer *t = ctx;
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    int64_t N = e->max_new;
    double *now = rl->row, *old = now + N, *roll = old + N, *ref = roll + N, *ent = ref + N, *dl = ent + N, *de = dl + N;
    struct policy_sums elsewhere = {0}; /* every tp rank computes the gradient, one counts */
    struct policy_sums *sums = t->mesh.tp_rank == 0 ? &rl->sums : &elsewhere;
    *use_entropy = rl->policy.entropy_coef != 0;
    for (int s = 0; s < u->S; s++) {
        int i = sample_at(t, u, s);
        int64_t at = first_row(e, u, s, i);
        for (int j = 0; j < e->n_new[i]; j++) {
            now[j] = (double)logp[at + j];
            ent[j] = (double)entropy[at + j];
            old[j] = (double)e->old[i * N + j];
            roll[j] = (double)e->rollout[i * N + j];
            ref[j] = (double)e->ref[i * N + j];
        }
        struct policy_sample x = {.n = e->n_new[i], .logp = now, .old = old, .rollout = roll, .entropy = ent,
                                  .ref = rl->use_reference ? ref : NULL, .advantage = e->advantage[i],
                                  .dropped = e->dropped[i]};
        double gap;
        TRY(policy_sample(&rl->policy, &x, &rl->total, dl, de, sums, &gap));
        if (t->mesh.tp_rank == 0) e->gap[i] = gap;
        for (int j = 0; j < e->n_new[i]; j++) {
            dlogp[at + j] = (float)dl[j];
            dentropy[at + j] = (float)de[j];
        }
    }
    return OK;
}

static float inverse_temperature(const struct config *c)
{
    return c->rollout.temperature > 0 ? (float)(1 / c->rollout.temperature) : 1.0f;
}

/* Routing replay: rows of no sequence and the token that never went through the rollout take what is at hand. */
void rl_fill_replay(void *ctx, const struct micro *u, int32_t *experts)
{
    const struct trainer *t = ctx;
    const struct experience *e = &t->rl->e;
    const struct model *m = &t->model;
    int64_t Tl = u->T / m->mesh->tp, first = Tl * m->mesh->tp_rank, k = e->k, L = e->moe_layers, moe = 0;
    for (int l = 0; l < m->mesh->first_layer; l++) moe += m->arch.moe[l];
    for (int l = 0; l < m->n_layers; l++) {
        int32_t *out = experts + l * Tl * k;
        for (int64_t i = 0; i < Tl * k; i++) out[i] = (int32_t)(i % k);
        if (!m->layers[l].moe) continue;
        for (int s = 0; s < u->S; s++) {
            int i = sample_at(t, u, s), known = e->n_prompt[i] + e->n_new[i] - 1;
            const int16_t *from = e->experts + (int64_t)i * (e->max_prompt + e->max_new) * L * k;
            for (int64_t row = u->cu_seqlens[s]; row < u->cu_seqlens[s + 1]; row++) {
                int64_t pos = row - u->cu_seqlens[s];
                if (row < first || row >= first + Tl) continue;
                if (pos >= known) pos = known - 1;
                for (int64_t j = 0; j < k; j++) out[(row - first) * k + j] = from[(pos * L + moe) * k + j];
            }
        }
        moe++;
    }
}

/* ---------------------------------------------------------------- updates ---------------------------------------- */

/* Packs the share of one update. */
static enum status pack(struct trainer *t, int update)
{
    struct rl *rl = t->rl;
    int n = (int)rl_share(t);
    rl->total = (struct policy_total){0};
    for (int k = 0; k < n; k++) {
        int i = update * n + k;
        t->samples[k] = experience_sample(&rl->e, i);
        policy_total_add(&rl->total, NULL, rl->e.n_new[i], rl->e.dropped[i]);
    }
    return batch_pack(&t->batch, t->samples, n, t->config.train.micro_batch_tokens, t->mesh.tp, t->mesh.dp, t->mesh.dp_rank);
}

/* Log-probs before the first update: the trainer's, or those of the rollout; and the reference's. */
static enum status measure(struct trainer *t, bool reference)
{
    const struct config *c = &t->config;
    struct experience *e = &t->rl->e;
    if (!reference && c->rl.old_logprobs == OLD_FROM_ROLLOUT) {
        memcpy(e->old, e->rollout, (size_t)e->n * (size_t)e->max_new * sizeof *e->old);
        return OK;
    }
    struct capture into = {t, reference ? e->ref : e->old};
    struct objective o = {capture, &into, inverse_temperature(c)};
    for (int u = 0; u < c->rl.updates_per_batch; u++) {
        TRY(pack(t, u));
        if (reference) TRY(reference_run(&t->rl->reference, &t->pipeline, &t->batch, &o));
        else TRY(pipeline_run(&t->pipeline, &t->batch, &o, NULL, NULL));
    }
    return OK;
}

static void add_sums(struct policy_sums *to, const struct policy_sums *from)
{
    double *x = (double *)to;
    const double *y = (const double *)from;
    for (int i = 0; i < POLICY_SUMS; i++) x[i] += y[i];
}

/* All updates of the step; *all are their sums, *first those of the first, *norm the mean gradient norm. */
static enum status updates(struct trainer *t, struct policy_sums *first, struct policy_sums *all, double *norm,
                           double time[3])
{
    struct rl *rl = t->rl;
    int n = (int)t->config.rl.updates_per_batch;
    struct objective o = {policy_loss, t, inverse_temperature(&t->config)};
    *all = (struct policy_sums){0};
    *norm = 0;
    for (int u = 0; u < n; u++) {
        double one;
        rl->sums = (struct policy_sums){0};
        TRY(pack(t, u));
        TRY(compute_gradients(t, &o, &one, time));
        TRY(comm_sum_double(&t->mesh.world, (double *)&rl->sums, POLICY_SUMS));
        TRY(apply_gradients(t, learning_rate(&t->config, t->state.step + 1), rl->sums.loss, one, time));
        if (u == 0) *first = rl->sums;
        add_sums(all, &rl->sums);
        *norm += one / n;
    }
    all->loss /= n;
    return OK;
}

/* ---------------------------------------------------------------- what is told ----------------------------------- */

static void tell_rewards(struct trainer *t)
{
    const struct rl *rl = t->rl;
    const struct experience *e = &rl->e;
    struct metrics *m = t->metrics;
    double mean = 0, square = 0, counted = 0, length = 0;
    for (int i = 0; i < e->n; i++) {
        length += (double)e->n_new[i] / e->n;
        if (isfinite(e->unshaped[i])) mean += e->unshaped[i], counted++;
    }
    mean = counted > 0 ? mean / counted : NAN;
    for (int i = 0; i < e->n; i++)
        if (isfinite(e->unshaped[i])) square += (e->unshaped[i] - mean) * (e->unshaped[i] - mean);
    metrics_add(m, "reward_mean", mean);
    metrics_add(m, "reward_std", counted > 1 ? sqrt(square / (counted - 1)) : 0);
    metrics_add(m, "response_length", length);
    metrics_add(m, "truncated_fraction", (double)rl->truncated / e->n);
    metrics_add_int(m, "nan_rewards", rl->bad_rewards);
    metrics_add_int(m, "flat_groups", rl->flat_groups);
    metrics_add_int(m, "refills", rl->refills);
}

static enum status tell_gaps(struct trainer *t)
{
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    int n = 0;
    TRY(comm_sum_double(&t->mesh.world, e->gap, e->n));
    for (int i = 0; i < e->n; i++)
        if (isfinite(e->gap[i])) rl->gaps[n++] = e->gap[i];
    metrics_add(t->metrics, "train_rollout_logprob_abs_diff_p99", policy_quantile(rl->gaps, n, 0.99));
    metrics_add(t->metrics, "train_rollout_logprob_abs_diff_max", policy_quantile(rl->gaps, n, 1));
    return OK;
}

static void tell_policy(struct trainer *t, const struct policy_report *r)
{
    const struct rl *rl = t->rl;
    struct metrics *m = t->metrics;
    metrics_add(m, "train_rollout_logprob_abs_diff", r->train_rollout_logprob_abs_diff);
    metrics_add(m, "train_rollout_logprob_diff", r->train_rollout_logprob_diff);
    metrics_add(m, "train_rollout_kl", r->train_rollout_kl);
    metrics_add(m, "ppo_kl", r->ppo_kl);
    metrics_add(m, "clip_fraction", r->clip_fraction);
    metrics_add(m, "entropy", r->entropy);
    metrics_add(m, "dropped_samples", r->dropped_samples);
    if (rl->policy.clip_dual > 1) metrics_add(m, "dual_clip_fraction", r->dual_clip_fraction);
    if (rl->policy.tis) metrics_add(m, "tis_clip_fraction", r->tis_clip_fraction);
    if (rl->use_reference) metrics_add(m, "ref_kl", r->ref_kl);
}

static enum status write_records(struct trainer *t)
{
    struct rl *rl = t->rl;
    struct group *world = &t->mesh.world;
    struct record_context c = {.run_dir = t->config.run.dir, .step = t->state.step, .version = rl->worker.sync.count,
                               .prompts = rl->replay ? NULL : &rl->prompts, .tok = t->tok, .answer = rl->answer};
    return comm_agree(world, world->rank == 0 ? record_write(&c, &rl->e) : OK);
}

/* ---------------------------------------------------------------- the step --------------------------------------- */

static enum status train_on(struct trainer *t)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    struct metrics *m = t->metrics;
    struct policy_sums first, all;
    double norm, start = time_now(), time[3] = {0};
    memset(rl->e.gap, 0, (size_t)rl->e.n * sizeof *rl->e.gap);
    TRY(measure(t, false));
    metrics_time(m, "logprobs", start);
    if (rl->use_reference) {
        start = time_now();
        TRY(measure(t, true));
        metrics_time(m, "reference", start);
    }
    TRY(updates(t, &first, &all, &norm, time));
    struct policy_report whole = policy_report_of(&all), one = policy_report_of(&first);
    metrics_add(m, "loss", all.loss);
    metrics_add(m, "grad_norm", norm);
    metrics_add(m, "lr", learning_rate(c, t->state.step + 1));
    tell_policy(t, &whole);
    TRY(tell_gaps(t));
    static const char *const stage[] = {"time_forward_backward_s", "time_reduce_s", "time_adam_s"};
    for (int i = 0; i < 3; i++) metrics_add(m, stage[i], time[i]);
    rl->gate = (struct gate_values){.step = t->state.step + 1, .ppo_kl = one.ppo_kl, .clip_fraction = one.clip_fraction,
                                    .ref_kl = one.ref_kl, .grad_norm = norm,
                                    .logprob_abs_diff = whole.train_rollout_logprob_abs_diff,
                                    .mean_logprob_diff = whole.train_rollout_logprob_diff,
                                    .trainer_old = c->rl.old_logprobs == OLD_FROM_TRAINER};
    return OK;
}

enum status rl_step(struct trainer *t)
{
    struct rl *rl = t->rl;
    struct experience *e = &rl->e;
    struct metrics *m = t->metrics;
    int64_t drawn = t->state.samples;
    double start = time_now(), begin = start, clock[2] = {0};
    comm_step(t->state.step + 1);
    metrics_begin(m, t->state.step + 1);
    if (rl->replay_mode) TRY(replay(t));
    else {
        TRY(worker_update(&rl->worker));
        metrics_time(m, "sync", start);
        enum status s = collect(t, clock);
        if (s == ERR_STOPPED) t->state.samples = drawn; /* the step starts over */
        TRY(s);
    }
    advantages(t);
    int64_t tokens = 0, drawn_tokens = 0;
    for (int i = 0; i < e->n; i++) tokens += e->n_prompt[i] + e->n_new[i], drawn_tokens += e->n_new[i];
    if (!t->config.rollout.only) TRY(train_on(t));
    t->state.step++;
    TRY(write_records(t));
    tell_rewards(t);
    metrics_add_int(m, "samples", t->state.samples);
    metrics_add_int(m, "tokens", tokens);
    metrics_add(m, "tokens_per_s", (double)tokens / (time_now() - begin));
    if (!rl->replay_mode) {
        metrics_add(m, "rollout_tokens_per_s", clock[0] > 0 ? (double)drawn_tokens / clock[0] : NAN);
        metrics_add(m, "time_rollout_s", clock[0]);
        metrics_add(m, "time_reward_s", clock[1]);
        metrics_add_int(m, "weight_syncs", rl->worker.sync.count);
        if (rl->worker.check) metrics_add_int(m, "weights_hash", (int64_t)(rl->worker.sync.hash >> 11));
    }
    metrics_add(m, "time_step_s", time_now() - begin);
    return OK;
}

enum status rl_gates(struct trainer *t)
{
    struct rl *rl = t->rl;
    if (t->config.rollout.only) return OK;
    return comm_agree(&t->mesh.world, t->mesh.world.rank == 0 ? gate_check(&rl->gates, &rl->gate) : OK);
}

enum status rl_evaluate(struct trainer *t, double *accuracy, double *mean)
{
    struct rl *rl = t->rl;
    struct experience *e = &rl->greedy;
    for (int i = 0; i < e->n; i++) {
        set_prompt(e, i, &rl->held_out, i, (uint64_t)i);
        rl->which[i] = i;
    }
    TRY(worker_update(&rl->worker));
    TRY(generate(t, e, rl->which, e->n, true));
    TRY(reward(t, e, &rl->held_out, rl->which, e->n));
    *accuracy = *mean = 0;
    for (int i = 0; i < e->n; i++) {
        *accuracy += (e->unshaped[i] >= 1) / (double)e->n;
        *mean += (isfinite(e->unshaped[i]) ? e->unshaped[i] : 0) / e->n;
    }
    return OK;
}
