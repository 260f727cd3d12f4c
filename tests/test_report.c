/* The report: the text table, the gnuplot script, and what happens when gnuplot is absent, fails or hangs. */
#include "check.h"
#include "gnuplot.h"
#include "report.h"
#include "textfile.h"

#include <sys/stat.h>
#include <unistd.h>

static char dir[64], path[96], picture[96], tool[96];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/m3_report_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(picture, sizeof picture, "%s/report.png", dir);
    snprintf(tool, sizeof tool, "%s/gnuplot", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    unlink(picture);
    unlink(tool);
    return rmdir(dir); /* fails when anything else was left there */
}

static void put(const char *text) { check_ok(textfile_replace(path, text, strlen(text))); }

/* A run of n steps with a bit of everything. */
static void put_run(int n)
{
    FILE *f = fopen(path, "w");
    for (int i = 1; i <= n; i++)
        fprintf(f, "{\"step\":%d,\"loss\":%s,\"eval_loss\":%d,\"lr\":1e-5,\"time_a_s\":1,\"time_b_s\":2,"
                   "\"memory_weights_bytes\":%lld,\"odd\":1e308}\n",
                i, i == 3 ? "null" : "2.5", i, 3LL << 30);
    fclose(f);
}

static char *text_of(const char *other, enum status *s)
{
    char *text = NULL;
    size_t n;
    struct report_data d;
    FILE *f = open_memstream(&text, &n);
    *s = report_read(&d, dir, other);
    if (!*s) {
        report_text(&d, f);
        report_free(&d);
    }
    fclose(f);
    return text;
}

/* The same with PATH set to `search` while the report runs. */
static enum status run_with_path(const char *search)
{
    char *old = strdup(getenv("PATH")), *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    setenv("PATH", search, 1);
    enum status s = report_run(dir, NULL, NULL, NULL, f);
    setenv("PATH", old, 1);
    fclose(f);
    if (!strstr(text, "loss")) fail_msg("the table is missing: %s", text);
    free(text);
    free(old);
    return s;
}

static void put_tool(const char *script)
{
    check_ok(textfile_replace(tool, script, strlen(script)));
    assert_int_equal(chmod(tool, 0700), 0);
}

static void a_sparkline_goes_from_lowest_to_highest(void **state)
{
    (void)state;
    char text[64];
    double up[] = {1, 2, 3, 4, 5, 6, 7, 8}, flat[] = {2, 2, NAN, 2};
    report_sparkline(text, 8, up, 8);
    assert_string_equal(text, "▁▂▃▄▅▆▇█");
    report_sparkline(text, 4, up, 8);
    assert_string_equal(text, "▁▃▆█");
    report_sparkline(text, 8, flat, 4);
    assert_string_equal(text, "▄▄ ▄");
    report_sparkline(text, 8, flat, 0);
    assert_string_equal(text, "");
    double wild[] = {INFINITY, -INFINITY, NAN, 1e308};
    report_sparkline(text, 8, wild, 4);
    assert_string_equal(text, "    ");
}

static void the_table_has_a_row_a_metric_with_its_extremes(void **state)
{
    (void)state;
    put("{\"step\":1,\"zeta\":1,\"loss\":4}\n{\"step\":2,\"zeta\":1,\"loss\":1}\n"
        "{\"step\":3,\"zeta\":null,\"loss\":2.5,\"memory_x_bytes\":3221225472}\nbroken\n");
    enum status s;
    char *text = text_of(NULL, &s);
    assert_int_equal(s, OK);
    assert_non_null(strstr(text, ": 3 steps, the last is 3, 1 unreadable lines\n"));
    assert_non_null(strstr(text, "           4         2.5           1           4         2.5  █▁▄\n"));
    assert_non_null(strstr(text, "3GiB"));
    assert_non_null(strstr(text, "1 not finite"));
    assert_true(strstr(text, "loss") < strstr(text, "zeta"));
    free(text);
}

static void two_runs_stand_one_below_the_other(void **state)
{
    (void)state;
    put("{\"step\":1,\"loss\":4}\n");
    char other[] = "/tmp/m3_report_XXXXXX";
    int fd = mkstemp(other);
    assert_int_equal(write(fd, "{\"step\":7,\"loss\":5,\"extra\":6}\n", 30), 30);
    close(fd);
    enum status s;
    char *text = text_of(other, &s);
    unlink(other);
    assert_int_equal(s, OK);
    assert_non_null(strstr(text, "[A] "));
    assert_non_null(strstr(text, "loss [A]"));
    assert_non_null(strstr(text, "loss [B]"));
    assert_non_null(strstr(text, "extra [B]"));
    free(text);
}

static void a_folder_without_metrics_is_refused_by_name(void **state)
{
    (void)state;
    enum status s;
    free(text_of(NULL, &s));
    assert_int_equal(s, ERR_IO);
    check_fails(report_run(dir, NULL, NULL, NULL, stderr), ERR_IO, "metrics.jsonl: cannot open");
    put("");
    check_fails(report_run(dir, NULL, NULL, NULL, stderr), ERR_FORMAT, "no line of metrics");
    put("{\"step\":1,\"loss\":null}\n");
    check_fails(report_write(dir, NULL, picture, NULL), ERR_FORMAT, "no numbers to draw");
    check_fails(report_write(dir, NULL, picture, "loss,losses"), ERR_USAGE, "no panel 'losses'");
}

/* gnuplot runs `commands` in double quotes and behind `!`: a run's name must stay inside its single quotes. */
static void a_hostile_run_name_stays_a_text(void **state)
{
    (void)state;
    put("{\"step\":1,\"loss\":1,\"a'b\":1}\n{\"step\":2,\"loss\":2}\n");
    struct report_data d;
    check_ok(report_read(&d, dir, NULL));
    d.name[0] = "it's\n!touch x\n`touch y` \"\\";
    char *script;
    size_t n;
    check_ok(report_script(&d, NULL, true, &script, &n));
    assert_non_null(strstr(script, "'it''s?!touch x?`touch y` \"\\'"));
    assert_null(strstr(script, "a'b"));
    free(script);
    report_free(&d);
}

static bool have_gnuplot(void)
{
    const char *search = getenv("PATH");
    char file[4096];
    for (const char *p = search; p && *p; p += strcspn(p, ":"), p += *p == ':') {
        snprintf(file, sizeof file, "%.*s/gnuplot", (int)strcspn(p, ":"), p);
        if (!access(file, X_OK)) return true;
    }
    return false;
}

static void a_run_of_any_length_is_drawn(void **state)
{
    (void)state;
    if (!have_gnuplot()) skip();
    static const int steps[] = {1, 2, 30, 3000};
    for (int i = 0; i < 4; i++) {
        put_run(steps[i]);
        check_ok(report_write(dir, i == 1 ? dir : NULL, picture, NULL));
        unsigned char head[8] = {0};
        FILE *f = fopen(picture, "rb");
        assert_non_null(f);
        assert_int_equal(fread(head, 1, 8, f), 8);
        fclose(f);
        assert_memory_equal(head, "\x89PNG\r\n\x1a\n", 8);
        assert_int_equal(unlink(picture), 0);
    }
}

static void without_gnuplot_the_table_is_there_and_the_message_clear(void **state)
{
    (void)state;
    put_run(5);
    check_fails(run_with_path("/nonexistent"), ERR_IO, "gnuplot is not installed");
    assert_int_not_equal(access(picture, F_OK), 0);
}

static void a_failing_gnuplot_is_quoted_and_leaves_the_old_picture(void **state)
{
    (void)state;
    put_run(5);
    check_ok(textfile_replace(picture, "old", 3));
    put_tool("#!/bin/sh\nprintf '\\n\\nplot x\\n     ^\\n\"-\" line 3: warning: no such thing\\n' >&2\nexit 4\n");
    check_fails(run_with_path(dir), ERR_IO, "gnuplot failed with status 4: \"-\" line 3: warning: no such thing");
    put_tool("#!/bin/sh\nexit 0\n");
    check_fails(run_with_path(dir), ERR_IO, "gnuplot drew nothing");
    char text[8] = "";
    FILE *f = fopen(picture, "r");
    assert_int_equal(fread(text, 1, 7, f), 3);
    fclose(f);
    assert_string_equal(text, "old");
}

static void a_hanging_gnuplot_is_ended(void **state)
{
    (void)state;
    put_tool("#!/bin/sh\nwhile :; do :; done\n");
    char *old = strdup(getenv("PATH"));
    setenv("PATH", dir, 1);
    enum status s = gnuplot_run("plot x\n", 7, picture, 0.05);
    setenv("PATH", old, 1);
    free(old);
    if (s != ERR_IO || !strstr(status_message(), "did not end within 0.05 s"))
        fail_msg("%d \"%s\", expected %d with \"did not end\"", s, status_message(), ERR_IO);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static const struct CMUnitTest cases[] = {
    cmocka_unit_test(a_sparkline_goes_from_lowest_to_highest),
    CASE(the_table_has_a_row_a_metric_with_its_extremes),
    CASE(two_runs_stand_one_below_the_other),
    CASE(a_folder_without_metrics_is_refused_by_name),
    CASE(a_hostile_run_name_stays_a_text),
    CASE(a_run_of_any_length_is_drawn),
    CASE(without_gnuplot_the_table_is_there_and_the_message_clear),
    CASE(a_failing_gnuplot_is_quoted_and_leaves_the_old_picture),
    CASE(a_hanging_gnuplot_is_ended),
};
CHECK_MAIN(cases)
