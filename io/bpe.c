#include "bpe.h"

#include <stdlib.h>
#include <string.h>

/* Up to here scanning for the lowest rank beats a heap. */
enum { SHORT_PIECE = 64 };

static const uint64_t NO_PAIR = UINT64_MAX; /* ids are not negative, so that no pair looks like this */
static const uint32_t NO_RANK = UINT32_MAX;

enum status ids_append(struct ids *a, const int32_t *id, size_t n)
{
    if (n > a->cap - a->n) {
        size_t cap = a->cap ? a->cap : 32;
        while (cap - a->n < n) {
            if (cap > SIZE_MAX / (4 * sizeof *id)) return FAIL(ERR_MEMORY, "%zu + %zu token ids", a->n, n);
            cap *= 2;
        }
        int32_t *grown = realloc(a->id, cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "no memory for %zu token ids", cap);
        a->id = grown;
        a->cap = cap;
    }
    if (n) memcpy(a->id + a->n, id, n * sizeof *id);
    a->n += n;
    return OK;
}

enum status ids_push(struct ids *a, int32_t id) { return ids_append(a, &id, 1); }

void ids_free(struct ids *a)
{
    free(a->id);
    *a = (struct ids){0};
}

enum status bpe_init(struct bpe *b, size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    b->slot = malloc(slots * sizeof *b->slot);
    if (!b->slot) return FAIL(ERR_MEMORY, "no memory for %zu merges", n);
    b->mask = slots - 1;
    for (size_t i = 0; i < slots; i++) b->slot[i].pair = NO_PAIR;
    return OK;
}

void bpe_free(struct bpe *b)
{
    free(b->slot);
    b->slot = NULL;
}

/* The slot of a pair, or the free one where it belongs. */
static struct merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h ^ h >> 32) & b->mask;
    while (b->slot[i].pair != pair && b->slot[i].pair != NO_PAIR) i = (i + 1) & b->mask;
    return &b->slot[i];
}

bool bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    struct merge *m = find(b, left, right);
    if (m->pair != NO_PAIR) return false;
    *m = (struct merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, id};
    return true;
}

static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge *m = find(b, left, right);
    return m->pair == NO_PAIR ? NO_RANK : m->rank;
}

static enum status encode_short(const struct bpe *b, const char *piece, size_t n, struct ids *out)
{
    int32_t id[SHORT_PIECE];
    uint32_t rank[SHORT_PIECE]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i < n; i++) id[i] = b->byte_id[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        id[best] = find(b, id[best], id[best + 1])->id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        if (best + 1 < n) rank[best] = rank_of(b, id[best], id[best + 1]);
        if (best) rank[best - 1] = rank_of(b, id[best - 1], id[best]);
    }
    return ids_append(out, id, n);
}

/* A long piece: the living tokens as a linked list over byte positions, and a heap of rank << 32 | position. A heap
 * entry is stale when the pair at its position no longer has its rank. */
struct work {
    int32_t *id, *prev, *next; /* next: n at the end; prev: -1 at the start */
    uint32_t *rank;
    uint64_t *heap;
    size_t heaped;
};

static void heap_push(struct work *w, uint64_t key)
{
    size_t i = w->heaped++;
    for (; i && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

static uint64_t heap_pop(struct work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->heaped];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heaped; i = child) {
        if (child + 1 < w->heaped && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

/* The pair at position i has changed. */
static void rerank(struct work *w, const struct bpe *b, int32_t i, int32_t n)
{
    w->rank[i] = w->next[i] < n ? rank_of(b, w->id[i], w->id[w->next[i]]) : NO_RANK;
    if (w->rank[i] != NO_RANK) heap_push(w, (uint64_t)w->rank[i] << 32 | (uint32_t)i);
}

static void merge_all(struct work *w, const struct bpe *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++) rerank(w, b, i, n);
    while (w->heaped) {
        uint64_t top = heap_pop(w);
        int32_t i = (int32_t)(uint32_t)top;
        if (w->rank[i] != top >> 32) continue;
        int32_t gone = w->next[i];
        w->id[i] = find(b, w->id[i], w->id[gone])->id;
        w->next[i] = w->next[gone];
        w->rank[gone] = NO_RANK;
        if (w->next[i] < n) w->prev[w->next[i]] = i;
        rerank(w, b, i, n);
        if (w->prev[i] >= 0) rerank(w, b, w->prev[i], n);
    }
}

static enum status encode_long(const struct bpe *b, const char *piece, size_t n, struct ids *out)
{
    /* Each merge pushes at most two entries and there are fewer merges than bytes. */
    size_t bytes = n * (4 * sizeof(int32_t) + 3 * sizeof(uint64_t));
    char *block = malloc(bytes);
    if (!block) return FAIL(ERR_MEMORY, "no memory to encode a piece of %zu bytes", n);
    struct work w = {.heap = (uint64_t *)block};
    w.id = (int32_t *)(w.heap + 3 * n);
    w.prev = w.id + n;
    w.next = w.prev + n;
    w.rank = (uint32_t *)(w.next + n);
    for (size_t i = 0; i < n; i++) {
        w.id[i] = b->byte_id[(unsigned char)piece[i]];
        w.prev[i] = (int32_t)i - 1;
        w.next[i] = (int32_t)i + 1;
    }
    merge_all(&w, b, (int32_t)n);
    enum status s = OK;
    for (size_t i = 0; i < n && !s; i = (size_t)w.next[i]) s = ids_push(out, w.id[i]);
    free(block);
    return s;
}

enum status bpe_encode(const struct bpe *b, const char *piece, size_t n, struct ids *out)
{
    if (n > INT32_MAX) return FAIL(ERR_FORMAT, "a piece of %zu bytes, at most %d", n, INT32_MAX);
    return n <= SHORT_PIECE ? encode_short(b, piece, n, out) : encode_long(b, piece, n, out);
}
