#include "spill.h"

#include "fs.h"
#include "hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct region {
    int64_t offset, bytes;    /* in the file */
    uint64_t hash;
    bool written;
    char name[80];
};

struct spill {
    struct spill_tree tree;   /* lock >= 0 on the node's first rank only */
    char path[700];
    char warning[256];
    int fd, kinds, buckets;
    bool checksums;
    struct region *region;    /* [kinds][buckets] */
    struct io_queue *queue;
};

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t spill_round(int64_t n, enum dtype t) { return round_up(n * (int64_t)dtype_size(t), SPILL_ALIGN); }

/* Bytes of one dataset of one rank; at least one unit, so that every dataset has storage. */
static int64_t dataset_bytes(enum dtype t, const int64_t *elements, int buckets)
{
    int64_t sum = 0;
    for (int b = 0; b < buckets; b++) sum += spill_round(elements[b], t);
    return round_up(sum > 0 ? sum : 1, SPILL_DATASET_ALIGN);
}

int64_t spill_file_bytes(const struct spill_kind *kind, int kinds, const int64_t *elements, int buckets)
{
    int64_t sum = 0;
    for (int k = 0; k < kinds; k++) sum += dataset_bytes(kind[k].dtype, elements, buckets);
    return sum;
}

static enum status check_options(const struct spill_options *o)
{
    if (o->kinds < 1 || o->kinds > SPILL_MAX_KINDS)
        return FAIL(ERR_INTERNAL, "spill of %d kinds, 1 to %d allowed", o->kinds, SPILL_MAX_KINDS);
    int64_t sum = 0;
    for (int b = 0; b < o->buckets; b++)
        if (o->elements[b] < 0 || o->elements[b] > INT64_MAX / 64 || __builtin_add_overflow(sum, o->elements[b], &sum) ||
            sum > INT64_MAX / 64)
            return FAIL(ERR_INTERNAL, "spill bucket %d of %" PRId64 " elements", b, o->elements[b]);
    return OK;
}

/* What one rank tells the node's first: its number and the bytes of its datasets, and hears: their offsets. */
struct share {
    int64_t rank, kinds, bytes[SPILL_MAX_KINDS], offset[SPILL_MAX_KINDS];
};

static void dataset_name(char *out, size_t size, int64_t rank, const char *kind)
{
    snprintf(out, size, "/rank_%04" PRId64 "/%s", rank, kind);
}

static enum status reserve(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    enum status s = bytes < 0 ? FAIL(ERR_IO, "%s: cannot reserve: %s", path, strerror(errno)) : OK;
    if (!s) s = fs_reserve(fd, path, bytes, true);
    if (fd >= 0) close(fd);
    return s;
}

static enum status read_offsets(const char *path, const struct spill_options *o, struct share *share, int ranks)
{
    struct h5file *f;
    char name[80];
    enum status s = OK;
    TRY(h5_open_serial(&f, path, false));
    for (int r = 0; r < ranks && !s; r++)
        for (int k = 0; k < o->kinds && !s; k++) {
            dataset_name(name, sizeof name, share[r].rank, o->kind[k].name);
            s = h5_offset(f, name, &share[r].offset[k]);
            if (!s && share[r].offset[k] % SPILL_ALIGN)
                s = FAIL(ERR_INTERNAL, "%s: %s at %" PRId64 ", no multiple of %d", path, name, share[r].offset[k], SPILL_ALIGN);
        }
    return h5_close(&f, s);
}

/* The file with all datasets of the node, with real blocks. First rank only. */
static enum status create_file(struct spill *s, const struct spill_options *o, struct share *share, int ranks)
{
    int n = ranks * o->kinds;
    int64_t total = 0;
    char (*name)[80] = malloc((size_t)n * sizeof *name);
    struct h5_dataset *set = calloc((size_t)n, sizeof *set);
    enum status st = name && set ? OK : FAIL(ERR_MEMORY, "spill: table of %d datasets", n);
    for (int r = 0; r < ranks && !st; r++)
        for (int k = 0; k < o->kinds; k++) {
            int i = r * o->kinds + k;
            enum dtype t = o->kind[k].dtype;
            dataset_name(name[i], sizeof *name, share[r].rank, o->kind[k].name);
            set[i] = (struct h5_dataset){name[i], t, 1, {share[r].bytes[k] / (int64_t)dtype_size(t)}};
            total += share[r].bytes[k];
        }
    if (!st) st = fs_need(s->tree.path, total);
    if (!st) st = h5_create(s->path, set, n, false);
    if (!st) st = reserve(s->path);
    if (!st) st = read_offsets(s->path, o, share, ranks);
    free(name);
    free(set);
    return st;
}

static enum status take_and_create(struct spill *s, const struct spill_options *o, struct share *share, int ranks)
{
    for (int r = 0; r < ranks; r++)
        if (share[r].kinds != o->kinds)
            return FAIL(ERR_INTERNAL, "spill: rank %" PRId64 " has %" PRId64 " kinds, rank %" PRId64 " has %d",
                        share[r].rank, share[r].kinds, share[0].rank, o->kinds);
    TRY(spill_tree_take(&s->tree, o->dir, o->run));
    if (s->tree.stale) log_info("removed %d spill folders of dead runs in %s", s->tree.stale, o->dir);
    snprintf(s->path, sizeof s->path, "%s/state.h5", s->tree.path);
    return create_file(s, o, share, ranks);
}

static enum status open_file(struct spill *s, const char *dir)
{
    enum fs_kind kind;
    const char *name;
    TRY(fs_kind(s->tree.path, &kind, &name));
    size_t at = 0;
    if (kind != FS_LOCAL)
        at = (size_t)snprintf(s->warning, sizeof s->warning, "the spill folder is on %s: %s", name,
                              kind == FS_MEMORY ? "it takes the memory it should save" : "a local disk is faster");
    s->fd = open(s->path, O_RDWR | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    if (s->fd < 0 && errno == EINVAL) {
        snprintf(s->warning + at, sizeof s->warning - at, "%sdirect I/O is refused there, the page cache is used",
                 at ? "; " : "");
        s->fd = open(s->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    if (s->fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", s->path, strerror(errno));
    if (s->warning[0] && s->tree.lock >= 0) log_warn("%s: %s", dir, s->warning);
    return OK;
}

static enum status carve(struct spill *s, const struct spill_options *o, const struct share *mine)
{
    s->kinds = o->kinds;
    s->buckets = o->buckets;
    s->checksums = o->checksums;
    s->region = calloc((size_t)o->kinds * (size_t)o->buckets + 1, sizeof *s->region);
    if (!s->region) return FAIL(ERR_MEMORY, "spill: %d x %d regions", o->kinds, o->buckets);
    for (int k = 0; k < o->kinds; k++) {
        int64_t at = mine->offset[k];
        for (int b = 0; b < o->buckets; b++) {
            struct region *r = &s->region[(size_t)k * (size_t)o->buckets + (size_t)b];
            r->offset = at;
            r->bytes = spill_round(o->elements[b], o->kind[k].dtype);
            snprintf(r->name, sizeof r->name, "/rank_%04d/%.40s bucket %d", o->rank, o->kind[k].name, b);
            at += r->bytes;
        }
    }
    return OK;
}

static enum status create_all(struct spill *s, const struct spill_options *o)
{
    int rank, size;
    MPI_Comm_rank(o->node, &rank);
    MPI_Comm_size(o->node, &size);
    struct share mine = {.rank = o->rank, .kinds = o->kinds}, *all = NULL;
    enum status st = check_options(o);
    for (int k = 0; k < o->kinds && !st; k++) mine.bytes[k] = dataset_bytes(o->kind[k].dtype, o->elements, o->buckets);
    if (!st && rank == 0 && !(all = calloc((size_t)size, sizeof *all))) st = FAIL(ERR_MEMORY, "spill: %d shares", size);
    TRY_GOTO(st, done, h5_agree(o->node, "spill", st));
    MPI_Gather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, 0, o->node);
    if (rank == 0) st = take_and_create(s, o, all, size);
    TRY_GOTO(st, done, h5_agree(o->node, "spill", st));
    MPI_Scatter(all, sizeof mine, MPI_BYTE, &mine, sizeof mine, MPI_BYTE, 0, o->node);
    MPI_Bcast(s->path, sizeof s->path, MPI_CHAR, 0, o->node);
    MPI_Bcast(s->tree.path, sizeof s->tree.path, MPI_CHAR, 0, o->node);
    st = carve(s, o, &mine);
    if (!st) st = open_file(s, o->dir);
    if (!st) st = io_queue_create(&s->queue);
    st = h5_agree(o->node, "spill", st);
done:
    free(all);
    return st;
}

enum status spill_create(struct spill **out, const struct spill_options *o)
{
    struct spill *s = calloc(1, sizeof *s);
    *out = NULL;
    TRY(h5_agree(o->node, "spill", s ? OK : FAIL(ERR_MEMORY, "spill: handle")));
    s->tree.lock = s->fd = -1;
    enum status st = create_all(s, o);
    if (st) spill_destroy(&s);
    *out = s;
    return st;
}

void spill_destroy(struct spill **out)
{
    struct spill *s = *out;
    if (!s) return;
    io_queue_destroy(&s->queue);
    if (s->fd >= 0) close(s->fd);
    spill_tree_drop(&s->tree);
    free(s->region);
    free(s);
    *out = NULL;
}

static enum status region_of(struct spill *s, int kind, int bucket, struct region **r)
{
    if (kind < 0 || kind >= s->kinds || bucket < 0 || bucket >= s->buckets)
        return FAIL(ERR_INTERNAL, "spill: kind %d of %d, bucket %d of %d", kind, s->kinds, bucket, s->buckets);
    *r = &s->region[(size_t)kind * (size_t)s->buckets + (size_t)bucket];
    return OK;
}

int64_t spill_bytes(const struct spill *s, int kind, int bucket)
{
    return s->region[(size_t)kind * (size_t)s->buckets + (size_t)bucket].bytes;
}

static enum status submit(struct spill *s, enum io_kind what, struct region *r, void *buffer, int64_t *ticket)
{
    if ((uintptr_t)buffer % SPILL_ALIGN)
        return FAIL(ERR_INTERNAL, "%s: buffer at %p, no multiple of %d", r->name, buffer, SPILL_ALIGN);
    struct io_job job = {.kind = what, .fd = s->fd, .offset = r->offset, .buffer = buffer, .bytes = r->bytes,
                         .name = r->name, .hash = s->checksums ? &r->hash : NULL};
    return io_queue_submit(s->queue, &job, ticket);
}

enum status spill_read(struct spill *s, int kind, int bucket, void *buffer, int64_t *ticket)
{
    struct region *r = NULL;
    TRY(region_of(s, kind, bucket, &r));
    if (!r->written) return FAIL(ERR_INTERNAL, "%s: read before it was written", r->name);
    return submit(s, IO_READ, r, buffer, ticket);
}

enum status spill_write(struct spill *s, int kind, int bucket, void *buffer, int64_t *ticket)
{
    struct region *r = NULL;
    TRY(region_of(s, kind, bucket, &r));
    TRY(submit(s, IO_WRITE, r, buffer, ticket));
    r->written = true;
    return OK;
}

enum status spill_wait(struct spill *s, int64_t ticket) { return io_queue_wait(s->queue, ticket); }
struct io_queue *spill_queue(struct spill *s) { return s->queue; }
const char *spill_path(const struct spill *s) { return s->path; }
const char *spill_warning(const struct spill *s) { return s->warning; }
