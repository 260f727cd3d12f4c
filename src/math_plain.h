/* LaTeX, Markdown and typography of an answer -> one plain line, so that spellings of the same thing become the same
 * bytes. \frac{a}{b}, \dfrac ab -> a/b, with parentheses around an operand of more than letters, digits and dots;
 * \sqrt{x}, \sqrt x and the sign -> sqrt(x); ^{2} -> ^2; \cdot, \times and their signs -> *; Unicode minus and dashes
 * -> -; degrees -> the degree sign; $, `, \left, \right and currency signs go; runs of white space become one space;
 * \text{x} becomes MATH_TEXT and x. Decoration at the ends (*, quotes, a full stop, commas) and a leading "x =" go too. */
#ifndef MATH_PLAIN_H
#define MATH_PLAIN_H
#include "text.h"

#define MATH_TEXT '\3'
#define MATH_DEGREE "\xc2\xb0"

/* Replaces what *out holds; *bad is set when braces do not match or an argument is missing. Linear in n. ERR_MEMORY. */
enum status math_plain(const char *s, size_t n, struct text *out, bool *bad);
#endif
