/* How each tensor of a release is stored: the dtypes and shapes decide and the map must agree. */
#include "release_inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODULE_MAX = ST_NAME_MAX + 32 };

static const char *const side_suffix[] = {".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".weight_global_scale",
                                          ".input_scale", ".input_global_scale", ".k_scale", ".v_scale"};

/* The part before a suffix, into `module`; false when the name has another end. */
static bool cut_suffix(const char *name, const char *suffix, char module[MODULE_MAX])
{
    size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || strcmp(name + n - m, suffix)) return false;
    snprintf(module, MODULE_MAX, "%.*s", (int)(n - m), name);
    return true;
}

static const struct release_raw *find_part(const struct release *r, const char *module, const char *suffix)
{
    char name[MODULE_MAX + 32];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return release_find_raw(r, name);
}

/* "F8_E4M3 [64, 96]" */
static const char *describe(const struct release_raw *raw, char text[160])
{
    char shape[128];
    snprintf(text, 160, "%s %s", dtype_name(raw->t->dtype), st_shape_text(raw->t->rank, raw->t->dim, shape));
    return text;
}

static enum status check_scale(const struct release *r, const struct release_tensor *t, const char *module)
{
    char have[160], want[128];
    enum dtype dtype = t->quant == QUANT_MXFP8 ? DT_U8 : DT_F8_E4M3;
    int block = quant_block(t->quant);
    int64_t dim[2] = {t->rows, t->cols / block + (t->cols % block != 0)};
    const struct st_tensor *s = t->scale->t;
    if (s->dtype == dtype && s->rank == 2 && s->dim[0] == dim[0] && s->dim[1] == dim[1]) return OK;
    describe(t->scale, have);
    if (t->quant == QUANT_MXFP8 && s->rank == 2 && s->dtype != DT_U8 && s->dim[0] == t->rows / 128 + (t->rows % 128 != 0) &&
        s->dim[1] == t->cols / 128 + (t->cols % 128 != 0))
        return FAIL(ERR_FORMAT, "%s: module %s: scales %s of an F8_E4M3 weight are DeepSeek-style fp8 with [128, 128] blocks, "
                    "which is not supported", r->dir, module, have);
    return FAIL(ERR_FORMAT, "%s: module %s: scale %s is %s, %s needs %s %s", r->dir, module, s->name, have,
                quant_name(t->quant), dtype_name(dtype), st_shape_text(2, dim, want));
}

static enum status find_scalar(const struct release *r, struct release_tensor *t, const char *module, const char *suffix)
{
    char have[160];
    t->scalar = find_part(r, module, suffix);
    if (!t->scalar) return FAIL(ERR_FORMAT, "%s: module %s: %s without %s%s", r->dir, module, quant_name(t->quant), module, suffix);
    const struct st_tensor *s = t->scalar->t;
    if (s->dtype != DT_F32 || st_bytes(s) != 4 || s->rank > 1)
        return FAIL(ERR_FORMAT, "%s: module %s: %s is %s, expected F32 [] or [1]", r->dir, module, s->name,
                    describe(t->scalar, have));
    return OK;
}

/* The form that the tensors of a module have, with its scales found and measured. */
static enum status find_form(const struct release *r, struct release_tensor *t, const char *module, bool packed)
{
    char have[160];
    const struct st_tensor *w = t->data->t;
    const struct release_raw *inv = find_part(r, module, ".weight_scale_inv"), *scale = find_part(r, module, ".weight_scale");
    t->quant = packed ? QUANT_NVFP4_CT : w->dtype == DT_F8_E4M3 ? QUANT_MXFP8 : w->dtype == DT_U8 ? QUANT_NVFP4 : QUANT_NONE;
    if (t->quant == QUANT_NONE) {
        if (!inv && !scale) return OK;
        return FAIL(ERR_FORMAT, "%s: module %s: scale %s beside a weight that is %s", r->dir, module,
                    (inv ? inv : scale)->t->name, describe(t->data, have));
    }
    if (w->rank != 2 || (packed && w->dtype != DT_U8))
        return FAIL(ERR_FORMAT, "%s: module %s: %s of %s, expected a matrix%s", r->dir, module, w->name,
                    describe(t->data, have), packed ? " of U8" : "");
    if (t->quant != QUANT_MXFP8 && __builtin_mul_overflow(w->dim[1], 2, &t->dim[1]))
        return FAIL(ERR_FORMAT, "%s: module %s: %s is too wide", r->dir, module, describe(t->data, have));
    t->cols = t->dim[1];
    if (inv && scale) return FAIL(ERR_FORMAT, "%s: module %s: both weight_scale and weight_scale_inv are there", r->dir, module);
    t->scale = t->quant == QUANT_MXFP8 && inv ? inv : scale;
    if (!t->scale)
        return FAIL(ERR_FORMAT, "%s: module %s: weight is %s, but its scale (%s) is missing", r->dir, module,
                    describe(t->data, have), t->quant == QUANT_MXFP8 ? "weight_scale_inv or weight_scale" : "weight_scale");
    TRY(check_scale(r, t, module));
    if (t->quant == QUANT_NVFP4) TRY(find_scalar(r, t, module, ".weight_scale_2"));
    if (t->quant == QUANT_NVFP4_CT) TRY(find_scalar(r, t, module, ".weight_global_scale"));
    return OK;
}

/* The projections that a rule for "all linear layers" certainly covers. Router, indexer, embedding and head stay
 * unquantised in releases whose rule does not name them. */
static bool is_projection(const char *module)
{
    static const char *const name[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                                       "w1", "w2", "w3"};
    const char *dot = strrchr(module, '.'), *last = dot ? dot + 1 : module;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (strcmp(last, name[i]) == 0) return true;
    return false;
}

static enum status check_rule(const struct release *r, const struct release_tensor *t, const char *module,
                              const char *release_module)
{
    char have[160];
    enum quant q;
    enum quant_rule rule;
    TRY(quant_map_find(&r->map, module, &q, &rule));
    if (rule != RULE_NAMED && strcmp(module, release_module)) TRY(quant_map_find(&r->map, release_module, &q, &rule));
    describe(t->data, have);
    if (t->quant == QUANT_NONE) {
        bool must = rule == RULE_NAMED || (rule == RULE_DEFAULT && is_projection(module));
        if (!must || t->data->t->rank != 2) return OK;
        return FAIL(ERR_FORMAT, "%s: module %s: %s says %s, but its weight is %s", r->dir, module, r->map.origin,
                    quant_name(q), have);
    }
    if (rule == RULE_PLAIN)
        return FAIL(ERR_FORMAT, "%s: module %s: its weight is %s (%s), but %s does not say that it is quantised", r->dir,
                    module, have, quant_name(t->quant), r->map.origin);
    if (q != t->quant)
        return FAIL(ERR_FORMAT, "%s: module %s: conflict: %s says %s, but its weight is %s (%s)", r->dir, module,
                    r->map.origin, quant_name(q), have, quant_name(t->quant));
    return OK;
}

/* Dense MLPs re-saved under the experts' name: layers.N.block_sparse_moe.X_proj where layer N has no router. Writes the
 * release's name of the module. */
static void undo_alias(const struct release *r, const char *module, char out[MODULE_MAX])
{
    static const char from[] = ".block_sparse_moe.", *const proj[] = {"gate_proj", "up_proj", "down_proj"};
    char router[MODULE_MAX + 64];
    snprintf(out, MODULE_MAX, "%s", module);
    const char *at = strstr(module, from);
    if (!at || strncmp(module, "language_model.model.layers.", 28)) return;
    bool dense = false;
    for (int i = 0; i < 3; i++) dense |= strcmp(at + sizeof from - 1, proj[i]) == 0;
    if (!dense) return;
    snprintf(router, sizeof router, "%.*s.block_sparse_moe.gate.weight", (int)(at - module), module);
    if (release_find_raw(r, router)) return;
    snprintf(out, MODULE_MAX, "%.*s.mlp.%s", (int)(at - module), module, at + sizeof from - 1);
}

static enum status add_tensor(struct release *r, const struct release_raw *raw, const char *name)
{
    struct release_tensor *t = &r->tensors[r->count];
    *t = (struct release_tensor){.data = raw, .rank = raw->t->rank, .rows = st_rows(raw->t), .cols = st_cols(raw->t)};
    memcpy(t->dim, raw->t->dim, sizeof t->dim);
    t->passed = release_is_passed(raw->t->name);
    t->name = strdup(name);
    if (!t->name) return FAIL(ERR_MEMORY, "%s: no memory for tensor names", r->dir);
    r->count++;
    return OK;
}

/* A scale belongs to a weight; one without is an error, not something to skip. */
static enum status mark_side(const struct release *r, struct release_raw *raw, const char *module)
{
    if (!find_part(r, module, ".weight") && !find_part(r, module, ".weight_packed"))
        return FAIL(ERR_FORMAT, "%s: tensor %s has no weight beside it", r->dir, raw->t->name);
    raw->side = true;
    return OK;
}

static enum status resolve_one(struct release *r, struct release_raw *raw)
{
    const char *name = raw->t->name;
    char module[MODULE_MAX], known[MODULE_MAX], full[MODULE_MAX + 16];
    if (release_is_passed(name)) return add_tensor(r, raw, name);
    for (size_t i = 0; i < sizeof side_suffix / sizeof *side_suffix; i++)
        if (cut_suffix(name, side_suffix[i], module)) return mark_side(r, raw, module);
    bool packed = cut_suffix(name, ".weight_packed", module);
    if (!packed && !cut_suffix(name, ".weight", module)) return add_tensor(r, raw, name);
    if (find_part(r, module, packed ? ".weight" : ".weight_packed"))
        return FAIL(ERR_FORMAT, "%s: module %s: both weight and weight_packed are there", r->dir, module);
    undo_alias(r, module, known);
    snprintf(full, sizeof full, "%s.weight", known);
    TRY(add_tensor(r, raw, full));
    struct release_tensor *t = &r->tensors[r->count - 1];
    TRY(find_form(r, t, module, packed));
    TRY(check_rule(r, t, module, known));
    return OK;
}

enum status release_resolve(struct release *r)
{
    for (int64_t i = 0; i < r->n_raw; i++) TRY(resolve_one(r, &r->raw[i]));
    return OK;
}

/* Is there a tensor whose name begins with "MODULE."? The first name not below it would be that one. */
static bool has_module(const struct release *r, const char *module)
{
    size_t n = strlen(module);
    int64_t lo = 0, hi = r->count;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        const char *name = r->tensors[mid].name;
        int c = strncmp(name, module, n);
        if (c == 0) c = (unsigned char)name[n] < '.' ? -1 : 0;
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo < r->count && strncmp(r->tensors[lo].name, module, n) == 0 && r->tensors[lo].name[n] == '.';
}

enum status release_check_map(const struct release *r)
{
    const char *module;
    json_t *v;
    char known[MODULE_MAX], dotted[MODULE_MAX];
    if (!r->map.layers) return OK;
    json_object_foreach(r->map.layers, module, v) {
        if (strlen(module) + 2 > sizeof dotted) return FAIL(ERR_FORMAT, "%s: a module name is too long", r->map.origin);
        snprintf(dotted, sizeof dotted, "%s.", module);
        undo_alias(r, module, known);
        if (!release_is_passed(dotted) && !has_module(r, module) && !has_module(r, known))
            return FAIL(ERR_FORMAT, "%s: quantized_layers names module %s, of which the release holds no tensor",
                        r->map.origin, module);
    }
    return OK;
}
