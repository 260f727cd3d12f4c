/* Shared by the hdf5 files only: the open file, the library's errors, and its lock. */
#ifndef HDF5_INNER_H
#define HDF5_INNER_H
#include "hdf5.h"

/* The library's headers one by one: its hdf5.h has the name of ours. */
#include <H5public.h>
#include <H5Apublic.h>
#include <H5Dpublic.h>
#include <H5Epublic.h>
#include <H5Fpublic.h>
#include <H5Gpublic.h>
#include <H5Ipublic.h>
#include <H5Lpublic.h>
#include <H5Opublic.h>
#include <H5Ppublic.h>
#include <H5Spublic.h>
#include <H5Tpublic.h>
#include <H5FDmpi.h>
#include <H5FDmpio.h>

struct h5_entry {
    char name[H5_MAX_NAME + 1];
    enum dtype dtype;
    int rank;
    int64_t dim[H5_MAX_RANK]; /* unused ones are 1 */
    int64_t elements;
};

struct h5_row {
    int entry;
    struct h5_slab slab;
};

struct h5file {
    char *path;
    hid_t file, transfer;    /* transfer: property list of reads and writes */
    bool write, parallel;
    MPI_Comm comm;
    struct h5_entry *entry;  /* sorted by name */
    int entries;
    hid_t set;               /* the dataset used last, entry `set_of`; -1: none */
    int set_of;
    struct h5_row *row;      /* slabs written here */
    int64_t rows, row_room;
    void *stage;             /* H5_SLAB_BYTES, for conversion and verification; NULL until needed */
};

/* Holds the library's lock to the end of the enclosing block; the first call silences the library's own printing. */
int h5_lock(void);
void h5_unlock(int *held);
#define H5_LOCKED int h5_held_ __attribute__((cleanup(h5_unlock), unused)) = h5_lock()

/* Records "path: <what>: <the library's innermost reason>" and clears the library's error stack; returns `code`. */
enum status h5_fail(enum status code, const char *file, int line, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define H5_FAIL(code, path, ...) h5_fail((code), __FILE__, __LINE__, (path), __VA_ARGS__)

/* The HDF5 type of a dtype (to be closed), negative when it has none; and the reverse, false when unknown. */
hid_t h5_type(enum dtype t);
bool h5_dtype(hid_t type, enum dtype *t);

/* File access properties (to be closed): the 1.8 format, whose metadata is checksummed; negative on failure. Without
 * `locks` the library takes none, whatever the environment says. */
hid_t h5_access(bool locks);

/* Fills f->entry from the open f->file: every dataset, checked against the file's size. */
enum status h5_table_read(struct h5file *f);
/* Entry of a name; ERR_FORMAT when there is none. */
enum status h5_table_find(const struct h5file *f, const char *name, int *entry);
/* Product of dims times the size of t: ERR_FORMAT when a dim is negative or the product leaves 2^62 bytes. */
enum status h5_extent(const char *name, enum dtype t, int rank, const int64_t *dim, int64_t *elements);

/* Handle of an entry's dataset, owned by f. */
enum status h5_set_open(struct h5file *f, int entry, hid_t *set);
enum status h5_stage(struct h5file *f);
/* One transfer of n elements, row-major, in the dataset's dtype. */
enum status h5_transfer(struct h5file *f, int entry, const int64_t *start, const int64_t *count, int64_t n, void *data,
                        bool write);

/* Stores the checksums of the rows (sorted here) in a file opened serially for writing. */
enum status h5_rows_store(struct h5file *f, struct h5_row *row, int64_t rows);
/* Replaces an attribute: `rank` dims of `type`. */
enum status h5_put(struct h5file *f, const char *object, const char *name, hid_t type, int rank, const int64_t *dim,
                   const void *value);
#endif
