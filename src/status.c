#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Thread_local char message[2048];
static _Thread_local char where[512];

static struct {
    int rank;
    int fd;
    double start;
} logger = {0, -1, 0};

int status_exit_code(enum status s)
{
    switch (s) {
    case OK: return 0;
    case ERR_USAGE:
    case ERR_CONFIG: return 2;
    case ERR_GATE: return 3;
    case ERR_STOPPED: return 75;
    default: return 1;
    }
}

static const char *base_name(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

enum status status_fail(enum status s, const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    snprintf(where, sizeof where, "%s:%d", base_name(file), line);
    return s;
}

enum status status_trace(enum status s, const char *file, int line)
{
    size_t n = strlen(where);
    if (n + 1 < sizeof where) snprintf(where + n, sizeof where - n, " < %s:%d", base_name(file), line);
    return s;
}

enum status status_prefix(enum status s, const char *fmt, ...)
{
    char text[sizeof message], head[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(text, message, sizeof text);
    size_t n = (size_t)snprintf(message, sizeof message, "%s: ", head), room = sizeof message - n - 1;
    size_t len = strnlen(text, room);
    memcpy(message + n, text, len);
    message[n + len] = 0;
    return s;
}

const char *status_message(void) { return message; }
const char *status_where(void) { return where; }

double time_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum status log_open(int rank, const char *path)
{
    if (logger.start == 0) logger.start = time_now();
    logger.rank = rank;
    if (logger.fd >= 0) close(logger.fd);
    logger.fd = -1;
    if (!path) return OK;
    logger.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (logger.fd < 0) return FAIL(ERR_IO, "%s: cannot open the log: %s", path, strerror(errno));
    return OK;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const tag[] = {"debug: ", "", "warning: ", "error: "};
    char line[4096];
    if (logger.start == 0) logger.start = time_now();
    int n = snprintf(line, sizeof line, "[%d] +%.1fs %s", logger.rank, time_now() - logger.start, tag[level]);
    va_list ap;
    va_start(ap, fmt);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    line[n++] = '\n';
    /* One write a line keeps the lines of several ranks whole. A log that cannot be written must not stop training. */
    ssize_t done = 0;
    if (level >= LOG_WARN || (logger.rank == 0 && level >= LOG_INFO)) {
        static const char clear[] = "\r\033[K"; /* a progress line may stand there */
        if (isatty(STDERR_FILENO)) done = write(STDERR_FILENO, clear, sizeof clear - 1);
        done = write(STDERR_FILENO, line, (size_t)n);
    }
    if (logger.fd >= 0) done = write(logger.fd, line, (size_t)n);
    (void)done;
}
