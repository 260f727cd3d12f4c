#include "quant.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUANT_CONFIG_MAX = 64 << 20, REGEX_STEPS = 100000 };

struct pattern {
    char *text;
    bool shell;       /* holds *, ? or [ */
    pcre2_code *re;   /* of "re:...", else NULL */
};

struct quant_patterns {
    size_t count;
    pcre2_match_data *match;
    pcre2_match_context *limits; /* a hostile expression must end, not hang */
    struct pattern item[];
};

static enum status compile(struct pattern *p, const json_t *v, const char *origin)
{
    if (!json_is_string(v)) return FAIL(ERR_FORMAT, "%s: a module pattern is %s", origin, json_type_name(v));
    p->text = strdup(json_string_value(v));
    if (!p->text) return FAIL(ERR_MEMORY, "%s: no memory for a pattern", origin);
    p->shell = strpbrk(p->text, "*?[") != NULL;
    if (strncmp(p->text, "re:", 3)) return OK;
    int code;
    PCRE2_SIZE at;
    p->re = pcre2_compile((PCRE2_SPTR)p->text + 3, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
    if (!p->re) return FAIL(ERR_FORMAT, "%s: pattern \"%.64s\": error %d at %zu", origin, p->text, code, (size_t)at);
    return OK;
}

enum status quant_patterns_create(struct quant_patterns **out, const json_t *list, const char *origin)
{
    *out = NULL;
    if (!json_is_array(list)) return FAIL(ERR_FORMAT, "%s: a list of modules is %s", origin, json_type_name(list));
    size_t n = json_array_size(list);
    struct quant_patterns *p = calloc(1, sizeof *p + n * sizeof *p->item);
    if (!p) return FAIL(ERR_MEMORY, "%s: no memory for %zu patterns", origin, n);
    enum status s = OK;
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->match || !p->limits) s = FAIL(ERR_MEMORY, "%s: no memory for patterns", origin);
    else pcre2_set_match_limit(p->limits, REGEX_STEPS);
    for (; p->count < n && !s; p->count++) s = compile(&p->item[p->count], json_array_get(list, p->count), origin);
    if (s) quant_patterns_destroy(&p);
    *out = p;
    return s;
}

void quant_patterns_destroy(struct quant_patterns **p)
{
    if (!*p) return;
    for (size_t i = 0; i < (*p)->count; i++) {
        free((*p)->item[i].text);
        pcre2_code_free((*p)->item[i].re);
    }
    pcre2_match_data_free((*p)->match);
    pcre2_match_context_free((*p)->limits);
    free(*p);
    *p = NULL;
}

/* Whole components: the text is at the name's start or behind a dot, and ends at a dot or at the name's end. */
static bool component_match(const char *text, const char *module)
{
    size_t n = strlen(text);
    if (!n) return false;
    for (const char *at = module; (at = strstr(at, text)); at++)
        if ((at == module || at[-1] == '.') && (at[n] == 0 || at[n] == '.')) return true;
    return false;
}

static bool shell_match(const char *text, const char *module)
{
    for (const char *at = module; at; at = strchr(at, '.'), at = at ? at + 1 : NULL)
        if (fnmatch(text, at, 0) == 0) return true;
    return false;
}

bool quant_patterns_match(const struct quant_patterns *p, const char *module)
{
    for (size_t i = 0; p && i < p->count; i++) {
        const struct pattern *x = &p->item[i];
        if (x->re ? pcre2_match(x->re, (PCRE2_SPTR)module, PCRE2_ZERO_TERMINATED, 0, 0, p->match, p->limits) >= 0
                  : x->shell ? shell_match(x->text, module) : component_match(x->text, module))
            return true;
    }
    return false;
}

/* ModelOpt's names of algorithms. */
static enum status algorithm(const char *name, enum quant *q, const char *what, const char *origin)
{
    if (strcmp(name, "MXFP8") == 0) *q = QUANT_MXFP8;
    else if (strcmp(name, "NVFP4") == 0) *q = QUANT_NVFP4;
    else return FAIL(ERR_FORMAT, "%s: %s: quant_algo \"%.64s\" is not supported, only MXFP8 and NVFP4", origin, what, name);
    return OK;
}

static enum status check_group(const json_t *o, enum quant q, const char *what, const char *origin)
{
    int64_t group = quant_block(q);
    TRY(json_want_int(o, "group_size", 0, 1 << 20, &group, origin));
    if (group != quant_block(q))
        return FAIL(ERR_FORMAT, "%s: %s: %s with group_size %lld, only %d is supported", origin, what, quant_name(q),
                    (long long)group, quant_block(q));
    return OK;
}

static enum status block_size(const json_t *o, const char *method, const char *origin)
{
    const json_t *block = json_member(o, "weight_block_size");
    if (!block) return OK;
    const json_t *a = json_array_get(block, 0), *b = json_array_get(block, 1);
    if (json_array_size(block) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return FAIL(ERR_FORMAT, "%s: weight_block_size is not a pair of integers", origin);
    long long rows = json_integer_value(a), cols = json_integer_value(b);
    if (rows == 128 && cols == 128)
        return FAIL(ERR_FORMAT, "%s: quant_method \"%.32s\" with weight_block_size [128, 128] is DeepSeek-style fp8, which "
                    "is not supported", origin, method);
    if (rows != 1 || cols != MXFP8_BLOCK)
        return FAIL(ERR_FORMAT, "%s: weight_block_size [%lld, %lld] is not supported, only [1, %d]", origin, rows, cols,
                    MXFP8_BLOCK);
    return OK;
}

static enum status load_mxfp8(struct quant_map *m, const json_t *o)
{
    m->all = QUANT_MXFP8;
    const json_t *excluded = json_member(o, "modules_to_not_convert");
    TRY(block_size(o, "mxfp8", m->origin));
    if (excluded) TRY(quant_patterns_create(&m->excluded, excluded, m->origin));
    return OK;
}

/* The weights of one compressed-tensors group must be 4-bit floats in groups of 16. */
static enum status check_ct_group(const json_t *group, const char *name, const char *origin)
{
    json_t *w = NULL;
    int64_t bits = 0;
    const char *type = "";
    TRY(json_need_object(group, "weights", &w, origin));
    TRY(json_need_int(w, "num_bits", 1, 64, &bits, origin));
    TRY(json_need_string(w, "type", &type, origin));
    if (bits != 4 || strcmp(type, "float"))
        return FAIL(ERR_FORMAT, "%s: config_groups.%s: weights of %lld bits, type \"%.32s\"; nvfp4-pack-quantized is 4, "
                    "\"float\"", origin, name, (long long)bits, type);
    TRY(check_group(w, QUANT_NVFP4_CT, name, origin));
    return OK;
}

static enum status load_compressed(struct quant_map *m, const json_t *o)
{
    const char *format = "", *name;
    json_t *groups = NULL, *group, *all = json_array();
    const json_t *ignore = json_member(o, "ignore");
    enum status s = OK;
    TRY_GOTO(s, out, json_need_string(o, "format", &format, m->origin));
    if (strcmp(format, "nvfp4-pack-quantized")) {
        s = FAIL(ERR_FORMAT, "%s: compressed-tensors format \"%.64s\" is not supported, only \"nvfp4-pack-quantized\"",
                 m->origin, format);
        goto out;
    }
    TRY_GOTO(s, out, json_need_object(o, "config_groups", &groups, m->origin));
    json_object_foreach(groups, name, group) {
        json_t *targets = NULL, *v;
        size_t i;
        TRY_GOTO(s, out, check_ct_group(group, name, m->origin));
        TRY_GOTO(s, out, json_want_array(group, "targets", &targets, m->origin));
        json_array_foreach(targets, i, v) {
            if (json_is_string(v) && strcmp(json_string_value(v), "Linear") == 0) m->all = QUANT_NVFP4_CT;
            else json_array_append(all, v);
        }
    }
    TRY_GOTO(s, out, quant_patterns_create(&m->targets, all, m->origin));
    if (ignore) TRY_GOTO(s, out, quant_patterns_create(&m->excluded, ignore, m->origin));
out:
    json_decref(all);
    return s;
}

static enum status load_modelopt(struct quant_map *m, const json_t *o, const char *algo)
{
    const json_t *excluded = json_member(o, "exclude_modules");
    if (!excluded) excluded = json_member(o, "ignore");
    if (excluded) TRY(quant_patterns_create(&m->excluded, excluded, m->origin));
    if (strcmp(algo, "MIXED_PRECISION")) {
        TRY(algorithm(algo, &m->all, "quantization", m->origin));
        TRY(check_group(o, m->all, "quantization", m->origin));
        return OK;
    }
    json_t *layers = NULL;
    TRY(json_need_object(o, "quantized_layers", &layers, m->origin));
    m->layers = json_incref(layers);
    return OK;
}

/* ModelOpt writes its map into hf_quant_config.json, and newer releases (also) into config.json. */
static enum status load_modelopt_files(struct quant_map *m, const json_t *section, json_t *hf, const char *hf_path)
{
    const char *algo = NULL, *hf_algo = NULL;
    json_t *inner = NULL;
    if (section) TRY(json_want_string(section, "quant_algo", &algo, m->origin));
    if (hf) {
        TRY(json_need_object(hf, "quantization", &inner, hf_path));
        TRY(json_need_string(inner, "quant_algo", &hf_algo, hf_path));
    }
    if (algo && hf_algo && strcmp(algo, hf_algo))
        return FAIL(ERR_FORMAT, "%s: quant_algo \"%.64s\" but %s says \"%.64s\"", m->origin, algo, hf_path, hf_algo);
    if (!algo && !hf_algo)
        return FAIL(ERR_FORMAT, "%s: quant_method modelopt without quant_algo, and no hf_quant_config.json", m->origin);
    if (!inner) return load_modelopt(m, section, algo);
    free(m->origin);
    m->origin = strdup(hf_path);
    if (!m->origin) return FAIL(ERR_MEMORY, "%s: no memory for a path", hf_path);
    return load_modelopt(m, inner, hf_algo);
}

static enum status load(struct quant_map *m, const json_t *section, json_t *hf, const char *hf_path)
{
    const char *method = "modelopt";
    if (section) TRY(json_need_string(section, "quant_method", &method, m->origin));
    if (section) TRY(block_size(section, method, m->origin));
    if (strncmp(method, "modelopt", 8) == 0) return load_modelopt_files(m, section, hf, hf_path);
    if (hf)
        return FAIL(ERR_FORMAT, "%s: quant_method \"%.32s\" beside %s of ModelOpt: two maps", m->origin, method, hf_path);
    if (strcmp(method, "mxfp8") == 0) return load_mxfp8(m, section);
    if (strcmp(method, "compressed-tensors") == 0) return load_compressed(m, section);
    return FAIL(ERR_FORMAT, "%s: quant_method \"%.64s\" is not supported, only mxfp8, modelopt and compressed-tensors",
                m->origin, method);
}

enum status quant_map_load(struct quant_map *m, const json_t *config, const char *dir)
{
    char path[PATH_MAX], hf_path[PATH_MAX];
    json_t *section = NULL, *text = NULL, *hf = NULL;
    enum status s = OK;
    *m = (struct quant_map){0};
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path ||
        snprintf(hf_path, sizeof hf_path, "%s/hf_quant_config.json", dir) >= (int)sizeof hf_path)
        return FAIL(ERR_IO, "%s: the path is too long", dir);
    TRY(json_want_object(config, "quantization_config", &section, path));
    TRY(json_want_object(config, "text_config", &text, path));
    if (!section && text) TRY(json_want_object(text, "quantization_config", &section, path));
    if (access(hf_path, F_OK) == 0) TRY(json_read_file(&hf, hf_path, QUANT_CONFIG_MAX));
    m->origin = strdup(path);
    if (!m->origin) s = FAIL(ERR_MEMORY, "%s: no memory for a path", path);
    else if (section || hf) s = load(m, section, hf, hf_path);
    json_decref(hf);
    if (s) quant_map_destroy(m);
    return s;
}

void quant_map_destroy(struct quant_map *m)
{
    quant_patterns_destroy(&m->excluded);
    quant_patterns_destroy(&m->targets);
    json_decref(m->layers);
    free(m->origin);
    *m = (struct quant_map){0};
}

/* The entry of `module` in quantized_layers, or of the nearest module that holds it. */
static const json_t *find_layer(const json_t *layers, const char *module)
{
    char name[1024];
    if (snprintf(name, sizeof name, "%s", module) >= (int)sizeof name) return NULL;
    for (;;) {
        const json_t *v = json_object_get(layers, name);
        char *dot = strrchr(name, '.');
        if (v || !dot) return v;
        *dot = 0;
    }
}

enum status quant_map_find(const struct quant_map *m, const char *module, enum quant *q, enum quant_rule *rule)
{
    *q = QUANT_NONE;
    *rule = RULE_PLAIN;
    if (m->layers) {
        const json_t *v = find_layer(m->layers, module);
        const char *algo = json_is_string(v) ? json_string_value(v) : NULL;
        if (!v) return OK;
        if (!algo) TRY(json_need_string(v, "quant_algo", &algo, m->origin));
        TRY(algorithm(algo, q, module, m->origin));
        if (json_is_object(v)) TRY(check_group(v, *q, module, m->origin));
        *rule = RULE_NAMED;
        return OK;
    }
    if (quant_patterns_match(m->excluded, module)) return OK;
    if (quant_patterns_match(m->targets, module)) *q = QUANT_NVFP4_CT, *rule = RULE_NAMED;
    else if (m->all != QUANT_NONE) *q = m->all, *rule = RULE_DEFAULT;
    return OK;
}
