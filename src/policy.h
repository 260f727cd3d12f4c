/* The mathematics of RL on plain arrays in double: advantages, the policy loss of one sample with its gradient, and the
 * sums behind the health metrics. Pure functions, no allocation, no communication.
 *
 * Denominators are global and come from outside, so that any split of the batch into micro-batches and ranks adds up to
 * the same loss and gradient:
 *
 *     policy_total_add()    over every sample of the global batch (all-reduce the two sums where it is spread)
 *     policy_sample()       each sample on the rank that holds it; *sums grows
 *     all-reduce sums       POLICY_SUMS doubles, by summation; the sequences' gaps for max and p99 are gathered
 *     policy_report_of()    what a metrics line says
 *
 * A sample counts when it is not dropped and has a loss token (mask != 0); others get gradient 0 and count in no
 * denominator. Values of tokens outside the mask are never read. NaN log-probs come out as a NaN loss: nothing hides them. */
#ifndef POLICY_H
#define POLICY_H
#include "config.h"

struct policy_args {
    enum rl_algorithm algorithm;
    double clip_low, clip_high;
    double clip_dual;    /* c of the dual clip where > 1; else off */
    bool tis;
    double tis_clip;
    double kl_coef;      /* 0: no reference needed */
    enum kl_type kl_type;
    double entropy_coef; /* the loss gets -entropy_coef * entropy */
    enum aggregation aggregation;
};

/* One sample; arrays are [n], by token, aligned with each other and borrowed. */
struct policy_sample {
    int n;
    const uint8_t *mask;    /* != 0: a loss token. NULL: all are */
    const double *logp;     /* of the weights that are being trained */
    const double *old;      /* of the trainer before the step's first update */
    const double *rollout;  /* when the token was drawn; NULL: unknown, only without TIS */
    const double *ref;      /* of the reference; NULL: none, only with kl_coef 0 */
    const double *entropy;  /* of the trained distribution; NULL: unknown, only with entropy_coef 0 */
    double advantage;       /* of every token */
    bool dropped;
};

/* The denominators. */
struct policy_total {
    double samples, tokens;
};

/* Sums over samples and tokens: an array of POLICY_SUMS doubles, all-reduced by summation. */
struct policy_sums {
    double loss;           /* weighted already: the global loss is the sum */
    double samples, tokens, dropped;
    double ppo_kl;         /* old - logp */
    double clipped;        /* tokens where the clipped branch is taken */
    double dual_clipped;   /* tokens where -c A is taken */
    double rollout_samples, rollout_tokens; /* of which the rollout's log-probs are known */
    double gap;            /* per sample: mean |old - rollout| */
    double rollout_diff;   /* old - rollout */
    double rollout_kl;     /* exp(k) - 1 - k, k = old - rollout */
    double tis_clipped;    /* tokens with exp(old - rollout) > tis_clip */
    double entropy_tokens, entropy;
    double ref_tokens, ref_kl; /* of kl_type, before kl_coef */
};
enum { POLICY_SUMS = sizeof(struct policy_sums) / sizeof(double) };

/* What is told of a step; NAN where nothing was known to compute it from. Names of RL.md's metrics. */
struct policy_report {
    double loss, ppo_kl, clip_fraction, dual_clip_fraction;
    double train_rollout_logprob_abs_diff; /* mean over samples of the mean over loss tokens */
    double train_rollout_logprob_diff;     /* mean over loss tokens, signed */
    double train_rollout_kl, tis_clip_fraction, entropy, ref_kl, dropped_samples;
};

/* advantage[n] of one prompt's group: r - mean, over the unbiased deviation + 1e-6 where std_norm is set, n > 1 and the
 * deviation is positive. Equal rewards and groups of one give exactly 0. A reward that is not finite drops its sample:
 * advantage 0, dropped[i] = true, the others are a smaller group. dropped[n] is only ever set, never cleared: a sample
 * that is dropped on entry stays out of the group. (Truncated samples that are only masked from the loss belong to the
 * group: set their `dropped` afterwards.) Returns how many rewards were not finite. */
int advantage_grpo(const double *reward, int n, bool std_norm, double *advantage, bool *dropped);
/* No two of the rewards differ: nothing to learn from this group (dynamic sampling refills it). Takes unshaped rewards;
 * those that are not finite do not count. */
bool policy_group_flat(const double *reward, int n);
/* DAPO's overlong shaping, added to a reward: 0 up to max_len - buffer tokens, down to -1 at max_len; 0 without buffer. */
double policy_overlong(int64_t len, int64_t max_len, int64_t buffer);

/* Adds a sample to the denominators. mask NULL: all tokens count. */
void policy_total_add(struct policy_total *t, const uint8_t *mask, int n, bool dropped);

/* Adds one sample's share of the loss and metrics to *sums; writes dlogp[n] = d loss / d logp and, unless NULL,
 * dentropy[n] = d loss / d entropy, both 0 outside the mask. *gap (may be NULL) is the sequence's mean |old - rollout|, NAN
 * when the sample does not count or has none.
 *
 *   d = clamp(logp - old, +-20), GSPO: the mean over loss tokens of logp - old, clamped;   r = exp(d)
 *   l = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A);  dual clip, A < 0: l = min(l, -c A)
 *   TIS: l *= clamp(exp(old - rollout), 0, tis_clip);  then l += kl_coef kl - entropy_coef entropy
 *
 * so that TIS weighs the policy term only. ERR_INTERNAL when an array that the options need is NULL. */
enum status policy_sample(const struct policy_args *a, const struct policy_sample *s, const struct policy_total *total,
                          double *dlogp, double *dentropy, struct policy_sums *sums, double *gap);

/* The penalty of one token for logp - ref = k, and its derivative. low_var_kl: k3 of k clamped to +-20, clamped to +-10. */
double policy_kl(enum kl_type type, double k, double *derivative);

struct policy_report policy_report_of(const struct policy_sums *sums);
/* The q-quantile (0 < q <= 1) by nearest rank: the smallest of the values such that at least q n of them are not above it.
 * Sorts value[n] in place, NaN above everything. NAN for n = 0. */
double policy_quantile(double *value, int n, double q);
#endif
