/* Numbers as people write them in answers, exactly: decimals, fractions, mixed numbers, powers of ten, of any length.
 *
 *     number  = sign? (decimal | decimal / decimal | whole digits / digits);  decimals may stand in parentheses
 *     decimal = digits, in groups of three with commas or spaces or not, .digits, e+-digits or *10^digits
 *
 * A value is sign * numerator / denominator, each a string of digits times a power of ten without zeros at either end,
 * so that 0.50, .5 and 5e-1 are the same bytes. Fractions are compared by multiplying crosswise. */
#ifndef MATH_NUMBER_H
#define MATH_NUMBER_H
#include "status.h"
#include <stdint.h>

/* Digits of a numerator or denominator of a fraction: longer ones are no numbers, which keeps the comparison linear in
 * the other side's length. */
enum { MATH_FRACTION_DIGITS = 4096 };

struct math_decimal {
    char *digit;             /* [n] '0' .. '9', the first and the last not '0'; n = 0 is zero */
    size_t n;
    int64_t exponent;        /* of the last digit */
};

struct math_number {
    bool negative;           /* never of zero */
    bool fraction;           /* den is used */
    struct math_decimal num, den;
};

/* Reads a number at the start of s[0, n). *used is how many bytes it took; 0 when there is none, and *zero_divisor
 * tells whether that was for a division by zero. With *used > 0 the number is the caller's to free. ERR_MEMORY. */
enum status math_number_scan(const char *s, size_t n, struct math_number *x, size_t *used, bool *zero_divisor);
void math_number_free(struct math_number *x);
/* ERR_MEMORY. */
enum status math_number_equal(const struct math_number *a, const struct math_number *b, bool *equal);
#endif
