#include "math_plain.h"

#include <ctype.h>
#include <string.h>

/* Marks in the text under work: a group's ends, to be dropped or to become parentheses. */
enum { OPEN = 1, CLOSE = 2, DROP = 4 };

/* What an open brace belongs to. */
enum { GROUP = 'g', NUMERATOR = 'n', DENOMINATOR = 'd', ROOT = 'r', PLAIN = 't' };

struct plain {
    const char *s;
    size_t n, at;
    struct text *out;
    struct text stack;       /* of open braces */
    bool bad;
};

static enum status argument(struct plain *p, char kind);

static enum status put(struct plain *p, const char *s) { return text_push(p->out, s, strlen(s)); }
static enum status put_char(struct plain *p, char c) { return text_push(p->out, &c, 1); }
static char last(const struct plain *p) { return p->out->n ? p->out->data[p->out->n - 1] : 0; }
static enum status put_space(struct plain *p) { return last(p) == ' ' ? OK : put_char(p, ' '); }
static char peek(const struct plain *p) { return p->at < p->n ? p->s[p->at] : 0; }
static void skip_spaces(struct plain *p)
{
    while (p->at < p->n && isspace((unsigned char)p->s[p->at])) p->at++;
}
static bool starts(const struct plain *p, const char *what)
{
    size_t n = strlen(what);
    return p->n - p->at >= n && memcmp(p->s + p->at, what, n) == 0;
}

/* ---------------------------------------------------------------- groups ----------------------------------------- */

static enum status open_group(struct plain *p, char kind)
{
    TRY(text_push(&p->stack, &kind, 1));
    return kind == PLAIN ? OK : put_char(p, kind == ROOT ? '(' : OPEN);
}

static enum status end_group(struct plain *p, char kind)
{
    if (kind == PLAIN) return OK;
    TRY(put_char(p, kind == ROOT ? ')' : CLOSE));
    if (kind != NUMERATOR) return OK;
    TRY(put_char(p, '/'));
    return argument(p, DENOMINATOR);
}

static enum status close_group(struct plain *p)
{
    if (p->stack.n == 0) {
        p->bad = true;
        return OK;
    }
    return end_group(p, p->stack.data[--p->stack.n]);
}

/* The name of the command at p->at, which is behind the backslash: letters, or one other byte. */
static size_t command_length(const struct plain *p)
{
    size_t n = 0;
    while (p->at + n < p->n && isalpha((unsigned char)p->s[p->at + n])) n++;
    return n ? n : p->at < p->n;
}

/* The argument of a command: a group, or one character or symbol. */
static enum status argument(struct plain *p, char kind)
{
    skip_spaces(p);
    char c = peek(p);
    if (c == '{') {
        p->at++;
        return open_group(p, kind);
    }
    size_t n = isalnum((unsigned char)c) ? 1 : 0;
    if (c == '\\') {
        struct plain behind = *p;
        behind.at++;
        n = command_length(&behind) + 1;
        if (n < 3 || starts(p, "\\frac") || starts(p, "\\sqrt") || starts(p, "\\text")) n = 0;
    }
    if (n == 0) {
        p->bad = true;
        return OK;
    }
    TRY(open_group(p, kind));
    p->stack.n--;
    TRY(text_push(p->out, p->s + p->at, n));
    p->at += n;
    return end_group(p, kind);
}

/* ---------------------------------------------------------------- commands --------------------------------------- */

static bool any_of(const char *const *list, const char *s, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && memcmp(*list, s, n) == 0) return true;
    return false;
}

static enum status fraction(struct plain *p)
{
    if (isdigit((unsigned char)last(p))) TRY(put_space(p)); /* 1\frac12 is a mixed number */
    return argument(p, NUMERATOR);
}

static enum status root(struct plain *p)
{
    TRY(put(p, "sqrt"));
    skip_spaces(p);
    if (peek(p) == '[') {
        const char *end = memchr(p->s + p->at, ']', p->n - p->at);
        if (!end) {
            p->bad = true;
            return OK;
        }
        size_t n = (size_t)(end - p->s) + 1 - p->at;
        TRY(text_push(p->out, p->s + p->at, n));
        p->at += n;
    }
    return argument(p, ROOT);
}

static enum status command(struct plain *p)
{
    static const char *const nothing[] = {"left", "right", "displaystyle", "textstyle", "big", "Big", "bigl", "bigr",
                                          "Bigl", "Bigr", "pounds", "euro", "yen", "(", ")", "[", "]", "$", "!", NULL};
    static const char *const fractions[] = {"frac", "dfrac", "tfrac", "cfrac", NULL};
    static const char *const texts[] = {"text", "textbf", "textit", "textrm", "textsf", "texttt", "mathrm", "mathbf",
                                        "mathit", "mathsf", "mbox", "hbox", "operatorname", NULL};
    static const char *const space[] = {",", ";", ":", " ", "quad", "qquad", "\\", "\n", NULL};
    static const char *const product[] = {"cdot", "times", "ast", NULL};
    static const char *const degree[] = {"circ", "degree", NULL};
    static const char *const boxes[] = {"boxed", "fbox", "boldsymbol", NULL};
    size_t n = command_length(p);
    const char *name = p->s + p->at;
    p->at += n;
    if (n == 0 || any_of(nothing, name, n)) return OK;
    if (any_of(fractions, name, n)) return fraction(p);
    if (n == 4 && memcmp(name, "sqrt", 4) == 0) return root(p);
    if (any_of(space, name, n)) return put_space(p);
    if (any_of(product, name, n)) return put_char(p, '*');
    if (any_of(degree, name, n)) return put(p, MATH_DEGREE);
    if (any_of(boxes, name, n)) return argument(p, PLAIN);
    if (any_of(texts, name, n)) {
        TRY(put_space(p));
        TRY(put_char(p, MATH_TEXT));
        return argument(p, PLAIN);
    }
    if (n == 1 && !isalpha((unsigned char)*name)) return put_char(p, *name); /* \% \{ \} \# \& \_ */
    TRY(put_char(p, '\\'));
    if (n == 3 && (memcmp(name, "leq", 3) == 0 || memcmp(name, "geq", 3) == 0)) n = 2;
    return text_push(p->out, name, n);
}

/* ^\circ, ^{\circ} and their spaces. */
static bool raised_degree(struct plain *p)
{
    struct plain q = *p;
    q.at++;
    skip_spaces(&q);
    bool brace = peek(&q) == '{';
    if (brace) q.at++, skip_spaces(&q);
    if (starts(&q, "\\circ")) q.at += 5;
    else if (starts(&q, "\\degree")) q.at += 7;
    else return false;
    if (isalpha((unsigned char)peek(&q))) return false;
    if (brace) {
        skip_spaces(&q);
        if (peek(&q) != '}') return false;
        q.at++;
    }
    p->at = q.at;
    return true;
}

/* ---------------------------------------------------------------- characters ------------------------------------- */

static enum status put_root_of_digits(struct plain *p)
{
    size_t n = 0;
    if (peek(p) == '(') return put(p, "sqrt");
    while (p->at + n < p->n && isdigit((unsigned char)p->s[p->at + n])) n++;
    if (n == 0) return put(p, "sqrt");
    TRY(put(p, "sqrt("));
    TRY(text_push(p->out, p->s + p->at, n));
    p->at += n;
    return put_char(p, ')');
}

static enum status wide_character(struct plain *p)
{
    uint32_t code = 0;
    int n = utf8_step(p->s + p->at, p->n - p->at, &code);
    const char *from = p->s + p->at;
    p->at += (size_t)(n < 0 ? -n : n);
    if (n < 0) return text_push(p->out, from, (size_t)-n);
    if (code == 0xa0 || (code >= 0x2000 && code <= 0x200a) || code == 0x202f || code == 0x205f || code == 0x3000)
        return put_space(p);
    switch (code) {
    case 0x2010: case 0x2011: case 0x2012: case 0x2013: case 0x2014: case 0x2212: return put_char(p, '-');
    case 0xd7: case 0xb7: case 0x22c5: return put_char(p, '*');
    case 0xf7: case 0x2044: case 0x2215: return put_char(p, '/');
    case 0xa3: case 0xa5: case 0x20ac: case 0x20b9: case 0x200b: case 0xfeff: return OK;
    case 0xb2: return put(p, "^2");
    case 0xb3: return put(p, "^3");
    case 0x2018: case 0x2019: return put_char(p, '\'');
    case 0x201c: case 0x201d: return put_char(p, '"');
    case 0x3c0: return put(p, "\\pi");
    case 0x221e: return put(p, "\\infty");
    case 0x221a: return put_root_of_digits(p);
    default: return text_push(p->out, from, (size_t)n);
    }
}

static enum status character(struct plain *p)
{
    unsigned char c = (unsigned char)peek(p);
    if (c >= 0x80) return wide_character(p);
    if (c == '^' && raised_degree(p)) return put(p, MATH_DEGREE);
    if (c == '{' && starts(p, "{,}")) {
        p->at += 3;
        return put_char(p, ',');
    }
    p->at++;
    if (isspace(c) || c == '~') return put_space(p);
    switch (c) {
    case '\\': return command(p);
    case '{': return open_group(p, GROUP);
    case '}': return close_group(p);
    case '$': case '`': return OK;
    default: return c < 0x20 || c == 0x7f ? OK : put_char(p, (char)c);
    }
}

/* ---------------------------------------------------------------- passes over the result ------------------------- */

/* Groups of letters, digits and dots (or a lone symbol such as \pi) lose their ends, others get parentheses. `open` is
 * a scratch stack: for each open group its place, then whether it is simple so far. */
static enum status resolve_groups(struct text *t, struct text *open, bool *bad)
{
    struct level { size_t at; bool simple; } top;
    open->n = 0;
    for (size_t i = 0; i < t->n; i++) {
        char c = t->data[i];
        if (c == OPEN) {
            top = (struct level){i, true};
            TRY(text_push(open, &top, sizeof top));
            continue;
        }
        bool simple = isalnum((unsigned char)c) || c == '.';
        if (open->n == 0) {
            *bad |= c == CLOSE;
            continue;
        }
        char *held = open->data + open->n - sizeof top;
        memcpy(&top, held, sizeof top);
        if (c == CLOSE) {
            t->data[top.at] = top.simple ? DROP : '(';
            t->data[i] = top.simple ? DROP : ')';
            open->n -= sizeof top;
            simple = top.simple;
            if (open->n == 0) continue;
            held -= sizeof top;
            memcpy(&top, held, sizeof top);
        }
        top.simple &= simple || (c == '\\' && i == top.at + 1);
        memcpy(held, &top, sizeof top);
    }
    *bad |= open->n != 0;
    size_t to = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->data[i] != DROP) t->data[to++] = t->data[i];
    t->n = to;
    return OK;
}

static void cut_front(struct text *t, size_t n)
{
    memmove(t->data, t->data + n, t->n - n);
    t->n -= n;
}

static void trim(struct text *t)
{
    size_t front = 0;
    while (t->n > 0 && strchr(" *\"'.,;:!", t->data[t->n - 1])) t->n--;
    while (front < t->n && strchr(" *\"':\3", t->data[front])) front++;
    if (front) cut_front(t, front);
}

/* "x = 5" is 5, unless there is more than one '='. */
static void cut_variable(struct text *t)
{
    const char *equals = t->n ? memchr(t->data, '=', t->n) : NULL;
    if (!equals || memchr(equals + 1, '=', t->n - (size_t)(equals + 1 - t->data))) return;
    size_t n = (size_t)(equals - t->data), name = n;
    while (name > 0 && t->data[name - 1] == ' ') name--;
    if (name == 1 && isalpha((unsigned char)t->data[0])) cut_front(t, n + 1);
    trim(t);
}

enum status math_plain(const char *s, size_t n, struct text *out, bool *bad)
{
    struct plain p = {.s = s, .n = n, .out = out};
    enum status st = OK;
    out->n = 0;
    while (!st && !p.bad && p.at < p.n) st = character(&p);
    *bad = p.bad || p.stack.n != 0;
    if (!st) st = resolve_groups(out, &p.stack, bad);
    text_free(&p.stack);
    TRY(st);
    trim(out);
    cut_variable(out);
    return OK;
}
