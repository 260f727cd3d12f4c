/* The command line helper: what it takes, what it refuses, and that the help shows the table. */
#include "check.h"
#include "cli.h"

struct parsed {
    int64_t max_new;
    double temperature;
    bool greedy;
    const char *prompt, *src, *dst;
    int dtype;
    struct cli cli;
};

/* Parses words ending with NULL by a table with one of everything. */
static enum status parse(struct parsed *p, const char *rest, const char *first, ...)
{
    static char words[16][64];
    static char *argv[17];
    int argc = 1;
    argv[0] = "m3";
    va_list ap;
    va_start(ap, first);
    for (const char *w = first; w && argc < 16; w = va_arg(ap, const char *), argc++) {
        snprintf(words[argc], sizeof words[argc], "%s", w);
        argv[argc] = words[argc];
    }
    va_end(ap);
    *p = (struct parsed){.prompt = "none"};
    const struct cli_option options[] = {
        {"--max-new", CLI_INT, &p->max_new, "256", "N", 1, 1000, "longest response"},
        {"--temperature", CLI_FLOAT, &p->temperature, "1", "T", 0, 0, "of the draw"},
        {"--greedy", CLI_FLAG, &p->greedy, NULL, NULL, 0, 0, "take the most likely"},
        {"--prompt", CLI_STRING, &p->prompt, NULL, "TEXT", 0, 0, "what to continue"},
        {"--dtype", CLI_ENUM, &p->dtype, "bf16", "fp32|bf16", 0, 0, "type of the weights"}};
    const struct cli_argument arguments[] = {{"SRC", &p->src, "where from", false}, {"DST", &p->dst, "where to", true}};
    p->cli = (struct cli){.command = "m3 test", .about = "About.", .options = options, .n_options = 5,
                          .arguments = arguments, .n_arguments = 2, .rest = rest, .rest_help = "settings"};
    enum status s = cli_parse(&p->cli, argc, argv);
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    cli_help(&p->cli, f);
    fclose(f);
    if (!strstr(text, "usage: m3 test SRC [DST]") || !strstr(text, "--max-new N") || !strstr(text, "(default 256)") ||
        !strstr(text, "--dtype fp32|bf16"))
        fail_msg("the help lacks something:\n%s", text);
    free(text);
    return s;
}

static void options_may_stand_anywhere_in_both_spellings(void **state)
{
    (void)state;
    struct parsed p;
    check_ok(parse(&p, NULL, "--max-new", "5", "a", "--greedy", "--prompt=x=y", "b", "--dtype", "fp32", NULL));
    assert_int_equal(p.max_new, 5);
    assert_true(p.greedy);
    assert_string_equal(p.prompt, "x=y");
    assert_string_equal(p.src, "a");
    assert_string_equal(p.dst, "b");
    assert_int_equal(p.dtype, 0);
    check_equal_f(p.temperature, 1, 0);
}

static void what_is_not_given_has_its_default(void **state)
{
    (void)state;
    struct parsed p;
    check_ok(parse(&p, NULL, "a", NULL));
    assert_int_equal(p.max_new, 256);
    assert_false(p.greedy);
    assert_string_equal(p.prompt, "none");
    assert_null(p.dst);
    assert_int_equal(p.dtype, 1);
}

static void values_may_begin_with_a_dash_and_words_behind_two_are_arguments(void **state)
{
    (void)state;
    struct parsed p;
    check_ok(parse(&p, NULL, "--temperature", "-1.5", "--prompt", "--greedy", "--", "--help", "-", NULL));
    check_equal_f(p.temperature, -1.5, 0);
    assert_string_equal(p.prompt, "--greedy");
    assert_false(p.greedy);
    assert_string_equal(p.src, "--help");
    assert_string_equal(p.dst, "-");
}

static void further_arguments_are_gathered_in_order(void **state)
{
    (void)state;
    struct parsed p;
    check_ok(parse(&p, "KEY=VALUE", "a", "b", "train.lr=1", "--greedy", "x=2", "--max-new", "3", "y=3", NULL));
    assert_int_equal(p.cli.n_more, 3);
    assert_string_equal(p.cli.more[0], "train.lr=1");
    assert_string_equal(p.cli.more[1], "x=2");
    assert_string_equal(p.cli.more[2], "y=3");
    assert_string_equal(p.src, "a");
    assert_int_equal(p.max_new, 3);
}

static void what_is_wrong_is_a_usage_error_that_says_why(void **state)
{
    (void)state;
    struct parsed p;
    check_fails(parse(&p, NULL, "a", "--max-neu", "5", NULL), ERR_USAGE, "'--max-neu'; did you mean --max-new?");
    check_fails(parse(&p, NULL, "a", "--something-else=5", NULL), ERR_USAGE, "'--something-else' (--help");
    check_fails(parse(&p, NULL, "a", "-x", NULL), ERR_USAGE, "unknown option '-x'");
    check_fails(parse(&p, NULL, "a", "--max-new", NULL), ERR_USAGE, "--max-new needs a value: --max-new N");
    check_fails(parse(&p, NULL, "a", "--max-new", "many", NULL), ERR_USAGE, "--max-new: 'many' is not an integer");
    check_fails(parse(&p, NULL, "a", "--max-new=0", NULL), ERR_USAGE, "--max-new: 0 is outside [1, 1000]");
    check_fails(parse(&p, NULL, "a", "--greedy=yes", NULL), ERR_USAGE, "--greedy takes no value");
    check_fails(parse(&p, NULL, "a", "--dtype", "fp", NULL), ERR_USAGE, "--dtype: 'fp' is none of fp32|bf16");
    check_fails(parse(&p, NULL, "a", "b", "c", NULL), ERR_USAGE, "m3 test: 'c' is one argument too many");
    check_fails(parse(&p, NULL, "--greedy", NULL), ERR_USAGE, "m3 test: SRC is missing: where from");
}

static void help_wins_over_what_is_missing(void **state)
{
    (void)state;
    struct parsed p;
    check_ok(parse(&p, NULL, "--help", NULL));
    assert_true(p.cli.helped);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(options_may_stand_anywhere_in_both_spellings),
    cmocka_unit_test(what_is_not_given_has_its_default),
    cmocka_unit_test(values_may_begin_with_a_dash_and_words_behind_two_are_arguments),
    cmocka_unit_test(further_arguments_are_gathered_in_order),
    cmocka_unit_test(what_is_wrong_is_a_usage_error_that_says_why),
    cmocka_unit_test(help_wins_over_what_is_missing),
};
CHECK_MAIN(cases)
