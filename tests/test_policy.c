/* Advantages and policy losses where the golden cases do not reach: dual clip that bites, differences beyond 20, GSPO
 * with TIS and KL, NaN rewards, samples without loss tokens; every combination of options against the formula as it is
 * written down, and its gradient against central differences. */
#include "check.h"
#include "policy.h"

enum { SAMPLES = 5, TOKENS = 6 };

/* A small batch: random log-probs, a mask with holes, one dropped sample, one without loss tokens. */
struct batch {
    double logp[SAMPLES][TOKENS], old[SAMPLES][TOKENS], rollout[SAMPLES][TOKENS], ref[SAMPLES][TOKENS];
    double entropy[SAMPLES][TOKENS];
    uint8_t mask[SAMPLES][TOKENS];
    double advantage[SAMPLES];
    bool dropped[SAMPLES];
    int n[SAMPLES];
};

/* `spread`: how far the log-probs are apart. */
static struct batch make_batch(uint64_t seed, double spread)
{
    struct batch b = {.n = {6, 4, 1, 5, 3}, .dropped = {false, false, false, true, false}};
    uint64_t i = 0;
    for (int s = 0; s < SAMPLES; s++) {
        b.advantage[s] = 2 * (double)check_uniform(seed, i++);
        for (int t = 0; t < TOKENS; t++) {
            b.old[s][t] = -1 - (double)check_uniform(seed, i++);
            b.logp[s][t] = b.old[s][t] + spread * (double)check_uniform(seed, i++);
            b.rollout[s][t] = b.old[s][t] + (double)check_uniform(seed, i++);
            b.ref[s][t] = b.old[s][t] + spread * (double)check_uniform(seed, i++);
            b.entropy[s][t] = 1 + (double)check_uniform(seed, i++);
            b.mask[s][t] = s != 4 && (t % 3 != 1 || s == 1);
        }
    }
    return b;
}

static struct policy_sample sample_of(const struct batch *b, int s)
{
    return (struct policy_sample){.n = b->n[s], .mask = b->mask[s], .logp = b->logp[s], .old = b->old[s],
                                  .rollout = b->rollout[s], .ref = b->ref[s], .entropy = b->entropy[s],
                                  .advantage = b->advantage[s], .dropped = b->dropped[s]};
}

static struct policy_report run(const struct policy_args *a, const struct batch *b, double dlogp[SAMPLES][TOKENS],
                                double dentropy[SAMPLES][TOKENS])
{
    struct policy_total total = {0};
    struct policy_sums sums = {0};
    for (int s = 0; s < SAMPLES; s++) policy_total_add(&total, b->mask[s], b->n[s], b->dropped[s]);
    for (int s = 0; s < SAMPLES; s++) {
        struct policy_sample x = sample_of(b, s);
        check_ok(policy_sample(a, &x, &total, dlogp[s], dentropy[s], &sums, NULL));
    }
    return policy_report_of(&sums);
}

static double bound(double x, double low, double high) { return fmin(fmax(x, low), high); }

static double penalty(enum kl_type type, double k)
{
    switch (type) {
    case KL_K1: return k;
    case KL_K2: return k * k / 2;
    case KL_K3: return exp(-k) - 1 + k;
    default: return bound(exp(-bound(k, -20, 20)) - 1 + bound(k, -20, 20), -10, 10);
    }
}

/* The loss, token by token, as the definition reads. */
static double formula(const struct policy_args *a, const struct batch *b)
{
    double loss[SAMPLES] = {0}, count[SAMPLES] = {0}, samples = 0, tokens = 0, sum = 0;
    for (int s = 0; s < SAMPLES; s++) {
        double mean = 0, A = b->advantage[s];
        for (int t = 0; t < b->n[s]; t++) count[s] += b->mask[s][t] && !b->dropped[s];
        for (int t = 0; t < b->n[s]; t++) mean += b->mask[s][t] ? (b->logp[s][t] - b->old[s][t]) / count[s] : 0;
        for (int t = 0; t < b->n[s]; t++) {
            if (!b->mask[s][t] || b->dropped[s]) continue;
            double d = a->algorithm == RL_GSPO ? mean : b->logp[s][t] - b->old[s][t], r = exp(bound(d, -20, 20));
            double l = fmax(-r * A, -bound(r, 1 - a->clip_low, 1 + a->clip_high) * A);
            if (a->clip_dual > 1 && A < 0) l = fmin(l, -a->clip_dual * A);
            if (a->tis) l *= bound(exp(b->old[s][t] - b->rollout[s][t]), 0, a->tis_clip);
            l += a->kl_coef * penalty(a->kl_type, b->logp[s][t] - b->ref[s][t]) - a->entropy_coef * b->entropy[s][t];
            loss[s] += l;
        }
        samples += count[s] > 0;
        tokens += count[s];
    }
    for (int s = 0; s < SAMPLES; s++)
        if (count[s] > 0)
            sum += a->aggregation == AGGREGATE_TOKEN_MEAN ? loss[s] / tokens : loss[s] / count[s] / samples;
    return sum;
}

/* Central differences of the formula at one number; NAN where the two one-sided slopes differ: a corner. */
static double slope(const struct policy_args *a, struct batch *b, double *x)
{
    const double h = 1e-6, at = *x, here = formula(a, b);
    *x = at + h;
    double up = formula(a, b);
    *x = at - h;
    double down = formula(a, b);
    *x = at;
    double left = (here - down) / h, right = (up - here) / h;
    return fabs(left - right) > 1e-3 * (1 + fabs(left)) ? NAN : (up - down) / (2 * h);
}

static int check_gradient(const struct policy_args *a, struct batch *b, double tolerance)
{
    double dlogp[SAMPLES][TOKENS] = {0}, dentropy[SAMPLES][TOKENS] = {0};
    int corners = 0;
    struct policy_report r = run(a, b, dlogp, dentropy);
    check_equal_f(r.loss, formula(a, b), 1e-12);
    for (int s = 0; s < SAMPLES; s++)
        for (int t = 0; t < b->n[s]; t++) {
            double want = slope(a, b, &b->logp[s][t]), wants = slope(a, b, &b->entropy[s][t]);
            if (isnan(want)) corners++;
            else if (!(fabs(dlogp[s][t] - want) <= tolerance * (1 + fabs(want))))
                fail_msg("sample %d token %d: d loss / d logp = %.9g, central difference %.9g", s, t, dlogp[s][t],
                         want);
            if (!(fabs(dentropy[s][t] - wants) <= tolerance))
                fail_msg("sample %d token %d: d loss / d entropy = %.9g, central difference %.9g", s, t, dentropy[s][t],
                         wants);
        }
    return corners;
}

static void every_combination_of_options_follows_the_formula_and_its_slope(void **state)
{
    (void)state;
    int corners = 0, runs = 0;
    for (int i = 0; i < 2 * 2 * 2 * 2 * 2 * 5; i++) {
        static const double coefficient[] = {0, 0.1, 0.1, 0.1, 0.1};
        struct policy_args a = {.algorithm = i & 1 ? RL_GSPO : RL_GRPO, .clip_low = 0.2,
                                .clip_high = i & 2 ? 0.28 : 0.2, .clip_dual = i & 2 ? 1.5 : 0, .tis = i & 4,
                                .tis_clip = 1.3, .entropy_coef = i & 8 ? 0.05 : 0,
                                .aggregation = i & 16 ? AGGREGATE_TOKEN_MEAN : AGGREGATE_SAMPLE_MEAN,
                                .kl_coef = coefficient[i / 32], .kl_type = (enum kl_type)((i / 32 + 3) % 4)};
        for (uint64_t seed = 1; seed <= 4; seed++) {
            struct batch b = make_batch(seed + (uint64_t)i * 8, seed % 2 ? 0.3 : 1.5);
            corners += check_gradient(&a, &b, 1e-6);
            runs++;
        }
    }
    if (corners > runs / 20) fail_msg("%d corners in %d runs: the slopes were hardly checked", corners, runs);
}

/* One sample of one token. */
static struct policy_report one_token(const struct policy_args *a, double d, double advantage, double *dlogp)
{
    double logp = -1 + d, old = -1, rollout = -1, ref = -1;
    struct policy_sample s = {.n = 1, .logp = &logp, .old = &old, .rollout = &rollout, .ref = &ref,
                              .advantage = advantage};
    struct policy_total total = {1, 1};
    struct policy_sums sums = {0};
    check_ok(policy_sample(a, &s, &total, dlogp, NULL, &sums, NULL));
    return policy_report_of(&sums);
}

static void dual_clip_bounds_the_loss_of_bad_samples_only(void **state)
{
    (void)state;
    struct policy_args a = {.clip_low = 0.2, .clip_high = 0.2, .clip_dual = 3};
    double dlogp;
    struct policy_report r = one_token(&a, log(10), -2, &dlogp);
    check_equal_f(r.loss, 6, 1e-15);
    check_equal_f(r.dual_clip_fraction, 1, 0);
    assert_true(dlogp == 0);
    r = one_token(&a, log(2.5), -2, &dlogp);
    check_equal_f(r.loss, 5, 1e-15);
    check_equal_f(dlogp, 5, 1e-15);
    check_equal_f(r.dual_clip_fraction, 0, 0);
    r = one_token(&a, log(10), 2, &dlogp);
    check_equal_f(r.loss, -2.4, 1e-15);
    check_equal_f(r.clip_fraction, 1, 0);
    a.clip_dual = 0;
    check_equal_f(one_token(&a, log(10), -2, &dlogp).loss, 20, 1e-14);
}

static void differences_beyond_20_stay_finite_and_push_nothing(void **state)
{
    (void)state;
    static const double far[] = {20.5, 100, 1e4};
    for (int gspo = 0; gspo < 2; gspo++) {
        struct policy_args a = {.algorithm = gspo ? RL_GSPO : RL_GRPO, .clip_low = 0.2, .clip_high = 0.2};
        double dlogp;
        for (int i = 0; i < 3; i++) {
            check_equal_f(one_token(&a, far[i], -1, &dlogp).loss / exp(20), 1, 1e-15);
            assert_true(dlogp == 0);
            check_equal_f(one_token(&a, -far[i], 1, &dlogp).loss, -exp(-20), 1e-15);
            assert_true(dlogp == 0);
        }
        one_token(&a, 19.5, -1, &dlogp);
        check_equal_f(dlogp / exp(19.5), 1, 1e-15);
    }
}

static void penalties_have_their_bounds_and_slopes(void **state)
{
    (void)state;
    const double h = 1e-6;
    double derivative, unused;
    for (int type = KL_K1; type <= KL_LOW_VAR; type++)
        for (double k = -25.05; k < 26; k += 0.31) {
            double kl = policy_kl(type, k, &derivative), want = penalty(type, k);
            double numeric = (policy_kl(type, k + h, &unused) - policy_kl(type, k - h, &unused)) / (2 * h);
            check_equal_f(kl, want, 1e-12);
            if (!(fabs(derivative - numeric) <= 1e-5 * (1 + fabs(numeric))))
                fail_msg("type %d at %g: derivative %.9g, central difference %.9g", type, k, derivative, numeric);
        }
    check_equal_f(policy_kl(KL_LOW_VAR, -25, &derivative), 10, 0);
    assert_true(derivative == 0);
}

static void a_ratio_of_one_gives_exact_zeros(void **state)
{
    (void)state;
    struct policy_args a = {.clip_low = 0.2, .clip_high = 0.2, .kl_coef = 0.1, .kl_type = KL_LOW_VAR};
    double dlogp;
    struct policy_report r = one_token(&a, 0, 1.5, &dlogp);
    assert_true(r.ppo_kl == 0 && r.clip_fraction == 0 && r.ref_kl == 0 && r.train_rollout_logprob_abs_diff == 0);
    assert_true(r.loss == -1.5 && dlogp == -1.5);
}

static void what_does_not_count_is_not_read_and_gets_no_gradient(void **state)
{
    (void)state;
    struct policy_args a = {.algorithm = RL_GSPO, .clip_low = 0.2, .clip_high = 0.2, .tis = true, .tis_clip = 2,
                            .kl_coef = 0.1};
    struct batch b = make_batch(9, 0.5);
    double want[SAMPLES][TOKENS], d[SAMPLES][TOKENS], e[SAMPLES][TOKENS];
    struct policy_report before = run(&a, &b, want, e);
    for (int s = 0; s < SAMPLES; s++)
        for (int t = 0; t < b.n[s]; t++)
            if (!b.mask[s][t] || b.dropped[s])
                b.logp[s][t] = b.old[s][t] = b.rollout[s][t] = b.ref[s][t] = b.entropy[s][t] = NAN;
    b.advantage[3] = NAN;
    struct policy_report after = run(&a, &b, d, e);
    assert_true(before.loss == after.loss && before.ppo_kl == after.ppo_kl && after.dropped_samples == 1);
    for (int s = 0; s < SAMPLES; s++)
        for (int t = 0; t < b.n[s]; t++)
            if (d[s][t] != want[s][t] || ((s == 3 || s == 4 || !b.mask[s][t]) && d[s][t] != 0))
                fail_msg("sample %d token %d: gradient %g, expected %g", s, t, d[s][t], want[s][t]);
}

static void a_batch_of_nothing_has_no_loss_and_no_metrics(void **state)
{
    (void)state;
    struct policy_args a = {.clip_low = 0.2, .clip_high = 0.2};
    struct batch b = make_batch(3, 0.5);
    double d[SAMPLES][TOKENS], e[SAMPLES][TOKENS];
    for (int s = 0; s < SAMPLES; s++) b.dropped[s] = true;
    struct policy_report r = run(&a, &b, d, e);
    assert_true(r.loss == 0 && r.dropped_samples == SAMPLES);
    assert_true(isnan(r.ppo_kl) && isnan(r.train_rollout_logprob_abs_diff));
}

static void nan_log_probs_come_out_as_a_nan_loss(void **state)
{
    (void)state;
    for (int gspo = 0; gspo < 2; gspo++)
        for (int which = 0; which < 2; which++) {
            struct policy_args a = {.algorithm = gspo ? RL_GSPO : RL_GRPO, .clip_low = 0.2, .clip_high = 0.2,
                                    .clip_dual = 3};
            struct batch b = make_batch(5, 0.5);
            double d[SAMPLES][TOKENS], e[SAMPLES][TOKENS];
            (which ? b.logp : b.old)[0][0] = NAN;
            assert_true(isnan(run(&a, &b, d, e).loss));
        }
}

static void metrics_have_the_signs_that_are_written_down(void **state)
{
    (void)state;
    struct policy_args a = {.clip_low = 0.2, .clip_high = 0.2, .tis = true, .tis_clip = 1.2};
    double logp[] = {-1.0, -2.1, -1.5}, old[] = {-1.1, -1.8, -1.5}, rollout[] = {-1.4, -1.7, -1.5};
    double entropy[] = {1, 2, 6}, d[3], gap;
    struct policy_sample s = {.n = 3, .logp = logp, .old = old, .rollout = rollout, .entropy = entropy,
                              .advantage = -1};
    struct policy_total total = {1, 3};
    struct policy_sums sums = {0};
    check_ok(policy_sample(&a, &s, &total, d, NULL, &sums, &gap));
    struct policy_report r = policy_report_of(&sums);
    check_equal_f(r.ppo_kl, (-0.1 + 0.3 + 0) / 3, 1e-15);
    check_equal_f(r.train_rollout_logprob_diff, (0.3 - 0.1) / 3, 1e-15);
    check_equal_f(r.train_rollout_logprob_abs_diff, 0.4 / 3, 1e-15);
    check_equal_f(gap, 0.4 / 3, 1e-15);
    check_equal_f(r.train_rollout_kl, (exp(0.3) - 1 - 0.3 + exp(-0.1) - 1 + 0.1) / 3, 1e-15);
    check_equal_f(r.tis_clip_fraction, 1 / 3.0, 1e-15);
    check_equal_f(r.clip_fraction, 1 / 3.0, 1e-15); /* the second: exp(-0.3) < 0.8 and A < 0 */
    check_equal_f(r.entropy, 3, 1e-15);
    assert_true(isnan(r.ref_kl));
}

static void options_that_need_an_array_say_so(void **state)
{
    (void)state;
    double x = -1, d;
    struct policy_total total = {1, 1};
    struct policy_sums sums = {0};
    struct policy_sample s = {.n = 1, .logp = &x, .old = &x, .advantage = 1};
    static const struct policy_args tis = {.tis = true}, kl = {.kl_coef = 0.1}, entropy = {.entropy_coef = 1};
    static const struct policy_args none = {0};
    check_fails(policy_sample(&tis, &s, &total, &d, NULL, &sums, NULL), ERR_INTERNAL, "tis");
    check_fails(policy_sample(&kl, &s, &total, &d, NULL, &sums, NULL), ERR_INTERNAL, "kl_coef");
    check_fails(policy_sample(&entropy, &s, &total, &d, NULL, &sums, NULL), ERR_INTERNAL, "entropy");
    s.old = NULL;
    check_fails(policy_sample(&none, &s, &total, &d, NULL, &sums, NULL), ERR_INTERNAL, "log-probs");
}

/* ---------------------------------------------------------------- rewards to advantages -------------------------- */

static void equal_rewards_give_exact_zeros(void **state)
{
    (void)state;
    static const double value[] = {0.35, 0.1, 1e300, -1e-300, 0};
    for (int k = 0; k < 5; k++)
        for (int n = 1; n <= 9; n++) {
            double reward[9], a[9];
            bool dropped[9] = {false};
            for (int i = 0; i < n; i++) reward[i] = value[k];
            assert_int_equal(advantage_grpo(reward, n, true, a, dropped), 0);
            for (int i = 0; i < n; i++)
                if (a[i] != 0) fail_msg("advantage %d of %d rewards of %g is %g, expected 0", i, n, value[k], a[i]);
        }
}

static void advantages_of_a_group_have_mean_0_and_deviation_1(void **state)
{
    (void)state;
    double reward[] = {0, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95}, a[8], sum = 0, square = 0;
    bool dropped[8] = {false};
    advantage_grpo(reward, 8, true, a, dropped);
    for (int i = 0; i < 8; i++) sum += a[i], square += a[i] * a[i];
    check_equal_f(sum, 0, 1e-14);
    check_equal_f(square / 7, 1, 1e-5);
    check_equal_f(a[0], -0.83125 / (0.95 / sqrt(8) + 1e-6), 1e-12);
    advantage_grpo(reward, 8, false, a, dropped);
    check_equal_f(a[0], -0.83125, 1e-15);
    check_equal_f(a[1], 0.11875, 1e-15);
}

static void a_reward_that_is_no_number_drops_its_sample_only(void **state)
{
    (void)state;
    double reward[] = {1, NAN, 0, INFINITY, 1, -INFINITY}, rest[] = {1, 0, 1}, a[6], want[3];
    bool dropped[6] = {false}, none[3] = {false};
    assert_int_equal(advantage_grpo(reward, 6, true, a, dropped), 3);
    advantage_grpo(rest, 3, true, want, none);
    static const int kept[] = {0, 2, 4}, lost[] = {1, 3, 5};
    for (int i = 0; i < 3; i++) {
        check_equal_f(a[kept[i]], want[i], 1e-15);
        assert_true(a[lost[i]] == 0 && dropped[lost[i]] && !dropped[kept[i]]);
    }
    double two[] = {NAN, 5};
    bool of_two[2] = {false};
    assert_int_equal(advantage_grpo(two, 2, true, a, of_two), 1);
    assert_true(a[0] == 0 && a[1] == 0);
    bool before[3] = {false, true, false};
    assert_int_equal(advantage_grpo(rest, 3, true, a, before), 0);
    assert_true(a[0] == 0 && a[1] == 0 && a[2] == 0); /* two equal ones are left */
}

static void groups_without_a_difference_are_flat(void **state)
{
    (void)state;
    assert_true(policy_group_flat((double[]){1, 1, 1}, 3));
    assert_false(policy_group_flat((double[]){1, 1, 0}, 3));
    assert_true(policy_group_flat((double[]){NAN, 1, NAN, 1}, 4));
    assert_false(policy_group_flat((double[]){NAN, 1, NAN, 0}, 4));
    assert_true(policy_group_flat((double[]){NAN, NAN}, 2));
    assert_true(policy_group_flat((double[]){3}, 1));
    assert_false(policy_group_flat((double[]){0.1, nextafter(0.1, 1)}, 2));
}

static void overlong_responses_pay_up_to_one(void **state)
{
    (void)state;
    static const int length[] = {0, 79, 80, 81, 90, 99, 100};
    static const double want[] = {0, 0, 0, -0.05, -0.5, -0.95, -1};
    for (int i = 0; i < 7; i++) check_equal_f(policy_overlong(length[i], 100, 20), want[i], 1e-15);
    assert_true(policy_overlong(100, 100, 0) == 0);
}

static void quantiles_go_by_nearest_rank(void **state)
{
    (void)state;
    double v[64];
    for (int i = 0; i < 64; i++) v[i] = 0.01;
    v[17] = 1;
    check_equal_f(policy_quantile(v, 64, 1), 1, 0);
    check_equal_f(policy_quantile(v, 64, 0.99), 1, 0);
    check_equal_f(policy_quantile(v, 64, 0.98), 0.01, 0);
    double few[] = {3, NAN, 1, 2};
    check_equal_f(policy_quantile(few, 4, 0.5), 2, 0);
    assert_true(isnan(policy_quantile(few, 4, 1)));
    assert_true(isnan(policy_quantile(few, 0, 0.5)));
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(every_combination_of_options_follows_the_formula_and_its_slope),
    cmocka_unit_test(dual_clip_bounds_the_loss_of_bad_samples_only),
    cmocka_unit_test(differences_beyond_20_stay_finite_and_push_nothing),
    cmocka_unit_test(penalties_have_their_bounds_and_slopes),
    cmocka_unit_test(a_ratio_of_one_gives_exact_zeros),
    cmocka_unit_test(what_does_not_count_is_not_read_and_gets_no_gradient),
    cmocka_unit_test(a_batch_of_nothing_has_no_loss_and_no_metrics),
    cmocka_unit_test(nan_log_probs_come_out_as_a_nan_loss),
    cmocka_unit_test(metrics_have_the_signs_that_are_written_down),
    cmocka_unit_test(options_that_need_an_array_say_so),
    cmocka_unit_test(equal_rewards_give_exact_zeros),
    cmocka_unit_test(advantages_of_a_group_have_mean_0_and_deviation_1),
    cmocka_unit_test(a_reward_that_is_no_number_drops_its_sample_only),
    cmocka_unit_test(groups_without_a_difference_are_flat),
    cmocka_unit_test(overlong_responses_pay_up_to_one),
    cmocka_unit_test(quantiles_go_by_nearest_rank),
};
CHECK_MAIN(cases)
