#include "check.h"
#include "sampling.h"

enum { VOCAB = 1000 };

static float logit_of(int i) { return 3 * check_uniform(7, (uint64_t)i); }

/* sum (seen - expected)^2 / expected over `n` cells. */
static double chi_square(const int64_t *seen, const double *share, int n, int64_t draws)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double expected = share[i] * (double)draws, d = (double)seen[i] - expected;
        if (expected > 0) sum += d * d / expected;
        else if (seen[i]) return INFINITY;
    }
    return sum;
}

/* For k degrees of freedom chi-square is about normal(k, 2k): five deviations either way; too even is a fault too. */
static void check_chi_square(const char *what, double got, int freedom)
{
    double spread = 5 * sqrt(2.0 * freedom);
    if (!(fabs(got - freedom) <= spread)) fail_msg("%s: chi-square %.1f, expected %d +- %.1f", what, got, freedom, spread);
}

static void every_key_of_a_draw_gives_uniform_numbers(void **state)
{
    (void)state;
    static const char *const name[] = {"seed", "step", "prompt", "sample", "position"};
    double share[64];
    for (int i = 0; i < 64; i++) share[i] = 1.0 / 64;
    for (int k = 0; k < 5; k++) {
        int64_t seen[64] = {0}, pair[64] = {0};
        double before = 0;
        for (uint64_t i = 0; i < 20000; i++) {
            uint64_t w[5] = {1, 1, 1, 1, 1};
            w[k] = i;
            double u = rng_uniform(w[0], w[1], w[2], w[3], w[4]);
            if (!(u >= 0 && u < 1)) fail_msg("draw %.17g is outside [0, 1)", u);
            seen[(int)(u * 64)]++;
            if (i % 2) pair[(int)(before * 8) * 8 + (int)(u * 8)]++;
            before = u;
        }
        check_chi_square(name[k], chi_square(seen, share, 64, 20000), 63);
        check_chi_square(name[k], chi_square(pair, share, 64, 10000), 63);
    }
}

static void no_two_keys_of_a_draw_can_be_exchanged(void **state)
{
    (void)state;
    double first = rng_uniform(1, 2, 3, 4, 5);
    uint64_t w[5] = {1, 2, 3, 4, 5};
    for (int a = 0; a < 5; a++)
        for (int b = a + 1; b < 5; b++) {
            uint64_t x[5];
            memcpy(x, w, sizeof x);
            x[a] = w[b], x[b] = w[a];
            double other = rng_uniform(x[0], x[1], x[2], x[3], x[4]);
            if (other == first) fail_msg("keys %d and %d exchanged give %.17g again", a, b, other);
        }
    check_equal_f(rng_uniform(1, 2, 3, 4, 5), first, 0);
}

/* The numbers are part of a run's identity: a change here changes every run that was recorded. */
static void the_hash_has_the_values_that_the_header_describes(void **state)
{
    (void)state;
    const uint64_t golden = 0x9e3779b97f4a7c15u, words[2] = {7, 9};
    uint64_t h = 2;
    for (int i = 0; i < 2; i++) h = check_hash(h + check_hash(words[i] - golden)); /* check_hash adds golden itself */
    if (rng_hash(words, 2) != h) fail_msg("hash %llx, expected %llx", (unsigned long long)rng_hash(words, 2),
                                          (unsigned long long)h);
}

static void normals_have_the_moments_of_a_normal(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum[5] = {0}, lag = 0, before = 0;
    uint64_t stream = rng_name("model.layers.0.self_attn.q_proj.weight");
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(3, stream, i), p = 1;
        for (int k = 1; k < 5; k++) sum[k] += p *= x;
        lag += x * before;
        before = x;
    }
    check_equal_f(sum[1] / N, 0, 0.012);
    check_equal_f(sum[2] / N, 1, 0.016);
    check_equal_f(sum[3] / N, 0, 0.04);
    check_equal_f(sum[4] / N, 3, 0.04);
    check_equal_f(lag / N, 0, 0.012);
    if (rng_normal(3, stream, 0) == rng_normal(3, rng_name("x"), 0)) fail_msg("two streams share number 0");
    if (rng_normal(3, stream, 0) == rng_normal(4, stream, 0)) fail_msg("two seeds share number 0");
}

static void a_permutation_holds_every_index_once_and_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    enum { N = 257 };
    int64_t order[N], other[N];
    int seen[N] = {0}, same_epoch = 0, same_seed = 0;
    rng_permutation(5, 0, order, N);
    for (int i = 0; i < N; i++) {
        if (order[i] < 0 || order[i] >= N || seen[order[i]]++) fail_msg("index %lld at %d", (long long)order[i], i);
    }
    rng_permutation(5, 0, other, N);
    assert_memory_equal(order, other, sizeof order);
    rng_permutation(5, 1, other, N);
    for (int i = 0; i < N; i++) same_epoch += order[i] == other[i];
    rng_permutation(6, 0, other, N);
    for (int i = 0; i < N; i++) same_seed += order[i] == other[i];
    if (same_epoch > 8 || same_seed > 8) fail_msg("%d and %d of %d places are equal", same_epoch, same_seed, N);
    rng_permutation(5, 0, order, 0);
    rng_permutation(5, 0, order, 1);
    assert_int_equal(order[0], 0);
}

static void all_permutations_of_four_are_equally_frequent(void **state)
{
    (void)state;
    int64_t seen[256] = {0}, used[24], order[4];
    double share[24];
    int n = 0;
    for (uint64_t epoch = 0; epoch < 24000; epoch++) {
        rng_permutation(11, epoch, order, 4);
        seen[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]]++;
    }
    for (int i = 0; i < 256; i++)
        if (seen[i] && n < 24) share[n] = 1.0 / 24, used[n++] = seen[i];
    assert_int_equal(n, 24);
    check_chi_square("permutations", chi_square(used, share, 24, 24000), 23);
}

/* The filtered distribution by sorting: the definition. */
static void filtered(const float *logits, int vocab, const struct sampling *s, double *share)
{
    int *order = malloc((size_t)vocab * sizeof *order);
    assert_non_null(order);
    for (int i = 0; i < vocab; i++) {
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    double *weight = calloc((size_t)vocab, sizeof *weight), total = 0, mass = 0;
    assert_non_null(weight);
    int keep = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    for (int i = 0; i < keep; i++) total += weight[i] = exp((double)(logits[order[i]] - logits[order[0]]) / s->temperature);
    int n = 0;
    while (n < keep && (n == 0 || mass < s->top_p * total)) mass += weight[n++];
    for (int i = 0; i < vocab; i++) share[i] = 0;
    for (int i = 0; i < n; i++) share[order[i]] = weight[i] / mass;
    free(weight);
    free(order);
}

static void draws_follow_the_filtered_distribution(void **state)
{
    (void)state;
    enum { V = 40, DRAWS = 40000 };
    float logits[V], scratch[V];
    double share[V];
    for (int i = 0; i < V; i++) logits[i] = logit_of(i);
    logits[3] = logits[17] = logits[9]; /* ties */
    logits[30] = -INFINITY;
    const struct sampling many[] = {{1, 0, 1}, {0.5f, 0, 1}, {2, 7, 1}, {1, 0, 0.7}, {1, 12, 0.8}, {1, 1, 1}, {1, 0, 1e-9}};
    for (size_t m = 0; m < sizeof many / sizeof *many; m++) {
        int64_t seen[V] = {0};
        int kinds = 0;
        filtered(logits, V, &many[m], share);
        for (uint64_t d = 0; d < DRAWS; d++) {
            int32_t id;
            float lp;
            check_ok(sample_token(logits, V, &many[m], rng_uniform(1, m, 2, 3, d), scratch, &id, &lp));
            seen[id]++;
        }
        for (int i = 0; i < V; i++) kinds += share[i] > 0;
        double got = chi_square(seen, share, V, DRAWS);
        if (kinds > 1) check_chi_square("sample_token", got, kinds - 1);
        else check_equal_f(got, 0, 0);
    }
}

static void a_filter_keeps_the_lowest_ids_of_equal_logits(void **state)
{
    (void)state;
    float logits[16] = {0}, scratch[16], lp;
    int32_t id;
    struct sampling s = {1, 5, 1};
    check_ok(sample_token(logits, 16, &s, 0.9999999, scratch, &id, &lp));
    assert_int_equal(id, 4);
    check_equal_f(lp, -log(16), 1e-6);
    s = (struct sampling){1, 0, 0.25};
    check_ok(sample_token(logits, 16, &s, 0.9999999, scratch, &id, &lp));
    assert_int_equal(id, 3);
    logits[2] = -0.0f; /* equal to 0 */
    s = (struct sampling){1, 3, 1};
    check_ok(sample_token(logits, 16, &s, 0.9999999, scratch, &id, &lp));
    assert_int_equal(id, 2);
}

static void greedy_takes_the_lowest_of_the_largest_and_reports_temperature_one(void **state)
{
    (void)state;
    float logits[VOCAB], scratch[VOCAB], lp;
    double total = 0;
    for (int i = 0; i < VOCAB; i++) logits[i] = logit_of(i);
    logits[400] = logits[700] = 5;
    for (int i = 0; i < VOCAB; i++) total += exp((double)logits[i]);
    int32_t id;
    check_ok(sample_token(logits, VOCAB, &(struct sampling){0, 0, 1}, 0.99, scratch, &id, &lp));
    assert_int_equal(id, 400);
    check_equal_f(lp, 5 - log(total), 1e-5);
}

static void the_log_prob_is_that_of_the_unfiltered_softmax_at_the_temperature(void **state)
{
    (void)state;
    float logits[VOCAB], scratch[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = logit_of(i);
    for (int t = 1; t < 8; t++) {
        struct sampling s = {0.3f * (float)t, t % 2 ? 20 : 0, t % 3 ? 0.9 : 1};
        double total = 0;
        for (int i = 0; i < VOCAB; i++) total += exp((double)logits[i] / (double)s.temperature);
        for (uint64_t d = 0; d < 20; d++) {
            int32_t id;
            float lp;
            check_ok(sample_token(logits, VOCAB, &s, rng_uniform(1, 1, 1, (uint64_t)t, d), scratch, &id, &lp));
            check_equal_f(lp, (double)logits[id] / (double)s.temperature - log(total), 2e-6);
        }
    }
}

static void extreme_draws_and_logits_stay_inside(void **state)
{
    (void)state;
    float logits[4] = {-1e30f, 3e38f, -3e38f, 1e-45f}, scratch[4], lp;
    int32_t id;
    for (int t = 0; t < 3; t++) {
        struct sampling s = {t ? 1e-6f : 1, t == 2 ? 2 : 0, t ? 0.5 : 1};
        check_ok(sample_token(logits, 4, &s, 1 - 0x1p-53, scratch, &id, &lp));
        assert_int_equal(id, 1);
        check_equal_f(lp, 0, 0);
    }
    float one = -5, room;
    check_ok(sample_token(&one, 1, &(struct sampling){1, 3, 0.5}, 0.5, &room, &id, &lp));
    assert_int_equal(id, 0);
    logits[2] = NAN;
    check_fails(sample_token(logits, 4, &(struct sampling){1, 0, 1}, 0, scratch, &id, &lp), ERR_INTERNAL, "logit 2 of 4");
    logits[2] = INFINITY;
    check_fails(sample_token(logits, 4, &(struct sampling){0, 0, 1}, 0, scratch, &id, &lp), ERR_INTERNAL, "inf");
    for (int i = 0; i < 4; i++) logits[i] = -INFINITY;
    check_fails(sample_token(logits, 4, &(struct sampling){0, 0, 1}, 0, scratch, &id, &lp), ERR_INTERNAL, "none of 4");
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(every_key_of_a_draw_gives_uniform_numbers),
    cmocka_unit_test(no_two_keys_of_a_draw_can_be_exchanged),
    cmocka_unit_test(the_hash_has_the_values_that_the_header_describes),
    cmocka_unit_test(normals_have_the_moments_of_a_normal),
    cmocka_unit_test(a_permutation_holds_every_index_once_and_depends_on_seed_and_epoch),
    cmocka_unit_test(all_permutations_of_four_are_equally_frequent),
    cmocka_unit_test(draws_follow_the_filtered_distribution),
    cmocka_unit_test(a_filter_keeps_the_lowest_ids_of_equal_logits),
    cmocka_unit_test(greedy_takes_the_lowest_of_the_largest_and_reports_temperature_one),
    cmocka_unit_test(the_log_prob_is_that_of_the_unfiltered_softmax_at_the_temperature),
    cmocka_unit_test(extreme_draws_and_logits_stay_inside),
};
CHECK_MAIN(cases)
