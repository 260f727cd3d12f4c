#include "safetensors.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool st_dtype(const char *name, enum dtype *out)
{
    static const enum dtype known[] = {DT_F32, DT_BF16, DT_F16, DT_F8_E4M3, DT_U8, DT_I8, DT_I32, DT_I64};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, dtype_name(known[i])) == 0) {
            *out = known[i];
            return true;
        }
    return false;
}

const char *st_shape_text(int rank, const int64_t *dim, char text[128])
{
    size_t n = 1;
    strcpy(text, "[");
    for (int i = 0; i < rank && n < 100; i++)
        n += (size_t)snprintf(text + n, 128 - n, "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(text + n, 128 - n, "]");
    return text;
}

int64_t st_elements(const struct st_tensor *t) { return (int64_t)(st_bytes(t) / dtype_size(t->dtype)); }
int64_t st_rows(const struct st_tensor *t) { return t->rank ? t->dim[0] : 1; }

int64_t st_cols(const struct st_tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->rank; i++) n *= t->dim[i];
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    struct st_tensor key = {.name = (char *)name};
    return f->count ? bsearch(&key, f->tensors, (size_t)f->count, sizeof key, by_name) : NULL;
}

/* Reads exactly n bytes at `offset` of the file. */
static enum status read_at(int fd, const char *path, uint64_t offset, size_t n, void *dst)
{
    size_t got = 0;
    while (got < n) {
        size_t want = n - got > (1u << 30) ? (1u << 30) : n - got;
        ssize_t r = pread(fd, (char *)dst + got, want, (off_t)(offset + got));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0)
            return FAIL(ERR_IO, "%s: reading %zu bytes at %" PRIu64 ": %s", path, n, offset, strerror(errno));
        if (r == 0)
            return FAIL(ERR_IO, "%s: short read: %zu of %zu bytes at %" PRIu64, path, got, n, offset);
        got += (size_t)r;
    }
    return OK;
}

enum status st_read(const struct st_file *f, const struct st_tensor *t, uint64_t offset, size_t bytes, void *dst)
{
    if (offset > st_bytes(t) || bytes > st_bytes(t) - offset)
        return FAIL(ERR_INTERNAL, "%s: %s: %zu bytes at %" PRIu64 " asked of a tensor of %" PRIu64, f->path, t->name,
                    bytes, offset, st_bytes(t));
    TRY(read_at(f->fd, f->path, f->data_start + t->begin + offset, bytes, dst));
    return OK;
}

static enum status parse_shape(struct st_tensor *t, const json_t *shape, const char *path)
{
    if (!json_is_array(shape)) return FAIL(ERR_FORMAT, "%s: tensor %s: shape is missing or no array", path, t->name);
    if (json_array_size(shape) > ST_MAX_RANK)
        return FAIL(ERR_FORMAT, "%s: tensor %s: %zu dimensions, the limit is %d", path, t->name, json_array_size(shape),
                    ST_MAX_RANK);
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return FAIL(ERR_FORMAT, "%s: tensor %s: shape[%d] is %s", path, t->name, i,
                        json_is_integer(d) ? "negative" : json_type_name(d));
        t->dim[i] = json_integer_value(d);
    }
    return OK;
}

static enum status parse_range(struct st_tensor *t, const json_t *offsets, const struct st_file *f)
{
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return FAIL(ERR_FORMAT, "%s: tensor %s: data_offsets is not a pair of integers", f->path, t->name);
    int64_t begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin || (uint64_t)end > f->data_bytes)
        return FAIL(ERR_FORMAT, "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] outside the %" PRIu64
                    " bytes of data that the file holds", f->path, t->name, begin, end, f->data_bytes);
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return OK;
}

static enum status check_size(const struct st_tensor *t, const char *path)
{
    char text[128];
    uint64_t bytes = dtype_size(t->dtype);
    bool empty = false, overflow = false;
    for (int i = 0; i < t->rank; i++) {
        if (t->dim[i] == 0) empty = true;
        else overflow |= __builtin_mul_overflow(bytes, (uint64_t)t->dim[i], &bytes) || bytes > INT64_MAX;
    }
    if (overflow)
        return FAIL(ERR_FORMAT, "%s: tensor %s: shape %s overflows", path, t->name, st_shape_text(t->rank, t->dim, text));
    if (empty) bytes = 0;
    if (bytes != st_bytes(t))
        return FAIL(ERR_FORMAT, "%s: tensor %s: %s %s is %" PRIu64 " bytes, data_offsets span %" PRIu64, path, t->name,
                    dtype_name(t->dtype), st_shape_text(t->rank, t->dim, text), bytes, st_bytes(t));
    return OK;
}

static enum status parse_tensor(struct st_file *f, const char *name, const json_t *v)
{
    if (!*name || strlen(name) >= ST_NAME_MAX)
        return FAIL(ERR_FORMAT, "%s: tensor name of %zu bytes, 1 to %d are allowed", f->path, strlen(name),
                    ST_NAME_MAX - 1);
    if (!json_is_object(v)) return FAIL(ERR_FORMAT, "%s: tensor %s is %s", f->path, name, json_type_name(v));
    struct st_tensor *t = &f->tensors[f->count];
    t->name = strdup(name);
    if (!t->name) return FAIL(ERR_MEMORY, "%s: no memory for a tensor name", f->path);
    f->count++;
    const json_t *type = json_object_get(v, "dtype");
    if (!json_is_string(type)) return FAIL(ERR_FORMAT, "%s: tensor %s: dtype is missing or no string", f->path, name);
    if (!st_dtype(json_string_value(type), &t->dtype))
        return FAIL(ERR_FORMAT, "%s: tensor %s: unknown dtype \"%.32s\"", f->path, name, json_string_value(type));
    if (json_object_size(v) != 3)
        return FAIL(ERR_FORMAT, "%s: tensor %s: %zu keys, expected dtype, shape and data_offsets", f->path, name,
                    json_object_size(v));
    TRY(parse_shape(t, json_object_get(v, "shape"), f->path));
    TRY(parse_range(t, json_object_get(v, "data_offsets"), f));
    TRY(check_size(t, f->path));
    return OK;
}

static enum status check_metadata(const json_t *meta, const char *path)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta)) return FAIL(ERR_FORMAT, "%s: __metadata__ is %s", path, json_type_name(meta));
    json_object_foreach((json_t *)meta, key, v)
        if (!json_is_string(v))
            return FAIL(ERR_FORMAT, "%s: __metadata__ \"%.64s\" is %s, expected a string", path, key, json_type_name(v));
    return OK;
}

static int by_place(const void *a, const void *b)
{
    const struct st_tensor *x = *(struct st_tensor *const *)a, *y = *(struct st_tensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Ranges in order of place must follow each other from 0 to the end of the data. */
static enum status check_places(const struct st_file *f)
{
    struct st_tensor **order = malloc(((size_t)f->count + 1) * sizeof *order);
    if (!order) return FAIL(ERR_MEMORY, "%s: no memory for %" PRId64 " tensors", f->path, f->count);
    for (int64_t i = 0; i < f->count; i++) order[i] = &f->tensors[i];
    qsort(order, (size_t)f->count, sizeof *order, by_place);
    uint64_t at = 0;
    const char *last = "the header";
    enum status s = OK;
    for (int64_t i = 0; i < f->count && !s; i++) {
        const struct st_tensor *t = order[i];
        if (t->begin < at)
            s = FAIL(ERR_FORMAT, "%s: tensors %s and %s overlap: %" PRIu64 " < %" PRIu64, f->path, last, t->name,
                     t->begin, at);
        else if (t->begin > at)
            s = FAIL(ERR_FORMAT, "%s: a hole of %" PRIu64 " bytes between %s and %s", f->path, t->begin - at, last,
                     t->name);
        at = t->end;
        last = t->name;
    }
    free(order);
    if (!s && at != f->data_bytes)
        s = FAIL(ERR_FORMAT, "%s: the header promises %" PRIu64 " bytes of data, the file holds %" PRIu64
                 " (%" PRIu64 " bytes after the last tensor)", f->path, at, f->data_bytes, f->data_bytes - at);
    return s;
}

static enum status parse_header(struct st_file *f, const json_t *header)
{
    const char *key;
    json_t *v;
    if (!json_is_object(header)) return FAIL(ERR_FORMAT, "%s: the header is %s", f->path, json_type_name(header));
    f->tensors = calloc(json_object_size(header) + 1, sizeof *f->tensors);
    if (!f->tensors) return FAIL(ERR_MEMORY, "%s: no memory for %zu tensors", f->path, json_object_size(header));
    json_object_foreach((json_t *)header, key, v) {
        if (strcmp(key, "__metadata__") == 0) TRY(check_metadata(v, f->path));
        else TRY(parse_tensor(f, key, v));
    }
    qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, by_name);
    TRY(check_places(f));
    return OK;
}

static enum status read_header(struct st_file *f, char **text, size_t *len)
{
    struct stat st;
    unsigned char head[8];
    if (fstat(f->fd, &st)) return FAIL(ERR_IO, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return FAIL(ERR_FORMAT, "%s: not a regular file", f->path);
    uint64_t size = (uint64_t)st.st_size, n = 0;
    if (size < sizeof head)
        return FAIL(ERR_FORMAT, "%s: %" PRIu64 " bytes, a safetensors file has at least 8", f->path, size);
    TRY(read_at(f->fd, f->path, 0, sizeof head, head));
    for (int i = 7; i >= 0; i--) n = n << 8 | head[i];
    if (n > size - sizeof head)
        return FAIL(ERR_FORMAT, "%s: header of %" PRIu64 " bytes in a file of %" PRIu64, f->path, n, size);
    if (n >= ST_MAX_HEADER)
        return FAIL(ERR_FORMAT, "%s: header of %" PRIu64 " bytes, the limit is %d", f->path, n, ST_MAX_HEADER);
    *text = malloc((size_t)n + 1);
    if (!*text) return FAIL(ERR_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", f->path, n);
    TRY(read_at(f->fd, f->path, sizeof head, (size_t)n, *text));
    if (n == 0 || (*text)[0] != '{') return FAIL(ERR_FORMAT, "%s: the header does not begin with {", f->path);
    f->data_start = sizeof head + n;
    f->data_bytes = size - f->data_start;
    *len = (size_t)n;
    return OK;
}

static enum status open_file(struct st_file *f)
{
    char *text = NULL;
    size_t len = 0;
    json_t *header = NULL;
    enum status s;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", f->path, strerror(errno));
    TRY_GOTO(s, out, read_header(f, &text, &len));
    TRY_GOTO(s, out, json_read_text(&header, text, len, f->path));
    TRY_GOTO(s, out, parse_header(f, header));
out:
    free(text);
    json_decref(header);
    return s;
}

enum status st_open(struct st_file *f, const char *path)
{
    *f = (struct st_file){.fd = -1, .path = strdup(path)};
    enum status s = f->path ? open_file(f) : FAIL(ERR_MEMORY, "%s: no memory for a path", path);
    if (s) st_close(f);
    return s;
}

void st_close(struct st_file *f)
{
    if (f->path && f->fd >= 0) close(f->fd);
    for (int64_t i = 0; i < f->count; i++) free(f->tensors[i].name);
    free(f->tensors);
    free(f->path);
    *f = (struct st_file){.fd = -1};
}
