/* metrics.jsonl: what is written is JSON and reads back, a full disk and a killed writer leave whole lines, a resume
 * cuts at its step; and the progress line. */
#include "check.h"
#include "json.h"
#include "metrics.h"
#include "textfile.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], path[96], discarded[96];

static int set_up(void **state)
{
    (void)state;
    log_open(1, NULL); /* rank 1 keeps quiet about what is no warning */
    strcpy(dir, "/tmp/m3_metrics_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(discarded, sizeof discarded, "%s/metrics.discarded.jsonl", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    unlink(discarded);
    return rmdir(dir);
}

static struct config config_here(void)
{
    struct config c = {0};
    c.run.dir = dir;
    c.log.progress = PROGRESS_PLAIN;
    c.log.every = 1000000;
    c.train.steps = 1000;
    return c;
}

static char *text_at(const char *file)
{
    char *text;
    size_t n;
    check_ok(json_read_bytes(&text, &n, file, 1 << 24));
    return text;
}

static void put(const char *text) { check_ok(textfile_replace(path, text, strlen(text))); }

static void a_step_is_one_line_of_json_in_the_order_it_was_added(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    metrics_begin(m, 7);
    metrics_add(m, "loss", 0.1);
    metrics_add(m, "lr", 2e-5);
    metrics_add_int(m, "tokens", 1234567890123456789);
    metrics_add(m, "loss", 0.25);
    metrics_memory(m, "weights", 42);
    check_equal_f(metrics_get(m, "loss"), 0.25, 0);
    assert_true(isnan(metrics_get(m, "reward_mean")));
    check_ok(metrics_write(m));
    metrics_close(&m);
    assert_null(m);
    char *text = text_at(path);
    assert_string_equal(text, "{\"step\":7,\"loss\":0.25,\"lr\":2e-5,\"tokens\":1234567890123456789,"
                              "\"memory_weights_bytes\":42}\n");
    free(text);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void numbers_that_are_not_finite_become_null_and_are_counted(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    metrics_begin(m, 1);
    metrics_add(m, "loss", NAN);
    metrics_add(m, "grad_norm", INFINITY);
    metrics_add(m, "lr", 1);
    check_ok(metrics_write(m));
    metrics_close(&m);
    char *text = text_at(path);
    assert_string_equal(text, "{\"step\":1,\"loss\":null,\"grad_norm\":null,\"lr\":1,\"non_finite\":2}\n");
    free(text);
    struct metrics_table t;
    check_ok(metrics_read(&t, dir));
    assert_true(isnan(metrics_series(&t, "loss")->value[0]));
    check_equal_f(metrics_series(&t, "lr")->value[0], 1, 0);
    metrics_table_free(&t);
}

static void every_float_is_valid_json_and_reads_back_exactly(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    union { uint64_t u; double d; } v;
    enum { N = 2000 };
    for (uint64_t i = 0; i < N; i++) {
        v.u = check_hash(i);
        metrics_begin(m, (int64_t)i);
        metrics_add(m, "x", v.d);
        check_ok(metrics_write(m));
    }
    metrics_close(&m);
    struct metrics_table t;
    check_ok(metrics_read(&t, path));
    assert_int_equal(t.lines, N);
    assert_int_equal(t.bad_lines, 0);
    assert_int_equal(t.last_step, N - 1);
    const struct series *s = metrics_series(&t, "x");
    for (uint64_t i = 0; i < N; i++) {
        v.u = check_hash(i);
        if (isfinite(v.d) ? s->value[i] != v.d : !isnan(s->value[i]))
            fail_msg("step %d: read %.17g, written %.17g", (int)i, s->value[i], v.d);
    }
    metrics_table_free(&t);
}

static void a_bad_name_or_too_many_is_an_error_when_written(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    static const char *const bad[] = {"", "a b", "a\"b", "step", "non_finite",
                                      "a_name_that_is_far_longer_than_any_metric_has_a_right_to_be_in_this_file"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        metrics_begin(m, 1);
        metrics_add(m, bad[i], 1);
        check_fails(metrics_write(m), ERR_INTERNAL, "cannot be written");
    }
    metrics_begin(m, 1);
    for (int i = 0; i <= METRICS_MAX; i++) {
        char name[32];
        snprintf(name, sizeof name, "m%d", i);
        metrics_add(m, name, -1.2345678901234567e-300);
        if (i == METRICS_MAX - 1) check_ok(metrics_write(m));
    }
    check_fails(metrics_write(m), ERR_INTERNAL, "m256");
    metrics_close(&m);
}

static void ranks_without_metrics_may_call_everything(void **state)
{
    (void)state;
    struct metrics *m = NULL;
    metrics_begin(m, 1);
    metrics_add(m, "loss", 1);
    metrics_add_int(m, "n", 1);
    metrics_time(m, "adam", 0);
    metrics_memory(m, "weights", 1);
    check_ok(metrics_write(m));
    assert_true(isnan(metrics_get(m, "loss")));
    metrics_close(&m);
}

static void times_of_one_stage_add_up(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    metrics_begin(m, 1);
    metrics_time(m, "rollout", time_now() - 100);
    metrics_time(m, "rollout", time_now() - 50);
    check_equal_f(metrics_get(m, "time_rollout_s"), 150, 0.01);
    metrics_begin(m, 2);
    assert_true(isnan(metrics_get(m, "time_rollout_s")));
    metrics_close(&m);
}

static void a_full_disk_leaves_whole_lines(void **state)
{
    (void)state;
    struct config c = config_here();
    struct metrics *m;
    check_ok(metrics_open(&m, &c, 0));
    metrics_begin(m, 1);
    metrics_add(m, "loss", 1);
    check_ok(metrics_write(m));
    /* A file size limit cuts the second write in the middle, as a full disk does. */
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 30;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    metrics_begin(m, 2);
    enum status s = metrics_write(m);
    metrics_add(m, "loss", 2);
    enum status s2 = metrics_write(m);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(s, ERR_IO);
    assert_int_equal(s2, ERR_IO);
    char *text = text_at(path);
    assert_string_equal(text, "{\"step\":1,\"loss\":1}\n");
    free(text);
    check_ok(metrics_write(m)); /* and it goes on when there is room again */
    metrics_close(&m);
    text = text_at(path);
    assert_string_equal(text, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
    free(text);
}

static void a_resume_moves_later_lines_and_a_torn_end_away(void **state)
{
    (void)state;
    put("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":3}\n{\"step\":4,\"lo");
    check_ok(metrics_truncate(dir, 2));
    char *text = text_at(path), *moved = text_at(discarded);
    assert_string_equal(text, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
    assert_string_equal(moved, "{\"step\":3,\"loss\":3}\n{\"step\":4,\"lo\n");
    free(text);
    free(moved);
    check_ok(metrics_truncate(dir, 0));
    text = text_at(path), moved = text_at(discarded);
    assert_string_equal(text, "");
    assert_string_equal(moved, "{\"step\":3,\"loss\":3}\n{\"step\":4,\"lo\n"
                               "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
    free(text);
    free(moved);
}

static void a_resume_at_the_last_step_changes_nothing(void **state)
{
    (void)state;
    check_ok(metrics_truncate(dir, 5)); /* no file yet */
    put("{\"step\":1}\n{\"step\":2}\n");
    check_ok(metrics_truncate(dir, 2));
    char *text = text_at(path);
    assert_string_equal(text, "{\"step\":1}\n{\"step\":2}\n");
    assert_int_not_equal(access(discarded, F_OK), 0);
    free(text);
}

static void reading_takes_what_is_good_and_counts_the_rest(void **state)
{
    (void)state;
    struct metrics_table t;
    put("{\"step\":1,\"loss\":4,\"note\":\"x\",\"a b\":1}\nnonsense\n[1]\n{\"loss\":1}\n{\"step\":-1}\n{\"step\":1.5}\n"
        "{\"step\":2,\"reward_mean\":0.5,\"loss\":3}\n{\"step\":3,\"lo");
    check_ok(metrics_read(&t, dir));
    assert_int_equal(t.lines, 2);
    assert_int_equal(t.bad_lines, 5);
    assert_int_equal(t.n, 2);
    const struct series *loss = metrics_series(&t, "loss"), *reward = metrics_series(&t, "reward_mean");
    assert_int_equal(loss->n, 2);
    check_equal_f(loss->value[1], 3, 0);
    assert_int_equal(reward->n, 1);
    check_equal_f(reward->step[0], 2, 0);
    assert_null(metrics_series(&t, "note"));
    metrics_table_free(&t);
    put("nonsense\n");
    check_fails(metrics_read(&t, dir), ERR_FORMAT, "metrics.jsonl: no line of metrics (1 that");
    unlink(path);
    check_fails(metrics_read(&t, dir), ERR_IO, "cannot open");
    check_fails(metrics_read(&t, "/dev/null"), ERR_FORMAT, "not a regular file");
}

static void broken_metrics_files_never_crash(void **state)
{
    (void)state;
    static const char good[] = "{\"step\":1,\"loss\":4.5,\"lr\":1e-5}\n{\"step\":2,\"loss\":null,\"tokens\":12}\n";
    enum { N = sizeof good - 1 };
    int fine = 0, refused = 0;
    for (uint64_t i = 0; i < 500; i++) {
        char text[N];
        memcpy(text, good, N);
        for (uint64_t k = 0; k <= i % 4; k++) text[check_hash(8 * i + k) % N] = (char)check_hash(8 * i + k + 4);
        FILE *f = fopen(path, "w");
        fwrite(text, 1, i % N, f);
        fclose(f);
        struct metrics_table t;
        enum status s = metrics_read(&t, dir);
        if (s)
            refused++;
        else
            fine++, metrics_table_free(&t);
        check_ok(metrics_truncate(dir, 1));
    }
    if (!fine || !refused) fail_msg("%d read and %d refused, expected some of each", fine, refused);
}

static void the_progress_line_fits_its_width_with_whole_items(void **state)
{
    (void)state;
    struct progress_view v = {.step = 5, .total = 200, .loss = 1.23456, .eval_loss = NAN, .reward = NAN,
                              .grad_norm = 0.5, .tokens_per_s = 12345, .eta_s = 245};
    char text[256];
    progress_text(text, sizeof text, 160, &v);
    assert_string_equal(text, "step   5/200  loss 1.235  eta 4m05s  12.3k tokens/s  grad_norm 0.5");
    for (int width = 0; width < 100; width++) {
        int n = progress_text(text, sizeof text, width, &v);
        if (n > width || n != (int)strlen(text)) fail_msg("width %d: %d bytes, '%s'", width, n, text);
    }
    progress_text(text, sizeof text, 35, &v);
    assert_string_equal(text, "step   5/200  loss 1.235  eta 4m05s");
}

static void durations_have_two_units(void **state)
{
    (void)state;
    static const struct { double s; const char *text; } want[] = {
        {0, "0s"}, {59.4, "59s"}, {59.6, "1m00s"}, {3599, "59m59s"}, {7380, "2h03m"}, {457200, "5d07h"}, {-1, "?"},
        {NAN, "?"}, {1e300, "?"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char text[32];
        assert_string_equal(progress_duration(text, want[i].s), want[i].text);
    }
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static const struct CMUnitTest cases[] = {
    CASE(a_step_is_one_line_of_json_in_the_order_it_was_added),
    CASE(numbers_that_are_not_finite_become_null_and_are_counted),
    CASE(every_float_is_valid_json_and_reads_back_exactly),
    CASE(a_bad_name_or_too_many_is_an_error_when_written),
    CASE(ranks_without_metrics_may_call_everything),
    CASE(times_of_one_stage_add_up),
    CASE(a_full_disk_leaves_whole_lines),
    CASE(a_resume_moves_later_lines_and_a_torn_end_away),
    CASE(a_resume_at_the_last_step_changes_nothing),
    CASE(reading_takes_what_is_good_and_counts_the_rest),
    CASE(broken_metrics_files_never_crash),
    cmocka_unit_test(the_progress_line_fits_its_width_with_whole_items),
    cmocka_unit_test(durations_have_two_units),
};
CHECK_MAIN(cases)
