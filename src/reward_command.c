#include "reward_command.h"

#include "json.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_NUMBER = 256, MAX_TOLD = 1200, CHUNK = 1024 };
_Static_assert(CHUNK <= MAX_TOLD, "a chunk of stderr is kept whole");

enum status reward_command_open(struct reward_command *c, const char *line, double timeout_s)
{
    int words = 0;
    char *held = NULL;
    *c = (struct reward_command){.line = strdup(line), .timeout_s = timeout_s};
    if (c->line) c->argv = calloc(strlen(line) / 2 + 2, sizeof *c->argv);
    if (!c->argv) {
        reward_command_close(c);
        return FAIL(ERR_MEMORY, "the words of reward.command");
    }
    for (char *w = strtok_r(c->line, " \t", &held); w; w = strtok_r(NULL, " \t", &held)) c->argv[words++] = w;
    enum status s = OK;
    if (words == 0) s = FAIL(ERR_CONFIG, "reward.command is empty");
    else if (strchr(c->argv[0], '/') && access(c->argv[0], X_OK) != 0)
        s = FAIL(ERR_CONFIG, "reward.command: %s: %s", c->argv[0], strerror(errno));
    if (s) reward_command_close(c);
    return s;
}

void reward_command_close(struct reward_command *c)
{
    free(c->line);
    free(c->argv);
    *c = (struct reward_command){0};
}

/* ---------------------------------------------------------------- the program ------------------------------------ */

enum { IN, OUT, ERR, STREAMS };

struct run {
    const struct reward_command *c;
    pid_t pid;
    int fd[STREAMS];          /* our ends; -1: closed */
    struct text input;
    size_t sent;
    char number[MAX_NUMBER];  /* the line that is being read */
    size_t digits;
    int n, got;
    double *out;
    char told[MAX_TOLD];      /* the end of stderr */
    size_t n_told;
    siginfo_t end;            /* of the program */
};

static void shut(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static enum status add_line(struct text *input, const struct reward_sample *s)
{
    const char *const name[] = {"prompt", "response", "label"};
    const char *const value[] = {s->prompt_text, s->response_text, s->label};
    struct text clean = {0};
    json_t *o = json_object();
    enum status st = o ? OK : FAIL(ERR_MEMORY, "a line of the reward command");
    for (int i = 0; i < 3 && !st; i++) {
        const char *text = value[i] ? value[i] : "";
        clean.n = 0;
        st = utf8_push_lossy(&clean, text, strlen(text));
        if (!st && json_object_set_new(o, name[i], json_stringn(clean.n ? clean.data : "", clean.n)) != 0)
            st = FAIL(ERR_MEMORY, "a line of the reward command");
    }
    char *line = st ? NULL : json_dumps(o, JSON_COMPACT);
    if (!st && !line) st = FAIL(ERR_MEMORY, "a line of the reward command");
    if (!st) st = text_push(input, line, strlen(line));
    if (!st) st = text_push(input, "\n", 1);
    free(line);
    text_free(&clean);
    json_decref(o);
    return st;
}

/* `theirs` become its streams 0, 1 and 2; all other descriptors, those of MPI and HDF5 too, are closed in it. */
static enum status spawn(struct run *r, const int *theirs)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&actions) != 0) return FAIL(ERR_MEMORY, "the reward command");
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return FAIL(ERR_MEMORY, "the reward command");
    }
    int e = 0;
    for (int i = 0; i < STREAMS && !e; i++) e = posix_spawn_file_actions_adddup2(&actions, theirs[i], i);
    if (!e) e = posix_spawn_file_actions_addclosefrom_np(&actions, STREAMS);
    if (!e) e = posix_spawnattr_setsigmask(&attr, &none);
    if (!e) e = posix_spawnattr_setsigdefault(&attr, &all);
    if (!e) e = posix_spawnattr_setpgroup(&attr, 0);
    if (!e) e = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    if (!e) e = posix_spawnp(&r->pid, r->c->argv[0], &actions, &attr, r->c->argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (!e) return OK;
    r->pid = 0;
    return FAIL(ERR_IO, "reward.command: %s: %s", r->c->argv[0], strerror(e));
}

static enum status start(struct run *r)
{
    int theirs[STREAMS] = {-1, -1, -1};
    enum status s = OK;
    for (int i = 0; i < STREAMS && !s; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            s = FAIL(ERR_IO, "reward.command: a pipe: %s", strerror(errno));
            break;
        }
        /* above the three streams even where the program was started without them */
        theirs[i] = fcntl(ends[i != IN], F_DUPFD_CLOEXEC, STREAMS);
        r->fd[i] = fcntl(ends[i == IN], F_DUPFD_CLOEXEC, STREAMS);
        close(ends[0]);
        close(ends[1]);
        if (theirs[i] < 0 || r->fd[i] < 0 || fcntl(r->fd[i], F_SETFL, O_NONBLOCK) != 0)
            s = FAIL(ERR_IO, "reward.command: a pipe: %s", strerror(errno));
    }
    if (!s) s = spawn(r, theirs);
    for (int i = 0; i < STREAMS; i++) shut(&theirs[i]);
    return s;
}

/* ---------------------------------------------------------------- its streams ------------------------------------ */

/* A program that stops reading is no error in itself: it may know enough. The signal that write() then raises is taken
 * back before anybody sees it. */
static enum status feed(struct run *r)
{
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t n = write(r->fd[IN], r->input.data + r->sent, r->input.n - r->sent);
    int e = errno;
    if (n < 0 && e == EPIPE && !sigismember(&pending, SIGPIPE)) {
        const struct timespec now = {0};
        sigtimedwait(&pipe_only, NULL, &now);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (n > 0) r->sent += (size_t)n;
    if (r->sent == r->input.n || (n < 0 && e == EPIPE)) shut(&r->fd[IN]);
    else if (n < 0 && e != EAGAIN && e != EINTR) return FAIL(ERR_IO, "reward.command: %s", strerror(e));
    return OK;
}

static enum status end_line(struct run *r)
{
    char *end;
    r->number[r->digits] = 0;
    while (r->digits > 0 && strchr(" \t\r", r->number[r->digits - 1])) r->number[--r->digits] = 0;
    if (r->got == r->n) return FAIL(ERR_FORMAT, "reward.command printed more than %d lines", r->n);
    double x = strtod(r->number, &end);
    if (r->digits == 0 || *end || isinf(x) || strlen(r->number) != r->digits)
        return FAIL(ERR_FORMAT, "reward.command: line %d of %d is \"%.60s\", not a number", r->got + 1, r->n,
                    r->number);
    r->out[r->got++] = x;
    r->digits = 0;
    return OK;
}

static enum status take_out(struct run *r)
{
    char chunk[4096];
    ssize_t n = read(r->fd[OUT], chunk, sizeof chunk);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        shut(&r->fd[OUT]);
        return r->digits > 0 ? end_line(r) : OK;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (chunk[i] == '\n') {
            TRY(end_line(r));
            continue;
        }
        if (r->digits + 1 == sizeof r->number)
            return FAIL(ERR_FORMAT, "reward.command: line %d of %d is longer than a number: \"%.40s...\"", r->got + 1,
                        r->n, r->number);
        r->number[r->digits++] = chunk[i];
    }
    return OK;
}

/* Keeps the end, on one line. */
static void take_err(struct run *r)
{
    char chunk[CHUNK];
    ssize_t n = read(r->fd[ERR], chunk, sizeof chunk);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) shut(&r->fd[ERR]);
    size_t most = sizeof r->told, all = r->n_told + (n > 0 ? (size_t)n : 0), excess = all > most ? all - most : 0;
    memmove(r->told, r->told + excess, r->n_told -= excess);
    for (ssize_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)chunk[i];
        r->told[r->n_told++] = (char)(c < 0x20 || c == 0x7f ? ' ' : c);
    }
}

/* One wait and what it brought. *idle: nothing to read. */
static enum status attend(struct run *r, int milliseconds, bool *idle)
{
    struct pollfd p[STREAMS] = {{r->fd[IN], POLLOUT, 0}, {r->fd[OUT], POLLIN, 0}, {r->fd[ERR], POLLIN, 0}};
    *idle = false;
    int n = poll(p, STREAMS, milliseconds);
    if (n < 0) return errno == EINTR ? OK : FAIL(ERR_IO, "reward.command: poll: %s", strerror(errno));
    *idle = !p[OUT].revents && !p[ERR].revents;
    if (p[ERR].revents) take_err(r);
    if (p[OUT].revents) TRY(take_out(r));
    if (p[IN].revents) TRY(feed(r));
    return OK;
}

/* Until it has ended and its output is read. A descendant that keeps the streams open is not waited for. */
static enum status converse(struct run *r)
{
    double end = time_now() + r->c->timeout_s;
    bool ended = false, idle = false;
    while (!ended || (!idle && (r->fd[OUT] >= 0 || r->fd[ERR] >= 0))) {
        double left = end - time_now();
        if (left <= 0) return FAIL(ERR_IO, "reward.command did not end within reward.timeout_s=%g: %d of %d rewards",
                                   r->c->timeout_s, r->got, r->n);
        bool silent = r->fd[OUT] < 0 && r->fd[ERR] < 0;
        int most = ended ? 0 : silent ? 1 : 20, wait = left * 1000 < most ? (int)(left * 1000) + 1 : most;
        TRY(attend(r, wait, &idle));
        if (ended) continue;
        /* left as a zombie, so that its number stays that of its process group until that is killed */
        r->end.si_pid = 0;
        if (waitid(P_PID, (id_t)r->pid, &r->end, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
            return FAIL(ERR_IO, "reward.command: waiting for it: %s", strerror(errno));
        if (r->end.si_pid == r->pid) ended = true, idle = false;
    }
    return OK;
}

/* A descendant may hold the output's end: what was read of the last line counts. */
static enum status judge(struct run *r)
{
    int status = r->end.si_status;
    if (r->end.si_code != CLD_EXITED)
        return FAIL(ERR_IO, "reward.command was ended by signal %d (%s)", status, strsignal(status));
    if (status != 0) return FAIL(ERR_IO, "reward.command ended with status %d", status);
    if (r->digits > 0) TRY(end_line(r));
    if (r->got < r->n) return FAIL(ERR_FORMAT, "reward.command printed %d lines for %d samples", r->got, r->n);
    return OK;
}

/* The message of a failure with what the program said so far. */
static enum status with_stderr(struct run *r, enum status s)
{
    enum { MOST_CHUNKS = 64 };
    char message[512];
    for (int i = 0; i < MOST_CHUNKS && r->fd[ERR] >= 0; i++) take_err(r);
    int n = (int)r->n_told;
    while (n > 0 && r->told[n - 1] == ' ') n--;
    snprintf(message, sizeof message, "%s", status_message());
    return FAIL(s, "%s; its stderr: %s%.*s", message, n ? "" : "(empty)", n, r->told);
}

enum status reward_command_run(const struct reward_command *c, int n, const struct reward_sample *s, double *out)
{
    struct run r = {.c = c, .fd = {-1, -1, -1}, .n = n, .out = out};
    enum status st = OK;
    for (int i = 0; i < n && !st; i++) st = add_line(&r.input, &s[i]);
    if (!st) st = start(&r);
    if (!st) {
        st = converse(&r);
        if (!st) st = judge(&r);
        if (st) st = with_stderr(&r, st);
    }
    if (r.pid > 0) {
        kill(-r.pid, SIGKILL);
        waitpid(r.pid, NULL, 0);
    }
    for (int i = 0; i < STREAMS; i++) shut(&r.fd[i]);
    text_free(&r.input);
    return st;
}
