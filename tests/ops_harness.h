/* Checks a function of an op table against its formula in float64. A case builds operands of a random shape, calls the
 * op, and says what was to come out; the harness fills outputs with NaN first, leaves gaps between strided rows and
 * watches them, repeats every call bit for bit, and compares. It knows no device: memory and copies are the table's
 * own, so the same cases check every table. */
#ifndef OPS_HARNESS_H
#define OPS_HARNESS_H
#include "check.h"
#include "ops.h"

enum role {
    IN,  /* read */
    OUT, /* `=`: holds NaN before */
    ACC, /* `+=`: holds numbers before, the expectation adds to them */
    KEPT /* `=` in parts: holds numbers before, the expectation changes what is written */
};

struct operand {
    const char *name;
    struct tensor host;  /* storage, rows `ld` apart */
    unsigned char *kept; /* its bytes before the call */
    double *value;       /* [count] dense: what the storage holds; of an output, what is expected */
    enum role role;
    int alias;           /* operand whose memory it shares, -1: its own */
    double tol;          /* 0: the case's */
};

enum { MAX_OPERANDS = 24, MAX_PARAMS = 16 };
#define ANY 1e300 /* an expected value that is not looked at */

struct op_test {
    const struct ops *ops;
    struct stream *stream;
    const struct op_case *what;
    enum dtype dtype;
    uint64_t seed, draws;
    struct operand x[MAX_OPERANDS];
    int n;
    int64_t gap;             /* elements between the rows of the next operand */
    int64_t p[MAX_PARAMS];   /* the case's integers */
    float f[MAX_PARAMS];     /* and floats */
    struct tensor dev[MAX_OPERANDS];
    void *work;
};

struct op_case {
    const char *name; /* a sentence */
    void (*build)(struct op_test *t);
    enum status (*call)(struct op_test *t, const struct tensor *x);
    void (*expect)(struct op_test *t);
    double tol, tol_bf16; /* relative error in the 2-norm of each output; tol_bf16 0: no BF16 variant */
    int seeds;
};

static inline int64_t draw(struct op_test *t, int64_t from, int64_t to) /* an integer in [from, to] */
{
    return from + (int64_t)(check_hash(t->seed * 7919 + t->draws++) % (uint64_t)(to - from + 1));
}
#define PICK(t, ...)                                                                                                   \
    (((const int64_t[]){__VA_ARGS__})[draw(t, 0, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / 8) - 1)])

static inline int64_t count(const struct op_test *t, int i) { return tensor_count(t->x[i].host); }
static inline double *val(const struct op_test *t, int i) { return t->x[i].value; }
static inline int64_t dim(const struct op_test *t, int i, int d) { return t->x[i].host.dim[d]; }

static inline void *checked(void *p)
{
    if (!p) fail_msg("out of memory");
    return p;
}

/* Adds an operand of uniform numbers in [-1, 1) (zeros for integers). */
static inline int operand(struct op_test *t, const char *name, enum role role, enum dtype dtype, int64_t d0, int64_t d1,
                          int64_t d2)
{
    if (t->n == MAX_OPERANDS) fail_msg("%s: too many operands", t->what->name);
    struct operand *o = &t->x[t->n];
    *o = (struct operand){.name = name, .role = role, .alias = -1};
    o->host = tensor_view(NULL, dtype, PLACE_HOST, 3, d0, d1, d2, 1);
    o->host.ld += t->gap;
    t->gap = 0;
    o->value = checked(malloc((size_t)(tensor_count(o->host) + 1) * sizeof(double)));
    bool real = dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F64;
    for (int64_t i = 0; i < tensor_count(o->host); i++)
        o->value[i] = real ? (double)check_uniform(t->seed * 31 + (uint64_t)t->n, (uint64_t)i) : 0;
    return t->n++;
}

static inline void store(struct tensor t, int64_t i, double v)
{
    int64_t row = tensor_row(t), at = row ? i / row * t.ld + i % row : 0;
    switch (t.dtype) {
    case DT_F32: ((float *)t.data)[at] = (float)v; break;
    case DT_BF16: ((uint16_t *)t.data)[at] = bf16_from_float((float)v); break;
    case DT_F64: ((double *)t.data)[at] = v; break;
    case DT_I32: ((int32_t *)t.data)[at] = (int32_t)v; break;
    default: fail_msg("no such operand");
    }
}

static inline double load(struct tensor t, int64_t i)
{
    int64_t row = tensor_row(t), at = row ? i / row * t.ld + i % row : 0;
    switch (t.dtype) {
    case DT_F32: return ((float *)t.data)[at];
    case DT_BF16: return float_from_bf16(((uint16_t *)t.data)[at]);
    case DT_F64: return ((double *)t.data)[at];
    case DT_I32: return ((int32_t *)t.data)[at];
    default: fail_msg("no such operand"); return 0;
    }
}

/* Rounds the operands' values to what their dtype holds. Builders call it before they derive an operand from others. */
static inline void settle(struct op_test *t)
{
    for (int i = 0; i < t->n; i++)
        for (int64_t j = 0; j < count(t, i); j++) {
            double *v = &t->x[i].value[j];
            if (t->x[i].host.dtype == DT_F32) *v = (float)*v;
            if (t->x[i].host.dtype == DT_BF16) *v = float_from_bf16(bf16_from_float((float)*v));
        }
}

static inline size_t storage(struct tensor t) { return (size_t)(t.dim[0] * t.ld) * dtype_size(t.dtype); }

/* Values into storage: gaps and outputs are bytes of ones, which is NaN in every float dtype and -1 as an integer. */
static inline void seal(struct op_test *t)
{
    settle(t);
    for (int i = 0; i < t->n; i++) {
        struct operand *o = &t->x[i];
        size_t bytes = storage(o->host);
        o->kept = checked(malloc(bytes + 1));
        o->host.data = o->kept;
        memset(o->kept, 0xff, bytes);
        if (o->role != OUT)
            for (int64_t j = 0; j < count(t, i); j++) store(o->host, j, o->value[j]);
        o->host.data = checked(malloc(bytes + 1));
    }
}

static inline struct tensor bytes_of(struct tensor t, void *data, enum place place)
{
    return tensor_view(data, DT_U8, place, 1, (int64_t)storage(t), 1, 1, 1);
}

/* Scratch for the op, full of NaN. */
static inline struct tensor work_of(struct op_test *t, size_t bytes)
{
    check_ok(t->ops->alloc(&t->work, bytes + 1, t->ops->place));
    struct tensor work = tensor_view(t->work, DT_U8, t->ops->place, 1, (int64_t)bytes, 1, 1, 1);
    void *ones = checked(malloc(bytes + 1));
    memset(ones, 0xff, bytes + 1);
    check_ok(t->ops->copy(work, tensor_view(ones, DT_U8, PLACE_HOST, 1, (int64_t)bytes, 1, 1, 1), t->stream));
    check_ok(t->ops->wait(t->stream));
    free(ones);
    return work;
}

/* One call; the outputs' bytes are in host.data afterwards. */
static inline void run_once(struct op_test *t)
{
    enum place place = t->ops->place;
    for (int i = 0; i < t->n; i++) {
        struct operand *o = &t->x[i];
        t->dev[i] = o->host;
        t->dev[i].place = place;
        if (o->alias >= 0) continue;
        check_ok(t->ops->alloc(&t->dev[i].data, storage(o->host) + 1, place));
        check_ok(t->ops->copy(bytes_of(o->host, t->dev[i].data, place), bytes_of(o->host, o->kept, PLACE_HOST),
                              t->stream));
    }
    for (int i = 0; i < t->n; i++)
        if (t->x[i].alias >= 0) t->dev[i] = t->dev[t->x[i].alias];
    t->work = NULL;
    enum status s = t->what->call(t, t->dev);
    if (s) fail_msg("%s: %d: %s (%s)", t->what->name, (int)s, status_message(), status_where());
    for (int i = 0; i < t->n; i++)
        check_ok(t->ops->copy(bytes_of(t->x[i].host, t->x[i].host.data, PLACE_HOST),
                              bytes_of(t->x[i].host, t->dev[i].data, place), t->stream));
    check_ok(t->ops->wait(t->stream));
    for (int i = 0; i < t->n; i++)
        if (t->x[i].alias < 0) t->ops->release(t->dev[i].data, place);
    if (t->work) t->ops->release(t->work, place);
}

static inline bool is_aliased(const struct op_test *t, int i)
{
    for (int j = 0; j < t->n; j++)
        if (t->x[j].alias == i) return true;
    return t->x[i].alias >= 0;
}

/* Inputs unchanged; gaps of outputs unchanged. */
static inline void check_untouched(const struct op_test *t, int i)
{
    const struct operand *o = &t->x[i];
    int64_t row = tensor_row(o->host), size = (int64_t)dtype_size(o->host.dtype);
    const unsigned char *now = o->host.data;
    if (is_aliased(t, i)) return;
    for (int64_t b = 0; b < (int64_t)storage(o->host); b++)
        if ((o->role == IN || b / size % o->host.ld >= row) && now[b] != o->kept[b])
            fail_msg("%s, seed %d, %s: byte %d of %s was changed", t->what->name, (int)t->seed, dtype_name(t->dtype),
                     (int)b, o->name);
}

static inline void check_output(const struct op_test *t, int i)
{
    const struct operand *o = &t->x[i];
    bool narrow = o->host.dtype == DT_BF16 || t->dtype == DT_BF16;
    double tol = o->tol > 0 ? o->tol : narrow ? t->what->tol_bf16 : t->what->tol;
    double diff = 0, norm = 0, worst = -1;
    int64_t at = 0;
    if (o->host.dtype == DT_I32) tol = 0;
    for (int64_t j = 0; j < count(t, i); j++) {
        if (o->value[j] == ANY) continue;
        double got = load(o->host, j), d = fabs(got - o->value[j]);
        if (got == o->value[j]) d = 0; /* infinities */
        diff += d * d;
        norm += isinf(o->value[j]) ? 0 : o->value[j] * o->value[j];
        if (!(d <= worst)) worst = d, at = j;
    }
    double rel = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    if (!(rel <= tol))
        fail_msg("%s, seed %d, %s: %s is off by %.3g, at most %.3g; worst at %lld of [%lld, %lld, %lld]: %.9g, "
                 "expected %.9g", t->what->name, (int)t->seed, dtype_name(t->dtype), o->name, rel, tol, (long long)at,
                 (long long)dim(t, i, 0), (long long)dim(t, i, 1), (long long)dim(t, i, 2), load(o->host, at),
                 o->value[at]);
}

/* The call once more must give the same bytes. */
static inline void check_repeats(struct op_test *t)
{
    unsigned char *first[MAX_OPERANDS];
    for (int i = 0; i < t->n; i++) {
        size_t bytes = storage(t->x[i].host);
        first[i] = checked(malloc(bytes + 1));
        memcpy(first[i], t->x[i].host.data, bytes);
    }
    run_once(t);
    for (int i = 0; i < t->n; i++) {
        if (memcmp(first[i], t->x[i].host.data, storage(t->x[i].host)))
            fail_msg("%s, seed %d, %s: %s differs between two calls", t->what->name, (int)t->seed,
                     dtype_name(t->dtype), t->x[i].name);
        free(first[i]);
    }
}

/* vary(step) changes what must not matter (threads) and returns whether there is such a step; NULL: one run. */
static inline void op_case_run(const struct ops *ops, struct stream *stream, const struct op_case *what,
                               bool (*vary)(int step))
{
    for (int seed = 0; seed < what->seeds; seed++)
        for (int d = 0; d < (what->tol_bf16 > 0 ? 2 : 1); d++) {
            struct op_test t = {.ops = ops, .stream = stream, .what = what, .seed = (uint64_t)seed,
                                .dtype = d ? DT_BF16 : DT_F32};
            what->build(&t);
            seal(&t);
            what->expect(&t);
            for (int step = 0; vary ? vary(step) : step == 0; step++) {
                run_once(&t);
                for (int i = 0; i < t.n; i++) {
                    check_untouched(&t, i);
                    if (t.x[i].role != IN) check_output(&t, i);
                }
                check_repeats(&t);
            }
            for (int i = 0; i < t.n; i++) {
                free(t.x[i].kept);
                free(t.x[i].host.data);
                free(t.x[i].value);
            }
        }
}

/* Central differences: what is added to the expectation of `grad` is d loss / d `input`, loss being the sum of the
 * forward's outputs times their gradients. All elements, or as many as `budget` evaluations allow, evenly spread: the
 * others become ANY. */
static inline void derive(struct op_test *t, int grad, int input, double (*loss)(struct op_test *t), int64_t budget)
{
    int64_t n = count(t, input), step = n / budget + 1;
    double *x = val(t, input), *g = val(t, grad);
    if (t->x[grad].role == OUT)
        for (int64_t i = 0; i < n; i++) g[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((i + (int64_t)t->seed) % step) {
            g[i] = ANY;
            continue;
        }
        double keep = x[i], h = 1e-5, up, down;
        x[i] = keep + h, up = loss(t);
        x[i] = keep - h, down = loss(t);
        x[i] = keep;
        g[i] += (up - down) / (2 * h);
    }
}
#endif
