/* What becomes of each tensor of the source. */
#include "convert_inner.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char layer_prefix[] = "language_model.model.layers.";

/* The layer of a language-model name and the rest behind its number (".mlp..."); -1 outside the layers. */
static int layer_of(const char *name, const char **rest)
{
    if (strncmp(name, layer_prefix, sizeof layer_prefix - 1)) return -1;
    const char *at = name + sizeof layer_prefix - 1;
    char *end;
    if (*at < '0' || *at > '9') return -1;
    long n = strtol(at, &end, 10);
    *rest = end;
    return n < ARCH_MAX_LAYERS && (*end == '.' || *end == 0) ? (int)n : -1;
}

bool convert_rename(const struct convert *c, const char *name, char out[CONVERT_NAME])
{
    static const char alias[] = ".block_sparse_moe.", *const proj[] = {"gate_proj", "up_proj", "down_proj"};
    const char *rest = NULL;
    int layer = layer_of(name, &rest);
    snprintf(out, CONVERT_NAME, "%s", name);
    if (layer < 0 || layer >= c->arch.layers) return true;
    if (c->new_layer[layer] < 0) return false;
    const char *middle = "";
    for (int i = 0; i < 3 && !c->arch.moe[layer] && strncmp(rest, alias, sizeof alias - 1) == 0; i++) {
        const char *at = rest + sizeof alias - 1;
        size_t n = strlen(proj[i]);
        if (strncmp(at, proj[i], n) || (at[n] && at[n] != '.')) continue;
        middle = ".mlp.";
        rest = at;
        break;
    }
    snprintf(out, CONVERT_NAME, "%s%d%s%s", layer_prefix, c->new_layer[layer], middle, rest);
    return true;
}

static enum status choose_layers(struct convert *c)
{
    const struct convert_args *a = c->args;
    for (int i = 0; i < ARCH_MAX_LAYERS; i++) c->new_layer[i] = a->layers || i >= c->arch.layers ? -1 : i;
    c->layers = a->layers ? a->n_layers : c->arch.layers;
    if (a->layers && a->n_layers < 1) return FAIL(ERR_USAGE, "--layers names no layer");
    for (int i = 0; a->layers && i < a->n_layers; i++) {
        if (a->layers[i] < 0 || a->layers[i] >= c->arch.layers)
            return FAIL(ERR_USAGE, "--layers: layer %d, but %s has layers 0 .. %d", a->layers[i], a->src, c->arch.layers - 1);
        if (i && a->layers[i] <= a->layers[i - 1])
            return FAIL(ERR_USAGE, "--layers: %d does not come after %d; layers must increase", a->layers[i], a->layers[i - 1]);
        c->new_layer[a->layers[i]] = i;
    }
    return OK;
}

/* Under dense_attention a sparse layer with no index tensor at all becomes a dense one. */
static void find_stripped_layers(struct convert *c)
{
    char name[CONVERT_NAME];
    static const char *const part[] = {"q_proj", "k_proj", "q_norm", "k_norm"};
    for (int i = 0; i < c->arch.layers; i++) {
        bool any = false;
        for (int k = 0; k < 4; k++) {
            snprintf(name, sizeof name, "%s%d.self_attn.index_%s.weight", layer_prefix, i, part[k]);
            any |= release_find(c->r, name) != NULL;
        }
        if (!c->arch.sparse[i] || any) continue;
        c->made_dense[i] = true;
        c->arch.sparse[i] = false;
        if (c->rank == 0) log_info("%s: layer %d has no index tensors: it becomes a layer of dense attention", c->args->src, i);
    }
}

struct names {
    const struct release *r;
    char **name;
    int64_t count, room;
};

/* Notes an expected name and compares the shape of what is there. */
static enum status note_name(void *ctx, const char *name, int rank, const int64_t *dim)
{
    struct names *n = ctx;
    const struct release_tensor *t = release_find(n->r, name);
    char have[128], want[128];
    if (t && (t->rank != rank || memcmp(t->dim, dim, sizeof *dim * (size_t)rank)))
        return FAIL(ERR_FORMAT, "%s: tensor %s is %s, config.json makes it %s", n->r->dir, name,
                    st_shape_text(t->rank, t->dim, have), st_shape_text(rank, dim, want));
    if (n->count == n->room) {
        n->room = n->room ? 2 * n->room : 1024;
        char **more = realloc(n->name, sizeof *more * (size_t)n->room);
        if (!more) return FAIL(ERR_MEMORY, "%s: no memory for %" PRId64 " names", n->r->dir, n->room);
        n->name = more;
    }
    if (!(n->name[n->count] = strdup(name))) return FAIL(ERR_MEMORY, "%s: no memory for names", n->r->dir);
    n->count++;
    return OK;
}

static enum status check_names(struct convert *c)
{
    struct names n = {.r = c->r};
    enum status s = arch_each_tensor(&c->arch, note_name, &n);
    if (!s) s = release_check_names(c->r, (const char *const *)n.name, n.count, c->args->dense_attention ? release_is_indexer : NULL,
                                    NULL, NULL);
    for (int64_t i = 0; i < n.count; i++) free(n.name[i]);
    free(n.name);
    return s;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Becomes BF16: floating, of the language model, and neither the router's gate nor its bias. */
static bool is_converted(const struct convert *c, const struct release_tensor *t)
{
    enum dtype d = t->data->t->dtype;
    if (c->args->keep || t->passed) return false;
    if (t->quant != QUANT_NONE) return true;
    return (d == DT_F32 || d == DT_F16) && !ends_with(t->name, ".block_sparse_moe.gate.weight") &&
           !ends_with(t->name, ".e_score_correction_bias");
}

/* One stored tensor: dropped, passed, renamed or decoded. `t` is NULL for a scale. */
static enum status plan_one(struct convert *c, const struct release_raw *raw, const struct release_tensor *t)
{
    char name[CONVERT_NAME];
    bool converted = t && is_converted(c, t);
    if (raw->side && !c->args->keep) return OK;
    if (release_is_passed(raw->t->name)) snprintf(name, sizeof name, "%s", raw->t->name);
    else if (!convert_rename(c, converted ? t->name : raw->t->name, name)) return OK;
    c->items[c->plan.count] = (struct convert_item){raw, converted ? t : NULL};
    if (converted) TRY(st_plan_add(&c->plan, name, DT_BF16, t->rank, t->dim));
    else TRY(st_plan_add(&c->plan, name, raw->t->dtype, raw->t->rank, raw->t->dim));
    return OK;
}

struct placed {
    const struct release_raw *raw;
    const struct release_tensor *t;
};

/* In the order of the source's files, so that reading is sequential. */
static int by_place(const void *a, const void *b)
{
    const struct release_raw *x = ((const struct placed *)a)->raw, *y = ((const struct placed *)b)->raw;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    if (x->t->begin != y->t->begin) return x->t->begin < y->t->begin ? -1 : 1;
    return strcmp(x->t->name, y->t->name);
}

static enum status plan_tensors(struct convert *c)
{
    const struct release *r = c->r;
    struct placed *order = calloc((size_t)r->n_raw + 1, sizeof *order);
    c->items = calloc((size_t)r->n_raw + 1, sizeof *c->items);
    enum status s = order && c->items ? OK : FAIL(ERR_MEMORY, "%s: no memory for %" PRId64 " tensors", r->dir, r->n_raw);
    for (int64_t i = 0; i < r->n_raw && !s; i++) order[i].raw = &r->raw[i];
    for (int64_t i = 0; i < r->count && !s; i++) order[r->tensors[i].data - r->raw].t = &r->tensors[i];
    if (!s) qsort(order, (size_t)r->n_raw, sizeof *order, by_place);
    for (int64_t i = 0; i < r->n_raw && !s; i++) s = plan_one(c, order[i].raw, order[i].t);
    if (!s) s = st_plan_cut(&c->plan, c->args->shard_bytes ? c->args->shard_bytes : 5000000000u);
    free(order);
    return s ? status_prefix(s, "%s", c->args->dst) : OK;
}

/* Source files (name, size, time of change), choices and plan: what a finished shard of an earlier run depends on. */
static enum status hash_plan(struct convert *c)
{
    XXH3_state_t *h = XXH3_createState();
    if (!h) return FAIL(ERR_MEMORY, "%s: no memory for a hash", c->args->src);
    XXH3_64bits_reset(h);
    for (int k = 0; k < c->r->n_shards; k++) {
        struct stat st;
        if (fstat(c->r->shards[k].fd, &st)) st = (struct stat){0};
        int64_t v[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        const char *base = strrchr(c->r->shards[k].path, '/');
        XXH3_64bits_update(h, base, strlen(base) + 1);
        XXH3_64bits_update(h, v, sizeof v);
    }
    XXH3_64bits_update(h, c->new_layer, sizeof c->new_layer);
    XXH3_64bits_update(h, c->made_dense, sizeof c->made_dense);
    for (int64_t i = 0; i < c->plan.count; i++) {
        const struct st_tensor *t = &c->plan.tensors[i];
        int64_t v[4] = {t->dtype, c->plan.shard[i], (int64_t)t->begin, (int64_t)t->end};
        XXH3_64bits_update(h, t->name, strlen(t->name) + 1);
        XXH3_64bits_update(h, v, sizeof v);
        XXH3_64bits_update(h, t->dim, sizeof t->dim[0] * (size_t)t->rank);
    }
    c->id = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return OK;
}

/* Decoding drops the map, so what passes through in a quantised form loses its description. */
static void warn_of_passed_quantised(const struct convert *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->r->count && !c->args->keep; i++)
        n += c->r->tensors[i].passed && c->r->tensors[i].data->t->dtype == DT_F8_E4M3;
    if (n && c->rank == 0)
        log_warn("%s: %" PRId64 " quantised tensors of vision or MTP pass through as they are; the new config.json does not "
                 "describe them", c->args->src, n);
}

enum status convert_plan(struct convert *c)
{
    TRY(arch_load(&c->arch, c->args->src));
    TRY(choose_layers(c));
    if (c->args->dense_attention) find_stripped_layers(c);
    TRY(check_names(c));
    TRY(plan_tensors(c));
    TRY(hash_plan(c));
    warn_of_passed_quantised(c);
    return OK;
}
