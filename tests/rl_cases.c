/* rl_cases FILE.json: runs every case of a file of RL cases through src/policy.c and compares loss, advantages and
 * gradients (absolute and relative 1e-9). Mismatches are printed with both values. A case is an object with the options
 * of `rl.`, groups, rewards, old_logp, logp, ref_logp, rollout_logp, mask, and expected {loss, advantages, grad} (and,
 * where given, metrics under their names). Lists may hold null, or Python's NaN. */
#include "json.h"
#include "policy.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 4096, MAX_TOKENS = 1 << 20, MAX_BYTES = 1 << 28 };
static const double tolerance = 1e-9;

struct rl_case {
    const char *name;
    const json_t *json;
    struct policy_args args;
    bool std_norm;
    int n;
    struct policy_sample *sample; /* [n] */
    double *reward, *advantage;   /* [n] */
    bool *dropped;                /* [n] */
    double **dlogp;               /* [n][tokens] */
    struct policy_sums sums;
    int mismatches;
};

/* Memory of the case that is running, freed as a whole. */
struct block {
    struct block *next;
    double data[];
};
static struct block *blocks;

static void *take(size_t bytes)
{
    struct block *b = calloc(1, sizeof *b + bytes);
    if (!b) {
        printf("out of memory: %zu bytes\n0 passed, 1 failed\n", bytes);
        exit(1);
    }
    b->next = blocks;
    blocks = b;
    return b->data;
}

static void free_blocks(void)
{
    while (blocks) {
        struct block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

/* Python's NaN, outside of strings, becomes null, which JSON knows. */
static enum status nan_to_null(char **out, const char *text, size_t n)
{
    size_t at = 0;
    bool quoted = false;
    char *copy = malloc(n / 3 + n + 2);
    if (!copy) return FAIL(ERR_MEMORY, "%zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') quoted = !quoted;
        if (quoted && text[i] == '\\' && i + 1 < n) copy[at++] = text[i++];
        else if (!quoted && n - i >= 3 && !memcmp(text + i, "NaN", 3)) {
            memcpy(copy + at, "null", 4);
            at += 4, i += 2;
            continue;
        }
        copy[at++] = text[i];
    }
    copy[at] = 0;
    *out = copy;
    return OK;
}

/* value[n] of a list of n numbers; null is NaN. n < 0: any length, which is stored. */
static enum status numbers(const json_t *list, int *n, double **value, const char *what)
{
    if (!json_is_array(list)) return FAIL(ERR_FORMAT, "%s is no list", what);
    size_t have = json_array_size(list);
    if (have > MAX_TOKENS) return FAIL(ERR_FORMAT, "%s has %zu numbers, the limit is %d", what, have, MAX_TOKENS);
    if (*n >= 0 && (size_t)*n != have) return FAIL(ERR_FORMAT, "%s has %zu numbers, expected %d", what, have, *n);
    *n = (int)have;
    *value = take(have * sizeof(double));
    for (size_t i = 0; i < have; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x) && !json_is_null(x) && !json_is_boolean(x))
            return FAIL(ERR_FORMAT, "%s[%zu] is no number", what, i);
        (*value)[i] = json_is_null(x) ? NAN : json_is_boolean(x) ? json_is_true(x) : json_number_value(x);
    }
    return OK;
}

/* Row i of the list of lists `key`; absent: NULL. */
static enum status row(const struct rl_case *c, const char *key, int i, int *n, double **value)
{
    const json_t *rows = json_member(c->json, key);
    *value = NULL;
    if (!rows) return OK;
    if (!json_is_array(rows) || json_array_size(rows) != (size_t)c->n)
        return FAIL(ERR_FORMAT, "%s has %zu rows, expected %d", key, json_array_size(rows), c->n);
    return numbers(json_array_get(rows, (size_t)i), n, value, key);
}

static enum status choice(const struct rl_case *c, const char *key, const char *const *names, int n, int *out)
{
    const char *text = names[0];
    TRY(json_want_string(c->json, key, &text, c->name));
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(names[*out], text)) return OK;
    return FAIL(ERR_FORMAT, "%s: %s is unknown", key, text);
}

static enum status read_args(struct rl_case *c)
{
    static const char *const algorithms[] = {"grpo", "gspo"}, *const kls[] = {"k1", "k2", "k3", "low_var_kl"},
                      *const means[] = {"sample_mean", "token_mean"};
    int algorithm, kl = KL_LOW_VAR, mean;
    struct policy_args *a = &c->args;
    *a = (struct policy_args){.clip_low = 0.2, .clip_high = 0.2, .tis_clip = 2};
    c->std_norm = true;
    TRY(choice(c, "algorithm", algorithms, 2, &algorithm));
    if (json_member(c->json, "kl_type")) TRY(choice(c, "kl_type", kls, 4, &kl));
    TRY(choice(c, "aggregation", means, 2, &mean));
    TRY(json_want_number(c->json, "clip_low", 0, 1e9, &a->clip_low, c->name));
    TRY(json_want_number(c->json, "clip_high", 0, 1e9, &a->clip_high, c->name));
    TRY(json_want_number(c->json, "clip_dual", 0, 1e9, &a->clip_dual, c->name));
    TRY(json_want_bool(c->json, "tis", &a->tis, c->name));
    TRY(json_want_number(c->json, "tis_clip", 0, 1e9, &a->tis_clip, c->name));
    TRY(json_want_number(c->json, "kl_coef", -1e9, 1e9, &a->kl_coef, c->name));
    TRY(json_want_bool(c->json, "std_norm", &c->std_norm, c->name));
    a->algorithm = (enum rl_algorithm)algorithm;
    a->kl_type = (enum kl_type)kl;
    a->aggregation = (enum aggregation)mean;
    return OK;
}

static enum status read_sample(struct rl_case *c, int i)
{
    struct policy_sample *s = &c->sample[i];
    int n = -1;
    double *logp, *old, *ref, *rollout, *mask;
    uint8_t *bytes = NULL;
    TRY(row(c, "logp", i, &n, &logp));
    if (!logp) return FAIL(ERR_FORMAT, "no logp");
    TRY(row(c, "old_logp", i, &n, &old));
    TRY(row(c, "ref_logp", i, &n, &ref));
    TRY(row(c, "rollout_logp", i, &n, &rollout));
    TRY(row(c, "mask", i, &n, &mask));
    if (mask) bytes = take((size_t)n);
    for (int t = 0; mask && t < n; t++) bytes[t] = mask[t] != 0;
    *s = (struct policy_sample){.n = n, .mask = bytes, .logp = logp, .old = old, .ref = ref, .rollout = rollout};
    c->dlogp[i] = take((size_t)n * sizeof(double));
    return OK;
}

/* Samples of equal `groups` entries are a group, wherever they stand. */
static enum status advantages(struct rl_case *c)
{
    int n = c->n;
    double *group, *reward, *advantage;
    bool *done, *dropped;
    TRY(numbers(json_member(c->json, "groups"), &n, &group, "groups"));
    reward = take((size_t)n * sizeof(double));
    advantage = take((size_t)n * sizeof(double));
    done = take((size_t)n);
    for (int i = 0; i < n; i++) {
        int m = 0;
        if (done[i]) continue;
        dropped = take((size_t)n);
        for (int j = i; j < n; j++)
            if (j == i || group[j] == group[i]) reward[m++] = c->reward[j];
        advantage_grpo(reward, m, c->std_norm, advantage, dropped);
        m = 0;
        for (int j = i; j < n; j++)
            if (j == i || group[j] == group[i]) c->dropped[j] = dropped[m], c->advantage[j] = advantage[m++], done[j] = true;
    }
    return OK;
}

static enum status run(struct rl_case *c)
{
    struct policy_total total = {0};
    c->n = -1;
    TRY(read_args(c));
    TRY(numbers(json_member(c->json, "rewards"), &c->n, &c->reward, "rewards"));
    if (c->n > MAX_SAMPLES) return FAIL(ERR_FORMAT, "%d samples, the limit is %d", c->n, MAX_SAMPLES);
    c->sample = take((size_t)c->n * sizeof *c->sample);
    c->advantage = take((size_t)c->n * sizeof(double));
    c->dropped = take((size_t)c->n);
    c->dlogp = take((size_t)c->n * sizeof(double *));
    TRY(advantages(c));
    for (int i = 0; i < c->n; i++) {
        TRY(read_sample(c, i));
        c->sample[i].advantage = c->advantage[i];
        c->sample[i].dropped = c->dropped[i];
        policy_total_add(&total, c->sample[i].mask, c->sample[i].n, c->dropped[i]);
    }
    for (int i = 0; i < c->n; i++)
        TRY(policy_sample(&c->args, &c->sample[i], &total, c->dlogp[i], NULL, &c->sums, NULL));
    return OK;
}

static void compare(struct rl_case *c, double got, double want, const char *what, int i, int t)
{
    if (fabs(got - want) <= tolerance * fmax(1, fabs(want)) && fabs(got - want) <= tolerance) return;
    if (isnan(got) && isnan(want)) return;
    if (c->mismatches++ >= 20) return;
    printf("%s: %s", c->name, what);
    if (i >= 0) printf("[%d]", i);
    if (t >= 0) printf("[%d]", t);
    printf(" = %.17g, expected %.17g\n", got, want);
}

static void compare_metrics(struct rl_case *c, const json_t *expected)
{
    struct policy_report r = policy_report_of(&c->sums);
    const struct {
        const char *name;
        double value;
    } known[] = {{"ppo_kl", r.ppo_kl},
                 {"clip_fraction", r.clip_fraction},
                 {"train_rollout_logprob_abs_diff", r.train_rollout_logprob_abs_diff},
                 {"train_rollout_kl", r.train_rollout_kl},
                 {"ref_kl", r.ref_kl},
                 {"dropped_samples", r.dropped_samples}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const json_t *want = json_member(expected, known[k].name);
        if (json_is_number(want)) compare(c, known[k].value, json_number_value(want), known[k].name, -1, -1);
    }
}

static enum status check(struct rl_case *c)
{
    json_t *expected;
    double want, *list;
    int n = c->n;
    TRY(json_need_object(c->json, "expected", &expected, c->name));
    TRY(json_need_number(expected, "loss", -1e300, 1e300, &want, c->name));
    compare(c, c->sums.loss, want, "loss", -1, -1);
    TRY(numbers(json_member(expected, "advantages"), &n, &list, "expected.advantages"));
    for (int i = 0; i < n; i++)
        if (!(c->dropped[i] && isnan(list[i]))) compare(c, c->advantage[i], list[i], "advantage", i, -1);
    const json_t *grad = json_member(expected, "grad");
    if (!json_is_array(grad) || json_array_size(grad) != (size_t)c->n)
        return FAIL(ERR_FORMAT, "expected.grad has %zu rows, expected %d", json_array_size(grad), c->n);
    for (int i = 0; i < c->n; i++) {
        TRY(numbers(json_array_get(grad, (size_t)i), &c->sample[i].n, &list, "expected.grad"));
        for (int t = 0; t < c->sample[i].n; t++) compare(c, c->dlogp[i][t], list[t], "grad", i, t);
    }
    compare_metrics(c, expected);
    return OK;
}

static enum status run_file(const char *path, int *passed, int *failed)
{
    char *bytes = NULL, *text = NULL;
    size_t len;
    json_t *file = NULL, *one;
    const char *name;
    enum status s;
    TRY_GOTO(s, done, json_read_bytes(&bytes, &len, path, MAX_BYTES));
    TRY_GOTO(s, done, nan_to_null(&text, bytes, len));
    TRY_GOTO(s, done, json_read_text(&file, text, strlen(text), path));
    if (!json_is_object(file) || json_object_size(file) == 0) {
        s = FAIL(ERR_FORMAT, "%s: not an object of cases", path);
        goto done;
    }
    json_object_foreach(file, name, one) {
        struct rl_case c = {.name = name, .json = one};
        enum status bad = run(&c);
        if (!bad) bad = check(&c);
        if (bad) printf("%s: %s\n", name, status_message());
        if (c.mismatches > 20) printf("%s: %d mismatches more\n", name, c.mismatches - 20);
        *(bad || c.mismatches ? failed : passed) += 1;
        free_blocks();
    }
done:
    json_decref(file);
    free(text);
    free(bytes);
    return s;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE.json\n", argv[0]);
        return 2;
    }
    if (run_file(argv[1], &passed, &failed)) {
        fprintf(stderr, "%s\n", status_message());
        failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
