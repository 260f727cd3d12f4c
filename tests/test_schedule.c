/* The pipeline's schedule as data: for any number of stages and micro-batches every stage's list is complete and in order,
 * bounded in flight, and all stages together run to their end when each waits for its neighbours. */
#include "../src/pipeline.h"
#include "check.h"

enum { MAX_STAGES = 9, MAX_MICRO = 21 };

struct stage {
    struct schedule_step step[2 * MAX_MICRO];
    int n, at;
    bool forward[MAX_MICRO], backward[MAX_MICRO];
};

static void build(struct stage *s, int pp, int stage, int micro, bool forward_only)
{
    *s = (struct stage){0};
    s->n = schedule_build(s->step, pp, stage, micro, forward_only);
    assert_int_equal(s->n, forward_only ? micro : 2 * micro);
}

static void every_stage_is_complete_in_order_and_bounded(void **state)
{
    (void)state;
    for (int pp = 1; pp <= MAX_STAGES; pp++)
        for (int micro = 1; micro <= MAX_MICRO; micro++)
            for (int stage = 0; stage < pp; stage++) {
                struct stage s;
                int forward = 0, backward = 0;
                build(&s, pp, stage, micro, false);
                for (int i = 0; i < s.n; i++) {
                    if (s.step[i].kind == STEP_FORWARD) assert_int_equal(s.step[i].micro, forward++);
                    else assert_int_equal(s.step[i].micro, backward++);
                    assert_true(backward <= forward);
                    assert_true(forward - backward <= pp - stage);
                }
                assert_int_equal(forward, micro);
                assert_int_equal(backward, micro);
            }
}

/* A stage moves when the activation from above, or the gradient from below, of its next step has been made. */
static bool move(struct stage *all, int pp, int stage)
{
    struct stage *s = &all[stage];
    if (s->at == s->n) return false;
    struct schedule_step x = s->step[s->at];
    bool forward = x.kind == STEP_FORWARD;
    if (forward && stage > 0 && !all[stage - 1].forward[x.micro]) return false;
    if (!forward && stage + 1 < pp && !all[stage + 1].backward[x.micro]) return false;
    *(forward ? &s->forward[x.micro] : &s->backward[x.micro]) = true;
    s->at++;
    return true;
}

static void stages_that_wait_for_each_other_end(void **state)
{
    (void)state;
    for (int pp = 1; pp <= MAX_STAGES; pp++)
        for (int micro = 1; micro <= MAX_MICRO; micro++)
            for (int only = 0; only < 2; only++) {
                struct stage all[MAX_STAGES];
                bool moved = true;
                for (int s = 0; s < pp; s++) build(&all[s], pp, s, micro, only);
                while (moved) {
                    moved = false;
                    for (int s = 0; s < pp; s++) moved = move(all, pp, s) || moved;
                }
                for (int s = 0; s < pp; s++)
                    if (all[s].at != all[s].n) fail_msg("pp %d, %d micro-batches: stage %d stands at %d of %d", pp, micro, s, all[s].at, all[s].n);
            }
}

static void a_forward_pass_alone_is_only_forwards(void **state)
{
    (void)state;
    struct stage s;
    build(&s, 4, 1, 7, true);
    for (int i = 0; i < s.n; i++) {
        assert_int_equal(s.step[i].kind, STEP_FORWARD);
        assert_int_equal(s.step[i].micro, i);
    }
}

static void count_line(void *ctx, const char *text)
{
    int *lines = ctx;
    assert_non_null(strstr(text, "F0"));
    assert_non_null(strstr(text, "B2"));
    ++*lines;
}

static void the_table_is_printed_a_line_a_stage(void **state)
{
    (void)state;
    int lines = 0;
    schedule_print(4, 3, count_line, &lines);
    assert_int_equal(lines, 4);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(every_stage_is_complete_in_order_and_bounded), cmocka_unit_test(stages_that_wait_for_each_other_end),
    cmocka_unit_test(a_forward_pass_alone_is_only_forwards), cmocka_unit_test(the_table_is_printed_a_line_a_stage)};
CHECK_MAIN(cases)
