/* What the tests of m3 convert share: a folder with src and dst, and comparisons of a converted release. */
#ifndef CONVERT_CHECK_H
#define CONVERT_CHECK_H
#include "arch.h"
#include "convert.h"
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#define GOLDEN "tests/data/golden/"
#define L "language_model.model.layers."

static char dir[FIXTURE_PATH], src[FIXTURE_PATH], dst[FIXTURE_PATH];

static inline int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(src, dir, "src");
    fixture_join(dst, dir, "dst");
    return 0;
}

static inline int remove_dir(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

static inline void *read_all(const struct release *r, const struct release_raw *raw)
{
    void *data = malloc((size_t)st_bytes(raw->t) + 1);
    check_ok(release_read_raw(r, raw, 0, (size_t)st_bytes(raw->t), data));
    return data;
}

static inline void expect_same(const char *what, const void *a, const void *b, size_t n)
{
    if (memcmp(a, b, n)) fail_msg("%s differs", what);
}

/* Every tensor of `expected` stands in the converted release with the same dtype, shape and bytes, and no other does. */
static inline void equals_golden(const char *expected)
{
    struct release *r;
    struct st_file f;
    check_ok(release_open(&r, dst));
    check_ok(st_open(&f, expected));
    assert_int_equal(r->n_raw, f.count);
    for (int64_t i = 0; i < f.count; i++) {
        const struct st_tensor *t = &f.tensors[i];
        const struct release_raw *raw = release_find_raw(r, t->name);
        if (!raw) fail_msg("%s is missing", t->name);
        assert_int_equal(raw->t->dtype, t->dtype);
        assert_int_equal(raw->t->rank, t->rank);
        assert_int_equal(st_bytes(raw->t), st_bytes(t));
        void *a = read_all(r, raw), *b = malloc((size_t)st_bytes(t));
        check_ok(st_read(&f, t, 0, (size_t)st_bytes(t), b));
        expect_same(t->name, a, b, (size_t)st_bytes(t));
        free(a);
        free(b);
    }
    st_close(&f);
    release_close(&r);
}

/* Both sides under the model's names: equal values, the destination BF16 but for router gate and bias. */
static inline void check_bf16_of(const char *from)
{
    struct release *a, *b;
    check_ok(release_open(&a, from));
    check_ok(release_open(&b, dst));
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        const struct release_tensor *t = &a->tensors[i], *u = release_find(b, t->name);
        if (!u) fail_msg("%s is missing", t->name);
        bool stays = t->passed || strstr(t->name, "moe.gate.weight") || strstr(t->name, "correction_bias");
        assert_int_equal(u->data->t->dtype, stays ? t->data->t->dtype : DT_BF16);
        assert_string_equal(u->data->t->name, t->passed ? t->data->t->name : t->name); /* the alias is written out */
        size_t n = (size_t)(t->rows * t->cols) * dtype_size(u->data->t->dtype);
        void *x = malloc(n), *y = read_all(b, u->data);
        check_ok(release_read(a, t, 0, t->rows, 0, t->cols, u->data->t->dtype, x));
        expect_same(t->name, x, y, n);
        free(x);
        free(y);
    }
    release_close(&a);
    release_close(&b);
}

#endif
