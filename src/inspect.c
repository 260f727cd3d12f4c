#include "inspect.h"

#include "arch.h"
#include "hdf5.h"
#include "json.h"
#include "mesh.h"
#include "model.h"
#include "release.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 22 }; /* elements read at a time */

/* ---------------------------------------------------------------- numbers ---------------------------------------- */

static int64_t rows_at_once(const struct inspect_item *t) { return t->cols > PIECE ? 1 : PIECE / (t->cols > 0 ? t->cols : 1); }

enum status inspect_stats(const struct inspect_view *v, const struct inspect_item *t, struct inspect_stats *s)
{
    int64_t step = rows_at_once(t);
    float *x = malloc((size_t)(step < t->rows ? step : t->rows) * (size_t)t->cols * sizeof *x + 8);
    double sum = 0, square = 0;
    *s = (struct inspect_stats){.min = INFINITY, .max = -INFINITY};
    enum status st = x ? OK : FAIL(ERR_MEMORY, "%s: a row of %" PRId64, t->name, t->cols);
    for (int64_t row = 0; row < t->rows && !st; row += step) {
        int64_t n = t->rows - row < step ? t->rows - row : step;
        st = inspect_read(v, t, row, n, x);
        for (int64_t i = 0; i < n * t->cols && !st; i++) {
            if (isnan(x[i])) s->nan++;
            else if (isinf(x[i])) s->inf++;
            else {
                s->min = fmin(s->min, (double)x[i]);
                s->max = fmax(s->max, (double)x[i]);
                sum += (double)x[i];
                square += (double)x[i] * (double)x[i];
            }
        }
        s->count += n * t->cols;
    }
    int64_t finite = s->count - s->nan - s->inf;
    s->mean = finite ? sum / (double)finite : NAN;
    s->rms = finite ? sqrt(square / (double)finite) : NAN;
    if (!finite) s->min = s->max = NAN;
    free(x);
    return st;
}

/* Elements that differ in value or in being NaN, and the largest distance. */
static enum status compare(const struct inspect_view *a, const struct inspect_item *x, const struct inspect_view *b,
                           const struct inspect_item *y, int64_t *differ, double *most)
{
    int64_t step = rows_at_once(x), room = (step < x->rows ? step : x->rows) * x->cols;
    float *p = malloc((size_t)room * 2 * sizeof *p + 8), *q = p + room;
    enum status s = p ? OK : FAIL(ERR_MEMORY, "%s: a row of %" PRId64, x->name, x->cols);
    *differ = 0;
    *most = 0;
    for (int64_t row = 0; row < x->rows && !s; row += step) {
        int64_t n = x->rows - row < step ? x->rows - row : step;
        s = inspect_read(a, x, row, n, p);
        if (!s) s = inspect_read(b, y, row, n, q);
        for (int64_t i = 0; i < n * x->cols && !s; i++) {
            if (p[i] == q[i] || (isnan(p[i]) && isnan(q[i]))) continue;
            ++*differ;
            double d = fabs((double)p[i] - (double)q[i]);
            if (!(d <= *most)) *most = isnan(d) ? INFINITY : d;
        }
    }
    free(p);
    return s;
}

/* ---------------------------------------------------------------- a release's parts ------------------------------- */

static const char *part_of(const char *name)
{
    static const char *const part[][2] = {
        {".index_", "indexer"}, {"experts.", "routed experts"}, {"shared_experts", "shared expert"}, {"gate.weight", "router"},
        {"e_score", "router"}, {"self_attn", "attention"}, {"norm", "norms"}, {"embed_tokens", "embedding"}, {"lm_head", "head"},
        {"mlp.", "dense MLP"}, {"_proj", "dense MLP"}};
    if (release_is_passed(name)) return "passed through (vision, projector, MTP)";
    if (strstr(name, "shared_experts")) return "shared expert";
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (strstr(name, part[i][0])) return part[i][1];
    return "other";
}

struct tally {
    const char *name;
    int64_t tensors, elements, bytes;
};

static void count(struct tally *t, int *n, const char *name, int64_t elements, int64_t bytes)
{
    int i = 0;
    while (i < *n && strcmp(t[i].name, name) != 0) i++;
    if (i == *n) t[(*n)++] = (struct tally){.name = name};
    t[i].tensors++;
    t[i].elements += elements;
    t[i].bytes += bytes;
}

static json_t *tally_json(const struct tally *t, int n)
{
    json_t *o = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(o, t[i].name, json_pack("{s:I,s:I,s:I}", "tensors", (json_int_t)t[i].tensors, "elements",
                                                     (json_int_t)t[i].elements, "bytes", (json_int_t)t[i].bytes));
    return o;
}

static void tally_print(const char *title, const struct tally *t, int n)
{
    printf("%s\n", title);
    for (int i = 0; i < n; i++)
        printf("  %-42s %7" PRId64 " tensors %16" PRId64 " elements %10.3f GB\n", t[i].name, t[i].tensors, t[i].elements,
               1e-9 * (double)t[i].bytes);
}

struct names {
    const char **name;
    int64_t n;
};

static enum status add_name(void *ctx, const char *name, int rank, const int64_t *dim)
{
    struct names *x = ctx;
    (void)rank, (void)dim;
    if ((x->n & (x->n - 1)) == 0) {
        void *grown = realloc(x->name, (size_t)(x->n ? 2 * x->n : 1) * sizeof *x->name);
        if (!grown) return FAIL(ERR_MEMORY, "%" PRId64 " names", x->n);
        x->name = grown;
    }
    x->name[x->n] = strdup(name);
    return x->name[x->n++] ? OK : FAIL(ERR_MEMORY, "a name");
}

static enum status against_config(const struct inspect_view *v, const struct arch *a, struct release_report *r)
{
    struct names want = {0};
    enum status s = arch_each_tensor(a, add_name, &want);
    *r = (struct release_report){0};
    if (!s) release_check_names(v->release, want.name, want.n, NULL, NULL, r);
    for (int64_t i = 0; i < want.n; i++) free((void *)want.name[i]);
    free(want.name);
    return s;
}

static int layers_with(const bool *flag, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) sum += flag[i];
    return sum;
}

static enum status tell_release(const struct inspect_view *v, json_t *out)
{
    struct tally part[16], dtype[16];
    int parts = 0, dtypes = 0;
    static struct arch a;
    struct release_report r;
    TRY(arch_load(&a, v->path));
    TRY(against_config(v, &a, &r));
    for (int64_t i = 0; i < v->n; i++) {
        const struct inspect_item *t = &v->item[i];
        count(part, &parts, part_of(t->name), t->rows * t->cols, t->bytes);
        count(dtype, &dtypes, t->dtype, t->rows * t->cols, t->bytes);
    }
    if (out) {
        json_object_set_new(out, "layers", json_integer(a.layers));
        json_object_set_new(out, "moe_layers", json_integer(layers_with(a.moe, a.layers)));
        json_object_set_new(out, "sparse_layers", json_integer(layers_with(a.sparse, a.layers)));
        json_object_set_new(out, "experts", json_integer(a.experts));
        json_object_set_new(out, "experts_per_token", json_integer(a.experts_per_token));
        json_object_set_new(out, "parts", tally_json(part, parts));
        json_object_set_new(out, "dtypes", tally_json(dtype, dtypes));
        json_object_set_new(out, "missing", json_integer(r.missing));
        json_object_set_new(out, "unknown", json_integer(r.unknown));
        return OK;
    }
    printf("%d layers: %d with experts, %d with block-sparse attention; %d experts, %d a token; hidden %d, vocabulary %d\n", a.layers,
           layers_with(a.moe, a.layers), layers_with(a.sparse, a.layers), a.experts, a.experts_per_token, a.hidden, a.vocab);
    tally_print("parts", part, parts);
    tally_print("stored as", dtype, dtypes);
    const struct quant_map *map = &v->release->map;
    if (map->all || map->targets || map->layers) printf("quantisation map: %s\n", map->origin);
    printf("missing: %" PRId64 "%s%s; unknown: %" PRId64 "%s%s\n", r.missing, r.missing ? ", first " : "", r.first_missing,
           r.unknown, r.unknown ? ", first " : "", r.first_unknown);
    return OK;
}

/* ---------------------------------------------------------------- what a mesh would load ------------------------- */

static enum status tell_mesh(const struct inspect_view *v, const char *text)
{
    static struct arch a;
    struct mesh_shape s = {.tp = 1, .pp = 1, .ep = 1};
    char end;
    if (!v->release) return FAIL(ERR_USAGE, "--mesh is for a release");
    if (sscanf(text, "%d,%d,%d,%d%c", &s.tp, &s.pp, &s.ep, &s.dp, &end) != 4 || s.dp < 1)
        return FAIL(ERR_USAGE, "--mesh %s: tp,pp,ep,dp such as 4,4,8,2", text);
    TRY(arch_load(&a, v->path));
    int64_t world = (int64_t)s.tp * s.pp * s.dp;
    if (world < 1 || world > 1 << 20) return FAIL(ERR_USAGE, "--mesh %s: %" PRId64 " ranks", text, world);
    printf("rank  pp dp tp ep   layers     KV heads       elements      GB in bf16\n");
    for (int rank = 0; rank < world; rank++) {
        struct mesh m;
        int64_t elements = 0, bytes = 0;
        struct model model;
        TRY(mesh_plan(&m, s, &a, (int)world, rank));
        TRY(model_create(&model, &a, &m, &ops_cpu, NULL, DT_BF16, INT64_MAX / 4));
        for (int i = 0; i < model.n_params; i++) {
            const struct param *p = &model.params[i];
            int64_t n = p->here ? p->count[0] * p->count[1] * p->count[2] : 0;
            elements += n;
            bytes += n * (p->store == STORE_F32 ? 4 : 2);
        }
        model_destroy(&model);
        printf("%4d  %2d %2d %2d %2d   %3d..%-3d    %2d from %-2d  %15" PRId64 "  %8.3f\n", rank, m.pp_rank, m.dp_rank, m.tp_rank,
               m.ep_rank, m.first_layer, m.first_layer + m.layers - 1, m.kv_heads, m.kv_first, elements, 1e-9 * (double)bytes);
    }
    return OK;
}

/* ---------------------------------------------------------------- printing --------------------------------------- */

static const char *shape_text(const struct inspect_item *t, char text[128]) { return st_shape_text(t->rank, t->dim, text); }

static enum status print_attribute(void *ctx, const char *name, const char *value)
{
    json_t *out = ctx;
    if (out) json_object_set_new(out, name, json_string(value));
    else if (strchr(value, '\n')) printf("  %s: %zu bytes of text\n", name, strlen(value));
    else printf("  %-20s %s\n", name, value);
    return OK;
}

static enum status tell_header(struct inspect_view *v, json_t *out)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < v->n; i++) bytes += v->item[i].bytes;
    if (out) {
        json_object_set_new(out, "path", json_string(v->path));
        json_object_set_new(out, "kind", json_string(v->kind));
        json_object_set_new(out, "bytes", json_integer(bytes));
    } else
        printf("%s: %s, %" PRId64 " tensors, %.3f GB\n", v->path, v->kind, v->n, 1e-9 * (double)bytes);
    for (int i = 0; i < v->files; i++) {
        json_t *file = out ? json_object() : NULL;
        if (!out) printf("%s: %s\n", h5_path(v->h5[i]), h5_is_complete(h5_path(v->h5[i])) ? "complete" : status_message());
        TRY(h5_attributes(v->h5[i], "/", print_attribute, file));
        if (out) json_object_set_new(out, i ? "optimizer" : "model", file);
    }
    return v->release ? tell_release(v, out) : OK;
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static enum status tell_item(const struct inspect_view *v, const struct inspect_item *t, bool stats, json_t *list)
{
    char shape[128];
    struct inspect_stats s = {0};
    bool measured = stats && t->numbers;
    if (measured) TRY(inspect_stats(v, t, &s));
    if (list) {
        json_t *o = json_object(), *dim = json_array();
        for (int i = 0; i < t->rank; i++) json_array_append_new(dim, json_integer(t->dim[i]));
        json_object_set_new(o, "name", json_string(t->name));
        json_object_set_new(o, "dtype", json_string(t->dtype));
        json_object_set_new(o, "shape", dim);
        json_object_set_new(o, "bytes", json_integer(t->bytes));
        if (measured) {
            json_object_set_new(o, "min", number(s.min));
            json_object_set_new(o, "max", number(s.max));
            json_object_set_new(o, "mean", number(s.mean));
            json_object_set_new(o, "rms", number(s.rms));
            json_object_set_new(o, "nan", json_integer(s.nan));
            json_object_set_new(o, "inf", json_integer(s.inf));
        }
        json_array_append_new(list, o);
        return OK;
    }
    printf("%-9s %-18s %s", t->dtype, shape_text(t, shape), t->name);
    if (measured) printf("   min %.6g max %.6g mean %.6g rms %.6g nan %" PRId64 " inf %" PRId64, s.min, s.max, s.mean, s.rms, s.nan, s.inf);
    printf("\n");
    return OK;
}

static enum status tell(struct inspect_view *v, const struct inspect_args *a)
{
    json_t *out = a->json ? json_object() : NULL, *list = out ? json_array() : NULL;
    enum status s = tell_header(v, out);
    for (int64_t i = 0; i < v->n && !s; i++) s = tell_item(v, &v->item[i], a->stats, list);
    if (!s && a->verify) {
        s = inspect_verify(v);
        if (!s && out) json_object_set_new(out, "verified", json_true());
        if (!s && !out) printf("verified: every byte is what was written\n");
    }
    if (out) {
        json_object_set_new(out, "tensors", list);
        char *text = s ? NULL : json_dumps(out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        if (text) puts(text);
        free(text);
        json_decref(out);
    }
    return s;
}

/* ---------------------------------------------------------------- comparing -------------------------------------- */

static enum status diff_item(const struct inspect_view *a, const struct inspect_item *x, const struct inspect_view *b,
                             double tolerance, int64_t *different)
{
    const struct inspect_item *y = inspect_find(b, x->name);
    char p[128], q[128];
    int64_t differ = 0;
    double most = 0;
    if (!y) {
        printf("only in %s: %s\n", a->path, x->name);
        ++*different;
        return OK;
    }
    bool shapes = x->rank == y->rank && memcmp(x->dim, y->dim, (size_t)x->rank * sizeof *x->dim) == 0;
    if (!shapes) {
        printf("%s: %s against %s\n", x->name, shape_text(x, p), shape_text(y, q));
        ++*different;
        return OK;
    }
    if (x->numbers && y->numbers) TRY(compare(a, x, b, y, &differ, &most));
    if (strcmp(x->dtype, y->dtype) != 0) printf("%s: stored as %s against %s\n", x->name, x->dtype, y->dtype);
    differ = most <= tolerance ? 0 : differ;
    if (differ) printf("%s: %" PRId64 " of %" PRId64 " values differ, at most by %.6g\n", x->name, differ, x->rows * x->cols, most);
    *different += differ > 0;
    return OK;
}

static enum status diff(struct inspect_view *a, const char *path, double tolerance)
{
    struct inspect_view b;
    int64_t different = 0;
    TRY(inspect_open(&b, path));
    enum status s = OK;
    for (int64_t i = 0; i < a->n && !s; i++) s = diff_item(a, &a->item[i], &b, tolerance, &different);
    for (int64_t i = 0; i < b.n && !s; i++)
        if (!inspect_find(a, b.item[i].name)) {
            printf("only in %s: %s\n", b.path, b.item[i].name);
            different++;
        }
    if (!s && !different) printf("%s and %s: %" PRId64 " tensors, all values equal%s\n", a->path, b.path, a->n,
                                     tolerance > 0 ? " within the tolerance" : "");
    if (!s && different) s = FAIL(ERR_GATE, "%s and %s differ in %" PRId64 " tensors", a->path, b.path, different);
    inspect_close(&b);
    return s;
}

enum status inspect_run(const struct inspect_args *a)
{
    struct inspect_view v;
    TRY(inspect_open(&v, a->path));
    enum status s = a->other ? diff(&v, a->other, a->tolerance) : a->mesh ? tell_mesh(&v, a->mesh) : tell(&v, a);
    inspect_close(&v);
    return s;
}
