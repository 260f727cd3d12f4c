#include "io_queue.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { CALL_BYTES = 1 << 30 };

enum slot_state { FREE, QUEUED, DONE };

struct slot {
    enum slot_state state;
    int64_t ticket;
    struct io_job job;
    enum status status;
    char message[512];
};

struct io_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    bool ending;
    int64_t next_ticket, next_run;
    struct io_stats stats;
    struct slot slot[IO_QUEUE_ROOM]; /* ticket t is in slot t % IO_QUEUE_ROOM */
};

enum status io_read(int fd, void *buffer, int64_t bytes, int64_t offset, const char *name)
{
    for (int64_t at = 0; at < bytes;) {
        int64_t n = bytes - at > CALL_BYTES ? CALL_BYTES : bytes - at;
        ssize_t got = pread(fd, (char *)buffer + at, (size_t)n, offset + at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return FAIL(ERR_IO, "%s: reading %" PRId64 " bytes at %" PRId64 ": %s", name, n, offset + at, strerror(errno));
        if (got == 0) return FAIL(ERR_IO, "%s: the file ends at %" PRId64 ", %" PRId64 " bytes too early", name,
                                  offset + at, bytes - at);
        at += got;
    }
    return OK;
}

enum status io_write(int fd, const void *buffer, int64_t bytes, int64_t offset, const char *name)
{
    for (int64_t at = 0; at < bytes;) {
        int64_t n = bytes - at > CALL_BYTES ? CALL_BYTES : bytes - at;
        ssize_t put = pwrite(fd, (const char *)buffer + at, (size_t)n, offset + at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0)
            return FAIL(ERR_IO, "%s: writing %" PRId64 " bytes at %" PRId64 ": %s", name, n, offset + at,
                        put ? strerror(errno) : "nothing was written");
        at += put;
    }
    return OK;
}

static enum status run_job(const struct io_job *j)
{
    if (j->kind == IO_CALL) return j->fn(j->ctx);
    if (j->kind == IO_WRITE) {
        if (j->hash) *j->hash = XXH3_64bits(j->buffer, (size_t)j->bytes);
        return io_write(j->fd, j->buffer, j->bytes, j->offset, j->name);
    }
    TRY(io_read(j->fd, j->buffer, j->bytes, j->offset, j->name));
    if (!j->hash) return OK;
    uint64_t hash = XXH3_64bits(j->buffer, (size_t)j->bytes);
    if (hash != *j->hash)
        return FAIL(ERR_FORMAT, "%s is damaged: checksum %016" PRIx64 ", written was %016" PRIx64, j->name, hash, *j->hash);
    return OK;
}

/* Called and returns with the lock held; the job itself runs without it. */
static void run_next(struct io_queue *q)
{
    struct slot *s = &q->slot[q->next_run % IO_QUEUE_ROOM];
    pthread_mutex_unlock(&q->lock);
    double start = time_now();
    s->status = run_job(&s->job);
    if (s->status) snprintf(s->message, sizeof s->message, "%.*s", (int)sizeof s->message - 1, status_message());
    double spent = time_now() - start;
    pthread_mutex_lock(&q->lock);
    q->stats.busy += spent;
    if (s->job.kind == IO_READ) q->stats.read += s->job.bytes;
    if (s->job.kind == IO_WRITE) q->stats.written += s->job.bytes;
    s->state = DONE;
    q->next_run++;
    pthread_cond_broadcast(&q->done);
}

static void *io_thread(void *ctx)
{
    struct io_queue *q = ctx;
    pthread_mutex_lock(&q->lock);
    while (!q->ending || q->next_run < q->next_ticket) {
        if (q->next_run < q->next_ticket) run_next(q);
        else pthread_cond_wait(&q->submitted, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

enum status io_queue_create(struct io_queue **out)
{
    struct io_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q) return FAIL(ERR_MEMORY, "I/O queue of %zu bytes", sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->submitted, NULL);
    pthread_cond_init(&q->done, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&q->thread, NULL, io_thread, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(q);
        return FAIL(ERR_MEMORY, "I/O thread: %s", strerror(failed));
    }
    *out = q;
    return OK;
}

void io_queue_destroy(struct io_queue **out)
{
    struct io_queue *q = *out;
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->ending = true;
    pthread_cond_signal(&q->submitted);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->submitted);
    pthread_cond_destroy(&q->done);
    free(q);
    *out = NULL;
}

enum status io_queue_submit(struct io_queue *q, const struct io_job *job, int64_t *ticket)
{
    pthread_mutex_lock(&q->lock);
    struct slot *s = &q->slot[q->next_ticket % IO_QUEUE_ROOM];
    bool room = s->state == FREE;
    if (room) {
        s->state = QUEUED;
        s->ticket = *ticket = q->next_ticket++;
        s->job = *job;
        pthread_cond_signal(&q->submitted);
    }
    pthread_mutex_unlock(&q->lock);
    if (!room) return FAIL(ERR_INTERNAL, "I/O queue: a job was not waited for, %d jobs ago", IO_QUEUE_ROOM);
    return OK;
}

enum status io_queue_wait(struct io_queue *q, int64_t ticket)
{
    if (ticket < 0) return FAIL(ERR_INTERNAL, "I/O queue: ticket %" PRId64, ticket);
    struct slot *s = &q->slot[ticket % IO_QUEUE_ROOM];
    char message[sizeof s->message];
    pthread_mutex_lock(&q->lock);
    bool known = s->state != FREE && s->ticket == ticket;
    while (known && s->state != DONE) pthread_cond_wait(&q->done, &q->lock);
    enum status result = known ? s->status : ERR_INTERNAL;
    if (known) {
        memcpy(message, s->message, sizeof message);
        s->state = FREE;
    }
    pthread_mutex_unlock(&q->lock);
    if (!known) return FAIL(ERR_INTERNAL, "I/O queue: ticket %" PRId64 " is not outstanding", ticket);
    return result ? FAIL(result, "%s", message) : OK;
}

enum status io_queue_wait_all(struct io_queue *q)
{
    enum status first = OK;
    char message[512] = "";
    int64_t end = q->next_ticket, from = end > IO_QUEUE_ROOM ? end - IO_QUEUE_ROOM : 0;
    for (int64_t t = from; t < end; t++) {
        const struct slot *slot = &q->slot[t % IO_QUEUE_ROOM];
        pthread_mutex_lock(&q->lock);
        bool outstanding = slot->state != FREE && slot->ticket == t;
        pthread_mutex_unlock(&q->lock);
        enum status s = outstanding ? io_queue_wait(q, t) : OK;
        if (s && !first) {
            first = s;
            snprintf(message, sizeof message, "%.*s", (int)sizeof message - 1, status_message());
        }
    }
    return first ? FAIL(first, "%s", message) : OK;
}

struct io_stats io_queue_stats(struct io_queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct io_stats s = q->stats;
    pthread_mutex_unlock(&q->lock);
    return s;
}
