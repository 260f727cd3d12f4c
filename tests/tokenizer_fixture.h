/* Small tokenizer.json texts for tests, and comparisons of ids. */
#ifndef TOKENIZER_FIXTURE_H
#define TOKENIZER_FIXTURE_H
#include "check.h"
#include "split.h"
#include "st_fixture.h"
#include "text.h"
#include "tokenizer.h"
#include <jansson.h>

#define SMALL_FRAME                                                                                                    \
    "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"post_processor\": null,"                     \
    " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["                                                \
    "   {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\"}, \"behavior\": \"Isolated\", \"invert\": false},"         \
    "   {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]},"       \
    " \"decoder\": {\"type\": \"ByteLevel\", \"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"dropout\": null,"  \
    " \"unk_token\": null, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {}, \"merges\": []}}"

/* Puts `value`, taken over, at a path of keys and array indices: "model.merges", "added_tokens.0.id". */
static inline void small_set(json_t *root, const char *path, json_t *value)
{
    char key[64];
    json_t *at = root;
    for (size_t n; n = strcspn(path, "."), path[n]; path += n + 1) {
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    }
    int bad = !value || (json_is_array(at) ? json_array_set_new(at, (size_t)atoi(path), value)
                                           : json_object_set_new(at, path, value));
    if (bad) fail_msg("cannot set %s", path);
}

/* A tokenizer of 256 bytes (byte b is token b), the merges "a b" of spelled tokens (the whole gets id 256, 257, ...)
 * and special tokens behind them; gpt4's pattern. Lists end with NULL. */
static inline json_t *small_json(const char *const *merges, const char *const *special)
{
    json_t *root = json_loads(SMALL_FRAME, 0, NULL), *vocab = json_object();
    json_t *list = json_array(), *added = json_array();
    for (int b = 0; b < 256; b++) {
        char s[5] = {0};
        unsigned code = b <= 0x20 ? 0x100 + b : b >= 0x7f && b <= 0xa0 ? 0x121 + b - 0x7f : b == 0xad ? 0x143 : b;
        utf8_put(code, s);
        json_object_set_new(vocab, s, json_integer(b));
    }
    for (; merges && *merges; merges++) {
        const char *space = strchr(*merges, ' ');
        char whole[64];
        snprintf(whole, sizeof whole, "%.*s%s", (int)(space - *merges), *merges, space + 1);
        json_array_append_new(list, json_string(*merges));
        json_object_set_new(vocab, whole, json_integer((json_int_t)json_object_size(vocab)));
    }
    for (int n = (int)json_object_size(vocab); special && *special; special++)
        json_array_append_new(added, json_pack("{si ss sb sb}", "id", n++, "content", *special, "special", 1,
                                               "normalized", 0));
    small_set(root, "pre_tokenizer.pretokenizers.0.pattern.Regex", json_string(SPLIT_GPT4));
    small_set(root, "model.vocab", vocab);
    small_set(root, "model.merges", list);
    small_set(root, "added_tokens", added);
    return root;
}

/* Reads `root` as a file; frees it. */
static inline enum status small_open(struct tokenizer **t, json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);
    enum status s = tokenizer_parse(t, text, strlen(text), "small.json");
    free(text);
    json_decref(root);
    return s;
}

/* "256 97 98" */
static inline void ids_print(char *out, size_t size, const struct ids *ids)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < ids->n && n < size - 16; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%d", i ? " " : "", ids->id[i]);
}

static inline void check_ids_are(const char *what, const struct ids *got, const char *want)
{
    char text[4096];
    ids_print(text, sizeof text, got);
    if (strcmp(text, want) != 0) fail_msg("%s: ids %s, expected %s", what, text, want);
}

/* The text encodes to these ids, and they decode to its bytes. */
static inline void check_encodes(const struct tokenizer *t, const char *text, size_t n, bool special, const char *want)
{
    struct ids ids = {0};
    struct text back = {0};
    check_ok(tokenizer_encode(t, text, n, special, &ids));
    if (want) check_ids_are(text, &ids, want);
    check_ok(tokenizer_decode_bytes(t, ids.id, ids.n, false, &back));
    if (back.n != n || (n && memcmp(back.data, text, n) != 0))
        fail_msg("%zu bytes \"%.80s\" came back as %zu bytes \"%.*s\"", n, text, back.n,
                 (int)(back.n < 80 ? back.n : 80), back.data ? back.data : "");
    ids_free(&ids);
    text_free(&back);
}

/* A random text of what patterns care about; a third of them has characters beyond ASCII. */
static inline size_t random_text(char *out, size_t size, uint64_t seed)
{
    static const char *const bits[] = {
        "a", "b", "z", "s", "t", "re", "ll", "d", "A", "B", "S", "LL", "RE", "1", "2", "345", " ", " ", "  ", "\t",
        "\n", "\r\n", "\n\n", "\v", "'", "'s", "'S", "'Ll", "'ve", "/", "//", ".", ",", "(", "-", "_", "\x01", "\x7f",
        "'\xc5\xbf", "\xc2\xa0", "\xe3\x80\x80", "\xe1\xa0\x8e", "\xe2\x80\xa8", "\xc2\x85", "\xe4\xbd\xa0",
        "\xc3\xa9", "\xc3\x89", "\xc7\x85", "\xca\xb0", "\xcc\x81", "\xf0\x9f\x98\x80", "\xd9\xa3", "\xc2\xbd",
        "\xe2\x82\xac"};
    enum { ASCII_BITS = 38 };
    size_t n = 0, count = 1 + check_hash(seed) % 24;
    size_t from = check_hash(seed + 7) % 3 ? ASCII_BITS : sizeof bits / sizeof *bits;
    for (size_t i = 0; i < count; i++) {
        const char *bit = bits[check_hash(seed * 64 + i) % from];
        if (n + strlen(bit) >= size) break;
        memcpy(out + n, bit, strlen(bit));
        n += strlen(bit);
    }
    out[n] = 0;
    return n;
}
#endif
