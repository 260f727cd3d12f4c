/* Random changes of a text file for the tests of its reader. */
#ifndef MUTATE_H
#define MUTATE_H
#include "check.h"

/* One to three changes of a random kind: a byte, a bit, a mark of JSON and YAML, a cut, a copy of another place. The text
 * never grows; returns its new length. */
static inline size_t mutate_text(char *text, size_t n, uint64_t seed)
{
    static const char marks[] = "{}[]:,\"\\-+.eE019 \t\n\r\x00\xff\xc3#&*!|>'";
    for (uint64_t k = 0; k <= seed % 3 && n; k++) {
        uint64_t h = check_hash(seed * 8 + k);
        size_t at = h % n, len = 1 + (h >> 20) % 12, left = n - at;
        if (len > left) len = left;
        switch ((h >> 32) % 6) {
        case 0: text[at] = (char)(h >> 40); break;
        case 1: text[at] ^= (char)(1 << (h >> 40) % 8); break;
        case 2: case 3: text[at] = marks[(h >> 40) % (sizeof marks - 1)]; break;
        case 4: memmove(text + at, text + at + len, left - len), n -= len; break;
        default: memmove(text + at, text + (h >> 40) % (n - len + 1), len);
        }
    }
    return n;
}
#endif
