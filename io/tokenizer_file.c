/* tokenizer.json -> struct tokenizer. Everything that the encoder does not do is refused here. */
#include "json.h"
#include "tokenizer_inner.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20, MAX_TOKEN_BYTES = 1 << 20 };

/* A file being read. */
struct file {
    struct tokenizer *t;
    const json_t *root;
    const char *origin;
};

/* ---- components ---- */

/* The `type` of a component, for messages; "null" when it is absent. */
static const char *type_of(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type ? type : json_is_null(component) || !component ? "null" : "(without a type)";
}

static bool is_type(const json_t *component, const char *type) { return strcmp(type_of(component), type) == 0; }

static enum status refuse(const struct file *f, const char *what, const json_t *component, const char *instead)
{
    return FAIL(ERR_FORMAT, "%s: %s %s is not supported, only %s", f->origin, what, type_of(component), instead);
}

/* An option that must be absent, null or false. */
static enum status must_be_off(const struct file *f, const json_t *object, const char *what, const char *key)
{
    bool on = false;
    TRY(json_want_bool(object, key, &on, f->origin));
    return on ? FAIL(ERR_FORMAT, "%s: %s with %s is not supported", f->origin, what, key) : OK;
}

static enum status add_split(struct file *f, const char *pattern, bool literal)
{
    struct tokenizer *t = f->t;
    if (t->n_split == TOKENIZER_MAX_SPLITS)
        return FAIL(ERR_FORMAT, "%s: pre_tokenizer: more than %d patterns", f->origin, TOKENIZER_MAX_SPLITS);
    enum status s = split_init(&t->split[t->n_split], pattern, literal);
    if (s) return status_prefix(s, "%s: pre_tokenizer: pattern", f->origin);
    t->n_split++;
    return OK;
}

static enum status read_split(struct file *f, const json_t *split)
{
    const char *behavior = NULL, *regex = NULL, *plain = NULL;
    json_t *pattern = NULL;
    bool invert = false; /* swaps matches and gaps, which are isolated alike */
    TRY(json_need_string(split, "behavior", &behavior, f->origin));
    if (strcmp(behavior, "Isolated") != 0)
        return FAIL(ERR_FORMAT, "%s: Split with behavior %s is not supported, only Isolated", f->origin, behavior);
    TRY(json_want_bool(split, "invert", &invert, f->origin));
    TRY(json_need_object(split, "pattern", &pattern, f->origin));
    TRY(json_want_string(pattern, "Regex", &regex, f->origin));
    TRY(json_want_string(pattern, "String", &plain, f->origin));
    if (!regex == !plain) return FAIL(ERR_FORMAT, "%s: Split's pattern is neither Regex nor String", f->origin);
    return add_split(f, regex ? regex : plain, plain != NULL);
}

static enum status read_byte_level(struct file *f, const json_t *level)
{
    bool use_regex = true;
    TRY(must_be_off(f, level, "ByteLevel", "add_prefix_space"));
    TRY(json_want_bool(level, "use_regex", &use_regex, f->origin));
    return use_regex ? add_split(f, SPLIT_GPT2, false) : OK;
}

static enum status read_pre_tokenizer(struct file *f)
{
    const json_t *pre = json_object_get(f->root, "pre_tokenizer");
    if (is_type(pre, "ByteLevel")) return read_byte_level(f, pre);
    if (!is_type(pre, "Sequence"))
        return refuse(f, "pre_tokenizer", pre, "ByteLevel and a Sequence of Split and ByteLevel");
    json_t *list = NULL;
    TRY(json_want_array(pre, "pretokenizers", &list, f->origin));
    size_t n = json_array_size(list);
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!is_type(item, "Split")) return refuse(f, "in a Sequence, pre_tokenizer", item, "Split, then ByteLevel");
        TRY(read_split(f, item));
    }
    const json_t *last = n ? json_array_get(list, n - 1) : NULL;
    if (!is_type(last, "ByteLevel")) return refuse(f, "a Sequence that ends with", last, "with ByteLevel");
    return read_byte_level(f, last);
}

static enum status check_components(const struct file *f)
{
    static const char *const unused[] = {"normalizer", "truncation", "padding"};
    for (int i = 0; i < 3; i++) {
        const json_t *c = json_member(f->root, unused[i]);
        if (c) return refuse(f, unused[i], c, "null");
    }
    /* ByteLevel as a post-processor trims offsets, which nobody asks for here. */
    const json_t *post = json_member(f->root, "post_processor"), *decoder = json_member(f->root, "decoder");
    if (post && !is_type(post, "ByteLevel")) return refuse(f, "post_processor", post, "ByteLevel and null");
    if (!is_type(decoder, "ByteLevel")) return refuse(f, "decoder", decoder, "ByteLevel");
    return OK;
}

static enum status check_model(struct file *f, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (json_object_get(model, "type") && !is_type(model, "BPE")) return refuse(f, "model", model, "BPE");
    double dropout = 0;
    TRY(json_want_number(model, "dropout", 0, 1, &dropout, f->origin));
    if (dropout != 0) return FAIL(ERR_FORMAT, "%s: model BPE with dropout %g is not supported", f->origin, dropout);
    for (int i = 0; i < 2; i++) {
        const char *affix = "";
        TRY(json_want_string(model, affixes[i], &affix, f->origin));
        if (*affix)
            return FAIL(ERR_FORMAT, "%s: model BPE with %s \"%s\" is not supported", f->origin, affixes[i], affix);
    }
    TRY(must_be_off(f, model, "model BPE", "byte_fallback"));
    return json_want_bool(model, "ignore_merges", &f->t->ignore_merges, f->origin);
}

/* ---- tokens ---- */

static enum status check_id(const struct file *f, const json_t *id, const char *token)
{
    int64_t v = json_integer_value(id);
    if (!json_is_integer(id))
        return FAIL(ERR_FORMAT, "%s: the id of token \"%s\" is %s", f->origin, token, json_type_name(id));
    if (v < 0 || v > TOKENIZER_MAX_ID)
        return FAIL(ERR_FORMAT, "%s: the id of token \"%s\" is %lld, outside 0 .. %d", f->origin, token, (long long)v,
                    TOKENIZER_MAX_ID);
    return OK;
}

static enum status set_token(struct file *f, int32_t id, const char *name, enum token_kind kind, const char *bytes,
                             size_t n)
{
    struct tokenizer *t = f->t;
    struct token *k = &t->token[id];
    if (k->kind != TOKEN_NONE)
        return FAIL(ERR_FORMAT, "%s: tokens \"%.*s\" and \"%s\" have the same id %d", f->origin, (int)k->len,
                    t->bytes.data + k->at, name, id);
    if (n > MAX_TOKEN_BYTES || t->bytes.n > UINT32_MAX - n)
        return FAIL(ERR_FORMAT, "%s: token %d has %zu bytes, the tokens before it %zu", f->origin, id, n, t->bytes.n);
    *k = (struct token){.at = (uint32_t)t->bytes.n, .len = (uint32_t)n, .kind = (uint8_t)kind};
    return text_push(&t->bytes, bytes, n);
}

static enum status add_word(struct file *f, const char *name, int32_t id)
{
    struct tokenizer *t = f->t;
    size_t len = strlen(name), n = 0;
    char *bytes = malloc(len + 1);
    if (!bytes) return FAIL(ERR_MEMORY, "%s: no memory for a token of %zu bytes", f->origin, len);
    enum token_kind kind = bytelevel_decode(name, bytes, &n) ? TOKEN_BYTES : TOKEN_RAW;
    if (kind == TOKEN_RAW) memcpy(bytes, name, n = len);
    enum status s = set_token(f, id, name, kind, bytes, n);
    if (!s) t->table[tokenizer_slot(t, kind, bytes, n)] = id; /* free: no two spellings are alike */
    free(bytes);
    return s;
}

/* The ids' range decides the tables' sizes before anything is put into them. */
static enum status size_tables(struct file *f, json_t *vocab, const json_t *added)
{
    const char *name;
    json_t *id;
    int64_t top = -1;
    json_object_foreach(vocab, name, id) {
        TRY(check_id(f, id, name));
        if (json_integer_value(id) > top) top = json_integer_value(id);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *item = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(item, "content"));
        TRY(check_id(f, json_object_get(item, "id"), content ? content : "(without content)"));
        if (json_integer_value(json_object_get(item, "id")) > top)
            top = json_integer_value(json_object_get(item, "id"));
    }
    struct tokenizer *t = f->t;
    size_t slots = 16;
    while (slots < 2 * json_object_size(vocab)) slots *= 2;
    t->n_token = (int32_t)(top + 1);
    t->token = calloc((size_t)top + 2, sizeof *t->token);
    t->table = malloc(slots * sizeof *t->table);
    if (!t->token || !t->table) return FAIL(ERR_MEMORY, "%s: no memory for %d tokens", f->origin, t->n_token);
    for (size_t i = 0; i < slots; i++) t->table[i] = -1;
    t->table_mask = slots - 1;
    return OK;
}

static enum status read_vocab(struct file *f, json_t *vocab)
{
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id) TRY(add_word(f, name, (int32_t)json_integer_value(id)));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        f->t->bpe.byte_id[b] = tokenizer_find(f->t, TOKEN_BYTES, &byte, 1);
        if (f->t->bpe.byte_id[b] < 0)
            return FAIL(ERR_FORMAT, "%s: the vocabulary has no token for byte 0x%02x", f->origin, (unsigned)b);
    }
    return OK;
}

static enum status read_added_token(struct file *f, const json_t *item, size_t i)
{
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    struct tokenizer *t = f->t;
    const char *content = NULL;
    bool special = false, normalized = false;
    if (!json_is_object(item))
        return FAIL(ERR_FORMAT, "%s: added_tokens[%zu] is %s", f->origin, i, json_type_name(item));
    TRY(json_need_string(item, "content", &content, f->origin));
    if (!*content) return FAIL(ERR_FORMAT, "%s: added_tokens[%zu] is empty", f->origin, i);
    for (int k = 0; k < 3; k++) TRY(must_be_off(f, item, content, unsupported[k]));
    TRY(json_want_bool(item, "special", &special, f->origin));
    TRY(json_want_bool(item, "normalized", &normalized, f->origin));
    int32_t id = (int32_t)json_integer_value(json_object_get(item, "id")), known = tokenizer_id(t, content);
    if (known >= 0 && known != id)
        return FAIL(ERR_FORMAT, "%s: token \"%s\" has the ids %d and %d", f->origin, content, known, id);
    int32_t same = -1;
    for (int k = 0; k < 2; k++)
        if (trie_longest(&t->added[k], content, strlen(content), &same) == strlen(content))
            return FAIL(ERR_FORMAT, "%s: added token \"%s\" stands there twice", f->origin, content);
    if (known < 0) TRY(set_token(f, id, content, TOKEN_ADDED, content, strlen(content)));
    t->token[id].special = special;
    return trie_add(&t->added[normalized], content, strlen(content), id);
}

/* ---- merges ---- */

/* The two halves of merge i, as spelled in the file: an array of two strings, or one string with one space. `buffer`
 * holds what has to be copied; it is freed by the caller. */
static bool merge_halves(const json_t *item, const char **left, const char **right, char **buffer)
{
    if (json_is_array(item)) {
        *left = json_string_value(json_array_get(item, 0));
        *right = json_string_value(json_array_get(item, 1));
        return json_array_size(item) == 2 && *left && *right;
    }
    if (!json_is_string(item)) return false;
    *buffer = strdup(json_string_value(item));
    char *space = *buffer ? strchr(*buffer, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return false;
    *space = 0;
    *left = *buffer;
    *right = space + 1;
    return true;
}

/* ids[0], ids[1]: the halves; ids[2]: the whole. `bytes` has room for both spellings. */
static enum status merge_ids(const struct file *f, size_t i, const char *left, const char *right, char *bytes,
                             int32_t ids[3])
{
    size_t a = 0, b = 0;
    bool mapped = bytelevel_decode(left, bytes, &a) && bytelevel_decode(right, bytes + a, &b);
    ids[0] = mapped ? tokenizer_find(f->t, TOKEN_BYTES, bytes, a) : -1;
    ids[1] = mapped ? tokenizer_find(f->t, TOKEN_BYTES, bytes + a, b) : -1;
    ids[2] = mapped ? tokenizer_find(f->t, TOKEN_BYTES, bytes, a + b) : -1;
    if (ids[0] < 0 || ids[1] < 0)
        return FAIL(ERR_FORMAT, "%s: merges[%zu]: \"%s\" is not in the vocabulary", f->origin, i,
                    ids[0] < 0 ? left : right);
    if (ids[2] < 0)
        return FAIL(ERR_FORMAT, "%s: merges[%zu]: \"%s%s\" is not in the vocabulary", f->origin, i, left, right);
    return OK;
}

static enum status add_merge(struct file *f, const json_t *item, size_t i)
{
    const char *left = NULL, *right = NULL;
    char *buffer = NULL, *bytes = NULL;
    int32_t ids[3] = {-1, -1, -1};
    enum status s = OK;
    if (!merge_halves(item, &left, &right, &buffer))
        s = FAIL(ERR_FORMAT, "%s: merges[%zu] is no pair of tokens", f->origin, i);
    else if (!(bytes = malloc(strlen(left) + strlen(right) + 1)))
        s = FAIL(ERR_MEMORY, "%s: no memory for merges[%zu]", f->origin, i);
    else s = merge_ids(f, i, left, right, bytes, ids);
    if (!s && !bpe_add(&f->t->bpe, ids[0], ids[1], (uint32_t)i, ids[2]))
        s = FAIL(ERR_FORMAT, "%s: merges[%zu]: \"%s\" and \"%s\" are merged twice", f->origin, i, left, right);
    free(bytes);
    free(buffer);
    return s;
}

static enum status read_merges(struct file *f, const json_t *merges)
{
    size_t n = json_array_size(merges);
    TRY(bpe_init(&f->t->bpe, n));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(merges, i);
        const char *text = json_string_value(item);
        if (i == 0 && text && strncmp(text, "#version", 8) == 0) continue; /* the first line of a merges.txt */
        TRY(add_merge(f, item, i));
    }
    return OK;
}

/* ---- the file ---- */

static enum status read_tokens(struct file *f)
{
    json_t *model = NULL, *vocab = NULL, *merges = NULL, *added = NULL;
    TRY(json_need_object(f->root, "model", &model, f->origin));
    TRY(check_model(f, model));
    TRY(json_need_object(model, "vocab", &vocab, f->origin));
    TRY(json_want_array(model, "merges", &merges, f->origin));
    if (!merges) return FAIL(ERR_FORMAT, "%s: key \"merges\" is missing", f->origin);
    TRY(json_want_array(f->root, "added_tokens", &added, f->origin));
    TRY(size_tables(f, vocab, added));
    TRY(read_vocab(f, vocab));
    TRY(read_merges(f, merges));
    for (size_t i = 0; i < json_array_size(added); i++) TRY(read_added_token(f, json_array_get(added, i), i));
    return OK;
}

static enum status read_root(struct tokenizer *t, const json_t *root, const char *origin)
{
    struct file f = {t, root, origin};
    if (!json_is_object(root)) return FAIL(ERR_FORMAT, "%s: %s, expected an object", origin, json_type_name(root));
    t->origin = strdup(origin);
    t->pool = calloc(1, sizeof *t->pool);
    if (!t->origin || !t->pool) return FAIL(ERR_MEMORY, "%s: no memory for a tokenizer", origin);
    pthread_mutex_init(&t->pool->lock, NULL);
    TRY(check_components(&f));
    TRY(read_pre_tokenizer(&f));
    return read_tokens(&f);
}

static enum status build(struct tokenizer **out, const json_t *root, const char *origin)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return FAIL(ERR_MEMORY, "%s: no memory for a tokenizer", origin);
    enum status s = read_root(t, root, origin);
    if (s) tokenizer_close(&t);
    *out = t;
    return s;
}

enum status tokenizer_parse(struct tokenizer **t, const char *json, size_t len, const char *origin)
{
    json_t *root;
    *t = NULL;
    TRY(json_read_text(&root, json, len, origin));
    enum status s = build(t, root, origin);
    json_decref(root);
    return s;
}

enum status tokenizer_open(struct tokenizer **t, const char *path)
{
    char *json;
    size_t len;
    *t = NULL;
    TRY(json_read_bytes(&json, &len, path, MAX_FILE));
    enum status s = tokenizer_parse(t, json, len, path);
    free(json);
    return s;
}
