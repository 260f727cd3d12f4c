/* Gates: each limit at its edge, NaN and missing values, and the recorded run. */
#include "check.h"
#include "gate.h"

#include <unistd.h>

static const struct gate_values good = {.step = 1, .ppo_kl = 0, .clip_fraction = 0, .ref_kl = 0, .grad_norm = 1,
                                        .logprob_abs_diff = 0.001, .mean_logprob_diff = -0.001, .trainer_old = true};

static struct gates open_with(int n, char **overrides)
{
    struct config c;
    struct gates g;
    check_ok(config_load(&c, NULL, n, overrides));
    check_ok(gates_open(&g, &c));
    config_free(&c);
    return g;
}
#define OPEN(...) open_with((int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static void without_limits_everything_passes(void **state)
{
    (void)state;
    struct gates g = open_with(0, NULL);
    struct gate_values v = {.step = 1, .ppo_kl = NAN, .clip_fraction = NAN, .ref_kl = NAN, .grad_norm = NAN,
                            .logprob_abs_diff = NAN, .mean_logprob_diff = NAN, .trainer_old = true};
    check_ok(gate_check(&g, &v));
    check_ok(gate_check(&g, &good));
    gates_close(&g);
}

/* One limit: what passes below it and fails at it, with either sign, and as NaN; and whether only at the first step. */
static void check_limit(char *override, const char *metric, size_t offset, double limit, bool first_only)
{
    struct gates g = OPEN(override);
    const double value[] = {limit * 0.999, -limit * 0.999, limit, -limit, limit * 1.001, INFINITY, NAN};
    for (int i = 0; i < 7; i++) {
        struct gate_values v = good;
        memcpy((char *)&v + offset, &value[i], sizeof *value);
        if (i < 2) check_ok(gate_check(&g, &v));
        else check_fails(gate_check(&g, &v), ERR_GATE, metric);
        v.step = 2;
        if (i < 2 || first_only) check_ok(gate_check(&g, &v));
        else check_fails(gate_check(&g, &v), ERR_GATE, metric);
    }
    gates_close(&g);
}


static void each_limit_holds_for_its_metric_and_steps(void **state)
{
    (void)state;
    check_limit("gates.ppo_kl=1e-9", "ppo_kl", offsetof(struct gate_values, ppo_kl), 1e-9, true);
    check_limit("gates.clip_fraction=1e-10", "clip_fraction", offsetof(struct gate_values, clip_fraction), 1e-10, true);
    check_limit("gates.ref_kl=1e-8", "ref_kl", offsetof(struct gate_values, ref_kl), 1e-8, true);
    check_limit("gates.logprob_abs_diff=0.02", "train_rollout_logprob_abs_diff",
                offsetof(struct gate_values, logprob_abs_diff), 0.02, false);
    check_limit("gates.mean_logprob_diff=0.01", "train_rollout_logprob_diff",
                offsetof(struct gate_values, mean_logprob_diff), 0.01, false);
}

static void first_step_limits_on_the_ratio_need_the_trainers_own_old(void **state)
{
    (void)state;
    struct gates g = OPEN("gates.ppo_kl=1e-9", "gates.clip_fraction=1e-10");
    struct gate_values v = good;
    v.ppo_kl = v.clip_fraction = 0.5;
    check_fails(gate_check(&g, &v), ERR_GATE, "ppo_kl");
    v.trainer_old = false;
    check_ok(gate_check(&g, &v));
    gates_close(&g);
}

/* A metrics file with this text, under a name that lives until the next call. */
static char *recorded(const char *text)
{
    static char override[256];
    char path[] = "/tmp/m3_gate.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    snprintf(override, sizeof override, "gates.grad_norm_file=%s", path);
    return override;
}

static void the_gradient_norm_stays_near_the_recorded_run(void **state)
{
    (void)state;
    char *file = recorded("{\"step\":1,\"grad_norm\":2.0}\n{\"step\":2,\"grad_norm\":null}\n{\"step\":3,\"loss\":1}\n"
                          "{\"step\":4,\"grad_norm\":0.5}\n{\"step\":4,\"grad_norm\":1.0}\n");
    struct gates g = OPEN("gates.grad_norm_rel=0.03", file);
    unlink(strchr(file, '=') + 1);
    struct { int64_t step; double norm; bool pass; } t[] = {
        {1, 2.0, true}, {1, 2.0599, true}, {1, 1.9401, true}, {1, 2.0601, false}, {1, 1.9399, false}, {1, NAN, false},
        {1, INFINITY, false}, {2, 1, false}, {3, 1, false}, {4, 1.0, true}, {4, 0.5, false}, {5, 1, false}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct gate_values v = good;
        v.step = t[i].step;
        v.grad_norm = t[i].norm;
        if (t[i].pass) check_ok(gate_check(&g, &v));
        else check_fails(gate_check(&g, &v), ERR_GATE, "grad_norm");
    }
    gates_close(&g);
}

static void a_recorded_run_that_cannot_be_used_is_an_error_at_the_start(void **state)
{
    (void)state;
    struct config c;
    struct gates g;
    char *missing[] = {"gates.grad_norm_rel=0.03", "gates.grad_norm_file=/tmp/m3_gate_is_not_here"};
    check_ok(config_load(&c, NULL, 2, missing));
    check_fails(gates_open(&g, &c), ERR_IO, "m3_gate_is_not_here");
    config_free(&c);
    char *other[] = {"gates.grad_norm_rel=0.03", recorded("{\"step\":1,\"loss\":2.0}\n")};
    check_ok(config_load(&c, NULL, 2, other));
    check_fails(gates_open(&g, &c), ERR_FORMAT, "grad_norm");
    unlink(strchr(other[1], '=') + 1);
    config_free(&c);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(without_limits_everything_passes),
    cmocka_unit_test(each_limit_holds_for_its_metric_and_steps),
    cmocka_unit_test(first_step_limits_on_the_ratio_need_the_trainers_own_old),
    cmocka_unit_test(the_gradient_norm_stays_near_the_recorded_run),
    cmocka_unit_test(a_recorded_run_that_cannot_be_used_is_an_error_at_the_start),
};
CHECK_MAIN(cases)
