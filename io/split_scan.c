/* The ASCII scanner of three well-known patterns. Each function below is one alternative of a pattern and returns the
 * end of its match, 0 for no match, or UNSURE where the answer hangs on a character that is not ASCII. That the scanner
 * and the regular expression agree is tested on random text. */
#include "split.h"

#include <string.h>

const char SPLIT_GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char SPLIT_GPT4[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char SPLIT_O200K[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const size_t UNSURE = SIZE_MAX;

enum class { OTHER, LOWER = 1, UPPER = 2, DIGIT = 4, SPACE = 8, NEWLINE = 16, WIDE = 32, END = 64 };

/* A newline is SPACE | NEWLINE. */
static const unsigned char CLASS[256] = {
    [9] = SPACE,  [10] = SPACE | NEWLINE, [11] = SPACE,        [12] = SPACE,        [13] = SPACE | NEWLINE,
    [' '] = SPACE, ['0' ... '9'] = DIGIT, ['A' ... 'Z'] = UPPER, ['a' ... 'z'] = LOWER, [128 ... 255] = WIDE};

struct scan {
    const unsigned char *text;
    size_t len;
};

static inline unsigned class_at(const struct scan *s, size_t i) { return i < s->len ? CLASS[s->text[i]] : END; }

/* The end of the run of `wanted` (or, wanted = OTHER, of characters of no class) from i. */
static inline size_t run(const struct scan *s, size_t i, unsigned wanted)
{
    if (wanted == OTHER)
        while (i < s->len && CLASS[s->text[i]] == OTHER) i++;
    else
        while (i < s->len && CLASS[s->text[i]] & wanted) i++;
    return i;
}

/* 's 't 're 've 'm 'll 'd at i: its end, 0 when it is none. */
static size_t contraction(const struct scan *s, size_t i, bool any_case)
{
    if (i >= s->len || s->text[i] != '\'') return 0;
    if (class_at(s, i + 1) & WIDE) return any_case ? UNSURE : 0; /* U+017F is an s in any case */
    unsigned fold = any_case ? 0x20 : 0;
    unsigned a = i + 1 < s->len ? s->text[i + 1] | fold : 0, b = i + 2 < s->len ? s->text[i + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return 0;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+`, the first only with `newlines`; text[i] is white space. */
static size_t spaces(const struct scan *s, size_t i, bool newlines)
{
    size_t end = run(s, i, SPACE);
    if (class_at(s, end) & WIDE) return UNSURE;
    if (newlines)
        for (size_t k = end; k > i; k--)
            if (CLASS[s->text[k - 1]] & NEWLINE) return k;
    return end == s->len || end == i + 1 ? end : end - 1;
}

static size_t gpt2(const struct scan *s, size_t i)
{
    size_t end = contraction(s, i, false);
    if (end) return end;
    size_t from = i + (s->text[i] == ' ');
    unsigned c = class_at(s, from);
    if (c & (SPACE | END)) return spaces(s, i, false);
    end = run(s, from, c & (LOWER | UPPER) ? LOWER | UPPER : c & DIGIT ? DIGIT : OTHER);
    return class_at(s, end) & WIDE ? UNSURE : end;
}

/* `[^\r\n\p{L}\p{N}]?` before letters: where the letters start, 0 when there are none. */
static size_t letters_start(const struct scan *s, size_t i)
{
    if (!(class_at(s, i) & (LOWER | UPPER | DIGIT | NEWLINE))) i++;
    unsigned c = class_at(s, i);
    return c & WIDE ? UNSURE : c & (LOWER | UPPER) ? i : 0;
}

/* `\p{N}{1,3}` */
static size_t digits(const struct scan *s, size_t i)
{
    size_t end = i;
    while (end < i + 3 && class_at(s, end) & DIGIT) end++;
    return end < i + 3 && class_at(s, end) & WIDE ? UNSURE : end;
}

/* ` ?[^\s\p{L}\p{N}]+[\r\n]*`, with `slash` [\r\n/]*; 0 for no match. */
static size_t marks(const struct scan *s, size_t i, bool slash)
{
    size_t from = i + (s->text[i] == ' '), end = run(s, from, OTHER);
    if (class_at(s, end) & WIDE) return UNSURE;
    if (end == from) return 0;
    while (class_at(s, end) & NEWLINE || (slash && end < s->len && s->text[end] == '/')) end++;
    return end;
}

/* What the last two patterns share behind their words. */
static size_t no_word(const struct scan *s, size_t i, bool slash)
{
    if (class_at(s, i) & DIGIT) return digits(s, i);
    size_t end = marks(s, i, slash);
    return end ? end : spaces(s, i, true);
}

static size_t gpt4(const struct scan *s, size_t i)
{
    size_t end = contraction(s, i, true);
    if (end) return end;
    size_t from = letters_start(s, i);
    if (from == UNSURE) return UNSURE;
    if (!from && !(class_at(s, i) & (LOWER | UPPER))) return no_word(s, i, false);
    end = run(s, from, LOWER | UPPER);
    return class_at(s, end) & WIDE ? UNSURE : end;
}

static size_t o200k(const struct scan *s, size_t i)
{
    size_t from = letters_start(s, i);
    if (from == UNSURE) return UNSURE;
    if (!from && !(class_at(s, i) & (LOWER | UPPER))) return no_word(s, i, true);
    size_t end = run(s, run(s, from, UPPER), LOWER);
    if (class_at(s, end) & WIDE) return UNSURE;
    size_t more = contraction(s, end, true);
    return more ? more : end;
}

size_t split_scan(enum split_known known, const char *text, size_t len, size_t at)
{
    struct scan s = {(const unsigned char *)text, len};
    if (CLASS[s.text[at]] & WIDE) return 0;
    size_t end = known == SPLIT_IS_GPT2 ? gpt2(&s, at) : known == SPLIT_IS_GPT4 ? gpt4(&s, at) : o200k(&s, at);
    return end == UNSURE ? 0 : end;
}
