/* The numbers of a step: collected by name in order, written as one JSON object a line to metrics.jsonl of the run
 * folder, and shown on the progress line. Only rank 0 has a struct metrics; every function takes NULL and does nothing.
 *
 * A value that is not finite is written as null, and the line says how many there are ("non_finite": 2): the file is
 * valid JSON whatever happens. Names are those of the issues: loss, grad_norm, tokens_per_s, time_<stage>_s,
 * memory_<purpose>_bytes, ... */
#ifndef METRICS_H
#define METRICS_H
#include "progress.h"

enum { METRICS_MAX = 256, METRICS_NAME = 64 };

struct metric {
    char name[METRICS_NAME];
    bool is_int;
    double x;
    int64_t i;
};

struct metrics {
    char *path;
    int fd;
    int64_t step;
    struct metric item[METRICS_MAX];
    int n;
    char bad[METRICS_NAME];   /* a name that could not be taken; "" when all were */
    struct progress progress;
};

/* Opens metrics.jsonl of c->run.dir for appending; `step` is what the run has done already. ERR_IO. */
enum status metrics_open(struct metrics **m, const struct config *c, int64_t step);
void metrics_close(struct metrics **m);

/* Starts the line of step number `step` (from 1). */
void metrics_begin(struct metrics *m, int64_t step);
/* Adds a number; a second one of the same name replaces the first. Names are letters, digits and _. */
void metrics_add(struct metrics *m, const char *name, double x);
void metrics_add_int(struct metrics *m, const char *name, int64_t x);
/* time_<stage>_s += time_now() - start. */
void metrics_time(struct metrics *m, const char *stage, double start);
/* memory_<purpose>_bytes = bytes. */
void metrics_memory(struct metrics *m, const char *purpose, int64_t bytes);
/* resident_bytes = what the process holds in memory now, where the system says so. */
void metrics_resident(struct metrics *m);
bool metrics_name_ok(const char *name);
/* What was added under this name in this step; NAN when nothing was (or m is NULL). */
double metrics_get(const struct metrics *m, const char *name);
/* Writes the line in one write and shows the progress. ERR_IO when the disk is full (the file keeps whole lines only);
 * ERR_INTERNAL when a name was bad or there were more than METRICS_MAX. */
enum status metrics_write(struct metrics *m);

/* Lines of `dir`/metrics.jsonl beyond `step`, and lines that are no metrics (a torn end), move to
 * metrics.discarded.jsonl. No file: nothing to do. */
enum status metrics_truncate(const char *dir, int64_t step);

/* Read back: one series a name, in the order of first appearance, points in the file's order. null is NAN. */
struct series {
    char *name;
    double *step, *value; /* [n] */
    int64_t n;
};

struct metrics_table {
    struct series *series; /* [n] without "step" */
    int n;
    int64_t lines, bad_lines, last_step;
};

/* Reads `path`, a run folder or a metrics file, which may be growing: a line without its end is left out. Lines that
 * are no metrics are counted in bad_lines, names that metrics_add() would not take are passed over. ERR_IO, or
 * ERR_FORMAT when there is no good line at all. */
enum status metrics_read(struct metrics_table *t, const char *path);
void metrics_table_free(struct metrics_table *t);
const struct series *metrics_series(const struct metrics_table *t, const char *name);
#endif
