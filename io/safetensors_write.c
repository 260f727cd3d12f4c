#include "safetensors_write.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status st_plan_add(struct st_plan *p, const char *name, enum dtype dtype, int rank, const int64_t *dim)
{
    char text[128];
    if (!*name || strlen(name) >= ST_NAME_MAX || strcmp(name, "__metadata__") == 0)
        return FAIL(ERR_FORMAT, "\"%.64s\" cannot name a tensor", name);
    if (rank < 0 || rank > ST_MAX_RANK) return FAIL(ERR_FORMAT, "tensor %s: rank %d, the limit is %d", name, rank, ST_MAX_RANK);
    struct st_tensor t = {.dtype = dtype, .rank = rank};
    uint64_t bytes = dtype_size(dtype);
    for (int i = 0; i < rank; i++) {
        t.dim[i] = dim[i];
        if (dim[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)dim[i], &bytes) || bytes > INT64_MAX)
            return FAIL(ERR_FORMAT, "tensor %s: shape %s is not possible", name, st_shape_text(rank, dim, text));
    }
    if (p->count == p->room) {
        int64_t room = p->room ? 2 * p->room : 64;
        void *a = realloc(p->tensors, (size_t)room * sizeof *p->tensors);
        if (a) p->tensors = a;
        void *b = realloc(p->shard, (size_t)room * sizeof *p->shard);
        if (b) p->shard = b;
        if (!a || !b) return FAIL(ERR_MEMORY, "no memory for %" PRId64 " tensors", room);
        p->room = room;
    }
    t.end = bytes;
    t.name = strdup(name);
    if (!t.name) return FAIL(ERR_MEMORY, "no memory for tensor names");
    p->tensors[p->count++] = t;
    p->total += bytes;
    return OK;
}

void st_plan_destroy(struct st_plan *p)
{
    for (int64_t i = 0; i < p->count; i++) free(p->tensors[i].name);
    free(p->tensors);
    free(p->shard);
    *p = (struct st_plan){0};
}

/* Offsets in the shard [first, last): the widest elements first, so that every tensor is aligned to its own. */
static void place(struct st_plan *p, int64_t first, int64_t last)
{
    uint64_t at = 0;
    for (size_t width = 8; width; width /= 2)
        for (int64_t i = first; i < last; i++) {
            struct st_tensor *t = &p->tensors[i];
            if (dtype_size(t->dtype) != width) continue;
            t->end = at + st_bytes(t);
            t->begin = at;
            at = t->end;
        }
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static enum status check_unique(const struct st_plan *p)
{
    char **names = malloc(((size_t)p->count + 1) * sizeof *names);
    if (!names) return FAIL(ERR_MEMORY, "no memory for %" PRId64 " names", p->count);
    for (int64_t i = 0; i < p->count; i++) names[i] = p->tensors[i].name;
    qsort(names, (size_t)p->count, sizeof *names, by_text);
    enum status s = OK;
    for (int64_t i = 1; i < p->count && !s; i++)
        if (strcmp(names[i - 1], names[i]) == 0) s = FAIL(ERR_FORMAT, "tensor %s is written twice", names[i]);
    free(names);
    return s;
}

enum status st_plan_cut(struct st_plan *p, uint64_t max_bytes)
{
    TRY(check_unique(p));
    int64_t first = 0;
    uint64_t used = 0;
    p->n_shards = 0;
    for (int64_t i = 0; i < p->count; i++) {
        uint64_t bytes = st_bytes(&p->tensors[i]);
        if (i > first && max_bytes && bytes > max_bytes - (used < max_bytes ? used : max_bytes)) {
            place(p, first, i);
            p->n_shards++;
            first = i;
            used = 0;
        }
        p->shard[i] = p->n_shards;
        used += bytes;
    }
    place(p, first, p->count);
    p->n_shards++;
    return OK;
}

const char *st_plan_name(const struct st_plan *p, int shard, char name[64])
{
    snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, p->n_shards);
    return name;
}

static json_t *tensor_entry(const struct st_tensor *t)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer(t->dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(t->dtype), "shape", shape, "data_offsets",
                     (json_int_t)t->begin, (json_int_t)t->end);
}

/* Length (8 bytes), JSON and blanks up to a multiple of 8: malloc'ed. */
static enum status make_header(const struct st_plan *p, int shard, char **out, size_t *len)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool ok = header != NULL;
    for (int64_t i = 0; i < p->count && ok; i++)
        if (p->shard[i] == shard) ok = json_object_set_new(header, p->tensors[i].name, tensor_entry(&p->tensors[i])) == 0;
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text) return FAIL(ERR_FORMAT, "a tensor name is no UTF-8, or no memory for a header");
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    enum status s = OK;
    *out = NULL;
    if (padded >= ST_MAX_HEADER) s = FAIL(ERR_FORMAT, "a header of %zu bytes, the limit is %d", padded, ST_MAX_HEADER);
    else if (!(*out = malloc(8 + padded))) s = FAIL(ERR_MEMORY, "no memory for a header of %zu bytes", padded);
    if (!s) {
        for (int i = 0; i < 8; i++) (*out)[i] = (char)(padded >> 8 * i);
        memcpy(*out + 8, text, n);
        memset(*out + 8 + n, ' ', padded - n);
        *len = 8 + padded;
    }
    free(text);
    return s;
}

static uint64_t shard_bytes(const struct st_plan *p, int shard)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->shard[i] == shard) n += st_bytes(&p->tensors[i]);
    return n;
}

enum status st_plan_file_bytes(const struct st_plan *p, int shard, uint64_t *bytes)
{
    char *header;
    size_t len;
    TRY(make_header(p, shard, &header, &len));
    free(header);
    *bytes = len + shard_bytes(p, shard);
    return OK;
}

enum status st_plan_write_index(const struct st_plan *p, const char *dir)
{
    char path[PATH_MAX], name[64];
    if (snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", dir);
    json_t *map = json_object(), *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->total,
                                                    "weight_map", map);
    bool ok = index != NULL;
    for (int64_t i = 0; i < p->count && ok; i++)
        ok = json_object_set_new(map, p->tensors[i].name, json_string(st_plan_name(p, p->shard[i], name))) == 0;
    enum status s = ok ? json_write_file(index, path) : FAIL(ERR_MEMORY, "%s: no memory for the index", path);
    json_decref(index);
    return s;
}

static enum status write_at(struct st_out *o, uint64_t at, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        size_t want = n - done > (1u << 30) ? (1u << 30) : n - done;
        ssize_t w = pwrite(o->fd, (const char *)data + done, want, (off_t)(at + done));
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0)
            return FAIL(ERR_IO, "%s: writing %zu bytes at %" PRIu64 ": %s", o->path, n, at,
                        w ? strerror(errno) : "nothing was written");
        done += (size_t)w;
    }
    return OK;
}

static enum status temporary_name(const char *path, char tmp[PATH_MAX])
{
    if (snprintf(tmp, PATH_MAX, "%s.tmp", path) >= PATH_MAX) return FAIL(ERR_IO, "%s: the path is too long", path);
    return OK;
}

enum status st_out_open(struct st_out *o, const struct st_plan *p, int shard, const char *path)
{
    char tmp[PATH_MAX], *header = NULL;
    size_t len;
    *o = (struct st_out){.fd = -1, .data_bytes = shard_bytes(p, shard)};
    TRY(temporary_name(path, tmp));
    enum status s = make_header(p, shard, &header, &len);
    if (s) return status_prefix(s, "%s", path);
    o->path = strdup(path);
    if (!o->path) s = FAIL(ERR_MEMORY, "%s: no memory for a path", path);
    else if ((o->fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
        s = FAIL(ERR_IO, "%s: cannot create: %s", tmp, strerror(errno));
    if (!s) s = write_at(o, 0, header, len);
    o->data_start = len;
    free(header);
    if (s) st_out_abort(o);
    return s;
}

enum status st_out_write(struct st_out *o, const struct st_tensor *t, uint64_t offset, const void *data, size_t bytes)
{
    if (offset > st_bytes(t) || bytes > st_bytes(t) - offset)
        return FAIL(ERR_INTERNAL, "%s: %s: %zu bytes at %" PRIu64 " written to a tensor of %" PRIu64, o->path, t->name, bytes,
                    offset, st_bytes(t));
    TRY(write_at(o, o->data_start + t->begin + offset, data, bytes));
    o->written += bytes;
    return OK;
}

enum status st_out_close(struct st_out *o)
{
    char tmp[PATH_MAX];
    enum status s = temporary_name(o->path, tmp);
    if (!s && o->written != o->data_bytes)
        s = FAIL(ERR_INTERNAL, "%s: %" PRIu64 " of %" PRIu64 " bytes were written", o->path, o->written, o->data_bytes);
    if (!s && fsync(o->fd)) s = FAIL(ERR_IO, "%s: cannot sync: %s", tmp, strerror(errno));
    if (!s && close(o->fd)) s = FAIL(ERR_IO, "%s: cannot write: %s", tmp, strerror(errno));
    if (!s) o->fd = -1;
    if (!s && rename(tmp, o->path)) s = FAIL(ERR_IO, "%s: cannot rename: %s", tmp, strerror(errno));
    if (s) {
        st_out_abort(o);
        return s;
    }
    free(o->path);
    *o = (struct st_out){.fd = -1};
    return OK;
}

void st_out_abort(struct st_out *o)
{
    char tmp[PATH_MAX];
    if (!o->path) return;
    if (o->fd >= 0) close(o->fd);
    snprintf(tmp, sizeof tmp, "%s.tmp", o->path);
    unlink(tmp);
    free(o->path);
    *o = (struct st_out){.fd = -1};
}

enum status st_write_file(const char *path, const struct st_item *items, int64_t n)
{
    struct st_plan p = {0};
    struct st_out o = {.fd = -1};
    enum status s = OK;
    for (int64_t i = 0; i < n && !s; i++) s = st_plan_add(&p, items[i].name, items[i].dtype, items[i].rank, items[i].dim);
    if (!s) s = st_plan_cut(&p, 0);
    if (s) status_prefix(s, "%s", path);
    if (!s) s = st_out_open(&o, &p, 0, path);
    for (int64_t i = 0; i < n && !s; i++)
        s = st_out_write(&o, &p.tensors[i], 0, items[i].data, (size_t)st_bytes(&p.tensors[i]));
    if (!s) s = st_out_close(&o);
    st_out_abort(&o);
    st_plan_destroy(&p);
    return s;
}
