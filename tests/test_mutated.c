/* Readers of small text files that have no mutation loop of their own: metrics, the recorded run of a gate, machines,
 * architectures, chat messages' JSON. A mutated file is read or refused with its name, and never worse. */
#include "arch.h"
#include "gate.h"
#include "metrics.h"
#include "mutate.h"
#include "plan_machine.h"
#include "st_fixture.h"

static char dir[FIXTURE_PATH], path[FIXTURE_PATH];

static int set_up(void **state)
{
    (void)state;
    fixture_dir(dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

/* `runs` mutations of the text through `read`, which returns the reader's status. */
static void mutate_all(const char *name, const char *good, size_t n, int runs, enum status (*read)(void))
{
    char *text = malloc(n + 1);
    int fine = 0;
    fixture_join(path, dir, name);
    for (int seed = 1; seed <= runs; seed++) {
        memcpy(text, good, n);
        fixture_write(path, text, mutate_text(text, n, (uint64_t)seed));
        enum status s = read();
        if (s && !strstr(status_message(), path)) fail_msg("seed %d: no file name: %s", seed, status_message());
        if (s == ERR_INTERNAL || s == ERR_MEMORY) fail_msg("seed %d: status %d: %s", seed, (int)s, status_message());
        fine += !s;
    }
    free(text);
    if (fine == 0) fail_msg("none of %d mutants was accepted: not a test", runs);
}

static const char lines[] = "{\"step\":1,\"loss\":5.5,\"grad_norm\":1e-3,\"tokens\":12}\n{\"step\":2,\"loss\":null,\"grad_norm\":2.5,"
                            "\"non_finite\":1}\n{\"step\":3,\"loss\":4.25,\"grad_norm\":0.5,\"tokens\":9}\n";

static enum status read_metrics(void)
{
    struct metrics_table t;
    enum status s = metrics_read(&t, path);
    if (s) return s;
    for (int i = 0; i < t.n; i++)
        if (!metrics_name_ok(t.series[i].name) || t.series[i].n > t.lines)
            fail_msg("series %s of %d points in %d lines", t.series[i].name, (int)t.series[i].n, (int)t.lines);
    metrics_table_free(&t);
    return OK;
}

static void mutated_metrics_are_read_or_refused(void **state)
{
    (void)state;
    mutate_all("metrics.jsonl", lines, sizeof lines - 1, 3000, read_metrics);
}

/* What a resumed run keeps are whole lines up to its step; nothing is lost. */
static enum status truncate_metrics(void)
{
    size_t n, kept, moved = 0;
    char other[FIXTURE_PATH];
    free(fixture_read(path, &n));
    fixture_join(other, dir, "metrics.discarded.jsonl");
    enum status s = metrics_truncate(dir, 2);
    if (s) return s;
    free(fixture_read(path, &kept));
    if (fixture_exists(dir, "metrics.discarded.jsonl")) free(fixture_read(other, &moved));
    if (kept + moved < n) fail_msg("%zu bytes became %zu and %zu", n, kept, moved);
    unlink(other);
    return OK;
}

static void mutated_metrics_are_cut_without_losing_a_byte(void **state)
{
    (void)state;
    log_open(1, NULL); /* other ranks keep their notes to themselves */
    mutate_all("metrics.jsonl", lines, sizeof lines - 1, 1000, truncate_metrics);
    log_open(0, NULL);
}

static enum status read_gate(void)
{
    struct config c = {0};
    struct gates g;
    c.gates.grad_norm_file = path;
    enum status s = gates_open(&g, &c);
    if (!s) gates_close(&g);
    return s;
}

static void the_mutated_run_of_a_gate_is_read_or_refused(void **state)
{
    (void)state;
    mutate_all("recorded.jsonl", lines, sizeof lines - 1, 1000, read_gate);
}

static enum status read_machine(void)
{
    struct plan_machine m;
    return plan_machine_load(&m, path);
}

static void a_mutated_machine_is_read_or_refused(void **state)
{
    (void)state;
    size_t n;
    char *good = fixture_read("configs/machines/cpu.yaml", &n);
    mutate_all("machine.yaml", good, n, 2000, read_machine);
    free(good);
}

static enum status read_arch(void)
{
    struct arch a;
    enum status s = arch_load(&a, dir);
    if (!s && (a.hidden < 1 || a.layers < 1 || a.layers > ARCH_MAX_LAYERS || a.heads % a.kv_heads || a.rotary_dim % 2))
        fail_msg("hidden %d, %d layers, %d heads of %d, rotary %d", a.hidden, a.layers, a.heads, a.kv_heads, a.rotary_dim);
    return s;
}

static void a_mutated_architecture_is_read_whole_or_refused(void **state)
{
    (void)state;
    size_t n;
    char *good = fixture_read("tests/data/golden/narrow/checkpoint/config.json", &n);
    mutate_all("config.json", good, n, 3000, read_arch);
    free(good);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(mutated_metrics_are_read_or_refused, set_up, tear_down),
    cmocka_unit_test_setup_teardown(mutated_metrics_are_cut_without_losing_a_byte, set_up, tear_down),
    cmocka_unit_test_setup_teardown(the_mutated_run_of_a_gate_is_read_or_refused, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_mutated_machine_is_read_or_refused, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_mutated_architecture_is_read_whole_or_refused, set_up, tear_down),
};
CHECK_MAIN(cases)
