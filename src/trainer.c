/* Opening and closing a run, in the order the data takes: config, groups, weights, data, memory, state. */
#include "trainer.h"

#include "rl.h"
#include "run_dir.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum dtype run_dtype(const struct config *c, const struct ops *ops)
{
    if (c->run.dtype == DTYPE_AUTO) return ops->place == PLACE_DEVICE ? DT_BF16 : DT_F32;
    return c->run.dtype == DTYPE_BF16 ? DT_BF16 : DT_F32;
}

static enum status open_mesh(struct trainer *t)
{
    const struct config *c = &t->config;
    struct mesh_shape shape = {.tp = (int)c->mesh.tp, .pp = (int)c->mesh.pp, .ep = (int)c->mesh.ep, .dp = (int)c->mesh.dp,
                               .layers_per_stage = c->mesh.layers_per_stage.n ? c->mesh.layers_per_stage.v : NULL};
    if (shape.layers_per_stage && c->mesh.layers_per_stage.n != shape.pp)
        return FAIL(ERR_CONFIG, "mesh.layers_per_stage has %d entries, mesh.pp is %d", c->mesh.layers_per_stage.n,
                    shape.pp);
    TRY(mesh_create(&t->mesh, shape, &t->source.arch));
    return mesh_print(&t->mesh, t->ops->name);
}

static enum status open_data(struct trainer *t)
{
    const struct config *c = &t->config;
    const struct arch *a = &t->source.arch;
    const char *path = *c->data.tokenizer ? c->data.tokenizer : t->source.tokenizer;
    enum status s = path && t->mesh.world.rank == 0 ? tokenizer_open(&t->tok, path) : OK;
    TRY(comm_agree(&t->mesh.world, s));
    struct data_options o = {.format = c->data.format, .overlong = c->data.overlong, .chat = c->data.chat,
                             .max_tokens = c->data.max_tokens ? (int)c->data.max_tokens : a->max_positions,
                             .vocab = a->vocab, .eos_id = a->eos_id, .append_eos = c->data.append_eos,
                             .prompt_field = c->data.prompt_field, .response_field = c->data.response_field,
                             .text_field = c->data.text_field, .messages_field = c->data.messages_field,
                             .instruction = c->data.instruction};
    if (o.eos_id < 0 && t->tok) o.eos_id = tokenizer_id(t->tok, "[e~[");
    if (c->train.objective == OBJECTIVE_RL) return rl_open_data(t);
    TRY(config_need(c, "data.train", "train"));
    TRY(dataset_load(&t->train, &t->mesh.world, c->data.train, t->tok, &o));
    log_info("%s: %" PRId64 " samples, %" PRId64 " tokens, %.0f%% of them targets, longest %d; rejected %" PRId64
             " too long, %" PRId64 " with nothing to learn; cut %" PRId64, c->data.train, t->train.n,
             t->train.offset[t->train.n], 100.0 * dataset_target_share(&t->train), t->train.longest, t->train.too_long,
             t->train.unsupervised, t->train.truncated);
    t->order = (struct data_order){.seed = (uint64_t)c->run.seed, .shuffle = c->data.shuffle, .n = t->train.n};
    if (!*c->data.eval) return OK;
    o.limit = c->eval.samples;
    return dataset_load(&t->eval, &t->mesh.world, c->data.eval, t->tok, &o);
}

/* The sequences of evaluation are packed once; they are the same at every evaluation. */
static enum status pack_eval(struct trainer *t)
{
    struct sample *s = calloc((size_t)t->eval.n + 1, sizeof *s);
    if (!s) return FAIL(ERR_MEMORY, "%" PRId64 " held-out samples", t->eval.n);
    for (int64_t i = 0; i < t->eval.n; i++) s[i] = dataset_sample(&t->eval, i);
    enum status st = batch_pack(&t->eval_batch, s, (int)t->eval.n, t->config.train.micro_batch_tokens, t->mesh.tp,
                                t->mesh.dp, t->mesh.dp_rank);
    free(s);
    return st;
}

static enum status open_memory(struct trainer *t)
{
    const struct config *c = &t->config;
    struct model *m = &t->model;
    int64_t longest = t->train.longest > t->eval.longest ? t->train.longest : t->eval.longest;
    int64_t share = t->rl ? rl_share(t) : c->train.global_batch, budget = c->train.micro_batch_tokens;
    if (t->rl) longest = rl_longest(t);
    struct pipeline_options po = {.T = batch_max_rows(budget, longest, t->mesh.tp), .max_seqlen = (int)longest,
                                  .logits_chunk = c->train.logits_chunk, .recompute = c->train.recompute,
                                  .train = true, .deterministic = c->run.deterministic,
                                  .count_experts = true,
                                  .replay = c->train.objective == OBJECTIVE_RL && c->rl.routing_replay};
    po.S = t->eval.n > share ? t->eval.n : share;
    if (po.S > po.T) po.S = po.T;
    TRY(model_alloc_grads(m));
    TRY(pipeline_create(&t->pipeline, m, &po));
    TRY(grads_create(&t->grads, m));
    struct adam_options ao = {.beta1 = (float)c->train.beta1, .beta2 = (float)c->train.beta2, .eps = (float)c->train.eps,
                              .weight_decay = (float)c->train.weight_decay,
                              .moments = c->adam.moments == DTYPE_BF16 ? DT_BF16 : DT_F32, .spill_dir = c->adam.spill_dir,
                              .run = c->run.dir};
    TRY(adam_create(&t->adam, m, &ao));
    t->samples = calloc((size_t)share, sizeof *t->samples);
    if (!t->samples) return FAIL(ERR_MEMORY, "%" PRId64 " samples of a step", share);
    if (t->eval.n) TRY(pack_eval(t));
    const double mib = 1.0 / (1 << 20);
    log_info("memory of rank 0: weights %.1f MiB, gradients %.1f, activations %.1f, adam %.1f",
             mib * (double)model_weight_bytes(m), mib * (double)model_grad_bytes(m), mib * (double)t->pipeline.device.size,
             mib * (double)adam_bytes(&t->adam));
    return OK;
}

static enum status open_model(struct trainer *t)
{
    const struct config *c = &t->config;
    int64_t bucket = c->adam.bucket_mb * (1 << 20) / 4;
    TRY(model_create(&t->model, &t->source.arch, &t->mesh, t->ops, t->stream, run_dtype(c, t->ops), bucket));
    log_info("model: %.2f M parameters, %.2f M of them trained, %s", 1e-6 * (double)model_count(&t->model, false),
             1e-6 * (double)model_count(&t->model, true), dtype_name(t->model.dtype));
    return source_load(&t->source, &t->model);
}

enum status trainer_open(struct trainer *t)
{
    static const char *const device[] = {"auto", "cpu", "cuda"};
    struct config *c = &t->config;
    struct group world;
    char *resume = NULL;
    TRY(group_world(&world));
    TRY(comm_configure(c->comm.timeout_s, NULL));
    int cores = (int)c->run.threads;
    if (cores > 0) ops_cpu_threads(cores);
    else ops_cpu_threads(run_threads(comm_local_size()));
    enum status s = config_need(c, "model.checkpoint", "train");
    if (!s) s = source_open(&t->source, c->model.checkpoint);
    if (!s && c->model.dense_attention) memset(t->source.arch.sparse, 0, sizeof t->source.arch.sparse);
    if (!s) s = ops_find(&t->ops, device[c->run.device]);
    if (!s) s = t->ops->open(&t->stream, comm_local_rank());
    TRY(comm_agree(&world, s));
    comm_device(t->ops, t->stream);
    group_destroy(&world);
    TRY(open_mesh(t));
    TRY(run_dir_open(c, &t->mesh.world, t->fresh, &t->config_text, &resume));
    TRY(open_data(t));
    TRY(comm_agree(&t->mesh.world, open_model(t)));
    TRY(comm_agree(&t->mesh.world, open_memory(t)));
    t->state = (struct train_state){.seed = (uint64_t)c->run.seed, .best_loss = INFINITY};
    if (resume) {
        log_info("resuming from %s", resume);
        TRY(checkpoint_load(resume, &t->model, &t->adam, &t->state));
    }
    t->resumed = resume != NULL;
    free(resume);
    if (t->rl) TRY(rl_open(t));
    else TRY(comm_agree(&t->mesh.world, t->mesh.world.rank == 0 ? gates_open(&t->gates, c) : OK));
    return run_dir_metrics(c, &t->mesh.world, t->state.step, &t->metrics);
}

void trainer_close(struct trainer *t)
{
    metrics_close(&t->metrics);
    rl_close(t);
    gates_close(&t->gates);
    adam_destroy(&t->adam);
    if (t->grads.m) grads_destroy(&t->grads);
    if (t->pipeline.m) pipeline_destroy(&t->pipeline);
    model_destroy(&t->model);
    batch_free(&t->batch);
    batch_free(&t->eval_batch);
    dataset_free(&t->train);
    dataset_free(&t->eval);
    data_order_free(&t->order);
    tokenizer_close(&t->tok);
    source_close(&t->source);
    free(t->samples);
    free(t->config_text);
    mesh_destroy(&t->mesh);
    if (t->ops) t->ops->close(t->stream);
    config_free(&t->config);
}
