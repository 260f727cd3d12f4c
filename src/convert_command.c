/* m3 convert: the command line, and progress. */
#include "cli.h"
#include "command.h"
#include "comm.h"
#include "convert.h"
#include "arch.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "5GB", "500 MB", "1.5GiB", "1000000": bytes. */
static enum status read_size(const char *text, uint64_t *bytes)
{
    static const struct { const char *unit; double factor; } unit[] = {
        {"", 1}, {"B", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
        {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
    char *end, name[8] = "";
    double x = strtod(text, &end);
    while (*end == ' ') end++;
    for (int i = 0; i < 7 && end[i]; i++) name[i] = (char)toupper((unsigned char)end[i]);
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++)
        if (end != text && strcmp(name, unit[i].unit) == 0 && strlen(end) < 5 && x * unit[i].factor >= 1 && x * unit[i].factor < 1e18) {
            *bytes = (uint64_t)(x * unit[i].factor);
            return OK;
        }
    return FAIL(ERR_USAGE, "--shard-size %s: a size such as 5GB, 500MB or 2GiB", text);
}

/* "0,1,3,4" into layer[*n]. What does not fit the model is convert_release()'s to say. */
static enum status read_layers(const char *text, int *layer, int *n)
{
    const char *at = text;
    for (*n = 0; *at; ) {
        char *end;
        long x = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || x < 0 || x >= ARCH_MAX_LAYERS || *n == ARCH_MAX_LAYERS)
            return FAIL(ERR_USAGE, "--layers %s: numbers from 0 with commas between, such as 0,1,3,4", text);
        layer[(*n)++] = (int)x;
        at = *end ? end + 1 : end;
    }
    return *n ? OK : FAIL(ERR_USAGE, "--layers is empty");
}

struct progress_state {
    double start;
    uint64_t shard_bytes;
    int done, rank;
};

static void each_shard(void *ctx, int shard, int n_shards)
{
    struct progress_state *p = ctx;
    double seconds = time_now() - p->start, bytes = (double)p->shard_bytes * ++p->done;
    int ranks = comm_world_size(), mine = (n_shards - p->rank + ranks - 1) / ranks;
    if (p->rank == 0)
        log_info("shard %d of %d finished; this rank has %d of %d, at most %.1f GB, %.2f GB/s, about %.0f s left", shard + 1,
                 n_shards, p->done, mine, bytes * 1e-9, bytes * 1e-9 / seconds, seconds / p->done * (mine - p->done));
}

enum status command_convert(int argc, char **argv)
{
    static int layer[ARCH_MAX_LAYERS];
    struct convert_args a = {0};
    const char *layers = NULL, *size = "5GB";
    int dtype;
    const struct cli_option options[] = {
        {"--layers", CLI_STRING, &layers, NULL, "LIST", 0, 0, "keep these layers, renumbered: 0,1,3,4; without it, all"},
        {"--dtype", CLI_ENUM, &dtype, "bf16", "bf16|keep", 0, 0,
         "bf16: every floating language-model tensor but the router's gate and bias; keep: as stored"},
        {"--shard-size", CLI_STRING, &size, NULL, "SIZE", 0, 0, "largest shard, 5GB where it is not given"},
        {"--verify", CLI_FLAG, &a.verify, NULL, NULL, 0, 0, "read everything back and compare it with the source"},
        {"--dense-attention", CLI_FLAG, &a.dense_attention, NULL, NULL, 0, 0,
         "sparse layers without index tensors become dense ones"}};
    const struct cli_argument arguments[] = {{"SRC", &a.src, "a release folder, quantised or not", false},
                                             {"DST", &a.dst, "the release folder to make; DST.tmp keeps what a stopped one finished", false}};
    struct cli cli = {.command = "m3 convert",
                      .about = "Release to release: cuts layers, decodes MXFP8 and NVFP4 to BF16. The same command goes on after a "
                               "stop; under mpirun the ranks share the shards.",
                      .options = options, .n_options = sizeof options / sizeof *options, .arguments = arguments, .n_arguments = 2};
    struct progress_state p = {.start = time_now(), .rank = comm_world_rank()};
    struct group world;
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    TRY(read_size(size, &a.shard_bytes));
    if (layers) {
        TRY(read_layers(layers, layer, &a.n_layers));
        a.layers = layer;
    }
    a.keep = dtype == 1;
    a.each_shard = each_shard;
    a.ctx = &p;
    p.shard_bytes = a.shard_bytes;
    TRY(group_world(&world));
    TRY(comm_configure(0, NULL));
    a.world = &world;
    enum status s = convert_release(&a);
    group_destroy(&world);
    if (!s) log_info("%s: converted %s in %.1f s", a.dst, a.src, time_now() - p.start);
    return s;
}
