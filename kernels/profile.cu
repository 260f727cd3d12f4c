/* Time by op. Events are recorded around every outermost op of a stream; they are made as they are first needed and kept, so
 * that what is timed is not slowed by making them. */
#include "cuda_util.cuh"

#include <stdlib.h>
#include <string.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define RANGE_PUSH(name) nvtxRangePushA(name)
#define RANGE_POP() nvtxRangePop()
#else
#define RANGE_PUSH(name) ((void)(name))
#define RANGE_POP() ((void)0)
#endif

struct profile_op {
    const char *name; /* a literal */
    cudaEvent_t from, to;
};
struct profile {
    struct profile_op *op; /* [PROFILE_OPS] */
    int n, made, depth;
    int64_t lost; /* ops that found no room */
};

void profile_begin(struct stream *s, const char *name)
{
    RANGE_PUSH(name);
    struct profile *p = s ? s->profile : NULL;
    if (!p || p->depth++ || p->n == PROFILE_OPS) return;
    struct profile_op *o = &p->op[p->n];
    if (p->n == p->made) {
        if (cudaEventCreate(&o->from) || cudaEventCreate(&o->to)) {
            cudaGetLastError();
            return;
        }
        p->made++;
    }
    o->name = name;
    cudaEventRecord(o->from, s->cuda);
}

void profile_end(struct stream *s)
{
    RANGE_POP();
    struct profile *p = s ? s->profile : NULL;
    if (!p || --p->depth) return;
    if (p->n == PROFILE_OPS || p->n == p->made) p->lost++;
    else cudaEventRecord(p->op[p->n++].to, s->cuda);
}

extern "C" enum status device_profile_start(struct stream *s)
{
    if (!s) return OK;
    if (!s->profile) {
        struct profile *p = (struct profile *)calloc(1, sizeof *p);
        if (p) p->op = (struct profile_op *)calloc(PROFILE_OPS, sizeof *p->op);
        if (!p || !p->op) {
            free(p);
            return FAIL(ERR_MEMORY, "a profile of %d ops", PROFILE_OPS);
        }
        s->profile = p;
    }
    s->profile->n = 0;
    s->profile->lost = 0;
    return OK;
}

extern "C" void device_profile_stop(struct stream *s)
{
    if (!s || !s->profile) return;
    for (int i = 0; i < s->profile->made; i++) {
        cudaEventDestroy(s->profile->op[i].from);
        cudaEventDestroy(s->profile->op[i].to);
    }
    free(s->profile->op);
    free(s->profile);
    s->profile = NULL;
}

struct profile_row {
    const char *name;
    int calls;
    double ms;
};
enum { ROWS_MAX = 128 };

static int by_time(const void *a, const void *b)
{
    double x = ((const struct profile_row *)a)->ms, y = ((const struct profile_row *)b)->ms;
    return (x < y) - (x > y);
}

static enum status sum_rows(const struct profile *p, struct profile_row *row, int *rows, double *idle)
{
    for (int i = 0; i < p->n; i++) {
        float ms = 0, gap = 0;
        TRY_CUDA(cudaEventElapsedTime(&ms, p->op[i].from, p->op[i].to));
        if (i) TRY_CUDA(cudaEventElapsedTime(&gap, p->op[i - 1].to, p->op[i].from));
        *idle += (double)gap;
        int r = 0;
        while (r < *rows && strcmp(row[r].name, p->op[i].name)) r++;
        if (r == *rows && r + 1 < ROWS_MAX) row[(*rows)++].name = p->op[i].name;
        row[r].calls++;
        row[r].ms += (double)ms;
    }
    return OK;
}

extern "C" enum status device_profile_print(struct stream *s, void (*line)(void *ctx, const char *text), void *ctx)
{
    if (!s || !s->profile || !s->profile->n) return OK;
    struct profile_row row[ROWS_MAX] = {};
    char text[160];
    int rows = 0;
    double idle = 0, busy = 0;
    TRY_CUDA(cudaStreamSynchronize(s->cuda));
    TRY(sum_rows(s->profile, row, &rows, &idle));
    qsort(row, (size_t)rows, sizeof *row, by_time);
    for (int i = 0; i < rows; i++) busy += row[i].ms;
    double all = busy + idle > 0 ? busy + idle : 1;
    for (int i = 0; i <= rows; i++) {
        bool gaps = i == rows;
        snprintf(text, sizeof text, "%-18s %8d calls %12.3f ms %6.1f%%", gaps ? "(between ops)" : row[i].name,
                 gaps ? s->profile->n - 1 : row[i].calls, gaps ? idle : row[i].ms, 100 * (gaps ? idle : row[i].ms) / all);
        line(ctx, text);
    }
    snprintf(text, sizeof text, "%-18s %8d calls %12.3f ms%s", "all", s->profile->n, all,
             s->profile->lost ? "; later ops found no room" : "");
    line(ctx, text);
    return OK;
}
