#include "experience.h"

#include "chat.h"
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 64 << 20 };

/* ---------------------------------------------------------------- prompts ---------------------------------------- */

struct prompt_reader {
    struct prompts *p;
    const struct tokenizer *tok;
    const struct data_options *o;
    const char *label_field;
    int64_t cap, cap_ids;
};

static enum status encode_prompt(struct prompt_reader *r, const json_t *object, struct ids *ids, char **text)
{
    const json_t *list = json_object_get(object, "input_ids"), *prompt = json_object_get(object, r->o->prompt_field);
    if (json_is_array(list)) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *v = json_array_get(list, i);
            if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= r->o->vocab)
                return FAIL(ERR_FORMAT, "input_ids[%zu] is not a token id below the vocabulary's %d", i, r->o->vocab);
            TRY(ids_push(ids, (int32_t)json_integer_value(v)));
        }
        *text = strdup(json_is_string(prompt) ? json_string_value(prompt) : "");
        return *text ? OK : FAIL(ERR_MEMORY, "a prompt");
    }
    if (!json_is_string(prompt)) return FAIL(ERR_FORMAT, "no string \"%s\" and no \"input_ids\"", r->o->prompt_field);
    if (!r->tok) return FAIL(ERR_CONFIG, "text needs a tokenizer: the checkpoint has no tokenizer.json (data.tokenizer)");
    *text = strdup(json_string_value(prompt));
    if (!*text) return FAIL(ERR_MEMORY, "a prompt");
    bool chat = r->o->chat == TRI_TRUE || (r->o->chat == TRI_AUTO && tokenizer_id(r->tok, "]~b]") >= 0);
    struct text asked = {0};
    struct ids mask = {0};
    enum status s = data_prompt_text(&asked, r->o, json_string_value(prompt), json_string_length(prompt));
    struct chat_message m = {"user", asked.n ? asked.data : "", asked.n};
    if (!s && chat) s = chat_render(r->tok, &m, 1, CHAT_THINKING_DISABLED, true, ids, &mask);
    else if (!s) s = tokenizer_encode(r->tok, m.content, m.len, false, ids);
    ids_free(&mask);
    text_free(&asked);
    return s;
}

static enum status add_prompt(struct prompt_reader *r, const struct ids *ids, char *text, const char *label)
{
    struct prompts *p = r->p;
    if (p->n + 1 >= r->cap) {
        r->cap = r->cap ? 2 * r->cap : 256;
        void *a = realloc(p->offset, (size_t)(r->cap + 1) * sizeof *p->offset);
        if (a) p->offset = a;
        void *b = realloc(p->label, (size_t)r->cap * sizeof *p->label);
        if (b) p->label = b;
        void *c = realloc(p->text, (size_t)r->cap * sizeof *p->text);
        if (c) p->text = c;
        if (!a || !b || !c) return FAIL(ERR_MEMORY, "%" PRId64 " prompts", r->cap);
        if (p->n == 0) p->offset[0] = 0;
    }
    int64_t at = p->offset[p->n];
    if (at + (int64_t)ids->n > r->cap_ids) {
        r->cap_ids = 2 * (at + (int64_t)ids->n) + 4096;
        void *grown = realloc(p->ids, (size_t)r->cap_ids * sizeof *p->ids);
        if (!grown) return FAIL(ERR_MEMORY, "%" PRId64 " prompt tokens", r->cap_ids);
        p->ids = grown;
    }
    memcpy(p->ids + at, ids->id, ids->n * sizeof *ids->id);
    p->label[p->n] = strdup(label);
    if (!p->label[p->n]) return FAIL(ERR_MEMORY, "a label");
    p->text[p->n] = text;
    p->offset[++p->n] = at + (int64_t)ids->n;
    if ((int32_t)ids->n > p->longest) p->longest = (int32_t)ids->n;
    return OK;
}

static enum status read_prompt_line(struct prompt_reader *r, const char *line, size_t len, int max_prompt,
                                    int64_t *too_long)
{
    json_t *object = NULL;
    struct ids ids = {0};
    char *text = NULL;
    TRY(json_read_text(&object, line, len, "line"));
    enum status s = json_is_object(object) ? encode_prompt(r, object, &ids, &text) : FAIL(ERR_FORMAT, "not a JSON object");
    const json_t *label = json_object_get(object, r->label_field);
    if (!s && label && !json_is_string(label)) s = FAIL(ERR_FORMAT, "\"%s\" is not a string", r->label_field);
    if (!s && ids.n == 0) s = FAIL(ERR_FORMAT, "an empty prompt");
    if (!s && (int64_t)ids.n > max_prompt) ++*too_long;
    else if (!s) {
        s = add_prompt(r, &ids, text, label ? json_string_value(label) : "");
        if (!s) text = NULL;
    }
    free(text);
    ids_free(&ids);
    json_decref(object);
    return s;
}

static enum status read_prompts(struct prompt_reader *r, const char *path, int max_prompt, int64_t *too_long)
{
    FILE *f = fopen(path, "re");
    if (!f) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int64_t number = 0;
    enum status s = OK;
    while (!s && (r->o->limit == 0 || r->p->n < r->o->limit) && (len = getline(&line, &cap, f)) >= 0) {
        number++;
        while (len > 0 && strchr("\r\n \t", line[len - 1])) len--;
        if (len == 0) continue;
        s = len > MAX_LINE ? FAIL(ERR_FORMAT, "a line of %zd bytes", len)
                           : read_prompt_line(r, line, (size_t)len, max_prompt, too_long);
        if (s) status_prefix(s, "%s:%" PRId64, path, number);
    }
    if (!s && ferror(f)) s = FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    if (!s && r->p->n == 0)
        s = FAIL(ERR_FORMAT, "%s: no prompt of at most %d tokens in %" PRId64 " lines", path, max_prompt, number);
    free(line);
    fclose(f);
    return s;
}

enum status prompts_load(struct prompts *p, struct group *g, const char *path, const struct tokenizer *tok,
                         const struct data_options *o, const char *label_field, int max_prompt, int64_t *too_long)
{
    *p = (struct prompts){0};
    *too_long = 0;
    struct prompt_reader r = {.p = p, .tok = tok, .o = o, .label_field = label_field};
    TRY(comm_agree(g, g->rank == 0 ? read_prompts(&r, path, max_prompt, too_long) : OK));
    int64_t head[3] = {p->n, p->n ? p->offset[p->n] : 0, p->longest};
    TRY(comm_broadcast(g, tensor_view(head, DT_I64, PLACE_HOST, 1, 3, 1, 1, 1), 0));
    enum status s = OK;
    if (g->rank != 0) {
        p->n = head[0];
        p->longest = (int32_t)head[2];
        p->offset = malloc((size_t)(head[0] + 1) * sizeof *p->offset);
        p->ids = malloc((size_t)head[1] * sizeof *p->ids + 1);
        if (!p->offset || !p->ids) s = FAIL(ERR_MEMORY, "%" PRId64 " prompt tokens", head[1]);
    }
    TRY(comm_agree(g, s));
    TRY(comm_broadcast(g, tensor_view(p->offset, DT_I64, PLACE_HOST, 1, head[0] + 1, 1, 1, 1), 0));
    return comm_broadcast(g, tensor_view(p->ids, DT_I32, PLACE_HOST, 1, head[1], 1, 1, 1), 0);
}

void prompts_free(struct prompts *p)
{
    for (int64_t i = 0; p->label && i < p->n; i++) {
        free(p->label[i]);
        free(p->text[i]);
    }
    free(p->label);
    free(p->text);
    free(p->offset);
    free(p->ids);
    *p = (struct prompts){0};
}

/* ---------------------------------------------------------------- experience ------------------------------------- */

enum status experience_create(struct experience *e, int capacity, int max_prompt, int max_new, int moe_layers, int k)
{
    *e = (struct experience){.capacity = capacity, .max_prompt = max_prompt, .max_new = max_new,
                             .moe_layers = moe_layers, .k = k};
    size_t n = (size_t)capacity, row = (size_t)(max_prompt + max_new), new_row = (size_t)max_new;
    e->prompt = calloc(n, sizeof *e->prompt);
    e->draw = calloc(n, sizeof *e->draw);
    e->n_prompt = calloc(n * 3, sizeof *e->n_prompt);
    e->ids = calloc(n * row, sizeof *e->ids);
    e->mask = calloc(n * row, 1);
    e->rollout = calloc(n * new_row * 3, sizeof *e->rollout);
    e->reward = calloc(n * 4, sizeof *e->reward);
    e->dropped = calloc(n, sizeof *e->dropped);
    if (moe_layers) e->experts = calloc(n * row * (size_t)moe_layers * (size_t)k + 1, sizeof *e->experts);
    if (!e->prompt || !e->draw || !e->n_prompt || !e->ids || !e->mask || !e->rollout || !e->reward || !e->dropped ||
        (moe_layers && !e->experts))
        return FAIL(ERR_MEMORY, "%d samples of %d prompt and %d new tokens", capacity, max_prompt, max_new);
    e->n_new = e->n_prompt + n;
    e->finish = e->n_new + n;
    e->old = e->rollout + n * new_row;
    e->ref = e->old + n * new_row;
    e->unshaped = e->reward + n;
    e->advantage = e->unshaped + n;
    e->gap = e->advantage + n;
    return OK;
}

int64_t experience_bytes(int64_t capacity, int64_t max_prompt, int64_t max_new, int64_t moe_layers, int64_t k)
{
    const struct experience *e = NULL;
    int64_t row = max_prompt + max_new;
    return capacity * (int64_t)(sizeof *e->prompt + sizeof *e->draw + 3 * sizeof *e->n_prompt + 4 * sizeof *e->reward +
                                sizeof *e->dropped) +
           capacity * row * (int64_t)(sizeof *e->ids + sizeof *e->mask) + capacity * max_new * 3 * (int64_t)sizeof *e->rollout +
           capacity * row * moe_layers * k * (int64_t)sizeof *e->experts;
}

void experience_free(struct experience *e)
{
    free(e->prompt);
    free(e->draw);
    free(e->n_prompt);
    free(e->ids);
    free(e->mask);
    free(e->rollout);
    free(e->reward);
    free(e->dropped);
    free(e->experts);
    *e = (struct experience){0};
}

struct sample experience_sample(const struct experience *e, int i)
{
    return (struct sample){.id = i, .n = e->n_prompt[i] + e->n_new[i], .ids = experience_ids(e, i),
                           .mask = e->mask + (int64_t)i * (e->max_prompt + e->max_new)};
}

/* What is not ours is zeroed, then everything is summed: each element has one contribution. */
enum status experience_share(struct experience *e, struct group *g, const int *owner)
{
    int64_t row = e->max_prompt + e->max_new, n = e->n;
    if (g->size == 1) return OK;
    for (int i = 0; i < e->n; i++) {
        if (owner[i] == g->rank) continue;
        e->n_new[i] = e->finish[i] = 0;
        memset(experience_ids(e, i), 0, (size_t)row * sizeof *e->ids);
        memset(e->rollout + (int64_t)i * e->max_new, 0, (size_t)e->max_new * sizeof *e->rollout);
        if (e->experts)
            memset(e->experts + (int64_t)i * row * e->moe_layers * e->k, 0,
                   (size_t)(row * e->moe_layers * e->k) * sizeof *e->experts);
    }
    TRY(comm_all_reduce(g, tensor_view(e->n_new, DT_I32, PLACE_HOST, 1, n, 1, 1, 1), REDUCE_SUM));
    TRY(comm_all_reduce(g, tensor_view(e->finish, DT_I32, PLACE_HOST, 1, n, 1, 1, 1), REDUCE_SUM));
    TRY(comm_all_reduce(g, tensor_view(e->ids, DT_I32, PLACE_HOST, 1, n * row, 1, 1, 1), REDUCE_SUM));
    TRY(comm_all_reduce(g, tensor_view(e->rollout, DT_F32, PLACE_HOST, 1, n * e->max_new, 1, 1, 1), REDUCE_SUM));
    if (!e->experts) return OK;
    /* pairs of int16 travel as one int32: the other half of each sum is 0 on all ranks but one */
    int64_t words = (n * row * e->moe_layers * e->k + 1) / 2;
    return comm_all_reduce(g, tensor_view(e->experts, DT_I32, PLACE_HOST, 1, words, 1, 1, 1), REDUCE_SUM);
}
