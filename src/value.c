#include "value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum number_kind { NUMBER_NONE, NUMBER_DECIMAL, NUMBER_FRACTION, NUMBER_HEX, NUMBER_OCTAL };

static const char *skip_digits(const char *p)
{
    while (isdigit((unsigned char)*p)) p++;
    return p;
}

/* strtod takes more than we want (inf, nan, 0x1p3, leading spaces), so the grammar is checked first. */
static enum number_kind classify(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        p += 2;
        if (!*p) return NUMBER_NONE;
        while (isxdigit((unsigned char)*p)) p++;
        return *p ? NUMBER_NONE : NUMBER_HEX;
    }
    const char *first = p;
    p = skip_digits(p);
    long digits = p - first;
    bool octal = digits > 1 && *first == '0', fraction = false;
    if (*p == '.') {
        const char *dot = p;
        p = skip_digits(p + 1);
        digits += p - dot - 1;
        fraction = true;
    }
    if (!digits) return NUMBER_NONE;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!isdigit((unsigned char)*p)) return NUMBER_NONE;
        p = skip_digits(p);
        fraction = true;
    }
    if (*p) return NUMBER_NONE;
    if (octal) return NUMBER_OCTAL;
    return fraction ? NUMBER_FRACTION : NUMBER_DECIMAL;
}

#define LEADING_ZERO "has a leading zero, which some read as octal: write it without"

const char *value_float(const char *text, double *out)
{
    switch (classify(text)) {
    case NUMBER_NONE: return "is not a number";
    case NUMBER_OCTAL: return LEADING_ZERO;
    default: break;
    }
    double x = strtod(text, NULL);
    if (!isfinite(x)) return "is too large";
    *out = x;
    return NULL;
}

const char *value_int(const char *text, int64_t *out)
{
    enum number_kind kind = classify(text);
    if (kind == NUMBER_NONE) return "is not an integer";
    if (kind == NUMBER_OCTAL) return LEADING_ZERO;
    if (kind == NUMBER_FRACTION) {
        double x = strtod(text, NULL);
        if (x != floor(x)) return "is not an integer";
        if (fabs(x) > 0x1p53) return "is too large";
        *out = (int64_t)x;
        return NULL;
    }
    errno = 0;
    long long x = strtoll(text, NULL, kind == NUMBER_HEX ? 16 : 10);
    if (errno == ERANGE) return "is too large";
    *out = x;
    return NULL;
}

const char *value_bool(const char *text, bool *out)
{
    static const char *const word[] = {"false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 6; i++)
        if (!strcasecmp(text, word[i])) {
            *out = i & 1;
            return NULL;
        }
    return "is neither true nor false";
}

bool value_is_null(const char *text) { return !*text || !strcmp(text, "~") || !strcasecmp(text, "null"); }

bool value_is_utf8(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        if ((*p >= 0x80 && *p < 0xc2) || *p >= 0xf5) return false;
        int more = (*p >= 0xc2) + (*p >= 0xe0) + (*p >= 0xf0);
        uint32_t code = more ? *p & (0x3fu >> more) : *p;
        p++;
        for (int i = 0; i < more; i++, p++) {
            if ((*p & 0xc0) != 0x80) return false;
            code = code << 6 | (*p & 0x3fu);
        }
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    }
    return true;
}

const char *value_float_text(char text[VALUE_FLOAT_CHARS], double x)
{
    if (x == floor(x) && fabs(x) < 1e7) {
        snprintf(text, VALUE_FLOAT_CHARS, "%.0f", x);
        return text;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, VALUE_FLOAT_CHARS, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    char *e = strchr(text, 'e'); /* 1e-06 -> 1e-6, 1e+07 -> 1e7 */
    if (e) {
        char *digit = e + 2;
        while (*digit == '0' && digit[1]) digit++;
        char *to = e + 1 + (e[1] == '-');
        memmove(to, digit, strlen(digit) + 1);
    }
    return text;
}

enum { LONGEST = 127 };

int value_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return LONGEST + 1;
    int rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++) last[j] = before[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[nb];
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

const char *value_nearest(const char *name, const char *(*name_at)(const void *ctx, int i), const void *ctx, int n)
{
    const char *best = NULL;
    int least = (int)(strlen(name) / 3) + 2;
    for (int i = 0; i < n; i++) {
        const char *candidate = name_at(ctx, i);
        int d = value_distance(name, candidate);
        if (d > 1 && strchr(candidate, '.')) {
            int part = 1 + 2 * value_distance(last_part(name), last_part(candidate));
            if (part < d && part <= 3) d = part;
        }
        if (d < least) {
            least = d;
            best = candidate;
        }
    }
    return best;
}
