/* The spill: state that is larger than memory, streamed from local disk one bucket at a time. It is scratch; durable
 * state is the checkpoint.
 *
 * One HDF5 file a node, DIR/m3-spill-UID/RUN.HOST/state.h5, with the datasets /rank_0000/<kind> of that node's ranks:
 * contiguous, allocated with real disk blocks before the first step (a full disk is an error at start), a multiple of
 * 4 MiB each. A dataset holds the buckets of one kind one behind the other, each at a multiple of 4 KiB. Ranks read and write at the datasets' file offsets with direct I/O, through the rank's
 * own I/O thread; the file stays an HDF5 file that h5ls and h5dump open. Where direct I/O is refused (tmpfs) the page
 * cache is used, with a warning.
 *
 * A run holds a lock as long as its first rank of the node lives. Folders of this user and host whose lock is free are
 * of dead runs and are removed by the next start; nothing else in DIR is touched. */
#ifndef SPILL_H
#define SPILL_H
#include "io_queue.h"
#include "tensor.h"
#include <mpi.h>

enum { SPILL_ALIGN = 4096, SPILL_DATASET_ALIGN = 4 << 20, SPILL_MAX_KINDS = 8 };

struct spill_kind {
    const char *name;         /* "master", "exp_avg", "exp_avg_sq" */
    enum dtype dtype;
};

struct spill_options {
    const char *dir;          /* created when missing */
    const char *run;          /* names the run: [A-Za-z0-9_.-], at most 64 */
    MPI_Comm node;            /* the ranks that share the file */
    int rank;                 /* world rank, for the names */
    const struct spill_kind *kind;
    int kinds;                /* the same on every rank */
    const int64_t *elements;  /* [buckets] of this rank; 0 is fine */
    int buckets;              /* of this rank; 0 is fine */
    bool checksums;           /* hash every bucket when it is written, compare when it is read */
};

struct spill; /* opaque */

/* Takes the folder, creates the file, opens it, starts the I/O thread. ERR_IO with bytes needed and free when the disk
 * is too small, with the holder when a live run uses the same name. All ranks succeed or fail together, with ERR_PEER
 * on those without an error of their own. *Collective over o->node.* */
enum status spill_create(struct spill **s, const struct spill_options *o);
/* Finishes the queue, closes; the first rank of the node removes file and folder. Not collective. NULL is fine. */
void spill_destroy(struct spill **s);

/* Bytes of a bucket's transfer: its elements rounded up to SPILL_ALIGN. Buffers have this size and alignment; what lies
 * behind the elements is written and read back as it is. */
int64_t spill_bytes(const struct spill *s, int kind, int bucket);
/* A size rounded up so: what a buffer for n elements needs. */
int64_t spill_round(int64_t n, enum dtype t);
/* Bytes of file that `buckets` of these sizes take. For planning. */
int64_t spill_file_bytes(const struct spill_kind *kind, int kinds, const int64_t *elements, int buckets);

/* Queue a transfer; the buffer belongs to it until spill_wait. Reading a bucket that was never written is
 * ERR_INTERNAL. */
enum status spill_read(struct spill *s, int kind, int bucket, void *buffer, int64_t *ticket);
enum status spill_write(struct spill *s, int kind, int bucket, void *buffer, int64_t *ticket);
/* The transfer's status; a damaged bucket is ERR_FORMAT with "/rank_0003/exp_avg bucket 17". */
enum status spill_wait(struct spill *s, int64_t ticket);

struct io_queue *spill_queue(struct spill *s);
const char *spill_path(const struct spill *s);
/* "" or what makes this spill slow: tmpfs, network, no direct I/O. */
const char *spill_warning(const struct spill *s);

/* ---- the folder; used by spill_create ---- */
struct spill_tree {
    char path[600];           /* DIR/m3-spill-UID/RUN.HOST */
    int lock;                 /* held; -1: none */
    int stale;                /* folders of dead runs that were removed */
};
enum status spill_tree_take(struct spill_tree *t, const char *dir, const char *run);
/* Removes the folder and what the spill puts there, and lets the lock go. */
void spill_tree_drop(struct spill_tree *t);
#endif
