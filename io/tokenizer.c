#include "tokenizer.h"

#include "tokenizer_inner.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* The cache of pieces: one place a hash, the newest piece wins. An entry is one cache line. */
enum { CACHE_ENTRIES = 1 << 14, CACHE_KEY = 22, CACHE_IDS = 10 };
struct cached {
    uint8_t len, n;
    char key[CACHE_KEY];
    int32_t id[CACHE_IDS];
};

struct encode_work {
    struct encode_work *next;
    struct split_work split;
    struct cached cache[CACHE_ENTRIES];
};

/* One call of tokenizer_encode. */
struct encoder {
    const struct tokenizer *t;
    struct encode_work *w;
    struct ids *out;
};

static enum status take_work(const struct tokenizer *t, struct encode_work **w)
{
    pthread_mutex_lock(&t->pool->lock);
    *w = t->pool->idle;
    if (*w) t->pool->idle = (*w)->next;
    pthread_mutex_unlock(&t->pool->lock);
    if (*w) return OK;
    *w = calloc(1, sizeof **w);
    if (!*w) return FAIL(ERR_MEMORY, "no memory for a tokenizer's cache of %zu bytes", sizeof **w);
    enum status s = split_work_init(&(*w)->split);
    if (s) free(*w);
    return s;
}

static void give_work(const struct tokenizer *t, struct encode_work *w)
{
    pthread_mutex_lock(&t->pool->lock);
    w->next = t->pool->idle;
    t->pool->idle = w;
    pthread_mutex_unlock(&t->pool->lock);
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    struct tokenizer *t = *tokenizer;
    if (!t) return;
    *tokenizer = NULL;
    if (t->pool) {
        for (struct encode_work *w = t->pool->idle, *next; w; w = next) {
            next = w->next;
            split_work_free(&w->split);
            free(w);
        }
        pthread_mutex_destroy(&t->pool->lock);
        free(t->pool);
    }
    for (int i = 0; i < t->n_split; i++) split_free(&t->split[i]);
    for (int i = 0; i < 2; i++) free(t->added[i].node);
    bpe_free(&t->bpe);
    free(t->table);
    text_free(&t->bytes);
    free(t->token);
    free(t->origin);
    free(t);
}

/* ---- lookups ---- */

size_t tokenizer_slot(const struct tokenizer *t, enum token_kind kind, const char *bytes, size_t n)
{
    size_t i = (size_t)XXH3_64bits(bytes, n) & t->table_mask;
    for (; t->table[i] >= 0; i = (i + 1) & t->table_mask) {
        const struct token *k = &t->token[t->table[i]];
        if (k->kind == kind && k->len == n && memcmp(t->bytes.data + k->at, bytes, n) == 0) break;
    }
    return i;
}

int32_t tokenizer_find(const struct tokenizer *t, enum token_kind kind, const char *bytes, size_t n)
{
    return t->table[tokenizer_slot(t, kind, bytes, n)];
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    size_t len = strlen(token), n = 0;
    int32_t id = -1;
    for (int i = 0; i < 2; i++)
        if (trie_longest(&t->added[i], token, len, &id) == len && len) return id;
    char *bytes = malloc(len + 1);
    bool mapped = bytes && bytelevel_decode(token, bytes, &n);
    id = mapped ? tokenizer_find(t, TOKEN_BYTES, bytes, n) : tokenizer_find(t, TOKEN_RAW, token, len);
    free(bytes);
    return id;
}

int64_t tokenizer_vocab(const struct tokenizer *t) { return t->n_token; }

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_token && t->token[id].special;
}

bool bytelevel_decode(const char *s, char *out, size_t *n)
{
    size_t len = strlen(s);
    *n = 0;
    while (len) {
        uint32_t code;
        int step = utf8_step(s, len, &code);
        if (step < 0) return false;
        bool prints = (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xff && code != 0xad);
        if (code >= 0x100 && code < 0x100 + 33) code -= 0x100;                  /* 0x00 .. 0x20 */
        else if (code >= 0x121 && code < 0x121 + 34) code = code - 0x121 + 0x7f; /* 0x7f .. 0xa0 */
        else if (code == 0x143) code = 0xad;
        else if (!prints) return false;
        out[(*n)++] = (char)code;
        s += step, len -= (size_t)step;
    }
    return true;
}

/* ---- added tokens ---- */

static int32_t trie_child(const struct trie *t, int32_t node, unsigned char byte)
{
    int32_t c = t->node[node].child;
    while (c && t->node[c].byte != byte) c = t->node[c].sibling;
    return c;
}

static enum status trie_new(struct trie *t, unsigned char byte, int32_t *node)
{
    if (t->n == t->cap) {
        if (t->cap > INT32_MAX / 2) return FAIL(ERR_MEMORY, "%d bytes of added tokens", t->cap);
        int32_t cap = t->cap ? 2 * t->cap : 64;
        struct trie_node *grown = realloc(t->node, (size_t)cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "no memory for added tokens");
        t->node = grown;
        t->cap = cap;
    }
    *node = t->n++;
    t->node[*node] = (struct trie_node){.id = -1, .byte = byte};
    return OK;
}

enum status trie_add(struct trie *t, const char *s, size_t n, int32_t id)
{
    int32_t at = 0, next;
    if (t->n == 0) TRY(trie_new(t, 0, &at));
    for (size_t i = 0; i < n; i++, at = next) {
        next = trie_child(t, at, (unsigned char)s[i]);
        if (next) continue;
        TRY(trie_new(t, (unsigned char)s[i], &next));
        t->node[next].sibling = t->node[at].child;
        t->node[at].child = next;
    }
    t->node[at].id = id;
    return OK;
}

size_t trie_longest(const struct trie *t, const char *s, size_t n, int32_t *id)
{
    size_t best = 0;
    if (t->n == 0) return 0;
    for (size_t i = 0, at = 0; i < n; i++) {
        at = (size_t)trie_child(t, (int32_t)at, (unsigned char)s[i]);
        if (!at) break;
        if (t->node[at].id >= 0) {
            best = i + 1;
            *id = t->node[at].id;
        }
    }
    return best;
}

/* ---- encoding ---- */

static enum status encode_piece(struct encoder *e, const char *s, size_t n)
{
    struct cached *c = NULL;
    if (n <= CACHE_KEY) {
        c = &e->w->cache[XXH3_64bits(s, n) & (CACHE_ENTRIES - 1)];
        if (c->len == n && memcmp(c->key, s, n) == 0) return ids_append(e->out, c->id, c->n);
    }
    size_t before = e->out->n;
    int32_t whole = e->t->ignore_merges ? tokenizer_find(e->t, TOKEN_BYTES, s, n) : -1;
    if (whole >= 0) TRY(ids_push(e->out, whole));
    else TRY(bpe_encode(&e->t->bpe, s, n, e->out));
    size_t made = e->out->n - before;
    if (c && made <= CACHE_IDS) {
        c->len = (uint8_t)n;
        c->n = (uint8_t)made;
        memcpy(c->key, s, n);
        memcpy(c->id, e->out->id + before, made * sizeof *c->id);
    }
    return OK;
}

/* Valid UTF-8 through the patterns from number `level` on. */
static enum status encode_split(struct encoder *e, int level, const char *s, size_t n)
{
    if (level == e->t->n_split) return encode_piece(e, s, n);
    bool last = level + 1 == e->t->n_split;
    struct split_walk walk = split_start(&e->t->split[level], &e->w->split, s, n);
    for (;;) {
        size_t from, to;
        TRY(split_next(&walk, &from, &to));
        if (from == to) return OK;
        if (last) TRY(encode_piece(e, s + from, to - from));
        else TRY(encode_split(e, level + 1, s + from, to - from));
    }
}

static enum status encode_text(struct encoder *e, const char *s, size_t n)
{
    while (n) {
        size_t good = utf8_valid(s, n);
        if (good) TRY(encode_split(e, 0, s, good));
        s += good, n -= good;
        if (!n) break;
        TRY(ids_push(e->out, e->t->bpe.byte_id[(unsigned char)*s]));
        s++, n--;
    }
    return OK;
}

/* Text that may hold added tokens of the classes from `class` on. */
static enum status encode_added(struct encoder *e, int class, const char *s, size_t n)
{
    if (class == 2) return encode_text(e, s, n);
    const struct trie *added = &e->t->added[class];
    if (added->n == 0) return encode_added(e, class + 1, s, n);
    size_t start = 0;
    for (size_t i = 0; i < n;) {
        int32_t id;
        size_t len = trie_longest(added, s + i, n - i, &id);
        if (!len) {
            i++;
            continue;
        }
        TRY(encode_added(e, class + 1, s + start, i - start));
        TRY(ids_push(e->out, id));
        start = i += len;
    }
    return encode_added(e, class + 1, s + start, n - start);
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool allow_special,
                             struct ids *out)
{
    struct encoder e = {.t = t, .out = out};
    size_t before = out->n;
    if (len == 0) return OK;
    TRY(take_work(t, &e.w));
    enum status s = allow_special ? encode_added(&e, 0, text, len) : encode_text(&e, text, len);
    give_work(t, e.w);
    if (!s) return OK;
    out->n = before;
    return status_prefix(s, "%s", t->origin);
}

/* ---- decoding ---- */

enum status tokenizer_decode_bytes(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                   struct text *out)
{
    size_t before = out->n;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n_token) continue;
        const struct token *k = &t->token[ids[i]];
        if (skip_special && k->special) continue;
        enum status s = text_push(out, t->bytes.data + k->at, k->len);
        if (s) {
            out->n = before;
            return s;
        }
    }
    return OK;
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                             struct text *out)
{
    struct text raw = {0};
    size_t before = out->n;
    enum status s = tokenizer_decode_bytes(t, ids, n, skip_special, &raw);
    if (!s) s = utf8_push_lossy(out, raw.data, raw.n);
    if (s) out->n = before;
    text_free(&raw);
    return s;
}
