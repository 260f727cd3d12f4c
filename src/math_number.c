#include "math_number.h"

#include <stdlib.h>
#include <string.h>

enum { LIMB = 1000000000, LIMB_DIGITS = 9, EXPONENT_DIGITS = 9 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* ---------------------------------------------------------------- arithmetic ------------------------------------- */

/* Takes zeros off both ends. */
static void trim_zeros(struct math_decimal *d)
{
    size_t lead = 0;
    while (lead < d->n && d->digit[lead] == '0') lead++;
    while (d->n > lead && d->digit[d->n - 1] == '0') {
        d->n--;
        d->exponent++;
    }
    d->n -= lead;
    memmove(d->digit, d->digit + lead, d->n);
    if (d->n == 0) d->exponent = 0;
}

/* Limbs of nine digits, the least first. */
static size_t to_limbs(const struct math_decimal *d, uint32_t *limb)
{
    size_t count = 0;
    for (size_t end = d->n; end > 0; count++) {
        size_t begin = end > LIMB_DIGITS ? end - LIMB_DIGITS : 0;
        limb[count] = 0;
        for (size_t i = begin; i < end; i++) limb[count] = limb[count] * 10 + (uint32_t)(d->digit[i] - '0');
        end = begin;
    }
    return count;
}

static enum status from_limbs(const uint32_t *limb, size_t count, int64_t exponent, struct math_decimal *out)
{
    *out = (struct math_decimal){malloc(count * LIMB_DIGITS + 1), count * LIMB_DIGITS, exponent};
    if (!out->digit) return FAIL(ERR_MEMORY, "%zu digits", out->n);
    for (size_t k = 0; k < count; k++) {
        char *end = out->digit + out->n - k * LIMB_DIGITS;
        uint32_t x = limb[k];
        for (int j = 0; j < LIMB_DIGITS; j++, x /= 10) *--end = (char)('0' + x % 10);
    }
    trim_zeros(out);
    return OK;
}

/* *out = a * b + add; with `add` (may be NULL) the exponents of all three are 0. */
static enum status multiply_add(const struct math_decimal *a, const struct math_decimal *b,
                                const struct math_decimal *add, struct math_decimal *out)
{
    size_t na = a->n / LIMB_DIGITS + 1, nb = b->n / LIMB_DIGITS + 1, nc = add ? add->n / LIMB_DIGITS + 1 : 0;
    size_t count = na + nb + nc + 1;
    uint32_t *x = calloc(na + nb + count, sizeof *x);
    if (!x) return FAIL(ERR_MEMORY, "%zu limbs", count);
    uint32_t *y = x + na, *sum = y + nb;
    na = to_limbs(a, x);
    nb = to_limbs(b, y);
    if (add) to_limbs(add, sum);
    for (size_t i = 0; i < na; i++) {
        uint64_t carry = 0;
        size_t j = 0;
        for (; j < nb || carry; j++) {
            carry += sum[i + j] + (j < nb ? (uint64_t)x[i] * y[j] : 0);
            sum[i + j] = (uint32_t)(carry % LIMB);
            carry /= LIMB;
        }
    }
    enum status s = from_limbs(sum, count, a->exponent + b->exponent, out);
    free(x);
    return s;
}

static bool same(const struct math_decimal *a, const struct math_decimal *b)
{
    return a->n == b->n && a->exponent == b->exponent && memcmp(a->digit, b->digit, a->n) == 0;
}

enum status math_number_equal(const struct math_number *a, const struct math_number *b, bool *equal)
{
    *equal = false;
    if (a->negative != b->negative) return OK;
    if (!a->fraction && !b->fraction) {
        *equal = same(&a->num, &b->num);
        return OK;
    }
    static char one_digit[] = "1";
    const struct math_decimal one = {one_digit, 1, 0};
    struct math_decimal left = {0}, right = {0};
    enum status s = multiply_add(&a->num, b->fraction ? &b->den : &one, NULL, &left);
    if (!s) s = multiply_add(&b->num, a->fraction ? &a->den : &one, NULL, &right);
    if (!s) *equal = same(&left, &right);
    free(left.digit);
    free(right.digit);
    return s;
}

void math_number_free(struct math_number *x)
{
    free(x->num.digit);
    free(x->den.digit);
    *x = (struct math_number){0};
}

/* ---------------------------------------------------------------- reading ---------------------------------------- */

struct scan {
    const char *s;
    size_t n, at;
};

static char peek(const struct scan *c) { return c->at < c->n ? c->s[c->at] : 0; }
static char peek_at(const struct scan *c, size_t i) { return i < c->n ? c->s[i] : 0; }
static void spaces(struct scan *c)
{
    while (peek(c) == ' ') c->at++;
}
static bool take(struct scan *c, char x)
{
    if (peek(c) != x) return false;
    c->at++;
    return true;
}
static bool sign(struct scan *c)
{
    bool negative = peek(c) == '-';
    if (negative || peek(c) == '+') {
        c->at++;
        spaces(c);
    }
    return negative;
}
static size_t run_of_digits(const struct scan *c, size_t i)
{
    size_t begin = i;
    while (is_digit(peek_at(c, i))) i++;
    return i - begin;
}

/* Where a whole part of groups of three ends: 1,234,567 or 1 234 567; `begin` plus its first run when it has none. */
static size_t end_of_groups(const struct scan *c, size_t begin, size_t first)
{
    size_t at = begin + first, end = at;
    char mark = peek_at(c, at);
    if (first == 0 || first > 3 || c->s[begin] == '0' || (mark != ',' && mark != ' ')) return at;
    while (peek_at(c, end) == mark && run_of_digits(c, end + 1) == 3) end += 4;
    /* 1 234/5 is a mixed number; 1,234,56 is no number */
    if (peek_at(c, end) == mark && run_of_digits(c, end + 1) > 0) return at;
    return mark == ' ' && peek_at(c, end) == '/' ? at : end;
}

/* e-12, *10^12, *10^(-12). Nothing is taken when it is no exponent; false when it is one that is too long. */
static bool exponent(struct scan *c, int64_t *value)
{
    struct scan e = *c;
    bool bracket = false;
    *value = 0;
    if (peek(&e) == 'e' || peek(&e) == 'E') e.at++;
    else {
        spaces(&e);
        if (!take(&e, '*')) return true;
        spaces(&e);
        if (!take(&e, '1') || !take(&e, '0') || !take(&e, '^')) return true;
        bracket = take(&e, '(');
    }
    bool negative = peek(&e) == '-';
    if (negative || peek(&e) == '+') e.at++;
    size_t digits = run_of_digits(&e, e.at);
    if (digits == 0) return true;
    if (digits > EXPONENT_DIGITS) return false;
    for (size_t i = 0; i < digits; i++) *value = *value * 10 + (e.s[e.at + i] - '0');
    e.at += digits;
    if (negative) *value = -*value;
    if (bracket && !take(&e, ')')) {
        *value = 0;
        return true;
    }
    *c = e;
    return true;
}

/* An unsigned decimal. *found is false, and nothing taken, when there is none. */
static enum status decimal(struct scan *c, struct math_decimal *d, bool *found)
{
    struct scan e = *c;
    size_t end = end_of_groups(&e, e.at, run_of_digits(&e, e.at)), whole = end - e.at;
    size_t part = peek_at(&e, end) == '.' ? run_of_digits(&e, end + 1) : 0;
    *found = false;
    if (whole + part == 0) return OK;
    *d = (struct math_decimal){.digit = malloc(whole + part + 1)};
    if (!d->digit) return FAIL(ERR_MEMORY, "%zu digits", whole + part);
    for (size_t i = 0; i < whole; i++)
        if (is_digit(e.s[e.at + i])) d->digit[d->n++] = e.s[e.at + i];
    if (part) memcpy(d->digit + d->n, e.s + end + 1, part);
    d->n += part;
    e.at = end + (part ? part + 1 : peek_at(&e, end) == '.' && !is_digit(peek_at(&e, end + 1)));
    int64_t power;
    if (!exponent(&e, &power)) {
        free(d->digit);
        *d = (struct math_decimal){0};
        return OK;
    }
    d->exponent = power - (int64_t)part;
    trim_zeros(d);
    *found = true;
    *c = e;
    return OK;
}

/* A decimal, or one with a sign in parentheses. *negative is toggled by its sign. (1,234) is a pair, not a thousand. */
static enum status operand(struct scan *c, struct math_decimal *d, bool *negative, bool *found)
{
    struct scan e = *c;
    if (!take(&e, '(')) return decimal(c, d, found);
    size_t begin = e.at;
    spaces(&e);
    bool minus = sign(&e);
    TRY(decimal(&e, d, found));
    spaces(&e);
    if (*found && (memchr(e.s + begin, ',', e.at - begin) || !take(&e, ')'))) {
        free(d->digit);
        *d = (struct math_decimal){0};
        *found = false;
    }
    if (!*found) return OK;
    *negative ^= minus;
    *c = e;
    return OK;
}

static enum status fraction(struct scan *c, struct math_number *x, bool *found, bool *zero_divisor)
{
    struct scan e = *c;
    spaces(&e);
    if (!take(&e, '/')) return OK;
    spaces(&e);
    TRY(operand(&e, &x->den, &x->negative, &x->fraction));
    if (!x->fraction) return OK;
    *zero_divisor = x->den.n == 0;
    *found = !*zero_divisor && x->num.n <= MATH_FRACTION_DIGITS && x->den.n <= MATH_FRACTION_DIGITS;
    *c = e;
    return OK;
}

/* digits space digits / digits: where the numerator starts, or 0 when the text at c is something else. */
static size_t mixed_at(const struct scan *c)
{
    size_t first = run_of_digits(c, c->at), num = c->at + first;
    if (first == 0 || first > MATH_FRACTION_DIGITS || peek_at(c, num) != ' ') return 0;
    size_t n = run_of_digits(c, ++num), den = num + n + 1;
    bool slash = n > 0 && n <= MATH_FRACTION_DIGITS && peek_at(c, den - 1) == '/';
    return slash && run_of_digits(c, den) > 0 && run_of_digits(c, den) <= MATH_FRACTION_DIGITS ? num : 0;
}

/* w n/d is (w d + n) / d. */
static enum status mixed(struct scan *c, size_t num_at, struct math_number *x, bool *found, bool *zero_divisor)
{
    size_t n = run_of_digits(c, num_at), den_at = num_at + n + 1, n_den = run_of_digits(c, den_at);
    struct math_decimal whole = {(char *)c->s + c->at, num_at - 1 - c->at, 0}, num = {(char *)c->s + num_at, n, 0};
    x->den = (struct math_decimal){malloc(n_den), n_den, 0};
    if (!x->den.digit) return FAIL(ERR_MEMORY, "%zu digits", n_den);
    memcpy(x->den.digit, c->s + den_at, n_den);
    TRY(multiply_add(&whole, &x->den, &num, &x->num));
    trim_zeros(&x->den);
    x->fraction = true;
    *zero_divisor = x->den.n == 0;
    *found = !*zero_divisor;
    c->at = den_at + n_den;
    return OK;
}

enum status math_number_scan(const char *s, size_t n, struct math_number *x, size_t *used, bool *zero_divisor)
{
    struct scan c = {s, n, 0};
    bool found = false;
    *x = (struct math_number){0};
    *used = 0;
    *zero_divisor = false;
    x->negative = sign(&c);
    size_t num_at = mixed_at(&c);
    enum status st = num_at ? mixed(&c, num_at, x, &found, zero_divisor) : operand(&c, &x->num, &x->negative, &found);
    if (!st && found && !num_at) st = fraction(&c, x, &found, zero_divisor);
    if (st || !found) math_number_free(x);
    else *used = c.at;
    if (x->num.n == 0) x->negative = false;
    return st;
}
