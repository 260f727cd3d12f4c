#include "bench.h"

#include "cli.h"
#include "command.h"
#include "io_bench.h"
#include "run_dir.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct part {
    const char *name;
    enum status (*run)(struct bench *b);
    const char *heading;
    bool usual; /* without a part named on the command line */
} parts[] = {
    {"ops", bench_ops, "ops: one call, best of three; % of the nearer ceiling (above 100: a cache holds it)", true},
    {"train", bench_train, "train: a step of the demo, mean after the first", true},
    {"decode", bench_decode, "decode: prompts of 64 tokens, 64 new ones each", true},
    {"rollout", bench_decode, "decode: prompts of 64 tokens, 64 new ones each", false},
    {"comm", bench_comm, "comm: collectives over all ranks", false},
    {"io", bench_io, "io: all ranks of a node at once", false},
};
enum { PARTS = sizeof parts / sizeof *parts };

void bench_print(const struct bench *b, const struct bench_row *r)
{
    double flops = r->flops / r->seconds, bytes = r->bytes / r->seconds;
    double share = 0;
    if (b->peak_flops > 0 && flops / b->peak_flops > share) share = flops / b->peak_flops;
    if (b->peak_bytes > 0 && bytes / b->peak_bytes > share) share = bytes / b->peak_bytes;
    if (b->world.rank) return;
    if (b->json) {
        printf("{\"part\": \"%s\", \"name\": \"%s\", \"shape\": \"%s\", \"device\": \"%s\", \"ms\": %.6g", r->part,
               r->name, r->shape, b->ops->name, 1e3 * r->seconds);
        if (r->flops > 0) printf(", \"gflop_s\": %.6g", 1e-9 * flops);
        if (r->bytes > 0) printf(", \"gb_s\": %.6g", 1e-9 * bytes);
        if (r->tokens_s > 0) printf(", \"tokens_s\": %.6g", r->tokens_s);
        if (share > 0) printf(", \"share\": %.4g", share);
        printf("}\n");
    } else {
        printf("%-22s %-34s %11.3f ms", r->name, r->shape, 1e3 * r->seconds);
        if (r->flops > 0) printf(" %10.1f GFLOP/s", 1e-9 * flops);
        else if (r->tokens_s > 0) printf(" %10.0f tokens/s", r->tokens_s);
        else if (r->bytes > 0) printf(" %10s        ", "");
        if (r->bytes > 0) printf(" %9.2f GB/s", 1e-9 * bytes);
        else if (share > 0) printf(" %14s", "");
        if (share > 0) printf(" %4.0f%%", 100 * share);
        printf("\n");
    }
    fflush(stdout);
}

/* ---------------------------------------------------------------- collectives and the disk ----------------------- */

enum { COLLECTIVES = 4 };
static const char *const collective[COLLECTIVES] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"};

static enum status call_collective(struct bench *b, int which, struct tensor whole, struct tensor mine,
                                   const int64_t *rows)
{
    struct group *g = &b->world;
    switch (which) {
    case 0: return comm_all_reduce(g, whole, REDUCE_SUM);
    case 1: return comm_reduce_scatter(g, mine, whole, NULL, NULL);
    case 2: return comm_all_gather(g, whole, mine, NULL, NULL);
    default: return comm_all_to_all(g, mine, whole, rows, rows, NULL);
    }
}

/* Bytes are those that leave this rank (comm.h), so that GB/s compares with a link's rate. */
static enum status time_collective(struct bench *b, int which, struct tensor whole, struct tensor mine)
{
    struct group *g = &b->world;
    int64_t rows[g->size], before, calls = 0;
    char shape[48];
    for (int i = 0; i < g->size; i++) rows[i] = whole.dim[0] / g->size;
    struct tensor out = which == 3 ? tensor_rows(mine, 0, whole.dim[0]) : tensor_rows(mine, 0, rows[0]);
    TRY(call_collective(b, which, whole, out, rows));
    TRY(comm_barrier(g));
    before = g->bytes;
    double start = time_now(), spent = 0;
    for (int n = 1; spent < b->seconds; n *= 2) {
        for (int i = 0; i < n; i++, calls++) TRY(call_collective(b, which, whole, out, rows));
        TRY(b->ops->wait(b->stream));
        spent = time_now() - start;
        TRY(comm_max_double(g, &spent, 1));
    }
    snprintf(shape, sizeof shape, "%d ranks, %.2f MiB", g->size, (double)tensor_bytes(whole) / (1 << 20));
    bench_print(b, &(struct bench_row){.part = "comm", .name = collective[which], .shape = shape,
                                       .seconds = spent / (double)calls,
                                       .bytes = (double)(g->bytes - before) / (double)calls});
    return OK;
}

enum status bench_comm(struct bench *b)
{
    enum { COLS = 1024, LARGEST = 16 << 20 };
    struct group *g = &b->world;
    void *data = NULL;
    if (g->size == 1) {
        if (!b->json) printf("one rank: nothing to send (mpirun -n N m3 bench comm)\n");
        return OK;
    }
    int64_t most = (LARGEST / COLS / 4 / g->size + 1) * g->size;
    TRY(comm_agree(g, b->ops->alloc(&data, (size_t)(2 * most * COLS) * 4, b->ops->place)));
    struct tensor all = tensor_view(data, DT_F32, b->ops->place, 2, 2 * most, COLS, 1, 1);
    enum status s = b->ops->zero(all, b->stream);
    for (int64_t rows = g->size * ((16 + g->size - 1) / g->size); !s && rows <= most; rows *= 16)
        for (int i = 0; i < COLLECTIVES && !s; i++)
            s = time_collective(b, i, tensor_rows(all, 0, rows), tensor_rows(all, most, most));
    b->ops->release(data, b->ops->place);
    return s;
}

enum status bench_io(struct bench *b)
{
    enum { BYTES = 256 << 20, BLOCK = 8 << 20 };
    struct group node;
    struct io_bench r;
    TRY(group_node(&node));
    enum status s = io_bench_run(&r, b->local_dir, node.comm, node.rank, BYTES, BLOCK);
    int ranks = node.size;
    group_destroy(&node);
    TRY(comm_agree(&b->world, s));
    const struct {
        const char *name;
        double rate;
    } row[] = {{"raw write", r.raw_write}, {"raw read", r.raw_read},
               {"spill write", r.spill_write}, {"spill read", r.spill_read}};
    char shape[64];
    double bytes = (double)BYTES * ranks;
    snprintf(shape, sizeof shape, "%d x %d MiB, %s", ranks, BYTES >> 20, r.direct ? "direct" : "buffered");
    for (int i = 0; i < 4; i++)
        bench_print(b, &(struct bench_row){.part = "io", .name = row[i].name, .shape = shape,
                                           .seconds = bytes / row[i].rate, .bytes = bytes});
    bench_print(b, &(struct bench_row){.part = "io", .name = "spill pass", .shape = shape, .seconds = r.step,
                                       .bytes = 2 * bytes});
    if (*r.warning && b->world.rank == 0) log_warn("%s", r.warning);
    return OK;
}

/* ---------------------------------------------------------------- the command ------------------------------------ */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    return remove(path);
}

/* Rank 0's folder, known to all. */
static enum status make_dir(struct bench *b, char dir[4096])
{
    const char *base = getenv("TMPDIR");
    enum status s = OK;
    if (b->world.rank == 0) {
        int n = snprintf(dir, 4096, "%s/m3_bench.XXXXXX", base && *base ? base : "/tmp");
        if (n >= 4096 || !mkdtemp(dir)) s = FAIL(ERR_IO, "%s: cannot be created", dir);
    }
    TRY(comm_agree(&b->world, s));
    void *data = dir;
    size_t size = 4096;
    TRY(comm_broadcast_bytes(&b->world, &data, &size, 0));
    if (b->world.rank) {
        memcpy(dir, data, size < 4096 ? size : 4096);
        free(data);
    }
    b->dir = dir;
    return OK;
}

static enum status run_part(struct bench *b, const struct part *p)
{
    if (b->world.rank == 0 && !b->json) printf("\n%s\n", p->heading);
    return p->run(b);
}

static enum status run_parts(struct bench *b, int n, char **names)
{
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < PARTS && strcmp(parts[k].name, names[i])) k++;
        if (k == PARTS) return FAIL(ERR_USAGE, "no bench \"%s\": ops, train, decode, comm, io", names[i]);
    }
    for (int k = 0; k < PARTS; k++) {
        bool wanted = n == 0 && parts[k].usual;
        for (int i = 0; i < n; i++) wanted |= strcmp(parts[k].name, names[i]) == 0;
        if (wanted) TRY(run_part(b, &parts[k]));
    }
    return OK;
}

enum status command_bench(int argc, char **argv)
{
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    struct bench b = {0};
    int device, shapes;
    int64_t threads;
    char dir[4096];
    const struct cli_option options[] = {
        {"--device", CLI_ENUM, &device, "auto", "auto|cpu|cuda", 0, 0, "where to compute"},
        {"--shapes", CLI_ENUM, &shapes, "auto", "auto|demo|full", 0, 0, "of ops; auto: the full model's on a GPU"},
        {"--seconds", CLI_FLOAT, &b.seconds, "0.05", "S", 1e-4, 60, "a row is measured three times, at least so long"},
        {"--threads", CLI_INT, &threads, "0", "N", 0, 4096, "of the CPU's ops; 0: the cores of this rank"},
        {"--dir", CLI_STRING, &b.local_dir, NULL, "DIR", 0, 0, "where io measures; without it, a temporary folder"},
        {"--json", CLI_FLAG, &b.json, NULL, NULL, 0, 0, "one JSON object a row"}};
    struct cli cli = {.command = "m3 bench", .about = "This machine's numbers. Without a PART: ops, train, decode.",
                      .options = options, .n_options = sizeof options / sizeof *options, .rest = "PART",
                      .rest_help = "ops, train, decode, comm, io"};
    b.local_dir = NULL;
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    ops_cpu_threads(threads ? (int)threads : run_threads(comm_local_size()));
    TRY(group_world(&b.world));
    enum status s = ops_find(&b.ops, devices[device]);
    if (!s) s = b.ops->open(&b.stream, comm_local_rank());
    TRY(comm_agree(&b.world, s));
    comm_device(b.ops, b.stream);
    b.device = b.ops->name;
    b.wide = shapes == 2 || (shapes == 0 && b.ops->place == PLACE_DEVICE);
    s = make_dir(&b, dir);
    if (!b.local_dir) b.local_dir = b.dir;
    if (!s) s = run_parts(&b, cli.n_more, cli.more);
    if (b.dir && b.world.rank == 0) nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    b.ops->close(b.stream);
    group_destroy(&b.world);
    return s;
}
