/* m3 train: the step, and the loop around it. */
#include "trainer.h"

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

static enum status train_step(struct trainer *t)
{
    const struct config *c = &t->config;
    double norm, lr = learning_rate(c, t->state.step + 1), clock[5];
    comm_step(t->state.step + 1);

    clock[0] = time_now();
    TRY(next_batch(t));
    struct sft sft = sft_objective(t, &t->batch);
    struct objective objective = {sft_loss, &sft, 1};

    clock[1] = time_now();
    TRY(grads_begin(&t->grads));
    TRY(pipeline_run(&t->pipeline, &t->batch, &objective, &t->grads, NULL));

    clock[2] = time_now();
    TRY(grads_finish(&t->grads, &norm));
    TRY(comm_sum_double(&t->mesh.world, &sft.loss, 1));
    if (!isfinite(norm) || !isfinite(sft.loss))
        return FAIL(ERR_GATE, "step %" PRId64 ": loss %g, grad_norm %g: not finite, nothing was updated",
                    t->state.step + 1, sft.loss, norm);

    clock[3] = time_now();
    double clip = c->train.clip_grad > 0 && norm > c->train.clip_grad ? c->train.clip_grad / (norm + 1e-6) : 1;
    TRY(adam_update(&t->adam, lr, clip));
    t->state.step++;

    clock[4] = time_now();
    struct metrics *m = t->metrics;
    metrics_begin(m, t->state.step);
    metrics_add(m, "loss", sft.loss);
    metrics_add(m, "grad_norm", norm);
    metrics_add(m, "lr", lr);
    metrics_add_int(m, "samples", t->state.samples);
    metrics_add_int(m, "tokens", t->batch.tokens);
    metrics_add_int(m, "targets", t->batch.targets);
    metrics_add_int(m, "micro_batches", t->batch.n_micro);
    metrics_add(m, "tokens_per_s", (double)t->batch.tokens / (clock[4] - clock[0]));
    static const char *const stage[] = {"time_data_s", "time_forward_backward_s", "time_reduce_s", "time_adam_s"};
    for (int i = 0; i < 4; i++) metrics_add(m, stage[i], clock[i + 1] - clock[i]);
    metrics_add_int(m, "memory_weights_bytes", (int64_t)model_weight_bytes(&t->model));
    metrics_add_int(m, "memory_gradients_bytes", (int64_t)model_grad_bytes(&t->model));
    metrics_add_int(m, "memory_activations_bytes", (int64_t)t->pipeline.device.size);
    metrics_add_int(m, "memory_adam_bytes", (int64_t)t->adam.arena.size);
    return OK;
}

static void print_line(void *ctx, const char *text)
{
    (void)ctx;
    puts(text);
}

void trainer_print_schedule(struct trainer *t)
{
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

/* Held-out loss into the step's metrics; *best when it is the lowest so far. */
static enum status evaluate_step(struct trainer *t, bool *best)
{
    double loss;
    TRY(evaluate(t, &loss));
    *best = loss < t->state.best_loss;
    if (*best) t->state.best_loss = loss;
    metrics_add(t->metrics, "eval_loss", loss);
    return OK;
}

enum status trainer_run(struct trainer *t)
{
    const struct config *c = &t->config;
    bool stop = false, saved = t->resumed;
    while (t->state.step < c->train.steps && !stop) {
        TRY(train_step(t));
        bool last = t->state.step == c->train.steps, best = false;
        if (t->eval.n && ((c->eval.every > 0 && t->state.step % c->eval.every == 0) || last)) TRY(evaluate_step(t, &best));
        TRY(comm_agree(&t->mesh.world, metrics_write(t->metrics)));
        TRY(stop_agreed(&t->mesh.world, &stop));
        saved = false;
        if (last || stop || best || (c->checkpoint.every > 0 && t->state.step % c->checkpoint.every == 0)) {
            TRY(save(t));
            if (best) TRY(comm_agree(&t->mesh.world, t->mesh.world.rank == 0 ? checkpoint_mark_best(c->run.dir, t->state.step) : OK));
            saved = true;
        }
    }
    if (!saved) TRY(save(t));
    if (stop && t->state.step < c->train.steps)
        return FAIL(ERR_STOPPED, "stopped at step %" PRId64 " of %" PRId64 " with a checkpoint", t->state.step,
                    c->train.steps);
    return OK;
}
