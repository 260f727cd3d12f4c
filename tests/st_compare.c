/* st_compare A.safetensors B.safetensors [TOL]: compares every tensor of B (the reference) with A's of the same name.
 * Floating tensors by the 2-norm of the difference over the 2-norm of the reference; integer tensors by equality, those
 * named block_indices or router_experts as one set a row (last dimension), where -1 is an empty slot and rows may have
 * different numbers of slots. Exit status 1 when something is missing or differs by more than TOL (default 0), 2 on bad
 * usage or files that cannot be read. */
#include "safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double number(enum dtype t, const void *data, int64_t i)
{
    switch (t) {
    case DT_F32: return ((const float *)data)[i];
    case DT_BF16: return (double)float_from_bf16(((const uint16_t *)data)[i]);
    case DT_U8: return ((const uint8_t *)data)[i];
    case DT_I8: return ((const int8_t *)data)[i];
    case DT_I32: return ((const int32_t *)data)[i];
    case DT_I64: return (double)((const int64_t *)data)[i];
    default: return NAN;
    }
}

static double relative_error(const struct st_tensor *a, const void *x, const struct st_tensor *b, const void *y)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < st_elements(b); i++) {
        double p = number(a->dtype, x, i), q = number(b->dtype, y, i);
        diff += (p - q) * (p - q);
        norm += q * q;
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static bool in_row(const struct st_tensor *t, const void *data, int64_t row, int64_t cols, double value)
{
    for (int64_t c = 0; c < cols; c++)
        if (number(t->dtype, data, row * cols + c) == value) return true;
    return false;
}

static bool subset(const struct st_tensor *a, const void *x, int64_t na, const struct st_tensor *b, const void *y, int64_t nb,
                   int64_t row)
{
    for (int64_t c = 0; c < na; c++) {
        double v = number(a->dtype, x, row * na + c);
        if (v >= 0 && !in_row(b, y, row, nb, v)) return false;
    }
    return true;
}

/* Rows whose sets differ; -1 when the numbers of rows do. */
static int64_t different_rows(const struct st_tensor *a, const void *x, const struct st_tensor *b, const void *y)
{
    int64_t na = a->rank ? a->dim[a->rank - 1] : 1, nb = b->rank ? b->dim[b->rank - 1] : 1, bad = 0;
    if (!na || !nb) return st_elements(a) == st_elements(b) ? 0 : -1;
    int64_t rows = st_elements(b) / nb;
    if (st_elements(a) / na != rows) return -1;
    for (int64_t r = 0; r < rows; r++) bad += !subset(a, x, na, b, y, nb, r) || !subset(b, y, nb, a, x, na, r);
    return bad;
}

static bool is_set(const struct st_tensor *t)
{
    bool integer = t->dtype == DT_I32 || t->dtype == DT_I64;
    return integer && (strstr(t->name, "block_indices") || strstr(t->name, "router_experts"));
}

/* True when the tensor passes; prints one line when not, and adds to *worst. */
static bool compare(const struct st_tensor *a, const void *x, const struct st_tensor *b, const void *y, double tol, double *worst)
{
    if (is_set(a) && is_set(b)) {
        int64_t bad = different_rows(a, x, b, y);
        if (bad) printf("%s: %" PRId64 " rows differ\n", b->name, bad);
        return bad == 0;
    }
    if (st_elements(a) != st_elements(b)) {
        char p[128], q[128];
        printf("%s: shape %s, expected %s\n", b->name, st_shape_text(a->rank, a->dim, p), st_shape_text(b->rank, b->dim, q));
        return false;
    }
    double e = relative_error(a, x, b, y);
    if (!(e <= *worst)) *worst = e;
    if (e <= tol) return true;
    printf("%s: relative error %.3g > %.3g\n", b->name, e, tol);
    return false;
}

static enum status check(const struct st_file *fa, const struct st_tensor *a, const struct st_file *fb,
                         const struct st_tensor *b, double tol, double *worst, bool *pass)
{
    void *x = malloc((size_t)st_bytes(a) + 1), *y = malloc((size_t)st_bytes(b) + 1);
    enum status s = x && y ? OK : FAIL(ERR_MEMORY, "no memory for %s", b->name);
    if (!s) s = st_read(fa, a, 0, (size_t)st_bytes(a), x);
    if (!s) s = st_read(fb, b, 0, (size_t)st_bytes(b), y);
    if (!s) *pass = compare(a, x, b, y, tol, worst);
    free(x);
    free(y);
    return s;
}

int main(int argc, char **argv)
{
    struct st_file a = {.fd = -1}, b = {.fd = -1};
    double tol = argc > 3 ? atof(argv[3]) : 0, worst = 0;
    int64_t bad = 0;
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: %s A.safetensors B.safetensors [TOL]\n", argv[0]);
        return 2;
    }
    enum status s = st_open(&a, argv[1]);
    if (!s) s = st_open(&b, argv[2]);
    for (int64_t i = 0; i < b.count && !s; i++) {
        const struct st_tensor *t = &b.tensors[i], *mine = st_find(&a, t->name);
        bool pass = false;
        if (mine) s = check(&a, mine, &b, t, tol, &worst, &pass);
        else printf("%s: missing\n", t->name);
        bad += !pass;
    }
    if (s) fprintf(stderr, "%s\n", status_message());
    else printf("%" PRId64 " tensors, %" PRId64 " bad, worst relative error %.3g\n", b.count, bad, worst);
    st_close(&a);
    st_close(&b);
    return s ? 2 : bad != 0;
}
