/* What the local disk gives, and what the spill makes of it, in one run: numbers of different runs do not compare. */
#ifndef IO_BENCH_H
#define IO_BENCH_H
#include "spill.h"

struct io_bench {
    int ranks;
    int64_t bytes;            /* of all ranks, moved by each measurement */
    bool direct;              /* direct I/O was available */
    double raw_write, raw_read;      /* bytes a second over all ranks: plain direct pwrite and pread, block by block */
    double spill_write, spill_read;  /* the same bytes through the spill's file and I/O thread */
    double step;              /* seconds of a pipelined pass: every bucket read and written back */
    double step_ratio;        /* step / (bytes / raw_read + bytes / raw_write) */
    char warning[256];        /* the spill's */
};

/* Every rank of `node` moves `bytes` (rounded to whole blocks) in blocks of `block` bytes (a multiple of 4096) below
 * `dir`, three rounds alternating raw and spill; the best round of each counts. Files are removed. ERR_IO, ERR_MEMORY.
 * *Collective over node.* */
enum status io_bench_run(struct io_bench *out, const char *dir, MPI_Comm node, int rank, int64_t bytes, int64_t block);
#endif
