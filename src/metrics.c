#include "metrics.h"
#include "textfile.h"
#include "value.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status metrics_open(struct metrics **out, const struct config *c, int64_t step)
{
    char path[4096];
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", c->run.dir) >= (int)sizeof path)
        return FAIL(ERR_IO, "run.dir is too long: %.200s...", c->run.dir);
    struct metrics *m = calloc(1, sizeof *m);
    char *own = strdup(path);
    if (!m || !own) {
        free(m);
        free(own);
        return FAIL(ERR_MEMORY, "no memory for the metrics");
    }
    m->path = own;
    m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (m->fd < 0) {
        enum status s = FAIL(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
        metrics_close(&m);
        return s;
    }
    progress_open(&m->progress, c->log.progress, c->log.every, step, c->train.steps);
    *out = m;
    return OK;
}

void metrics_close(struct metrics **m)
{
    if (!*m) return;
    progress_close(&(*m)->progress);
    if ((*m)->fd >= 0) close((*m)->fd);
    free((*m)->path);
    free(*m);
    *m = NULL;
}

void metrics_begin(struct metrics *m, int64_t step)
{
    if (!m) return;
    m->step = step;
    m->n = 0;
    m->bad[0] = 0;
}

bool metrics_name_ok(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n && !name[n] && n < METRICS_NAME && strcmp(name, "step") && strcmp(name, "non_finite");
}

static struct metric *find(const struct metrics *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->item[i].name, name)) return (struct metric *)&m->item[i];
    return NULL;
}

/* The item of this name, new or not; NULL when it cannot be taken. */
static struct metric *item_of(struct metrics *m, const char *name)
{
    struct metric *it = find(m, name);
    if (it) return it;
    if (!metrics_name_ok(name) || m->n >= METRICS_MAX) {
        snprintf(m->bad, sizeof m->bad, "%.60s", *name ? name : "(empty)");
        return NULL;
    }
    it = &m->item[m->n++];
    *it = (struct metric){0};
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

void metrics_add(struct metrics *m, const char *name, double x)
{
    struct metric *it = m ? item_of(m, name) : NULL;
    if (!it) return;
    it->is_int = false;
    it->x = x;
}

void metrics_add_int(struct metrics *m, const char *name, int64_t x)
{
    struct metric *it = m ? item_of(m, name) : NULL;
    if (!it) return;
    it->is_int = true;
    it->i = x;
}

void metrics_time(struct metrics *m, const char *stage, double start)
{
    char name[METRICS_NAME + 16];
    if (!m) return;
    snprintf(name, sizeof name, "time_%.*s_s", METRICS_NAME, stage);
    struct metric *it = item_of(m, name);
    if (it) it->x += time_now() - start;
}

void metrics_memory(struct metrics *m, const char *purpose, int64_t bytes)
{
    char name[METRICS_NAME + 16];
    snprintf(name, sizeof name, "memory_%.*s_bytes", METRICS_NAME, purpose);
    metrics_add_int(m, name, bytes);
}

void metrics_resident(struct metrics *m)
{
    long long pages = 0;
    FILE *f = m ? fopen("/proc/self/statm", "re") : NULL;
    if (!f) return;
    bool known = fscanf(f, "%*s %lld", &pages) == 1;
    fclose(f);
    if (known) metrics_add_int(m, "resident_bytes", pages * sysconf(_SC_PAGESIZE));
}

double metrics_get(const struct metrics *m, const char *name)
{
    const struct metric *it = m ? find(m, name) : NULL;
    if (!it) return NAN;
    return it->is_int ? (double)it->i : it->x;
}

/* The line with its end; returns its length. The largest one fits. */
enum { LINE_MAX_BYTES = 64 + METRICS_MAX * (METRICS_NAME + VALUE_FLOAT_CHARS + 4) };

static size_t format_line(const struct metrics *m, char *line)
{
    char number[VALUE_FLOAT_CHARS];
    int bad = 0;
    char *p = line + sprintf(line, "{\"step\":%lld", (long long)m->step);
    for (int i = 0; i < m->n; i++) {
        const struct metric *it = &m->item[i];
        if (it->is_int) {
            p += sprintf(p, ",\"%s\":%lld", it->name, (long long)it->i);
        } else if (isfinite(it->x)) {
            p += sprintf(p, ",\"%s\":%s", it->name, value_float_text(number, it->x));
        } else {
            p += sprintf(p, ",\"%s\":null", it->name);
            bad++;
        }
    }
    if (bad) p += sprintf(p, ",\"non_finite\":%d", bad);
    p += sprintf(p, "}\n");
    return (size_t)(p - line);
}

enum status metrics_write(struct metrics *m)
{
    if (!m) return OK;
    if (m->bad[0])
        return FAIL(ERR_INTERNAL, "metric '%s' cannot be written: a bad name, or more than %d in a step", m->bad,
                    (int)METRICS_MAX);
    char line[LINE_MAX_BYTES];
    size_t n = format_line(m, line);
    if (!textfile_append_fd(m->fd, line, n)) return FAIL(ERR_IO, "%s: cannot write: %s", m->path, strerror(errno));
    progress_show(&m->progress, (struct progress_view){.step = m->step,
                                                       .loss = metrics_get(m, "loss"),
                                                       .eval_loss = metrics_get(m, "eval_loss"),
                                                       .reward = metrics_get(m, "reward_mean"),
                                                       .grad_norm = metrics_get(m, "grad_norm"),
                                                       .tokens_per_s = metrics_get(m, "tokens_per_s")});
    return OK;
}
