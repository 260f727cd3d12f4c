/* What the table's types mean: text to field, field to text. */
#include "options.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 1024 };

static void *field(const struct option *o, const struct config *c) { return (char *)c + o->offset; }

static bool in_range(const struct option *o, double x)
{
    if (x < o->lo || x > o->hi) return false;
    return !((o->flags & ABOVE_LO && x == o->lo) || (o->flags & BELOW_HI && x == o->hi));
}

void option_range_text(const struct option *o, char *text, size_t size)
{
    char lo[VALUE_FLOAT_CHARS], hi[VALUE_FLOAT_CHARS];
    *text = 0;
    if (o->type != OPT_INT && o->type != OPT_FLOAT && o->type != OPT_INTS) return;
    if (o->type == OPT_FLOAT || o->hi < 0x1p53)
        snprintf(text, size, "%c%s, %s%c", o->flags & ABOVE_LO ? '(' : '[', value_float_text(lo, o->lo),
                 value_float_text(hi, o->hi), o->flags & BELOW_HI ? ')' : ']');
    else
        snprintf(text, size, "[%s, 2^53]", value_float_text(lo, o->lo));
}

void option_type_text(const struct option *o, char *text, size_t size)
{
    static const char *const name[] = {"true | false", "integer", "number", "text", "path", "", "list of integers"};
    snprintf(text, size, "%s", name[o->type]);
    if (o->type != OPT_ENUM) return;
    size_t at = 0;
    for (int i = 0; o->choices[i] && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " | " : "", o->choices[i]);
}

/* "x.yaml:3: train.lr: 'abc' is not a number". */
#define BAD(o, where, text, why) FAIL(ERR_CONFIG, "%s: %s: '%.80s' %s", where, (o)->name, text, why)

static enum status out_of_range(const struct option *o, const char *where, const char *text)
{
    char range[96];
    option_range_text(o, range, sizeof range);
    return FAIL(ERR_CONFIG, "%s: %s: %.80s is outside %s", where, o->name, text, range);
}

static enum status read_int(const struct option *o, const char *text, bool quoted, const char *where, int64_t *x)
{
    if (quoted) return BAD(o, where, text, "is a quoted string where an integer belongs: write it without quotes");
    const char *why = value_int(text, x);
    if (why) return BAD(o, where, text, why);
    if (!in_range(o, (double)*x)) return out_of_range(o, where, text);
    return OK;
}

static enum status set_float(const struct option *o, double *out, const char *text, bool quoted, const char *where)
{
    if (quoted) return BAD(o, where, text, "is a quoted string where a number belongs: write it without quotes");
    if (o->flags & OPTIONAL && (value_is_null(text) || !strcmp(text, "unset"))) {
        *out = NAN;
        return OK;
    }
    double x;
    const char *why = value_float(text, &x);
    if (why) return BAD(o, where, text, why);
    if (!in_range(o, x)) return out_of_range(o, where, text);
    *out = x;
    return OK;
}

static enum status set_bool(const struct option *o, bool *out, const char *text, bool quoted, const char *where)
{
    if (quoted) return BAD(o, where, text, "is a quoted string where true or false belongs: write it without quotes");
    const char *why = value_bool(text, out);
    return why ? BAD(o, where, text, why) : OK;
}

static const char *choice_at(const void *choices, int i) { return ((const char *const *)choices)[i]; }

static enum status set_enum(const struct option *o, int *out, const char *text, bool quoted, const char *where)
{
    bool truth;
    /* `chat: yes` means true where true is a choice. */
    const char *wanted = !quoted && !value_bool(text, &truth) ? (truth ? "true" : "false") : text;
    int n = 0;
    for (; o->choices[n]; n++)
        if (!strcmp(o->choices[n], text) || !strcmp(o->choices[n], wanted)) {
            *out = (int)o->lo + n;
            return OK;
        }
    char choices[160];
    option_type_text(o, choices, sizeof choices);
    const char *near = value_nearest(text, choice_at, o->choices, n);
    return FAIL(ERR_CONFIG, "%s: %s: '%.80s' is none of %s%s%s%s", where, o->name, text, choices,
                near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static enum status set_string(const struct option *o, char **out, const char *text, bool quoted, const char *where)
{
    if (!quoted && value_is_null(text)) text = "";
    if (!value_is_utf8(text)) return FAIL(ERR_CONFIG, "%s: %s: the text is not UTF-8", where, o->name);
    char *own = strdup(text);
    if (!own) return FAIL(ERR_MEMORY, "%s: no memory", o->name);
    free(*out);
    *out = own;
    return OK;
}

static enum status set_ints(const struct option *o, struct int_list *out, char *const *value, const bool *quoted, int n,
                            const char *where)
{
    if (n > LIST_MAX) return FAIL(ERR_CONFIG, "%s: %s: %d values, at most %d", where, o->name, n, (int)LIST_MAX);
    int *v = n ? malloc((size_t)n * sizeof *v) : NULL;
    if (n && !v) return FAIL(ERR_MEMORY, "%s: no memory for %d values", o->name, n);
    for (int i = 0; i < n; i++) {
        int64_t x = 0;
        enum status s = read_int(o, value[i], quoted[i], where, &x);
        if (s) {
            free(v);
            return s;
        }
        v[i] = (int)x;
    }
    free(out->v);
    *out = (struct int_list){v, n};
    return OK;
}

enum status option_set(const struct option *o, struct config *c, char *const *value, const bool *quoted, int n,
                       bool is_list, const char *where)
{
    void *at = field(o, c);
    if (o->type == OPT_INTS) {
        if (!is_list && n == 1 && !quoted[0] && value_is_null(value[0])) n = 0;
        return set_ints(o, at, value, quoted, n, where);
    }
    if (is_list || n != 1) return FAIL(ERR_CONFIG, "%s: %s: a list where one value belongs", where, o->name);
    const char *text = value[0];
    int64_t x = 0;
    int choice = 0;
    switch (o->type) {
    case OPT_BOOL: return set_bool(o, at, text, quoted[0], where);
    case OPT_INT:
        TRY(read_int(o, text, quoted[0], where, &x));
        *(int64_t *)at = x;
        return OK;
    case OPT_FLOAT: return set_float(o, at, text, quoted[0], where);
    case OPT_ENUM:
        TRY(set_enum(o, &choice, text, quoted[0], where));
        memcpy(at, &choice, sizeof choice);
        return OK;
    default: return set_string(o, at, text, quoted[0], where);
    }
}

/* A YAML double-quoted scalar. */
static char *quoted_text(const char *s)
{
    char *text = malloc(4 * strlen(s) + 3), *p = text;
    if (!text) return NULL;
    *p++ = '"';
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\')
            *p++ = '\\', *p++ = *s;
        else if (ch < 0x20 || ch == 0x7f)
            p += sprintf(p, "\\x%02X", ch);
        else
            *p++ = *s;
    }
    *p++ = '"';
    *p = 0;
    return text;
}

static char *list_text(const struct int_list *l)
{
    char *text = malloc((size_t)l->n * 14 + 3), *p = text;
    if (!text) return NULL;
    *p++ = '[';
    for (int i = 0; i < l->n; i++) p += sprintf(p, "%s%d", i ? ", " : "", l->v[i]);
    *p++ = ']';
    *p = 0;
    return text;
}

char *option_text(const struct option *o, const struct config *c)
{
    const void *at = field(o, c);
    char number[VALUE_FLOAT_CHARS];
    int choice;
    switch (o->type) {
    case OPT_BOOL: return strdup(*(const bool *)at ? "true" : "false");
    case OPT_INT: snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)at); return strdup(number);
    case OPT_FLOAT:
        if (isnan(*(const double *)at)) return strdup("unset");
        return strdup(value_float_text(number, *(const double *)at));
    case OPT_ENUM: memcpy(&choice, at, sizeof choice); return strdup(o->choices[choice - (int)o->lo]);
    case OPT_INTS: return list_text(at);
    default: return quoted_text(*(char *const *)at);
    }
}

bool option_equal(const struct option *o, const struct config *a, const struct config *b)
{
    const void *x = field(o, a), *y = field(o, b);
    switch (o->type) {
    case OPT_BOOL: return *(const bool *)x == *(const bool *)y;
    case OPT_INT: return *(const int64_t *)x == *(const int64_t *)y;
    case OPT_FLOAT:
        return *(const double *)x == *(const double *)y || (isnan(*(const double *)x) && isnan(*(const double *)y));
    case OPT_ENUM: return !memcmp(x, y, sizeof(int));
    case OPT_INTS: {
        const struct int_list *l = x, *m = y;
        return l->n == m->n && (!l->n || !memcmp(l->v, m->v, (size_t)l->n * sizeof *l->v));
    }
    default: return !strcmp(*(char *const *)x, *(char *const *)y);
    }
}

bool option_is_set(const struct option *o, const struct config *c)
{
    const void *at = field(o, c);
    switch (o->type) {
    case OPT_FLOAT: return !isnan(*(const double *)at);
    case OPT_STRING:
    case OPT_PATH: return **(char *const *)at != 0;
    case OPT_INTS: return ((const struct int_list *)at)->n > 0;
    default: return true;
    }
}

void option_clear(const struct option *o, struct config *c)
{
    void *at = field(o, c);
    if (o->type == OPT_STRING || o->type == OPT_PATH) {
        free(*(char **)at);
        *(char **)at = NULL;
    } else if (o->type == OPT_INTS) {
        struct int_list *l = at;
        free(l->v);
        *l = (struct int_list){0};
    }
}
