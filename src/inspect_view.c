/* Opening and reading of what m3 inspect looks at. */
#include "checkpoint.h"
#include "hdf5.h"
#include "inspect.h"
#include "release.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static enum status add(struct inspect_view *v, const struct inspect_item *t)
{
    if ((v->n & (v->n - 1)) == 0) {
        struct inspect_item *grown = realloc(v->item, (size_t)(v->n ? 2 * v->n : 1) * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%" PRId64 " tensors", v->n);
        v->item = grown;
    }
    v->item[v->n] = *t;
    v->item[v->n].name = strdup(t->name);
    return v->item[v->n++].name ? OK : FAIL(ERR_MEMORY, "a name");
}

static bool floating(enum dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

static enum status add_release(struct inspect_view *v)
{
    for (int64_t i = 0; i < v->release->count; i++) {
        const struct release_tensor *t = &v->release->tensors[i];
        struct inspect_item x = {.name = t->name, .rank = t->rank, .rows = t->rows, .cols = t->cols, .at = t,
                                 .dtype = t->quant ? quant_name(t->quant) : dtype_name(t->data->t->dtype),
                                 .numbers = t->quant || floating(t->data->t->dtype)};
        memcpy(x.dim, t->dim, sizeof x.dim);
        x.bytes = (int64_t)st_bytes(t->data->t) + (t->scale ? (int64_t)st_bytes(t->scale->t) : 0) +
                  (t->scalar ? (int64_t)st_bytes(t->scalar->t) : 0);
        TRY(add(v, &x));
    }
    return OK;
}

static enum status add_safetensors(struct inspect_view *v)
{
    for (int64_t i = 0; i < v->st->count; i++) {
        const struct st_tensor *t = &v->st->tensors[i];
        struct inspect_item x = {.name = t->name, .rank = t->rank, .rows = st_rows(t), .cols = st_cols(t), .at = t,
                                 .dtype = dtype_name(t->dtype), .numbers = floating(t->dtype) || t->dtype == DT_I32,
                                 .bytes = (int64_t)st_bytes(t)};
        memcpy(x.dim, t->dim, sizeof x.dim);
        TRY(add(v, &x));
    }
    return OK;
}

static enum status add_dataset(void *ctx, const struct h5_dataset *d)
{
    struct inspect_view *v = ctx;
    struct inspect_item x = {.name = (char *)d->name, .rank = d->rank, .rows = d->rank ? d->dim[0] : 1, .cols = 1,
                             .dtype = dtype_name(d->dtype), .file = v->files - 1,
                             .numbers = d->dtype == DT_F32 || d->dtype == DT_BF16};
    for (int i = 0; i < d->rank; i++) x.dim[i] = d->dim[i];
    for (int i = 1; i < d->rank; i++) x.cols *= d->dim[i];
    x.bytes = x.rows * x.cols * (int64_t)dtype_size(d->dtype);
    return add(v, &x);
}

static enum status open_h5(struct inspect_view *v, const char *path)
{
    TRY(h5_open_serial(&v->h5[v->files], path, false));
    v->files++;
    return h5_list(v->h5[v->files - 1], add_dataset, v);
}

static enum status open_checkpoint(struct inspect_view *v, const char *path)
{
    static const char *const file[] = {"model.h5", "optimizer.h5"};
    char name[4096];
    v->kind = "checkpoint";
    free(v->path);
    v->path = NULL;
    TRY(checkpoint_find(path, &v->path));
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", v->path, file[i]);
        TRY(open_h5(v, name));
    }
    return OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct inspect_item *)a)->name, ((const struct inspect_item *)b)->name);
}

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool holds(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && stat(path, &st) == 0;
}

static enum status open_any(struct inspect_view *v, const char *path)
{
    struct stat st;
    bool found = stat(path, &st) == 0;
    if (!found && !strchr(path, '@')) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    if (!found || (S_ISDIR(st.st_mode) && (holds(path, "model.h5") || !holds(path, "config.json")))) return open_checkpoint(v, path);
    if (S_ISDIR(st.st_mode)) {
        v->kind = "release";
        TRY(release_open(&v->release, path));
        return add_release(v);
    }
    if (ends(path, ".safetensors") || ends(path, ".st")) {
        v->kind = "safetensors";
        v->st = calloc(1, sizeof *v->st);
        if (!v->st) return FAIL(ERR_MEMORY, "a file");
        TRY(st_open(v->st, path));
        return add_safetensors(v);
    }
    v->kind = "HDF5";
    return open_h5(v, path);
}

enum status inspect_open(struct inspect_view *v, const char *path)
{
    *v = (struct inspect_view){.path = strdup(path)};
    enum status s = v->path ? open_any(v, path) : FAIL(ERR_MEMORY, "a path");
    if (s) inspect_close(v);
    else if (v->n) qsort(v->item, (size_t)v->n, sizeof *v->item, by_name);
    return s;
}

void inspect_close(struct inspect_view *v)
{
    for (int64_t i = 0; i < v->n; i++) free(v->item[i].name);
    for (int i = 0; i < v->files; i++) h5_close(&v->h5[i], OK);
    release_close(&v->release);
    if (v->st) st_close(v->st);
    free(v->st);
    free(v->item);
    free(v->path);
    *v = (struct inspect_view){0};
}

const struct inspect_item *inspect_find(const struct inspect_view *v, const char *name)
{
    struct inspect_item key = {.name = (char *)name};
    return v->n ? bsearch(&key, v->item, (size_t)v->n, sizeof key, by_name) : NULL;
}

/* 16-bit or 32-bit values at the end of `out`'s room, widened in place from the front. */
static void widen(float *out, int64_t n, enum dtype t)
{
    const uint16_t *half = (const uint16_t *)out + n;
    for (int64_t i = 0; i < n; i++)
        if (t == DT_BF16) out[i] = float_from_bf16(half[i]);
        else {
            uint32_t h = half[i], sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
            double x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
            out[i] = (float)(sign ? -x : x);
        }
}

enum status inspect_read(const struct inspect_view *v, const struct inspect_item *t, int64_t row, int64_t n, float *out)
{
    if (v->release) return release_read(v->release, t->at, row, n, 0, t->cols, DT_F32, out);
    int64_t start[H5_MAX_RANK] = {row}, count[H5_MAX_RANK] = {n};
    if (v->files) {
        for (int i = 1; i < t->rank && i < H5_MAX_RANK; i++) count[i] = t->dim[i];
        return h5_read_slab(v->h5[t->file], t->name, start, count, DT_F32, out);
    }
    const struct st_tensor *s = t->at;
    size_t size = dtype_size(s->dtype), bytes = (size_t)(n * t->cols) * size;
    char *to = (char *)out + (size_t)(n * t->cols) * 4 - bytes;
    TRY(st_read(v->st, s, (uint64_t)(row * t->cols) * size, bytes, to));
    if (size == 2) widen(out, n * t->cols, s->dtype);
    if (s->dtype == DT_I32)
        for (int64_t i = 0; i < n * t->cols; i++) out[i] = (float)((int32_t *)(void *)out)[i];
    return OK;
}

enum status inspect_verify(struct inspect_view *v)
{
    for (int i = 0; i < v->files; i++) {
        if (!h5_is_complete(h5_path(v->h5[i]))) return FAIL(ERR_FORMAT, "%s", status_message());
        TRY(h5_verify_all(v->h5[i], 0, 1));
    }
    if (v->files) return OK;
    struct inspect_stats s;
    for (int64_t i = 0; i < v->n; i++)
        if (v->item[i].numbers) TRY(inspect_stats(v, &v->item[i], &s));
    return OK;
}
