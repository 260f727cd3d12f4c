/* One I/O thread a rank and its FIFO of jobs. The step never waits for the disk where it can compute instead:
 *
 *     main thread   | update 0 | update 1 | update 2 | ...          wait(read i), compute, submit(write i, read i+2)
 *     I/O thread    read 0 read 1 | write 0 read 2 | write 1 read 3 | ...
 *
 * Jobs run in the order of submission, so a read behind a write of the same range sees what was written. A job's error
 * comes back, with its message, where its ticket is waited for. Every ticket must be waited for once. One thread
 * submits and waits; the I/O thread runs the jobs, which is also where collective-free HDF5 work can go (IO_CALL). */
#ifndef IO_QUEUE_H
#define IO_QUEUE_H
#include "status.h"
#include <stdint.h>

struct io_queue; /* opaque */

enum io_kind { IO_READ, IO_WRITE, IO_CALL };

struct io_job {
    enum io_kind kind;
    /* IO_READ, IO_WRITE */
    int fd;
    int64_t offset;           /* in the file */
    void *buffer;             /* belongs to the job until its ticket is waited for */
    int64_t bytes;
    const char *name;         /* for messages; must live as long as the job */
    uint64_t *hash;           /* NULL, or: a write stores XXH3-64 of its bytes, a read compares (ERR_FORMAT, `name`) */
    /* IO_CALL: fn(ctx) on the I/O thread */
    enum status (*fn)(void *ctx);
    void *ctx;
};

struct io_stats {
    int64_t read, written;    /* bytes since the start */
    double busy;              /* seconds inside jobs */
};

enum { IO_QUEUE_ROOM = 1024 }; /* jobs submitted and not yet waited for */

/* Starts the thread; it takes no signals. ERR_MEMORY. */
enum status io_queue_create(struct io_queue **q);
/* Runs what is queued, ends the thread, frees *q. Jobs never waited for lose their errors. */
void io_queue_destroy(struct io_queue **q);
/* ERR_INTERNAL when IO_QUEUE_ROOM jobs were not waited for. */
enum status io_queue_submit(struct io_queue *q, const struct io_job *job, int64_t *ticket);
/* The job's status and message. ERR_INTERNAL for a ticket that was waited for already or never given. */
enum status io_queue_wait(struct io_queue *q, int64_t ticket);
/* Waits for all; the first failure. */
enum status io_queue_wait_all(struct io_queue *q);
struct io_stats io_queue_stats(struct io_queue *q);

/* The whole range, in calls of at most 1 GiB. ERR_IO with `name`, offset, and the system's reason; a file that ends
 * inside the range is an error too. */
enum status io_read(int fd, void *buffer, int64_t bytes, int64_t offset, const char *name);
enum status io_write(int fd, const void *buffer, int64_t bytes, int64_t offset, const char *name);
#endif
