/* Moving the data: this thread reads and decodes into a ring of buffers, a second one writes, syncs and records. */
#include "convert_inner.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 6, SLOT_BYTES = 8 << 20 };

struct slot {
    int shard;
    const struct st_tensor *t;
    uint64_t offset;
    size_t bytes;
    bool last;                /* of its shard */
    char *data;
};

/* Slots [tail, head) wait to be written; the numbers only grow. */
struct ring {
    struct convert *c;
    struct slot slot[SLOTS];
    uint64_t head, tail;
    bool closed;              /* nothing more comes */
    enum status status;       /* of the writer; its message belongs to its thread, so it is kept here */
    char message[1024];
    pthread_mutex_t lock;
    pthread_cond_t more, room;
};

const char *convert_record_name(const struct convert *c, int shard, char name[80])
{
    char file[64];
    snprintf(name, 80, "%s.done", st_plan_name(&c->plan, shard, file));
    return name;
}

static enum status shard_path(const struct convert *c, int shard, char path[PATH_MAX])
{
    char name[64];
    if (snprintf(path, PATH_MAX, "%s/%s", c->tmp, st_plan_name(&c->plan, shard, name)) >= PATH_MAX)
        return FAIL(ERR_IO, "%s: the path is too long", c->tmp);
    return OK;
}

/* The record of a finished shard: conversion and checksum of its data in planned order, in hexadecimal. */
static enum status write_record(const struct convert *c, int shard, uint64_t sum)
{
    char path[PATH_MAX], tmp[PATH_MAX], name[80], text[64];
    int n = snprintf(text, sizeof text, "%016" PRIx64 " %016" PRIx64 "\n", c->id, sum);
    if (snprintf(path, sizeof path, "%s/%s", c->tmp, convert_record_name(c, shard, name)) >= (int)sizeof path ||
        snprintf(tmp, sizeof tmp, "%s/%s.tmp", c->tmp, name) >= (int)sizeof tmp)
        return FAIL(ERR_IO, "%s: the path is too long", c->tmp);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n && fsync(fd) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    if (ok && rename(tmp, path) == 0) return OK;
    if (ok) error = errno;
    unlink(tmp);
    return FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(error));
}

/* Writes slots until the ring is closed and empty. */
struct writer {
    struct st_out out;
    XXH3_state_t *hash;
    int shard;                /* that is open; -1: none */
};

static enum status write_slot(struct convert *c, struct writer *w, const struct slot *s)
{
    char path[PATH_MAX];
    if (s->shard != w->shard) {
        TRY(shard_path(c, s->shard, path));
        TRY(st_out_open(&w->out, &c->plan, s->shard, path));
        w->shard = s->shard;
        XXH3_64bits_reset(w->hash);
    }
    if (s->bytes) {
        TRY(st_out_write(&w->out, s->t, s->offset, s->data, s->bytes));
        XXH3_64bits_update(w->hash, s->data, s->bytes);
        /* Start the transfer to disk now, so that the sync at the end of the shard finds little left. */
        sync_file_range(w->out.fd, (off_t)(w->out.data_start + s->t->begin + s->offset), (off_t)s->bytes, SYNC_FILE_RANGE_WRITE);
    }
    if (!s->last) return OK;
    w->shard = -1;
    TRY(st_out_close(&w->out));
    TRY(write_record(c, s->shard, XXH3_64bits_digest(w->hash)));
    if (c->args->each_shard) c->args->each_shard(c->args->ctx, s->shard, c->plan.n_shards);
    return OK;
}

static void *writer_main(void *arg)
{
    struct ring *g = arg;
    struct writer w = {.out.fd = -1, .shard = -1, .hash = XXH3_createState()};
    enum status s = w.hash ? OK : FAIL(ERR_MEMORY, "no memory for a hash");
    pthread_mutex_lock(&g->lock);
    for (;;) {
        if (s) {
            g->status = s;
            snprintf(g->message, sizeof g->message, "%s", status_message());
            break;
        }
        while (g->head == g->tail && !g->closed) pthread_cond_wait(&g->more, &g->lock);
        if (g->head == g->tail) break;
        struct slot *slot = &g->slot[g->tail % SLOTS];
        pthread_mutex_unlock(&g->lock);
        s = write_slot(g->c, &w, slot);
        pthread_mutex_lock(&g->lock);
        g->tail++;
        pthread_cond_signal(&g->room);
    }
    pthread_cond_signal(&g->room);
    pthread_mutex_unlock(&g->lock);
    st_out_abort(&w.out);
    if (w.hash) XXH3_freeState(w.hash);
    return NULL;
}

/* The next free slot, or NULL when the writer has failed. */
static struct slot *take_slot(struct ring *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->head - g->tail == SLOTS && !g->status) pthread_cond_wait(&g->room, &g->lock);
    struct slot *s = g->status ? NULL : &g->slot[g->head % SLOTS];
    pthread_mutex_unlock(&g->lock);
    return s;
}

static void give_slot(struct ring *g)
{
    pthread_mutex_lock(&g->lock);
    g->head++;
    pthread_cond_signal(&g->more);
    pthread_mutex_unlock(&g->lock);
}

/* The next piece of a planned tensor from byte `at`: as much as a slot holds. */
static enum status fetch(const struct convert *c, int64_t i, uint64_t at, char *data, size_t *bytes)
{
    const struct convert_item *item = &c->items[i];
    uint64_t left = st_bytes(&c->plan.tensors[i]) - at;
    const struct release_tensor *t = item->decoded;
    if (!t) {
        *bytes = left < SLOT_BYTES ? (size_t)left : SLOT_BYTES;
        return release_read_raw(c->r, item->raw, at, *bytes, data);
    }
    int64_t first = (int64_t)(at / 2), row = first / t->cols, col = first % t->cols, rows = 1, cols = t->cols - col;
    if (col == 0 && t->cols <= SLOT_BYTES / 2) {
        rows = SLOT_BYTES / 2 / t->cols;
        if (rows > t->rows - row) rows = t->rows - row;
    } else if (cols > SLOT_BYTES / 2) cols = SLOT_BYTES / 2;
    *bytes = (size_t)(rows * cols) * 2;
    return release_read(c->r, t, row, rows, col, cols, DT_BF16, data);
}

/* What the terminal or the log shows: bytes of this rank's share, rate, time left. */
struct progress {
    const char *what;
    uint64_t done, total;
    double start, shown;
    bool terminal;
};

static void show_progress(struct progress *p, const struct convert *c, bool end)
{
    double now = time_now(), rate = (double)p->done / (now - p->start + 1e-9);
    if (c->rank || (!end && now - p->shown < (p->terminal ? 0.2 : 10))) return;
    p->shown = now;
    char line[160], share[32] = "";
    if (c->size > 1) snprintf(share, sizeof share, " (rank 0 of %d)", c->size);
    snprintf(line, sizeof line, "%s%s: %.2f of %.2f GB, %.2f GB/s, %.0f s left", p->what, share, (double)p->done / 1e9,
             (double)p->total / 1e9, rate / 1e9, (double)(p->total - p->done) / (rate + 1));
    if (p->terminal) fprintf(stderr, "\r%-100s%s", line, end ? "\n" : "");
    else log_info("%s", line);
}

static struct progress start_progress(const struct convert *c, const char *what, bool unfinished_only)
{
    struct progress p = {what, 0, 0, time_now(), time_now(), isatty(STDERR_FILENO)};
    for (int64_t i = 0; i < c->plan.count; i++) {
        int shard = c->plan.shard[i];
        if (shard % c->size == c->rank && !(unfinished_only && c->finished[shard])) p.total += st_bytes(&c->plan.tensors[i]);
    }
    return p;
}

/* Puts all pieces of shard `shard`, planned tensors [first, last), into the ring. */
static enum status read_shard(struct ring *g, int shard, int64_t first, int64_t last, struct progress *p)
{
    struct slot *s;
    for (int64_t i = first; i < last; i++)
        for (uint64_t at = 0; at < st_bytes(&g->c->plan.tensors[i]);) {
            if (!(s = take_slot(g))) return OK; /* the writer's failure is the one to report */
            *s = (struct slot){.shard = shard, .t = &g->c->plan.tensors[i], .offset = at, .data = s->data};
            TRY(fetch(g->c, i, at, s->data, &s->bytes));
            at += s->bytes;
            p->done += s->bytes;
            give_slot(g);
            show_progress(p, g->c, false);
        }
    if (!(s = take_slot(g))) return OK;
    *s = (struct slot){.shard = shard, .last = true, .data = s->data};
    give_slot(g);
    return OK;
}

static enum status read_all(struct ring *g)
{
    struct convert *c = g->c;
    struct progress p = start_progress(c, "convert", true);
    for (int64_t first = 0, last; first < c->plan.count; first = last) {
        int shard = c->plan.shard[first];
        for (last = first; last < c->plan.count && c->plan.shard[last] == shard;) last++;
        if (shard % c->size == c->rank && !c->finished[shard]) TRY(read_shard(g, shard, first, last, &p));
    }
    show_progress(&p, c, true);
    return OK;
}

static void close_ring(struct ring *g)
{
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    pthread_cond_signal(&g->more);
    pthread_mutex_unlock(&g->lock);
}

enum status convert_copy(struct convert *c)
{
    struct ring g = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .room = PTHREAD_COND_INITIALIZER};
    char *memory = malloc((size_t)SLOTS * SLOT_BYTES);
    pthread_t thread;
    if (!memory) return FAIL(ERR_MEMORY, "no memory for %d buffers of %d bytes", SLOTS, SLOT_BYTES);
    for (int i = 0; i < SLOTS; i++) g.slot[i].data = memory + (size_t)i * SLOT_BYTES;
    int error = pthread_create(&thread, NULL, writer_main, &g);
    if (error) {
        free(memory);
        return FAIL(ERR_MEMORY, "cannot start a thread: %s", strerror(error));
    }
    enum status s = read_all(&g);
    close_ring(&g);
    pthread_join(thread, NULL);
    free(memory);
    if (!s && g.status) s = FAIL(g.status, "%s", g.message);
    return s;
}

/* The written shard must have exactly the planned tensors in the planned places. */
static bool has_plan(const struct convert *c, int shard, const struct st_file *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->plan.count; i++) {
        const struct st_tensor *want = &c->plan.tensors[i], *t;
        if (c->plan.shard[i] != shard) continue;
        n++;
        t = st_find(f, want->name);
        if (!t || t->dtype != want->dtype || t->rank != want->rank || t->begin != want->begin || t->end != want->end ||
            memcmp(t->dim, want->dim, sizeof t->dim[0] * (size_t)t->rank))
            return false;
    }
    return n == f->count;
}

static enum status sum_shard(const struct convert *c, int shard, const struct st_file *f, char *buffer, uint64_t *sum)
{
    XXH3_state_t *h = XXH3_createState();
    enum status s = h ? OK : FAIL(ERR_MEMORY, "no memory for a hash");
    if (h) XXH3_64bits_reset(h);
    for (int64_t i = 0; i < c->plan.count && !s; i++) {
        const struct st_tensor *t = &c->plan.tensors[i];
        for (uint64_t at = 0; at < st_bytes(t) && c->plan.shard[i] == shard && !s;) {
            size_t n = st_bytes(t) - at < SLOT_BYTES ? (size_t)(st_bytes(t) - at) : SLOT_BYTES;
            s = st_read(f, t, at, n, buffer);
            XXH3_64bits_update(h, buffer, n);
            at += n;
        }
    }
    if (h) *sum = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return s;
}

enum status convert_check_record(const struct convert *c, int shard, bool *ok)
{
    char path[PATH_MAX], name[80], *text, *buffer;
    size_t len;
    uint64_t id, want, sum = 0;
    struct st_file f;
    *ok = false;
    if (snprintf(path, sizeof path, "%s/%s", c->tmp, convert_record_name(c, shard, name)) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", c->tmp);
    if (release_file_absent(path) || json_read_bytes(&text, &len, path, 64)) return OK;
    bool mine = sscanf(text, "%16" SCNx64 " %16" SCNx64, &id, &want) == 2 && id == c->id;
    free(text);
    TRY(shard_path(c, shard, path));
    if (!mine || st_open(&f, path)) return OK; /* what cannot be read is written again */
    buffer = malloc(SLOT_BYTES);
    *ok = buffer && has_plan(c, shard, &f) && sum_shard(c, shard, &f, buffer, &sum) == OK && sum == want;
    free(buffer);
    st_close(&f);
    return OK;
}

static enum status compare_tensor(const struct convert *c, int64_t i, const struct st_file *f, char *a, char *b, struct progress *p)
{
    const struct st_tensor *t = st_find(f, c->plan.tensors[i].name);
    for (uint64_t at = 0; t && at < st_bytes(t);) {
        size_t n;
        TRY(fetch(c, i, at, a, &n));
        TRY(st_read(f, t, at, n, b));
        for (size_t k = 0; memcmp(a, b, n) && k < n; k++)
            if (a[k] != b[k]) return FAIL(ERR_FORMAT, "%s: tensor %s differs from the source at byte %" PRIu64, f->path, t->name, at + k);
        at += n;
        p->done += n;
        show_progress(p, c, false);
    }
    return OK;
}

enum status convert_verify(struct convert *c)
{
    char path[PATH_MAX], *a = malloc(SLOT_BYTES), *b = malloc(SLOT_BYTES);
    struct progress p = start_progress(c, "verify", false);
    enum status s = a && b ? OK : FAIL(ERR_MEMORY, "no memory for buffers");
    for (int shard = c->rank; shard < c->plan.n_shards && !s; shard += c->size) {
        struct st_file f;
        s = shard_path(c, shard, path);
        if (!s) s = st_open(&f, path);
        if (s) break;
        if (!has_plan(c, shard, &f)) s = FAIL(ERR_FORMAT, "%s: holds other tensors than were written", path);
        for (int64_t i = 0; i < c->plan.count && !s; i++)
            if (c->plan.shard[i] == shard) s = compare_tensor(c, i, &f, a, b, &p);
        st_close(&f);
    }
    if (!s) show_progress(&p, c, true);
    free(a);
    free(b);
    return s;
}
