/* State files in HDF5: global arrays that any mesh, h5py, h5ls and h5dump can read. Every H5* call of the program is in
 * io/hdf5*.c, behind one lock, because the library is not thread-safe.
 *
 * How a file comes to be:
 *     one process    h5_create (datasets, storage), h5_open_serial, h5_put_*, h5_close
 *     all ranks      h5_open_parallel, h5_write_slab (each its own slabs), h5_close: flushes and stores checksums
 *     one process    h5_mark_complete, after every file of the checkpoint is closed
 * and how it is read: h5_is_complete, h5_open_serial by every rank by itself, h5_verify_all(f, rank, size), slabs.
 *
 * Layout. Datasets are contiguous, allocated when they are created and never filled; what is large begins at a multiple
 * of 4 MiB. The file is written in the 1.8 format, whose metadata carries the library's own checksums. BF16 is an HDF5
 * float of 2 bytes (sign 15, exponent bits 7 to 14 with bias 127, mantissa 0 to 6). A root attribute `format_version`
 * is checked when a file is opened. Nothing but hard links, contiguous internal storage and the dtypes F32, BF16, F64,
 * I32, I64, U8 is accepted.
 *
 * Checksums. A slab is a hyperrectangle of a dataset. Whoever writes one records XXH3-64 over its bytes in the
 * dataset's dtype, row-major order. The attribute `xxh3` of a dataset holds one row a slab, unsigned 64 bit:
 *     start[0..rank-1]  count[0..rank-1]  hash
 * The slabs of a dataset cover it exactly once, so a reader on any mesh can check what it reads. No slab, and no
 * transfer, is larger than H5_SLAB_BYTES.
 *
 * Errors: ERR_IO when the system or the library refuses, ERR_FORMAT when a file is not what it should be, ERR_INTERNAL
 * when a call does not fit the file (both values are named). Files are untrusted until h5_verify_all has passed. */
#ifndef HDF5_H
#define HDF5_H
#include "tensor.h"
#include <mpi.h>
#include <stdio.h>

enum { H5_MAX_RANK = 4, H5_MAX_NAME = 255, H5_SLAB_BYTES = 64 << 20, H5_FORMAT_VERSION = 1 };

struct h5file; /* opaque */

struct h5_dataset {
    const char *name;         /* "/model/lm_head.weight": groups are created on the way */
    enum dtype dtype;
    int rank;                 /* 0 (one element) to 4 */
    int64_t dim[H5_MAX_RANK];
};

struct h5_slab {
    int64_t start[H5_MAX_RANK], count[H5_MAX_RANK];
    uint64_t hash;
};

/* Creates `path` (0600; an existing file is refused) with all datasets and their storage. One process, without MPI.
 * `reserve`: takes the disk blocks too where the file system can, so that a full disk is an error here. On failure no
 * file is left. */
enum status h5_create(const char *path, const struct h5_dataset *sets, int n, bool reserve);

/* Opens for one process. A reader takes no lock; a writer takes the library's. */
enum status h5_open_serial(struct h5file **f, const char *path, bool write);
/* Opens through MPI-IO; attributes are for serial files only. All ranks succeed or all fail, with ERR_PEER on those
 * that had no error of their own. *Collective over comm.* */
enum status h5_open_parallel(struct h5file **f, MPI_Comm comm, const char *path, bool write);
/* Ends with the caller's status so far: `mine` OK on every rank flushes to disk what was written and stores the
 * checksums of the slabs written (replacing those of the same datasets). Where any rank brings a failure, none are
 * stored and all fail, with ERR_PEER on those that had none of their own. Frees *f in every case and returns the
 * status; NULL returns `mine`. *Collective over the file's communicator when parallel.* */
enum status h5_close(struct h5file **f, enum status mine);
const char *h5_path(const struct h5file *f);

/* Moves the hyperslab [start, start + count) between `data` (contiguous, row-major, of dtype `memory`) and a dataset.
 * Independent: ranks may do any number of transfers, also none; an empty slab is fine. memory must be the dataset's
 * dtype, or F32 for BF16 (rounded to nearest even) and the reverse. */
enum status h5_write_slab(struct h5file *f, const char *name, const int64_t *start, const int64_t *count,
                          enum dtype memory, const void *data);
enum status h5_read_slab(struct h5file *f, const char *name, const int64_t *start, const int64_t *count,
                         enum dtype memory, void *data);

/* Walks the pieces of a slab of at most `limit` elements, each contiguous in row-major memory. Begin with
 * *p = {0}; false when there are no more. start is relative to the slab; n elements begin at element `at`. */
struct h5_piece {
    int64_t start[H5_MAX_RANK], count[H5_MAX_RANK], at, n;
};
bool h5_next_piece(int rank, const int64_t *count, int64_t limit, struct h5_piece *p);

/* Datasets in the order of their names. `d` is borrowed. The walk ends with the first status that is not OK. */
typedef enum status (*h5_list_fn)(void *ctx, const struct h5_dataset *d);
enum status h5_list(const struct h5file *f, h5_list_fn fn, void *ctx);
/* ERR_FORMAT when there is none of that name. `d->name` is borrowed from f. */
enum status h5_find(const struct h5file *f, const char *name, struct h5_dataset *d);

/* Attributes of an object ("/" or a dataset). An existing one of that name is replaced. Text is UTF-8, fixed size. */
enum status h5_put_text(struct h5file *f, const char *object, const char *name, const char *value);
enum status h5_put_int(struct h5file *f, const char *object, const char *name, int64_t value);
enum status h5_put_ints(struct h5file *f, const char *object, const char *name, const int64_t *value, int n);
enum status h5_put_double(struct h5file *f, const char *object, const char *name, double value);
/* ERR_FORMAT when absent, of another kind, of another length, or text of more than 16 MiB. *text is malloc'ed. */
enum status h5_get_text(struct h5file *f, const char *object, const char *name, char **text);
enum status h5_get_int(struct h5file *f, const char *object, const char *name, int64_t *value);
enum status h5_get_ints(struct h5file *f, const char *object, const char *name, int64_t *value, int n);
enum status h5_get_double(struct h5file *f, const char *object, const char *name, double *value);
/* Every attribute of an object but xxh3, its value written out ("4", "1 2 3", "0.5", the text; others by their kind). */
typedef enum status (*h5_attribute_fn)(void *ctx, const char *name, const char *value);
enum status h5_attributes(struct h5file *f, const char *object, h5_attribute_fn fn, void *ctx);

/* The stored slabs of a dataset, sorted by start, checked to cover it exactly once. *slabs is malloc'ed. ERR_FORMAT
 * names the dataset when there are none or they do not fit. */
enum status h5_slabs(struct h5file *f, const char *name, struct h5_slab **slabs, int64_t *n);
/* Reads and hashes the slabs of a dataset that touch the box [start, start + count) (NULL: all). *ok false: *bad is the
 * first whose bytes are not what was written. */
enum status h5_verify(struct h5file *f, const char *name, const int64_t *start, const int64_t *count, bool *ok,
                      struct h5_slab *bad);
/* Every dataset; the slabs are dealt out over `size` verifiers of which this is `rank` (0 of 1: all). ERR_FORMAT with
 * the name of the first dataset that is damaged and where. */
enum status h5_verify_all(struct h5file *f, int rank, int size);

/* Writes the root attribute `complete`, the last thing that happens to a file, and syncs file and folder. */
enum status h5_mark_complete(const char *path);
/* True for a whole file that was marked complete. Otherwise status_message() has the reason. Safe on any file. */
bool h5_is_complete(const char *path);

/* Byte offset of a dataset's storage in the file, for direct access to it. */
enum status h5_offset(struct h5file *f, const char *name, int64_t *offset);
/* OK when every rank brings OK; a rank with a failure keeps it, the others get ERR_PEER: "what: rank 2 of 4 failed".
 * *Collective over comm.* */
enum status h5_agree(MPI_Comm comm, const char *what, enum status mine);
#endif
