/* What tokenizer.c (use) and tokenizer_file.c (reading) share. */
#ifndef TOKENIZER_INNER_H
#define TOKENIZER_INNER_H
#include "split.h"
#include "tokenizer.h"

#include <pthread.h>

enum { TOKENIZER_MAX_SPLITS = 8, TOKENIZER_MAX_ID = (1 << 22) - 1 };

/* How a token is spelled: BYTES stands for the bytes behind the byte-level alphabet; RAW holds a character outside that
 * alphabet, so that no text leads to it through merges. */
enum token_kind { TOKEN_NONE, TOKEN_BYTES, TOKEN_RAW, TOKEN_ADDED };

struct token {
    uint32_t at, len; /* in tokenizer.bytes */
    uint8_t kind;
    bool special;
};

/* Added tokens as a trie over bytes: children are a linked list. Node 0 is the root. */
struct trie_node {
    int32_t child, sibling, id; /* 0: none, 0: none, -1: none */
    unsigned char byte;
};
struct trie {
    struct trie_node *node;
    int32_t n, cap;
};
enum status trie_add(struct trie *t, const char *s, size_t n, int32_t id);
/* The longest token that s, of n bytes, starts with: its length and id; 0 when none does. */
size_t trie_longest(const struct trie *t, const char *s, size_t n, int32_t *id);

/* What one call of encode needs beside its result. Idle ones wait in the pool. */
struct encode_work;
struct work_pool {
    pthread_mutex_t lock;
    struct encode_work *idle;
};

struct tokenizer {
    char *origin;
    struct token *token;       /* [n_token], by id */
    int32_t n_token;
    struct text bytes;
    int32_t *table;            /* [table_mask + 1]: ids of the vocabulary hashed by their bytes, -1: free */
    size_t table_mask;
    struct bpe bpe;
    bool ignore_merges;
    struct split split[TOKENIZER_MAX_SPLITS];
    int n_split;
    struct trie added[2];      /* matched first: not normalized; then what lies between them: normalized */
    struct work_pool *pool;
};

/* The id of the vocabulary's token of this kind with these bytes, -1 when there is none. */
int32_t tokenizer_find(const struct tokenizer *t, enum token_kind kind, const char *bytes, size_t n);
/* The slot of tokenizer.table that holds it or may take it. */
size_t tokenizer_slot(const struct tokenizer *t, enum token_kind kind, const char *bytes, size_t n);

/* The bytes behind a spelling of the byte-level alphabet: bytes that print stand for themselves (as Latin-1), the
 * others are U+0100 and on. False when a character is outside the alphabet. `out` has room for strlen(s). */
bool bytelevel_decode(const char *s, char *out, size_t *n);
#endif
