#include "split.h"

#include "text.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_PATTERN = 16 << 10,      /* bytes */
    MATCH_LIMIT = 1 << 26,       /* backtracks of one match; \s* over a run of 64 MB stays below */
    HEAP_LIMIT_KIB = 256 << 10,  /* for the interpreter, which runs where there is no JIT */
    JIT_STACK_MAX = 8 << 20
};

/* Unicode's White_Space, which is what \s means to Oniguruma; PCRE2 adds U+180E. */
#define SPACES "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* One escape at pattern[0]. */
static enum status copy_escape(struct text *out, const char *pattern, bool in_set)
{
    if (pattern[1] == 's') return text_push(out, in_set ? SPACES : "[" SPACES "]", strlen(SPACES) + (in_set ? 0 : 2));
    if (pattern[1] == 'S' && !in_set) return text_push(out, "[^" SPACES "]", strlen(SPACES) + 3);
    if (pattern[1] == 'h' || pattern[1] == 'H')
        return FAIL(ERR_FORMAT, "\\%c (a hexadecimal digit to Oniguruma) is not supported", pattern[1]);
    return text_push(out, pattern, pattern[1] ? 2 : 1);
}

/* The pattern in PCRE2's dialect. */
static enum status translate(struct text *out, const char *pattern)
{
    bool in_set = false;
    for (const char *c = pattern; *c; c++) {
        if (*c == '\\') {
            TRY(copy_escape(out, c, in_set));
            if (c[1]) c++;
            continue;
        }
        if (in_set && *c == '&' && c[1] == '&')
            return FAIL(ERR_FORMAT, "byte %td: set intersection (&&) is not supported", c - pattern);
        if (in_set && *c == '[') {
            const char *close = c[1] == ':' ? strstr(c, ":]") : NULL;
            if (!close) return FAIL(ERR_FORMAT, "byte %td: a set inside a set is not supported", c - pattern);
            TRY(text_push(out, c, (size_t)(close + 2 - c)));
            c = close + 1;
            continue;
        }
        TRY(text_push(out, c, 1));
        if (*c == ']') in_set = false;
        if (*c == '[') {
            in_set = true;
            if (c[1] == '^') TRY(text_push(out, ++c, 1));
            if (c[1] == ']') TRY(text_push(out, ++c, 1)); /* the first ] of a set is a member */
        }
    }
    return OK;
}

static enum status compile(struct split *p, const char *pattern, size_t n, uint32_t options)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return FAIL(ERR_MEMORY, "no memory for a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error = 0;
    size_t at = 0;
    p->code = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &error, &at, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        char reason[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        return FAIL(ERR_FORMAT, "byte %zu: %s", at, reason);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without JIT the interpreter runs */
    return OK;
}

enum status split_init(struct split *p, const char *pattern, bool literal)
{
    size_t n = strlen(pattern);
    *p = (struct split){0};
    if (n == 0 || n > MAX_PATTERN) return FAIL(ERR_FORMAT, "%zu bytes, expected 1 to %d", n, MAX_PATTERN);
    if (literal) return compile(p, pattern, n, PCRE2_LITERAL);
    struct text text = {0};
    enum status s = translate(&text, pattern);
    if (!s) s = compile(p, text.data, text.n, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    text_free(&text);
    if (s) return s;
    if (!strcmp(pattern, SPLIT_GPT2)) p->known = SPLIT_IS_GPT2;
    if (!strcmp(pattern, SPLIT_GPT4)) p->known = SPLIT_IS_GPT4;
    if (!strcmp(pattern, SPLIT_O200K)) p->known = SPLIT_IS_O200K;
    return OK;
}

void split_free(struct split *p)
{
    pcre2_code_free(p->code);
    *p = (struct split){0};
}

enum status split_work_init(struct split_work *w)
{
    w->data = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    w->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL); /* NULL without JIT: not needed then */
    if (!w->data || !w->context) {
        split_work_free(w);
        return FAIL(ERR_MEMORY, "no memory to match patterns");
    }
    pcre2_set_match_limit(w->context, MATCH_LIMIT);
    pcre2_set_heap_limit(w->context, HEAP_LIMIT_KIB);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return OK;
}

void split_work_free(struct split_work *w)
{
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    *w = (struct split_work){0};
}

static enum status gives_up(int error, const struct split_walk *k)
{
    char reason[256];
    pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
    return FAIL(ERR_FORMAT, "the pattern gives up at byte %zu of %zu: %s", k->search, k->len, reason);
}

/* The next match at or after k->search, or the empty one at the end. */
static enum status find(struct split_walk *k)
{
    k->held = true;
    k->from = k->to = k->len;
    if (k->search >= k->len) return OK;
    size_t end = k->p->known ? split_scan(k->p->known, k->text, k->len, k->search) : 0;
    if (end) {
        k->from = k->search;
        k->to = k->search = end;
        return OK;
    }
    const struct split_work *w = k->w;
    int rc = pcre2_match(k->p->code, (PCRE2_SPTR)k->text, k->len, k->search, PCRE2_NO_UTF_CHECK, w->data, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(k->p->code, (PCRE2_SPTR)k->text, k->len, k->search, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->data,
                         w->context);
    if (rc == PCRE2_ERROR_NOMATCH) return OK;
    if (rc < 0) return gives_up(rc, k);
    const size_t *range = pcre2_get_ovector_pointer(w->data);
    /* \K in a lookahead can put a match's start behind its end or before what is already cut. */
    if (range[0] > range[1] || range[0] < k->search) return FAIL(ERR_FORMAT, "a match of the pattern ends at byte %zu, "
                                                                 "before its start at byte %zu", range[1], range[0]);
    k->from = range[0];
    k->to = k->search = range[1];
    if (k->from == k->to && k->to < k->len) { /* an empty match cuts; the search goes on behind the next character */
        uint32_t code;
        k->search += (size_t)utf8_step(k->text + k->to, k->len - k->to, &code);
    }
    return OK;
}

enum status split_next(struct split_walk *k, size_t *from, size_t *to)
{
    for (;;) {
        if (!k->held) TRY(find(k));
        *from = k->at;
        if (k->at < k->from) {
            *to = k->at = k->from;
            return OK;
        }
        *to = k->at = k->to;
        if (k->at >= k->len) {
            k->from = k->to = k->len; /* stays at the end */
            return OK;
        }
        k->held = false;
        if (*to > *from) return OK;
    }
}
