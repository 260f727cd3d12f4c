#include "options.h"
#include "value.h"

#include <string.h>

/* Integers are read as doubles in lo and hi: 2^53 and below. */
#define MANY 1e12
#define UNLIMITED 0x1p53
#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

#define BOOL_(key, initial, flags, help)                                                                               \
    {#key, OPT_BOOL, offsetof(struct config, key), initial, 0, 0, "", NULL, flags, help}
#define INT_(key, initial, lo, hi, unit, flags, help)                                                                  \
    {#key, OPT_INT, offsetof(struct config, key), initial, lo, hi, unit, NULL, flags, help}
#define FLOAT_(key, initial, lo, hi, unit, flags, help)                                                                \
    {#key, OPT_FLOAT, offsetof(struct config, key), initial, lo, hi, unit, NULL, flags, help}
#define STRING_(key, initial, flags, help)                                                                             \
    {#key, OPT_STRING, offsetof(struct config, key), initial, 0, 0, "", NULL, flags, help}
#define PATH_(key, flags, help) {#key, OPT_PATH, offsetof(struct config, key), "", 0, 0, "", NULL, flags, help}
#define ENUM_(key, initial, choices, flags, help)                                                                      \
    {#key, OPT_ENUM, offsetof(struct config, key), initial, 0, 0, "", choices, flags, help}
#define ENUM_FROM_(key, initial, first, choices, flags, help)                                                          \
    {#key, OPT_ENUM, offsetof(struct config, key), initial, first, 0, "", choices, flags, help}
#define INTS_(key, lo, hi, unit, flags, help)                                                                          \
    {#key, OPT_INTS, offsetof(struct config, key), "[]", lo, hi, unit, NULL, flags, help}

const struct option options[] = {
    PATH_(model.checkpoint, 0, "Where the weights come from: a release folder, an HDF5 checkpoint or a run folder."),
    BOOL_(model.dense_attention, "false", 0,
          "Accept sparse layers without index tensors and run them with dense attention."),

    PATH_(run.dir, MAY_CHANGE, "The run folder: everything that the run writes goes there, and it resumes from there."),
    ENUM_(run.device, "auto", NAMES("auto", "cpu", "cuda"), 0, "Where to compute; auto takes a GPU when there is one."),
    ENUM_(run.dtype, "auto", NAMES("auto", "fp32", "bf16"), 0,
          "Type of weights and activations; auto is bf16 on a GPU and fp32 on a CPU."),
    INT_(run.seed, "1", 0, UNLIMITED, "", 0,
         "Seed of the data order and of sampling; one seed gives one run on any mesh."),
    BOOL_(run.deterministic, "false", 0,
          "Use only kernels that give the same bits in every run, at some cost in speed."),
    INT_(run.threads, "0", 0, 4096, "threads", MAY_CHANGE,
         "CPU threads of a rank; 0 shares the cores of a host among its ranks."),
    INT_(run.profile, "0", 0, 1000000, "steps", MAY_CHANGE,
         "Time every operation of the GPU for this many steps after the first: a table in profile/ and the log."),
    BOOL_(run.trace_comm, "false", MAY_CHANGE, "Write each rank's sequence of collectives into the run folder."),

    ENUM_(train.objective, "sft", NAMES("sft", "rl"), 0, "Supervised fine-tuning, or reinforcement learning."),
    INT_(train.steps, "100", 0, MANY, "steps", MAY_CHANGE, "The run ends after this many optimizer steps in all."),
    INT_(train.global_batch, "8", 1, 1e9, "samples", 0,
         "SFT: samples of one optimizer step, over all ranks (RL takes them from rl.* and rollout.*)."),
    INT_(train.micro_batch_tokens, "4096", 1, 1e9, "tokens", MAY_CHANGE,
         "Samples are packed into micro-batches of at most this size; a longer sample is one of its own."),
    FLOAT_(train.lr, "1e-6", 0, 10, "", MAY_CHANGE, "Peak learning rate; 0 changes nothing but the counters."),
    ENUM_(train.lr_schedule, "constant", NAMES("constant", "cosine", "linear"), MAY_CHANGE,
          "What the learning rate does between warm-up and train.steps: stay, or fall to train.min_lr."),
    INT_(train.warmup_steps, "0", 0, MANY, "steps", MAY_CHANGE,
         "The learning rate rises linearly from 0 over these steps."),
    FLOAT_(train.min_lr, "0", 0, 10, "", MAY_CHANGE, "Where the cosine and linear schedules end."),
    FLOAT_(train.weight_decay, "0.1", 0, 10, "", MAY_CHANGE,
           "AdamW's decoupled decay of matrices (norms are not decayed)."),
    FLOAT_(train.beta1, "0.9", 0, 1, "", BELOW_HI, "AdamW: memory of the first moment."),
    FLOAT_(train.beta2, "0.95", 0, 1, "", BELOW_HI, "AdamW: memory of the second moment."),
    FLOAT_(train.eps, "1e-8", 0, 1, "", ABOVE_LO, "AdamW: added to the root of the second moment."),
    FLOAT_(train.clip_grad, "1", 0, 1e9, "", MAY_CHANGE,
           "Gradients are scaled down to this global norm; 0 does not clip."),
    ENUM_(train.recompute, "none", NAMES("none", "attention", "layer"), MAY_CHANGE,
          "What the backward computes again instead of keeping: nothing, attention, or all inside a layer."),
    ENUM_FROM_(train.grad_dtype, "fp32", DTYPE_FP32, NAMES("fp32", "bf16"), 0,
               "Type in which gradients are summed and reduced."),
               INT_(train.logits_chunk, "1024", 0, 1e9, "tokens", MAY_CHANGE,
         "Rows of logits that exist at a time; 0 takes a whole micro-batch."),
    PATH_(train.replay, 0, "RL: train from these recorded rollouts (JSONL, or a folder of them) and generate nothing."),

    FLOAT_(moe.bias_update_rate, "0", 0, 1, "", 0,
           "Step by which the router's correction bias moves toward balance; 0 keeps it frozen."),

    PATH_(data.train, 0, "Training data, JSONL: samples for SFT, prompts for RL."),
    PATH_(data.eval, MAY_CHANGE, "Held-out data, JSONL of the same kind."),
    ENUM_(data.format, "auto", NAMES("auto", "tokens", "text", "prompt", "messages"), 0,
          "What a line holds; auto decides by the first line's fields."),
    BOOL_(data.shuffle, "true", 0, "A new order each epoch, by run.seed; false keeps the file's order."),
    INT_(data.max_tokens, "0", 0, 1e9, "tokens", 0, "Longest sample (RL: longest prompt); 0 is no limit."),
    ENUM_(data.overlong, "reject", NAMES("reject", "truncate"), 0,
          "What happens to longer ones: left out and counted, or cut."),
    BOOL_(data.append_eos, "true", 0, "Put the end token behind `text` samples."),
    STRING_(data.prompt_field, "prompt", 0, "Name of the prompt's field (GSM8K: question)."),
    STRING_(data.response_field, "response", 0, "Name of the response's field (GSM8K: answer)."),
    STRING_(data.text_field, "text", 0, "Name of the text's field."),
    STRING_(data.messages_field, "messages", 0, "Name of the field with a list of role and content."),
    STRING_(data.label_field, "label", 0, "Name of the field with what a reward compares to."),
    STRING_(data.instruction, "", 0,
            "Put on a line of its own behind each prompt, such as: Put the answer in \\boxed{}."),
    PATH_(data.tokenizer, 0, "tokenizer.json to use; not set: the checkpoint's own."),
    ENUM_(data.chat, "auto", NAMES("auto", "true", "false"), 0,
          "Render prompt and response in the chat layout; auto does when the tokenizer has its tokens."),

    INT_(eval.every, "0", 0, MANY, "steps", MAY_CHANGE,
         "Evaluate on data.eval after every so many steps and after the last; 0: only after the last."),
    INT_(eval.samples, "0", 0, 1e9, "samples", MAY_CHANGE, "Only the first so many held-out samples; 0 is all."),

    INT_(mesh.tp, "1", 1, 4096, "ranks", MAY_CHANGE, "Tensor parallelism, with sequence parallelism."),
    INT_(mesh.pp, "1", 1, 4096, "ranks", MAY_CHANGE, "Pipeline stages."),
    INT_(mesh.ep, "1", 1, 4096, "ranks", MAY_CHANGE, "Expert parallelism; cut from tp x dp."),
    INT_(mesh.dp, "0", 0, 65536, "ranks", MAY_CHANGE, "Data parallelism; 0: world size / (tp x pp)."),
    INTS_(mesh.layers_per_stage, 1, 100000, "layers", MAY_CHANGE,
          "Layers of each pipeline stage, pp numbers; empty: even."),

    FLOAT_(comm.timeout_s, "1800", 0, 1e7, "s", MAY_CHANGE,
           "A collective that takes longer ends the job, naming the missing ranks; 0 waits for ever."),

    INT_(checkpoint.every, "0", 0, MANY, "steps", MAY_CHANGE,
         "Write a checkpoint after every so many steps; 0: only at the end."),
    INT_(checkpoint.keep, "2", 1, 1000000, "checkpoints", MAY_CHANGE,
         "The newest so many stay, and the best by held-out loss."),
    BOOL_(checkpoint.async, "true", MAY_CHANGE, "Train on while a checkpoint is being written."),

    PATH_(adam.spill_dir, MAY_CHANGE,
          "Stream the optimizer state through a file in this local folder; not set: keep it in memory."),
    INT_(adam.bucket_mb, "256", 1, 65536, "MiB", MAY_CHANGE, "Optimizer state read, updated and written at a time."),
    ENUM_FROM_(adam.moments, "fp32", DTYPE_FP32, NAMES("fp32", "bf16"), 0,
               "Type of Adam's two moments; the master weights are fp32."),

    INT_(log.every, "1", 1, 1000000, "steps", MAY_CHANGE, "Print a plain progress line after every so many steps."),
    ENUM_(log.progress, "auto", NAMES("auto", "line", "plain"), MAY_CHANGE,
          "One line rewritten in place, or plain lines; auto: in place on a terminal."),

    ENUM_(rl.algorithm, "grpo", NAMES("grpo", "gspo"), 0, "Ratio by token (GRPO) or by sequence (GSPO)."),
    FLOAT_(rl.clip_low, "0.2", 0, 1, "", 0, "The ratio is clipped below at 1 - clip_low."),
    FLOAT_(rl.clip_high, "0.2", 0, 1e6, "", 0, "The ratio is clipped above at 1 + clip_high (DAPO: 0.28)."),
    FLOAT_(rl.clip_dual, "0", 0, 1e6, "", 0,
           "Dual clip c: with a negative advantage the loss is at most -c A; 0 is off, else > 1."),
    BOOL_(rl.tis, "false", 0,
          "Weight tokens by clamp(exp(old - rollout), 0, tis_clip), against the rollout's other numerics."),
    FLOAT_(rl.tis_clip, "2", 0, 1e6, "", ABOVE_LO, "Largest weight of rl.tis."),
    FLOAT_(rl.kl_coef, "0", 0, 1e6, "", 0, "Weight of the KL term to the reference; 0 needs no reference model."),
    ENUM_(rl.kl_type, "low_var_kl", NAMES("k1", "k2", "k3", "low_var_kl"), 0, "Estimator of the KL term."),
    ENUM_(rl.aggregation, "sample_mean", NAMES("sample_mean", "token_mean"), 0,
          "Loss over the batch: mean over samples of token means, or mean over tokens."),
    BOOL_(rl.std_norm, "true", 0, "Divide a group's advantages by their standard deviation."),
    INT_(rl.prompts_per_step, "8", 1, 1e9, "prompts", 0, "Prompts rolled out in a step."),
    INT_(rl.updates_per_batch, "1", 1, 1000000, "updates", 0, "Optimizer updates of equal shares of a step's samples."),
    BOOL_(rl.dynamic_sampling, "false", 0, "Replace groups whose rewards are all equal by new prompts (DAPO)."),
    INT_(rl.max_refills, "10", 0, 1000000, "rounds", MAY_CHANGE,
         "Give up dynamic sampling after so many rounds of new prompts."),
    INT_(rl.overlong_buffer, "0", 0, 1e9, "tokens", 0,
         "The reward falls linearly by up to 1 over the last so many tokens before the limit; 0 is off."),
    BOOL_(rl.mask_truncated, "false", 0, "Responses cut by the limit carry no loss."),
    BOOL_(rl.routing_replay, "false", 0, "Training reuses the experts that the rollout chose."),
    ENUM_(rl.old_logprobs, "trainer", NAMES("trainer", "rollout"), 0,
          "Whose log-probs are `old`: the trainer's own before the first update, or the rollout's."),
    FLOAT_(rl.entropy_coef, "0", -1e6, 1e6, "", 0, "This times the mean entropy is taken from the loss."),
    BOOL_(rl.check_weight_update_equal, "false", MAY_CHANGE,
          "After each sync compare every rollout tensor with the trainer's, bit by bit."),

    BOOL_(ref.report, "false", MAY_CHANGE, "Measure the KL to the reference even when rl.kl_coef is 0."),

    INT_(rollout.tp, "0", 0, 4096, "ranks", MAY_CHANGE, "Tensor parallelism of the rollout; 0: as in training."),
    INT_(rollout.ep, "0", 0, 4096, "ranks", MAY_CHANGE, "Expert parallelism of the rollout; 0: as in training."),
    INT_(rollout.dp, "0", 0, 65536, "ranks", MAY_CHANGE,
         "Data parallelism of the rollout; 0: world size / rollout.tp."),
    ENUM_(rollout.dtype, "auto", NAMES("auto", "fp32", "bf16"), 0,
          "Type of the rollout's weights; auto: as in training."),
    INT_(rollout.samples_per_prompt, "8", 1, 1000000, "samples", 0, "Responses to each prompt: its group."),
    INT_(rollout.max_new_tokens, "256", 1, 1e8, "tokens", 0, "Longest response."),
    FLOAT_(rollout.temperature, "1", 0, 1000, "", 0, "Logits are divided by it, in training too; 0 is greedy."),
    INT_(rollout.top_k, "0", 0, 1e8, "tokens", 0, "Sample among the most likely so many; 0 is all."),
    FLOAT_(rollout.top_p, "1", 0, 1, "", ABOVE_LO,
           "Sample among the most likely that hold this share of the probability."),
    INT_(rollout.kv_pages, "0", 0, 1e9, "pages", MAY_CHANGE,
         "Pages of the KV cache on a rank; 0: enough for rollout.max_batch."),
    INT_(rollout.max_batch, "64", 1, 65536, "sequences", MAY_CHANGE, "Sequences that a rank decodes at a time."),
    BOOL_(rollout.only, "false", MAY_CHANGE, "Only generate and reward: no training."),

    ENUM_(reward.kind, "math", NAMES("pseudo_random", "math", "length", "command"), 0,
          "What scores a response: a hash, the answer, the length, or a program of yours."),
    STRING_(reward.command, "", 0,
            "Program (and its arguments, split at spaces) that reads JSON lines and prints a reward each."),
    FLOAT_(reward.timeout_s, "300", 0, 1e7, "s", MAY_CHANGE | ABOVE_LO, "The command may take this long for a batch."),
    INT_(reward.target_length, "0", 0, 1e8, "tokens", 0, "reward.kind length: the length that scores 1."),
    BOOL_(reward.negative, "false", 0, "reward.kind math: a wrong answer scores -1 instead of 0."),

    FLOAT_(gates.ppo_kl, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "First step: |ppo_kl| must be below (usually 1e-9)."),
    FLOAT_(gates.clip_fraction, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "First step: clip_fraction must be below (usually 1e-10)."),
    FLOAT_(gates.logprob_abs_diff, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "Each step: train_rollout_logprob_abs_diff must be below (bf16: about 0.02)."),
    FLOAT_(gates.mean_logprob_diff, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "Each step: |mean of old - rollout log-prob| must be below."),
    FLOAT_(gates.ref_kl, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "First step: the KL to the reference must be below (usually 1e-8)."),
    FLOAT_(gates.grad_norm_rel, "unset", 0, 1e9, "", MAY_CHANGE | OPTIONAL,
           "Each step: grad_norm may differ from the recorded run's by this share (usually 0.03)."),
    PATH_(gates.grad_norm_file, MAY_CHANGE, "metrics.jsonl of the recorded run."),
};
const int n_options = LEN(options);
_Static_assert(LEN(options) <= CONFIG_MAX_OPTIONS, "config.source is too small");

const struct option_section option_sections[] = {
    {"model", "the weights to start from"},
    {"run", "where and how the run computes"},
    {"train", "optimizer steps"},
    {"moe", "the experts' router"},
    {"data", "samples and prompts"},
    {"eval", "held-out data"},
    {"mesh", "how the model is spread over the ranks"},
    {"comm", "communication"},
    {"checkpoint", "state on disk"},
    {"adam", "optimizer state"},
    {"log", "progress"},
    {"rl", "reinforcement learning: the loss and the step"},
    {"ref", "the reference model"},
    {"rollout", "generation"},
    {"reward", "the score of a response"},
    {"gates", "limits that end the run with status 3; `unset` is no gate, NaN never passes"},
};
const int n_option_sections = LEN(option_sections);

const struct option *option_find(const char *name)
{
    for (int i = 0; i < n_options; i++)
        if (!strcmp(options[i].name, name)) return &options[i];
    return NULL;
}

static const char *name_at(const void *ctx, int i)
{
    (void)ctx;
    return options[i].name;
}

const char *option_nearest(const char *name) { return value_nearest(name, name_at, NULL, n_options); }
