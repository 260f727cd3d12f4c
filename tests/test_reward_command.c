/* The reward command: what it is given, and every way in which it fails. The programs are small shell scripts. */
#include "check.h"
#include "reward_command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/m3_reward.XXXXXX";

/* A script of this text; its path lives until the next call. */
static const char *script(const char *text)
{
    static char path[64];
    static int number;
    snprintf(path, sizeof path, "%s/%d", dir, number++);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", text);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
    return path;
}

static enum status run(const char *line, double timeout_s, int n, const struct reward_sample *s, double *out)
{
    struct reward_command c;
    enum status st = reward_command_open(&c, line, timeout_s);
    if (st) return st;
    st = reward_command_run(&c, n, s, out);
    reward_command_close(&c);
    return st;
}

static const struct reward_sample two[2] = {{.prompt_text = "3+5=", .response_text = "#### 8", .label = "8"},
                                            {.prompt_text = "a \"b\"", .response_text = "line\nline \xff"}};

static void it_reads_a_json_line_a_sample_and_its_lines_are_the_rewards(void **state)
{
    (void)state;
    char line[256], kept[64], text[512];
    double out[2] = {-7, -7};
    snprintf(kept, sizeof kept, "%s/kept", dir);
    const char *path = script("cat >$1; echo \" 0.25\"; printf -- -1e1");
    snprintf(line, sizeof line, "  %s \t %s ", path, kept);
    check_ok(run(line, 60, 2, two, out));
    check_equal_f(out[0], 0.25, 0);
    check_equal_f(out[1], -10, 0);
    FILE *f = fopen(kept, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    assert_string_equal(text,
                        "{\"prompt\":\"3+5=\",\"response\":\"#### 8\",\"label\":\"8\"}\n"
                        "{\"prompt\":\"a \\\"b\\\"\",\"response\":\"line\\nline \xef\xbf\xbd\",\"label\":\"\"}\n");
}

static void nan_is_no_reward_and_no_error(void **state)
{
    (void)state;
    double out[2];
    check_ok(run(script("cat >/dev/null; echo nan; echo 1"), 60, 2, two, out));
    assert_true(isnan(out[0]));
    check_equal_f(out[1], 1, 0);
}

static void nothing_goes_through_a_shell(void **state)
{
    (void)state;
    double out[1];
    char line[256];
    const char *path = script("cat >/dev/null; [ \"$#\" = 4 ] && [ \"$1\" = '$HOME;touch' ] && echo 4");
    snprintf(line, sizeof line, "%s $HOME;touch * 'a b'", path);
    check_ok(run(line, 60, 1, two, out));
    check_equal_f(out[0], 4, 0);
}

static void a_program_that_is_not_there_is_told_at_the_start(void **state)
{
    (void)state;
    struct reward_command c;
    double out[1];
    check_fails(reward_command_open(&c, "", 1), ERR_CONFIG, "empty");
    check_fails(reward_command_open(&c, "  ", 1), ERR_CONFIG, "empty");
    check_fails(reward_command_open(&c, "/no/such/program x", 1), ERR_CONFIG, "/no/such/program");
    check_fails(run("m3-no-such-program-on-the-path", 1, 1, two, out), ERR_IO, "m3-no-such-program-on-the-path");
}

static void whatever_goes_wrong_is_an_error_with_its_stderr(void **state)
{
    (void)state;
    static const struct { const char *script; enum status status; const char *text; } t[] = {
        {"echo 1; echo 1; echo 'model file lost' >&2; exit 3", ERR_IO, "status 3"},
        {"echo 1; echo 1; echo 'model file lost' >&2; exit 3", ERR_IO, "model file lost"},
        {"cat >/dev/null; kill -9 $$", ERR_IO, "signal 9"},
        {"exit 0", ERR_FORMAT, "0 lines for 2 samples"},
        {"cat >/dev/null; echo 1; echo short >&2", ERR_FORMAT, "1 lines for 2 samples; its stderr: short"},
        {"cat >/dev/null; echo 1; echo 2; echo 3", ERR_FORMAT, "more than 2 lines"},
        {"cat >/dev/null; echo 1; echo good", ERR_FORMAT, "line 2 of 2 is \"good\""},
        {"cat >/dev/null; echo 1; echo; echo 1", ERR_FORMAT, "line 2 of 2 is \"\""},
        {"cat >/dev/null; echo 1 2; echo 1", ERR_FORMAT, "line 1 of 2"},
        {"cat >/dev/null; echo inf; echo 1", ERR_FORMAT, "line 1 of 2 is \"inf\""},
        {"cat >/dev/null; printf '1\\0002\\n1\\n'", ERR_FORMAT, "line 1 of 2"},
        {"cat /dev/zero", ERR_FORMAT, "longer than a number"},
        {"cat /dev/zero | tr '\\000' '\\n'", ERR_FORMAT, "line 1 of 2 is \"\""},
        {"cat /dev/zero >&2", ERR_IO, "did not end"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double out[2];
        double limit = i + 1 < sizeof t / sizeof *t ? 60 : 0.3; /* the last one is there to be slow */
        check_fails(run(script(t[i].script), limit, 2, two, out), t[i].status, t[i].text);
    }
}

/* The number that the script wrote into `path`; 0: none. */
static pid_t pid_in(const char *path)
{
    int pid = 0;
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%d", &pid) != 1) pid = 0;
        fclose(f);
    }
    return pid;
}

/* Zombies have ended too: nobody here waits for a grandchild. */
static bool lives(pid_t pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(f);
    return state != 'Z' && state != 'X';
}

static void a_program_that_hangs_is_ended_with_its_children(void **state)
{
    (void)state;
    double out[2];
    char line[256], kept[64];
    snprintf(kept, sizeof kept, "%s/pid", dir);
    const char *path = script("tail -f /dev/null & echo $! >$1; echo waiting >&2; trap '' TERM; wait");
    snprintf(line, sizeof line, "%s %s", path, kept);
    check_fails(run(line, 0.5, 2, two, out), ERR_IO, "reward.timeout_s=0.5: 0 of 2 rewards; its stderr: waiting");
    pid_t pid = pid_in(kept);
    assert_true(pid > 0);
    for (int i = 0; i < 1000000 && lives(pid); i++) {} /* the signal is sent; its effect may take a moment */
    assert_false(lives(pid));
}

static void a_child_left_behind_with_the_streams_is_not_waited_for(void **state)
{
    (void)state;
    double out[2];
    check_ok(run(script("cat >/dev/null; tail -f /dev/null & echo 1; echo 2"), 60, 2, two, out));
    check_equal_f(out[1], 2, 0);
}

static void a_program_that_does_not_read_may_still_answer(void **state)
{
    (void)state;
    enum { N = 3000 };
    static char response[400];
    struct reward_sample *s = calloc(N, sizeof *s);
    double *out = calloc(N, sizeof *out);
    memset(response, 'x', sizeof response - 1);
    for (int i = 0; i < N; i++) s[i] = (struct reward_sample){.response_text = response, .label = ""};
    check_ok(run(script("exec <&-; i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i + 1)); done"), 60, N, s, out));
    check_equal_f(out[N - 1], N - 1, 0);
    free(s);
    free(out);
}

static void both_pipes_may_be_full_at_once(void **state)
{
    (void)state;
    enum { N = 20000 };
    static char response[100];
    struct reward_sample *s = calloc(N, sizeof *s);
    double *out = calloc(N, sizeof *out);
    memset(response, 'x', sizeof response - 1);
    for (int i = 0; i < N; i++) s[i] = (struct reward_sample){.response_text = response, .label = ""};
    check_ok(run("sed -u s/.*/0.0000000000000000000000000000000000000000000000000000000000005e60/", 60, N, s, out));
    for (int i = 0; i < N; i++) check_equal_f(out[i], 0.5, 1e-15);
    free(s);
    free(out);
}

static void it_inherits_no_descriptor_and_no_blocked_signal(void **state)
{
    (void)state;
    double out[1];
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    int fd = open("/dev/null", O_RDONLY), high = fcntl(fd, F_DUPFD, 200);
    sigprocmask(SIG_BLOCK, &set, &before);
    enum status st = run(script("cat >/dev/null; [ -e /proc/self/fd/200 ] && echo open; "
                                "grep -q '^SigBlk:[[:space:]]*0*$' /proc/self/status && echo 1"), 60, 1, two, out);
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(fd);
    close(high);
    check_ok(st);
}

static void it_leaves_no_descriptor_no_zombie_and_no_signal_behind(void **state)
{
    (void)state;
    double out[2];
    sigset_t pending;
    int before = dup(0);
    close(before);
    for (int i = 0; i < 3; i++) run(script(i ? "exec <&-; exit 1" : "echo x"), 60, 2, two, out);
    int after = dup(0);
    close(after);
    assert_int_equal(before, after);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(it_reads_a_json_line_a_sample_and_its_lines_are_the_rewards),
    cmocka_unit_test(nan_is_no_reward_and_no_error),
    cmocka_unit_test(nothing_goes_through_a_shell),
    cmocka_unit_test(a_program_that_is_not_there_is_told_at_the_start),
    cmocka_unit_test(whatever_goes_wrong_is_an_error_with_its_stderr),
    cmocka_unit_test(a_program_that_hangs_is_ended_with_its_children),
    cmocka_unit_test(a_child_left_behind_with_the_streams_is_not_waited_for),
    cmocka_unit_test(a_program_that_does_not_read_may_still_answer),
    cmocka_unit_test(both_pipes_may_be_full_at_once),
    cmocka_unit_test(it_inherits_no_descriptor_and_no_blocked_signal),
    cmocka_unit_test(it_leaves_no_descriptor_no_zombie_and_no_signal_behind),
};

int main(void)
{
    if (!mkdtemp(dir)) return 1;
    int failed = cmocka_run_group_tests(cases, NULL, NULL), n = (int)(sizeof cases / sizeof *cases);
    char path[64];
    for (int i = 0; i < 64; i++) snprintf(path, sizeof path, "%s/%d", dir, i), unlink(path);
    snprintf(path, sizeof path, "%s/kept", dir), unlink(path);
    snprintf(path, sizeof path, "%s/pid", dir), unlink(path);
    rmdir(dir);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
