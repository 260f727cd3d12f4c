/* m3 train: the step, and the loop around it. */
#include "trainer.h"

#include "plan.h"
#include "rl.h"
#include "run_dir.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the objective: SFT ----------------------------- */

/* Mean cross-entropy over the supervised tokens of the global batch (RL.md section 1). */
struct sft {
    double inv_targets, loss; /* loss: this rank's part of the sum; counted once over tp */
    bool counts;
};

static enum status sft_loss(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                            float *dentropy, bool *use_entropy)
{
    struct sft *s = ctx;
    (void)entropy, (void)dentropy, (void)use_entropy;
    for (int64_t t = 0; t < u->T; t++) {
        if (u->targets[t] < 0) continue;
        dlogp[t] = (float)-s->inv_targets;
        if (s->counts) s->loss -= s->inv_targets * (double)logp[t];
    }
    return OK;
}

static struct sft sft_objective(const struct trainer *t, const struct batch *b)
{
    return (struct sft){.inv_targets = 1.0 / (double)(b->targets ? b->targets : 1), .counts = t->mesh.tp_rank == 0};
}

enum status evaluate(struct trainer *t, double *loss)
{
    struct sft sft = sft_objective(t, &t->eval_batch);
    struct objective o = {sft_loss, &sft, 1};
    TRY(pipeline_run(&t->pipeline, &t->eval_batch, &o, NULL, NULL));
    TRY(comm_sum_double(&t->mesh.world, &sft.loss, 1));
    *loss = sft.loss;
    return OK;
}

/* ---------------------------------------------------------------- the step --------------------------------------- */

double learning_rate(const struct config *c, int64_t step)
{
    double top = c->train.lr, low = c->train.min_lr;
    int64_t warm = c->train.warmup_steps, total = c->train.steps;
    if (step <= warm) return top * (double)step / (double)warm;
    double x = total > warm ? (double)(step - warm) / (double)(total - warm) : 1;
    if (x > 1) x = 1;
    if (c->train.lr_schedule == LR_COSINE) return low + 0.5 * (top - low) * (1 + cos(M_PI * x));
    if (c->train.lr_schedule == LR_LINEAR) return top + (low - top) * x;
    return top;
}

/* The next samples of the data order; the counter is all that a checkpoint has to remember. */
static enum status next_batch(struct trainer *t)
{
    int64_t n = t->config.train.global_batch;
    for (int64_t i = 0; i < n; i++) {
        int64_t which;
        TRY(data_order_at(&t->order, t->state.samples + i, &which));
        t->samples[i] = dataset_sample(&t->train, which);
    }
    TRY(batch_pack(&t->batch, t->samples, (int)n, t->config.train.micro_batch_tokens, t->mesh.tp, t->mesh.dp,
                   t->mesh.dp_rank));
    t->state.samples += n;
    return OK;
}

/* ---------------------------------------------------------------- the router's load ------------------------------- */

/* bias += rate * sign(mean - count), expert by expert, from the global counts of the step. */
static enum status move_bias(struct trainer *t, struct layer *y, const double *rows, double mean)
{
    const struct ops *ops = t->model.ops;
    int64_t E = t->model.arch.experts;
    float host[E];
    struct tensor view = tensor_view(host, DT_F32, PLACE_HOST, 1, E, 1, 1, 1);
    TRY(ops->copy(view, y->bias, t->model.stream));
    TRY(ops->wait(t->model.stream));
    for (int64_t e = 0; e < E; e++)
        host[e] += (float)(t->config.moe.bias_update_rate * ((rows[e] < mean) - (rows[e] > mean)));
    TRY(ops->copy(y->bias, view, t->model.stream));
    return ops->wait(t->model.stream);
}

/* After a step's updates: how uneven the experts' load was (mean over layers of largest / mean), and the router's bias. */
static enum status balance(struct trainer *t)
{
    struct model *m = &t->model;
    int64_t E = m->arch.experts, L = m->arch.layers, layers = 0;
    double *rows = t->pipeline.expert_rows, uneven = 0;
    if (!rows) return OK;
    TRY(comm_sum_double(&t->mesh.world, rows, (int)(L * E)));
    for (int64_t l = 0; l < L; l++) {
        double sum = 0, most = 0;
        for (int64_t e = 0; e < E; e++) {
            sum += rows[l * E + e];
            if (rows[l * E + e] > most) most = rows[l * E + e];
        }
        if (sum <= 0) continue;
        uneven += most * (double)E / sum;
        layers++;
        int64_t here = l - m->mesh->first_layer;
        if (t->config.moe.bias_update_rate > 0 && here >= 0 && here < m->n_layers)
            TRY(move_bias(t, &m->layers[here], rows + l * E, sum / (double)E));
    }
    if (layers) metrics_add(t->metrics, "tokens_per_expert_max_over_mean", uneven / (double)layers);
    memset(rows, 0, (size_t)(L * E) * sizeof *rows);
    return OK;
}

enum status compute_gradients(struct trainer *t, const struct objective *o, double *norm, double time[3])
{
    double start = time_now();
    TRY(grads_begin(&t->grads));
    TRY(pipeline_run(&t->pipeline, &t->batch, o, &t->grads, NULL));
    time[0] += time_now() - start;
    start = time_now();
    TRY(grads_finish(&t->grads, norm));
    time[1] += time_now() - start;
    return OK;
}

enum status apply_gradients(struct trainer *t, double lr, double loss, double norm, double time[3])
{
    const struct config *c = &t->config;
    double start = time_now();
    if (!isfinite(norm) || !isfinite(loss))
        return FAIL(ERR_GATE, "step %" PRId64 ": loss %g, grad_norm %g: not finite, nothing was updated",
                    t->state.step + 1, loss, norm);
    double clip = c->train.clip_grad > 0 && norm > c->train.clip_grad ? c->train.clip_grad / (norm + 1e-6) : 1;
    TRY(adam_update(&t->adam, lr, clip));
    time[2] += time_now() - start;
    return OK;
}

static enum status train_step(struct trainer *t)
{
    double norm, lr = learning_rate(&t->config, t->state.step + 1), start = time_now(), time[3] = {0};
    struct metrics *m = t->metrics;
    comm_step(t->state.step + 1);
    metrics_begin(m, t->state.step + 1);
    TRY(next_batch(t));
    metrics_time(m, "data", start);
    struct sft sft = sft_objective(t, &t->batch);
    struct objective objective = {sft_loss, &sft, 1};
    TRY(compute_gradients(t, &objective, &norm, time));
    TRY(comm_sum_double(&t->mesh.world, &sft.loss, 1));
    TRY(apply_gradients(t, lr, sft.loss, norm, time));
    t->state.step++;

    metrics_add(m, "loss", sft.loss);
    metrics_add(m, "grad_norm", norm);
    metrics_add(m, "lr", lr);
    metrics_add_int(m, "samples", t->state.samples);
    metrics_add_int(m, "tokens", t->batch.tokens);
    metrics_add_int(m, "targets", t->batch.targets);
    metrics_add(m, "tokens_per_s", (double)t->batch.tokens / (time_now() - start));
    static const char *const stage[] = {"time_forward_backward_s", "time_reduce_s", "time_adam_s"};
    for (int i = 0; i < 3; i++) metrics_add(m, stage[i], time[i]);
    return OK;
}

static void tell_memory(struct trainer *t)
{
    struct metrics *m = t->metrics;
    metrics_add_int(m, "micro_batches", t->batch.n_micro);
    metrics_resident(m);
    metrics_memory(m, "weights", (int64_t)model_weight_bytes(&t->model));
    metrics_memory(m, "gradients", (int64_t)model_grad_bytes(&t->model));
    metrics_memory(m, "activations", (int64_t)t->pipeline.device.size);
    metrics_memory(m, "adam", (int64_t)adam_bytes(&t->adam));
    if (t->adam.spill) {
        int64_t read, written;
        adam_spill_moved(t->adam.spill, &read, &written);
        metrics_add_int(m, "adam_read_bytes", read - t->adam_read);
        metrics_add_int(m, "adam_written_bytes", written - t->adam_written);
        t->adam_read = read;
        t->adam_written = written;
    }
    if (!t->rl) return;
    const struct worker *w = &t->rl->worker;
    metrics_memory(m, "rollout_weights", w->sync.aliased || !w->sync.to ? 0 : (int64_t)model_weight_bytes(&w->model));
    metrics_memory(m, "kv", (int64_t)w->engine.page_bytes);
    metrics_memory(m, "rollout", (int64_t)w->engine.work_bytes);
    metrics_memory(m, "lent", (int64_t)w->engine.lent_bytes);
}

static void print_line(void *ctx, const char *text)
{
    (void)ctx;
    puts(text);
}

void trainer_print_schedule(struct trainer *t)
{
    if (t->rl) {
        int64_t tokens = rl_share(t) * rl_longest(t) / t->mesh.dp, budget = t->config.train.micro_batch_tokens;
        int n = (int)(budget > 0 ? (tokens + budget - 1) / budget : 1);
        if (t->mesh.world.rank == 0) schedule_print(t->mesh.pp, n, print_line, NULL);
        return;
    }
    if (next_batch(t) == OK && t->mesh.world.rank == 0) schedule_print(t->mesh.pp, t->batch.n_micro, print_line, NULL);
}

/* ---------------------------------------------------------------- the loop --------------------------------------- */

static enum status save(struct trainer *t)
{
    struct checkpoint_args c = {t->config.run.dir, t->source.origin, t->source.dir,
                                t->config_text, (int)t->config.checkpoint.keep};
    double start = time_now();
    TRY(checkpoint_write(&c, &t->model, &t->adam, &t->state));
    log_info("step %" PRId64 ": checkpoint written in %.1f s", t->state.step, time_now() - start);
    return OK;
}

/* Held-out loss, or greedy accuracy, into the step's metrics; *best when it is the best so far. */
static enum status evaluate_step(struct trainer *t, bool *best)
{
    double loss, reward, start = time_now();
    if (t->rl) {
        TRY(rl_evaluate(t, &loss, &reward));
        metrics_add(t->metrics, "eval_accuracy", loss);
        metrics_add(t->metrics, "eval_reward", reward);
        metrics_time(t->metrics, "eval", start);
        loss = -reward;
        *best = loss < t->state.best_loss;
        if (*best) t->state.best_loss = loss;
        return OK;
    }
    TRY(evaluate(t, &loss));
    metrics_time(t->metrics, "eval", start);
    *best = loss < t->state.best_loss;
    if (*best) t->state.best_loss = loss;
    metrics_add(t->metrics, "eval_loss", loss);
    return OK;
}

static enum status sft_gates(struct trainer *t)
{
    struct group *world = &t->mesh.world;
    double norm = metrics_get(t->metrics, "grad_norm");
    return comm_agree(world, world->rank == 0 ? gate_check_norm(&t->gates, t->state.step, norm) : OK);
}

enum status trainer_run(struct trainer *t)
{
    const struct config *c = &t->config;
    bool stop = false, saved = t->resumed;
    bool held_out = t->rl ? t->rl->held_out.n > 0 : t->eval.n > 0;
    while (t->state.step < c->train.steps && !stop) {
        TRY(comm_agree(&t->mesh.world, profile_step(&t->profile, c, t->stream, t->mesh.world.rank)));
        enum status s = t->rl ? rl_step(t) : train_step(t);
        stop = s == ERR_STOPPED;
        if (stop) break;
        TRY(s);
        TRY(balance(t));
        tell_memory(t);
        bool last = t->state.step == c->train.steps, best = false;
        if (held_out && ((c->eval.every > 0 && t->state.step % c->eval.every == 0) || last)) TRY(evaluate_step(t, &best));
        TRY(comm_agree(&t->mesh.world, metrics_write(t->metrics)));
        TRY(t->rl ? rl_gates(t) : sft_gates(t));
        TRY(stop_agreed(&t->mesh.world, &stop));
        saved = false;
        if (last || stop || best || (c->checkpoint.every > 0 && t->state.step % c->checkpoint.every == 0)) {
            TRY(save(t));
            if (best) TRY(comm_agree(&t->mesh.world, t->mesh.world.rank == 0 ? checkpoint_mark_best(c->run.dir, t->state.step) : OK));
            saved = true;
        }
    }
    if (!saved) TRY(save(t));
    TRY(comm_agree(&t->mesh.world, profile_finish(&t->profile, c, t->stream, t->mesh.world.rank)));
    TRY(plan_compare(t));
    if (stop && t->state.step < c->train.steps)
        return FAIL(ERR_STOPPED, "stopped at step %" PRId64 " of %" PRId64 " with a checkpoint", t->state.step,
                    c->train.steps);
    return OK;
}
