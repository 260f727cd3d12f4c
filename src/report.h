/* How a run went: a table with small curves as text, and one page of curves as a picture. Works on a running job. */
#ifndef REPORT_H
#define REPORT_H
#include "metrics.h"

/* Prints the table of DIR's metrics (beside OTHER's, unless NULL) on `out` and draws `picture`, or DIR/report.png where that
 * is NULL. The table is there also when the picture fails, as without gnuplot: then the failure is returned. `panels` as
 * below. ERR_IO, ERR_FORMAT, ERR_USAGE. */
enum status report_run(const char *dir, const char *other, const char *picture, const char *panels, FILE *out);

/* Draws the picture alone, .svg or (any other name) PNG. `panels`: which and in which order, "loss,reward,gap", or
 * NULL: all that the run has numbers for. ERR_USAGE for an unknown panel, ERR_FORMAT when there is nothing to draw. */
enum status report_write(const char *dir, const char *other, const char *path, const char *panels);

/* The pieces, over runs that were read already. */
struct report_data {
    const char *name[2];             /* of the runs */
    struct metrics_table table[2];
    int n;                           /* runs: 1 or 2 */
};
enum status report_read(struct report_data *d, const char *dir, const char *other);
void report_free(struct report_data *d);
void report_text(const struct report_data *d, FILE *out);
/* The gnuplot script, the caller's to free. `svg`: the terminal. */
enum status report_script(const struct report_data *d, const char *panels, bool svg, char **script, size_t *n);

/* A curve of `n` values in `width` characters of eight heights; the text has room for 3 * width + 1 bytes. */
void report_sparkline(char *text, int width, const double *value, int64_t n);
#endif
