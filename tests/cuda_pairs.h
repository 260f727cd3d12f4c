/* The op table of a device beside the CPU's: every tensor of a case exists three times, on the host (t[0]) and twice on
 * the device (t[1], t[2]), with the same contents; a case runs an op once on each and compares: t[1] with t[0] within a
 * tolerance, t[2] with t[1] bit for bit. Outputs start as NaN bytes, so that what an op leaves out is seen. */
#ifndef CUDA_PAIRS_H
#define CUDA_PAIRS_H
#include "device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 3, PAIRS_MAX = 64 };

struct pair {
    struct tensor t[SIDES];
    const char *name;
};

struct bench {
    const struct ops *ops[SIDES];
    struct stream *stream[SIDES];
    struct pair pair[PAIRS_MAX]; /* of the case under way */
    int pairs;
    uint64_t seed;
    int passed, failed;
    double worst;      /* relative error of the case under way */
    char message[512]; /* its failure, "" while it is fine */
};

static inline uint64_t pair_hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline double pair_uniform(struct bench *b) { return (double)(pair_hash(b->seed++) >> 11) * 0x1p-52 - 1.0; }
static inline int pair_below(struct bench *b, int n) { return (int)(pair_hash(b->seed++) % (uint64_t)n); }

static inline void pair_fail(struct bench *b, const char *what, enum status s)
{
    if (!b->message[0]) snprintf(b->message, sizeof b->message, "%s: %s %s", what, s ? status_message() : "",
                                 s ? status_where() : "");
}
#define PAIR_TRY(b, call)                                                                                              \
    do {                                                                                                               \
        enum status s_ = (call);                                                                                       \
        if (s_) pair_fail((b), #call, s_);                                                                             \
    } while (0)

/* A pair whose host contents the caller fills before pair_upload(). `ld` 0: contiguous. */
static inline struct pair *pair_new(struct bench *b, const char *name, enum dtype type, int64_t d0, int64_t d1, int64_t d2,
                                    int64_t ld)
{
    struct pair *p = &b->pair[b->pairs++];
    p->name = name;
    int rank = d2 ? 3 : d1 ? 2 : 1;
    for (int i = 0; i < SIDES; i++) {
        struct tensor t = tensor_view(NULL, type, i ? PLACE_DEVICE : PLACE_HOST, rank, d0, d1 ? d1 : 1, d2 ? d2 : 1, 1);
        if (ld) t.ld = ld;
        size_t bytes = (size_t)(t.dim[0] * t.ld) * dtype_size(type);
        PAIR_TRY(b, b->ops[i]->alloc(&t.data, bytes ? bytes : 256, t.place));
        p->t[i] = t;
    }
    return p;
}

static inline struct tensor pair_all(struct tensor t) /* gaps between strided rows included */
{
    return tensor_view(t.data, t.dtype, t.place, 1, t.dim[0] * t.ld, 1, 1, 1);
}

static inline struct pair *pair_upload(struct bench *b, struct pair *p)
{
    for (int i = 1; i < SIDES; i++) {
        PAIR_TRY(b, b->ops[i]->copy(pair_all(p->t[i]), pair_all(p->t[0]), b->stream[i]));
        PAIR_TRY(b, b->ops[i]->wait(b->stream[i]));
    }
    return p;
}

static inline void pair_set(struct tensor t, int64_t i, double x)
{
    if (t.dtype == DT_F32) ((float *)t.data)[i] = (float)x;
    else if (t.dtype == DT_BF16) ((uint16_t *)t.data)[i] = bf16_from_float((float)x);
    else if (t.dtype == DT_F64) ((double *)t.data)[i] = x;
    else ((int32_t *)t.data)[i] = (int32_t)x;
}
static inline double pair_get(struct tensor t, int64_t i)
{
    if (t.dtype == DT_F32) return (double)((float *)t.data)[i];
    if (t.dtype == DT_BF16) return (double)float_from_bf16(((uint16_t *)t.data)[i]);
    if (t.dtype == DT_F64) return ((double *)t.data)[i];
    return ((int32_t *)t.data)[i];
}

/* Uniform in [-scale, scale), on a grid of 1/steps when steps is not 0 (sums of products are exact then). */
static inline struct pair *pair_random(struct bench *b, const char *name, enum dtype type, int64_t d0, int64_t d1,
                                       int64_t d2, int64_t ld, double scale, int steps)
{
    struct pair *p = pair_new(b, name, type, d0, d1, d2, ld);
    for (int64_t i = 0; i < p->t[0].dim[0] * p->t[0].ld; i++) {
        double x = pair_uniform(b) * scale;
        pair_set(p->t[0], i, steps ? floor(x * steps) / steps : x);
    }
    return pair_upload(b, p);
}
static inline struct pair *pair_in(struct bench *b, const char *name, enum dtype type, int64_t d0, int64_t d1, int64_t d2)
{
    return pair_random(b, name, type, d0, d1, d2, 0, 1, 0);
}
/* Every byte 0xff: NaN, or -1. */
static inline struct pair *pair_out(struct bench *b, const char *name, enum dtype type, int64_t d0, int64_t d1, int64_t d2,
                                    int64_t ld)
{
    struct pair *p = pair_new(b, name, type, d0, d1, d2, ld);
    size_t bytes = tensor_bytes(pair_all(p->t[0]));
    memset(p->t[0].data, type == DT_I32 ? 0x7e : 0xff, bytes);
    return pair_upload(b, p);
}
static inline struct pair *pair_ints(struct bench *b, const char *name, const int32_t *v, int64_t n)
{
    struct pair *p = pair_new(b, name, DT_I32, n, 0, 0, 0);
    if (n) memcpy(p->t[0].data, v, (size_t)n * sizeof *v);
    return pair_upload(b, p);
}
/* Scratch of each side's own size, poisoned. */
static inline struct tensor pair_work(struct bench *b, int side, size_t bytes)
{
    struct pair *p = &b->pair[b->pairs++];
    memset(p, 0, sizeof *p);
    struct tensor t = tensor_view(NULL, DT_U8, side ? PLACE_DEVICE : PLACE_HOST, 1, (int64_t)bytes, 1, 1, 1);
    PAIR_TRY(b, b->ops[side]->alloc(&t.data, bytes ? bytes : 256, t.place));
    if (bytes) PAIR_TRY(b, b->ops[side]->zero(t, b->stream[side]));
    p->t[side] = t;
    return t;
}

/* Device contents of a side on the host (malloc). */
static inline struct tensor pair_fetch(struct bench *b, struct tensor t)
{
    struct tensor all = pair_all(t), host = all;
    size_t bytes = tensor_bytes(all);
    host.data = malloc(bytes ? bytes : 1);
    host.place = PLACE_HOST;
    PAIR_TRY(b, b->ops[1]->copy(host, all, b->stream[1]));
    PAIR_TRY(b, b->ops[1]->wait(b->stream[1]));
    host.ld = t.ld;
    for (int i = 0; i < TENSOR_MAX_RANK; i++) host.dim[i] = t.dim[i];
    return host;
}

/* ||device - host|| <= tol * ||host||, and the second device run gave the same bytes (gaps between rows included, which
 * must be untouched on every side). tol 0: equal. */
static inline void pair_check(struct bench *b, const struct pair *p, double tol)
{
    struct tensor one = pair_fetch(b, p->t[1]), two = pair_fetch(b, p->t[2]), host = p->t[0];
    int64_t row = tensor_row(host), bad = -1;
    double diff = 0, norm = 0;
    for (int64_t r = 0; r < host.dim[0]; r++)
        for (int64_t c = 0; c < row; c++) {
            double x = pair_get(one, r * host.ld + c), y = pair_get(host, r * host.ld + c), d = x - y;
            if (x == y || (x != x && y != y)) d = 0;
            if (!(fabs(d) <= tol * (fabs(y) + 1)) && bad < 0) bad = r * host.ld + c;
            diff += d * d;
            norm += y == y ? y * y : 0;
        }
    double relative = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    if (!(relative <= b->worst)) b->worst = relative;
    if (!(relative <= tol) && !b->message[0])
        snprintf(b->message, sizeof b->message, "%s: relative error %.3g > %.3g, at %lld: %.9g, expected %.9g", p->name,
                 relative, tol, (long long)bad, bad < 0 ? 0 : pair_get(one, bad), bad < 0 ? 0 : pair_get(host, bad));
    size_t bytes = tensor_bytes(pair_all(p->t[1]));
    if (memcmp(one.data, two.data, bytes) && !b->message[0])
        snprintf(b->message, sizeof b->message, "%s: a second run gave other bits", p->name);
    free(one.data);
    free(two.data);
}

static inline void pair_end(struct bench *b, const char *format, const char *type, const char *shape)
{
    PAIR_TRY(b, b->ops[1]->wait(b->stream[1]));
    printf("%-22s %-5s %-44s %9.2e  %s\n", format, type, shape, b->worst, b->message[0] ? b->message : "ok");
    fflush(stdout);
    if (b->message[0]) b->failed++;
    else b->passed++;
    for (int i = 0; i < b->pairs; i++)
        for (int s = 0; s < SIDES; s++)
            if (b->pair[i].t[s].data) b->ops[s]->release(b->pair[i].t[s].data, b->pair[i].t[s].place);
    b->pairs = 0;
    b->worst = 0;
    b->message[0] = 0;
}

#define EACH(b, i) for (int i = 0; i < SIDES && !(b)->message[0]; i++)
/* Runs an op of side i: OP(add, y->t[i], ...). */
#define OP(name, ...) PAIR_TRY(b, b->ops[i]->name(__VA_ARGS__, b->stream[i]))
#endif
