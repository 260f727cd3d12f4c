#include "chat.h"

#include <string.h>

/* A conversation being rendered. */
struct render {
    const struct tokenizer *t;
    struct chat_tokens k;
    enum chat_thinking mode;
    struct ids *ids, *mask;
};

static enum status need(const struct tokenizer *t, const char *name, int32_t *id)
{
    *id = tokenizer_id(t, name);
    return *id >= 0 ? OK : FAIL(ERR_FORMAT, "the tokenizer has no token \"%s\", which the chat layout needs", name);
}

enum status chat_tokens_find(const struct tokenizer *t, struct chat_tokens *k)
{
    TRY(need(t, "]~!b[", &k->begin));
    TRY(need(t, "]~b]", &k->role));
    TRY(need(t, "[e~[", &k->end));
    bool plain = tokenizer_id(t, "<mm:think>") < 0 && tokenizer_id(t, "<think>") >= 0;
    TRY(need(t, plain ? "<think>" : "<mm:think>", &k->think));
    return need(t, plain ? "</think>" : "</mm:think>", &k->think_end);
}

static enum status mark(struct render *r, bool target)
{
    while (r->mask->n < r->ids->n) TRY(ids_push(r->mask, target));
    return OK;
}

static enum status push_token(struct render *r, int32_t id, bool target)
{
    TRY(ids_push(r->ids, id));
    return mark(r, target);
}

static enum status push_text(struct render *r, const char *text, size_t n, bool target)
{
    TRY(tokenizer_encode(r->t, text, n, false, r->ids));
    return mark(r, target);
}

/* Role name, newline and content as one text, because a content that starts with white space joins the newline when the
 * whole conversation is encoded at once, as the model saw it. */
static enum status push_turn(struct render *r, const char *role, const char *content, size_t n)
{
    struct text text = {0};
    TRY(push_token(r, r->k.role, false));
    enum status s = text_push(&text, role, strlen(role));
    if (!s) s = text_push(&text, "\n", 1);
    if (!s) s = text_push(&text, content, n);
    if (!s) s = push_text(r, text.data, text.n, false);
    text_free(&text);
    return s;
}

/* Part of a text. */
struct part {
    const char *at;
    size_t n;
};

static bool starts_with(struct part p, const char *s) { return p.n >= strlen(s) && !memcmp(p.at, s, strlen(s)); }

static struct part skip(struct part p, size_t n) { return (struct part){p.at + n, p.n - n}; }

static struct part trim_newlines(struct part p)
{
    while (p.n && p.at[0] == '\n') p = skip(p, 1);
    while (p.n && p.at[p.n - 1] == '\n') p.n--;
    return p;
}

/* Takes a think block off the front of *answer. False when there is none: the content is left as it is. */
static bool take_thoughts(struct part *answer, struct part *thoughts)
{
    static const char *const marks[][2] = {{"<mm:think>", "</mm:think>"}, {"<think>", "</think>"}};
    for (int i = 0; i < 2; i++) {
        if (!starts_with(*answer, marks[i][0])) continue;
        struct part inside = skip(*answer, strlen(marks[i][0]));
        const char *end = memmem(inside.at, inside.n, marks[i][1], strlen(marks[i][1]));
        if (!end) return false;
        size_t n = (size_t)(end - inside.at);
        *thoughts = trim_newlines((struct part){inside.at, n});
        *answer = trim_newlines(skip(inside, n + strlen(marks[i][1])));
        return true;
    }
    return false;
}

/* The think token that opens a turn is the model's own choice only where no prompt has made it. */
static enum status push_assistant(struct render *r, const char *content, size_t n)
{
    struct part answer = {content, n}, thoughts = {content, 0};
    bool chosen = r->mode == CHAT_THINKING_ADAPTIVE;
    TRY(push_turn(r, "ai", "", 0));
    if (take_thoughts(&answer, &thoughts) && thoughts.n) {
        TRY(push_token(r, r->k.think, chosen));
        TRY(push_text(r, thoughts.at, thoughts.n, true));
        TRY(push_token(r, r->k.think_end, true));
    } else TRY(push_token(r, r->k.think_end, chosen));
    return push_text(r, answer.at, answer.n, true);
}

static enum status push_message(struct render *r, const struct chat_message *m)
{
    bool assistant = !strcmp(m->role, "assistant") || !strcmp(m->role, "ai");
    bool other = !strcmp(m->role, "system") || !strcmp(m->role, "developer") || !strcmp(m->role, "user");
    if (assistant) TRY(push_assistant(r, m->content, m->len));
    else if (other) TRY(push_turn(r, m->role, m->content, m->len));
    else return FAIL(ERR_FORMAT, "role \"%s\" is none of system, developer, user, assistant", m->role);
    TRY(push_token(r, r->k.end, assistant));
    return push_text(r, "\n", 1, false);
}

static enum status push_prompt(struct render *r)
{
    TRY(push_turn(r, "ai", "", 0));
    if (r->mode == CHAT_THINKING_DISABLED) return push_token(r, r->k.think_end, false);
    return r->mode == CHAT_THINKING_ENABLED ? push_token(r, r->k.think, false) : OK;
}

static enum status render(struct render *r, const struct chat_message *m, int n, bool generation_prompt)
{
    if (n < 1) return FAIL(ERR_FORMAT, "a conversation of %d messages", n);
    TRY(chat_tokens_find(r->t, &r->k));
    TRY(push_token(r, r->k.begin, false));
    for (int i = 0; i < n; i++) {
        enum status s = push_message(r, &m[i]);
        if (s) return status_prefix(s, "message %d", i);
    }
    return generation_prompt ? push_prompt(r) : OK;
}

enum status chat_render(const struct tokenizer *t, const struct chat_message *m, int n, enum chat_thinking mode,
                        bool generation_prompt, struct ids *ids, struct ids *mask)
{
    struct render r = {.t = t, .mode = mode, .ids = ids, .mask = mask};
    if (ids->n != mask->n) return FAIL(ERR_INTERNAL, "%zu ids and %zu mask entries before rendering", ids->n, mask->n);
    size_t before = ids->n;
    enum status s = render(&r, m, n, generation_prompt);
    if (s) ids->n = mask->n = before;
    return s;
}
