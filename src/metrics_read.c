/* metrics.jsonl read back: for the report, and to cut it where a run resumes. */
#include "json.h"
#include "metrics.h"
#include "textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE ((size_t)4 << 30)
enum { MAX_SERIES = 1024 };

/* The line [*at, ...) of a text of n bytes without its end; false at the end and for a line that has no end. */
static bool next_line(const char *text, size_t n, size_t *at, const char **line, size_t *len)
{
    if (*at >= n) return false;
    const char *end = memchr(text + *at, '\n', n - *at);
    if (!end) return false;
    *line = text + *at;
    *len = (size_t)(end - *line);
    *at += *len + 1;
    return true;
}

/* A metrics object with its step, or NULL. */
static json_t *parse(const char *line, size_t len, int64_t *step)
{
    json_t *o = json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *s = json_is_object(o) ? json_object_get(o, "step") : NULL;
    if (json_is_integer(s) && json_integer_value(s) >= 0) {
        *step = json_integer_value(s);
        return o;
    }
    json_decref(o);
    return NULL;
}

static enum status path_of(char *path, size_t size, const char *dir, const char *name)
{
    if (snprintf(path, size, "%s/%s", dir, name) < (int)size) return OK;
    return FAIL(ERR_IO, "the path is too long: %.200s...", dir);
}

/* Splits the text in place: kept lines move to the front, the others to `other`. Returns the bytes kept. */
static size_t split(char *text, size_t n, int64_t step, char *other, size_t *n_other)
{
    size_t at = 0, kept = 0;
    const char *line;
    size_t len;
    *n_other = 0;
    while (next_line(text, n, &at, &line, &len)) {
        int64_t s;
        json_t *o = parse(line, len, &s);
        if (o && s <= step) {
            memmove(text + kept, line, len + 1);
            kept += len + 1;
        } else {
            memcpy(other + *n_other, line, len + 1);
            *n_other += len + 1;
        }
        json_decref(o);
    }
    if (at < n) { /* the end of a run that was killed while it wrote */
        memcpy(other + *n_other, text + at, n - at);
        *n_other += n - at;
        other[(*n_other)++] = '\n';
    }
    return kept;
}

enum status metrics_truncate(const char *dir, int64_t step)
{
    char path[4096], discarded[4096];
    TRY(path_of(path, sizeof path, dir, "metrics.jsonl"));
    TRY(path_of(discarded, sizeof discarded, dir, "metrics.discarded.jsonl"));
    if (access(path, F_OK)) return OK;
    char *text;
    size_t n, n_other;
    TRY(json_read_bytes(&text, &n, path, MAX_FILE));
    char *other = malloc(n + 1);
    enum status s = other ? OK : FAIL(ERR_MEMORY, "%s: no memory for %zu bytes", path, n);
    if (!s) {
        size_t kept = split(text, n, step, other, &n_other);
        /* First the copy, then the cut: a crash between the two leaves lines twice, never lost. */
        if (n_other) s = textfile_append(discarded, other, n_other);
        if (n_other && !s) s = textfile_replace(path, text, kept);
        if (n_other && !s)
            log_info("%s: lines beyond step %lld moved to metrics.discarded.jsonl", path, (long long)step);
    }
    free(other);
    free(text);
    return s;
}

const struct series *metrics_series(const struct metrics_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->series[i].name, name)) return &t->series[i];
    return NULL;
}

static enum status series_of(struct metrics_table *t, const char *name, int guess, struct series **out)
{
    if (guess < t->n && !strcmp(t->series[guess].name, name)) { /* lines have the same keys in the same order */
        *out = &t->series[guess];
        return OK;
    }
    *out = (struct series *)metrics_series(t, name);
    if (*out) return OK;
    if (t->n >= MAX_SERIES) return FAIL(ERR_FORMAT, "more than %d different names", (int)MAX_SERIES);
    if ((t->n & (t->n - 1)) == 0) {
        struct series *s = realloc(t->series, (t->n ? 2 * (size_t)t->n : 1) * sizeof *s);
        if (!s) return FAIL(ERR_MEMORY, "no memory for the metrics");
        t->series = s;
    }
    char *own = strdup(name);
    if (!own) return FAIL(ERR_MEMORY, "no memory for the metrics");
    *out = &t->series[t->n++];
    **out = (struct series){.name = own};
    return OK;
}

static enum status add_point(struct series *s, double step, double value)
{
    if ((s->n & (s->n - 1)) == 0) {
        size_t cap = s->n ? 2 * (size_t)s->n : 1;
        double *a = realloc(s->step, cap * sizeof *a);
        if (a) s->step = a;
        double *b = realloc(s->value, cap * sizeof *b);
        if (b) s->value = b;
        if (!a || !b) return FAIL(ERR_MEMORY, "no memory for the metrics");
    }
    s->step[s->n] = step;
    s->value[s->n++] = value;
    return OK;
}

static enum status add_line(struct metrics_table *t, json_t *o, int64_t step)
{
    const char *name;
    json_t *v;
    int place = 0;
    t->lines++;
    t->last_step = step;
    json_object_foreach(o, name, v) {
        struct series *s;
        if (!metrics_name_ok(name) || !(json_is_number(v) || json_is_null(v))) continue;
        TRY(series_of(t, name, place++, &s));
        TRY(add_point(s, (double)step, json_is_null(v) ? NAN : json_number_value(v)));
    }
    return OK;
}

static enum status read_lines(struct metrics_table *t, const char *text, size_t n)
{
    const char *line;
    size_t at = 0, len;
    while (next_line(text, n, &at, &line, &len)) {
        int64_t step;
        json_t *o = parse(line, len, &step);
        if (!o) {
            t->bad_lines++;
            continue;
        }
        enum status s = add_line(t, o, step);
        json_decref(o);
        if (s) return s;
    }
    return OK;
}

/* json_read_bytes() refuses a file that changes under it: a running job's file only grows, so read what is there. */
static enum status read_growing(char **text, size_t *n, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang */
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    enum status s = OK;
    *text = NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        s = FAIL(ERR_FORMAT, "%s: not a regular file", path);
    else if ((uint64_t)st.st_size > MAX_FILE)
        s = FAIL(ERR_FORMAT, "%s: %lld bytes, the limit is %zu", path, (long long)st.st_size, MAX_FILE);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        s = FAIL(ERR_MEMORY, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    while (!s && *n < (size_t)st.st_size) {
        ssize_t got = read(fd, *text + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) s = FAIL(ERR_IO, "%s: %s", path, strerror(errno));
        if (got <= 0) break;
        *n += (size_t)got;
    }
    close(fd);
    if (s) free(*text);
    return s;
}

enum status metrics_read(struct metrics_table *t, const char *path)
{
    struct stat st;
    char file[4096], *text;
    size_t n = 0;
    *t = (struct metrics_table){0};
    bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    if (folder)
        TRY(path_of(file, sizeof file, path, "metrics.jsonl"));
    else if (snprintf(file, sizeof file, "%s", path) >= (int)sizeof file)
        return FAIL(ERR_IO, "the path is too long: %.200s...", path);
    TRY(read_growing(&text, &n, file));
    enum status s = read_lines(t, text, n);
    free(text);
    if (!s && !t->lines)
        s = FAIL(ERR_FORMAT, "no line of metrics (%lld that are something else)", (long long)t->bad_lines);
    if (!s) return OK;
    metrics_table_free(t);
    return status_prefix(s, "%s", file);
}

void metrics_table_free(struct metrics_table *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->series[i].name);
        free(t->series[i].step);
        free(t->series[i].value);
    }
    free(t->series);
    *t = (struct metrics_table){0};
}
