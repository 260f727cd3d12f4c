/* Rewards by kind, the answers for the records, and the instruction against the parser. */
#include "check.h"
#include "reward.h"

static struct reward *open_with(int n, char **overrides)
{
    struct config c;
    struct reward *r;
    check_ok(config_load(&c, NULL, n, overrides));
    check_ok(reward_open(&r, &c));
    config_free(&c);
    return r;
}
#define OPEN(...) open_with((int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static double score(struct reward *r, const struct reward_sample *s)
{
    double x = -7;
    check_ok(reward_score(r, 1, s, &x));
    return x;
}

static void pseudo_random_is_a_function_of_all_ids_in_order(void **state)
{
    (void)state;
    struct reward *r = OPEN("reward.kind=pseudo_random");
    double sum = 0, square = 0;
    for (int k = 0; k < 1000; k++) {
        int32_t ids[3] = {k, 7, 9}, other[3] = {k, 9, 7}, longer[4] = {k, 7, 9, 0};
        double x = score(r, &(struct reward_sample){.ids = ids, .n_prompt = 1, .n = 3});
        assert_true(x == score(r, &(struct reward_sample){.ids = ids, .n_prompt = 2, .n = 3, .label = "x"}));
        assert_true(x != score(r, &(struct reward_sample){.ids = other, .n_prompt = 1, .n = 3}));
        assert_true(x != score(r, &(struct reward_sample){.ids = longer, .n_prompt = 1, .n = 4}));
        if (!(x >= 0 && x < 1)) fail_msg("%g is not in [0, 1)", x);
        sum += x, square += x * x;
    }
    check_equal_f(sum / 1000, 0.5, 0.05);
    check_equal_f(square / 1000, 1 / 3.0, 0.05);
    reward_close(&r);
    assert_null(r);
}

static void length_is_the_share_of_the_target_up_to_one(void **state)
{
    (void)state;
    struct reward *r = OPEN("reward.kind=length", "reward.target_length=10");
    static const int n[] = {0, 1, 5, 10, 11, 1000};
    static const double want[] = {0, 0.1, 0.5, 1, 1, 1};
    for (int i = 0; i < 6; i++)
        check_equal_f(score(r, &(struct reward_sample){.n_prompt = 4, .n = 4 + n[i]}), want[i], 1e-15);
    reward_close(&r);
}

static void math_looks_at_the_response_and_never_at_the_prompt(void **state)
{
    (void)state;
    struct reward *r = OPEN("reward.kind=math");
    struct reward_sample s = {.prompt_text = "</mm:think>Answer: 5 \\boxed{5}", .response_text = "I do not know.",
                              .label = "5"};
    char *answer;
    assert_true(score(r, &s) == 0);
    check_ok(reward_answer(r, &s, &answer));
    assert_null(answer);
    s.response_text = "<think>\\boxed{4}</think> so \\boxed{5.0}";
    assert_true(score(r, &s) == 1);
    check_ok(reward_answer(r, &s, &answer));
    assert_string_equal(answer, "5.0");
    free(answer);
    s.response_text = NULL;
    assert_true(score(r, &s) == 0);
    reward_close(&r);
}

static void a_wrong_answer_can_score_minus_one(void **state)
{
    (void)state;
    struct reward *r = OPEN("train.objective=rl", "reward.kind=math", "reward.negative=true");
    assert_true(score(r, &(struct reward_sample){.response_text = "#### 4", .label = "5"}) == -1);
    assert_true(score(r, &(struct reward_sample){.response_text = "nothing", .label = "5"}) == -1);
    assert_true(score(r, &(struct reward_sample){.response_text = "#### 5", .label = "5"}) == 1);
    reward_close(&r);
}

static void a_label_that_could_never_be_right_is_an_error(void **state)
{
    (void)state;
    struct reward *r = OPEN("reward.kind=math");
    static const char *const label[] = {NULL, "", "  ", "\\boxed{}", "1/0", "{"};
    for (size_t i = 0; i < sizeof label / sizeof *label; i++) {
        double x;
        struct reward_sample s = {.prompt_text = "3+5=", .response_text = "#### 8", .label = label[i]};
        check_fails(reward_score(r, 1, &s, &x), ERR_FORMAT, "3+5=");
    }
    reward_close(&r);
}

static void an_instruction_must_ask_for_what_the_parser_finds(void **state)
{
    (void)state;
    static const char *const good[] = {"", "Put the answer in \\boxed{}.", "End with a line `Answer: N`.",
                                       "Finish with #### N",
                                       "Put it in \\boxed{} and then write Answer: N"};
    static const char *const bad[] = {"Think step by step.", "Write <answer>N</answer>.", "Reply in JSON.",
                                      "End with: The answer is N.",
                                      "Put the answer in \\boxed{} inside <answer> tags."};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) check_ok(reward_lint(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) check_fails(reward_lint(bad[i]), ERR_CONFIG, bad[i]);
    struct config c;
    struct reward *r = (struct reward *)&c;
    char *overrides[] = {"reward.kind=math", "data.instruction=Think step by step."};
    check_ok(config_load(&c, NULL, 2, overrides));
    check_fails(reward_open(&r, &c), ERR_CONFIG, "reward.kind=math");
    assert_null(r);
    config_free(&c);
    r = OPEN("reward.kind=pseudo_random", "data.instruction=Think step by step.");
    reward_close(&r);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(pseudo_random_is_a_function_of_all_ids_in_order),
    cmocka_unit_test(length_is_the_share_of_the_target_up_to_one),
    cmocka_unit_test(math_looks_at_the_response_and_never_at_the_prompt),
    cmocka_unit_test(a_wrong_answer_can_score_minus_one),
    cmocka_unit_test(a_label_that_could_never_be_right_is_an_error),
    cmocka_unit_test(an_instruction_must_ask_for_what_the_parser_finds),
};
CHECK_MAIN(cases)
