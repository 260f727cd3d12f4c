/* The configuration of a run: one struct per section of the YAML file, a field per key. It is filled from defaults,
 * then the file, then key=value overrides, through the option table of options.c, which also makes --help, the checks,
 * config.used.yaml and configs/reference.yaml. The comments here are short; `m3 train --help` has the long ones.
 *
 * Strings are never NULL: "" means not set. Optional numbers that are not set are NAN. The config owns strings and
 * lists; it is freed with config_free() and is not copied by assignment. */
#ifndef CONFIG_H
#define CONFIG_H
#include "status.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum device_choice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum dtype_choice { DTYPE_AUTO, DTYPE_FP32, DTYPE_BF16 };
enum tri_state { TRI_AUTO, TRI_TRUE, TRI_FALSE };
enum objective_kind { OBJECTIVE_SFT, OBJECTIVE_RL };
enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR };
enum recompute { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_LAYER };
enum data_format { DATA_AUTO, DATA_TOKENS, DATA_TEXT, DATA_PROMPT, DATA_MESSAGES };
enum overlong { OVERLONG_REJECT, OVERLONG_TRUNCATE };
enum rl_algorithm { RL_GRPO, RL_GSPO };
enum kl_type { KL_K1, KL_K2, KL_K3, KL_LOW_VAR };
enum aggregation { AGGREGATE_SAMPLE_MEAN, AGGREGATE_TOKEN_MEAN };
enum old_logprobs { OLD_FROM_TRAINER, OLD_FROM_ROLLOUT };
enum reward_kind { REWARD_PSEUDO_RANDOM, REWARD_MATH, REWARD_LENGTH, REWARD_COMMAND };
enum progress_kind { PROGRESS_AUTO, PROGRESS_LINE, PROGRESS_PLAIN };

struct int_list {
    int *v; /* [n] */
    int n;
};

enum config_source { FROM_DEFAULT, FROM_FILE, FROM_OVERRIDE };
enum { CONFIG_MAX_OPTIONS = 192 };

struct config {
    struct {
        char *checkpoint;
        bool dense_attention;
    } model;
    struct {
        char *dir;
        enum device_choice device;
        enum dtype_choice dtype;
        int64_t seed;
        bool deterministic;
        int64_t threads;      /* 0: auto */
        int64_t profile;      /* steps */
        bool trace_comm;
    } run;
    struct {
        enum objective_kind objective;
        int64_t steps;
        int64_t global_batch; /* samples */
        int64_t micro_batch_tokens;
        double lr, min_lr;
        enum lr_schedule lr_schedule;
        int64_t warmup_steps;
        double weight_decay, beta1, beta2, eps;
        double clip_grad;     /* 0: off */
        enum recompute recompute;
        enum dtype_choice grad_dtype; /* never auto */
        int64_t logits_chunk; /* tokens */
        char *replay;
    } train;
    struct {
        double bias_update_rate; /* 0: frozen */
    } moe;
    struct {
        char *train, *eval;
        enum data_format format;
        bool shuffle;
        int64_t max_tokens;   /* 0: no limit */
        enum overlong overlong;
        bool append_eos;
        char *prompt_field, *response_field, *text_field, *messages_field, *label_field;
        char *instruction;    /* on a line of its own behind each prompt */
        char *tokenizer;
        enum tri_state chat;
    } data;
    struct {
        int64_t every;        /* 0: never */
        int64_t samples;      /* 0: all */
    } eval;
    struct {
        int64_t tp, pp, ep, dp; /* dp 0: as many as fit */
        struct int_list layers_per_stage;
    } mesh;
    struct {
        double timeout_s;     /* 0: never */
    } comm;
    struct {
        int64_t every;        /* 0: only at the end */
        int64_t keep;
        bool async;
    } checkpoint;
    struct {
        char *spill_dir;
        int64_t bucket_mb;
        enum dtype_choice moments; /* never auto */
    } adam;
    struct {
        int64_t every;
        enum progress_kind progress;
    } log;
    struct {
        enum rl_algorithm algorithm;
        double clip_low, clip_high;
        double clip_dual;     /* 0: off */
        bool tis;
        double tis_clip;
        double kl_coef;
        enum kl_type kl_type;
        enum aggregation aggregation;
        bool std_norm;
        int64_t prompts_per_step, updates_per_batch;
        bool dynamic_sampling;
        int64_t max_refills;
        int64_t overlong_buffer; /* tokens, 0: off */
        bool mask_truncated, routing_replay;
        enum old_logprobs old_logprobs;
        double entropy_coef;
        bool check_weight_update_equal;
    } rl;
    struct {
        bool report;
    } ref;
    struct {
        int64_t tp, ep, dp;   /* 0: tp and ep as in training, dp as many as fit */
        enum dtype_choice dtype; /* auto: the training's */
        int64_t samples_per_prompt, max_new_tokens;
        double temperature;   /* 0: greedy */
        int64_t top_k;        /* 0: all */
        double top_p;
        int64_t kv_pages;     /* 0: auto */
        int64_t max_batch;
        bool only;
    } rollout;
    struct {
        enum reward_kind kind;
        char *command;
        double timeout_s;
        int64_t target_length;
        bool negative;
    } reward;
    struct {                  /* limits; NAN: no gate */
        double ppo_kl, clip_fraction, logprob_abs_diff, mean_logprob_diff, ref_kl, grad_norm_rel;
        char *grad_norm_file;
    } gates;
    unsigned char source[CONFIG_MAX_OPTIONS]; /* enum config_source of each option */
};

/* Fills *c: defaults, then the file (NULL: none), then the overrides "train.lr=2e-5" in order, the last of equal ones
 * winning; then config_check(). On failure nothing is left to free. ERR_USAGE for an override without '=', ERR_CONFIG
 * with file, line and the nearest known key for all else that is wrong with what the user wrote. */
enum status config_load(struct config *c, const char *path, int n_overrides, char **key_equals_value);
/* The same from a text, such as a checkpoint's copy. `origin` names it in messages. */
enum status config_from_text(struct config *c, const char *text, size_t len, const char *origin);
void config_free(struct config *c);

/* Rules between keys; ERR_CONFIG with both values. config_load() and config_from_text() end with it. */
enum status config_check(const struct config *c);
/* ERR_CONFIG unless `key` has a value: "train needs data.train: set it in the file or as data.train=...". */
enum status config_need(const struct config *c, const char *key, const char *who);
/* Where a key's value comes from. FROM_DEFAULT for a name that is no key. */
enum config_source config_source_of(const struct config *c, const char *key);

/* YAML with every key, those at their defaults marked; reads back to the same values. The text is the caller's to free.
 * config_write() goes through PATH.tmp (0600), fsync and rename. */
enum status config_to_text(const struct config *c, char **text);
enum status config_write(const struct config *c, const char *path);
/* Prints "key: old -> now" for each key that differs (out may be NULL), returns how many; *only_may_change tells
 * whether all of them may change when a run resumes. */
int config_diff(const struct config *old, const struct config *now, FILE *out, bool *only_may_change);

/* The keys of one section (NULL: all) with type, range, default and effect. ERR_USAGE for an unknown section. */
enum status config_help(FILE *out, const char *section);
/* The text of configs/reference.yaml. */
void config_print_reference(FILE *out);

static inline bool config_is_set(double x) { return !isnan(x); }
#endif
