#include "data.h"

#include "chat.h"
#include "json.h"
#include "sampling.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 64 << 20, MAX_MESSAGES = 4096 };

/* A dataset being read: growing arrays and the line under work. */
struct reader {
    struct dataset *d;
    const struct data_options *o;
    const struct tokenizer *tok;
    const char *path;
    int64_t line, cap_tokens, cap_samples;
    struct ids ids, mask;
    struct text prompt;
};

static enum status grow(void *array, int64_t *cap, int64_t need, size_t element)
{
    void **p = array;
    if (need <= *cap) return OK;
    int64_t to = *cap ? *cap * 2 : 1024;
    while (to < need) to *= 2;
    void *grown = realloc(*p, (size_t)to * element);
    if (!grown) return FAIL(ERR_MEMORY, "%" PRId64 " elements of a dataset", to);
    *p = grown;
    *cap = to;
    return OK;
}

/* Adds what r->ids and r->mask hold as a sample, or counts why not. */
static enum status keep(struct reader *r)
{
    struct dataset *d = r->d;
    int64_t n = (int64_t)r->ids.n, at = d->n ? d->offset[d->n] : 0;
    if (n > r->o->max_tokens && r->o->every_line)
        return FAIL(ERR_FORMAT, "%" PRId64 " tokens, the limit is %d", n, r->o->max_tokens);
    if (n == 0 && r->o->every_line) return FAIL(ERR_FORMAT, "no tokens");
    if (n > r->o->max_tokens) {
        if (r->o->overlong == OVERLONG_REJECT) {
            d->too_long++;
            return OK;
        }
        d->truncated++;
        n = r->o->max_tokens;
    }
    bool supervised = false;
    for (int64_t t = 1; t < n; t++) supervised |= r->mask.id[t] != 0;
    if (!supervised && !r->o->every_line) {
        d->unsupervised++;
        return OK;
    }
    int64_t cap = r->cap_tokens, caps = r->cap_samples;
    TRY(grow(&d->ids, &cap, at + n, sizeof *d->ids));
    TRY(grow(&d->mask, &r->cap_tokens, at + n, sizeof *d->mask));
    TRY(grow(&d->offset, &caps, d->n + 2, sizeof *d->offset));
    r->cap_samples = caps;
    for (int64_t t = 0; t < n; t++) {
        if (r->ids.id[t] < 0 || r->ids.id[t] >= r->o->vocab)
            return FAIL(ERR_FORMAT, "token id %d at %" PRId64 ", the vocabulary has %d", r->ids.id[t], t, r->o->vocab);
        d->ids[at + t] = r->ids.id[t];
        d->mask[at + t] = t > 0 && r->mask.id[t];
    }
    if (d->n == 0) d->offset[0] = 0;
    d->offset[++d->n] = at + n;
    if (n > d->longest) d->longest = (int32_t)n;
    return OK;
}

static enum status push_masked(struct reader *r, bool target)
{
    while (r->mask.n < r->ids.n) TRY(ids_push(&r->mask, target));
    return OK;
}

static enum status push_end(struct reader *r)
{
    if (!r->o->append_eos) return OK;
    if (r->o->eos_id < 0) return FAIL(ERR_CONFIG, "no end token in config.json or tokenizer (data.append_eos: false)");
    TRY(ids_push(&r->ids, r->o->eos_id));
    return push_masked(r, true);
}

static enum status string_of(const json_t *object, const char *field, const char **text, size_t *len)
{
    const json_t *v = json_object_get(object, field);
    if (!v) return FAIL(ERR_FORMAT, "no field \"%s\"", field);
    if (!json_is_string(v)) return FAIL(ERR_FORMAT, "\"%s\" is %s, not a string", field, json_type_name(v));
    *text = json_string_value(v);
    *len = json_string_length(v);
    return OK;
}

static enum status need_tokenizer(const struct reader *r)
{
    return r->tok ? OK : FAIL(ERR_CONFIG, "text needs a tokenizer: the checkpoint has no tokenizer.json (data.tokenizer)");
}

static enum status read_tokens(struct reader *r, const json_t *object)
{
    json_t *ids = json_object_get(object, "input_ids"), *mask = json_object_get(object, "loss_mask");
    if (!json_is_array(ids)) return FAIL(ERR_FORMAT, "\"input_ids\" is missing or not an array");
    if (mask && (!json_is_array(mask) || json_array_size(mask) != json_array_size(ids)))
        return FAIL(ERR_FORMAT, "\"loss_mask\" has %zu entries, \"input_ids\" %zu", json_array_size(mask),
                    json_array_size(ids));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i), *m = mask ? json_array_get(mask, i) : NULL;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->o->vocab)
            return FAIL(ERR_FORMAT, "input_ids[%zu] is %lld, not a token id below the vocabulary's %d", i,
                        json_is_integer(id) ? (long long)json_integer_value(id) : -1LL, r->o->vocab);
        if (m && !json_is_integer(m) && !json_is_boolean(m)) return FAIL(ERR_FORMAT, "loss_mask[%zu] is not 0 or 1", i);
        TRY(ids_push(&r->ids, (int32_t)json_integer_value(id)));
        TRY(ids_push(&r->mask, m ? json_is_true(m) || json_integer_value(m) != 0 : 1));
    }
    return OK;
}

static bool use_chat(const struct reader *r)
{
    return r->o->chat == TRI_TRUE || (r->o->chat == TRI_AUTO && tokenizer_id(r->tok, "]~b]") >= 0);
}

enum status data_prompt_text(struct text *text, const struct data_options *o, const char *prompt, size_t n)
{
    text->n = 0;
    TRY(text_push(text, prompt, n));
    if (!o->instruction || !*o->instruction) return OK;
    TRY(text_push(text, "\n", 1));
    return text_push(text, o->instruction, strlen(o->instruction));
}

static enum status read_prompt(struct reader *r, const json_t *object)
{
    const char *prompt, *response;
    size_t np, nr;
    TRY(need_tokenizer(r));
    TRY(string_of(object, r->o->prompt_field, &prompt, &np));
    TRY(string_of(object, r->o->response_field, &response, &nr));
    TRY(data_prompt_text(&r->prompt, r->o, prompt, np));
    prompt = r->prompt.n ? r->prompt.data : "";
    np = r->prompt.n;
    if (use_chat(r)) {
        struct chat_message m[] = {{"user", prompt, np}, {"assistant", response, nr}};
        return chat_render(r->tok, m, 2, CHAT_THINKING_DISABLED, false, &r->ids, &r->mask);
    }
    TRY(tokenizer_encode(r->tok, prompt, np, false, &r->ids));
    TRY(push_masked(r, false));
    TRY(tokenizer_encode(r->tok, response, nr, false, &r->ids));
    TRY(push_masked(r, true));
    return push_end(r);
}

static enum status read_text(struct reader *r, const json_t *object)
{
    const char *text;
    size_t n;
    TRY(need_tokenizer(r));
    TRY(string_of(object, r->o->text_field, &text, &n));
    TRY(tokenizer_encode(r->tok, text, n, false, &r->ids));
    TRY(push_masked(r, true));
    return push_end(r);
}

static enum status read_messages(struct reader *r, const json_t *object)
{
    TRY(need_tokenizer(r));
    json_t *list = json_object_get(object, r->o->messages_field);
    if (!json_is_array(list)) return FAIL(ERR_FORMAT, "\"%s\" is missing or not an array", r->o->messages_field);
    size_t n = json_array_size(list);
    if (n > MAX_MESSAGES) return FAIL(ERR_FORMAT, "%zu messages, at most %d", n, MAX_MESSAGES);
    struct chat_message *m = calloc(n + 1, sizeof *m);
    if (!m) return FAIL(ERR_MEMORY, "%zu messages", n);
    enum status s = OK;
    for (size_t i = 0; i < n && !s; i++) {
        const json_t *item = json_array_get(list, i);
        size_t role_len;
        s = string_of(item, "role", &m[i].role, &role_len);
        if (!s) s = string_of(item, "content", &m[i].content, &m[i].len);
        if (s) status_prefix(s, "message %zu", i);
    }
    if (!s) s = chat_render(r->tok, m, (int)n, CHAT_THINKING_DISABLED, false, &r->ids, &r->mask);
    free(m);
    return s;
}

static enum data_format detect(const struct data_options *o, const json_t *object)
{
    if (o->format != DATA_AUTO) return o->format;
    if (json_object_get(object, "input_ids")) return DATA_TOKENS;
    if (json_object_get(object, o->messages_field)) return DATA_MESSAGES;
    return json_object_get(object, o->prompt_field) ? DATA_PROMPT : DATA_TEXT;
}

static enum status read_line(struct reader *r, const char *text, size_t len)
{
    json_t *object = NULL;
    char origin[64];
    snprintf(origin, sizeof origin, "line");
    TRY(json_read_text(&object, text, len, origin));
    enum status s = json_is_object(object) ? OK : FAIL(ERR_FORMAT, "not a JSON object");
    r->ids.n = r->mask.n = 0;
    if (!s) switch (detect(r->o, object)) {
        case DATA_TOKENS: s = read_tokens(r, object); break;
        case DATA_TEXT: s = read_text(r, object); break;
        case DATA_PROMPT: s = read_prompt(r, object); break;
        default: s = read_messages(r, object);
        }
    if (!s) s = keep(r);
    json_decref(object);
    return s;
}

static enum status read_file(struct reader *r)
{
    FILE *f = fopen(r->path, "re");
    if (!f) return FAIL(ERR_IO, "%s: %s", r->path, strerror(errno));
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;
    enum status s = OK;
    while (!s && (r->o->limit == 0 || r->d->n < r->o->limit) && (len = getline(&text, &cap, f)) >= 0) {
        r->line++;
        while (len > 0 && strchr("\r\n \t", text[len - 1])) len--;
        if (len == 0) continue;
        if (len > MAX_LINE) s = FAIL(ERR_FORMAT, "a line of %zd bytes, at most %d", len, MAX_LINE);
        else s = read_line(r, text, (size_t)len);
        if (s) status_prefix(s, "%s:%" PRId64, r->path, r->line);
    }
    if (!s && ferror(f)) s = FAIL(ERR_IO, "%s: %s", r->path, strerror(errno));
    free(text);
    fclose(f);
    if (!s && r->d->n == 0)
        s = FAIL(ERR_FORMAT, "%s: no usable sample in %" PRId64 " lines (%" PRId64 " longer than data.max_tokens=%d, %"
                 PRId64 " with nothing to learn)", r->path, r->line, r->d->too_long, r->o->max_tokens,
                 r->d->unsupervised);
    return s;
}

/* Rank 0's dataset to the others, array by array. */
static enum status share(struct dataset *d, struct group *g)
{
    int64_t head[6] = {d->n, d->n ? d->offset[d->n] : 0, d->too_long, d->truncated, d->unsupervised, d->longest};
    TRY(comm_broadcast(g, tensor_view(head, DT_I64, PLACE_HOST, 1, 6, 1, 1, 1), 0));
    int64_t n = head[0], tokens = head[1];
    enum status s = OK;
    if (g->rank != 0) {
        *d = (struct dataset){.n = n, .too_long = head[2], .truncated = head[3], .unsupervised = head[4],
                              .longest = (int32_t)head[5]};
        d->offset = malloc((size_t)(n + 1) * sizeof *d->offset);
        d->ids = malloc((size_t)tokens * sizeof *d->ids + 1);
        d->mask = malloc((size_t)tokens + 1);
        if (!d->offset || !d->ids || !d->mask) s = FAIL(ERR_MEMORY, "a dataset of %" PRId64 " tokens", tokens);
    }
    TRY(comm_agree(g, s));
    TRY(comm_broadcast(g, tensor_view(d->offset, DT_I64, PLACE_HOST, 1, n + 1, 1, 1, 1), 0));
    TRY(comm_broadcast(g, tensor_view(d->ids, DT_I32, PLACE_HOST, 1, tokens, 1, 1, 1), 0));
    return comm_broadcast(g, tensor_view(d->mask, DT_U8, PLACE_HOST, 1, tokens, 1, 1, 1), 0);
}

enum status dataset_load(struct dataset *d, struct group *g, const char *path, const struct tokenizer *tok,
                         const struct data_options *o)
{
    *d = (struct dataset){0};
    enum status s = OK;
    if (g->rank == 0) {
        struct reader r = {.d = d, .o = o, .tok = tok, .path = path};
        s = read_file(&r);
        ids_free(&r.ids);
        ids_free(&r.mask);
        text_free(&r.prompt);
    }
    TRY(comm_agree(g, s));
    return share(d, g);
}

void dataset_free(struct dataset *d)
{
    free(d->offset);
    free(d->ids);
    free(d->mask);
    *d = (struct dataset){0};
}

struct sample dataset_sample(const struct dataset *d, int64_t i)
{
    int64_t at = d->offset[i];
    return (struct sample){.id = i, .n = (int32_t)(d->offset[i + 1] - at), .ids = d->ids + at, .mask = d->mask + at};
}

double dataset_target_share(const struct dataset *d)
{
    int64_t tokens = d->offset[d->n], targets = 0;
    for (int64_t i = 0; i < tokens; i++) targets += d->mask[i];
    return (double)targets / (double)(tokens ? tokens : 1);
}

enum status data_order_at(struct data_order *o, int64_t at, int64_t *sample)
{
    int64_t epoch = at / o->n;
    *sample = at % o->n;
    if (!o->shuffle) return OK;
    if (!o->order || o->epoch != epoch) {
        if (!o->order) o->order = malloc((size_t)o->n * sizeof *o->order);
        if (!o->order) return FAIL(ERR_MEMORY, "order of %" PRId64 " samples", o->n);
        rng_permutation(o->seed, (uint64_t)epoch, o->order, o->n);
        o->epoch = epoch;
    }
    *sample = o->order[*sample];
    return OK;
}

void data_order_free(struct data_order *o)
{
    free(o->order);
    *o = (struct data_order){0};
}
