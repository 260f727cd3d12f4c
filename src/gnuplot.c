#include "gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* All three streams of the child are files: nobody can block on a full pipe. */
struct child {
    FILE *script, *errors;
    int picture;
    pid_t pid;
};

static enum status spawn(struct child *c)
{
    posix_spawn_file_actions_t actions;
    char *argv[] = {"gnuplot", "-d", NULL};
    if (posix_spawn_file_actions_init(&actions)) return FAIL(ERR_MEMORY, "no memory to start gnuplot");
    int e = posix_spawn_file_actions_adddup2(&actions, fileno(c->script), STDIN_FILENO);
    if (!e) e = posix_spawn_file_actions_adddup2(&actions, c->picture, STDOUT_FILENO);
    if (!e) e = posix_spawn_file_actions_adddup2(&actions, fileno(c->errors), STDERR_FILENO);
    if (!e) e = posix_spawnp(&c->pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (e == ENOENT) return FAIL(ERR_IO, "gnuplot is not installed (Debian: gnuplot-nox), so no picture is drawn");
    return e ? FAIL(ERR_IO, "gnuplot cannot be started: %s", strerror(e)) : OK;
}

/* Waits, or kills it when the time is over. */
static enum status wait_for(struct child *c, double timeout_s, int *result)
{
    double end = time_now() + timeout_s;
    for (;;) {
        pid_t got = waitpid(c->pid, result, WNOHANG);
        if (got == c->pid) return OK;
        if (got < 0 && errno != EINTR) return FAIL(ERR_IO, "gnuplot: %s", strerror(errno));
        if (time_now() > end) {
            kill(c->pid, SIGKILL);
            while (waitpid(c->pid, result, 0) < 0 && errno == EINTR) continue;
            return FAIL(ERR_IO, "gnuplot did not end within %g s", timeout_s);
        }
        nanosleep(&(struct timespec){0, 3000000}, NULL);
    }
}

/* Its first line with letters: gnuplot begins with empty lines and a caret below the place. */
static void first_error(FILE *errors, char *text, size_t size)
{
    char line[512];
    *text = 0;
    rewind(errors);
    while (fgets(line, sizeof line, errors)) {
        if (!strstr(line, "line ") && !strchr(line, ':')) continue;
        line[strcspn(line, "\n")] = 0;
        char *start = line + strspn(line, " \t");
        snprintf(text, size, "%.300s", start);
        return;
    }
}

static enum status run(struct child *c, double timeout_s)
{
    int result = 0;
    struct stat st;
    char why[320];
    TRY(spawn(c));
    TRY(wait_for(c, timeout_s, &result));
    if (!WIFEXITED(result) || WEXITSTATUS(result)) {
        first_error(c->errors, why, sizeof why);
        return FAIL(ERR_IO, "gnuplot failed with status %d%s%s", WIFEXITED(result) ? WEXITSTATUS(result) : -1,
                    *why ? ": " : "", why);
    }
    if (fstat(c->picture, &st) || !st.st_size) return FAIL(ERR_IO, "gnuplot drew nothing");
    return OK;
}

enum status gnuplot_run(const char *script, size_t n, const char *path, double timeout_s)
{
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return FAIL(ERR_IO, "the path is too long: %.200s...", path);
    struct child c = {tmpfile(), tmpfile(), open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600), 0};
    enum status s = OK;
    if (!c.script || !c.errors)
        s = FAIL(ERR_IO, "cannot make a temporary file: %s", strerror(errno));
    else if (c.picture < 0)
        s = FAIL(ERR_IO, "%s: cannot create: %s", tmp, strerror(errno));
    else if (fwrite(script, 1, n, c.script) != n || fflush(c.script) || fseek(c.script, 0, SEEK_SET))
        s = FAIL(ERR_IO, "cannot write a temporary file: %s", strerror(errno));
    if (!s) s = run(&c, timeout_s);
    if (!s && rename(tmp, path)) s = FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    if (c.picture >= 0) {
        close(c.picture);
        if (s) unlink(tmp);
    }
    if (c.script) fclose(c.script);
    if (c.errors) fclose(c.errors);
    return s;
}
