#include "report.h"
#include "gnuplot.h"

#include <stdlib.h>
#include <string.h>

#define TIMEOUT_S 60

/* The last part of a path: "runs/sft/" is "sft". Borrowed from the path but for the slashes at its end. */
static const char *run_name(const char *path)
{
    const char *end = path + strlen(path), *start;
    while (end > path && end[-1] == '/') end--;
    for (start = end; start > path && start[-1] != '/'; start--) continue;
    return *start && *start != '.' ? start : path;
}

enum status report_read(struct report_data *d, const char *dir, const char *other)
{
    *d = (struct report_data){.name = {run_name(dir), other ? run_name(other) : NULL}, .n = 1};
    if (other && !strcmp(d->name[0], d->name[1])) d->name[0] = dir, d->name[1] = other;
    TRY(metrics_read(&d->table[0], dir));
    if (!other) return OK;
    d->n = 2;
    enum status s = metrics_read(&d->table[1], other);
    if (s) report_free(d);
    return s;
}

void report_free(struct report_data *d)
{
    for (int i = 0; i < d->n; i++) metrics_table_free(&d->table[i]);
    *d = (struct report_data){0};
}

static enum status draw(const struct report_data *d, const char *path, const char *panels)
{
    char *script;
    size_t n, len = strlen(path);
    bool svg = len > 4 && !strcmp(path + len - 4, ".svg");
    TRY(report_script(d, panels, svg, &script, &n));
    enum status s = gnuplot_run(script, n, path, TIMEOUT_S);
    free(script);
    return s;
}

enum status report_write(const char *dir, const char *other, const char *path, const char *panels)
{
    struct report_data d;
    TRY(report_read(&d, dir, other));
    enum status s = draw(&d, path, panels);
    report_free(&d);
    return s;
}

enum status report_run(const char *dir, const char *other, const char *picture, const char *panels, FILE *out)
{
    struct report_data d;
    char path[4096];
    if (!picture && snprintf(path, sizeof path, "%s/report.png", dir) >= (int)sizeof path)
        return FAIL(ERR_IO, "the path is too long: %.200s...", dir);
    TRY(report_read(&d, dir, other));
    report_text(&d, out);
    fflush(out);
    enum status s = draw(&d, picture ? picture : path, panels);
    report_free(&d);
    if (!s) fprintf(out, "\ncurves: %s\n", picture ? picture : path);
    return s;
}
