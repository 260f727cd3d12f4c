/* Collectives over MPI. Host buffers go to MPI as they are; device buffers pass through pinned staging buffers of a pool
 * (which also lets several ranks share one GPU). A reduce-scatter is an all-to-all of the contributions, summed here in
 * rank order in float32: the same bits whatever algorithm MPI would choose, and bf16 is rounded once. */
#include "comm.h"

#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POOL_BUFFERS = 64 };

static struct {
    int rank, size, local_rank, local_size;
    enum status peer;   /* of the rank that ERR_PEER here stands for */
    double timeout;
    int trace;          /* file descriptor or -1 */
    int64_t step, limit;
    const struct ops *ops;
    struct stream *stream;
    MPI_Op bf16_sum, bf16_max;
    struct buffer { void *data; size_t size; bool used; enum place place; } pool[POOL_BUFFERS];
} comm = {.size = 1, .local_size = 1, .timeout = 0, .trace = -1, .limit = INT32_MAX};

#define TRY_MPI(call)                                                                                                  \
    do {                                                                                                               \
        int mpi_ = (call);                                                                                             \
        if (mpi_ != MPI_SUCCESS) return fail_mpi(mpi_, #call, __FILE__, __LINE__);                                      \
    } while (0)

static enum status fail_mpi(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    MPI_Error_string(code, text, &n);
    return status_fail(ERR_COMM, file, line, "%.*s: %.*s", (int)strcspn(call, "("), call, n, text);
}

/* ---------------------------------------------------------------- start and end ---------------------------------- */

static void bf16_reduce(void *in, void *inout, int *n, bool max)
{
    const uint16_t *a = in;
    uint16_t *b = inout;
    for (int i = 0; i < *n; i++) {
        float x = float_from_bf16(a[i]), y = float_from_bf16(b[i]);
        b[i] = bf16_from_float(max ? (x > y ? x : y) : x + y);
    }
}
static void bf16_sum(void *in, void *inout, int *n, MPI_Datatype *t) { (void)t; bf16_reduce(in, inout, n, false); }
static void bf16_max(void *in, void *inout, int *n, MPI_Datatype *t) { (void)t; bf16_reduce(in, inout, n, true); }

/* N tasks that srun started without a PMI would each be a job of its own; Open MPI may also end them with a text about its
 * build. Only a task that srun started has SLURM_STEP_NUM_TASKS; a shell inside an allocation has SLURM_NTASKS alone. */
static enum status refuse_singletons(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *task = getenv("SLURM_PROCID");
    if (!tasks || !task || atoi(tasks) < 2 || getenv("PMIX_RANK") || getenv("PMI_RANK") || getenv("OMPI_COMM_WORLD_SIZE")) return OK;
    comm.rank = atoi(task);
    return FAIL(ERR_USAGE, "srun started %s tasks that know nothing of each other: launch with srun --mpi=pmix", tasks);
}

enum status comm_open(int *argc, char ***argv)
{
    int level = 0, on = 0;
    TRY(refuse_singletons());
    MPI_Initialized(&on);
    if (!on) TRY_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level));
    MPI_Query_thread(&level);
    TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm.size);
    MPI_Comm node;
    TRY_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    MPI_Comm_rank(node, &comm.local_rank);
    MPI_Comm_size(node, &comm.local_size);
    MPI_Comm_free(&node);
    TRY_MPI(MPI_Op_create(bf16_sum, 1, &comm.bf16_sum));
    TRY_MPI(MPI_Op_create(bf16_max, 1, &comm.bf16_max));
    if (level < MPI_THREAD_MULTIPLE)
        return FAIL(ERR_COMM, "MPI gives thread level %d, MPI_THREAD_MULTIPLE (%d) is needed", level,
                    MPI_THREAD_MULTIPLE);
    return OK;
}

void comm_close(bool aborting, int exit_code)
{
    if (comm.trace >= 0) close(comm.trace);
    comm.trace = -1;
    int on = 0;
    MPI_Initialized(&on);
    if (!on) return;
    /* the rank whose failure it is ends the job, with its message and status; the others wait for that, not for ever */
    if (aborting && comm.peer) nanosleep(&(struct timespec){3, 0}, NULL);
    if (aborting) MPI_Abort(MPI_COMM_WORLD, exit_code);
    for (int i = 0; i < POOL_BUFFERS; i++) {
        struct buffer *b = &comm.pool[i];
        if (b->place == PLACE_HOST) free(b->data);
        else if (comm.ops) comm.ops->release(b->data, b->place);
        *b = (struct buffer){0};
    }
    MPI_Op_free(&comm.bf16_sum);
    MPI_Op_free(&comm.bf16_max);
    MPI_Finalize();
}

enum status comm_peer_status(void) { return comm.peer ? comm.peer : ERR_PEER; }
int comm_world_rank(void) { return comm.rank; }
int comm_world_size(void) { return comm.size; }
int comm_local_rank(void) { return comm.local_rank; }
int comm_local_size(void) { return comm.local_size; }
void comm_step(int64_t step) { comm.step = step; }
void comm_set_limit(int64_t elements) { comm.limit = elements; }

void comm_device(const struct ops *ops, struct stream *s)
{
    comm.ops = ops;
    comm.stream = s;
}

enum status comm_configure(double timeout_s, const char *trace_path)
{
    comm.timeout = timeout_s;
    if (comm.trace >= 0) close(comm.trace);
    comm.trace = -1;
    if (!trace_path || !*trace_path) return OK;
    comm.trace = open(trace_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (comm.trace < 0) return FAIL(ERR_IO, "%s: cannot open the trace: %s", trace_path, strerror(errno));
    return OK;
}

/* ---------------------------------------------------------------- groups ----------------------------------------- */

static enum status group_adopt(struct group *g, MPI_Comm c, const char *name)
{
    *g = (struct group){.comm = c, .name = name};
    MPI_Comm_rank(c, &g->rank);
    MPI_Comm_size(c, &g->size);
    TRY_MPI(MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_dup(c, &g->watch));
    g->members = malloc((size_t)g->size * sizeof *g->members);
    if (!g->members) return FAIL(ERR_MEMORY, "group %s: no memory for %d ranks", name, g->size);
    TRY_MPI(MPI_Allgather(&comm.rank, 1, MPI_INT, g->members, 1, MPI_INT, c));
    /* the first operation now, so that a network that cannot serve this group shows before anything is loaded */
    double one = 1;
    TRY(comm_sum_double(g, &one, 1));
    if ((int)one != g->size) return FAIL(ERR_COMM, "group %s: first sum gave %g of %d ranks", name, one, g->size);
    return OK;
}

enum status group_create(struct group *g, struct group *parent, int color, int key, const char *name)
{
    MPI_Comm c;
    TRY_MPI(MPI_Comm_split(parent->comm, color, key, &c));
    return group_adopt(g, c, name);
}

enum status group_world(struct group *g)
{
    MPI_Comm c;
    TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &c));
    return group_adopt(g, c, "world");
}

enum status group_node(struct group *g)
{
    MPI_Comm c;
    TRY_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm.rank, MPI_INFO_NULL, &c));
    return group_adopt(g, c, "node");
}

void group_destroy(struct group *g)
{
    if (g->size == 0) return;
    MPI_Comm_free(&g->comm);
    MPI_Comm_free(&g->watch);
    free(g->members);
    *g = (struct group){0};
}

/* ---------------------------------------------------------------- buffers ---------------------------------------- */

static enum status pool_take(void **data, size_t bytes, enum place place)
{
    struct buffer *best = NULL, *empty = NULL;
    for (int i = 0; i < POOL_BUFFERS; i++) {
        struct buffer *b = &comm.pool[i];
        if (b->used) continue;
        if (!b->data) empty = b;
        else if (b->place == place && b->size >= bytes && (!best || b->size < best->size)) best = b;
    }
    if (!best) {
        if (!empty) /* every slot holds a buffer that is too small: replace one */
            for (int i = 0; i < POOL_BUFFERS && !empty; i++)
                if (!comm.pool[i].used && comm.pool[i].place == place) {
                    empty = &comm.pool[i];
                    if (place == PLACE_HOST) free(empty->data);
                    else comm.ops->release(empty->data, place);
                }
        if (!empty) return FAIL(ERR_INTERNAL, "more than %d communication buffers in use", POOL_BUFFERS);
        empty->data = NULL;
        if (place == PLACE_HOST) empty->data = malloc(bytes ? bytes : 1);
        else TRY(comm.ops->alloc(&empty->data, bytes ? bytes : 1, place));
        if (!empty->data) return FAIL(ERR_MEMORY, "communication buffer of %zu bytes", bytes);
        empty->size = bytes;
        empty->place = place;
        best = empty;
    }
    best->used = true;
    *data = best->data;
    return OK;
}

static void pool_give(void *data)
{
    for (int i = 0; data && i < POOL_BUFFERS; i++)
        if (comm.pool[i].data == data) comm.pool[i].used = false;
}

/* `t` itself when MPI can reach it, else a pinned copy of the same shape (filled when `fill`). */
static enum status stage(struct tensor t, bool fill, struct tensor *host, void **scratch)
{
    *host = t;
    if (t.place != PLACE_DEVICE) return OK;
    TRY(pool_take(scratch, tensor_bytes(t), PLACE_PINNED));
    *host = t;
    host->data = *scratch;
    host->place = PLACE_PINNED;
    if (!fill) return OK;
    TRY(comm.ops->copy(*host, t, comm.stream));
    return comm.ops->wait(comm.stream);
}

static MPI_Datatype mpi_type(enum dtype t)
{
    switch (t) {
    case DT_F32: return MPI_FLOAT;
    case DT_F64: return MPI_DOUBLE;
    case DT_BF16:
    case DT_F16: return MPI_UINT16_T;
    case DT_I32: return MPI_INT32_T;
    case DT_I64: return MPI_INT64_T;
    default: return MPI_BYTE;
    }
}

/* ---------------------------------------------------------------- waiting ---------------------------------------- */

/* The members that wait for an operation of this group tell each other; the silent ones are missing. */
static enum status name_missing(struct pending *p, double waited)
{
    struct group *g = p->group;
    int64_t mine = p->call;
    MPI_Request *out = calloc((size_t)g->size, sizeof *out);
    char *heard = calloc((size_t)g->size, 1);
    if (!out || !heard) return FAIL(ERR_MEMORY, "watchdog of group %s", g->name);
    for (int i = 0; i < g->size; i++) {
        out[i] = MPI_REQUEST_NULL;
        if (i != g->rank) MPI_Isend(&mine, 1, MPI_INT64_T, i, 0, g->watch, &out[i]);
    }
    heard[g->rank] = 1;
    double grace = comm.timeout < 8 ? 2 : comm.timeout / 4, until = time_now() + (grace < 20 ? grace : 20);
    int done = 0;
    while (!done && time_now() < until) {
        int flag = 0;
        MPI_Status st;
        MPI_Iprobe(MPI_ANY_SOURCE, 0, g->watch, &flag, &st);
        if (flag) {
            int64_t theirs;
            MPI_Recv(&theirs, 1, MPI_INT64_T, st.MPI_SOURCE, 0, g->watch, MPI_STATUS_IGNORE);
            if (theirs >= mine) heard[st.MPI_SOURCE] = 1;
        } else {
            sched_yield();
        }
        MPI_Test(&p->request, &done, MPI_STATUS_IGNORE);
    }
    char list[256] = "";
    int n = 0, missing = 0;
    for (int i = 0; i < g->size; i++)
        if (!heard[i]) {
            missing++;
            if (n < (int)sizeof list - 12) n += snprintf(list + n, sizeof list - (size_t)n, " %d", g->members[i]);
        }
    free(out);
    free(heard);
    if (done) {
        log_warn("step %" PRId64 ": %s on group %s took %.1f s", comm.step, p->op, g->name, waited);
        return OK;
    }
    return FAIL(ERR_COMM, "step %" PRId64 ": %s (call %" PRId64 ") on group %s waited %.1f s, over comm.timeout_s=%g; "
                "missing ranks:%s", comm.step, p->op, p->call, g->name, waited, comm.timeout,
                missing ? list : " none (all wait: the network lost it)");
}

static enum status wait_request(struct pending *p)
{
    double start = time_now();
    for (int64_t turn = 0;; turn++) {
        int done = 0;
        TRY_MPI(MPI_Test(&p->request, &done, MPI_STATUS_IGNORE));
        if (done) return OK;
        if (turn < 64) continue;
        double waited = time_now() - start;
        if (comm.timeout > 0 && waited > comm.timeout) {
            TRY(name_missing(p, waited));
            return OK;
        }
        /* ranks that share a core must let each other run; long waits stop burning it */
        if (waited < 0.02) sched_yield();
        else nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

static void add_part(struct tensor out, const void *part, bool first)
{
    int64_t n = tensor_count(out);
    if (out.dtype == DT_F32) {
        float *y = out.data;
        const float *x = part;
        for (int64_t i = 0; i < n; i++) y[i] = first ? x[i] : y[i] + x[i];
    } else {
        double *y = out.data;
        const double *x = part;
        for (int64_t i = 0; i < n; i++) y[i] = first ? x[i] : y[i] + x[i];
    }
}

static void add_parts_bf16(struct tensor out, const uint16_t *parts, int n_parts)
{
    int64_t n = tensor_count(out);
    uint16_t *y = out.data;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < n_parts; r++) sum += float_from_bf16(parts[r * n + i]);
        y[i] = bf16_from_float(sum);
    }
}

static enum status finish(struct pending *p)
{
    struct tensor out = p->out;
    if (p->parts) { /* sum the contributions, in rank order, into host memory */
        struct tensor sum = out;
        void *scratch = NULL;
        TRY(stage(out, false, &sum, &scratch));
        size_t bytes = tensor_bytes(out);
        if (out.dtype == DT_BF16) add_parts_bf16(sum, p->host.data, p->parts);
        else
            for (int r = 0; r < p->parts; r++) add_part(sum, (char *)p->host.data + (size_t)r * bytes, r == 0);
        if (sum.data != out.data) {
            TRY(comm.ops->copy(out, sum, comm.stream));
            TRY(comm.ops->wait(comm.stream));
        }
        pool_give(scratch);
    } else if (p->host.data != out.data) {
        TRY(comm.ops->copy(out, p->host, comm.stream));
        TRY(comm.ops->wait(comm.stream));
    }
    return OK;
}

enum status comm_wait(struct pending *p)
{
    if (!p->group) return OK;
    TRY(wait_request(p));
    if (p->row != MPI_DATATYPE_NULL) MPI_Type_free(&p->row);
    TRY(finish(p));
    pool_give(p->scratch[0]);
    pool_give(p->scratch[1]);
    p->group = NULL;
    return OK;
}

/* Every operation passes here once: counted, traced, its record opened. */
static void begin(struct pending *p, struct group *g, const char *op, int64_t elements, enum dtype dtype, int64_t bytes)
{
    *p = (struct pending){.group = g, .op = op, .call = ++g->calls, .request = MPI_REQUEST_NULL,
                          .row = MPI_DATATYPE_NULL};
    g->bytes += bytes;
    if (comm.trace < 0) return;
    char line[160];
    int n = snprintf(line, sizeof line, "%" PRId64 " %s %s %" PRId64 " %s\n", comm.step, g->name, op, elements,
                     dtype_name(dtype));
    if (write(comm.trace, line, (size_t)n) != n) comm.trace = -1;
}

static enum status settle(struct pending *mine, struct pending *theirs)
{
    if (!theirs) return comm_wait(mine);
    *theirs = *mine;
    return OK;
}

/* One datatype that holds a row, so that counts and displacements are rows and stay below 2^31. */
static enum status row_type(struct pending *p, struct tensor t)
{
    int64_t row = tensor_row(t);
    if (row > comm.limit) return FAIL(ERR_COMM, "a row of %" PRId64 " elements is over %" PRId64, row, comm.limit);
    TRY_MPI(MPI_Type_contiguous((int)row, mpi_type(t.dtype), &p->row));
    TRY_MPI(MPI_Type_commit(&p->row));
    return OK;
}

static enum status need_contiguous(struct group *g, const char *op, struct tensor t)
{
    if (tensor_contiguous(t)) return OK;
    return FAIL(ERR_INTERNAL, "%s on %s: rows of %" PRId64 " elements lie %" PRId64 " apart", op, g->name,
                tensor_row(t), t.ld);
}

static enum status copy_if_apart(struct tensor out, struct tensor in)
{
    if (out.data == in.data || tensor_count(in) == 0) return OK;
    if (in.place == PLACE_DEVICE || out.place == PLACE_DEVICE) return comm.ops->copy(out, in, comm.stream);
    memmove(out.data, in.data, tensor_bytes(in));
    return OK;
}

/* ---------------------------------------------------------------- operations ------------------------------------- */

enum status comm_agree(struct group *g, enum status mine)
{
    if (g->size == 1) return mine;
    /* the lowest failing rank, and its status, in one maximum */
    enum status told = mine == ERR_PEER && comm.peer ? comm.peer : mine;
    double worst = mine ? (double)(g->size - g->rank) * 64 + told : 0;
    TRY(comm_max_double(g, &worst, 1));
    if (mine || worst == 0) return mine;
    int rank = g->size - (int)(worst / 64);
    comm.peer = (enum status)((int)worst % 64);
    return FAIL(ERR_PEER, "rank %d failed (its own message says why)", g->members[rank]);
}

enum status comm_barrier(struct group *g)
{
    double one = 1;
    return comm_max_double(g, &one, 1);
}

enum status comm_all_reduce(struct group *g, struct tensor t, enum reduce_op op)
{
    if (g->size == 1) return OK;
    TRY(need_contiguous(g, "all_reduce", t));
    int64_t n = tensor_count(t);
    struct pending p;
    begin(&p, g, "all_reduce", n, t.dtype, (int64_t)tensor_bytes(t) * 2 * (g->size - 1) / g->size);
    MPI_Op mpi_op = op == REDUCE_SUM ? MPI_SUM : MPI_MAX;
    if (t.dtype == DT_BF16) mpi_op = op == REDUCE_SUM ? comm.bf16_sum : comm.bf16_max;
    struct tensor host;
    TRY(stage(t, true, &host, &p.scratch[0]));
    for (int64_t at = 0; at < n; at += comm.limit) {
        int count = (int)(n - at < comm.limit ? n - at : comm.limit);
        char *data = (char *)host.data + at * (int64_t)dtype_size(t.dtype);
        TRY_MPI(MPI_Iallreduce(MPI_IN_PLACE, data, count, mpi_type(t.dtype), mpi_op, g->comm, &p.request));
        TRY(wait_request(&p));
    }
    p.out = t;
    p.host = host;
    return comm_wait(&p);
}

/* Row counts and displacements as MPI wants them; rows NULL: equal shares of `total`. */
static enum status shares(struct group *g, const char *op, const int64_t *rows, int64_t total, int *count, int *start)
{
    int64_t sum = 0;
    if (!rows && total % g->size)
        return FAIL(ERR_INTERNAL, "%s on %s: %" PRId64 " rows over %d ranks", op, g->name, total, g->size);
    for (int i = 0; i < g->size; i++) {
        int64_t n = rows ? rows[i] : total / g->size;
        if (n < 0 || sum + n > INT32_MAX)
            return FAIL(ERR_COMM, "%s on %s: %" PRId64 " rows for rank %d after %" PRId64, op, g->name, n, i, sum);
        count[i] = (int)n;
        start[i] = (int)sum;
        sum += n;
    }
    if (sum != total)
        return FAIL(ERR_INTERNAL, "%s on %s: counts add up to %" PRId64 ", the tensor has %" PRId64 " rows", op,
                    g->name, sum, total);
    return OK;
}

enum status comm_reduce_scatter(struct group *g, struct tensor out, struct tensor in, const int64_t *rows,
                                struct pending *caller)
{
    if (caller) caller->group = NULL;
    if (g->size == 1) return copy_if_apart(out, in);
    TRY(need_contiguous(g, "reduce_scatter", in));
    struct pending p;
    begin(&p, g, "reduce_scatter", tensor_count(in), in.dtype,
          (int64_t)(tensor_bytes(in) - tensor_bytes(out)));
    int count[4 * g->size], *start = count + g->size, *rcount = start + g->size, *rstart = rcount + g->size;
    TRY(shares(g, p.op, rows, in.dim[0], count, start));
    if (out.dim[0] != count[g->rank] || in.dtype != out.dtype || tensor_row(in) != tensor_row(out))
        return FAIL(ERR_INTERNAL, "reduce_scatter on %s: output of %" PRId64 " rows for a share of %d", g->name,
                    out.dim[0], count[g->rank]);
    for (int i = 0; i < g->size; i++) rcount[i] = count[g->rank], rstart[i] = i * count[g->rank];
    struct tensor host;
    TRY(stage(in, true, &host, &p.scratch[0]));
    TRY(pool_take(&p.scratch[1], tensor_bytes(out) * (size_t)g->size, PLACE_HOST));
    TRY(row_type(&p, in));
    p.out = out;
    p.host = tensor_view(p.scratch[1], out.dtype, PLACE_HOST, 1, tensor_count(out) * g->size, 1, 1, 1);
    p.parts = g->size;
    TRY_MPI(MPI_Ialltoallv(host.data, count, start, p.row, p.scratch[1], rcount, rstart, p.row, g->comm, &p.request));
    return settle(&p, caller);
}

enum status comm_all_gather(struct group *g, struct tensor out, struct tensor in, const int64_t *rows,
                            struct pending *caller)
{
    if (caller) caller->group = NULL;
    if (g->size == 1) return copy_if_apart(out, in);
    TRY(need_contiguous(g, "all_gather", out));
    struct pending p;
    begin(&p, g, "all_gather", tensor_count(out), out.dtype, (int64_t)tensor_bytes(in) * (g->size - 1));
    int count[2 * g->size], *start = count + g->size;
    TRY(shares(g, p.op, rows, out.dim[0], count, start));
    if (in.dim[0] != count[g->rank] || in.dtype != out.dtype || tensor_row(in) != tensor_row(out))
        return FAIL(ERR_INTERNAL, "all_gather on %s: input of %" PRId64 " rows for a share of %d", g->name, in.dim[0],
                    count[g->rank]);
    struct tensor host, mine;
    TRY(stage(out, false, &host, &p.scratch[0]));
    mine = tensor_rows(host, start[g->rank], count[g->rank]);
    TRY(copy_if_apart(mine, in));
    if (in.place == PLACE_DEVICE) TRY(comm.ops->wait(comm.stream));
    TRY(row_type(&p, out));
    p.out = out;
    p.host = host;
    TRY_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, host.data, count, start, p.row, g->comm, &p.request));
    return settle(&p, caller);
}

enum status comm_broadcast(struct group *g, struct tensor t, int root)
{
    if (g->size == 1) return OK;
    TRY(need_contiguous(g, "broadcast", t));
    struct pending p;
    int64_t n = tensor_count(t);
    begin(&p, g, "broadcast", n, t.dtype, g->rank == root ? (int64_t)tensor_bytes(t) : 0);
    struct tensor host;
    TRY(stage(t, g->rank == root, &host, &p.scratch[0]));
    for (int64_t at = 0; at < n; at += comm.limit) {
        int count = (int)(n - at < comm.limit ? n - at : comm.limit);
        char *data = (char *)host.data + at * (int64_t)dtype_size(t.dtype);
        TRY_MPI(MPI_Ibcast(data, count, mpi_type(t.dtype), root, g->comm, &p.request));
        TRY(wait_request(&p));
    }
    p.out = t;
    p.host = g->rank == root ? t : host;
    return comm_wait(&p);
}

enum status comm_all_to_all(struct group *g, struct tensor out, struct tensor in, const int64_t *send_rows,
                            const int64_t *recv_rows, struct pending *caller)
{
    if (caller) caller->group = NULL;
    struct pending p;
    int count[4 * g->size], *start = count + g->size, *rcount = start + g->size, *rstart = rcount + g->size;
    TRY(shares(g, "all_to_all", send_rows, in.dim[0], count, start));
    TRY(shares(g, "all_to_all", recv_rows, out.dim[0], rcount, rstart));
    if (g->size == 1) return copy_if_apart(out, in);
    TRY(need_contiguous(g, "all_to_all", in));
    TRY(need_contiguous(g, "all_to_all", out));
    int64_t row_bytes = tensor_row(in) * (int64_t)dtype_size(in.dtype);
    begin(&p, g, "all_to_all", tensor_count(in), in.dtype, (in.dim[0] - count[g->rank]) * row_bytes);
    struct tensor host_in, host_out;
    TRY(stage(in, true, &host_in, &p.scratch[0]));
    TRY(stage(out, false, &host_out, &p.scratch[1]));
    TRY(row_type(&p, in));
    p.out = out;
    p.host = host_out;
    TRY_MPI(MPI_Ialltoallv(host_in.data, count, start, p.row, host_out.data, rcount, rstart, p.row, g->comm,
                           &p.request));
    return settle(&p, caller);
}

static enum status one_sided(struct group *g, struct tensor t, int peer, struct pending *caller, bool send)
{
    TRY(need_contiguous(g, send ? "send" : "recv", t));
    struct pending p;
    begin(&p, g, send ? "send" : "recv", tensor_count(t), t.dtype, send ? (int64_t)tensor_bytes(t) : 0);
    struct tensor host;
    TRY(stage(t, send, &host, &p.scratch[0]));
    TRY(row_type(&p, t));
    if (t.dim[0] > INT32_MAX) return FAIL(ERR_COMM, "%s of %" PRId64 " rows", p.op, t.dim[0]);
    p.out = t;
    p.host = send ? t : host;
    if (send) TRY_MPI(MPI_Isend(host.data, (int)t.dim[0], p.row, peer, 0, g->comm, &p.request));
    else TRY_MPI(MPI_Irecv(host.data, (int)t.dim[0], p.row, peer, 0, g->comm, &p.request));
    return settle(&p, caller);
}

enum status comm_send(struct group *g, struct tensor t, int peer, struct pending *p)
{
    return one_sided(g, t, peer, p, true);
}
enum status comm_recv(struct group *g, struct tensor t, int peer, struct pending *p)
{
    return one_sided(g, t, peer, p, false);
}

enum status comm_sum_double(struct group *g, double *x, int n)
{
    return comm_all_reduce(g, tensor_view(x, DT_F64, PLACE_HOST, 1, n, 1, 1, 1), REDUCE_SUM);
}
enum status comm_max_double(struct group *g, double *x, int n)
{
    return comm_all_reduce(g, tensor_view(x, DT_F64, PLACE_HOST, 1, n, 1, 1, 1), REDUCE_MAX);
}
enum status comm_max_int(struct group *g, int64_t *x, int n)
{
    return comm_all_reduce(g, tensor_view(x, DT_I64, PLACE_HOST, 1, n, 1, 1, 1), REDUCE_MAX);
}

enum status comm_broadcast_bytes(struct group *g, void **data, size_t *size, int root)
{
    if (g->size == 1) return OK;
    int64_t n = g->rank == root ? (int64_t)*size : 0;
    TRY(comm_broadcast(g, tensor_view(&n, DT_I64, PLACE_HOST, 1, 1, 1, 1, 1), root));
    enum status s = OK;
    if (g->rank != root) {
        *size = (size_t)n;
        *data = malloc((size_t)n + 1);
        if (!*data) s = FAIL(ERR_MEMORY, "%" PRId64 " broadcast bytes", n);
    }
    TRY(comm_agree(g, s));
    return comm_broadcast(g, tensor_view(*data, DT_U8, PLACE_HOST, 1, n, 1, 1, 1), root);
}
