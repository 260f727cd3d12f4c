/* Creating state files and moving slabs. */
#include "hdf5_inner.h"

#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ALIGN_FROM = 4 << 20, ALIGN_TO = 4 << 20 }; /* smaller ones would waste more than they hold */

/* ---- creating ---- */

static enum status check_name(const char *name)
{
    size_t n = strlen(name);
    if (n < 2 || n > H5_MAX_NAME || name[0] != '/' || name[n - 1] == '/' || strstr(name, "//") || strstr(name, "/./") ||
        strstr(name, "/../"))
        return FAIL(ERR_INTERNAL, "dataset name '%.80s' of %zu bytes: /group/name of at most %d wanted", name, n,
                    H5_MAX_NAME);
    return OK;
}

static enum status create_dataset(const char *path, hid_t file, hid_t links, hid_t storage, const struct h5_dataset *d)
{
    hsize_t dim[H5_MAX_RANK];
    int64_t elements;
    TRY(check_name(d->name));
    TRY(h5_extent(d->name, d->dtype, d->rank, d->dim, &elements));
    for (int i = 0; i < d->rank; i++) dim[i] = (hsize_t)d->dim[i];
    hid_t type = h5_type(d->dtype);
    if (type < 0) return FAIL(ERR_INTERNAL, "%s: dtype %s has no HDF5 type", d->name, dtype_name(d->dtype));
    hid_t space = d->rank ? H5Screate_simple(d->rank, dim, NULL) : H5Screate(H5S_SCALAR);
    hid_t set = space < 0 ? -1 : H5Dcreate2(file, d->name, type, space, links, storage, H5P_DEFAULT);
    enum status s = set < 0 ? H5_FAIL(ERR_IO, path, "cannot create %s", d->name) : OK;
    if (set >= 0 && H5Dclose(set) < 0) s = H5_FAIL(ERR_IO, path, "cannot close %s", d->name);
    if (space >= 0) H5Sclose(space);
    H5Tclose(type);
    return s;
}

static enum status create_datasets(const char *path, hid_t file, const struct h5_dataset *sets, int n)
{
    hid_t links = H5Pcreate(H5P_LINK_CREATE), storage = H5Pcreate(H5P_DATASET_CREATE);
    enum status s = OK;
    /* Times are left out so that equal contents are equal files. */
    if (links < 0 || storage < 0 || H5Pset_create_intermediate_group(links, 1) < 0 ||
        H5Pset_layout(storage, H5D_CONTIGUOUS) < 0 || H5Pset_alloc_time(storage, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(storage, H5D_FILL_TIME_NEVER) < 0 || H5Pset_obj_track_times(storage, 0) < 0)
        s = H5_FAIL(ERR_IO, path, "dataset properties");
    for (int i = 0; i < n && !s; i++) s = create_dataset(path, file, links, storage, &sets[i]);
    if (links >= 0) H5Pclose(links);
    if (storage >= 0) H5Pclose(storage);
    return s;
}

static enum status create_file(const char *path, const struct h5_dataset *sets, int n)
{
    hid_t list = h5_access(true);
    if (list < 0 || H5Pset_alignment(list, ALIGN_FROM, ALIGN_TO) < 0) return H5_FAIL(ERR_IO, path, "access properties");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, list);
    H5Pclose(list);
    if (file < 0) return H5_FAIL(ERR_IO, path, "cannot create");
    int64_t version = H5_FORMAT_VERSION;
    struct h5file f = {.path = (char *)path, .file = file, .write = true, .set = -1};
    enum status s = h5_put_int(&f, "/", "format_version", version);
    if (!s) s = create_datasets(path, file, sets, n);
    if (H5Fclose(file) < 0 && !s) s = H5_FAIL(ERR_IO, path, "cannot close");
    return s;
}

static enum status reserve_blocks(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    enum status s = bytes < 0 ? FAIL(ERR_IO, "%s: cannot reserve: %s", path, strerror(errno)) : OK;
    if (!s) s = fs_reserve(fd, path, bytes, false);
    if (fd >= 0) close(fd);
    return s;
}

static enum status bytes_needed(const struct h5_dataset *sets, int n, int64_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        int64_t elements;
        TRY(h5_extent(sets[i].name, sets[i].dtype, sets[i].rank, sets[i].dim, &elements));
        if (__builtin_add_overflow(*bytes, elements * (int64_t)dtype_size(sets[i].dtype), bytes))
            return FAIL(ERR_INTERNAL, "%s: the datasets up to here exceed 2^63 bytes", sets[i].name);
    }
    return OK;
}

enum status h5_create(const char *path, const struct h5_dataset *sets, int n, bool reserve)
{
    H5_LOCKED;
    int64_t bytes;
    TRY(bytes_needed(sets, n, &bytes));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    close(fd);
    enum status s = reserve ? fs_need(path, bytes) : OK;
    if (!s) s = create_file(path, sets, n);
    if (!s && reserve) s = reserve_blocks(path);
    if (s) unlink(path);
    return s;
}

/* ---- slabs ---- */

bool h5_next_piece(int rank, const int64_t *count, int64_t limit, struct h5_piece *p)
{
    int64_t total = 1, at = p->at + p->n, inner = 1;
    for (int i = 0; i < rank; i++) total *= count[i];
    if (at >= total) return false;
    /* `cut` is the dimension that is cut in steps; those behind it are whole, those before it go one by one. */
    int cut = rank - 1;
    while (cut > 0 && inner * count[cut] <= limit) inner *= count[cut--];
    *p = (struct h5_piece){.at = at};
    for (int i = 0; i < rank; i++) p->count[i] = i > cut ? count[i] : 1;
    int64_t rest = at / inner;
    for (int i = cut; i >= 0; i--) {
        p->start[i] = rest % count[i];
        rest /= count[i];
    }
    p->n = inner;
    if (cut >= 0) {
        int64_t step = limit / inner > 0 ? limit / inner : 1, left = count[cut] - p->start[cut];
        p->count[cut] = left < step ? left : step;
        p->n *= p->count[cut];
    }
    return true;
}

enum status h5_set_open(struct h5file *f, int entry, hid_t *set)
{
    if (f->set < 0 || f->set_of != entry) {
        if (f->set >= 0) H5Dclose(f->set);
        f->set = H5Dopen2(f->file, f->entry[entry].name, H5P_DEFAULT);
        f->set_of = entry;
        if (f->set < 0) return H5_FAIL(ERR_FORMAT, f->path, "cannot open %s", f->entry[entry].name);
    }
    *set = f->set;
    return OK;
}

enum status h5_stage(struct h5file *f)
{
    if (!f->stage) f->stage = malloc(H5_SLAB_BYTES);
    return f->stage ? OK : FAIL(ERR_MEMORY, "%s: staging of %d bytes", f->path, H5_SLAB_BYTES);
}

enum status h5_transfer(struct h5file *f, int entry, const int64_t *start, const int64_t *count, int64_t n, void *data,
                        bool write)
{
    const struct h5_entry *e = &f->entry[entry];
    hsize_t first[H5_MAX_RANK], extent[H5_MAX_RANK], flat = (hsize_t)n;
    hid_t set = -1;
    TRY(h5_set_open(f, entry, &set));
    for (int i = 0; i < e->rank; i++) {
        first[i] = (hsize_t)start[i];
        extent[i] = (hsize_t)count[i];
    }
    hid_t type = H5Dget_type(set), space = H5Dget_space(set), memory = H5Screate_simple(1, &flat, NULL);
    bool ok = type >= 0 && space >= 0 && memory >= 0;
    if (ok && e->rank) ok = H5Sselect_hyperslab(space, H5S_SELECT_SET, first, NULL, extent, NULL) >= 0;
    if (ok)
        ok = write ? H5Dwrite(set, type, memory, space, f->transfer, data) >= 0
                   : H5Dread(set, type, memory, space, f->transfer, data) >= 0;
    enum status s = ok ? OK : H5_FAIL(ERR_IO, f->path, "cannot %s %s", write ? "write" : "read", e->name);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (memory >= 0) H5Sclose(memory);
    return s;
}

static enum status check_slab(struct h5file *f, const char *name, const int64_t *start, const int64_t *count,
                              enum dtype memory, int *entry, int64_t *n)
{
    TRY(h5_table_find(f, name, entry));
    const struct h5_entry *e = &f->entry[*entry];
    bool converts = (memory == DT_F32 && e->dtype == DT_BF16) || (memory == DT_BF16 && e->dtype == DT_F32);
    if (memory != e->dtype && !converts)
        return FAIL(ERR_INTERNAL, "%s: %s is %s, memory is %s", f->path, name, dtype_name(e->dtype), dtype_name(memory));
    *n = 1;
    for (int i = 0; i < e->rank; i++) {
        if (start[i] < 0 || count[i] < 0 || start[i] > e->dim[i] || count[i] > e->dim[i] - start[i])
            return FAIL(ERR_INTERNAL, "%s: %s: slab %" PRId64 "+%" PRId64 " of dimension %d, which has %" PRId64,
                        f->path, name, start[i], count[i], i, e->dim[i]);
        *n *= count[i];
    }
    return OK;
}

static void convert(void *to, enum dtype t, const void *from, int64_t n)
{
    if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = bf16_from_float(((const float *)from)[i]);
    else
        for (int64_t i = 0; i < n; i++) ((float *)to)[i] = float_from_bf16(((const uint16_t *)from)[i]);
}

static enum status keep_row(struct h5file *f, int entry, const int64_t *start, const int64_t *count, uint64_t hash)
{
    if (f->rows == f->row_room) {
        int64_t room = f->row_room ? 2 * f->row_room : 256;
        void *p = realloc(f->row, (size_t)room * sizeof *f->row);
        if (!p) return FAIL(ERR_MEMORY, "%s: checksums of %" PRId64 " slabs", f->path, room);
        f->row = p;
        f->row_room = room;
    }
    struct h5_row *r = &f->row[f->rows++];
    *r = (struct h5_row){.entry = entry, .slab.hash = hash};
    for (int i = 0; i < H5_MAX_RANK; i++) {
        r->slab.start[i] = i < f->entry[entry].rank ? start[i] : 0;
        r->slab.count[i] = i < f->entry[entry].rank ? count[i] : 1;
    }
    return OK;
}

static enum status write_piece(struct h5file *f, int entry, const int64_t *start, const struct h5_piece *p,
                               enum dtype memory, const void *data)
{
    const struct h5_entry *e = &f->entry[entry];
    int64_t at[H5_MAX_RANK];
    for (int i = 0; i < e->rank; i++) at[i] = start[i] + p->start[i];
    const char *from = (const char *)data + p->at * (int64_t)dtype_size(memory);
    if (memory != e->dtype) {
        TRY(h5_stage(f));
        convert(f->stage, e->dtype, from, p->n);
        from = f->stage;
    }
    TRY(h5_transfer(f, entry, at, p->count, p->n, (void *)from, true));
    return keep_row(f, entry, at, p->count, XXH3_64bits(from, (size_t)p->n * dtype_size(e->dtype)));
}

enum status h5_write_slab(struct h5file *f, const char *name, const int64_t *start, const int64_t *count,
                          enum dtype memory, const void *data)
{
    H5_LOCKED;
    int entry = 0;
    int64_t n;
    if (!f->write) return FAIL(ERR_INTERNAL, "%s: %s: the file is open for reading", f->path, name);
    TRY(check_slab(f, name, start, count, memory, &entry, &n));
    struct h5_piece p = {.n = 0};
    int64_t limit = H5_SLAB_BYTES / (int64_t)dtype_size(f->entry[entry].dtype);
    while (n && h5_next_piece(f->entry[entry].rank, count, limit, &p))
        TRY(write_piece(f, entry, start, &p, memory, data));
    return OK;
}

static enum status read_piece(struct h5file *f, int entry, const int64_t *start, const struct h5_piece *p,
                              enum dtype memory, void *data)
{
    const struct h5_entry *e = &f->entry[entry];
    int64_t at[H5_MAX_RANK];
    for (int i = 0; i < e->rank; i++) at[i] = start[i] + p->start[i];
    char *to = (char *)data + p->at * (int64_t)dtype_size(memory);
    if (memory == e->dtype) return h5_transfer(f, entry, at, p->count, p->n, to, false);
    TRY(h5_stage(f));
    TRY(h5_transfer(f, entry, at, p->count, p->n, f->stage, false));
    convert(to, memory, f->stage, p->n);
    return OK;
}

enum status h5_read_slab(struct h5file *f, const char *name, const int64_t *start, const int64_t *count,
                         enum dtype memory, void *data)
{
    H5_LOCKED;
    int entry = 0;
    int64_t n;
    TRY(check_slab(f, name, start, count, memory, &entry, &n));
    struct h5_piece p = {.n = 0};
    int64_t limit = H5_SLAB_BYTES / (int64_t)dtype_size(f->entry[entry].dtype);
    while (n && h5_next_piece(f->entry[entry].rank, count, limit, &p))
        TRY(read_piece(f, entry, start, &p, memory, data));
    return OK;
}

enum status h5_offset(struct h5file *f, const char *name, int64_t *offset)
{
    H5_LOCKED;
    int entry = 0;
    hid_t set = -1;
    TRY(h5_table_find(f, name, &entry));
    TRY(h5_set_open(f, entry, &set));
    haddr_t at = H5Dget_offset(set);
    if (at == HADDR_UNDEF || at > INT64_MAX) return H5_FAIL(ERR_FORMAT, f->path, "%s has no offset", name);
    *offset = (int64_t)at;
    return OK;
}
