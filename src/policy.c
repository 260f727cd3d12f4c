#include "policy.h"

/* fmin and fmax would turn NaN into a bound. */
static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

int advantage_grpo(const double *reward, int n, bool std_norm, double *advantage, bool *dropped)
{
    int bad = 0, counted = 0;
    double origin = 0, mean = 0, square = 0;
    for (int i = 0; i < n; i++) {
        advantage[i] = 0;
        bad += !isfinite(reward[i]);
        dropped[i] = dropped[i] || !isfinite(reward[i]);
        if (!dropped[i] && counted++ == 0) origin = reward[i];
    }
    if (counted < 2) return bad;
    /* Measured from one of them, equal rewards are exact zeros: no rounding residue to divide by itself. */
    for (int i = 0; i < n; i++)
        if (!dropped[i]) mean += (reward[i] - origin) / counted;
    for (int i = 0; i < n; i++) {
        if (dropped[i]) continue;
        advantage[i] = reward[i] - origin - mean;
        square += advantage[i] * advantage[i];
    }
    double deviation = sqrt(square / (counted - 1));
    if (std_norm && deviation > 0)
        for (int i = 0; i < n; i++) advantage[i] /= deviation + 1e-6;
    return bad;
}

bool policy_group_flat(const double *reward, int n)
{
    int first = -1;
    for (int i = 0; i < n; i++) {
        if (!isfinite(reward[i])) continue;
        if (first >= 0 && reward[i] != reward[first]) return false;
        if (first < 0) first = i;
    }
    return true;
}

double policy_overlong(int64_t len, int64_t max_len, int64_t buffer)
{
    if (buffer <= 0 || len <= max_len - buffer) return 0;
    return -(double)(len - (max_len - buffer)) / (double)buffer;
}

static int loss_tokens(const uint8_t *mask, int n)
{
    int count = 0;
    for (int t = 0; t < n; t++) count += !mask || mask[t];
    return count;
}

void policy_total_add(struct policy_total *t, const uint8_t *mask, int n, bool dropped)
{
    int count = dropped ? 0 : loss_tokens(mask, n);
    t->samples += count > 0;
    t->tokens += count;
}

double policy_kl(enum kl_type type, double k, double *derivative)
{
    double bounded = clamp(k, -20, 20), kl;
    switch (type) {
    case KL_K1: *derivative = 1; return k;
    case KL_K2: *derivative = k; return k * k / 2;
    case KL_K3: *derivative = -expm1(-k); return expm1(-k) + k;
    case KL_LOW_VAR: break;
    }
    kl = expm1(-bounded) + bounded;
    *derivative = kl > 10 || k < -20 || k > 20 ? 0 : -expm1(-k);
    return clamp(kl, -10, 10);
}

/* The clipped objective at d, before TIS and penalties. */
struct clipped {
    double loss, slope; /* slope: d loss / d (logp - old) */
    bool clip, dual;    /* which branch was taken */
};
static struct clipped clipped_loss(const struct policy_args *a, double difference, double advantage)
{
    double d = clamp(difference, -20, 20), ratio = exp(d);
    double plain = -ratio * advantage, bound = -clamp(ratio, 1 - a->clip_low, 1 + a->clip_high) * advantage;
    struct clipped c = {.loss = plain, .slope = difference < -20 || difference > 20 ? 0 : plain};
    if (bound > plain) c = (struct clipped){.loss = bound, .clip = true};
    if (a->clip_dual > 1 && advantage < 0 && c.loss > -a->clip_dual * advantage)
        c = (struct clipped){.loss = -a->clip_dual * advantage, .dual = true};
    return c;
}

static enum status need(const struct policy_args *a, const struct policy_sample *s)
{
    if (s->n > 0 && (!s->logp || !s->old)) return FAIL(ERR_INTERNAL, "a sample of %d tokens without log-probs", s->n);
    if (a->tis && !s->rollout) return FAIL(ERR_INTERNAL, "rl.tis needs the rollout's log-probs");
    if (a->kl_coef != 0 && !s->ref) return FAIL(ERR_INTERNAL, "rl.kl_coef=%g needs the reference's log-probs", a->kl_coef);
    if (a->entropy_coef != 0 && !s->entropy)
        return FAIL(ERR_INTERNAL, "rl.entropy_coef=%g needs the entropy", a->entropy_coef);
    return OK;
}

/* How the trainer differs from the rollout: the sums of one sample's `count` loss tokens. Returns its mean distance. */
static double rollout_gap(const struct policy_args *a, const struct policy_sample *s, int count, struct policy_sums *sums)
{
    double gap = 0;
    for (int t = 0; t < s->n; t++) {
        if (s->mask && !s->mask[t]) continue;
        double k = s->old[t] - s->rollout[t];
        gap += fabs(k);
        sums->rollout_diff += k;
        sums->rollout_kl += expm1(k) - k;
        sums->tis_clipped += a->tis && exp(k) > a->tis_clip;
    }
    sums->rollout_samples++;
    sums->rollout_tokens += count;
    sums->gap += gap / count;
    return gap / count;
}

/* One token's policy term with its TIS weight, then its penalties. Returns the token's loss; *slope is the policy term's
 * derivative by d, which GSPO spreads over the sample, *penalty that of the rest by this token's own log-prob. */
static double token_loss(const struct policy_args *a, const struct policy_sample *s, int t, struct clipped c,
                         struct policy_sums *sums, double *slope, double *penalty)
{
    double weight = a->tis ? clamp(exp(s->old[t] - s->rollout[t]), 0, a->tis_clip) : 1, loss = weight * c.loss;
    *slope = weight * c.slope;
    *penalty = 0;
    if (s->ref) {
        double derivative, kl = policy_kl(a->kl_type, s->logp[t] - s->ref[t], &derivative);
        sums->ref_kl += kl;
        sums->ref_tokens++;
        if (a->kl_coef != 0) loss += a->kl_coef * kl, *penalty = a->kl_coef * derivative;
    }
    if (s->entropy) {
        sums->entropy += s->entropy[t];
        sums->entropy_tokens++;
        if (a->entropy_coef != 0) loss -= a->entropy_coef * s->entropy[t];
    }
    sums->ppo_kl += s->old[t] - s->logp[t];
    sums->clipped += c.clip;
    sums->dual_clipped += c.dual;
    return loss;
}

enum status policy_sample(const struct policy_args *a, const struct policy_sample *s, const struct policy_total *total,
                          double *dlogp, double *dentropy, struct policy_sums *sums, double *gap)
{
    int count = loss_tokens(s->mask, s->n);
    bool sequence = a->algorithm == RL_GSPO;
    if (gap) *gap = NAN;
    for (int t = 0; t < s->n; t++) dlogp[t] = 0;
    for (int t = 0; dentropy && t < s->n; t++) dentropy[t] = 0;
    sums->dropped += s->dropped;
    if (s->dropped || count == 0) return OK;
    TRY(need(a, s));

    double weight = a->aggregation == AGGREGATE_TOKEN_MEAN ? 1 / total->tokens : 1 / (total->samples * count);
    double mean = 0, loss = 0, shared = 0;
    for (int t = 0; sequence && t < s->n; t++)
        if (!s->mask || s->mask[t]) mean += (s->logp[t] - s->old[t]) / count;
    struct clipped whole = clipped_loss(a, mean, s->advantage);
    for (int t = 0; t < s->n; t++) {
        if (s->mask && !s->mask[t]) continue;
        struct clipped c = sequence ? whole : clipped_loss(a, s->logp[t] - s->old[t], s->advantage);
        double slope, penalty;
        loss += token_loss(a, s, t, c, sums, &slope, &penalty);
        dlogp[t] = weight * (sequence ? penalty : slope + penalty);
        if (dentropy) dentropy[t] = -weight * a->entropy_coef;
        shared += slope / count;
    }
    for (int t = 0; sequence && t < s->n; t++)
        if (!s->mask || s->mask[t]) dlogp[t] += weight * shared;
    sums->loss += weight * loss;
    sums->samples++;
    sums->tokens += count;
    double distance = s->rollout ? rollout_gap(a, s, count, sums) : NAN;
    if (gap) *gap = distance;
    return OK;
}

static double mean_of(double sum, double count) { return count > 0 ? sum / count : NAN; }

struct policy_report policy_report_of(const struct policy_sums *s)
{
    return (struct policy_report){
        .loss = s->loss,
        .ppo_kl = mean_of(s->ppo_kl, s->tokens),
        .clip_fraction = mean_of(s->clipped, s->tokens),
        .dual_clip_fraction = mean_of(s->dual_clipped, s->tokens),
        .train_rollout_logprob_abs_diff = mean_of(s->gap, s->rollout_samples),
        .train_rollout_logprob_diff = mean_of(s->rollout_diff, s->rollout_tokens),
        .train_rollout_kl = mean_of(s->rollout_kl, s->rollout_tokens),
        .tis_clip_fraction = mean_of(s->tis_clipped, s->rollout_tokens),
        .entropy = mean_of(s->entropy, s->entropy_tokens),
        .ref_kl = mean_of(s->ref_kl, s->ref_tokens),
        .dropped_samples = s->dropped,
    };
}

static bool before(double a, double b) { return isnan(b) ? !isnan(a) : a < b; }

static void sift_down(double *v, int at, int n)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(v[child], v[child + 1])) child++;
        if (!before(v[at], v[child])) return;
        double held = v[at];
        v[at] = v[child];
        v[child] = held;
    }
}

/* Heap sort: qsort() may allocate. */
double policy_quantile(double *value, int n, double q)
{
    if (n <= 0) return NAN;
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(value, i, n);
    for (int end = n - 1; end > 0; end--) {
        double held = value[0];
        value[0] = value[end];
        value[end] = held;
        sift_down(value, 0, end);
    }
    int rank = (int)ceil(q * n);
    return value[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}
