/* Paged caches of keys, values and index keys. One page holds `page` consecutive tokens of one sequence in every layer of
 * the stage; `page` is the smallest multiple of the model's block size that is at least 16, so that a key block never
 * straddles pages. Pages are handed out by number; a free list on the host owns them. */
#ifndef KVCACHE_H
#define KVCACHE_H
#include "model.h"

struct kvcache {
    int page;                /* tokens a page */
    int64_t pages;
    int layers;
    struct tensor *k, *v;    /* [layers] each [pages * page, K, D] */
    struct tensor *ik;       /* [layers] each [pages * page, Di], none on dense layers */
    int32_t *free_list;      /* [pages] numbers, the first n_free of them */
    int64_t n_free;
    int32_t *refs;           /* [pages] sequences that read a page (shared prefixes) */
};

int kvcache_page(const struct arch *a);
enum status kvcache_create(struct kvcache *c, const struct model *m, int64_t pages);
/* Carves the pages out of an arena (for planning and for borrowed memory). */
enum status kvcache_carve(struct kvcache *c, const struct model *m, int64_t pages, struct arena *a);
void kvcache_destroy(struct kvcache *c);
/* Bytes of one page over all layers of the stage. */
size_t kvcache_page_bytes(const struct model *m);
/* A page with one reader; -1 when none is free. */
int32_t kvcache_take(struct kvcache *c);
void kvcache_share(struct kvcache *c, int32_t page);  /* one more reader */
void kvcache_drop(struct kvcache *c, int32_t page);   /* one reader less; freed at none */
#endif
