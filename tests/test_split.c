/* Pre-tokenisation: the ASCII scanner against the regular expressions, pieces, patterns in a row. */
#include "tokenizer_fixture.h"

static const char *const NAMES[] = {"gpt2", "gpt4", "o200k"};
static const char *const WORDS[] = {"l o", "lo w", "e r", "n e", "ne w", "\xc4\xa0 l", "\xc4\xa0l o", NULL};

static void the_ascii_scanner_and_the_regular_expression_agree(void **state)
{
    (void)state;
    static const char *const patterns[] = {SPLIT_GPT2, SPLIT_GPT4, SPLIT_O200K};
    struct split_work w;
    size_t scanned = 0;
    check_ok(split_work_init(&w));
    for (int k = 0; k < 3; k++) {
        struct split fast, slow;
        check_ok(split_init(&fast, patterns[k], false));
        assert_int_equal(fast.known, SPLIT_IS_GPT2 + k);
        slow = fast;
        slow.known = SPLIT_OTHER;
        for (uint64_t seed = 0; seed < 60000; seed++) {
            char text[256];
            size_t n = random_text(text, sizeof text, seed), a = 0, b = 0, c = 0, d = 0;
            struct split_walk f = split_start(&fast, &w, text, n), s = split_start(&slow, &w, text, n);
            do {
                check_ok(split_next(&f, &a, &b));
                check_ok(split_next(&s, &c, &d));
                if (a != c || b != d)
                    fail_msg("%s, text \"%s\": piece %zu .. %zu, the regular expression says %zu .. %zu", NAMES[k],
                             text, a, b, c, d);
                if (a < b) scanned += split_scan(fast.known, text, n, a) != 0;
            } while (a < b);
            if (a != n) fail_msg("the pieces of \"%s\" end at %zu of %zu", text, a, n);
        }
        split_free(&fast);
    }
    if (scanned < 500000) fail_msg("the scanner found %zu pieces, expected 500000", scanned);
    split_work_free(&w);
}

/* The pieces of a text, joined by |. */
static void check_pieces(const char *pattern, bool literal, const char *text, const char *want)
{
    struct split p;
    struct split_work w;
    struct text got = {0};
    size_t from, to;
    check_ok(split_init(&p, pattern, literal));
    check_ok(split_work_init(&w));
    struct split_walk walk = split_start(&p, &w, text, strlen(text));
    for (;;) {
        check_ok(split_next(&walk, &from, &to));
        if (from == to) break;
        if (got.n) check_ok(text_push(&got, "|", 1));
        check_ok(text_push(&got, text + from, to - from));
    }
    check_ok(text_push(&got, "", 1));
    if (strcmp(got.data, want) != 0) fail_msg("%s cuts \"%s\" into %s, expected %s", pattern, text, got.data, want);
    text_free(&got);
    split_work_free(&w);
    split_free(&p);
}

static void matches_and_what_lies_between_them_are_pieces(void **state)
{
    (void)state;
    check_pieces("[0-9]+", false, "ab12cd3", "ab|12|cd|3");
    check_pieces("x*", false, "ab", "a|b");
    check_pieces("x*", false, "axxb", "a|xx|b");
    check_pieces("(?=b)", false, "abab", "a|ba|b");
    check_pieces("a.b", true, "aXba.bc", "aXb|a.b|c");
    check_pieces("nothing", false, "text", "text");
    check_pieces("\\s+", false, "a\xe1\xa0\x8ey\xc2\x85\xe3\x80\x80z", "a\xe1\xa0\x8ey|\xc2\x85\xe3\x80\x80|z");
    check_pieces("\\S+", false, "a b", "a| |b");
    check_pieces("[\\s,]", false, "a, b", "a|,| |b");
    check_pieces("a$", false, "a\nba", "a|\nb|a"); /* $ ends a line */
    check_pieces("[^]a]", false, "]b", "]|b");
    check_pieces("\\p{N}{1,3}", false, "1234567", "123|456|7");
    for (int digits = 1; digits <= 7; digits++) {
        static const char *const want[] = {"1", "12", "123", "123|4", "123|45", "123|456", "123|456|7"};
        char text[8] = "1234567";
        text[digits] = 0;
        check_pieces(SPLIT_O200K, false, text, want[digits - 1]);
    }
    check_pieces(SPLIT_O200K, false, "Don't DON'T\r\n  x=//\n1", "Don't| DON'T|\r\n| | x|=//\n|1");
}

static void patterns_in_a_sequence_cut_one_after_the_other(void **state)
{
    (void)state;
    json_t *root = small_json(WORDS, NULL), *list = json_array();
    static const char *const patterns[][2] = {{"Regex", "[0-9]"}, {"String", "o"}};
    for (int i = 0; i < 2; i++)
        json_array_append_new(list, json_pack("{ss s{ss} ss}", "type", "Split", "pattern", patterns[i][0],
                                              patterns[i][1], "behavior", "Isolated"));
    json_array_append_new(list, json_pack("{ss}", "type", "ByteLevel"));
    small_set(root, "pre_tokenizer.pretokenizers", list);
    struct tokenizer *t;
    check_ok(small_open(&t, root));
    check_encodes(t, "low1new er", 10, false, "108 111 119 49 260 32 258");
    tokenizer_close(&t);
}

static void a_pattern_that_backtracks_without_end_is_an_error_and_not_a_hang(void **state)
{
    (void)state;
    json_t *root = small_json(NULL, NULL);
    small_set(root, "pre_tokenizer.pretokenizers.0.pattern.Regex", json_string("(a|aa)+c"));
    struct tokenizer *t;
    struct ids ids = {0};
    char text[200];
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "bc", 2); /* without a c the pattern fails at once */
    check_ok(small_open(&t, root));
    check_ok(ids_push(&ids, 7));
    check_fails(tokenizer_encode(t, text, sizeof text, false, &ids), ERR_FORMAT, "small.json: the pattern gives up");
    check_ids_are("what was there", &ids, "7");
    ids_free(&ids);
    tokenizer_close(&t);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(the_ascii_scanner_and_the_regular_expression_agree),
    cmocka_unit_test(matches_and_what_lies_between_them_are_pieces),
    cmocka_unit_test(patterns_in_a_sequence_cut_one_after_the_other),
    cmocka_unit_test(a_pattern_that_backtracks_without_end_is_an_error_and_not_a_hang),
};
CHECK_MAIN(cases)
