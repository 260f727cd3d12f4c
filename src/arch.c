#include "arch.h"
#include "json.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 16 << 20, BIG = 1 << 30 };

/* Where the language model's keys stand: text_config of the release, or the top of a text-only config. */
struct source {
    json_t *text;
    json_t *sparse;      /* sparse_attention_config, NULL in the flat dialect */
    const char *origin;
};

static enum status get_int(const struct source *c, const char *key, int lo, int *out)
{
    int64_t x = 0;
    TRY(json_need_int(c->text, key, lo, BIG, &x, c->origin));
    *out = (int)x;
    return OK;
}

/* An integer that either dialect may spell: nested under sparse_attention_config, flat beside it. Both must agree. */
static enum status get_two(const struct source *c, const char *nested, const char *flat, int lo, int fallback, int *out)
{
    int64_t a = INT64_MIN, b = INT64_MIN;
    if (c->sparse) TRY(json_want_int(c->sparse, nested, lo, BIG, &a, c->origin));
    if (flat) TRY(json_want_int(c->text, flat, lo, BIG, &b, c->origin));
    if (a != INT64_MIN && b != INT64_MIN && a != b)
        return FAIL(ERR_FORMAT, "%s: %s = %" PRId64 " but %s = %" PRId64, c->origin, nested, a, flat, b);
    if (a == INT64_MIN) a = b;
    if (a == INT64_MIN && fallback < 0)
        return FAIL(ERR_FORMAT, "%s: neither sparse_attention_config.%s nor %s is there", c->origin, nested, flat);
    *out = a == INT64_MIN ? fallback : (int)a;
    return OK;
}

static enum status need_bool(const json_t *o, const char *key, bool want, const char *origin)
{
    bool x = want;
    TRY(json_want_bool(o, key, &x, origin));
    if (x != want)
        return FAIL(ERR_FORMAT, "%s: %s = %s is not supported, only %s", origin, key, x ? "true" : "false",
                    want ? "true" : "false");
    return OK;
}

static enum status need_text(const json_t *o, const char *key, const char *want, const char *origin)
{
    const char *x = want;
    TRY(json_want_string(o, key, &x, origin));
    if (strcmp(x, want)) return FAIL(ERR_FORMAT, "%s: %s = \"%.64s\" is not supported, only \"%s\"", origin, key, x, want);
    return OK;
}

/* One flag a layer from a list of 0 and 1, or of the two names. */
static enum status read_flags(const json_t *list, const char *key, const char *no, const char *yes, int layers,
                              bool *flags, const char *origin)
{
    if (!json_is_array(list)) return FAIL(ERR_FORMAT, "%s: %s is %s, expected a list", origin, key, json_type_name(list));
    if (json_array_size(list) != (size_t)layers)
        return FAIL(ERR_FORMAT, "%s: %s has %zu entries, num_hidden_layers = %d", origin, key, json_array_size(list),
                    layers);
    for (int i = 0; i < layers; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (no) {
            const char *name = json_is_string(v) ? json_string_value(v) : json_type_name(v);
            if (strcmp(name, no) && strcmp(name, yes))
                return FAIL(ERR_FORMAT, "%s: %s[%d] = \"%.64s\", expected \"%s\" or \"%s\"", origin, key, i, name, no, yes);
            flags[i] = strcmp(name, yes) == 0;
        } else {
            int64_t x = json_is_boolean(v) ? json_is_true(v) : json_is_integer(v) ? json_integer_value(v) : -1;
            if (x != 0 && x != 1)
                return FAIL(ERR_FORMAT, "%s: %s[%d] is neither 0 nor 1", origin, key, i);
            flags[i] = x == 1;
        }
    }
    return OK;
}

/* A layer list in either dialect; where both stand they must agree. */
static enum status read_lists(const json_t *nested, const char *nested_key, const json_t *flat, const char *flat_key,
                              const char *no, const char *yes, int layers, bool *flags, const char *origin)
{
    bool other[ARCH_MAX_LAYERS];
    if (!nested && !flat)
        return FAIL(ERR_FORMAT, "%s: neither %s nor %s is there", origin, nested_key, flat_key);
    if (nested) TRY(read_flags(nested, nested_key, NULL, NULL, layers, flags, origin));
    if (!flat) return OK;
    TRY(read_flags(flat, flat_key, no, yes, layers, nested ? other : flags, origin));
    for (int i = 0; nested && i < layers; i++)
        if (other[i] != flags[i])
            return FAIL(ERR_FORMAT, "%s: layer %d: %s = %d but %s = \"%s\"", origin, i, nested_key, flags[i], flat_key,
                        other[i] ? yes : no);
    return OK;
}

static enum status read_sizes(struct arch *a, const struct source *c)
{
    int shared = 1, each = 0;
    int64_t n = -1;
    TRY(get_int(c, "hidden_size", 1, &a->hidden));
    TRY(get_int(c, "num_hidden_layers", 1, &a->layers));
    if (a->layers > ARCH_MAX_LAYERS)
        return FAIL(ERR_FORMAT, "%s: num_hidden_layers = %d, the limit is %d", c->origin, a->layers, ARCH_MAX_LAYERS);
    TRY(get_int(c, "num_attention_heads", 1, &a->heads));
    TRY(get_int(c, "num_key_value_heads", 1, &a->kv_heads));
    TRY(get_int(c, "head_dim", 2, &a->head_dim));
    TRY(get_int(c, "vocab_size", 1, &a->vocab));
    TRY(get_int(c, "max_position_embeddings", 1, &a->max_positions));
    TRY(get_int(c, "dense_intermediate_size", 1, &a->dense_ffn));
    TRY(get_int(c, "intermediate_size", 1, &a->expert_ffn));
    TRY(json_want_int(c->text, "num_experts", 1, 1 << 20, &n, c->origin));
    if (n < 0 || json_member(c->text, "num_local_experts")) TRY(get_int(c, "num_local_experts", 1, &a->experts));
    else a->experts = (int)n;
    TRY(get_int(c, "num_experts_per_tok", 1, &a->experts_per_token));
    n = shared;
    TRY(json_want_int(c->text, "n_shared_experts", 0, 64, &n, c->origin));
    shared = (int)n;
    if (shared) TRY(get_int(c, "shared_intermediate_size", 1, &each));
    if (each > BIG / 64) return FAIL(ERR_FORMAT, "%s: shared_intermediate_size = %d is too large", c->origin, each);
    a->shared_ffn = shared * each;
    return OK;
}

static enum status get_float(const json_t *o, const char *key, double lo, double hi, float *out, const char *origin)
{
    double x = 0;
    TRY(json_need_number(o, key, lo, hi, &x, origin));
    *out = (float)x;
    return OK;
}

static enum status read_rope(struct arch *a, const struct source *c)
{
    json_t *rope = NULL, *scaling = NULL;
    double theta = 0, other = 0, factor = 0, factor2 = 0;
    int64_t rotary = 0;
    TRY(json_want_object(c->text, "rope_parameters", &rope, c->origin));
    TRY(json_want_object(c->text, "rope_scaling", &scaling, c->origin));
    if (rope) TRY(need_text(rope, "rope_type", "default", c->origin));
    if (scaling) TRY(need_text(scaling, json_member(scaling, "type") ? "type" : "rope_type", "default", c->origin));
    TRY(json_want_number(c->text, "rope_theta", 1, 1e12, &theta, c->origin));
    if (rope) TRY(json_want_number(rope, "rope_theta", 1, 1e12, &other, c->origin));
    if (theta > 0 && other > 0 && theta != other)
        return FAIL(ERR_FORMAT, "%s: rope_theta = %g but rope_parameters.rope_theta = %g", c->origin, theta, other);
    if (theta == 0) theta = other;
    if (theta == 0) return FAIL(ERR_FORMAT, "%s: neither rope_theta nor rope_parameters.rope_theta is there", c->origin);
    a->rope_theta = (float)theta;

    TRY(json_want_int(c->text, "rotary_dim", 2, BIG, &rotary, c->origin));
    TRY(json_want_number(c->text, "partial_rotary_factor", 1e-6, 1, &factor, c->origin));
    if (rope) TRY(json_want_number(rope, "partial_rotary_factor", 1e-6, 1, &factor2, c->origin));
    if (factor > 0 && factor2 > 0 && factor != factor2)
        return FAIL(ERR_FORMAT, "%s: partial_rotary_factor = %g but rope_parameters.partial_rotary_factor = %g",
                    c->origin, factor, factor2);
    if (factor == 0) factor = factor2;
    if (rotary == 0 && factor == 0)
        return FAIL(ERR_FORMAT, "%s: neither rotary_dim nor partial_rotary_factor is there", c->origin);
    if (rotary && factor > 0 && rotary != (int64_t)lrint(factor * a->head_dim))
        return FAIL(ERR_FORMAT, "%s: rotary_dim = %" PRId64 " but partial_rotary_factor = %g of head_dim = %d", c->origin,
                    rotary, factor, a->head_dim);
    a->rotary_dim = rotary ? (int)rotary : (int)lrint(factor * a->head_dim);
    return OK;
}

static enum status read_numbers(struct arch *a, const struct source *c)
{
    TRY(get_float(c->text, "rms_norm_eps", 0, 1, &a->rms_eps, c->origin));
    TRY(get_float(c->text, "routed_scaling_factor", 1e-6, 1e6, &a->routed_scale, c->origin));
    TRY(get_float(c->text, "swiglu_alpha", 1e-6, 1e6, &a->swiglu_alpha, c->origin));
    TRY(get_float(c->text, "swiglu_limit", 1e-6, 1e6, &a->swiglu_limit, c->origin));
    TRY(read_rope(a, c));
    return OK;
}

/* Token ids may be absent, null, or (eos) a list, of which the first counts. */
static enum status read_id(const struct source *c, const char *key, int vocab, int *out)
{
    json_t *v = json_member(c->text, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    *out = -1;
    if (!v) return OK;
    if (!json_is_integer(v)) return FAIL(ERR_FORMAT, "%s: %s is %s, expected a token id", c->origin, key, json_type_name(v));
    int64_t x = json_integer_value(v);
    if (x < -1 || x >= vocab)
        return FAIL(ERR_FORMAT, "%s: %s = %" PRId64 ", vocab_size = %d", c->origin, key, x, vocab);
    *out = (int)x;
    return OK;
}

static enum status read_attention(struct arch *a, const struct source *c)
{
    bool use = true, disabled[ARCH_MAX_LAYERS], any = false;
    json_t *freq = c->sparse ? json_member(c->sparse, "sparse_attention_freq") : NULL;
    json_t *types = json_member(c->text, "layer_types");
    json_t *values = c->sparse ? json_member(c->sparse, "sparse_disable_index_value") : NULL;
    if (c->sparse) TRY(json_want_bool(c->sparse, "use_sparse_attention", &use, c->origin));
    if (c->sparse) TRY(need_text(c->sparse, "sparse_score_type", "max", c->origin));
    TRY(read_lists(freq, "sparse_attention_config.sparse_attention_freq", types, "layer_types", "full_attention",
                   "minimax_m3_sparse", a->layers, a->sparse, c->origin));
    if (values)
        TRY(read_flags(values, "sparse_disable_index_value", NULL, NULL, a->layers, disabled, c->origin));
    for (int i = 0; i < a->layers; i++) {
        if (!use) a->sparse[i] = false;
        any |= a->sparse[i];
        if (values && a->sparse[i] && !disabled[i])
            return FAIL(ERR_FORMAT, "%s: layer %d: sparse_disable_index_value = 0 (an index-value path) is not supported",
                        c->origin, i);
    }
    if (!any) return OK;
    TRY(get_two(c, "sparse_num_index_heads", "index_n_heads", 1, -1, &a->index_heads));
    TRY(get_two(c, "sparse_index_dim", "index_head_dim", 2, -1, &a->index_dim));
    TRY(get_two(c, "sparse_block_size", "index_block_size", 1, -1, &a->block_size));
    TRY(get_two(c, "sparse_topk_blocks", "index_topk_blocks", 1, -1, &a->topk_blocks));
    TRY(get_two(c, "sparse_local_block", "index_local_blocks", 0, 1, &a->local_blocks));
    TRY(get_two(c, "sparse_init_block", "index_init_blocks", 0, 0, &a->init_blocks));
    return OK;
}

/* What this program does not compute must be said, not computed wrongly. */
static enum status refuse_other_models(const struct source *c, const json_t *root)
{
    const char *act = "swigluoai", *o = c->origin;
    bool tied = false;
    TRY(json_want_string(c->text, "hidden_act", &act, o));
    /* Flat re-saves may carry the library's unused default beside the clamped activation's two numbers. */
    bool unused = !c->sparse && strcmp(act, "silu") == 0 && json_member(c->text, "layer_types");
    if (strcmp(act, "swigluoai") && !unused)
        return FAIL(ERR_FORMAT, "%s: hidden_act = \"%.64s\" is not supported, only \"swigluoai\"", o, act);
    TRY(json_want_bool(root, "tie_word_embeddings", &tied, o));
    if (!tied) TRY(json_want_bool(c->text, "tie_word_embeddings", &tied, o));
    if (tied) return FAIL(ERR_FORMAT, "%s: tie_word_embeddings = true is not supported, only false", o);
    TRY(need_bool(c->text, "use_gemma_norm", true, o));
    TRY(need_bool(c->text, "use_qk_norm", true, o));
    TRY(need_text(c->text, "qk_norm_type", "per_head", o));
    TRY(need_bool(c->text, "attention_output_gate", false, o));
    TRY(need_bool(c->text, "attention_bias", false, o));
    TRY(need_text(c->text, "scoring_func", "sigmoid", o));
    TRY(need_bool(c->text, "use_routing_bias", true, o));
    TRY(need_bool(c->text, "norm_topk_prob", true, o));
    return OK;
}

static enum status arch_check(const struct arch *a, const char *o)
{
    bool any = false, moe = false;
    for (int i = 0; i < a->layers; i++) any |= a->sparse[i], moe |= a->moe[i];
    if (a->heads % a->kv_heads)
        return FAIL(ERR_FORMAT, "%s: num_key_value_heads = %d does not divide num_attention_heads = %d", o, a->kv_heads,
                    a->heads);
    if (a->rotary_dim < 2 || a->rotary_dim % 2 || a->rotary_dim > a->head_dim)
        return FAIL(ERR_FORMAT, "%s: rotary_dim = %d must be even and within head_dim = %d", o, a->rotary_dim, a->head_dim);
    if (moe && a->experts_per_token > a->experts)
        return FAIL(ERR_FORMAT, "%s: num_experts_per_tok = %d of num_local_experts = %d", o, a->experts_per_token,
                    a->experts);
    /* Rows of the projections and of the experts are counted in 64 bits; their sides must fit an int. */
    if ((int64_t)a->heads * a->head_dim > BIG)
        return FAIL(ERR_FORMAT, "%s: %d heads of %d channels are too many", o, a->heads, a->head_dim);
    if (!any) return OK;
    if (a->index_heads != a->kv_heads)
        return FAIL(ERR_FORMAT, "%s: sparse_num_index_heads = %d must equal num_key_value_heads = %d", o, a->index_heads,
                    a->kv_heads);
    if (a->rotary_dim > a->index_dim)
        return FAIL(ERR_FORMAT, "%s: rotary_dim = %d exceeds sparse_index_dim = %d", o, a->rotary_dim, a->index_dim);
    if ((int64_t)a->local_blocks + a->init_blocks > a->topk_blocks)
        return FAIL(ERR_FORMAT, "%s: %d local and %d initial blocks do not fit sparse_topk_blocks = %d", o, a->local_blocks,
                    a->init_blocks, a->topk_blocks);
    return OK;
}

static enum status parse(struct arch *a, const json_t *root, const char *origin)
{
    struct source c = {.origin = origin, .text = (json_t *)root};
    if (!json_is_object(root)) return FAIL(ERR_FORMAT, "%s: the file is %s, expected an object", origin, json_type_name(root));
    TRY(json_want_object(root, "text_config", &c.text, origin));
    TRY(json_want_object(c.text, "sparse_attention_config", &c.sparse, origin));
    TRY(refuse_other_models(&c, root));
    TRY(read_sizes(a, &c));
    TRY(read_numbers(a, &c));
    TRY(read_id(&c, "bos_token_id", a->vocab, &a->bos_id));
    TRY(read_id(&c, "eos_token_id", a->vocab, &a->eos_id));
    TRY(read_id(&c, "pad_token_id", a->vocab, &a->pad_id));
    TRY(read_lists(json_member(c.text, "moe_layer_freq"), "moe_layer_freq", json_member(c.text, "mlp_layer_types"),
                   "mlp_layer_types", "dense", "sparse", a->layers, a->moe, origin));
    TRY(read_attention(a, &c));
    TRY(arch_check(a, origin));
    return OK;
}

enum status arch_parse(struct arch *a, const char *text, size_t len, const char *origin)
{
    json_t *root = NULL;
    memset(a, 0, sizeof *a);
    TRY(json_read_text(&root, text, len, origin));
    enum status s = parse(a, root, origin);
    json_decref(root);
    return s;
}

enum status arch_load(struct arch *a, const char *dir)
{
    char path[PATH_MAX], *text;
    size_t len;
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", dir);
    TRY(json_read_bytes(&text, &len, path, CONFIG_MAX));
    enum status s = arch_parse(a, text, len, path);
    free(text);
    return s;
}
