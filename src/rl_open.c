/* Opening and closing what RL needs beside the trainer. */
#include "rl.h"

#include "trainer.h"

#include <inttypes.h>
#include <stdlib.h>

static int samples_of(const struct config *c) { return (int)(c->rl.prompts_per_step * c->rollout.samples_per_prompt); }

int64_t rl_share(const struct trainer *t) { return samples_of(&t->config) / t->config.rl.updates_per_batch; }

int64_t rl_longest(const struct trainer *t) { return t->rl->e.max_prompt + t->rl->e.max_new; }

static enum status load_prompts(struct trainer *t, struct prompts *p, const char *path, int64_t limit, int max_prompt)
{
    const struct config *c = &t->config;
    struct data_options o = {.format = c->data.format, .chat = c->data.chat, .vocab = t->source.arch.vocab, .limit = limit,
                             .prompt_field = c->data.prompt_field, .messages_field = c->data.messages_field,
                             .instruction = c->data.instruction};
    int64_t too_long;
    TRY(prompts_load(p, &t->mesh.world, path, t->tok, &o, c->data.label_field, max_prompt, &too_long));
    log_info("%s: %" PRId64 " prompts, longest %d tokens; %" PRId64 " over %d left out", path, p->n, p->longest, too_long,
             max_prompt);
    return OK;
}

/* The id that ends a response: the config's, else the chat layout's. Only rank 0 has the tokenizer. */
static enum status find_stop(struct trainer *t)
{
    struct rl *rl = t->rl;
    int32_t id[1] = {t->source.arch.eos_id};
    if (id[0] < 0 && t->tok) id[0] = tokenizer_id(t->tok, "[e~[");
    TRY(comm_broadcast(&t->mesh.world, tensor_view(id, DT_I32, PLACE_HOST, 1, 1, 1, 1, 1), 0));
    rl->stop = id[0];
    return OK;
}

static enum status room(struct trainer *t)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    const struct arch *a = &t->source.arch;
    int n = samples_of(c), group = (int)c->rollout.samples_per_prompt, moe = 0, prompt = rl->prompts.longest;
    int held_out = (int)rl->held_out.n, most = n > held_out ? n : held_out;
    if (rl->held_out.longest > prompt) prompt = rl->held_out.longest;
    if (rl->replay_mode) {
        int64_t limit = a->max_positions - c->rollout.max_new_tokens;
        prompt = (int)(c->data.max_tokens ? c->data.max_tokens : limit);
    }
    for (int l = 0; l < a->layers; l++) moe += a->moe[l];
    if (!c->rl.routing_replay) moe = 0;
    int max_new = (int)c->rollout.max_new_tokens;
    TRY(experience_create(&rl->e, n, prompt, max_new, moe, a->experts_per_token));
    rl->e.n = n;
    rl->e.group = group;
    TRY(experience_create(&rl->greedy, held_out ? held_out : 1, prompt, max_new, moe, a->experts_per_token));
    rl->greedy.n = held_out;
    rl->greedy.group = 1;
    rl->row = calloc((size_t)max_new * 7, sizeof *rl->row);
    rl->which = calloc((size_t)most, sizeof *rl->which);
    rl->gaps = calloc((size_t)n, sizeof *rl->gaps);
    rl->answer = calloc((size_t)n, sizeof *rl->answer);
    if (!rl->row || !rl->which || !rl->gaps || !rl->answer) return FAIL(ERR_MEMORY, "%d samples of a step", n);
    return OK;
}

enum status rl_open_data(struct trainer *t)
{
    const struct config *c = &t->config;
    int64_t limit = t->source.arch.max_positions - c->rollout.max_new_tokens;
    t->rl = calloc(1, sizeof *t->rl);
    struct rl *rl = t->rl;
    enum status s = rl ? OK : FAIL(ERR_MEMORY, "the RL state");
    if (!s && limit < 1)
        s = FAIL(ERR_CONFIG, "rollout.max_new_tokens=%" PRId64 " leaves no room for a prompt: the model has %d positions",
                 c->rollout.max_new_tokens, t->source.arch.max_positions);
    if (!s) rl->replay_mode = *c->train.replay != 0;
    if (!s && !rl->replay_mode) s = config_need(c, "data.train", "train with train.objective=rl");
    if (c->data.max_tokens && c->data.max_tokens < limit) limit = c->data.max_tokens;
    TRY(comm_agree(&t->mesh.world, s));
    TRY(find_stop(t));
    if (!rl->replay_mode) {
        TRY(load_prompts(t, &rl->prompts, c->data.train, 0, (int)limit));
        if (*c->data.eval) TRY(load_prompts(t, &rl->held_out, c->data.eval, c->eval.samples, (int)limit));
        rl->order = (struct data_order){.seed = (uint64_t)c->run.seed, .shuffle = c->data.shuffle, .n = rl->prompts.n};
    }
    return comm_agree(&t->mesh.world, room(t));
}

static enum status open_here(struct trainer *t)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    TRY(gates_open(&rl->gates, c));
    if (!rl->replay_mode) return reward_open(&rl->reward, c);
    TRY(record_open(&rl->replay, c->train.replay));
    return record_skip(rl->replay, t->state.step * samples_of(c));
}

enum status rl_open(struct trainer *t)
{
    const struct config *c = &t->config;
    struct rl *rl = t->rl;
    struct group *world = &t->mesh.world;
    rl->policy = (struct policy_args){.algorithm = c->rl.algorithm, .clip_low = c->rl.clip_low, .clip_high = c->rl.clip_high,
                                      .clip_dual = c->rl.clip_dual, .tis = c->rl.tis, .tis_clip = c->rl.tis_clip,
                                      .kl_coef = c->rl.kl_coef, .kl_type = c->rl.kl_type,
                                      .entropy_coef = c->rl.entropy_coef, .aggregation = c->rl.aggregation};
    rl->use_reference = c->rl.kl_coef != 0 || c->ref.report;
    TRY(comm_agree(world, world->rank == 0 ? open_here(t) : OK));
    if (!rl->replay_mode) {
        struct arena *lender[] = {&t->model.grads, &t->pipeline.device};
        int capacity = rl->e.capacity > rl->greedy.capacity ? rl->e.capacity : rl->greedy.capacity;
        TRY(worker_open(&rl->worker, c, &t->model, rl->e.max_prompt, rl->e.max_new, capacity, lender, 2));
    }
    if (rl->use_reference) TRY(comm_agree(world, reference_open(&rl->reference, &t->source, &t->model)));
    if (c->rl.routing_replay) t->pipeline.replay = (struct replay){rl_fill_replay, t};
    return OK;
}

void rl_close(struct trainer *t)
{
    struct rl *rl = t->rl;
    if (!rl) return;
    worker_close(&rl->worker);
    reference_close(&rl->reference);
    reward_close(&rl->reward);
    gates_close(&rl->gates);
    record_close(&rl->replay);
    prompts_free(&rl->prompts);
    prompts_free(&rl->held_out);
    data_order_free(&rl->order);
    for (int i = 0; rl->answer && i < rl->e.capacity; i++) free(rl->answer[i]);
    experience_free(&rl->e);
    experience_free(&rl->greedy);
    free(rl->row);
    free(rl->which);
    free(rl->gaps);
    free(rl->answer);
    free(rl);
    t->rl = NULL;
}
