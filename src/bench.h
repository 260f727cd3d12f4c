/* m3 bench: this machine's numbers. Every part prints a table, or one JSON object a row.
 *
 *   ops      each op of the op table at one layer's shapes, with its share of the measured ceilings
 *   train    tokens/s of the demo's step, with its time by stage
 *   decode   tokens/s of generating, one sequence and 32 at a time
 *   comm     collectives over all ranks            io   the local disk, raw and through the spill
 */
#ifndef BENCH_H
#define BENCH_H
#include "comm.h"
#include "ops.h"

struct bench {
    const struct ops *ops;
    struct stream *stream;
    struct group world;
    const char *device;
    bool json;
    bool wide;                      /* the full model's shapes on one of 32 GPUs instead of the demo's */
    double seconds;                 /* a row is measured for at least so long */
    const char *dir;                /* a folder of the bench's own, on rank 0's disk */
    const char *local_dir;          /* where `io` measures */
    double peak_flops, peak_bytes;  /* measured: a large product, a large copy */
};

struct bench_row {
    const char *part, *name, *shape;
    double seconds;                 /* of one call */
    double flops, bytes;            /* of one call; 0: not said */
    double tokens_s;                /* 0: not said */
};

/* Prints one row on rank 0; a share is that of the nearer ceiling. */
void bench_print(const struct bench *b, const struct bench_row *r);

/* Finds the ceilings, then every row of the op table. */
enum status bench_ops(struct bench *b);
enum status bench_train(struct bench *b);
enum status bench_decode(struct bench *b);
enum status bench_comm(struct bench *b);
enum status bench_io(struct bench *b);
#endif
