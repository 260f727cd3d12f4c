#include "sync.h"

#include "hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A hyperslab of a global array. */
struct slab {
    int64_t start[3], count[3];
};

/* Part of a parameter that travels in one bucket: indices [lo, hi) of its first dimension. */
struct window {
    const struct param *p, *q; /* in the training and in the rollout table */
    int64_t lo, hi;
};

static bool overlap(const struct slab *a, const struct slab *b, struct slab *out)
{
    for (int i = 0; i < 3; i++) {
        int64_t lo = a->start[i] > b->start[i] ? a->start[i] : b->start[i];
        int64_t ha = a->start[i] + a->count[i], hb = b->start[i] + b->count[i], hi = ha < hb ? ha : hb;
        if (hi <= lo) return false;
        out->start[i] = lo;
        out->count[i] = hi - lo;
    }
    return true;
}

static int64_t volume(const struct slab *s) { return s->count[0] * s->count[1] * s->count[2]; }

/* What the rank at `at` holds of the window; false: nothing. */
static bool held(const struct param *p, const struct model *m, int rank, const struct window *w, struct slab *out)
{
    struct mesh at;
    struct slab mine, cut = {{w->lo, 0, 0}, {w->hi - w->lo, p->dim[1], p->dim[2]}};
    mesh_at(&at, m->mesh, &m->arch, rank);
    return param_shard(p, &m->arch, &at, mine.start, mine.count) && overlap(&mine, &cut, out);
}

/* Who of the ranks that hold `want` (the same shard as rank `holder`) sends it to `dest`: dest itself if it can, else the
 * replicas in turn, so that the load spreads. */
static int sender_for(const struct sync *s, const struct window *w, const struct slab *shard, int dest)
{
    int world = s->from->mesh->world.size, replicas = 0, pick;
    struct slab other;
    if (held(w->p, s->from, dest, w, &other) && memcmp(&other, shard, sizeof other) == 0) return dest;
    for (int turn = 0; turn < 2; turn++) {
        int seen = 0;
        pick = replicas ? dest % replicas : 0;
        for (int r = 0; r < world; r++) {
            if (!held(w->p, s->from, r, w, &other) || memcmp(&other, shard, sizeof other) != 0) continue;
            if (turn == 1 && seen == pick) return r;
            seen++;
        }
        replicas = seen;
    }
    return -1;
}

/* View of a slab inside this rank's storage, outer index by outer index: calls f for each [rows, cols] rectangle. */
typedef enum status (*rect_fn)(struct sync *s, struct tensor view, int64_t *at);
static enum status each_rect(struct sync *s, const struct model *m, const struct param *p, const struct slab *part,
                             int64_t *at, rect_fn f)
{
    bool x = param_is_experts(p);
    int rd = x ? 1 : 0;
    for (int64_t e = 0; e < (x ? part->count[0] : 1); e++) {
        struct tensor w = param_weight(m, p, x ? part->start[0] - p->start[0] + e : 0);
        w = tensor_rows(w, part->start[rd] - p->start[rd], part->count[rd]);
        if (p->rank > 1) w = tensor_cols(w, part->start[rd + 1] - p->start[rd + 1], part->count[rd + 1]);
        TRY(f(s, w, at));
    }
    return OK;
}

static struct tensor staging(struct tensor buffer, int64_t at, struct tensor like, enum dtype dtype)
{
    return tensor_view((char *)buffer.data + at, dtype, PLACE_HOST, 2, like.dim[0], like.rank > 1 ? like.dim[1] : 1, 1, 1);
}

static struct tensor as_matrix(struct tensor t)
{
    if (t.rank > 1) return t;
    return tensor_view(t.data, t.dtype, t.place, 2, t.dim[0], 1, 1, 1);
}

/* Trained weights -> send buffer, in the rollout's dtype. */
static enum status pack(struct sync *s, struct tensor view, int64_t *at)
{
    struct model *m = s->from;
    enum dtype dtype = view.dtype == DT_F32 && s->to_dtype == DT_BF16 ? DT_BF16 : view.dtype;
    if (s->keep_f32) dtype = DT_F32;
    struct tensor to = staging(s->send, *at, view, dtype);
    view = as_matrix(view);
    if (dtype == view.dtype) TRY(m->ops->copy(to, view, m->stream));
    else if (view.place == PLACE_HOST) TRY(ops_cpu.cast(to, view, NULL));
    else {
        struct tensor raw = staging(s->cast, 0, view, view.dtype);
        TRY(m->ops->copy(raw, view, m->stream));
        TRY(m->ops->wait(m->stream));
        TRY(ops_cpu.cast(to, raw, NULL));
    }
    TRY(m->ops->wait(m->stream));
    *at += (int64_t)tensor_bytes(to);
    return OK;
}

/* Receive buffer -> rollout weights. */
static enum status unpack(struct sync *s, struct tensor view, int64_t *at)
{
    struct model *m = s->to;
    struct tensor from = staging(s->recv, *at, view, view.dtype);
    TRY(m->ops->copy(as_matrix(view), from, m->stream));
    TRY(m->ops->wait(m->stream));
    *at += (int64_t)tensor_bytes(from);
    return OK;
}

static int64_t element_bytes(const struct sync *s, const struct param *p)
{
    return p->store == STORE_F32 ? 4 : (int64_t)dtype_size(s->to->dtype);
}

/* All windows of one bucket: counts, then packing by destination, the exchange, unpacking by source. */
static enum status exchange(struct sync *s, const struct window *w, int n)
{
    struct group *world = (struct group *)&s->from->mesh->world;
    int size = world->size, me = world->rank;
    int64_t at = 0;
    struct slab mine, theirs, part;
    memset(s->send_rows, 0, (size_t)size * sizeof *s->send_rows);
    memset(s->recv_rows, 0, (size_t)size * sizeof *s->recv_rows);
    for (int d = 0; d < size; d++) {
        int64_t from = at;
        for (int i = 0; i < n; i++) {
            if (!held(w[i].p, s->from, me, &w[i], &mine) || !held(w[i].q, s->to, d, &w[i], &theirs)) continue;
            if (!overlap(&mine, &theirs, &part) || sender_for(s, &w[i], &mine, d) != me) continue;
            s->to_dtype = s->to->dtype;
            s->keep_f32 = w[i].p->store == STORE_F32;
            if (at + volume(&part) * element_bytes(s, w[i].p) > (int64_t)tensor_bytes(s->send))
                return FAIL(ERR_INTERNAL, "weight sync: %s overflows a bucket of %zu bytes", w[i].p->name,
                            tensor_bytes(s->send));
            TRY(each_rect(s, s->from, w[i].p, &part, &at, pack));
        }
        s->send_rows[d] = at - from;
    }
    /* what comes, from whom: the same arithmetic seen from here */
    int64_t total = 0;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < n; i++)
            if (held(w[i].q, s->to, me, &w[i], &mine) && held(w[i].p, s->from, r, &w[i], &theirs) &&
                overlap(&theirs, &mine, &part) && sender_for(s, &w[i], &theirs, me) == r)
                s->recv_rows[r] += volume(&part) * element_bytes(s, w[i].p), total += volume(&part) * element_bytes(s, w[i].p);
    TRY(comm_all_to_all(world, tensor_flat(s->recv, 0, total), tensor_flat(s->send, 0, at), s->send_rows, s->recv_rows,
                        NULL));
    at = 0;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < n; i++)
            if (held(w[i].q, s->to, me, &w[i], &mine) && held(w[i].p, s->from, r, &w[i], &theirs) &&
                overlap(&theirs, &mine, &part) && sender_for(s, &w[i], &theirs, me) == r)
                TRY(each_rect(s, s->to, w[i].q, &part, &at, unpack));
    return OK;
}

static bool same_layout(const struct model *a, const struct model *b)
{
    return a->dtype == b->dtype && a->mesh->tp == b->mesh->tp && a->mesh->pp == b->mesh->pp && a->mesh->ep == b->mesh->ep &&
           a->mesh->dp == b->mesh->dp;
}

/* A window is at least one index of a first dimension. It may go to everybody, so that large jobs take smaller ones. */
static int64_t window_of(const struct model *from, int world, int64_t bucket_bytes)
{
    int64_t most = ((int64_t)8 << 30) / world, largest = bucket_bytes < most ? bucket_bytes : most;
    for (int i = 0; i < from->n_params; i++) {
        int64_t one = from->params[i].dim[1] * from->params[i].dim[2] * 4;
        if (one > largest) largest = one;
    }
    return largest;
}

int64_t sync_host_bytes(const struct model *from, int world, int64_t bucket_bytes)
{
    return window_of(from, world, bucket_bytes) * (world + 2);
}

enum status sync_create(struct sync *s, struct model *from, struct model *to, int64_t bucket_bytes)
{
    *s = (struct sync){.from = from, .to = to, .aliased = same_layout(from, to)};
    if (s->aliased) {
        model_alias(to, from);
        return OK;
    }
    TRY(model_alloc(to));
    s->window_bytes = window_of(from, from->mesh->world.size, bucket_bytes);
    int64_t bytes = s->window_bytes * from->mesh->world.size;
    void *block = malloc((size_t)(bytes + 2 * s->window_bytes));
    s->send_rows = calloc((size_t)from->mesh->world.size * 2, sizeof *s->send_rows);
    if (!block || !s->send_rows) return FAIL(ERR_MEMORY, "weight sync buffers of %" PRId64 " bytes", bytes);
    s->recv_rows = s->send_rows + from->mesh->world.size;
    s->send = tensor_view(block, DT_U8, PLACE_HOST, 1, bytes, 1, 1, 1);
    s->recv = tensor_view((char *)block + bytes, DT_U8, PLACE_HOST, 1, s->window_bytes, 1, 1, 1);
    s->cast = tensor_view((char *)block + bytes + s->window_bytes, DT_U8, PLACE_HOST, 1, s->window_bytes, 1, 1, 1);
    return OK;
}

void sync_destroy(struct sync *s)
{
    free(s->send.data);
    free(s->send_rows);
    *s = (struct sync){0};
}

enum status sync_weights(struct sync *s)
{
    enum { MAX_WINDOWS = 256 };
    struct window w[MAX_WINDOWS];
    int64_t bytes = 0;
    int n = 0;
    s->count++;
    if (s->aliased) return OK;
    for (int i = 0; i < s->from->n_params; i++) {
        const struct param *p = &s->from->params[i], *q = &s->to->params[i];
        int64_t one = p->dim[1] * p->dim[2] * 4, step = s->window_bytes / one;
        for (int64_t lo = 0; lo < p->dim[0]; lo += step) {
            int64_t hi = lo + step < p->dim[0] ? lo + step : p->dim[0];
            if (n == MAX_WINDOWS || bytes + (hi - lo) * one > s->window_bytes) {
                TRY(exchange(s, w, n));
                n = 0;
                bytes = 0;
            }
            w[n++] = (struct window){p, q, lo, hi};
            bytes += (hi - lo) * one;
        }
    }
    return exchange(s, w, n);
}

enum status sync_scribble(struct sync *s)
{
    if (s->aliased) return OK;
    for (int st = 0; st < STORE_COUNT; st++) {
        struct tensor t = s->to->store[st];
        int64_t n = tensor_count(t), chunk = 1 << 16;
        uint32_t pattern[1 << 14];
        for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++) pattern[i] = 0x7fc07fc0u; /* NaN in both dtypes */
        chunk = (int64_t)(sizeof pattern / dtype_size(t.dtype));
        for (int64_t at = 0; at < n; at += chunk) {
            int64_t m = n - at < chunk ? n - at : chunk;
            struct tensor from = tensor_view(pattern, t.dtype, PLACE_HOST, 1, m, 1, 1, 1);
            TRY(s->to->ops->copy(tensor_flat(t, at, m), from, s->to->stream));
            TRY(s->to->ops->wait(s->to->stream));
        }
    }
    return OK;
}

/* Every rollout rank's own shard is summed over the ranks that together hold one copy of the parameter. */
static enum status copy_hash(const struct model *m, const struct param *p, uint64_t here, uint64_t *whole)
{
    struct mesh *g = (struct mesh *)m->mesh;
    struct group *over = p->split == SPLIT_EXPERT ? &g->ep_group : p->split == SPLIT_NONE ? NULL : &g->tp_group;
    *whole = here;
    if (!over) return OK;
    return comm_all_reduce(over, tensor_view(whole, DT_I64, PLACE_HOST, 1, 1, 1, 1, 1), REDUCE_SUM);
}

enum status sync_check(struct sync *s)
{
    int n = s->from->n_params, bad = -1;
    uint64_t *want = calloc((size_t)n * 2, sizeof *want), *have = want + n;
    enum status st = want ? OK : FAIL(ERR_MEMORY, "hashes of %d parameters", n);
    TRY(comm_agree((struct group *)&s->from->mesh->world, st));
    st = model_hash(s->from, s->to->dtype, want);
    if (!st) st = model_hash_here(s->to, s->to->dtype, have);
    s->hash = 0;
    for (int i = 0; i < n && !st; i++) {
        const struct param *p = &s->to->params[i];
        s->hash = s->hash * 0x9e3779b97f4a7c15u + want[i];
        uint64_t whole, copies = 1;
        bool kv = p->split == SPLIT_KV || p->split == SPLIT_INDEX;
        if (kv && s->to->mesh->tp > s->to->arch.kv_heads) copies = (uint64_t)(s->to->mesh->tp / s->to->arch.kv_heads);
        st = copy_hash(s->to, p, have[i], &whole);
        if (!st && bad < 0 && whole != want[i] * copies) bad = i;
    }
    if (!st && bad >= 0)
        st = FAIL(ERR_GATE, "weight update %" PRId64 ": the rollout's %s is not what the trainer holds", s->count,
                  s->to->params[bad].name);
    free(want);
    return comm_agree((struct group *)&s->from->mesh->world, st);
}
