/* Values as people write them: numbers, truth values, names. One reading for YAML, for key=value and for --options.
 *
 * A number is decimal (2e-5, 1E-6, .5, -3, 1.) or hexadecimal (0x10). 010 is refused: octal for some, ten for others.
 * An integer may be written as 1e4. Not a number: inf, nan, 1_000, 5k. */
#ifndef VALUE_H
#define VALUE_H
#include <stdbool.h>
#include <stdint.h>

/* NULL when `text` was read into *out, else why not: "is not a number", "is too large", ... */
const char *value_int(const char *text, int64_t *out);
const char *value_float(const char *text, double *out);
const char *value_bool(const char *text, bool *out); /* true false yes no on off, any case */
bool value_is_null(const char *text);                /* nothing, ~ or null */
bool value_is_utf8(const char *text);

enum { VALUE_FLOAT_CHARS = 32 };
/* The shortest text that reads back as exactly x. */
const char *value_float_text(char text[VALUE_FLOAT_CHARS], double x);

/* Edit distance: letters inserted, dropped, replaced, neighbours swapped. Names longer than 127 bytes are far. */
int value_distance(const char *a, const char *b);
/* The name that the user may have meant, NULL when none is near. Of dotted keys an equal last part counts as near. */
const char *value_nearest(const char *name, const char *(*name_at)(const void *ctx, int i), const void *ctx, int n);
#endif
