/* The CPU's op table: every case of ops_cases.h with one thread, two and three. */
#include "ops_cases.h"

static bool vary_threads(int step)
{
    if (step < 3) ops_cpu_threads(step + 1);
    return step < 3;
}

static void run_case(void **state) { op_case_run(&ops_cpu, NULL, *state, vary_threads); }

int main(void)
{
    enum { CASES = sizeof op_cases / sizeof *op_cases };
    struct CMUnitTest tests[CASES];
    for (int i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){op_cases[i].name, run_case, NULL, NULL, (void *)&op_cases[i]};
    int failed = _cmocka_run_group_tests("ops", tests, CASES, NULL, NULL);
    printf("%d passed, %d failed\n", CASES - failed, failed);
    return failed != 0;
}
