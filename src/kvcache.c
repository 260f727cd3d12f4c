#include "kvcache.h"

#include <inttypes.h>
#include <stdlib.h>

int kvcache_page(const struct arch *a)
{
    int blocks = (16 + a->block_size - 1) / a->block_size;
    return a->block_size * (blocks < 1 ? 1 : blocks);
}

enum status kvcache_carve(struct kvcache *c, const struct model *m, int64_t pages, struct arena *a)
{
    int64_t slots = pages * c->page;
    for (int l = 0; l < c->layers; l++) {
        TRY(tensor_alloc(a, &c->k[l], m->dtype, 3, slots, m->mesh->kv_heads, m->arch.head_dim, 1));
        TRY(tensor_alloc(a, &c->v[l], m->dtype, 3, slots, m->mesh->kv_heads, m->arch.head_dim, 1));
        c->ik[l] = TENSOR_NONE;
        if (m->arch.sparse[m->mesh->first_layer + l])
            TRY(tensor_alloc(a, &c->ik[l], m->dtype, 2, slots, m->arch.index_dim, 1, 1));
    }
    return OK;
}

enum status kvcache_create(struct kvcache *c, const struct model *m, int64_t pages)
{
    if (pages < 1 || pages > INT32_MAX / kvcache_page(&m->arch))
        return FAIL(ERR_CONFIG, "%" PRId64 " KV pages of %d tokens: between 1 and 2^31 tokens fit", pages,
                    kvcache_page(&m->arch));
    *c = (struct kvcache){.page = kvcache_page(&m->arch), .pages = pages, .layers = m->n_layers};
    size_t n = (size_t)m->n_layers;
    c->k = calloc(n * 3, sizeof *c->k);
    c->free_list = malloc((size_t)pages * sizeof *c->free_list);
    c->refs = calloc((size_t)pages, sizeof *c->refs);
    if (!c->k || !c->free_list || !c->refs) return FAIL(ERR_MEMORY, "page lists of %" PRId64 " KV pages", pages);
    c->v = c->k + n;
    c->ik = c->v + n;
    for (int64_t i = 0; i < pages; i++) c->free_list[i] = (int32_t)(pages - 1 - i);
    c->n_free = pages;
    return OK;
}

void kvcache_destroy(struct kvcache *c)
{
    free(c->k);
    free(c->free_list);
    free(c->refs);
    *c = (struct kvcache){0};
}

size_t kvcache_page_bytes(const struct model *m)
{
    size_t n = 0, page = (size_t)kvcache_page(&m->arch), element = dtype_size(m->dtype);
    for (int l = 0; l < m->n_layers; l++) {
        n += 2 * page * (size_t)m->mesh->kv_heads * (size_t)m->arch.head_dim * element;
        if (m->arch.sparse[m->mesh->first_layer + l]) n += page * (size_t)m->arch.index_dim * element;
    }
    return n;
}

int32_t kvcache_take(struct kvcache *c)
{
    if (c->n_free == 0) return -1;
    int32_t page = c->free_list[--c->n_free];
    c->refs[page] = 1;
    return page;
}

void kvcache_share(struct kvcache *c, int32_t page) { c->refs[page]++; }

void kvcache_drop(struct kvcache *c, int32_t page)
{
    if (--c->refs[page] == 0) c->free_list[c->n_free++] = page;
}
