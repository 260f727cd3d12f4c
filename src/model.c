#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_ALIGN = 64 }; /* elements: blocks start where vector loads and TMA want them */

/* A run of storage elements in gradient order: one outer slice of a trained parameter. */
struct chunk {
    int param;
    int64_t outer, g_off, n;
};

/* ---------------------------------------------------------------- the table -------------------------------------- */

static enum status add(struct model *m, int layer, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                       enum split split, enum store store, bool trained)
{
    struct param *p = &m->params[m->n_params++];
    int n = layer < 0 ? snprintf(p->name, sizeof p->name, "language_model.%s", name)
                      : snprintf(p->name, sizeof p->name, "language_model.model.layers.%d.%s", layer, name);
    if (n >= (int)sizeof p->name) return FAIL(ERR_INTERNAL, "parameter name of %d characters: %s", n, name);
    p->layer = layer;
    p->rank = rank;
    p->dim[0] = d0;
    p->dim[1] = rank > 1 ? d1 : 1;
    p->dim[2] = rank > 2 ? d2 : 1;
    p->split = split;
    p->store = store;
    p->trained = trained;
    p->decay = rank > 1;
    p->w_off = p->g_off = -1;
    p->replica = split == SPLIT_NONE ? REPLICA_PLANE
               : split == SPLIT_EXPERT ? REPLICA_EXPERT
               : split == SPLIT_KV && m->mesh->tp > m->arch.kv_heads ? REPLICA_KV : REPLICA_DP;
    return OK;
}

static enum status add_layer(struct model *m, int l)
{
    const struct arch *a = &m->arch;
    int64_t C = a->hidden, HD = (int64_t)a->heads * a->head_dim, KD = (int64_t)a->kv_heads * a->head_dim;
    TRY(add(m, l, "input_layernorm.weight", 1, C, 0, 0, SPLIT_NONE, STORE_MAIN, true));
    TRY(add(m, l, "post_attention_layernorm.weight", 1, C, 0, 0, SPLIT_NONE, STORE_MAIN, true));
    TRY(add(m, l, "self_attn.q_norm.weight", 1, a->head_dim, 0, 0, SPLIT_NONE, STORE_MAIN, true));
    TRY(add(m, l, "self_attn.k_norm.weight", 1, a->head_dim, 0, 0, SPLIT_NONE, STORE_MAIN, true));
    if (a->sparse[l]) {
        int64_t ID = (int64_t)a->index_heads * a->index_dim;
        TRY(add(m, l, "self_attn.index_q_norm.weight", 1, a->index_dim, 0, 0, SPLIT_NONE, STORE_MAIN, false));
        TRY(add(m, l, "self_attn.index_k_norm.weight", 1, a->index_dim, 0, 0, SPLIT_NONE, STORE_MAIN, false));
        TRY(add(m, l, "self_attn.index_q_proj.weight", 2, ID, C, 0, SPLIT_INDEX, STORE_MAIN, false));
        TRY(add(m, l, "self_attn.index_k_proj.weight", 2, a->index_dim, C, 0, SPLIT_NONE, STORE_MAIN, false));
    }
    TRY(add(m, l, "self_attn.q_proj.weight", 2, HD, C, 0, SPLIT_ROWS, STORE_MAIN, true));
    TRY(add(m, l, "self_attn.k_proj.weight", 2, KD, C, 0, SPLIT_KV, STORE_MAIN, true));
    TRY(add(m, l, "self_attn.v_proj.weight", 2, KD, C, 0, SPLIT_KV, STORE_MAIN, true));
    TRY(add(m, l, "self_attn.o_proj.weight", 2, C, HD, 0, SPLIT_COLS, STORE_MAIN, true));
    if (!a->moe[l]) {
        TRY(add(m, l, "mlp.gate_proj.weight", 2, a->dense_ffn, C, 0, SPLIT_ROWS, STORE_MAIN, true));
        TRY(add(m, l, "mlp.up_proj.weight", 2, a->dense_ffn, C, 0, SPLIT_ROWS, STORE_MAIN, true));
        return add(m, l, "mlp.down_proj.weight", 2, C, a->dense_ffn, 0, SPLIT_COLS, STORE_MAIN, true);
    }
    int64_t E = a->experts, F = a->expert_ffn;
    TRY(add(m, l, "block_sparse_moe.gate.weight", 2, E, C, 0, SPLIT_NONE, STORE_F32, true));
    TRY(add(m, l, "block_sparse_moe.e_score_correction_bias", 1, E, 0, 0, SPLIT_NONE, STORE_F32, false));
    if (a->shared_ffn) {
        const char *shared = "block_sparse_moe.shared_experts.";
        char name[3][80];
        snprintf(name[0], sizeof name[0], "%sgate_proj.weight", shared);
        snprintf(name[1], sizeof name[1], "%sup_proj.weight", shared);
        snprintf(name[2], sizeof name[2], "%sdown_proj.weight", shared);
        TRY(add(m, l, name[0], 2, a->shared_ffn, C, 0, SPLIT_ROWS, STORE_MAIN, true));
        TRY(add(m, l, name[1], 2, a->shared_ffn, C, 0, SPLIT_ROWS, STORE_MAIN, true));
        TRY(add(m, l, name[2], 2, C, a->shared_ffn, 0, SPLIT_COLS, STORE_MAIN, true));
    }
    TRY(add(m, l, "block_sparse_moe.experts.w1.weight", 3, E, F, C, SPLIT_EXPERT, STORE_MAIN, true));
    TRY(add(m, l, "block_sparse_moe.experts.w3.weight", 3, E, F, C, SPLIT_EXPERT, STORE_MAIN, true));
    return add(m, l, "block_sparse_moe.experts.w2.weight", 3, E, C, F, SPLIT_EXPERT, STORE_MAIN, true);
}

bool param_shard(const struct param *p, const struct arch *a, const struct mesh *at, int64_t start[3], int64_t count[3])
{
    for (int i = 0; i < 3; i++) start[i] = 0, count[i] = p->dim[i];
    int d = p->split == SPLIT_COLS ? 1 : 0;
    switch (p->split) {
    case SPLIT_NONE: break;
    case SPLIT_ROWS:
    case SPLIT_COLS: /* uneven where tp does not divide (only the vocabulary may) */
        start[d] = p->dim[d] * at->tp_rank / at->tp;
        count[d] = p->dim[d] * (at->tp_rank + 1) / at->tp - start[d];
        break;
    case SPLIT_KV:
        start[0] = (int64_t)at->kv_first * a->head_dim;
        count[0] = (int64_t)at->kv_heads * a->head_dim;
        break;
    case SPLIT_INDEX:
        start[0] = (int64_t)at->kv_first * a->index_dim;
        count[0] = (int64_t)at->kv_heads * a->index_dim;
        break;
    case SPLIT_EXPERT:
        count[0] = a->experts / at->ep;
        start[0] = count[0] * at->ep_rank;
        break;
    }
    if (p->layer >= 0) return p->layer >= at->first_layer && p->layer < at->first_layer + at->layers;
    return strstr(p->name, "embed_tokens") ? at->pp_rank == 0 : at->pp_rank == at->pp - 1;
}

/* ---------------------------------------------------------------- layout ----------------------------------------- */

static struct param *find(const struct model *m, int layer, const char *tail)
{
    size_t n = strlen(tail);
    for (int i = 0; i < m->n_params; i++) {
        struct param *p = &m->params[i];
        size_t len = strlen(p->name);
        if (p->layer == layer && p->here && len > n && strcmp(p->name + len - n, tail) == 0 &&
            p->name[len - n - 1] == '.')
            return p;
    }
    return NULL;
}

static int64_t align_up(int64_t x) { return (x + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN; }
static int64_t local_count(const struct param *p) { return p->count[0] * p->count[1] * p->count[2]; }

/* Starts a block: both arenas aligned, so that whole blocks of one kind stay contiguous in both. */
static void block_start(struct model *m, enum store s, bool trained)
{
    m->store_elems[s] = align_up(m->store_elems[s]);
    if (trained) m->grad_elems = align_up(m->grad_elems);
}

/* Places parameters one behind the other; experts interleave: for each expert all of `p` in turn. */
static void place(struct model *m, int n, struct param **p)
{
    int64_t per_outer = 0, outer = param_is_experts(p[0]) ? p[0]->count[0] : 1;
    for (int i = 0; i < n; i++) per_outer += local_count(p[i]) / outer;
    for (int i = 0; i < n; i++) {
        p[i]->outer_stride = per_outer;
        p[i]->w_off = m->store_elems[p[i]->store];
        m->store_elems[p[i]->store] += local_count(p[i]) / outer;
        if (p[i]->trained) {
            p[i]->g_off = m->grad_elems;
            m->grad_elems += local_count(p[i]) / outer;
        }
    }
    m->store_elems[p[0]->store] += (outer - 1) * per_outer;
    if (p[0]->trained) m->grad_elems += (outer - 1) * per_outer;
}

static void place_block(struct model *m, int layer, int n, const char *const *tails)
{
    struct param *p[8];
    int found = 0;
    for (int i = 0; i < n; i++)
        if ((p[found] = find(m, layer, tails[i]))) found++;
    if (!found) return;
    block_start(m, p[0]->store, true);
    if (param_is_experts(p[0])) place(m, found, p);
    else
        for (int i = 0; i < found; i++) place(m, 1, &p[i]);
}
#define PLACE(m, layer, ...)                                                                                           \
    place_block(m, layer, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

/* The order of storage: per kind of replica, so that buckets are long; inside, by layer. */
static void layout(struct model *m)
{
    int l0 = m->mesh->first_layer, l1 = l0 + m->mesh->layers;
    for (int l = l0; l < l1; l++) PLACE(m, l, "block_sparse_moe.gate.weight");
    for (int l = l0; l < l1; l++) PLACE(m, l, "e_score_correction_bias");
    for (int l = l0; l < l1; l++) {
        PLACE(m, l, "input_layernorm.weight");
        PLACE(m, l, "post_attention_layernorm.weight");
        PLACE(m, l, "self_attn.q_norm.weight");
        PLACE(m, l, "self_attn.k_norm.weight");
    }
    PLACE(m, -1, "model.norm.weight");
    for (int l = l0; l < l1; l++) {
        PLACE(m, l, "self_attn.index_q_norm.weight");
        PLACE(m, l, "self_attn.index_k_norm.weight");
    }
    PLACE(m, -1, "model.embed_tokens.weight");
    for (int l = l0; l < l1; l++) {
        PLACE(m, l, "self_attn.index_q_proj.weight", "self_attn.index_k_proj.weight", "self_attn.q_proj.weight",
              "self_attn.k_proj.weight", "self_attn.v_proj.weight");
        PLACE(m, l, "self_attn.o_proj.weight");
        PLACE(m, l, "mlp.gate_proj.weight", "mlp.up_proj.weight");
        PLACE(m, l, "mlp.down_proj.weight");
        PLACE(m, l, "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight");
        PLACE(m, l, "shared_experts.down_proj.weight");
    }
    PLACE(m, -1, "lm_head.weight");
    for (int l = l0; l < l1; l++) {
        PLACE(m, l, "experts.w1.weight", "experts.w3.weight");
        PLACE(m, l, "experts.w2.weight");
    }
}

static int by_grad(const void *x, const void *y)
{
    const struct chunk *a = x, *b = y;
    return (a->g_off > b->g_off) - (a->g_off < b->g_off);
}

static enum status list_chunks(struct model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].g_off >= 0) n += param_is_experts(&m->params[i]) ? m->params[i].count[0] : 1;
    m->chunks = calloc((size_t)n + 1, sizeof *m->chunks);
    if (!m->chunks) return FAIL(ERR_MEMORY, "%" PRId64 " storage chunks", n);
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        if (p->g_off < 0) continue;
        int64_t outer = param_is_experts(p) ? p->count[0] : 1;
        for (int64_t e = 0; e < outer; e++)
            m->chunks[m->n_chunks++] = (struct chunk){i, e, p->g_off + e * p->outer_stride, local_count(p) / outer};
    }
    qsort(m->chunks, (size_t)m->n_chunks, sizeof *m->chunks, by_grad);
    return OK;
}

static enum status bucket_add(struct model *m, int *cap, struct bucket b)
{
    if (m->n_buckets == *cap) {
        *cap = *cap ? *cap * 2 : 64;
        struct bucket *grown = realloc(m->buckets, (size_t)*cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%d buckets", *cap);
        m->buckets = grown;
    }
    m->buckets[m->n_buckets++] = b;
    return OK;
}

/* Joins neighbouring chunks of one replica kind and store into buckets of at most `max` elements. */
static enum status list_buckets(struct model *m, int64_t max)
{
    int cap = 0;
    struct bucket b = {0};
    for (int i = 0; i < m->n_chunks; i++) {
        const struct chunk *c = &m->chunks[i];
        const struct param *p = &m->params[c->param];
        int64_t w = p->w_off + c->outer * p->outer_stride, at = 0;
        int layer = p->layer >= 0 ? p->layer : strstr(p->name, "embed_tokens") ? -1 : m->arch.layers;
        bool joins = b.n && b.replica == p->replica && b.store == p->store && b.decay == p->decay &&
                     w - c->g_off == b.w_off - b.g_off;
        if (!joins && b.n) {
            TRY(bucket_add(m, &cap, b));
            b.n = 0;
        }
        while (at < c->n) {
            if (!b.n)
                b = (struct bucket){p->replica, p->store, p->decay, w + at, c->g_off + at, 0, layer};
            if (layer < b.layer_min) b.layer_min = layer;
            int64_t have = c->g_off + at - b.g_off; /* padding in between counts */
            int64_t take = max - have < c->n - at ? max - have : c->n - at;
            if (take > 0) b.n = have + take, at += take;
            if (take <= 0 || b.n >= max) {
                TRY(bucket_add(m, &cap, b));
                b.n = 0;
            }
        }
    }
    return b.n ? bucket_add(m, &cap, b) : OK;
}

/* ---------------------------------------------------------------- create ----------------------------------------- */

enum status model_create(struct model *m, const struct arch *a, const struct mesh *mesh, const struct ops *ops,
                         struct stream *stream, enum dtype dtype, int64_t bucket_elems)
{
    *m = (struct model){.arch = *a, .mesh = mesh, .ops = ops, .stream = stream, .dtype = dtype};
    m->params = calloc((size_t)a->layers * 20 + 3, sizeof *m->params);
    m->layers = calloc((size_t)mesh->layers, sizeof *m->layers);
    if (!m->params || !m->layers) return FAIL(ERR_MEMORY, "parameter table of %d layers", a->layers);
    m->n_layers = mesh->layers;
    m->first = mesh->pp_rank == 0;
    m->last = mesh->pp_rank == mesh->pp - 1;
    TRY(add(m, -1, "model.embed_tokens.weight", 2, a->vocab, a->hidden, 0, SPLIT_ROWS, STORE_MAIN, true));
    for (int l = 0; l < a->layers; l++) TRY(add_layer(m, l));
    TRY(add(m, -1, "model.norm.weight", 1, a->hidden, 0, 0, SPLIT_NONE, STORE_MAIN, true));
    TRY(add(m, -1, "lm_head.weight", 2, a->vocab, a->hidden, 0, SPLIT_ROWS, STORE_MAIN, true));
    for (int i = 0; i < m->n_params; i++)
        m->params[i].here = param_shard(&m->params[i], a, mesh, m->params[i].start, m->params[i].count);
    m->vocab_first = m->params[0].start[0];
    m->vocab_here = m->params[0].count[0];
    layout(m);
    TRY(list_chunks(m));
    return list_buckets(m, bucket_elems < 1024 ? 1024 : bucket_elems);
}

/* ---------------------------------------------------------------- views ------------------------------------------ */

static struct tensor flat(const struct model *m, const struct param *p, bool grad, int64_t e, int rank, int64_t d0,
                          int64_t d1, int64_t d2)
{
    if (grad && (!m->grad.data || p->g_off < 0)) return TENSOR_NONE;
    struct tensor base = grad ? m->grad : m->store[p->store];
    struct tensor t = tensor_flat(base, (grad ? p->g_off : p->w_off) + e * p->outer_stride, d0 * d1 * d2);
    return tensor_view(t.data, t.dtype, t.place, rank, d0, d1, d2, 1);
}

struct tensor param_weight(const struct model *m, const struct param *p, int64_t e)
{
    bool x = param_is_experts(p);
    return flat(m, p, false, e, p->rank == 1 ? 1 : 2, x ? p->count[1] : p->count[0], x ? p->count[2] : p->count[1], 1);
}

struct tensor param_grad(const struct model *m, const struct param *p, int64_t e)
{
    bool x = param_is_experts(p);
    return flat(m, p, true, e, p->rank == 1 ? 1 : 2, x ? p->count[1] : p->count[0], x ? p->count[2] : p->count[1], 1);
}

/* View of `rows` rows that start with parameter `tail` (the ones behind it in storage included). */
static void bind(const struct model *m, int layer, const char *tail, int64_t rows, struct tensor *w, struct tensor *d)
{
    const struct param *p = find(m, layer, tail);
    *w = TENSOR_NONE;
    if (d) *d = TENSOR_NONE;
    if (!p) return;
    int rank = p->rank == 1 ? 1 : 2;
    *w = flat(m, p, false, 0, rank, rows, p->count[1], 1);
    if (d) *d = flat(m, p, true, 0, rank, rows, p->count[1], 1);
}

static void bind_experts(const struct model *m, int layer, const char *tail, int64_t rows, struct tensor *w,
                         struct tensor *d)
{
    const struct param *p = find(m, layer, tail);
    *w = flat(m, p, false, 0, 3, p->count[0], rows, p->count[2]);
    *d = flat(m, p, true, 0, 3, p->count[0], rows, p->count[2]);
}

static void bind_layer(struct model *m, struct layer *y, int l)
{
    const struct arch *a = &m->arch;
    int64_t C = a->hidden, D = a->head_dim, K = m->mesh->kv_heads, H = a->heads / m->mesh->tp, tp = m->mesh->tp;
    struct tensor none;
    y->index = l;
    y->moe = a->moe[l];
    y->sparse = a->sparse[l];
    y->index_cols = y->sparse ? (K + 1) * a->index_dim : 0;
    bind(m, l, "input_layernorm.weight", C, &y->input_norm, &y->d_input_norm);
    bind(m, l, "post_attention_layernorm.weight", C, &y->post_norm, &y->d_post_norm);
    bind(m, l, "self_attn.q_norm.weight", D, &y->q_norm, &y->d_q_norm);
    bind(m, l, "self_attn.k_norm.weight", D, &y->k_norm, &y->d_k_norm);
    bind(m, l, "self_attn.index_q_norm.weight", a->index_dim, &y->iq_norm, NULL);
    bind(m, l, "self_attn.index_k_norm.weight", a->index_dim, &y->ik_norm, NULL);
    bind(m, l, "self_attn.q_proj.weight", (H + 2 * K) * D, &y->qkv, &y->d_qkv);
    if (y->sparse)
        bind(m, l, "self_attn.index_q_proj.weight", y->index_cols + (H + 2 * K) * D, &y->qkv, &none);
    bind(m, l, "self_attn.o_proj.weight", C, &y->o, &y->d_o);
    if (!y->moe) {
        bind(m, l, "mlp.gate_proj.weight", 2 * a->dense_ffn / tp, &y->gate_up, &y->d_gate_up);
        bind(m, l, "mlp.down_proj.weight", C, &y->down, &y->d_down);
        return;
    }
    bind(m, l, "block_sparse_moe.gate.weight", a->experts, &y->router, &y->d_router);
    bind(m, l, "e_score_correction_bias", a->experts, &y->bias, NULL);
    bind(m, l, "shared_experts.gate_proj.weight", 2 * a->shared_ffn / tp, &y->gate_up, &y->d_gate_up);
    bind(m, l, "shared_experts.down_proj.weight", C, &y->down, &y->d_down);
    bind_experts(m, l, "experts.w1.weight", 2 * a->expert_ffn, &y->w13, &y->d_w13);
    bind_experts(m, l, "experts.w2.weight", C, &y->w2, &y->d_w2);
}

static enum status arena_take(struct model *m, struct arena *a, const char *purpose, struct tensor *view,
                              enum dtype dtype, int64_t n, enum place place)
{
    *a = arena_measure(place, purpose);
    TRY(tensor_alloc(a, view, dtype, 1, n, 1, 1, 1));
    a->size = a->used;
    a->used = 0;
    void *base = NULL;
    TRY(m->ops->alloc(&base, a->size ? a->size : 1, place));
    a->base = base;
    TRY(tensor_alloc(a, view, dtype, 1, n, 1, 1, 1));
    return m->ops->zero(*view, m->stream);
}

static void bind_all(struct model *m)
{
    for (int i = 0; i < m->n_layers; i++) bind_layer(m, &m->layers[i], m->mesh->first_layer + i);
    if (m->first) bind(m, -1, "model.embed_tokens.weight", m->vocab_here, &m->embed, &m->d_embed);
    if (m->last) {
        bind(m, -1, "model.norm.weight", m->arch.hidden, &m->final_norm, &m->d_final_norm);
        bind(m, -1, "lm_head.weight", m->vocab_here, &m->head, &m->d_head);
    }
}

enum status model_alloc_at(struct model *m, enum place place)
{
    TRY(arena_take(m, &m->weights[STORE_MAIN], "weights", &m->store[STORE_MAIN], m->dtype,
                   m->store_elems[STORE_MAIN], place));
    TRY(arena_take(m, &m->weights[STORE_F32], "weights", &m->store[STORE_F32], DT_F32, m->store_elems[STORE_F32], place));
    bind_all(m);
    return OK;
}

enum status model_alloc(struct model *m) { return model_alloc_at(m, m->ops->place); }

enum status model_alloc_grads(struct model *m)
{
    TRY(arena_take(m, &m->grads, "gradients", &m->grad, DT_F32, m->grad_elems, m->ops->place));
    bind_all(m);
    return OK;
}

void model_alias(struct model *m, const struct model *owner)
{
    for (int s = 0; s < STORE_COUNT; s++) m->store[s] = owner->store[s];
    bind_all(m);
}

void model_destroy(struct model *m)
{
    for (int s = 0; s < STORE_COUNT; s++)
        if (m->weights[s].base) m->ops->release(m->weights[s].base, m->weights[s].place);
    if (m->grads.base) m->ops->release(m->grads.base, m->ops->place);
    free(m->params);
    free(m->layers);
    free(m->buckets);
    free(m->chunks);
    *m = (struct model){0};
}

/* ---------------------------------------------------------------- questions -------------------------------------- */

size_t model_weight_bytes(const struct model *m)
{
    return (size_t)m->store_elems[STORE_MAIN] * dtype_size(m->dtype) + (size_t)m->store_elems[STORE_F32] * 4;
}
size_t model_grad_bytes(const struct model *m) { return (size_t)m->grad_elems * 4; }

int64_t model_count(const struct model *m, bool trained_only)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        if (p->trained || !trained_only) n += p->dim[0] * p->dim[1] * p->dim[2];
    }
    return n;
}

struct group *model_group(const struct model *m, enum replica r)
{
    struct mesh *g = (struct mesh *)m->mesh; /* counters in the group change, the mesh does not */
    switch (r) {
    case REPLICA_DP: return &g->dp_group;
    case REPLICA_KV: return &g->kv_group;
    case REPLICA_EXPERT: return &g->edp_group;
    default: return &g->plane;
    }
}

void bucket_share(const struct bucket *b, int rank, int size, int64_t *first, int64_t *n)
{
    /* shares start at multiples of 8 elements, so that vector loads stay aligned */
    int64_t units = (b->n + 7) / 8, from = units * rank / size * 8, to = units * (rank + 1) / size * 8;
    if (from > b->n) from = b->n;
    if (to > b->n) to = b->n;
    *first = from;
    *n = to - from;
}

const struct param *model_find(const struct model *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (strcmp(m->params[i].name, name) == 0) return &m->params[i];
    return NULL;
}

void param_release_name(const struct param *p, int64_t e, char *out, size_t size)
{
    const char *cut = param_is_experts(p) ? strstr(p->name, ".experts.") : NULL;
    if (!cut) snprintf(out, size, "%s", p->name);
    else snprintf(out, size, "%.*s.experts.%" PRId64 ".%s", (int)(cut - p->name), p->name, e, cut + strlen(".experts."));
}

/* ---------------------------------------------------------------- walking ---------------------------------------- */

/* Elements [first, first + n) of an outer slice: a partial row, whole rows, a partial row. */
static enum status walk_slice(const struct param *p, int64_t outer, int64_t first, int64_t n, int64_t at,
                              piece_fn visit, void *ctx)
{
    bool x = param_is_experts(p);
    int rd = x ? 1 : 0, cd = rd + 1; /* the row and column dimensions of the global array */
    int64_t cols = p->rank == 1 ? 1 : p->count[cd];
    while (n > 0) {
        int64_t row = first / cols, col = first % cols, take_rows = 1, take_cols = cols - col;
        if (col == 0 && n >= cols) take_rows = n / cols;
        else if (take_cols > n) take_cols = n;
        int64_t start[3] = {0, 0, 0}, count[3] = {1, 1, 1};
        if (x) start[0] = p->start[0] + outer;
        start[rd] = p->start[rd] + row;
        count[rd] = take_rows;
        if (p->rank > 1) start[cd] = p->start[cd] + col, count[cd] = take_cols;
        TRY(visit(ctx, p, start, count, at));
        int64_t took = take_rows * take_cols;
        first += took, at += took, n -= took;
    }
    return OK;
}

enum status model_walk(const struct model *m, int64_t g_off, int64_t n, piece_fn visit, void *ctx)
{
    int lo = 0, hi = m->n_chunks;
    while (lo < hi) { /* first chunk that ends behind g_off */
        int mid = (lo + hi) / 2;
        if (m->chunks[mid].g_off + m->chunks[mid].n <= g_off) lo = mid + 1;
        else hi = mid;
    }
    for (; lo < m->n_chunks && m->chunks[lo].g_off < g_off + n; lo++) {
        const struct chunk *c = &m->chunks[lo];
        int64_t from = c->g_off > g_off ? c->g_off : g_off;
        int64_t to = c->g_off + c->n < g_off + n ? c->g_off + c->n : g_off + n;
        TRY(walk_slice(&m->params[c->param], c->outer, from - c->g_off, to - from, from - g_off, visit, ctx));
    }
    return OK;
}
