#include "generate.h"

#include "device.h"

#include "chat.h"
#include "json.h"
#include "rollout.h"
#include "source.h"
#include "tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINE = 64 << 20 };

struct prompts {
    struct ids *ids;         /* [n] */
    int n, cap;
};

struct job {
    const struct generate_args *a;
    const struct source *src;
    struct tokenizer *tok;   /* NULL: ids only */
    struct prompts p;
};

static enum status new_prompt(struct prompts *p, struct ids **out)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 16;
        struct ids *grown = realloc(p->ids, (size_t)p->cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%d prompts", p->cap);
        p->ids = grown;
    }
    p->ids[p->n] = (struct ids){0};
    *out = &p->ids[p->n++];
    return OK;
}

static enum status add_text(struct job *j, const char *text, size_t len)
{
    struct ids *ids, mask = {0};
    if (!j->tok) return FAIL(ERR_CONFIG, "%s has no tokenizer.json: give token ids with --tokens", j->src->dir);
    TRY(new_prompt(&j->p, &ids));
    if (len == 0) return FAIL(ERR_FORMAT, "an empty prompt");
    if (!j->a->chat) return tokenizer_encode(j->tok, text, len, false, ids);
    struct chat_message m = {"user", text, len};
    enum status s = chat_render(j->tok, &m, 1, CHAT_THINKING_DISABLED, true, ids, &mask);
    ids_free(&mask);
    return s;
}

static enum status add_ids(struct job *j, const json_t *list)
{
    struct ids *ids;
    if (!json_is_array(list)) return FAIL(ERR_FORMAT, "\"input_ids\" is missing or not an array");
    if (json_array_size(list) == 0) return FAIL(ERR_FORMAT, "\"input_ids\" is empty");
    TRY(new_prompt(&j->p, &ids));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= j->src->arch.vocab)
            return FAIL(ERR_FORMAT, "input_ids[%zu] is %lld, not a token id below the vocabulary's %d", i,
                        json_is_integer(v) ? (long long)json_integer_value(v) : -1LL, j->src->arch.vocab);
        TRY(ids_push(ids, (int32_t)json_integer_value(v)));
    }
    return OK;
}

static enum status add_line(struct job *j, const char *text, size_t len)
{
    json_t *object = NULL;
    TRY(json_read_text(&object, text, len, "line"));
    const json_t *prompt = json_object_get(object, "prompt"), *ids = json_object_get(object, "input_ids");
    enum status s;
    if (j->a->tokens) s = add_ids(j, ids);
    else if (json_is_string(prompt)) s = add_text(j, json_string_value(prompt), json_string_length(prompt));
    else s = FAIL(ERR_FORMAT, "no string \"prompt\"");
    json_decref(object);
    return s;
}

static enum status read_prompts(struct job *j)
{
    if (j->a->prompt && !*j->a->prompt) return FAIL(ERR_USAGE, "--prompt is empty");
    if (j->a->prompt) return add_text(j, j->a->prompt, strlen(j->a->prompt));
    const char *path = j->a->tokens ? j->a->tokens : j->a->prompts;
    FILE *f = fopen(path, "re");
    if (!f) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;
    int line = 0;
    enum status s = OK;
    while (!s && (len = getline(&text, &cap, f)) >= 0) {
        line++;
        while (len > 0 && strchr("\r\n \t", text[len - 1])) len--;
        if (len == 0) continue;
        s = len > MAX_LINE ? FAIL(ERR_FORMAT, "a line of %zd bytes", len) : add_line(j, text, (size_t)len);
        if (s) status_prefix(s, "%s:%d", path, line);
    }
    free(text);
    fclose(f);
    if (!s && j->p.n == 0) s = FAIL(ERR_FORMAT, "%s: no prompt in %d lines", path, line);
    return s;
}

static enum status write_line(struct job *j, const struct request *q, FILE *out)
{
    json_t *object = json_object(), *prompt = json_array(), *ids = json_array(), *logprobs = json_array();
    for (int i = 0; i < q->n_prompt; i++) json_array_append_new(prompt, json_integer(q->prompt[i]));
    for (int i = 0; i < q->n_new; i++) {
        json_array_append_new(ids, json_integer(q->ids[i]));
        json_array_append_new(logprobs, json_real((double)q->logprobs[i]));
    }
    json_object_set_new(object, "prompt_ids", prompt);
    json_object_set_new(object, "ids", ids);
    json_object_set_new(object, "logprobs", logprobs);
    if (j->tok) {
        struct text text = {0};
        TRY(tokenizer_decode(j->tok, q->ids, (size_t)q->n_new, true, &text));
        json_object_set_new(object, "text", json_stringn(text.data ? text.data : "", text.n));
        text_free(&text);
    }
    json_object_set_new(object, "finish", json_string(q->finish == FINISH_STOP ? "stop" : "length"));
    char *line = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (!line) return FAIL(ERR_MEMORY, "a line of %d tokens", q->n_new);
    bool ok = fprintf(out, "%s\n", line) > 0;
    free(line);
    return ok ? OK : FAIL(ERR_IO, "%s: %s", j->a->out ? j->a->out : "standard output", strerror(errno));
}

/* The file appears whole or not at all. */
static enum status write_results(struct job *j, const struct request *q)
{
    char tmp[4096];
    FILE *out = stdout;
    if (j->a->out) {
        snprintf(tmp, sizeof tmp, "%s.tmp", j->a->out);
        int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        out = fd < 0 ? NULL : fdopen(fd, "w");
        if (!out) return FAIL(ERR_IO, "%s: %s", tmp, strerror(errno));
    }
    enum status s = OK;
    for (int i = 0; i < j->p.n && !s; i++) s = write_line(j, &q[i], out);
    if (!s && fflush(out) != 0) s = FAIL(ERR_IO, "%s: %s", j->a->out ? tmp : "standard output", strerror(errno));
    if (!j->a->out) return s;
    if (!s && fsync(fileno(out)) != 0) s = FAIL(ERR_IO, "%s: %s", tmp, strerror(errno));
    if (fclose(out) != 0 && !s) s = FAIL(ERR_IO, "%s: %s", tmp, strerror(errno));
    if (!s && rename(tmp, j->a->out) != 0) s = FAIL(ERR_IO, "%s: %s", j->a->out, strerror(errno));
    if (s) unlink(tmp);
    return s;
}

static void log_text(void *ctx, const char *text)
{
    (void)ctx;
    log_info("%s", text);
}

static enum status generate(struct job *j, struct model *m, struct request *q)
{
    const struct generate_args *a = j->a;
    int64_t longest = 0, rows = 0;
    for (int i = 0; i < j->p.n; i++) {
        if ((int64_t)j->p.ids[i].n > longest) longest = (int64_t)j->p.ids[i].n;
        rows += (int64_t)j->p.ids[i].n;
    }
    if (longest + a->max_new > j->src->arch.max_positions)
        return FAIL(ERR_CONFIG, "a prompt of %" PRId64 " tokens and --max-new %d: the model has %d positions", longest,
                    a->max_new, j->src->arch.max_positions);
    int batch = j->p.n < a->batch ? j->p.n : a->batch;
    struct rollout_options o = {.max_batch = batch, .max_tokens = rows < 2048 ? rows : 2048,
                                .max_len = (int)longest + a->max_new, .pages = a->pages};
    struct rollout r = {0};
    int32_t stop = j->src->arch.eos_id;
    struct rollout_run run = {.seed = (uint64_t)a->seed, .sampling = a->sampling, .stop = &stop,
                              .n_stop = a->ignore_eos || stop < 0 ? 0 : 1};
    enum status s = rollout_create(&r, m, &o);
    if (!s && a->profile) s = device_profile_start(m->stream);
    double start = time_now();
    if (!s) s = rollout_generate(&r, q, j->p.n, &run);
    if (!s) log_info("%" PRId64 " new tokens in %.2f s, %d sequences in flight at most: %.1f tokens/s", r.tokens_out,
                     time_now() - start, batch, (double)r.tokens_out / (time_now() - start));
    if (!s && a->profile) s = device_profile_print(m->stream, log_text, NULL);
    rollout_destroy(&r);
    return s;
}

static enum status run_job(struct job *j)
{
    const struct generate_args *a = j->a;
    const struct ops *ops = NULL;
    struct stream *stream = NULL;
    struct mesh one;
    struct model m = {0};
    TRY(read_prompts(j));
    struct request *q = calloc((size_t)j->p.n, sizeof *q);
    int32_t *ids = calloc((size_t)j->p.n, (size_t)a->max_new * sizeof *ids);
    float *logprobs = calloc((size_t)j->p.n, (size_t)a->max_new * sizeof *logprobs);
    enum status s = q && ids && logprobs ? OK : FAIL(ERR_MEMORY, "%d results of %d tokens", j->p.n, a->max_new);
    for (int i = 0; i < j->p.n && !s; i++)
        q[i] = (struct request){.prompt = j->p.ids[i].id, .n_prompt = (int32_t)j->p.ids[i].n, .max_new = a->max_new,
                                .prompt_id = (uint64_t)i, .ids = ids + (int64_t)i * a->max_new,
                                .logprobs = logprobs + (int64_t)i * a->max_new};
    if (!s) s = ops_find(&ops, a->device);
    if (!s) s = ops->open(&stream, 0);
    if (!s) s = mesh_single(&one, &j->src->arch);
    bool bf16 = strcmp(a->dtype, "bf16") == 0 || (strcmp(a->dtype, "auto") == 0 && ops && ops->place == PLACE_DEVICE);
    if (!s) s = model_create(&m, &j->src->arch, &one, ops, stream, bf16 ? DT_BF16 : DT_F32, 1 << 24);
    if (!s) s = source_load(j->src, &m);
    if (!s) s = generate(j, &m, q);
    if (!s) s = write_results(j, q);
    model_destroy(&m);
    if (ops) ops->close(stream);
    free(q);
    free(ids);
    free(logprobs);
    return s;
}

enum status generate_run(const struct generate_args *a)
{
    struct source src;
    int inputs = (a->prompt != NULL) + (a->prompts != NULL) + (a->tokens != NULL);
    if (inputs != 1) return FAIL(ERR_USAGE, "generate wants one of --prompt, --prompts, --tokens, not %d", inputs);
    if (a->max_new < 1 || a->batch < 1)
        return FAIL(ERR_USAGE, "--max-new %d, --batch %d: at least 1", a->max_new, a->batch);
    TRY(source_open(&src, a->checkpoint));
    struct job j = {.a = a, .src = &src};
    enum status s = src.tokenizer ? tokenizer_open(&j.tok, src.tokenizer) : OK;
    if (!s) s = run_job(&j);
    for (int i = 0; i < j.p.n; i++) ids_free(&j.p.ids[i]);
    free(j.p.ids);
    tokenizer_close(&j.tok);
    source_close(&src);
    return s;
}
