#include "math_answer.h"

#include "math_number.h"
#include "math_plain.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* ---------------------------------------------------------------- units ------------------------------------------ */

/* Words of fewer than three letters, or written right behind the number, are units only when they are here. */
static const char *const short_units[] = {
    "cm", "mm", "km", "dm", "nm", "ft", "in", "yd", "mi", "kg", "mg", "lb", "oz", "ml", "dl", "cl", "hr", "am",
    "pm", "ms", "ns", "kw", "hz", "mb", "gb", "kb", "sq", "cu", "mph", "kph", "kmh", "lbs", "hrs", "min", "sec",
    "usd", "eur", "deg", "st", "nd", "rd", "th", NULL};
/* Words that change what the number before them means, or join it with another. */
static const char *const no_units[] = {
    "and", "or", "to", "not", "more", "less", "above", "below", "over", "under", "plus", "minus", "times",
    "divided", "point", "mod", "modulo", "remainder", "base", "choose", "factorial", "squared", "cubed", "sqrt",
    "root", "sin", "cos", "tan", "log", "exp", "negative", "hundred", "thousand", "million", "billion", "trillion",
    "dozen", "dozens", "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth",
    "fifths", "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths", "tenth", "tenths",
    "hundredth", "hundredths", "thousandth", "thousandths", "each", "pi", "inf", "infinity", NULL};

static bool listed(const char *const *list, const char *s, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && strncasecmp(*list, s, n) == 0) return true;
    return false;
}

/* One word of a unit; `sure` when it came out of \text{} or is part of a quotient, `apart` behind a space. */
static bool unit_word(const char *s, size_t n, bool sure, bool apart)
{
    if (listed(no_units, s, n)) return false;
    if (sure || listed(short_units, s, n)) return true;
    return apart && (n >= 3 || (n == 1 && strchr("mgshlL", *s))); /* 5m is a product, 5 m a length */
}

/* What stands behind a number is nothing or a unit: "cm", " square meters", " km/h", "%", " apples", " cm^2". */
static bool is_unit(const char *s, size_t n)
{
    enum { MOST_WORDS = 6 };
    bool marked = false, apart = false, divides = false; /* divides: the h of km/h needs no more letters */
    int words = 0;
    for (size_t i = 0; i < n;) {
        size_t letters = 0;
        while (i + letters < n && isalpha((unsigned char)s[i + letters])) letters++;
        if (letters > 0) {
            bool divided = apart && i + letters < n && s[i + letters] == '/';
            if (++words > MOST_WORDS || !unit_word(s + i, letters, marked || divides || divided, apart)) return false;
            apart = divides = false;
            i += letters;
            continue;
        }
        if (n - i >= 2 && memcmp(s + i, MATH_DEGREE, 2) == 0) {
            i += 2;
            if (i < n && strchr("CF", s[i]) && (i + 1 == n || s[i + 1] == ' ')) i++;
            continue;
        }
        if (s[i] == '^' && words > 0 && i + 1 < n && (s[i + 1] == '2' || s[i + 1] == '3')) {
            i += 2;
            continue;
        }
        if (s[i] == MATH_TEXT) marked = true;
        else if (s[i] == '/' && words > 0) divides = true;
        else if (s[i] == ' ' || (s[i] == '-' && words > 0)) apart = true;
        else if (s[i] != '%' && s[i] != '.') return false;
        i++;
    }
    return true;
}

/* ---------------------------------------------------------------- values ----------------------------------------- */

struct value {
    enum { NOTHING, NUMBER, STRING } kind;
    struct math_number number;
    struct text plain;       /* of a STRING */
};

static void value_free(struct value *v)
{
    if (v->kind == NUMBER) math_number_free(&v->number);
    text_free(&v->plain);
}

static bool wordy(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Spaces stay between two letters or digits only: "x + 1" is "x+1", "3 4" is not "34". */
static void close_up(struct text *t)
{
    size_t to = 0;
    bool space = false;
    for (size_t i = 0; i < t->n; i++) {
        char c = t->data[i];
        if (c == MATH_TEXT) continue;
        if (c == ' ') {
            space = true;
            continue;
        }
        if (space && to > 0 && wordy(t->data[to - 1]) && wordy(c)) t->data[to++] = ' ';
        space = false;
        t->data[to++] = c;
    }
    t->n = to;
}

static enum status value_of(struct math_span s, struct value *v)
{
    bool bad, zero_divisor;
    size_t used;
    *v = (struct value){.kind = NOTHING};
    TRY(math_plain(s.data, s.n, &v->plain, &bad));
    if (bad || v->plain.n == 0) return OK;
    TRY(math_number_scan(v->plain.data, v->plain.n, &v->number, &used, &zero_divisor));
    if (used > 0 && is_unit(v->plain.data + used, v->plain.n - used)) {
        v->kind = NUMBER;
        return OK;
    }
    math_number_free(&v->number);
    if (zero_divisor) return OK;
    close_up(&v->plain);
    if (v->plain.n > 0) v->kind = STRING;
    return OK;
}

enum status math_answer_equal(struct math_span a, struct math_span b, bool *equal)
{
    struct value x, y = {.kind = NOTHING};
    *equal = false;
    enum status s = value_of(a, &x);
    if (!s && x.kind != NOTHING) s = value_of(b, &y);
    if (!s && x.kind == NUMBER && y.kind == NUMBER) s = math_number_equal(&x.number, &y.number, equal);
    else if (!s && x.kind == STRING && y.kind == STRING)
        *equal = x.plain.n == y.plain.n && memcmp(x.plain.data, y.plain.data, x.plain.n) == 0;
    value_free(&x);
    value_free(&y);
    return s;
}

static enum status kind_of(struct math_span s, int *kind)
{
    struct value v;
    enum status st = value_of(s, &v);
    *kind = (int)v.kind;
    value_free(&v);
    return st;
}

/* ---------------------------------------------------------------- finding ---------------------------------------- */

static struct math_span strip(struct math_span s)
{
    while (s.n > 0 && isspace((unsigned char)s.data[s.n - 1])) s.n--;
    while (s.n > 0 && isspace((unsigned char)s.data[0])) s.data++, s.n--;
    return s;
}

static struct math_span rest_of_line(const char *from, const char *end)
{
    const char *stop = memchr(from, '\n', (size_t)(end - from));
    return (struct math_span){from, (size_t)((stop ? stop : end) - from)};
}

static bool at(const char *s, const char *end, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(end - s) >= n && memcmp(s, what, n) == 0;
}

static const char *behind_thoughts(const char *s, const char *end)
{
    static const char *const closing[] = {"</think>", "</mm:think>"};
    const char *from = s;
    for (; s < end && (s = memchr(s, '<', (size_t)(end - s))); s++)
        for (int k = 0; k < 2; k++)
            if (at(s, end, closing[k])) from = s + strlen(closing[k]);
    return from;
}

/* Behind "answer:" at s, or NULL. Emphasis and spaces may stand around the colon. */
static const char *answer_head(const char *begin, const char *s, const char *end)
{
    static const char word[] = "answer";
    size_t n = sizeof word - 1;
    if ((size_t)(end - s) <= n || strncasecmp(s, word, n) != 0) return NULL;
    if (s > begin && isalpha((unsigned char)s[-1])) return NULL;
    for (s += n; s < end && (*s == '*' || *s == '_' || *s == ' '); s++) {}
    return s < end && *s == ':' ? s + 1 : NULL;
}

/* The last answer line: its text and where it starts, NULL data when there is none. */
static struct math_span last_answer_line(const char *begin, const char *end)
{
    struct math_span found = {NULL, 0};
    for (const char *s = begin; s < end; s++) {
        const char *head = *s == 'a' || *s == 'A' ? answer_head(begin, s, end) : NULL;
        if (head) found.data = head, s = head - 1;
    }
    return found.data ? rest_of_line(found.data, end) : found;
}

/* The box with matching braces that starts last. `stack` holds the places of open braces; a box's own is odd. */
static enum status last_box(const char *begin, const char *end, struct text *stack, struct math_span *found)
{
    static const char name[] = "\\boxed";
    const char *box = NULL; /* the brace that opens one */
    *found = (struct math_span){NULL, 0};
    for (const char *s = begin; s < end; s++) {
        if (*s == '\\') {
            if (at(s, end, name)) {
                for (box = s + sizeof name - 1; box < end && isspace((unsigned char)*box); box++) {}
                s = box - 1; /* the loop goes on at the brace */
            } else {
                s++; /* an escaped brace is none */
            }
        } else if (*s == '{') {
            size_t place = (size_t)(s - begin) * 2 + (s == box);
            TRY(text_push(stack, &place, sizeof place));
        } else if (*s == '}' && stack->n > 0) {
            size_t place;
            stack->n -= sizeof place;
            memcpy(&place, stack->data + stack->n, sizeof place);
            const char *inside = begin + place / 2 + 1;
            if (place % 2 && (!found->data || inside > found->data))
                *found = (struct math_span){inside, (size_t)(s - inside)};
        }
    }
    return OK;
}

/* Of the lines with ####, the last with a number behind it and the last of any kind. */
static enum status last_hashes(const char *begin, const char *end, struct math_span *number, struct math_span *any)
{
    *number = *any = (struct math_span){NULL, 0};
    for (const char *stop = end, *line; stop > begin && !number->data; stop = line > begin ? line - 1 : begin) {
        const char *newline = memrchr(begin, '\n', (size_t)(stop - begin)), *mark = NULL;
        line = newline ? newline + 1 : begin;
        for (const char *s = line; s < stop;) {
            size_t n = 0;
            while (s + n < stop && s[n] == '#') n++;
            if (n == 4) mark = s + n;
            s += n ? n : 1;
        }
        if (!mark) continue;
        struct math_span x = {mark, (size_t)(stop - mark)};
        int kind;
        TRY(kind_of(x, &kind));
        if (kind == NUMBER) *number = x;
        if (!any->data) *any = x;
    }
    return OK;
}

static struct math_span later(struct math_span a, struct math_span b)
{
    return !a.data || (b.data && b.data > a.data) ? b : a;
}

enum status math_answer_find(const char *text, size_t n, struct math_span *answer, bool *found)
{
    const char *end = text + n, *begin = behind_thoughts(text, end);
    struct text stack = {0};
    struct math_span box, number, any;
    *answer = (struct math_span){text, 0};
    *found = false;
    enum status s = last_box(begin, end, &stack, &box);
    text_free(&stack);
    TRY(s);
    TRY(last_hashes(begin, end, &number, &any));
    struct math_span best = later(later(last_answer_line(begin, end), box), number);
    if (!best.data) best = any;
    if (!best.data) return OK;
    *answer = strip(best);
    *found = true;
    return OK;
}

enum status math_answer_label(const char *label, struct math_span *answer, bool *usable)
{
    bool found;
    int kind;
    TRY(math_answer_find(label, strlen(label), answer, &found));
    if (!found) *answer = strip((struct math_span){label, strlen(label)});
    TRY(kind_of(*answer, &kind));
    *usable = kind != NOTHING;
    return OK;
}
