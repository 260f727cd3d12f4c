/* The destination's config.json and quantisation map. */
#include "convert_inner.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUANT_CONFIG_MAX = 64 << 20 };

static bool has_change(const struct convert *c)
{
    for (int i = 0; i < c->arch.layers; i++)
        if (c->new_layer[i] != i || c->made_dense[i]) return true;
    return !c->args->keep;
}

/* Entries of the chosen layers of a list that has one a layer; `dense` (or NULL) replaces those made dense. */
static enum status cut_list(const struct convert *c, json_t *object, const char *key, json_t *dense)
{
    json_t *old = object ? json_member(object, key) : NULL, *list = json_is_array(old) ? json_array() : NULL;
    for (int i = 0; list && i < c->arch.layers; i++) {
        json_t *v = json_array_get(old, (size_t)i);
        if (c->new_layer[i] >= 0 && v) json_array_append(list, c->made_dense[i] && dense ? dense : v);
    }
    json_decref(dense);
    if (list && json_object_set_new(object, key, list)) return FAIL(ERR_MEMORY, "no memory for config.json");
    return OK;
}

static enum status cut_layers(const struct convert *c, json_t *text)
{
    json_t *sparse = json_object_get(text, "sparse_attention_config");
    TRY(cut_list(c, text, "moe_layer_freq", NULL));
    TRY(cut_list(c, text, "mlp_layer_types", NULL));
    TRY(cut_list(c, text, "layer_types", json_string("full_attention")));
    TRY(cut_list(c, text, "attn_type_list", NULL));
    TRY(cut_list(c, sparse, "sparse_attention_freq", json_integer(0)));
    TRY(cut_list(c, sparse, "sparse_disable_index_value", json_integer(0)));
    if (json_object_set_new(text, "num_hidden_layers", json_integer(c->layers)))
        return FAIL(ERR_MEMORY, "no memory for config.json");
    return OK;
}

/* A module or module pattern with its layer renumbered; false when the layer is dropped. Regular expressions and patterns
 * that leave the layer open stay as they are. */
static bool renumber(const struct convert *c, const char *pattern, char out[CONVERT_NAME])
{
    const char *at = strstr(pattern, "layers.");
    snprintf(out, CONVERT_NAME, "%s", pattern);
    if (strncmp(pattern, "re:", 3) == 0 || release_is_passed(pattern) || !at || !isdigit((unsigned char)at[7])) return true;
    if (strncmp(pattern, "language_model.", 15) == 0 && !strpbrk(pattern, "*?[")) return convert_rename(c, pattern, out);
    char *end;
    long n = strtol(at + 7, &end, 10);
    if ((*end && *end != '.') || n >= c->arch.layers) return true;
    if (c->new_layer[n] < 0) return false;
    snprintf(out, CONVERT_NAME, "%.*s%d%s", (int)(at + 7 - pattern), pattern, c->new_layer[n], end);
    return true;
}

static enum status renumber_list(const struct convert *c, json_t *object, const char *key)
{
    json_t *old = json_member(object, key), *v, *list;
    char name[CONVERT_NAME];
    size_t i;
    if (!json_is_array(old)) return OK;
    list = json_array();
    json_array_foreach(old, i, v) {
        if (!json_is_string(v)) json_array_append(list, v);
        else if (renumber(c, json_string_value(v), name)) json_array_append_new(list, json_string(name));
    }
    if (json_object_set_new(object, key, list)) return FAIL(ERR_MEMORY, "no memory for the quantisation map");
    return OK;
}

static enum status renumber_keys(const struct convert *c, json_t *object, const char *key)
{
    json_t *old = json_member(object, key), *v, *map;
    char name[CONVERT_NAME];
    const char *module;
    if (!json_is_object(old)) return OK;
    map = json_object();
    json_object_foreach(old, module, v)
        if (renumber(c, module, name)) json_object_set(map, name, v);
    if (json_object_set_new(object, key, map)) return FAIL(ERR_MEMORY, "no memory for the quantisation map");
    return OK;
}

/* A quantisation section: of config.json, or what hf_quant_config.json calls "quantization". */
static enum status renumber_map(const struct convert *c, json_t *section)
{
    json_t *groups, *group;
    const char *name;
    if (!json_is_object(section)) return OK;
    TRY(renumber_list(c, section, "modules_to_not_convert"));
    TRY(renumber_list(c, section, "exclude_modules"));
    TRY(renumber_list(c, section, "ignore"));
    TRY(renumber_keys(c, section, "quantized_layers"));
    groups = json_member(section, "config_groups");
    if (json_is_object(groups)) json_object_foreach(groups, name, group)
        if (json_is_object(group)) TRY(renumber_list(c, group, "targets"));
    return OK;
}

static void set_dtype(json_t *object)
{
    static const char *const key[] = {"torch_dtype", "dtype"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(object, key[i])) json_object_set_new(object, key[i], json_string("bfloat16"));
}

static enum status edit_config(const struct convert *c, json_t *config)
{
    json_t *text = json_member(config, "text_config");
    if (!text) text = config;
    TRY(cut_layers(c, text));
    if (c->args->keep) {
        TRY(renumber_map(c, json_object_get(config, "quantization_config")));
        if (text != config) TRY(renumber_map(c, json_object_get(text, "quantization_config")));
        return OK;
    }
    json_object_del(config, "quantization_config");
    json_object_del(text, "quantization_config");
    set_dtype(config);
    set_dtype(text);
    return OK;
}

static enum status write_map(const struct convert *c, const char *from, const char *to)
{
    json_t *map;
    TRY(json_read_file(&map, from, QUANT_CONFIG_MAX));
    enum status s = renumber_map(c, json_object_get(map, "quantization"));
    if (!s) s = json_write_file(map, to);
    json_decref(map);
    return s;
}

enum status convert_write_config(const struct convert *c)
{
    char from[PATH_MAX], to[PATH_MAX], map_from[PATH_MAX], map_to[PATH_MAX];
    if (snprintf(from, sizeof from, "%s/config.json", c->args->src) >= (int)sizeof from ||
        snprintf(to, sizeof to, "%s/config.json", c->tmp) >= (int)sizeof to ||
        snprintf(map_from, sizeof map_from, "%s/hf_quant_config.json", c->args->src) >= (int)sizeof map_from ||
        snprintf(map_to, sizeof map_to, "%s/hf_quant_config.json", c->tmp) >= (int)sizeof map_to)
        return FAIL(ERR_IO, "%s: the path is too long", c->args->src);
    bool map = c->args->keep && !release_file_absent(map_from);
    if (!has_change(c)) {
        TRY(release_copy_file(from, to));
        if (map) TRY(release_copy_file(map_from, map_to));
        return OK;
    }
    json_t *config = json_deep_copy(c->r->config);
    enum status s = config ? edit_config(c, config) : FAIL(ERR_MEMORY, "%s: no memory for config.json", c->args->src);
    if (!s) s = json_write_file(config, to);
    json_decref(config);
    if (!s && map) s = write_map(c, map_from, map_to);
    return s;
}
