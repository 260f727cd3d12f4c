#include "io_bench.h"

#include "fs.h"
#include "hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 3, BUFFERS = 3 };

struct bench {
    MPI_Comm node;
    int fd;
    bool direct;
    int64_t block;
    int blocks;
    char path[PATH_MAX];
    struct spill *spill;
    char *buffer[BUFFERS];
};

/* Times `fn` on all ranks together: *seconds is the slowest rank's, the smallest over the rounds so far. */
static enum status timed(struct bench *b, enum status (*fn)(struct bench *), double *seconds)
{
    MPI_Barrier(b->node);
    double start = time_now();
    enum status s = fn(b);
    double mine = time_now() - start, slowest = mine;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, b->node);
    if (*seconds == 0 || slowest < *seconds) *seconds = slowest;
    return h5_agree(b->node, "I/O bench", s);
}

static enum status raw_write(struct bench *b)
{
    for (int i = 0; i < b->blocks; i++) TRY(io_write(b->fd, b->buffer[0], b->block, i * b->block, b->path));
    if (!b->direct && fdatasync(b->fd)) return FAIL(ERR_IO, "%s: sync: %s", b->path, strerror(errno));
    return OK;
}

static enum status raw_read(struct bench *b)
{
    for (int i = 0; i < b->blocks; i++) TRY(io_read(b->fd, b->buffer[0], b->block, i * b->block, b->path));
    return OK;
}

/* Two buffers, so that the next transfer is queued while one runs. */
static enum status pass(struct bench *b, bool write)
{
    int64_t ticket[2];
    for (int i = 0; i < b->blocks + 2; i++) {
        if (i >= 2) TRY(spill_wait(b->spill, ticket[i % 2]));
        if (i >= b->blocks) continue;
        if (write) TRY(spill_write(b->spill, 0, i, b->buffer[i % 2], &ticket[i % 2]));
        else TRY(spill_read(b->spill, 0, i, b->buffer[i % 2], &ticket[i % 2]));
    }
    return OK;
}

static enum status spill_write_all(struct bench *b) { return pass(b, true); }
static enum status spill_read_all(struct bench *b) { return pass(b, false); }

/* Read i + 1 ahead while i is written back, as the optimizer does, with nothing computed in between. */
static enum status step(struct bench *b)
{
    int64_t get[BUFFERS], put[BUFFERS];
    TRY(spill_read(b->spill, 0, 0, b->buffer[0], &get[0]));
    for (int i = 0; i < b->blocks; i++) {
        int here = i % BUFFERS, next = (i + 1) % BUFFERS;
        if (i + 1 >= BUFFERS) TRY(spill_wait(b->spill, put[next]));
        if (i + 1 < b->blocks) TRY(spill_read(b->spill, 0, i + 1, b->buffer[next], &get[next]));
        TRY(spill_wait(b->spill, get[here]));
        TRY(spill_write(b->spill, 0, i, b->buffer[here], &put[here]));
    }
    return io_queue_wait_all(spill_queue(b->spill));
}

static enum status open_raw(struct bench *b, const char *dir, int rank)
{
    TRY(fs_mkdirs(dir));
    if (snprintf(b->path, sizeof b->path, "%s/m3-bench-%ld-%d", dir, (long)getpid(), rank) >= (int)sizeof b->path)
        return FAIL(ERR_IO, "%.200s...: the path is too long", dir);
    b->direct = true;
    b->fd = open(b->path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    if (b->fd < 0 && errno == EINVAL) {
        b->direct = false;
        unlink(b->path);
        b->fd = open(b->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (b->fd < 0) return FAIL(ERR_IO, "%s: cannot create: %s", b->path, strerror(errno));
    unlink(b->path);
    return fs_reserve(b->fd, b->path, b->block * b->blocks, true);
}

static enum status open_all(struct bench *b, const char *dir, int rank)
{
    for (int i = 0; i < BUFFERS; i++) {
        b->buffer[i] = aligned_alloc(SPILL_ALIGN, (size_t)b->block);
        if (!b->buffer[i]) return FAIL(ERR_MEMORY, "I/O bench: a block of %" PRId64 " bytes", b->block);
        for (int64_t k = 0; k < b->block; k++) b->buffer[i][k] = (char)(k * 2654435761u >> 13);
    }
    return open_raw(b, dir, rank);
}

static enum status create_spill(struct bench *b, const char *dir, int rank)
{
    static const struct spill_kind kind = {"bench", DT_U8};
    int64_t *elements = malloc((size_t)b->blocks * sizeof *elements);
    enum status s = elements ? OK : FAIL(ERR_MEMORY, "I/O bench: %d blocks", b->blocks);
    TRY(h5_agree(b->node, "I/O bench", s));
    for (int i = 0; i < b->blocks; i++) elements[i] = b->block;
    struct spill_options o = {.dir = dir, .run = "bench", .node = b->node, .rank = rank, .kind = &kind, .kinds = 1,
                              .elements = elements, .buckets = b->blocks};
    s = spill_create(&b->spill, &o);
    free(elements);
    return s;
}

static enum status measure(struct bench *b, struct io_bench *out)
{
    double t[5] = {0}, once = 0;
    TRY(timed(b, raw_write, &once));        /* the first touch of reserved blocks costs extra, here and there */
    TRY(timed(b, spill_write_all, &once));
    for (int i = 0; i < ROUNDS; i++) {
        TRY(timed(b, raw_write, &t[0]));
        TRY(timed(b, spill_write_all, &t[1]));
        TRY(timed(b, raw_read, &t[2]));
        TRY(timed(b, spill_read_all, &t[3]));
        TRY(timed(b, step, &t[4]));
    }
    double bytes = (double)out->bytes;
    out->raw_write = bytes / t[0];
    out->spill_write = bytes / t[1];
    out->raw_read = bytes / t[2];
    out->spill_read = bytes / t[3];
    out->step = t[4];
    out->step_ratio = t[4] / (t[0] + t[2]);
    return OK;
}

enum status io_bench_run(struct io_bench *out, const char *dir, MPI_Comm node, int rank, int64_t bytes, int64_t block)
{
    struct bench b = {.node = node, .fd = -1, .block = block};
    *out = (struct io_bench){.ranks = 1};
    if (block <= 0 || block % SPILL_ALIGN || bytes < block || bytes / block > 1 << 20)
        return FAIL(ERR_INTERNAL, "I/O bench: %" PRId64 " bytes in blocks of %" PRId64, bytes, block);
    b.blocks = (int)(bytes / block);
    MPI_Comm_size(node, &out->ranks);
    out->bytes = out->ranks * b.blocks * block;
    enum status s = h5_agree(node, "I/O bench", open_all(&b, dir, rank));
    if (!s) s = create_spill(&b, dir, rank);
    if (!s) s = measure(&b, out);
    out->direct = b.direct;
    if (b.spill) snprintf(out->warning, sizeof out->warning, "%s", spill_warning(b.spill));
    spill_destroy(&b.spill);
    for (int i = 0; i < BUFFERS; i++) free(b.buffer[i]);
    if (b.fd >= 0) close(b.fd);
    return s;
}
