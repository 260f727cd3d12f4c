/* Growable bytes, and UTF-8 one character at a time. */
#ifndef TEXT_H
#define TEXT_H
#include "status.h"
#include <stdint.h>

/* n bytes, any values; {0} is empty. Owned by whoever holds the struct. */
struct text {
    char *data;
    size_t n, cap;
};

/* Appends n bytes. ERR_MEMORY leaves the text as it was. */
enum status text_push(struct text *t, const void *data, size_t n);
void text_free(struct text *t);

/* The length (1 .. 4) of the character that starts at s, of n > 0 bytes left, with its code point; or, where no
 * character starts, minus the length of the bad sequence: the longest one that could still have become a character
 * (Unicode's "maximal subpart"), at least one byte. Surrogates, overlong forms and values past U+10FFFF are bad. */
int utf8_step(const char *s, size_t n, uint32_t *code);
/* Length of the longest valid prefix. */
size_t utf8_valid(const char *s, size_t n);
/* Writes the code point's UTF-8 into out, returns its length. `code` is a valid scalar value. */
int utf8_put(uint32_t code, char out[4]);
/* Appends s, with U+FFFD for each bad sequence. */
enum status utf8_push_lossy(struct text *out, const char *s, size_t n);
#endif
