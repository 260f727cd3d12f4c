/* Types, errors and the table of contents of a state file. */
#include "hdf5_inner.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DATASETS = 1 << 20 };

static pthread_mutex_t library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start_library(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&library, &a);
    pthread_mutexattr_destroy(&a);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

int h5_lock(void)
{
    pthread_once(&once, start_library);
    pthread_mutex_lock(&library);
    return 1;
}

void h5_unlock(int *held)
{
    (void)held;
    pthread_mutex_unlock(&library);
}

struct reason {
    char text[400];
    bool lock;
};

static herr_t keep_reason(unsigned n, const H5E_error2_t *e, void *ctx)
{
    struct reason *r = ctx;
    const char *text = e->desc ? e->desc : "";
    if (n == 0) snprintf(r->text, sizeof r->text, "%s", text);
    if (strstr(text, "lock file") || strstr(text, "lock the file")) r->lock = true;
    return 0;
}

enum status h5_fail(enum status code, const char *file, int line, const char *path, const char *fmt, ...)
{
    struct reason r = {.text = ""};
    char what[600];
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_reason, &r);
    H5Eclear2(H5E_DEFAULT);
    for (char *c = r.text; *c; c++)
        if (*c == '\n') *c = ' ';
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return status_fail(code, file, line, "%s: %s%s%s%s", path, what, *r.text ? ": " : "", r.text,
                       r.lock ? " (the file system has no locks, or another process holds the file; without locks set "
                                "HDF5_USE_FILE_LOCKING=FALSE in the environment)" : "");
}

static hid_t bf16_type(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0) return t;
    if (H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_precision(t, 16) < 0 || H5Tset_size(t, 2) < 0 ||
        H5Tset_ebias(t, 127) < 0) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

hid_t h5_type(enum dtype t)
{
    switch (t) {
    case DT_F32: return H5Tcopy(H5T_IEEE_F32LE);
    case DT_F64: return H5Tcopy(H5T_IEEE_F64LE);
    case DT_BF16: return bf16_type();
    case DT_I32: return H5Tcopy(H5T_STD_I32LE);
    case DT_I64: return H5Tcopy(H5T_STD_I64LE);
    case DT_U8: return H5Tcopy(H5T_STD_U8LE);
    default: return -1;
    }
}

bool h5_dtype(hid_t type, enum dtype *t)
{
    static const enum dtype all[] = {DT_F32, DT_BF16, DT_F64, DT_I32, DT_I64, DT_U8};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hid_t one = h5_type(all[i]);
        bool same = one >= 0 && H5Tequal(one, type) > 0;
        if (one >= 0) H5Tclose(one);
        if (same) {
            *t = all[i];
            return true;
        }
    }
    return false;
}

enum status h5_extent(const char *name, enum dtype t, int rank, const int64_t *dim, int64_t *elements)
{
    if (rank < 0 || rank > H5_MAX_RANK)
        return FAIL(ERR_FORMAT, "%s: %d dimensions, 0 to %d allowed", name, rank, H5_MAX_RANK);
    int64_t n = 1, bytes;
    for (int i = 0; i < rank; i++)
        if (dim[i] < 0 || __builtin_mul_overflow(n, dim[i], &n))
            return FAIL(ERR_FORMAT, "%s: dimension %d is %" PRId64 ", too large or negative", name, i, dim[i]);
    if (__builtin_mul_overflow(n, (int64_t)dtype_size(t), &bytes) || bytes > (int64_t)1 << 62)
        return FAIL(ERR_FORMAT, "%s: %" PRId64 " elements are more than 2^62 bytes", name, n);
    *elements = n;
    return OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct h5_entry *)a)->name, ((const struct h5_entry *)b)->name);
}

/* Storage must lie inside this file, in one run: nothing external, virtual, chunked or filtered. */
static enum status check_storage(struct h5file *f, hid_t set, const struct h5_entry *e, int64_t file_bytes)
{
    hid_t plist = H5Dget_create_plist(set);
    if (plist < 0) return H5_FAIL(ERR_FORMAT, f->path, "%s: no creation properties", e->name);
    bool plain = H5Pget_layout(plist) == H5D_CONTIGUOUS && H5Pget_external_count(plist) == 0;
    H5Pclose(plist);
    if (!plain) return FAIL(ERR_FORMAT, "%s: %s: storage is not contiguous in this file", f->path, e->name);
    int64_t bytes = e->elements * (int64_t)dtype_size(e->dtype);
    haddr_t at = H5Dget_offset(set);
    H5Eclear2(H5E_DEFAULT);
    if (bytes == 0) return OK;
    if (at == HADDR_UNDEF) return FAIL(ERR_FORMAT, "%s: %s: no storage was allocated", f->path, e->name);
    if (at > (haddr_t)file_bytes || bytes > file_bytes - (int64_t)at)
        return FAIL(ERR_FORMAT, "%s: %s: data of %" PRId64 " bytes at %" PRIu64 " in a file of %" PRId64 " bytes",
                    f->path, e->name, bytes, (uint64_t)at, file_bytes);
    return OK;
}

static enum status describe(struct h5file *f, hid_t set, struct h5_entry *e, int64_t file_bytes)
{
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    hsize_t dim[H5S_MAX_RANK];
    enum status s = OK;
    int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    H5S_class_t kind = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    if (type < 0 || rank < 0 || (kind != H5S_SIMPLE && kind != H5S_SCALAR))
        s = H5_FAIL(ERR_FORMAT, f->path, "%s: unreadable type or shape", e->name);
    else if (!h5_dtype(type, &e->dtype))
        s = FAIL(ERR_FORMAT, "%s: %s: a type that is none of F32 BF16 F64 I32 I64 U8", f->path, e->name);
    else if (rank > H5_MAX_RANK)
        s = FAIL(ERR_FORMAT, "%s: %s: %d dimensions, at most %d allowed", f->path, e->name, rank, H5_MAX_RANK);
    else if (H5Sget_simple_extent_dims(space, dim, NULL) < 0)
        s = H5_FAIL(ERR_FORMAT, f->path, "%s: unreadable shape", e->name);
    if (!s) {
        e->rank = rank;
        for (int i = 0; i < H5_MAX_RANK; i++) e->dim[i] = i < rank ? (int64_t)(dim[i] > INT64_MAX ? INT64_MAX : dim[i]) : 1;
        s = h5_extent(e->name, e->dtype, rank, e->dim, &e->elements);
        if (s) status_prefix(s, "%s", f->path);
    }
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (s) return s;
    return check_storage(f, set, e, file_bytes);
}

struct visit {
    struct h5file *f;
    int64_t file_bytes;
    int room;
    enum status s;
};

static enum status add_entry(struct visit *v, hid_t root, const char *name)
{
    struct h5file *f = v->f;
    if (strlen(name) + 1 > H5_MAX_NAME)
        return FAIL(ERR_FORMAT, "%s: a name of %zu bytes, at most %d allowed", f->path, strlen(name), H5_MAX_NAME - 1);
    if (f->entries == MAX_DATASETS) return FAIL(ERR_FORMAT, "%s: more than %d datasets", f->path, MAX_DATASETS);
    if (f->entries == v->room) {
        int room = v->room ? 2 * v->room : 64;
        void *p = realloc(f->entry, (size_t)room * sizeof *f->entry);
        if (!p) return FAIL(ERR_MEMORY, "%s: table of %d datasets", f->path, room);
        f->entry = p;
        v->room = room;
    }
    struct h5_entry *e = &f->entry[f->entries];
    *e = (struct h5_entry){.name = "/"};
    memcpy(e->name + 1, name, strlen(name) + 1);
    hid_t set = H5Dopen2(root, name, H5P_DEFAULT);
    if (set < 0) return H5_FAIL(ERR_FORMAT, f->path, "%s: cannot open", e->name);
    enum status s = describe(f, set, e, v->file_bytes);
    H5Dclose(set);
    if (!s) f->entries++;
    return s;
}

#if H5_VERSION_GE(1, 12, 0)
typedef H5O_info2_t object_info;
#define visit_objects(id, fn, ctx) H5Ovisit3(id, H5_INDEX_NAME, H5_ITER_NATIVE, fn, ctx, H5O_INFO_BASIC)
#else
typedef H5O_info_t object_info;
#define visit_objects(id, fn, ctx) H5Ovisit2(id, H5_INDEX_NAME, H5_ITER_NATIVE, fn, ctx, H5O_INFO_BASIC)
#endif

static herr_t visit_object(hid_t root, const char *name, const object_info *info, void *ctx)
{
    struct visit *v = ctx;
    if (info->type == H5O_TYPE_DATASET) v->s = add_entry(v, root, name);
    return v->s ? -1 : 0;
}

enum status h5_table_read(struct h5file *f)
{
    struct stat st;
    if (stat(f->path, &st)) return FAIL(ERR_IO, "%s: cannot ask for its size", f->path);
    struct visit v = {.f = f, .file_bytes = st.st_size};
    herr_t failed = visit_objects(f->file, visit_object, &v);
    if (v.s) {
        H5Eclear2(H5E_DEFAULT);
        return v.s;
    }
    if (failed < 0) return H5_FAIL(ERR_FORMAT, f->path, "cannot read the table of contents");
    if (f->entries) qsort(f->entry, (size_t)f->entries, sizeof *f->entry, by_name);
    return OK;
}

enum status h5_table_find(const struct h5file *f, const char *name, int *entry)
{
    int lo = 0, hi = f->entries;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strcmp(f->entry[mid].name, name);
        if (order == 0) {
            *entry = mid;
            return OK;
        }
        if (order < 0) lo = mid + 1;
        else hi = mid;
    }
    return FAIL(ERR_FORMAT, "%s: there is no dataset %s", f->path, name);
}

static struct h5_dataset dataset_of(const struct h5_entry *e)
{
    struct h5_dataset d = {.name = e->name, .dtype = e->dtype, .rank = e->rank};
    memcpy(d.dim, e->dim, sizeof d.dim);
    return d;
}

enum status h5_list(const struct h5file *f, h5_list_fn fn, void *ctx)
{
    for (int i = 0; i < f->entries; i++) {
        struct h5_dataset d = dataset_of(&f->entry[i]);
        TRY(fn(ctx, &d));
    }
    return OK;
}

enum status h5_find(const struct h5file *f, const char *name, struct h5_dataset *d)
{
    int entry = 0;
    TRY(h5_table_find(f, name, &entry));
    *d = dataset_of(&f->entry[entry]);
    return OK;
}
