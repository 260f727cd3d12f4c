/* Answers in text: the table of tests/data/math_answers.tsv, numbers of any length, and input meant to hurt. */
#include "check.h"
#include "math_answer.h"

static struct math_span span(const char *s) { return (struct math_span){s, strlen(s)}; }

static bool equal(const char *a, const char *b)
{
    bool same, back;
    check_ok(math_answer_equal(span(a), span(b), &same));
    check_ok(math_answer_equal(span(b), span(a), &back));
    if (same != back) fail_msg("\"%s\" and \"%s\": %d one way, %d the other", a, b, same, back);
    return same;
}

/* The pilcrow stands for a line feed. */
static void line_feeds(char *s)
{
    for (char *at; (at = strstr(s, "\xc2\xb6"));) {
        *at = '\n';
        memmove(at + 1, at + 2, strlen(at + 2) + 1);
    }
}

static void check_row(int number, char *row)
{
    char *held = row, *want = strsep(&held, "\t"), *label = strsep(&held, "\t"), *response = strsep(&held, "\t");
    const char *answer = held;
    if (!answer) fail_msg("line %d has no four columns", number);
    line_feeds(label);
    line_feeds(response);
    struct math_span got, right;
    bool found, usable, same = false;
    check_ok(math_answer_find(response, strlen(response), &got, &found));
    bool none = strcmp(answer, "-") == 0;
    if (none ? found : !found || got.n != strlen(answer) || memcmp(got.data, answer, got.n) != 0)
        fail_msg("line %d: found %s\"%.*s\" in \"%s\", expected \"%s\"", number, found ? "" : "nothing, not ",
                 (int)got.n, got.data, response, answer);
    check_ok(math_answer_label(label, &right, &usable));
    if (found && usable) check_ok(math_answer_equal(got, right, &same));
    if (same != (*want == '1'))
        fail_msg("line %d: reward %d for \"%s\" against \"%s\", expected %s", number, same, response, label, want);
}

static void every_row_of_the_table_scores_as_it_says(void **state)
{
    (void)state;
    FILE *f = fopen("tests/data/math_answers.tsv", "r");
    char row[1024];
    int number = 0, rows = 0;
    assert_non_null(f);
    while (fgets(row, sizeof row, f)) {
        number++;
        row[strcspn(row, "\n")] = 0;
        if (*row == '#' && row[1] == ' ') continue;
        check_row(number, row);
        rows++;
    }
    fclose(f);
    if (rows < 60) fail_msg("%d rows, at least 60 expected", rows);
}

/* `n` digits of a fixed mixture, the last one given. */
static char *digits(size_t n, char last)
{
    char *s = malloc(n + 2);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++) s[i] = (char)('1' + check_hash(i) % 9);
    s[n - 1] = last;
    s[n] = 0;
    return s;
}

static void integers_of_a_hundred_thousand_digits_differ_in_the_last_one(void **state)
{
    (void)state;
    char *a = digits(100000, '3'), *b = digits(100000, '3'), *c = digits(100000, '4');
    assert_true(equal(a, b));
    assert_false(equal(a, c));
    free(a), free(b), free(c);
}

static void long_fractions_are_compared_exactly(void **state)
{
    (void)state;
    char *a = digits(3000, '3'), *b = digits(3000, '4'), *text = malloc(3 * 3000 + 16);
    sprintf(text, "%s/%s", a, a);
    assert_true(equal(text, "1"));
    sprintf(text, "%s/%s", a, b);
    assert_false(equal(text, "1"));
    sprintf(text, "%s %s/%s", a, b, b);
    assert_false(equal(text, a));
    free(a), free(b), free(text);
}

static void mixed_numbers_add_up(void **state)
{
    (void)state;
    assert_true(equal("12 3/4", "51/4"));
    assert_true(equal("999999999 1/2", "1999999999/2"));
    assert_true(equal("100 100/1000", "100.1"));
    assert_true(equal("0 1/2", "0.5"));
    assert_false(equal("2 1/0", "2"));
}

static void what_cannot_be_read_does_not_equal_itself(void **state)
{
    (void)state;
    static const char *const s[] = {"", "   ", "$$", "...", "1/0", "{", "}", "\\frac{1", "\\frac", "\\sqrt[3",
                                    "5{", "\\text"};
    for (size_t i = 0; i < sizeof s / sizeof *s; i++)
        if (equal(s[i], s[i])) fail_msg("\"%s\" equals itself", s[i]);
}

/* Enough that a quadratic reader would hang. */
static void hostile_text_of_a_quarter_megabyte_is_read(void **state)
{
    (void)state;
    static const char *const unit[] = {"\\boxed{", "{", "}", "#### ", "#### x\n", "Answer:", "answer ", "<", "</think>",
                                       "\\frac", "\\frac1", "\\frac{", "\\sqrt[", "^ ", "1 ", "1,", "1,234,", "9", "1/",
                                       "\\", "$", "((", "\\text{", "a=", "-", "{1", "\xe2\x88\x9a",
                                       "\xff", "5e", "*", "\n", "1 1/", ".", "\\sqrt1"};
    const size_t size = 1 << 18;
    char *text = malloc(size + 16), *label = digits(5000, '3');
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        size_t step = strlen(unit[i]), n = 0;
        for (; n + step < size; n += step) memcpy(text + n, unit[i], step);
        struct math_span answer;
        bool found, same;
        for (int closed = 0; closed < 2; closed++) {
            if (closed) memset(text + n, '}', 8), n += 8;
            check_ok(math_answer_find(text, n, &answer, &found));
            check_ok(math_answer_equal((struct math_span){text, n}, span(label), &same));
            if (same) fail_msg("a quarter megabyte of \"%s\" equals a number", unit[i]);
        }
    }
    free(text);
    free(label);
}

static void pieces_in_any_order_are_read_and_compared_the_same_both_ways(void **state)
{
    (void)state;
    static const char *const piece[] = {"1", "2", "0", ".", ",", "/", " ", "-", "{", "}", "\\frac", "\\sqrt",
                                        "\\boxed{", "\\text{", "(", ")", "e", "x", "^", "*10^", "\n", "#### ", "Answer:", "\\", "$",
                                        "[", "]", "\xc3", "\xe2\x88\x92", "cm", "%"};
    const size_t n = sizeof piece / sizeof *piece;
    int equals = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        char text[2][64] = {"", ""};
        for (int k = 0; k < 2; k++)
            for (uint64_t j = 0; j < 1 + check_hash(round * 2 + (uint64_t)k) % 6; j++)
                strcat(text[k], piece[check_hash(round * 64 + (uint64_t)k * 32 + j + 7) % n]);
        struct math_span answer;
        bool found;
        check_ok(math_answer_find(text[0], strlen(text[0]), &answer, &found));
        if (found) assert_in_range((uintmax_t)(answer.data - text[0]), 0, strlen(text[0]) - answer.n);
        equals += equal(text[0], text[1]);
    }
    assert_in_range(equals, 1, 19999);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(every_row_of_the_table_scores_as_it_says),
    cmocka_unit_test(integers_of_a_hundred_thousand_digits_differ_in_the_last_one),
    cmocka_unit_test(long_fractions_are_compared_exactly),
    cmocka_unit_test(mixed_numbers_add_up),
    cmocka_unit_test(what_cannot_be_read_does_not_equal_itself),
    cmocka_unit_test(hostile_text_of_a_quarter_megabyte_is_read),
    cmocka_unit_test(pieces_in_any_order_are_read_and_compared_the_same_both_ways),
};
CHECK_MAIN(cases)
