#include "command.h"

#include "cli.h"
#include "comm.h"
#include "export.h"
#include "generate.h"
#include "init.h"
#include "inspect.h"
#include "plan.h"
#include "report.h"
#include "score.h"
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

const struct command commands[] = {
    {"init", command_init, "a random checkpoint in the release layout"},
    {"train", command_train, "SFT or RL; resumes by itself from its run folder"},
    {"score", command_score, "log-probs, logits, selections and gradients of given tokens"},
    {"generate", command_generate, "prompts in, JSON lines out"},
    {"convert", command_convert, "release -> release: cut layers, MXFP8 and NVFP4 to BF16"},
    {"inspect", command_inspect, "what is in a release, a checkpoint or a state file"},
    {"export", command_export, "HDF5 checkpoint -> release safetensors"},
    {"bench", command_bench, "this machine's numbers: ops, train, decode, comm, io"},
    {"plan", command_plan, "memory, disk, traffic and time of a run, without the machine"},
    {"report", command_report, "curves of a run as a picture and text"},
};
const int n_commands = sizeof commands / sizeof *commands;

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
static const char *const devices[] = {"auto", "cpu", "cuda"};
static const char *const dtypes[] = {"auto", "fp32", "bf16"};
#define SHARD_GIB (1ull << 30)

enum status command_init(int argc, char **argv)
{
    struct init_args a = {0};
    int64_t seed;
    int dtype;
    double shard;
    const struct cli_option options[] = {
        {"--seed", CLI_INT, &seed, "1", "N", 0, 9e18, "every number is a function of seed, tensor name and index"},
        {"--dtype", CLI_ENUM, &dtype, "fp32", "fp32|bf16", 0, 0, "of all but router gate and bias, which are fp32"},
        {"--shard-gib", CLI_FLOAT, &shard, "5", "GIB", 1e-6, 1e6, "largest shard"}};
    const struct cli_argument arguments[] = {
        {"CONFIG.json", &a.config, "the architecture; tokenizer and other side files beside it come along", false},
        {"DST", &a.dst, "the folder to make", false}};
    struct cli cli = {.command = "m3 init", .about = "Makes a random checkpoint in the release layout.",
                      .options = options, .n_options = COUNT(options), .arguments = arguments, .n_arguments = 2};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    a.seed = (uint64_t)seed;
    a.dtype = dtype == 0 ? DT_F32 : DT_BF16;
    a.shard_bytes = (uint64_t)(shard * (double)SHARD_GIB);
    TRY(init_release(&a));
    log_info("%s: a random checkpoint of %s, seed %lld", a.dst, a.config, (long long)seed);
    return OK;
}

enum status command_score(int argc, char **argv)
{
    struct score_args a = {0};
    int device, dtype;
    const struct cli_option options[] = {
        {"--logits", CLI_FLAG, &a.logits, NULL, NULL, 0, 0, "write logits.S and hidden.L.S"},
        {"--selections", CLI_FLAG, &a.selections, NULL, NULL, 0, 0, "write block_indices.L.S and router_experts.L.S"},
        {"--grads", CLI_FLAG, &a.grads, NULL, NULL, 0, 0, "write loss, grad_norm and grad.NAME of the mean loss"},
        {"--micro-batch-tokens", CLI_INT, &a.micro_batch_tokens, "1", "N", 1, 1e9,
         "pack sequences up to N tokens; 1: each alone"},
        {"--device", CLI_ENUM, &device, "auto", "auto|cpu|cuda", 0, 0, "where to compute"},
        {"--dtype", CLI_ENUM, &dtype, "auto", "auto|fp32|bf16", 0, 0, "of weights and activations"}};
    const struct cli_argument arguments[] = {
        {"CHECKPOINT", &a.checkpoint, "a release folder, an HDF5 checkpoint or a run folder", false},
        {"TOKENS.jsonl", &a.tokens, "lines with input_ids; S is the line's number from 0", false},
        {"OUT.safetensors", &a.out, "token_logprobs.S and what the options add", false}};
    struct cli cli = {.command = "m3 score", .about = "Log-probs of given tokens.", .options = options,
                      .n_options = COUNT(options), .arguments = arguments, .n_arguments = 3};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    a.device = devices[device];
    a.dtype = dtypes[dtype];
    return score_run(&a);
}

enum status command_generate(int argc, char **argv)
{
    struct generate_args a = {0};
    int64_t max_new, top_k, batch;
    double temperature, top_p;
    bool greedy;
    int device, dtype;
    const struct cli_option options[] = {
        {"--prompt", CLI_STRING, &a.prompt, NULL, "TEXT", 0, 0, "one prompt"},
        {"--prompts", CLI_STRING, &a.prompts, NULL, "FILE.jsonl", 0, 0, "lines with a prompt"},
        {"--tokens", CLI_STRING, &a.tokens, NULL, "FILE.jsonl", 0, 0, "lines with input_ids"},
        {"--out", CLI_STRING, &a.out, NULL, "FILE.jsonl", 0, 0, "where to write; without it, standard output"},
        {"--max-new", CLI_INT, &max_new, "256", "N", 1, 1e8, "tokens a response has at most"},
        {"--greedy", CLI_FLAG, &greedy, NULL, NULL, 0, 0, "always the most likely token"},
        {"--temperature", CLI_FLOAT, &temperature, "1", "X", 0, 100, "of sampling; 0 is greedy"},
        {"--top-k", CLI_INT, &top_k, "0", "K", 0, 1e9, "sample among the K most likely; 0: all"},
        {"--top-p", CLI_FLOAT, &top_p, "1", "P", 1e-9, 1, "sample among the most likely that hold this share"},
        {"--profile", CLI_FLAG, &a.profile, NULL, NULL, 0, 0, "print the GPU's time by operation"},
        {"--ignore-eos", CLI_FLAG, &a.ignore_eos, NULL, NULL, 0, 0, "go on behind the end token"},
        {"--chat", CLI_FLAG, &a.chat, NULL, NULL, 0, 0, "put prompts into the tokenizer's chat layout"},
        {"--batch", CLI_INT, &batch, "32", "N", 1, 1e6, "sequences in flight at most"},
        {"--pages", CLI_INT, &a.pages, "0", "N", 0, 1e9, "KV pages; sequences wait for free ones. 0: enough for --batch"},
        {"--seed", CLI_INT, &a.seed, "1", "N", 0, 9e18, "of sampling"},
        {"--device", CLI_ENUM, &device, "auto", "auto|cpu|cuda", 0, 0, "where to compute"},
        {"--dtype", CLI_ENUM, &dtype, "auto", "auto|fp32|bf16", 0, 0, "of weights and activations"}};
    const struct cli_argument arguments[] = {
        {"CHECKPOINT", &a.checkpoint, "a release folder, an HDF5 checkpoint or a run folder", false}};
    struct cli cli = {.command = "m3 generate", .about = "Continues prompts; writes prompt_ids, ids, logprobs, text.",
                      .options = options, .n_options = COUNT(options), .arguments = arguments, .n_arguments = 1};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    a.sampling = (struct sampling){greedy ? 0 : (float)temperature, (int)top_k, top_p};
    a.max_new = (int)max_new;
    a.batch = (int)batch;
    a.device = devices[device];
    a.dtype = dtypes[dtype];
    return generate_run(&a);
}

enum status command_export(int argc, char **argv)
{
    const char *path, *dst;
    double shard;
    const struct cli_option options[] = {{"--shard-gib", CLI_FLOAT, &shard, "5", "GIB", 1e-6, 1e6, "largest shard"}};
    const struct cli_argument arguments[] = {
        {"RUN_OR_CHECKPOINT", &path, "a run folder (its newest checkpoint, or RUN@STEP) or a checkpoint folder", false},
        {"DST", &dst, "the release folder to make", false}};
    struct cli cli = {.command = "m3 export", .about = "Writes a checkpoint as release safetensors.", .options = options,
                      .n_options = 1, .arguments = arguments, .n_arguments = 2};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    TRY(export_release(path, dst, (uint64_t)(shard * (double)SHARD_GIB)));
    log_info("%s: exported %s", dst, path);
    return OK;
}

enum status command_inspect(int argc, char **argv)
{
    struct inspect_args a = {0};
    const struct cli_option options[] = {
        {"--stats", CLI_FLAG, &a.stats, NULL, NULL, 0, 0, "minimum, maximum, mean, NaN count of every tensor"},
        {"--verify", CLI_FLAG, &a.verify, NULL, NULL, 0, 0, "read everything; HDF5: against its checksums"},
        {"--json", CLI_FLAG, &a.json, NULL, NULL, 0, 0, "print JSON"},
        {"--diff", CLI_STRING, &a.other, NULL, "OTHER", 0, 0, "compare tensor by tensor; status 3 when something differs"},
        {"--tolerance", CLI_FLOAT, &a.tolerance, "0", "X", 0, 1e9, "with --diff: absolute differences up to X are none"},
        {"--mesh", CLI_STRING, &a.mesh, NULL, "TP,PP,EP,DP", 0, 0, "a release: what each rank of that mesh would load"}};
    const struct cli_argument arguments[] = {
        {"PATH", &a.path, "a release, run or checkpoint folder (RUN@STEP too), a .safetensors or an HDF5 file", false}};
    struct cli cli = {.command = "m3 inspect", .about = "Shows what is in a file or folder.", .options = options,
                      .n_options = COUNT(options), .arguments = arguments, .n_arguments = 1};
    TRY(cli_parse(&cli, argc, argv));
    return cli.helped ? OK : inspect_run(&a);
}

enum status command_report(int argc, char **argv)
{
    const char *run, *other = NULL, *out = NULL, *panels = NULL;
    const struct cli_option options[] = {
        {"--out", CLI_STRING, &out, NULL, "FILE", 0, 0, "the picture, FILE.svg or FILE.png; without it, RUN/report.png"},
        {"--panels", CLI_STRING, &panels, NULL, "LIST", 0, 0, "which and in which order: loss,reward,gap,grad_norm,lr,kl,"
         "clip,entropy,length,truncated,balance,speed,mfu,time,memory; without it, all that have numbers"}};
    const struct cli_argument arguments[] = {{"RUN", &run, "a run folder, finished or running", false},
                                             {"OTHER", &other, "another one to show beside it", true}};
    struct cli cli = {.command = "m3 report", .about = "Curves of a run: RUN/report.png and a text table.",
                      .options = options, .n_options = COUNT(options), .arguments = arguments, .n_arguments = 2};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return OK;
    return report_run(run, other, out, panels, stdout);
}

enum status command_train(int argc, char **argv)
{
    const char *path;
    bool dry, schedule, fresh;
    const struct cli_option options[] = {
        {"--dry-run", CLI_FLAG, &dry, NULL, NULL, 0, 0, "check everything, then stop"},
        {"--print-schedule", CLI_FLAG, &schedule, NULL, NULL, 0, 0, "print the pipeline's schedule of one step, then stop"},
        {"--fresh", CLI_FLAG, &fresh, NULL, NULL, 0, 0, "start over in a new folder: the old one is renamed"}};
    const struct cli_argument arguments[] = {{"CONFIG.yaml", &path, "the run; configs/reference.yaml has every key", false}};
    struct cli cli = {.command = "m3 train", .about = "Trains; resumes by itself from the newest complete checkpoint.",
                      .options = options, .n_options = COUNT(options), .arguments = arguments, .n_arguments = 1,
                      .rest = "KEY=VALUE", .rest_help = "overrides of the file"};
    TRY(cli_parse(&cli, argc, argv));
    if (cli.helped) return comm_world_rank() == 0 ? config_help(stdout, NULL) : OK;
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) return FAIL(ERR_MEMORY, "a trainer");
    t->fresh = fresh;
    enum status s = config_load(&t->config, path, cli.n_more, cli.more);
    if (s) {
        free(t);
        return s;
    }
    s = trainer_open(t);
    if (!s && schedule) trainer_print_schedule(t);
    else if (!s && dry) log_info("dry run: everything fits");
    else if (!s) s = trainer_run(t);
    trainer_close(t);
    free(t);
    return s;
}
