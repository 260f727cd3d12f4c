#include "text.h"

#include <stdlib.h>
#include <string.h>

enum status text_push(struct text *t, const void *data, size_t n)
{
    if (n > SIZE_MAX / 2 - t->n) return FAIL(ERR_MEMORY, "a text of %zu + %zu bytes", t->n, n);
    if (t->n + n > t->cap) {
        size_t cap = t->cap ? t->cap : 64;
        while (cap < t->n + n) cap *= 2;
        char *grown = realloc(t->data, cap);
        if (!grown) return FAIL(ERR_MEMORY, "no memory for a text of %zu bytes", cap);
        t->data = grown;
        t->cap = cap;
    }
    if (n) memcpy(t->data + t->n, data, n);
    t->n += n;
    return OK;
}

void text_free(struct text *t)
{
    free(t->data);
    *t = (struct text){0};
}

int utf8_step(const char *s, size_t n, uint32_t *code)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char c = u[0], lo = 0x80, hi = 0xbf; /* the range of the second byte, narrower after four lead bytes */
    *code = c;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return -1;
    int need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c == 0xe0) lo = 0xa0;
    if (c == 0xed) hi = 0x9f;
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    *code = c & (0xffu >> (need + 1));
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= n || u[i] < lo || u[i] > hi) return -i;
        *code = *code << 6 | (u[i] & 0x3fu);
        lo = 0x80, hi = 0xbf;
    }
    return need;
}

size_t utf8_valid(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, s + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        uint32_t code;
        int len = utf8_step(s + at, n - at, &code);
        if (len < 0) break;
        at += (size_t)len;
    }
    return at;
}

int utf8_put(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(0xf00u >> n | code);
    return n;
}

enum status utf8_push_lossy(struct text *out, const char *s, size_t n)
{
    while (n) {
        size_t good = utf8_valid(s, n);
        TRY(text_push(out, s, good));
        s += good, n -= good;
        if (!n) break;
        uint32_t code;
        size_t bad = (size_t)-utf8_step(s, n, &code);
        TRY(text_push(out, "\xef\xbf\xbd", 3));
        s += bad, n -= bad;
    }
    return OK;
}
