/* Opening and closing state files: one process, or all ranks through MPI-IO. */
#include "hdf5_inner.h"

#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

hid_t h5_access(bool locks)
{
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (list < 0) return list;
    bool ok = H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_LATEST) >= 0;
    if (!locks) ok = ok && H5Pset_file_locking(list, 0, 1) >= 0;
    if (ok) return list;
    H5Pclose(list);
    return -1;
}

static void file_free(struct h5file **f)
{
    if (!*f) return;
    free((*f)->path);
    free((*f)->entry);
    free((*f)->row);
    free((*f)->stage);
    free(*f);
    *f = NULL;
}

static enum status file_new(struct h5file **f, const char *path, bool write)
{
    *f = calloc(1, sizeof **f);
    if (!*f) return FAIL(ERR_MEMORY, "%s: handle", path);
    **f = (struct h5file){.path = strdup(path), .file = -1, .transfer = -1, .write = write, .set = -1};
    if (!(*f)->path) {
        file_free(f);
        return FAIL(ERR_MEMORY, "%s: handle", path);
    }
    return OK;
}

static bool close_handles(struct h5file *f)
{
    bool ok = f->set < 0 || H5Dclose(f->set) >= 0;
    if (f->transfer >= 0) H5Pclose(f->transfer);
    if (f->file >= 0) ok = H5Fclose(f->file) >= 0 && ok;
    f->set = f->transfer = f->file = -1;
    return ok;
}

static enum status check_version(struct h5file *f)
{
    int64_t version;
    enum status s = h5_get_int(f, "/", "format_version", &version);
    if (s) return FAIL(ERR_FORMAT, "%s: not a state file of this program: it has no format_version", f->path);
    if (version != H5_FORMAT_VERSION)
        return FAIL(ERR_FORMAT, "%s: format_version %" PRId64 ", this program reads %d", f->path, version,
                    H5_FORMAT_VERSION);
    return OK;
}

/* The library would create nothing here, but it may block on a pipe or search a device. */
static enum status check_regular(const char *path)
{
    static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char head[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    ssize_t n = pread(fd, head, sizeof head, 0);
    close(fd);
    if (n != (ssize_t)sizeof head || memcmp(head, magic, sizeof head) != 0)
        return FAIL(ERR_FORMAT, "%s: not an HDF5 file", path);
    return OK;
}

enum status h5_open_serial(struct h5file **f, const char *path, bool write)
{
    H5_LOCKED;
    *f = NULL;
    TRY(check_regular(path));
    TRY(file_new(f, path, write));
    hid_t list = h5_access(write);
    if (list >= 0) (*f)->file = H5Fopen(path, write ? H5F_ACC_RDWR : H5F_ACC_RDONLY, list);
    enum status s = (*f)->file < 0 ? H5_FAIL(ERR_FORMAT, path, "cannot open") : OK;
    if (list >= 0) H5Pclose(list);
    if (!s) (*f)->transfer = H5Pcreate(H5P_DATASET_XFER);
    if (!s) s = check_version(*f);
    if (!s) s = h5_table_read(*f);
    if (!s) return OK;
    close_handles(*f);
    H5Eclear2(H5E_DEFAULT);
    file_free(f);
    return s;
}

enum status h5_agree(MPI_Comm comm, const char *what, enum status mine)
{
    int rank, size, first;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int failed = mine ? rank : size;
    if (MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS)
        return mine ? mine : FAIL(ERR_COMM, "%s: the ranks cannot agree", what);
    if (mine || first == size) return mine;
    return FAIL(ERR_PEER, "%s: rank %d of %d failed", what, first, size);
}

/* Rank 0 reads the table of contents once, for all. */
static enum status share_table(struct h5file *f, const char *path)
{
    int rank;
    MPI_Comm_rank(f->comm, &rank);
    enum status s = OK;
    struct h5file *first = NULL;
    if (rank == 0) s = h5_open_serial(&first, path, false);
    TRY(h5_agree(f->comm, path, s));
    if (first) f->entries = first->entries;
    MPI_Bcast(&f->entries, 1, MPI_INT, 0, f->comm);
    int64_t bytes = (int64_t)f->entries * (int64_t)sizeof *f->entry;
    if (first) {
        f->entry = first->entry;
        first->entry = NULL;
        h5_close(&first, OK);
    } else {
        f->entry = malloc(bytes ? (size_t)bytes : 1);
        if (!f->entry) s = FAIL(ERR_MEMORY, "%s: table of %d datasets", path, f->entries);
    }
    TRY(h5_agree(f->comm, path, s));
    for (int64_t at = 0; at < bytes;) {
        int n = bytes - at > INT_MAX ? INT_MAX : (int)(bytes - at);
        MPI_Bcast((char *)f->entry + at, n, MPI_BYTE, 0, f->comm);
        at += n;
    }
    return OK;
}

static enum status open_mpio(struct h5file *f)
{
    hid_t list = h5_access(true);
    enum status s = OK;
    f->transfer = H5Pcreate(H5P_DATASET_XFER);
    if (list < 0 || f->transfer < 0 || H5Pset_fapl_mpio(list, f->comm, MPI_INFO_NULL) < 0 ||
        H5Pset_dxpl_mpio(f->transfer, H5FD_MPIO_INDEPENDENT) < 0)
        s = H5_FAIL(ERR_IO, f->path, "access through MPI-IO");
    s = h5_agree(f->comm, f->path, s);
    if (!s) {
        f->file = H5Fopen(f->path, f->write ? H5F_ACC_RDWR : H5F_ACC_RDONLY, list);
        if (f->file < 0) s = H5_FAIL(ERR_IO, f->path, "cannot open through MPI-IO");
        s = h5_agree(f->comm, f->path, s);
    }
    if (list >= 0) H5Pclose(list);
    return s;
}

enum status h5_open_parallel(struct h5file **f, MPI_Comm comm, const char *path, bool write)
{
    H5_LOCKED;
    TRY(h5_agree(comm, path, file_new(f, path, write)));
    (*f)->parallel = true;
    enum status s = OK;
    if (MPI_Comm_dup(comm, &(*f)->comm) != MPI_SUCCESS) {
        file_free(f);
        return FAIL(ERR_COMM, "%s: no communicator for the file", path);
    }
    s = share_table(*f, path);
    if (!s) s = open_mpio(*f);
    if (!s) return OK;
    close_handles(*f);
    H5Eclear2(H5E_DEFAULT);
    MPI_Comm_free(&(*f)->comm);
    file_free(f);
    return s;
}

/* All ranks' rows on rank 0, in a malloc'ed array. */
static enum status gather_rows(struct h5file *f, struct h5_row **all, int64_t *total)
{
    int rank, size;
    MPI_Comm_rank(f->comm, &rank);
    MPI_Comm_size(f->comm, &size);
    int64_t bytes = f->rows * (int64_t)sizeof *f->row, sum = 0;
    int mine = bytes > INT_MAX / size ? -1 : (int)bytes, *count = calloc(2 * (size_t)size, sizeof *count), *at = NULL;
    enum status s = OK;
    *all = NULL;
    if (mine < 0) s = FAIL(ERR_INTERNAL, "%s: checksums of %" PRId64 " slabs", f->path, f->rows);
    if (!count) s = FAIL(ERR_MEMORY, "%s: counts of %d ranks", f->path, size);
    TRY_GOTO(s, done, h5_agree(f->comm, f->path, s));
    at = count + size;
    MPI_Gather(&mine, 1, MPI_INT, count, 1, MPI_INT, 0, f->comm);
    if (rank == 0) {
        for (int r = 0; r < size; r++) {
            at[r] = (int)sum;
            sum += count[r];
        }
        *all = malloc(sum ? (size_t)sum : 1);
        if (!*all) s = FAIL(ERR_MEMORY, "%s: checksums of %" PRId64 " bytes", f->path, sum);
    }
    TRY_GOTO(s, done, h5_agree(f->comm, f->path, s));
    MPI_Gatherv(f->row, mine, MPI_BYTE, *all, count, at, MPI_BYTE, 0, f->comm);
    *total = sum / (int64_t)sizeof **all;
done:
    free(count);
    return s;
}

static enum status store_and_sync(const char *path, struct h5_row *row, int64_t rows)
{
    struct h5file *f;
    TRY(h5_open_serial(&f, path, true));
    enum status s = h5_rows_store(f, row, rows);
    if (!close_handles(f) && !s) s = H5_FAIL(ERR_IO, path, "cannot close");
    file_free(&f);
    if (!s) s = fs_sync(path);
    return s;
}

static enum status close_parallel(struct h5file *f, enum status s)
{
    struct h5_row *all = NULL;
    int64_t total = 0;
    int rank;
    MPI_Comm_rank(f->comm, &rank);
    s = h5_agree(f->comm, f->path, s);
    if (!s && f->write && H5Fflush(f->file, H5F_SCOPE_GLOBAL) < 0) s = H5_FAIL(ERR_IO, f->path, "cannot flush");
    if (!close_handles(f) && !s) s = H5_FAIL(ERR_IO, f->path, "cannot close");
    H5Eclear2(H5E_DEFAULT);
    s = h5_agree(f->comm, f->path, s);
    if (!s && f->write) {
        s = gather_rows(f, &all, &total);
        if (!s && rank == 0) s = store_and_sync(f->path, all, total);
        s = h5_agree(f->comm, f->path, s);
        free(all);
    }
    MPI_Comm_free(&f->comm);
    return s;
}

static enum status close_serial(struct h5file *f, enum status s)
{
    if (!s && f->write) s = h5_rows_store(f, f->row, f->rows);
    if (!close_handles(f) && !s) s = H5_FAIL(ERR_IO, f->path, "cannot close");
    H5Eclear2(H5E_DEFAULT);
    if (!s && f->write) s = fs_sync(f->path);
    return s;
}

enum status h5_close(struct h5file **f, enum status mine)
{
    H5_LOCKED;
    if (!*f) return mine;
    enum status s = (*f)->parallel ? close_parallel(*f, mine) : close_serial(*f, mine);
    file_free(f);
    return s;
}

const char *h5_path(const struct h5file *f) { return f->path; }
