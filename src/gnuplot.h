/* One run of gnuplot: a script in, a picture file out. */
#ifndef GNUPLOT_H
#define GNUPLOT_H
#include "status.h"

/* Runs `gnuplot` of the PATH without a shell and without the user's start-up files. What the script plots goes to its
 * standard output, which becomes `path` (through PATH.tmp) when gnuplot succeeded within timeout_s seconds. ERR_IO: it
 * is not installed, took too long, failed (with what it said), or the file cannot be written. */
enum status gnuplot_run(const char *script, size_t n, const char *path, double timeout_s);
#endif
