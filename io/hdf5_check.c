/* What makes a state file trustworthy: checksums of slabs, and the mark that it is complete. */
#include "hdf5_inner.h"

#include "fs.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_SLABS = 1 << 16 }; /* of one dataset */

/* ---- storing ---- */

static int by_start(const struct h5_slab *a, const struct h5_slab *b)
{
    for (int i = 0; i < H5_MAX_RANK; i++)
        if (a->start[i] != b->start[i]) return a->start[i] < b->start[i] ? -1 : 1;
    return 0;
}

static int by_entry_and_start(const void *x, const void *y)
{
    const struct h5_row *a = x, *b = y;
    return a->entry != b->entry ? (a->entry < b->entry ? -1 : 1) : by_start(&a->slab, &b->slab);
}

static enum status store_entry(struct h5file *f, const struct h5_row *row, int64_t n)
{
    const struct h5_entry *e = &f->entry[row->entry];
    int64_t columns = 2 * e->rank + 1, dim[2] = {n, columns};
    if (n > MAX_SLABS)
        return FAIL(ERR_INTERNAL, "%s: %s was written in %" PRId64 " slabs, at most %d", f->path, e->name, n, MAX_SLABS);
    uint64_t *table = malloc((size_t)(n * columns) * sizeof *table), *to = table;
    if (!table) return FAIL(ERR_MEMORY, "%s: %s: checksums of %" PRId64 " slabs", f->path, e->name, n);
    for (int64_t i = 0; i < n; i++) {
        for (int d = 0; d < e->rank; d++) *to++ = (uint64_t)row[i].slab.start[d];
        for (int d = 0; d < e->rank; d++) *to++ = (uint64_t)row[i].slab.count[d];
        *to++ = row[i].slab.hash;
    }
    enum status s = h5_put(f, e->name, "xxh3", H5T_STD_U64LE, 2, dim, table);
    free(table);
    return s;
}

enum status h5_rows_store(struct h5file *f, struct h5_row *row, int64_t rows)
{
    if (rows == 0) return OK;
    qsort(row, (size_t)rows, sizeof *row, by_entry_and_start);
    for (int64_t i = 0, n; i < rows; i += n) {
        for (n = 1; i + n < rows && row[i + n].entry == row[i].entry;) n++;
        TRY(store_entry(f, &row[i], n));
    }
    return OK;
}

/* ---- reading ---- */

static enum status table_attribute(struct h5file *f, const struct h5_entry *e, hid_t set, uint64_t **table, int64_t *n)
{
    hsize_t dim[H5S_MAX_RANK] = {0};
    *table = NULL;
    if (H5Aexists(set, "xxh3") <= 0) return H5_FAIL(ERR_FORMAT, f->path, "%s has no checksums", e->name);
    hid_t attr = H5Aopen(set, "xxh3", H5P_DEFAULT), space = attr < 0 ? -1 : H5Aget_space(attr);
    hid_t type = attr < 0 ? -1 : H5Aget_type(attr);
    int rank = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dim, NULL);
    enum status s = OK;
    if (type < 0 || rank != 2 || dim[1] != (hsize_t)(2 * e->rank + 1) || dim[0] > MAX_SLABS ||
        H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) != 8)
        s = H5_FAIL(ERR_FORMAT, f->path, "%s: the checksum table has %" PRIu64 " x %" PRIu64
                    " values, n x %d of 64 bits wanted", e->name, (uint64_t)dim[0], (uint64_t)dim[1], 2 * e->rank + 1);
    if (!s) *table = malloc((size_t)(dim[0] * dim[1]) * sizeof **table + 1);
    if (!s && !*table) s = FAIL(ERR_MEMORY, "%s: checksums of %s", f->path, e->name);
    if (!s && H5Aread(attr, H5T_NATIVE_UINT64, *table) < 0)
        s = H5_FAIL(ERR_FORMAT, f->path, "%s: cannot read the checksums", e->name);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (attr >= 0) H5Aclose(attr);
    if (s) {
        free(*table);
        *table = NULL;
    }
    *n = (int64_t)dim[0];
    return s;
}

static bool overlap(const struct h5_slab *a, const struct h5_slab *b)
{
    for (int i = 0; i < H5_MAX_RANK; i++)
        if (a->start[i] >= b->start[i] + b->count[i] || b->start[i] >= a->start[i] + a->count[i]) return false;
    return true;
}

static int by_start_void(const void *a, const void *b) { return by_start(a, b); }

/* Inside the dataset, disjoint, and as many elements as it has: then they cover it exactly once. */
static enum status check_cover(struct h5file *f, const struct h5_entry *e, struct h5_slab *slab, int64_t n)
{
    int64_t covered = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t size = 1;
        for (int d = 0; d < H5_MAX_RANK; d++) {
            const struct h5_slab *s = &slab[i];
            if (s->start[d] < 0 || s->count[d] < 1 || s->start[d] >= e->dim[d] || s->count[d] > e->dim[d] - s->start[d])
                return FAIL(ERR_FORMAT, "%s: %s: checksum row %" PRId64 ": %" PRId64 "+%" PRId64 " of dimension %d, "
                            "which has %" PRId64, f->path, e->name, i, s->start[d], s->count[d], d, e->dim[d]);
            size *= s->count[d];
        }
        if (size > e->elements - covered) return FAIL(ERR_FORMAT, "%s: %s: slabs of checksums overlap", f->path, e->name);
        covered += size;
    }
    if (covered != e->elements)
        return FAIL(ERR_FORMAT, "%s: %s: only %" PRId64 " of %" PRId64 " elements were written", f->path, e->name,
                    covered, e->elements);
    qsort(slab, (size_t)n, sizeof *slab, by_start_void);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n && slab[j].start[0] < slab[i].start[0] + slab[i].count[0]; j++)
            if (overlap(&slab[i], &slab[j]))
                return FAIL(ERR_FORMAT, "%s: %s: slabs of checksums overlap", f->path, e->name);
    return OK;
}

enum status h5_slabs(struct h5file *f, const char *name, struct h5_slab **slabs, int64_t *n)
{
    H5_LOCKED;
    int entry = 0;
    hid_t set = -1;
    uint64_t *table;
    *slabs = NULL;
    *n = 0;
    TRY(h5_table_find(f, name, &entry));
    const struct h5_entry *e = &f->entry[entry];
    if (e->elements == 0) return OK;
    TRY(h5_set_open(f, entry, &set));
    TRY(table_attribute(f, e, set, &table, n));
    struct h5_slab *slab = malloc((size_t)*n * sizeof *slab + 1);
    enum status s = slab ? OK : FAIL(ERR_MEMORY, "%s: %" PRId64 " slabs of %s", f->path, *n, name);
    const uint64_t *from = table;
    for (int64_t i = 0; i < *n && !s; i++) {
        slab[i] = (struct h5_slab){.count = {1, 1, 1, 1}};
        for (int d = 0; d < e->rank; d++) slab[i].start[d] = (int64_t)*from++;
        for (int d = 0; d < e->rank; d++) slab[i].count[d] = (int64_t)*from++;
        slab[i].hash = *from++;
    }
    free(table);
    if (!s) s = check_cover(f, e, slab, *n);
    if (s) free(slab);
    else *slabs = slab;
    return s;
}

/* ---- verifying ---- */

static enum status hash_slab(struct h5file *f, int entry, const struct h5_slab *slab, uint64_t *hash)
{
    const struct h5_entry *e = &f->entry[entry];
    int64_t width = (int64_t)dtype_size(e->dtype);
    struct h5_piece p = {.n = 0};
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    TRY(h5_stage(f));
    while (h5_next_piece(e->rank, slab->count, H5_SLAB_BYTES / width, &p)) {
        int64_t at[H5_MAX_RANK];
        for (int i = 0; i < e->rank; i++) at[i] = slab->start[i] + p.start[i];
        TRY(h5_transfer(f, entry, at, p.count, p.n, f->stage, false));
        XXH3_64bits_update(&state, f->stage, (size_t)(p.n * width));
    }
    *hash = XXH3_64bits_digest(&state);
    return OK;
}

static bool touches(const struct h5_entry *e, const struct h5_slab *slab, const int64_t *start, const int64_t *count)
{
    if (!start || !count) return true;
    for (int i = 0; i < e->rank; i++)
        if (count[i] <= 0 || start[i] >= slab->start[i] + slab->count[i] || start[i] + count[i] <= slab->start[i])
            return false;
    return true;
}

enum status h5_verify(struct h5file *f, const char *name, const int64_t *start, const int64_t *count, bool *ok,
                      struct h5_slab *bad)
{
    H5_LOCKED;
    int entry = 0;
    int64_t n;
    struct h5_slab *slab;
    enum status s = OK;
    *ok = true;
    TRY(h5_table_find(f, name, &entry));
    TRY(h5_slabs(f, name, &slab, &n));
    for (int64_t i = 0; i < n && *ok && !s; i++) {
        uint64_t hash;
        if (!touches(&f->entry[entry], &slab[i], start, count)) continue;
        s = hash_slab(f, entry, &slab[i], &hash);
        if (s || hash == slab[i].hash) continue;
        *ok = false;
        if (bad) *bad = slab[i];
    }
    free(slab);
    return s;
}

static enum status damaged(struct h5file *f, int entry, const struct h5_slab *slab, uint64_t hash)
{
    char place[200] = "";
    int at = 0;
    for (int i = 0; i < f->entry[entry].rank; i++)
        at += snprintf(place + at, sizeof place - (size_t)at, " %" PRId64 "+%" PRId64, slab->start[i], slab->count[i]);
    return FAIL(ERR_FORMAT, "%s: %s is damaged: slab%s has checksum %016" PRIx64 ", written was %016" PRIx64, f->path,
                f->entry[entry].name, place, hash, slab->hash);
}

/* *turn counts slabs over all datasets, so that they are dealt out evenly. */
static enum status verify_share(struct h5file *f, int entry, int rank, int size, int64_t *turn)
{
    struct h5_slab *slab;
    int64_t n;
    enum status s = OK;
    TRY(h5_slabs(f, f->entry[entry].name, &slab, &n));
    for (int64_t i = 0; i < n && !s; i++) {
        uint64_t hash;
        if ((*turn)++ % size != rank) continue;
        s = hash_slab(f, entry, &slab[i], &hash);
        if (!s && hash != slab[i].hash) s = damaged(f, entry, &slab[i], hash);
    }
    free(slab);
    return s;
}

enum status h5_verify_all(struct h5file *f, int rank, int size)
{
    H5_LOCKED;
    int64_t turn = 0;
    for (int i = 0; i < f->entries; i++) TRY(verify_share(f, i, rank, size, &turn));
    return OK;
}

/* ---- complete ---- */

static enum status sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof folder) return FAIL(ERR_IO, "%s: the path is too long", path);
    memcpy(folder, path, n);
    folder[n] = 0;
    return fs_sync(slash ? (n ? folder : "/") : ".");
}

enum status h5_mark_complete(const char *path)
{
    struct h5file *f;
    TRY(h5_open_serial(&f, path, true));
    TRY(h5_close(&f, h5_put_int(f, "/", "complete", 1)));
    return sync_folder_of(path);
}

bool h5_is_complete(const char *path)
{
    struct h5file *f;
    int64_t complete;
    if (h5_open_serial(&f, path, false)) return false;
    enum status s = h5_get_int(f, "/", "complete", &complete);
    if (s) s = FAIL(ERR_FORMAT, "%s: not complete: whoever wrote it did not finish", path);
    else if (complete != 1) s = FAIL(ERR_FORMAT, "%s: complete = %" PRId64 ", 1 expected", path, complete);
    return h5_close(&f, s) == OK;
}
