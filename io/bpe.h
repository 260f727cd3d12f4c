/* Byte-pair encoding: a piece starts as one token a byte, then of all neighbouring pairs that have a merge the one of
 * lowest rank (leftmost on a tie) becomes one token, until no pair has one. */
#ifndef BPE_H
#define BPE_H
#include "status.h"
#include <stdint.h>

/* Growable token ids; {0} is empty. */
struct ids {
    int32_t *id;
    size_t n, cap;
};
enum status ids_push(struct ids *a, int32_t id);
enum status ids_append(struct ids *a, const int32_t *id, size_t n);
void ids_free(struct ids *a);

/* One merge: the pair's two ids, its rank, the id of the result. */
struct merge {
    uint64_t pair;
    uint32_t rank;
    int32_t id;
};

/* The merges in an open-addressed table, and the token of each byte. */
struct bpe {
    struct merge *slot; /* [mask + 1] */
    size_t mask;
    int32_t byte_id[256];
};

/* Room for n merges, which must not be exceeded. ERR_MEMORY. */
enum status bpe_init(struct bpe *b, size_t n);
/* False when the pair has a merge already. */
bool bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
void bpe_free(struct bpe *b);

/* Appends the tokens of one piece of n bytes, n < 2^31. Short pieces by scanning, long ones through a heap in
 * O(n log n) time and O(n) memory. ERR_MEMORY. */
enum status bpe_encode(const struct bpe *b, const char *piece, size_t n, struct ids *out);
#endif
