#include "export.h"

#include "checkpoint.h"
#include "hdf5.h"
#include "release.h"
#include "safetensors_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 32 << 20 };

struct export {
    const char *dir;             /* the checkpoint */
    struct release *source;      /* NULL: gone */
    struct model m;              /* the table only */
    struct h5file *f;
    struct st_writer w;
    void *buffer;
};

/* How the source stores a tensor; what is quantised there leaves as bfloat16. */
static enum dtype target_dtype(const struct export *x, const struct param *p, const char *name)
{
    const struct release_tensor *t = x->source ? release_find(x->source, name) : NULL;
    if (p->store == STORE_F32) return DT_F32;
    if (!t) return x->m.dtype;
    return t->data->t->dtype == DT_F32 ? DT_F32 : DT_BF16;
}

static enum status declare(struct export *x)
{
    for (int i = 0; i < x->m.n_params; i++) {
        const struct param *p = &x->m.params[i];
        bool stacked = param_is_experts(p);
        for (int64_t e = 0; e < (stacked ? p->dim[0] : 1); e++) {
            char name[160];
            param_release_name(p, e, name, sizeof name);
            TRY(st_writer_add(&x->w, name, target_dtype(x, p, name), stacked ? 2 : p->rank, p->dim + stacked));
        }
    }
    for (int64_t i = 0; x->source && i < x->source->count; i++) {
        const struct release_tensor *t = &x->source->tensors[i];
        const struct st_tensor *raw = t->data->t;
        if (t->passed) TRY(st_writer_add(&x->w, raw->name, raw->dtype, raw->rank, raw->dim));
    }
    return OK;
}

/* One release tensor out of the global array, a few rows at a time. */
static enum status copy_param(struct export *x, const struct param *p, int64_t e)
{
    char name[160], set[256];
    bool stacked = param_is_experts(p);
    param_release_name(p, e, name, sizeof name);
    snprintf(set, sizeof set, "/model/%s", p->name);
    enum dtype dtype = target_dtype(x, p, name);
    const int64_t *dim = p->dim + stacked;
    int64_t cols = p->rank == 1 ? 1 : dim[1], step = PIECE_BYTES / (cols * 4);
    if (step < 1) return FAIL(ERR_FORMAT, "%s: a row of %" PRId64 " elements", name, cols);
    for (int64_t at = 0; at < dim[0]; at += step) {
        int64_t n = dim[0] - at < step ? dim[0] - at : step;
        int64_t start[3] = {at, 0, 0}, count[3] = {n, cols, 1};
        if (stacked) start[0] = e, start[1] = at, count[0] = 1, count[1] = n, count[2] = cols;
        TRY(h5_read_slab(x->f, set, start, count, dtype, x->buffer));
        TRY(st_writer_write(&x->w, name, x->buffer, (size_t)(n * cols) * dtype_size(dtype)));
    }
    return OK;
}

static enum status copy_passed(struct export *x, const struct release_raw *raw)
{
    uint64_t bytes = st_bytes(raw->t);
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
        TRY(release_read_raw(x->source, raw, at, n, x->buffer));
        TRY(st_writer_write(&x->w, raw->t->name, x->buffer, n));
    }
    return OK;
}

static enum status copy_all(struct export *x)
{
    for (int i = 0; i < x->m.n_params; i++) {
        const struct param *p = &x->m.params[i];
        for (int64_t e = 0; e < (param_is_experts(p) ? p->dim[0] : 1); e++) TRY(copy_param(x, p, e));
    }
    for (int64_t i = 0; x->source && i < x->source->count; i++)
        if (x->source->tensors[i].passed) TRY(copy_passed(x, x->source->tensors[i].data));
    return OK;
}

static enum status copy_config(struct export *x)
{
    char from[4200], to[4200];
    const char *dir = x->source ? x->source->dir : x->dir;
    snprintf(from, sizeof from, "%s/config.json", dir);
    snprintf(to, sizeof to, "%s/config.json", x->w.tmp);
    TRY(release_copy_file(from, to));
    return release_copy_side_files(dir, x->w.tmp);
}

static enum status run(struct export *x, const char *dst, uint64_t shard_bytes)
{
    struct h5_dataset d;
    char path[4200];
    snprintf(path, sizeof path, "%s/model.h5", x->dir);
    TRY(h5_open_serial(&x->f, path, false));
    TRY(h5_verify_all(x->f, 0, 1));
    TRY(h5_find(x->f, "/model/language_model.model.norm.weight", &d));
    x->m.dtype = d.dtype;
    x->buffer = malloc(PIECE_BYTES);
    if (!x->buffer) return FAIL(ERR_MEMORY, "%d bytes to copy with", PIECE_BYTES);
    TRY(st_writer_open(&x->w, dst));
    TRY(declare(x));
    TRY(st_writer_begin(&x->w, shard_bytes));
    TRY(copy_all(x));
    TRY(copy_config(x));
    return st_writer_close(&x->w);
}

enum status export_release(const char *path, const char *dst, uint64_t shard_bytes)
{
    struct export x = {0};
    struct arch a;
    struct mesh one;
    char *dir = NULL, *source = NULL;
    TRY(checkpoint_find(path, &dir));
    x.dir = dir;
    enum status s = checkpoint_arch(dir, &a);
    if (!s) s = checkpoint_source(dir, &source);
    if (!s && *source && access(source, F_OK) == 0) s = release_open(&x.source, source);
    else if (!s) log_warn("the release %s that the run started from is not there: nothing is passed through", source);
    if (!s) s = mesh_single(&one, &a);
    if (!s) s = model_create(&x.m, &a, &one, &ops_cpu, NULL, DT_F32, 1 << 20);
    if (!s) s = run(&x, dst, shard_bytes);
    if (s) st_writer_abort(&x.w);
    if (x.f) s = h5_close(&x.f, s);
    free(x.buffer);
    model_destroy(&x.m);
    release_close(&x.source);
    free(source);
    free(dir);
    return s;
}
