/* Tokenizers: golden vectors, bytes that are no text, merges against a plain search, added tokens, threads. */
#include "bpe.h"
#include "tokenizer_fixture.h"

#include <pthread.h>

#define DATA "tests/data/tokenizer/"

static const char *const NAMES[] = {"gpt2", "gpt4", "o200k"};
static const char *const WORDS[] = {"l o", "lo w", "e r", "n e", "ne w", "\xc4\xa0 l", "\xc4\xa0l o", NULL};
static const char *const MARKS[] = {"<a>", "<a><b>", "[e~[", NULL};

static struct tokenizer *open_golden(const char *name)
{
    char path[256];
    struct tokenizer *t;
    snprintf(path, sizeof path, DATA "tokenizer_%s.json", name);
    check_ok(tokenizer_open(&t, path));
    return t;
}

/* ---- vectors and round trips ---- */

static void check_decodes(const struct tokenizer *t, const struct ids *ids, bool skip, const json_t *want)
{
    struct text text = {0};
    check_ok(tokenizer_decode(t, ids->id, ids->n, skip, &text));
    if (text.n != json_string_length(want) || (text.n && memcmp(text.data, json_string_value(want), text.n)))
        fail_msg("decoded \"%.*s\", expected \"%s\"", (int)text.n, text.data, json_string_value(want));
    text_free(&text);
}

static int check_vectors(const char *name)
{
    char path[256];
    size_t n, i;
    snprintf(path, sizeof path, DATA "vectors_%s.json", name);
    char *text = fixture_read(path, &n);
    json_t *list = json_loadb(text, n, JSON_ALLOW_NUL, NULL), *v;
    struct tokenizer *t = open_golden(name);
    json_array_foreach(list, i, v) {
        const json_t *string = json_object_get(v, "text"), *ids = json_object_get(v, "ids");
        struct ids want = {0}, got = {0};
        char line[16384];
        for (size_t k = 0; k < json_array_size(ids); k++)
            check_ok(ids_push(&want, (int32_t)json_integer_value(json_array_get(ids, k))));
        ids_print(line, sizeof line, &want);
        check_encodes(t, json_string_value(string), json_string_length(string), true, NULL);
        check_ok(tokenizer_encode(t, json_string_value(string), json_string_length(string), true, &got));
        if (got.n != want.n || (got.n && memcmp(got.id, want.id, got.n * sizeof *got.id)))
            check_ids_are(json_string_value(string), &got, line);
        check_decodes(t, &want, false, json_object_get(v, "decoded"));
        check_decodes(t, &want, true, json_object_get(v, "decoded_skip"));
        ids_free(&want);
        ids_free(&got);
    }
    n = json_array_size(list);
    json_decref(list);
    free(text);
    tokenizer_close(&t);
    return (int)n;
}

static void golden_vectors_of_three_pre_tokenizers_pass_whole(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        int n = check_vectors(NAMES[i]);
        if (n != 66) fail_msg("%s: %d vectors, expected 66", NAMES[i], n);
    }
}

static void gsm8k_text_comes_back_unchanged(void **state)
{
    (void)state;
    FILE *f = fopen("tests/data/gsm8k_sample.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    ssize_t len;
    struct tokenizer *t[3];
    assert_non_null(f);
    for (int i = 0; i < 3; i++) t[i] = open_golden(NAMES[i]);
    for (; (len = getline(&line, &cap, f)) > 0; n++) {
        json_t *object = json_loadb(line, (size_t)len, 0, NULL), *v;
        const char *key;
        json_object_foreach(object, key, v)
            for (int i = 0; i < 3; i++) check_encodes(t[i], json_string_value(v), json_string_length(v), false, NULL);
        json_decref(object);
    }
    if (n != 200) fail_msg("%zu lines, expected 200", n);
    for (int i = 0; i < 3; i++) tokenizer_close(&t[i]);
    free(line);
    fclose(f);
}

static void bytes_that_are_no_text_become_byte_tokens_and_come_back(void **state)
{
    (void)state;
    static const char *const bad[] = {"\xff",     "\xc3",         "a\xe4\xbdz",      "\xed\xa0\x80", "\xc0\x80",
                                      "\xf5\x80", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\x80low\x80",
                                      "\xe4\xbd\xa0\xbd"};
    struct tokenizer *t;
    check_ok(small_open(&t, small_json(WORDS, NULL)));
    check_encodes(t, "low\xfflow", 7, false, "257 255 257");
    check_encodes(t, "lo\xc3w", 4, false, "256 195 119");
    check_encodes(t, "\xed\xa0\x80", 3, true, "237 160 128");
    check_encodes(t, "a\0b", 3, false, "97 0 98");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) check_encodes(t, bad[i], strlen(bad[i]), true, NULL);
    char all[512];
    for (int i = 0; i < 512; i++) all[i] = i < 256 ? (char)i : (char)check_hash((uint64_t)i);
    check_encodes(t, all, sizeof all, false, NULL);
    for (int b = 0; b < 256; b++) {
        char want[16], byte = (char)b;
        snprintf(want, sizeof want, "%d", b);
        check_encodes(t, &byte, 1, false, want);
    }
    tokenizer_close(&t);
}

static void decoding_puts_u_fffd_for_each_bad_sequence(void **state)
{
    (void)state;
    static const struct { const char *bytes, *text; } cases[] = {
        {"\xff", "\xef\xbf\xbd"},
        {"a\xe4\xbdz", "a\xef\xbf\xbdz"}, /* a character cut off: one */
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate: three */
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe4\xbd\xa0", "\xe4\xbd\xa0"},
    };
    struct tokenizer *t;
    check_ok(small_open(&t, small_json(NULL, NULL)));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ids ids = {0};
        struct text text = {0};
        check_ok(tokenizer_encode(t, cases[i].bytes, strlen(cases[i].bytes), false, &ids));
        check_ok(tokenizer_decode(t, ids.id, ids.n, false, &text));
        check_ok(text_push(&text, "", 1));
        if (strcmp(text.data, cases[i].text) != 0)
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, text.data, cases[i].text);
        ids_free(&ids);
        text_free(&text);
    }
    tokenizer_close(&t);
}

/* ---- merges ---- */

static void merges_go_by_rank_and_not_by_length(void **state)
{
    (void)state;
    static const char *const ranks[] = {"b c", "a b", "c d", "ab cd", "bc d", NULL};
    struct tokenizer *t;
    check_ok(small_open(&t, small_json(ranks, NULL)));
    check_encodes(t, "abcd", 4, false, "97 260"); /* a longest match would find "abcd" = 259 */
    check_encodes(t, "abab", 4, false, "257 257");
    tokenizer_close(&t);
    check_ok(small_open(&t, small_json(WORDS, NULL)));
    check_encodes(t, "low lower newer", 15, false, "257 32 257 258 32 260 258");
    tokenizer_close(&t);
}

enum { LETTERS = 5, MERGES = 60, PIECE = 400 };

/* Merges of tokens over five letters, each of two tokens made before. */
static void random_merges(struct bpe *b, int32_t pair[MERGES][2], uint64_t seed)
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 256; i++) b->byte_id[i] = i - 'a';
    check_ok(bpe_init(b, MERGES));
    for (int i = 0; i < MERGES;) {
        uint64_t h = check_hash(seed = check_hash(seed));
        int32_t left = (int32_t)(h % (uint64_t)(LETTERS + i)), right = (int32_t)((h >> 32) % (uint64_t)(LETTERS + i));
        if (!bpe_add(b, left, right, (uint32_t)i, LETTERS + i)) continue;
        pair[i][0] = left;
        pair[i++][1] = right;
    }
}

/* The definition: of all merges that apply the first in the list, at its first place, again and again. */
static size_t plain_bpe(int32_t *id, size_t n, int32_t pair[MERGES][2])
{
    for (int i = 0; i < MERGES; i++)
        for (size_t k = 0; k + 1 < n; k++)
            if (id[k] == pair[i][0] && id[k + 1] == pair[i][1]) {
                id[k] = LETTERS + i;
                memmove(id + k + 1, id + k + 2, (n - k - 2) * sizeof *id);
                n--;
                i = -1;
                break;
            }
    return n;
}

static void merges_equal_a_plain_search_for_short_and_long_pieces(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct bpe b;
        int32_t pair[MERGES][2], want[PIECE];
        char piece[PIECE];
        struct ids got = {0};
        random_merges(&b, pair, seed);
        size_t n = seed % 3 ? 1 + check_hash(seed) % 80 : 1 + check_hash(seed) % PIECE; /* the two ways meet at 64 */
        for (size_t i = 0; i < n; i++) {
            want[i] = (int32_t)(check_hash(seed * 1000 + i) % (seed % 2 ? LETTERS : 2));
            piece[i] = (char)('a' + want[i]);
        }
        check_ok(bpe_encode(&b, piece, n, &got));
        size_t m = plain_bpe(want, n, pair);
        if (m != got.n) fail_msg("seed %d: %zu tokens, expected %zu", (int)seed, got.n, m);
        for (size_t i = 0; i < m; i++)
            if (got.id[i] != want[i]) fail_msg("seed %d, token %zu: %d, expected %d", (int)seed, i, got.id[i], want[i]);
        ids_free(&got);
        bpe_free(&b);
    }
}

static void a_megabyte_of_one_character_is_encoded_and_comes_back(void **state)
{
    (void)state;
    static const char *const runs[] = {"a", "A", " ", "\n", "(", "1", "\xe4\xbd\xa0", "\xcc\x81",
                                       "\xff", "'", " a", "\xc2\xa0"};
    static const char *const doubling[] = {"a a", "aa aa", "aaaa aaaa", "aaaaaaaa aaaaaaaa", NULL};
    size_t n = 1 << 20;
    char *text = malloc(n + 1);
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        size_t len = strlen(runs[r]), whole = n / len * len;
        for (size_t i = 0; i < whole; i++) text[i] = runs[r][i % len];
        text[whole] = 0;
        for (int i = 0; i < 3; i++) {
            struct tokenizer *t = open_golden(NAMES[i]);
            check_encodes(t, text, whole, true, NULL);
            tokenizer_close(&t);
        }
    }
    struct tokenizer *t;
    struct ids ids = {0};
    check_ok(small_open(&t, small_json(doubling, NULL)));
    memset(text, 'a', n);
    check_ok(tokenizer_encode(t, text, n - 1, false, &ids));
    if (ids.n != n / 16 + 3) fail_msg("%zu tokens, expected %zu", ids.n, n / 16 + 3); /* 16 ... 16 8 4 2 1 */
    ids_free(&ids);
    tokenizer_close(&t);
    free(text);
}

static void with_ignore_merges_a_piece_of_the_vocabulary_is_one_token(void **state)
{
    (void)state;
    json_t *root = small_json(WORDS, NULL);
    small_set(root, "model.vocab.lower", json_integer(900));
    json_t *same = json_deep_copy(root);
    small_set(root, "model.ignore_merges", json_true());
    struct tokenizer *t;
    check_ok(small_open(&t, root));
    check_encodes(t, "lower slower", 12, false, "900 32 115 257 258");
    assert_int_equal(tokenizer_vocab(t), 901);
    tokenizer_close(&t);
    check_ok(small_open(&t, same));
    check_encodes(t, "lower", 5, false, "257 258");
    tokenizer_close(&t);
}

static void merges_as_strings_and_as_pairs_are_the_same(void **state)
{
    (void)state;
    json_t *root = small_json(WORDS, NULL), *pairs = json_array();
    for (int i = 0; WORDS[i]; i++) {
        const char *space = strchr(WORDS[i], ' ');
        json_array_append_new(pairs, json_pack("[s#s]", WORDS[i], (int)(space - WORDS[i]), space + 1));
    }
    small_set(root, "model.merges", pairs);
    struct tokenizer *t;
    check_ok(small_open(&t, root));
    check_encodes(t, "low lower newer", 15, false, "257 32 257 258 32 260 258");
    tokenizer_close(&t);
}

/* ---- added tokens ---- */

static void added_tokens_are_found_in_templates_longest_first_and_never_in_user_text(void **state)
{
    (void)state;
    struct tokenizer *t;
    check_ok(small_open(&t, small_json(WORDS, MARKS)));
    assert_int_equal(tokenizer_vocab(t), 266);
    check_encodes(t, "<a>", 3, true, "263");
    check_encodes(t, "<a><b>low<a><b", 14, true, "264 257 263 60 98");
    check_encodes(t, "<<a>[e~[[e~", 11, true, "60 263 265 91 101 126");
    check_encodes(t, "<a>", 3, false, "60 97 62");
    check_encodes(t, "low[e~[", 7, false, "257 91 101 126 91");
    struct ids ids = {0};
    for (int i = 0; i < 3; i++) {
        struct tokenizer *golden = open_golden(NAMES[i]);
        const char *text = "]~b]ai\n<think>[e~[]~!b[]<]minimax[>[";
        ids.n = 0;
        check_ok(tokenizer_encode(golden, text, strlen(text), false, &ids));
        for (size_t k = 0; k < ids.n; k++)
            if (tokenizer_is_special(golden, ids.id[k]))
                fail_msg("%s: user text made the special token %d", NAMES[i], ids.id[k]);
        check_encodes(golden, text, strlen(text), false, NULL);
        tokenizer_close(&golden);
    }
    ids_free(&ids);
    tokenizer_close(&t);
}

static void special_tokens_are_left_out_of_text_on_request(void **state)
{
    (void)state;
    json_t *root = small_json(WORDS, MARKS);
    small_set(root, "added_tokens.0.special", json_false());
    small_set(root, "added_tokens.0.normalized", json_true());
    struct tokenizer *t;
    struct text text = {0};
    static const int32_t ids[] = {265, 257, 263, 100000, -1};
    check_ok(small_open(&t, root));
    check_ok(tokenizer_decode(t, ids, 5, true, &text)); /* ids without a token are nothing */
    check_ok(tokenizer_decode(t, ids, 5, false, &text));
    check_ok(text_push(&text, "", 1));
    assert_string_equal(text.data, "low<a>[e~[low<a>");
    assert_true(tokenizer_is_special(t, 265));
    assert_false(tokenizer_is_special(t, 263));
    assert_false(tokenizer_is_special(t, 97));
    assert_false(tokenizer_is_special(t, 266));
    check_encodes(t, "<a><b><a>", 9, true, "264 263");
    text_free(&text);
    tokenizer_close(&t);
}

static void tokens_are_found_by_their_spelling(void **state)
{
    (void)state;
    static const struct { const char *token; int id; } cases[] = {
        {"[e~[", 265}, {"<a>", 263}, {"low", 257}, {"\xc4\xa0lo", 262}, {"a", 97}, {"\xc4\x80", 0}, {"", -1},
        {"<a", -1}, {"lowe", -1}, {"\xe4\xbd\xa0", 700}, {"\xe4\xbd", -1}};
    json_t *root = small_json(WORDS, MARKS);
    small_set(root, "model.vocab.\xe4\xbd\xa0", json_integer(700)); /* outside the byte-level alphabet */
    struct tokenizer *t;
    check_ok(small_open(&t, root));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int id = tokenizer_id(t, cases[i].token);
        if (id != cases[i].id) fail_msg("\"%s\" is %d, expected %d", cases[i].token, id, cases[i].id);
    }
    check_encodes(t, "\xe4\xbd\xa0", 3, true, "228 189 160");
    tokenizer_close(&t);
}

/* ---- threads ---- */

struct worker {
    const struct tokenizer *t;
    uint64_t hash;
    int failed;
};

static void *encode_many(void *arg)
{
    struct worker *w = arg;
    struct ids ids = {0};
    for (uint64_t seed = 0; seed < 3000; seed++) {
        char text[256];
        size_t n = random_text(text, sizeof text, seed);
        ids.n = 0;
        w->failed += tokenizer_encode(w->t, text, n, seed % 2, &ids) != OK;
        for (size_t i = 0; i < ids.n; i++) w->hash = check_hash(w->hash ^ (uint64_t)ids.id[i]);
    }
    ids_free(&ids);
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    (void)state;
    struct tokenizer *t = open_golden("o200k");
    struct worker w[5] = {{t, 0, 0}, {t, 0, 0}, {t, 0, 0}, {t, 0, 0}, {t, 0, 0}};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, encode_many, &w[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    encode_many(&w[4]);
    for (int i = 0; i < 5; i++)
        if (w[i].failed || w[i].hash != w[4].hash)
            fail_msg("thread %d: %d failures, hash %llx, alone %llx", i, w[i].failed, (unsigned long long)w[i].hash,
                     (unsigned long long)w[4].hash);
    tokenizer_close(&t);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(golden_vectors_of_three_pre_tokenizers_pass_whole),
    cmocka_unit_test(gsm8k_text_comes_back_unchanged),
    cmocka_unit_test(bytes_that_are_no_text_become_byte_tokens_and_come_back),
    cmocka_unit_test(decoding_puts_u_fffd_for_each_bad_sequence),
    cmocka_unit_test(merges_go_by_rank_and_not_by_length),
    cmocka_unit_test(merges_equal_a_plain_search_for_short_and_long_pieces),
    cmocka_unit_test(a_megabyte_of_one_character_is_encoded_and_comes_back),
    cmocka_unit_test(with_ignore_merges_a_piece_of_the_vocabulary_is_one_token),
    cmocka_unit_test(merges_as_strings_and_as_pairs_are_the_same),
    cmocka_unit_test(added_tokens_are_found_in_templates_longest_first_and_never_in_user_text),
    cmocka_unit_test(special_tokens_are_left_out_of_text_on_request),
    cmocka_unit_test(tokens_are_found_by_their_spelling),
    cmocka_unit_test(threads_share_one_tokenizer),
};
CHECK_MAIN(cases)
