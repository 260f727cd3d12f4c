/* Tokenizer files that must be refused, each with file and reason, and mutated ones. */
#include "tokenizer_fixture.h"

static const char *const WORDS[] = {"l o", "lo w", "e r", "n e", "ne w", "\xc4\xa0 l", "\xc4\xa0l o", NULL};
static const char *const MARKS[] = {"<a>", "<a><b>", "[e~[", NULL};

static void what_is_not_supported_is_refused_by_its_name(void **state)
{
    (void)state;
#define SEQ "pre_tokenizer.pretokenizers."
    static const struct { const char *path, *json, *message; } cases[] = {
        {"normalizer", "{\"type\": \"NFC\"}", "normalizer NFC is not supported"},
        {"truncation", "{\"max_length\": 5}", "truncation"},
        {"padding", "{}", "padding"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "post_processor TemplateProcessing"},
        {"decoder", "null", "decoder null"},
        {"decoder", "{\"type\": \"WordPiece\"}", "decoder WordPiece"},
        {"pre_tokenizer", "null", "pre_tokenizer null"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer Metaspace"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", "add_prefix_space"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "ends with null"},
        {SEQ "0", "{\"type\": \"Digits\"}", "pre_tokenizer Digits"},
        {SEQ "1", "{\"type\": \"Whitespace\"}", "ends with Whitespace"},
        {SEQ "0.behavior", "\"Removed\"", "behavior Removed"},
        {SEQ "0.behavior", "3", "\"behavior\" is an integer"},
        {SEQ "0.pattern", "{}", "neither Regex nor String"},
        {SEQ "0.pattern.Regex", "\"(\"", "pattern: byte 1: missing closing parenthesis"},
        {SEQ "0.pattern.Regex", "\"\"", "0 bytes"},
        {SEQ "0.pattern.Regex", "\"[a&&b]\"", "set intersection"},
        {SEQ "0.pattern.Regex", "\"[a[bc]]\"", "a set inside a set"},
        {SEQ "0.pattern.Regex", "\"\\\\h\"", "hexadecimal"},
        {"model.type", "\"Unigram\"", "model Unigram"},
        {"model.dropout", "0.1", "dropout 0.1"},
        {"model.byte_fallback", "true", "byte_fallback"},
        {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix \"##\""},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"added_tokens.0.lstrip", "true", "<a> with lstrip"},
        {"added_tokens.0.rstrip", "true", "rstrip"},
        {"added_tokens.0.single_word", "true", "single_word"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = small_json(WORDS, MARKS);
        struct tokenizer *t;
        small_set(root, cases[i].path, json_loads(cases[i].json, JSON_DECODE_ANY, NULL));
        check_fails(small_open(&t, root), ERR_FORMAT, cases[i].message);
        if (strncmp(status_message(), "small.json: ", 12)) fail_msg("no file name: %s", status_message());
        assert_null(t);
    }
}

static void broken_vocabularies_and_merges_are_refused(void **state)
{
    (void)state;
    static const struct { const char *path, *json, *message; } cases[] = {
        {"model", "[]", "\"model\" is an array"},
        {"model.vocab", "null", "\"vocab\" is missing"},
        {"model.vocab", "{}", "no token for byte 0x00"},
        {"model.vocab.low", "-1", "id of token \"low\" is -1"},
        {"model.vocab.low", "9999999999", "outside 0 .. "},
        {"model.vocab.low", "1.5", "id of token \"low\" is a real number"},
        {"model.vocab.low", "256", "tokens \"lo\" and \"low\" have the same id 256"},
        {"model.vocab.a", "500", NULL},
        {"model.merges", "null", "\"merges\" is missing"},
        {"model.merges", "7", "\"merges\" is an integer"},
        {"model.merges.0", "\"lo\"", "merges[0] is no pair"},
        {"model.merges.0", "\"l o w\"", "merges[0] is no pair"},
        {"model.merges.0", "[\"l\"]", "merges[0] is no pair"},
        {"model.merges.1", "[\"lo\", 7]", "merges[1] is no pair"},
        {"model.merges.1", "[\"lo\", \"xyz\"]", "merges[1]: \"xyz\" is not in the vocabulary"},
        {"model.merges.1", "[\"lo\", \"lo\"]", "merges[1]: \"lolo\" is not in the vocabulary"},
        {"model.merges.1", "\"l o\"", "merged twice"},
        {"added_tokens", "{}", "\"added_tokens\" is an object"},
        {"added_tokens.0", "3", "(without content)"},
        {"added_tokens.0.id", "null", "the id of token \"<a>\" is null"},
        {"added_tokens.0.id", "97", "same id 97"},
        {"added_tokens.0.id", "264", "same id 264"},
        {"added_tokens.0.content", "\"\"", "is empty"},
        {"added_tokens.0.content", "\"[e~[\"", "has the ids 263 and 265"},
        {"added_tokens.0.content", "\"low\"", "\"low\" has the ids 257 and 263"},
        {"added_tokens.0.special", "\"yes\"", "\"special\" is a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = small_json(WORDS, MARKS);
        struct tokenizer *t;
        small_set(root, cases[i].path, json_loads(cases[i].json, JSON_DECODE_ANY, NULL));
        if (cases[i].message) check_fails(small_open(&t, root), ERR_FORMAT, cases[i].message);
        else check_ok(small_open(&t, root));
        tokenizer_close(&t);
    }
    struct tokenizer *t;
    check_fails(tokenizer_parse(&t, "{\"a\": 1", 7, "cut.json"), ERR_FORMAT, "cut.json: line 1");
    check_fails(tokenizer_parse(&t, "[]", 2, "list.json"), ERR_FORMAT, "list.json: an array, expected an object");
    check_fails(tokenizer_parse(&t, "{\"a\": 1, \"a\": 2}", 16, "twice.json"), ERR_FORMAT, "duplicate");
    check_fails(tokenizer_open(&t, "tests/data/tokenizer/absent.json"), ERR_IO, "absent.json");
    assert_null(t);
}

/* One change of a random kind: a byte, a cut, a copy, or a value put over another. */
static size_t mutate(char *text, size_t n, uint64_t seed)
{
    static const char *const values[] = {"null", "true", "-1", "99999999999", "{}", "[]", "\"\"", "1e9", "\\u0000",
                                         "\"a b\"", "("};
    size_t at = check_hash(seed) % n, len = 1 + check_hash(seed + 1) % 12;
    if (at + len > n) len = n - at;
    switch (check_hash(seed + 2) % 5) {
    case 0: text[at] = (char)check_hash(seed + 3); return n;
    case 1: text[at] ^= (char)(1 << check_hash(seed + 3) % 8); return n;
    case 2: memmove(text + at, text + at + len, n - at - len); return n - len;
    case 3: memmove(text + at, text + check_hash(seed + 3) % (n - len), len); return n;
    default: break;
    }
    const char *value = values[check_hash(seed + 3) % (sizeof values / sizeof *values)];
    size_t end = at, put = strlen(value); /* from one mark of JSON to the next */
    while (at && !strchr(":,[", text[at - 1])) at--;
    while (end < n && !strchr(",]}", text[end])) end++;
    memmove(text + at + put, text + end, n - end);
    memcpy(text + at, value, put);
    return n - (end - at) + put;
}

static void mutated_files_never_crash(void **state)
{
    (void)state;
    json_t *root = small_json(WORDS, MARKS);
    /* Most of the file is its 256 bytes; the other parts first, so that a share of the mutations goes there. */
    char *whole = json_dumps(root, JSON_COMPACT), *text = malloc(strlen(whole) + 64);
    const char *vocab = strstr(whole, "\"vocab\""), probe[] = "low lower <a>[e~[ \xff don't 123\n";
    size_t n = strlen(whole), head = (size_t)(vocab - whole), good = 0;
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        struct tokenizer *t;
        struct ids ids = {0};
        struct text back = {0};
        memcpy(text, whole, n);
        size_t m = seed % 2 ? mutate(text, n, seed * 16) : mutate(text, head, seed * 16);
        if (seed % 2 == 0) {
            memcpy(text + m, vocab, n - head);
            m += n - head;
        }
        if (tokenizer_parse(&t, text, m, "mutated.json")) {
            if (!strstr(status_message(), "mutated.json"))
                fail_msg("seed %d: no file name: %s", (int)seed, status_message());
            continue;
        }
        good++;
        if (tokenizer_encode(t, probe, sizeof probe - 1, seed % 3 == 0, &ids) == OK)
            check_ok(tokenizer_decode(t, ids.id, ids.n, false, &back));
        ids_free(&ids);
        text_free(&back);
        tokenizer_close(&t);
    }
    if (good < 100 || good > 4900) fail_msg("%zu of 5000 mutants are accepted: not a test", good);
    json_decref(root);
    free(whole);
    free(text);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(what_is_not_supported_is_refused_by_its_name),
    cmocka_unit_test(broken_vocabularies_and_merges_are_refused),
    cmocka_unit_test(mutated_files_never_crash),
};
CHECK_MAIN(cases)
