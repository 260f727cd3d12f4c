/* Rules between keys. What depends on the model or the world size is checked where those are known. */
#include "config.h"

#include <stdlib.h>

#define REFUSE(...) FAIL(ERR_CONFIG, __VA_ARGS__)

static enum status check_train(const struct config *c)
{
    if (c->train.warmup_steps > c->train.steps && c->train.steps > 0)
        return REFUSE("train.warmup_steps=%lld is more than train.steps=%lld", (long long)c->train.warmup_steps,
                      (long long)c->train.steps);
    if (c->train.min_lr > c->train.lr && c->train.lr_schedule != LR_CONSTANT)
        return REFUSE("train.min_lr=%g is above train.lr=%g", c->train.min_lr, c->train.lr);
    if (c->eval.every > 0 && !*c->data.eval)
        return REFUSE("eval.every=%lld needs held-out data: data.eval is not set", (long long)c->eval.every);
    if (c->train.objective == OBJECTIVE_SFT && *c->train.replay)
        return REFUSE("train.replay=%s needs train.objective=rl, which is sft", c->train.replay);
    if (c->train.objective == OBJECTIVE_SFT && c->rollout.only)
        return REFUSE("rollout.only=true needs train.objective=rl, which is sft");
    if (c->rollout.only && *c->train.replay)
        return REFUSE("rollout.only=true generates and train.replay=%s does not: choose one", c->train.replay);
    return OK;
}

static enum status check_mesh(const struct config *c)
{
    if (c->mesh.layers_per_stage.n && c->mesh.layers_per_stage.n != c->mesh.pp)
        return REFUSE("mesh.layers_per_stage has %d numbers for mesh.pp=%lld stages", c->mesh.layers_per_stage.n,
                      (long long)c->mesh.pp);
    if (c->mesh.dp && (c->mesh.tp * c->mesh.dp) % c->mesh.ep)
        return REFUSE("mesh.ep=%lld does not divide mesh.tp=%lld x mesh.dp=%lld", (long long)c->mesh.ep,
                      (long long)c->mesh.tp, (long long)c->mesh.dp);
    return OK;
}

static enum status check_loss(const struct config *c)
{
    if (c->rl.clip_dual != 0 && c->rl.clip_dual <= 1)
        return REFUSE("rl.clip_dual=%g must be above 1, or 0 for off", c->rl.clip_dual);
    if (c->rl.tis && c->rl.old_logprobs == OLD_FROM_ROLLOUT)
        return REFUSE("rl.tis=true weighs old against rollout, which rl.old_logprobs=rollout makes the same");
    if (c->rl.overlong_buffer >= c->rollout.max_new_tokens)
        return REFUSE("rl.overlong_buffer=%lld must be below rollout.max_new_tokens=%lld",
                      (long long)c->rl.overlong_buffer, (long long)c->rollout.max_new_tokens);
    return OK;
}

static enum status check_rl(const struct config *c)
{
    if (c->train.objective != OBJECTIVE_RL) return OK;
    TRY(check_loss(c));
    int64_t samples = c->rl.prompts_per_step * c->rollout.samples_per_prompt;
    if (samples % c->rl.updates_per_batch)
        return REFUSE("rl.updates_per_batch=%lld does not divide a step's %lld x %lld samples",
                      (long long)c->rl.updates_per_batch, (long long)c->rl.prompts_per_step,
                      (long long)c->rollout.samples_per_prompt);
    if (c->rl.dynamic_sampling && c->rollout.samples_per_prompt < 2)
        return REFUSE("rl.dynamic_sampling=true needs groups: rollout.samples_per_prompt=%lld",
                      (long long)c->rollout.samples_per_prompt);
    if (c->rl.dynamic_sampling && *c->train.replay)
        return REFUSE("rl.dynamic_sampling=true cannot refill the recorded train.replay=%s", c->train.replay);
    if (c->reward.kind == REWARD_COMMAND && !*c->reward.command)
        return REFUSE("reward.kind=command needs reward.command, which is not set");
    if (c->reward.kind == REWARD_LENGTH && !c->reward.target_length)
        return REFUSE("reward.kind=length needs reward.target_length above 0");
    if (c->reward.negative && c->reward.kind != REWARD_MATH)
        return REFUSE("reward.negative=true is for reward.kind=math only");
    return OK;
}

static enum status check_gates(const struct config *c)
{
    bool limit = config_is_set(c->gates.grad_norm_rel), file = *c->gates.grad_norm_file;
    if (limit != file)
        return REFUSE("gates.grad_norm_rel and gates.grad_norm_file go together: %s is not set",
                      limit ? "gates.grad_norm_file" : "gates.grad_norm_rel");
    return OK;
}

enum status config_check(const struct config *c)
{
    TRY(check_train(c));
    TRY(check_mesh(c));
    TRY(check_rl(c));
    TRY(check_gates(c));
    return OK;
}
