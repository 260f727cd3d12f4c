/* m3 plan CONFIG.yaml [key=value ...] */
#include "plan.h"

#include "cli.h"
#include "source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

struct plan_args {
    const char *config, *machine, *model, *plot;
    int64_t ranks, show, most;
    double sample_tokens;
    bool json, sweep;
};

/* The architecture: --model, else the checkpoint, else, where that is on another machine, CONFIG.json beside CONFIG.yaml, or
 * that of the run it is a variant of: m3_full.json for m3_full_gb300.yaml. */
static enum status find_arch(struct arch *a, const struct plan_args *args, const struct config *c)
{
    char path[PATH_MAX];
    const char *from = args->model, *dot = strrchr(args->config, '.');
    if (!from && *c->model.checkpoint && access(c->model.checkpoint, F_OK) == 0) {
        struct source s;
        if (snprintf(path, sizeof path, "%s/config.json", c->model.checkpoint) < (int)sizeof path && access(path, F_OK) == 0)
            return arch_load(a, c->model.checkpoint);
        TRY(source_open(&s, c->model.checkpoint));
        *a = s.arch;
        source_close(&s);
        return OK;
    }
    for (int n = dot ? (int)(dot - args->config) : 0; !from && n > 0 && args->config[n - 1] != '/';) {
        if (snprintf(path, sizeof path, "%.*s.json", n, args->config) >= (int)sizeof path) break;
        if (access(path, R_OK) == 0) from = path;
        while (--n > 0 && args->config[n] != '_' && args->config[n] != '/') continue;
    }
    if (!from || access(from, R_OK) != 0)
        return FAIL(ERR_CONFIG, "model.checkpoint=%s is not here%s%s: give its config.json with --model", c->model.checkpoint,
                    from ? " and there is no " : "", from ? from : "");
    FILE *f = fopen(from, "r");
    if (!f) return FAIL(ERR_IO, "%s: cannot be opened", from);
    enum { MOST = 16 << 20 };
    char *text = malloc(MOST);
    size_t n = text ? fread(text, 1, MOST, f) : 0;
    bool whole = feof(f) && !ferror(f);
    fclose(f);
    enum status s = !text ? FAIL(ERR_MEMORY, "%s", from)
                  : whole ? arch_parse(a, text, n, from) : FAIL(ERR_FORMAT, "%s: more than %d bytes", from, MOST);
    free(text);
    return s;
}

/* --ranks, else this job's own, else the Slurm job's tasks, else tp x pp x the smallest dp that the mesh allows. */
static int find_ranks(const struct plan_args *args, const struct config *c)
{
    const char *tasks = getenv("SLURM_NTASKS");
    if (args->ranks) return (int)args->ranks;
    if (comm_world_size() > 1) return comm_world_size();
    int64_t dp = c->mesh.dp;
    if (!dp && tasks && atoi(tasks) > 0) return atoi(tasks);
    if (!dp) for (dp = 1; dp < c->mesh.ep && c->mesh.tp * dp % c->mesh.ep;) dp++;
    int64_t ranks = c->mesh.tp * c->mesh.pp * dp;
    return ranks > INT_MAX ? INT_MAX : (int)ranks;
}

static enum status sweep(const struct plan_args *args, const struct plan_input *in)
{
    struct plan_sweep s;
    enum status st = plan_sweep_run(&s, in);
    if (!st && args->json) st = plan_sweep_json(&s, stdout);
    else if (!st) plan_sweep_print(&s, (int)args->show, stdout);
    plan_sweep_free(&s);
    if (!st && args->most > in->ranks && !args->json) st = plan_scaling(in, (int)args->most, args->plot, stdout);
    return st;
}

static enum status run(const struct plan_args *args, const struct config *c)
{
    struct plan_machine m;
    struct plan_input in;
    struct arch *a = malloc(sizeof *a);
    struct plan *p = malloc(sizeof *p);
    enum status s = a && p ? OK : FAIL(ERR_MEMORY, "a plan");
    const char *machine = args->machine ? args->machine : c->run.device == DEVICE_CPU ? "cpu" : "h200";
    if (!s) s = plan_machine_load(&m, machine);
    if (!s) s = find_arch(a, args, c);
    if (!s) {
        if (!m.gpu) ops_cpu_threads(c->run.threads > 0 ? (int)c->run.threads : 1);
        plan_input_default(&in, c, a, &m, find_ranks(args, c));
        if (args->sample_tokens > 0) in.sample_tokens = args->sample_tokens < in.longest ? args->sample_tokens : in.longest;
        if (args->sweep) s = sweep(args, &in);
        else {
            s = plan_compute(p, &in);
            if (!s && args->json) s = plan_print_json(p, &in, stdout);
            else if (!s) plan_print(p, &in, stdout);
            if (!s && !p->fits) s = FAIL(ERR_CONFIG, "it does not fit: %s", p->why);
        }
    }
    free(p);
    free(a);
    return s;
}

enum status command_plan(int argc, char **argv)
{
    struct plan_args a = {0};
    struct config c;
    const struct cli_option options[] = {
        {"--machine", CLI_STRING, &a.machine, NULL, "NAME|FILE", 0, 0,
         "a file of configs/machines: h200, gb300, cpu, or your own; cpu with run.device=cpu, else h200"},
        {"--ranks", CLI_INT, &a.ranks, "0", "N", 0, 1 << 20, "ranks of the job; 0: those it is started with, or as mesh.* or the Slurm job has"},
        {"--model", CLI_STRING, &a.model, NULL, "CONFIG.json", 0, 0, "the architecture, where the checkpoint is elsewhere"},
        {"--sample-tokens", CLI_FLOAT, &a.sample_tokens, "0", "N", 0, 1e9, "mean tokens of a sample; 0: what the limits allow"},
        {"--json", CLI_FLAG, &a.json, NULL, NULL, 0, 0, "print JSON"},
        {"--sweep", CLI_FLAG, &a.sweep, NULL, NULL, 0, 0, "every mesh for this many ranks, the fastest first"},
        {"--show", CLI_INT, &a.show, "20", "N", 0, 1e6, "--sweep: lines of each kind; 0 is all"},
        {"--up-to", CLI_INT, &a.most, "0", "N", 0, 1 << 16, "--sweep: scaling to this many ranks as well"},
        {"--plot", CLI_STRING, &a.plot, NULL, "FILE", 0, 0, "--up-to: its curves, FILE.svg or FILE.png"}};
    const struct cli_argument arguments[] = {{"CONFIG.yaml", &a.config, "the configuration of a run", false}};
    struct cli cli = {.command = "m3 plan", .about = "Memory, disk, traffic and time of a run, without the machine.",
                      .options = options, .n_options = COUNT(options), .arguments = arguments, .n_arguments = 1,
                      .rest = "KEY=VALUE", .rest_help = "keys that differ from the file"};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped || comm_world_rank() > 0) return OK; /* under mpirun or srun rank 0 plans for all */
    TRY(config_load(&c, a.config, cli.n_more, cli.more));
    enum status s = run(&a, &c);
    config_free(&c);
    return s;
}
