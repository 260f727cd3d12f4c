/* What every test program shares: cmocka, comparisons that print both values, and the closing line that tests/run.sh
 * adds up. A program is a list of cases and CHECK_MAIN(cases). */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../src/status.h"

/* The call must succeed; prints its message when not. */
#define check_ok(call)                                                                                                 \
    do {                                                                                                               \
        enum status s_ = (call);                                                                                       \
        if (s_) fail_msg("%s -> %d: %s (%s)", #call, (int)s_, status_message(), status_where());                        \
    } while (0)

/* The call must fail with this status and its message must contain this text. */
#define check_fails(call, want, text)                                                                                  \
    do {                                                                                                               \
        enum status s_ = (call);                                                                                       \
        if (s_ != (want) || !strstr(status_message(), (text)))                                                         \
            fail_msg("%s -> %d \"%s\", expected %d with \"%s\"", #call, (int)s_, s_ ? status_message() : "", (int)(want), \
                     (text));                                                                                          \
    } while (0)

/* ||a - b|| / ||b|| <= tol; NaN never passes. Prints the worst element. */
static inline void check_close(const char *what, const float *a, const float *b, int64_t n, double tol)
{
    double diff = 0, norm = 0, worst = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        diff += d * d;
        norm += (double)b[i] * b[i];
        if (!(fabs(d) <= worst)) worst = fabs(d), at = i;
    }
    double rel = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    if (!(rel <= tol))
        fail_msg("%s: relative error %.3g > %.3g; worst at %lld of %lld: %.9g, expected %.9g", what, rel, tol,
                 (long long)at, (long long)n, n ? a[at] : 0, n ? b[at] : 0);
}

#define check_equal_f(a, b, tol)                                                                                       \
    do {                                                                                                               \
        double a_ = (a), b_ = (b);                                                                                     \
        if (!(fabs(a_ - b_) <= (tol) * fmax(1.0, fabs(b_)))) fail_msg("%s = %.12g, expected %.12g", #a, a_, b_);       \
    } while (0)

#define CHECK_MAIN(cases)                                                                                              \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        int failed = cmocka_run_group_tests(cases, NULL, NULL), n = (int)(sizeof(cases) / sizeof *(cases));            \
        printf("%d passed, %d failed\n", n - failed, failed);                                                          \
        return failed != 0;                                                                                            \
    }

/* A small counter-based generator for test data: the same numbers on every machine. */
static inline uint64_t check_hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline float check_uniform(uint64_t seed, uint64_t i) /* in [-1, 1) */
{
    return (float)((double)(check_hash(seed * 0x100000001b3u + i) >> 11) * 0x1p-52 - 1.0);
}
#endif
