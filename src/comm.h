/* Collectives over tensors and groups. One interface, transports behind it: MPI for host memory (device memory is
 * staged through pinned buffers), NCCL between GPUs.
 *
 * Every operation of this header is *Collective over g*: all members call it in the same order with matching sizes. A
 * group of one returns at once (outputs are copied only where out and in differ). With `pending` NULL a call returns
 * when the data is there; otherwise comm_wait(pending) does, and the buffers belong to the operation until then.
 *
 * While an operation is waited for, a watchdog counts: after comm_timeout seconds the members tell each other who is
 * waiting for what, the missing ranks are named with the operation and the step, and ERR_COMM ends the job.
 *
 * Bytes are counted as what leaves this rank in the textbook algorithm over n members: all-reduce 2 (n-1)/n of the
 * tensor, reduce-scatter and all-gather (n-1)/n of the whole, broadcast the tensor (root only), all-to-all and send
 * what goes to others. */
#ifndef COMM_H
#define COMM_H
#include "tensor.h"
#include <mpi.h>

struct ops;
struct stream;

struct group {
    MPI_Comm comm, watch; /* watch: the watchdog's own messages */
    int rank, size;
    int *members;       /* [size] world ranks */
    const char *name;   /* "tp", "pp", "dp", "plane", "kv", "ep", "edp", "world" */
    int64_t calls;      /* operations since the start */
    int64_t bytes;      /* sent by this rank since the start, counted as above */
};

/* An operation under way. Filled by the call that starts it, emptied by comm_wait(). */
struct pending {
    struct group *group;      /* NULL: nothing under way */
    const char *op;
    int64_t call;             /* number of the operation in its group */
    MPI_Request request;
    MPI_Datatype row;         /* to free, or MPI_DATATYPE_NULL */
    struct tensor out;        /* where the result belongs */
    struct tensor host;       /* where MPI puts it: out itself, or a staging buffer */
    void *scratch[2];         /* pool buffers to give back */
    int parts;                /* reduce-scatter: contributions in `host` still to be summed into out */
};

enum reduce_op { REDUCE_SUM, REDUCE_MAX };

/* Starts MPI (THREAD_MULTIPLE) and records world rank and size. Refuses N singletons started by a scheduler that
 * announced more tasks (SLURM_NTASKS, OMPI_COMM_WORLD_SIZE). */
enum status comm_open(int *argc, char ***argv);
/* Ends MPI; after a failure `aborting` ends every rank of the job with `exit_code`. */
void comm_close(bool aborting, int exit_code);
/* What the rank had that ERR_PEER here speaks of: all ranks end with its exit status. */
enum status comm_peer_status(void);
int comm_world_rank(void);
int comm_world_size(void);
/* Ranks of this host: mine among them, and how many. */
int comm_local_rank(void);
int comm_local_size(void);

/* Settings for all groups: watchdog seconds (0: never), a trace file ("" or NULL: none; one line an operation: step,
 * group, op, elements, dtype), the step that messages name, and the ops that stage device memory. */
enum status comm_configure(double timeout_s, const char *trace_path);
void comm_step(int64_t step);
void comm_device(const struct ops *ops, struct stream *s);

/* Group of the ranks of `parent` with equal color, ordered by key. Runs one operation on it. *Collective over parent.* */
enum status group_create(struct group *g, struct group *parent, int color, int key, const char *name);
enum status group_world(struct group *g); /* all ranks */
enum status group_node(struct group *g);  /* the ranks of this host */
void group_destroy(struct group *g);

/* The largest status of the members: OK only when all are OK. A rank whose own status is OK gets ERR_PEER naming the
 * lowest failing rank. Call before any collective that a failing member would skip. */
enum status comm_agree(struct group *g, enum status mine);
enum status comm_barrier(struct group *g);

enum status comm_all_reduce(struct group *g, struct tensor t, enum reduce_op op);
/* in [sum rows, ...] -> out [rows[rank], ...], rows NULL: equal shares. out may be the own part of in. */
enum status comm_reduce_scatter(struct group *g, struct tensor out, struct tensor in, const int64_t *rows,
                                struct pending *p);
/* in [rows[rank], ...] -> out [sum rows, ...]; in may be the own part of out. */
enum status comm_all_gather(struct group *g, struct tensor out, struct tensor in, const int64_t *rows,
                            struct pending *p);
enum status comm_broadcast(struct group *g, struct tensor t, int root);
/* Rows to and from each member, in member order. Refused before any traffic when the counts do not add up to the
 * tensors' rows. */
enum status comm_all_to_all(struct group *g, struct tensor out, struct tensor in, const int64_t *send_rows,
                            const int64_t *recv_rows, struct pending *p);
enum status comm_send(struct group *g, struct tensor t, int peer, struct pending *p);
enum status comm_recv(struct group *g, struct tensor t, int peer, struct pending *p);
enum status comm_wait(struct pending *p);

/* Small host values, for counts and decisions. */
enum status comm_sum_double(struct group *g, double *x, int n);
enum status comm_max_double(struct group *g, double *x, int n);
enum status comm_max_int(struct group *g, int64_t *x, int n);
/* Any bytes from root to all: size first, then data; *data is malloc'ed on the others and owned by the caller. */
enum status comm_broadcast_bytes(struct group *g, void **data, size_t *size, int root);

/* Elements one MPI call may move (2^31 - 1 by default); larger operations are split. Tests lower it. */
void comm_set_limit(int64_t elements);
#endif
