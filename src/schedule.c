#include "pipeline.h"

#include <stdio.h>

int schedule_build(struct schedule_step *steps, int pp, int stage, int n, bool forward_only)
{
    int ahead = forward_only ? n : pp - stage - 1, count = 0;
    if (ahead > n) ahead = n;
    for (int i = 0; i < ahead; i++) steps[count++] = (struct schedule_step){STEP_FORWARD, i};
    if (forward_only) return count;
    for (int i = ahead; i < n; i++) {
        steps[count++] = (struct schedule_step){STEP_FORWARD, i};
        steps[count++] = (struct schedule_step){STEP_BACKWARD, i - ahead};
    }
    for (int i = n - ahead; i < n; i++) steps[count++] = (struct schedule_step){STEP_BACKWARD, i};
    return count;
}

void schedule_print(int pp, int n, void (*line)(void *ctx, const char *text), void *ctx)
{
    for (int s = 0; s < pp; s++) {
        char text[4096];
        struct schedule_step steps[2 * n];
        int count = schedule_build(steps, pp, s, n, false), at = snprintf(text, sizeof text, "stage %d: ", s);
        for (int i = 0; i < count && at < (int)sizeof text - 16; i++)
            at += snprintf(text + at, sizeof text - (size_t)at, " %c%d", steps[i].kind == STEP_FORWARD ? 'F' : 'B',
                           steps[i].micro);
        line(ctx, text);
    }
}
