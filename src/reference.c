#include "reference.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The weights of a layer, as places in struct layer. */
static const size_t field[] = {
    offsetof(struct layer, input_norm), offsetof(struct layer, post_norm), offsetof(struct layer, q_norm),
    offsetof(struct layer, k_norm),     offsetof(struct layer, iq_norm),   offsetof(struct layer, ik_norm),
    offsetof(struct layer, qkv),        offsetof(struct layer, o),         offsetof(struct layer, gate_up),
    offsetof(struct layer, down),       offsetof(struct layer, router),    offsetof(struct layer, bias),
    offsetof(struct layer, w13),        offsetof(struct layer, w2)};
enum { FIELDS = sizeof field / sizeof *field };

static struct tensor *at(struct layer *y, int i) { return (struct tensor *)((char *)y + field[i]); }

/* Staging: field i of every layer lies where the largest of them fits. Only the places change, shapes stay. */
static enum status carve(struct reference *r, struct arena *a)
{
    struct model *m = &r->m;
    for (int i = 0; i < FIELDS; i++) {
        struct tensor most = TENSOR_NONE, room;
        for (int l = 0; l < m->n_layers; l++) {
            struct tensor t = *at(&r->host[l], i);
            if (!tensor_none(t) && (tensor_none(most) || tensor_count(t) > tensor_count(most))) most = t;
        }
        if (tensor_none(most)) continue;
        TRY(tensor_alloc(a, &room, most.dtype, 1, tensor_count(most), 1, 1, 1));
        for (int l = 0; l < m->n_layers; l++) {
            struct tensor *t = at(&m->layers[l], i);
            if (tensor_none(*t)) continue;
            t->data = room.data;
            t->place = a->place;
        }
    }
    struct tensor *whole[] = {&m->embed, &m->final_norm, &m->head};
    for (int i = 0; i < 3; i++) {
        struct tensor t = r->whole[i], room;
        if (tensor_none(t)) continue;
        TRY(tensor_alloc(a, &room, t.dtype, 1, tensor_count(t), 1, 1, 1));
        whole[i]->data = room.data;
        whole[i]->place = a->place;
    }
    return OK;
}

/* Before layer l of the forward (-1: the embedding, n_layers: the head) its weights come in. */
static enum status fetch(void *ctx, int l)
{
    struct reference *r = ctx;
    struct model *m = &r->m;
    const struct ops *ops = m->ops;
    if (l < 0) return m->first ? ops->copy(m->embed, r->whole[0], m->stream) : OK;
    if (l == m->n_layers) {
        TRY(ops->copy(m->final_norm, r->whole[1], m->stream));
        return ops->copy(m->head, r->whole[2], m->stream);
    }
    for (int i = 0; i < FIELDS; i++)
        if (!tensor_none(*at(&r->host[l], i))) TRY(ops->copy(*at(&m->layers[l], i), *at(&r->host[l], i), m->stream));
    return OK;
}

/* Views of the kept weights, and what the staging area takes. */
static enum status measure(struct reference *r)
{
    struct model *m = &r->m;
    size_t bytes = (size_t)m->n_layers * sizeof *r->host;
    r->host = malloc(bytes + 1);
    if (!r->host) return FAIL(ERR_MEMORY, "views of %d layers", m->n_layers);
    memcpy(r->host, m->layers, bytes);
    r->whole[0] = m->embed;
    r->whole[1] = m->final_norm;
    r->whole[2] = m->head;
    r->staging = arena_measure(m->ops->place, "reference");
    return carve(r, &r->staging);
}

enum status reference_bytes(const struct model *trained, int64_t *staging, int64_t *kept)
{
    struct reference r = {.trained = (struct model *)trained};
    enum status s = model_create(&r.m, &trained->arch, trained->mesh, trained->ops, trained->stream, trained->dtype,
                                 INT64_MAX / 4);
    *staging = 0;
    *kept = s ? 0 : (int64_t)model_weight_bytes(&r.m);
    if (!s && trained->ops->place != PLACE_HOST) {
        s = model_alloc_at(&r.m, PLACE_PINNED);
        if (!s) s = measure(&r);
        *staging = (int64_t)r.staging.used;
    }
    reference_close(&r);
    return s;
}

static enum status stage(struct reference *r)
{
    struct model *m = &r->m;
    TRY(measure(r));
    void *base = NULL;
    r->staging.size = r->staging.used;
    r->staging.used = 0;
    TRY(m->ops->alloc(&base, r->staging.size, m->ops->place));
    r->staging.base = base;
    return carve(r, &r->staging);
}

enum status reference_open(struct reference *r, const struct source *s, struct model *trained)
{
    bool staged = trained->ops->place != PLACE_HOST;
    *r = (struct reference){.trained = trained};
    TRY(model_create(&r->m, &trained->arch, trained->mesh, trained->ops, trained->stream, trained->dtype, INT64_MAX / 4));
    TRY(model_alloc_at(&r->m, staged ? PLACE_PINNED : PLACE_HOST));
    TRY(source_load(s, &r->m));
    return staged ? stage(r) : OK;
}

void reference_close(struct reference *r)
{
    if (!r->trained) return;
    if (r->staging.base) r->m.ops->release(r->staging.base, r->staging.place);
    free(r->host);
    model_destroy(&r->m);
    *r = (struct reference){0};
}

enum status reference_run(struct reference *r, struct pipeline *p, const struct batch *b, const struct objective *o)
{
    p->m = &r->m;
    if (r->host) p->fetch = (struct fetch){fetch, r};
    enum status s = pipeline_run(p, b, o, NULL, NULL);
    p->fetch = (struct fetch){0};
    p->m = r->trained;
    return s;
}
