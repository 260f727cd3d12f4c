/* The demo's model at work: training steps through `struct trainer`, generating through the rollout engine. */
#include "bench.h"

#include "init.h"
#include "rollout.h"
#include "run_dir.h"
#include "trainer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 9, WARM = 2 }; /* steps in all, and those before the clock counts */

/* configs/NAME of the working folder, else of a folder above the program's. */
static enum status find_config(char path[PATH_MAX], const char *name)
{
    char program[PATH_MAX];
    if (snprintf(path, PATH_MAX, "configs/%s", name) < PATH_MAX && access(path, R_OK) == 0) return OK;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 3 && strrchr(program, '/'); up++) {
        *strrchr(program, '/') = 0;
        if (snprintf(path, PATH_MAX, "%s/configs/%s", program, name) < PATH_MAX && access(path, R_OK) == 0) return OK;
    }
    return FAIL(ERR_IO, "configs/%s is neither here nor above the program", name);
}

/* A random checkpoint of the demo's model in the bench's folder, made once. */
static enum status make_model(struct bench *b, char path[PATH_MAX])
{
    char config[PATH_MAX];
    enum status s = OK;
    if (snprintf(path, PATH_MAX, "%s/init", b->dir) >= PATH_MAX) return FAIL(ERR_IO, "%s: a long path", b->dir);
    if (b->world.rank == 0 && access(path, F_OK) != 0) {
        s = find_config(config, "tiny_m3/config.json");
        struct init_args a = {.config = config, .dst = path, .seed = 1, .dtype = DT_F32, .shard_bytes = 1 << 30};
        if (!s) s = init_release(&a);
    }
    return comm_agree(&b->world, s);
}

/* ---------------------------------------------------------------- train ------------------------------------------ */

static double mean_after(const struct metrics_table *t, const char *name, int from)
{
    const struct series *s = metrics_series(t, name);
    double sum = 0;
    for (int64_t i = from; s && i < s->n; i++) sum += s->value[i];
    return s && s->n > from ? sum / (double)(s->n - from) : 0;
}

static enum status print_steps(const struct bench *b, const char *run)
{
    static const char *const stage[] = {"data", "forward_backward", "reduce", "adam"};
    struct metrics_table t;
    char name[64], shape[64];
    TRY(metrics_read(&t, run));
    double tokens = mean_after(&t, "tokens", WARM), rate = mean_after(&t, "tokens_per_s", WARM);
    snprintf(shape, sizeof shape, "%.0f tokens, %.0f micro-batches", tokens, mean_after(&t, "micro_batches", WARM));
    bench_print(b, &(struct bench_row){.part = "train", .name = "step", .shape = shape,
                                       .seconds = rate > 0 ? tokens / rate : 0, .tokens_s = rate});
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++) {
        snprintf(name, sizeof name, "time_%s_s", stage[i]);
        bench_print(b, &(struct bench_row){.part = "train", .name = stage[i], .shape = "",
                                           .seconds = mean_after(&t, name, WARM)});
    }
    metrics_table_free(&t);
    return OK;
}

/* The demo's own configuration and data, a few steps of it, in the bench's folder. */
static enum status load_config(struct bench *b, struct config *c, const char *model, const char *run)
{
    char path[PATH_MAX], data[PATH_MAX], set[5][PATH_MAX + 32], device[32], steps[32];
    TRY(find_config(path, "demo_gsm8k.yaml"));
    TRY(find_config(data, "gsm8k/train.jsonl"));
    const char *const text[][2] = {{"model.checkpoint", model}, {"run.dir", run}, {"data.train", data},
                                  {"data.eval", ""}};
    for (int i = 0; i < 4; i++) snprintf(set[i], sizeof set[i], "%s=%s", text[i][0], text[i][1]);
    snprintf(device, sizeof device, "run.device=%s", b->device);
    snprintf(steps, sizeof steps, "train.steps=%d", STEPS);
    char *all[] = {set[0], set[1], set[2], set[3], device, steps, "eval.every=0", "checkpoint.every=0",
                   "train.warmup_steps=0", "log.every=1000000"};
    return config_load(c, path, sizeof all / sizeof *all, all);
}

enum status bench_train(struct bench *b)
{
    char model[PATH_MAX], run[PATH_MAX];
    TRY(make_model(b, model));
    if (snprintf(run, sizeof run, "%s/run", b->dir) >= (int)sizeof run) return FAIL(ERR_IO, "%s: a long path", b->dir);
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) return FAIL(ERR_MEMORY, "a trainer");
    enum status s = load_config(b, &t->config, model, run);
    if (!s) s = trainer_open(t);
    if (!s) s = trainer_run(t);
    trainer_close(t);
    free(t);
    log_open(b->world.rank, NULL);
    if (!s && b->world.rank == 0) s = print_steps(b, run);
    return comm_agree(&b->world, s);
}

/* ---------------------------------------------------------------- decode ----------------------------------------- */

enum { PROMPT = 64, NEW = 64 };

static enum status generate_batch(struct bench *b, struct model *m, int n)
{
    int32_t *ids = calloc((size_t)n * (PROMPT + NEW), sizeof *ids);
    float *logprobs = calloc((size_t)n * NEW, sizeof *logprobs);
    struct request *q = calloc((size_t)n, sizeof *q);
    struct rollout_options o = {.max_batch = n, .max_tokens = n * PROMPT, .max_len = PROMPT + NEW};
    struct rollout r = {0};
    struct rollout_run run = {.seed = 1, .sampling = {.temperature = 1, .top_p = 1}};
    enum status s = ids && logprobs && q ? OK : FAIL(ERR_MEMORY, "%d requests", n);
    for (int i = 0; i < n && !s; i++) {
        int32_t *own = ids + (int64_t)i * (PROMPT + NEW);
        for (int t = 0; t < PROMPT; t++) own[t] = (i * 37 + t * t * 11) % m->arch.vocab;
        q[i] = (struct request){.prompt = own, .n_prompt = PROMPT, .max_new = NEW, .prompt_id = (uint64_t)i,
                                .ids = own + PROMPT, .logprobs = logprobs + (int64_t)i * NEW};
    }
    if (!s) s = rollout_create(&r, m, &o);
    double best = 0;
    for (int round = 0; round < 3 && !s; round++) {
        double start = time_now();
        s = rollout_generate(&r, q, n, &run);
        double spent = time_now() - start;
        if (round == 0 || spent < best) best = spent;
    }
    char shape[48];
    snprintf(shape, sizeof shape, "batch %d, %d + %d tokens", n, PROMPT, NEW);
    if (!s) bench_print(b, &(struct bench_row){.part = "decode", .name = "generate", .shape = shape, .seconds = best,
                                               .tokens_s = (double)n * NEW / best});
    rollout_destroy(&r);
    free(q);
    free(logprobs);
    free(ids);
    return s;
}

/* Every rank generates for itself. */
enum status bench_decode(struct bench *b)
{
    char path[PATH_MAX];
    struct source src;
    struct mesh one;
    struct model m = {0};
    TRY(make_model(b, path));
    TRY(source_open(&src, path));
    enum status s = mesh_single(&one, &src.arch);
    enum dtype dtype = b->ops->place == PLACE_DEVICE ? DT_BF16 : DT_F32;
    if (!s) s = model_create(&m, &src.arch, &one, b->ops, b->stream, dtype, 1 << 24);
    if (!s) s = source_load(&src, &m);
    if (!s) s = generate_batch(b, &m, 1);
    if (!s) s = generate_batch(b, &m, 32);
    model_destroy(&m);
    source_close(&src);
    return comm_agree(&b->world, s);
}
