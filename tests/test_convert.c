/* m3 convert: exact decoding, cut layers in both dialects, resuming after a kill, refusals that leave nothing behind. */
#include "arch.h"
#include "convert.h"
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define GOLDEN "tests/data/golden/"
#define L "language_model.model.layers."

static char dir[FIXTURE_PATH], src[FIXTURE_PATH], dst[FIXTURE_PATH];

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(src, dir, "src");
    fixture_join(dst, dir, "dst");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

static void *read_all(const struct release *r, const struct release_raw *raw)
{
    void *data = malloc((size_t)st_bytes(raw->t) + 1);
    check_ok(release_read_raw(r, raw, 0, (size_t)st_bytes(raw->t), data));
    return data;
}

static void expect_same(const char *what, const void *a, const void *b, size_t n)
{
    if (memcmp(a, b, n)) fail_msg("%s differs", what);
}

/* Every tensor of `expected` stands in the converted release with the same dtype, shape and bytes, and no other does. */
static void equals_golden(const char *expected)
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

static void quantised_releases_become_the_golden_bf16(void **state)
{
    (void)state;
    static const char *const name[] = {"narrow_mxfp8", "narrow_nvfp4_ct", "narrow_nvfp4_mixed"};
    char from[FIXTURE_PATH], expected[FIXTURE_PATH];
    for (int i = 0; i < 3; i++) {
        json_t *config;
        snprintf(from, sizeof from, GOLDEN "%s/checkpoint", name[i]);
        snprintf(expected, sizeof expected, GOLDEN "%s/expected_bf16.safetensors", name[i]);
        struct convert_args a = {.src = from, .dst = dst, .shard_bytes = 100000, .verify = true};
        check_ok(convert_release(&a));
        equals_golden(expected);
        assert_false(fixture_exists(dst, "hf_quant_config.json"));
        assert_false(fixture_exists(dir, "dst.tmp"));
        check_ok(json_read_file(&config, fixture_join(from, dst, "config.json"), 1 << 20));
        assert_null(json_object_get(config, "quantization_config"));
        json_decref(config);
        fixture_remove(dst);
    }
}

/* Both sides under the model's names: equal values, the destination BF16 but for router gate and bias. */
static void check_bf16_of(const char *from)
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

static void float32_becomes_bf16_but_for_router_and_passed_tensors(void **state)
{
    (void)state;
    static const char *const name[] = {"narrow", "wide"};
    char from[FIXTURE_PATH];
    for (int i = 0; i < 2; i++) {
        json_t *config;
        snprintf(from, sizeof from, GOLDEN "%s/checkpoint", name[i]);
        struct convert_args a = {.src = from, .dst = dst, .shard_bytes = 70000, .verify = true};
        check_ok(convert_release(&a));
        check_bf16_of(from);
        assert_true(fixture_exists(dst, "generation_config.json"));
        check_ok(json_read_file(&config, fixture_join(from, dst, "config.json"), 1 << 20));
        assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), "bfloat16");
        json_decref(config);
        fixture_remove(dst);
    }
}

static void keep_copies_every_tensor_and_file(void **state)
{
    (void)state;
    static const char *const name[] = {"narrow", "narrow_mxfp8", "narrow_nvfp4_ct", "narrow_nvfp4_mixed"};
    char from[FIXTURE_PATH], a_path[FIXTURE_PATH], b_path[FIXTURE_PATH];
    for (int i = 0; i < 4; i++) {
        struct release *a, *b;
        snprintf(from, sizeof from, GOLDEN "%s/checkpoint", name[i]);
        struct convert_args args = {.src = from, .dst = dst, .keep = true, .shard_bytes = 50000};
        check_ok(convert_release(&args));
        check_ok(release_open(&a, from));
        check_ok(release_open(&b, dst));
        assert_int_equal(a->n_raw, b->n_raw);
        for (int64_t k = 0; k < a->n_raw; k++) {
            const struct release_raw *raw = release_find_raw(b, a->raw[k].t->name);
            if (!raw || raw->t->dtype != a->raw[k].t->dtype) fail_msg("%s is missing or changed", a->raw[k].t->name);
            void *x = read_all(a, &a->raw[k]), *y = read_all(b, raw);
            expect_same(raw->t->name, x, y, (size_t)st_bytes(raw->t));
            free(x);
            free(y);
        }
        static const char *const files[] = {"config.json", "hf_quant_config.json", "generation_config.json"};
        for (int k = 0; k < 3; k++) {
            size_t n, m;
            assert_int_equal(fixture_exists(from, files[k]), fixture_exists(dst, files[k]));
            if (!fixture_exists(from, files[k])) continue;
            char *x = fixture_read(fixture_join(a_path, from, files[k]), &n), *y = fixture_read(fixture_join(b_path, dst, files[k]), &m);
            assert_int_equal(n, m);
            expect_same(files[k], x, y, n);
            free(x);
            free(y);
        }
        release_close(&a);
        release_close(&b);
        fixture_remove(dst);
    }
}

/* The chosen layers of `from` stand under their new numbers with the same values; nothing else of the layers does. */
static void check_cut(const char *from, const int *layers, int n)
{
    struct release *a, *b;
    struct arch x, y;
    check_ok(release_open(&a, from));
    check_ok(release_open(&b, dst));
    check_ok(arch_load(&x, from));
    check_ok(arch_load(&y, dst));
    assert_int_equal(y.layers, n);
    for (int i = 0; i < n; i++) assert_true(y.moe[i] == x.moe[layers[i]] && y.sparse[i] == x.sparse[layers[i]]);
    int64_t found = 0;
    for (int64_t k = 0; k < b->count; k++) {
        const struct release_tensor *u = &b->tensors[k];
        char name[256], rest[200];
        int layer;
        snprintf(name, sizeof name, "%s", u->name);
        if (sscanf(u->name, L "%d.%199s", &layer, rest) == 2) {
            assert_in_range(layer, 0, n - 1);
            snprintf(name, sizeof name, L "%d.%s", layers[layer], rest);
            found++;
        }
        const struct release_tensor *t = release_find(a, name);
        if (!t) fail_msg("%s has no source %s", u->name, name);
        enum dtype d = u->data->t->dtype == DT_F32 ? DT_F32 : DT_BF16;
        size_t bytes = (size_t)(t->rows * t->cols) * dtype_size(d);
        void *p = malloc(bytes), *q = malloc(bytes);
        check_ok(release_read(a, t, 0, t->rows, 0, t->cols, d, p));
        check_ok(release_read(b, u, 0, u->rows, 0, u->cols, d, q));
        expect_same(u->name, p, q, bytes);
        free(p);
        free(q);
    }
    assert_true(found > 10 * n);
    release_close(&a);
    release_close(&b);
}

static void layers_are_cut_and_renumbered_in_both_dialects(void **state)
{
    (void)state;
    static const int some[] = {1, 2}, last[] = {3};
    char path[FIXTURE_PATH];
    size_t n;
    char *flat = fixture_read("tests/data/arch/narrow_flat.json", &n);
    fixture_copy(GOLDEN "narrow/checkpoint", src);
    for (int dialect = 0; dialect < 2; dialect++) {
        if (dialect) fixture_write(fixture_join(path, src, "config.json"), flat, n);
        struct convert_args a = {.src = src, .dst = dst, .layers = some, .n_layers = 2, .verify = true};
        check_ok(convert_release(&a));
        check_cut(src, some, 2);
        fixture_remove(dst);
        a.layers = last, a.n_layers = 1, a.keep = true;
        check_ok(convert_release(&a));
        check_cut(src, last, 1);
        fixture_remove(dst);
    }
    free(flat);
}

static void the_map_of_a_kept_quantisation_is_cut_too(void **state)
{
    (void)state;
    static const char *const name[] = {"narrow_mxfp8", "narrow_nvfp4_ct", "narrow_nvfp4_mixed"};
    static const int layers[] = {0, 3};
    char from[FIXTURE_PATH];
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, GOLDEN "%s/checkpoint", name[i]);
        struct convert_args a = {.src = from, .dst = dst, .layers = layers, .n_layers = 2, .keep = true};
        check_ok(convert_release(&a));
        check_cut(from, layers, 2); /* opens only if map and tensors agree */
        fixture_remove(dst);
    }
    fixture_copy(GOLDEN "narrow_mxfp8/checkpoint", src);
    fixture_edit(src, "config.json", "\"gate\",", "\"gate\", \"" L "3.block_sparse_moe.gate\", \"model.layers.1.self_attn.q_norm\", ", false);
    struct convert_args a = {.src = src, .dst = dst, .layers = layers, .n_layers = 2, .keep = true};
    check_ok(convert_release(&a));
    size_t n;
    char *text = fixture_read(fixture_join(from, dst, "config.json"), &n);
    assert_non_null(strstr(text, L "1.block_sparse_moe.gate"));
    assert_null(strstr(text, "q_norm"));
    free(text);
}

static void config_keys_stay_but_for_an_allowed_list(void **state) /* P12 */
{
    (void)state;
    static const int layers[] = {0, 2};
    static const char *const may[] = {"num_hidden_layers", "moe_layer_freq", "sparse_attention_freq", "sparse_disable_index_value",
                                      "torch_dtype", "sparse_attention_config", "text_config"};
    json_t *a, *b, *v;
    char path[FIXTURE_PATH];
    const char *key;
    struct convert_args args = {.src = GOLDEN "wide/checkpoint", .dst = dst, .layers = layers, .n_layers = 2};
    check_ok(convert_release(&args));
    check_ok(json_read_file(&a, GOLDEN "wide/checkpoint/config.json", 1 << 20));
    check_ok(json_read_file(&b, fixture_join(path, dst, "config.json"), 1 << 20));
    static const char *const parts[] = {NULL, "text_config", "sparse_attention_config"};
    json_t *x = a, *y = b;
    for (int i = 0; i < 3; i++) {
        if (parts[i]) x = json_object_get(x, parts[i]), y = json_object_get(y, parts[i]);
        assert_int_equal(json_object_size(x), json_object_size(y));
        json_object_foreach(x, key, v) {
            bool allowed = false;
            for (size_t k = 0; k < sizeof may / sizeof *may; k++) allowed |= strcmp(key, may[k]) == 0;
            if (!json_object_get(y, key) || (!allowed && !json_equal(v, json_object_get(y, key)))) fail_msg("%s changed", key);
        }
    }
    size_t n;
    char *text = fixture_read(path, &n);
    if (!strstr(text, "1e-6,") || !strstr(text, "1.702,")) fail_msg("numbers were respelled: %s", text);
    free(text);
    json_decref(a);
    json_decref(b);
}

static void stop_after(void *ctx, int shard, int n)
{
    (void)shard, (void)n;
    if (--*(int *)ctx == 0) raise(SIGKILL);
}

static void count_shards(void *ctx, int shard, int n)
{
    (void)shard, (void)n;
    ++*(int *)ctx;
}

/* A conversion that is killed after `shards` finished ones. */
static void killed_conversion(struct convert_args a, int shards)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        a.each_shard = stop_after;
        a.ctx = &shards;
        convert_release(&a);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void a_killed_conversion_goes_on_with_what_is_proven_finished(void **state)
{
    (void)state;
    char tmp[FIXTURE_PATH], path[FIXTURE_PATH];
    int written = 0, all;
    struct convert_args a = {.src = GOLDEN "narrow_mxfp8/checkpoint", .dst = dst, .shard_bytes = 60000, .verify = true,
                             .each_shard = count_shards, .ctx = &written};
    check_ok(convert_release(&a));
    all = written;
    assert_true(all >= 8);
    fixture_remove(dst);

    killed_conversion(a, 5);
    assert_false(fixture_exists(dir, "dst"));
    fixture_join(tmp, dir, "dst.tmp");
    written = 0;
    check_ok(convert_release(&a));
    assert_int_equal(written, all - 5);
    equals_golden(GOLDEN "narrow_mxfp8/expected_bf16.safetensors");
    assert_false(fixture_exists(dir, "dst.tmp"));
    fixture_remove(dst);

    /* a flipped byte in a finished shard, a record of nothing, a torn shard: written again */
    killed_conversion(a, 5);
    size_t n;
    char name[64];
    snprintf(name, sizeof name, "model-00002-of-%05d.safetensors", all);
    char *data = fixture_read(fixture_join(path, tmp, name), &n);
    data[n - 7] ^= 1;
    fixture_write(path, data, n);
    free(data);
    snprintf(name, sizeof name, "model-00003-of-%05d.safetensors", all);
    assert_int_equal(truncate(fixture_join(path, tmp, name), 100), 0);
    snprintf(name, sizeof name, "model-00004-of-%05d.safetensors.done", all);
    fixture_write(fixture_join(path, tmp, name), "what?", 5);
    written = 0;
    check_ok(convert_release(&a));
    assert_int_equal(written, all - 2);
    equals_golden(GOLDEN "narrow_mxfp8/expected_bf16.safetensors");
    fixture_remove(dst);

    /* other choices: nothing of the earlier run is taken */
    killed_conversion(a, 5);
    a.shard_bytes = 50000;
    a.src = GOLDEN "narrow_nvfp4_ct/checkpoint";
    check_ok(convert_release(&a));
    equals_golden(GOLDEN "narrow_nvfp4_ct/expected_bf16.safetensors");
}

static void bad_choices_and_destinations_leave_nothing(void **state)
{
    (void)state;
    static const int beyond[] = {0, 4}, back[] = {2, 1};
    char path[FIXTURE_PATH];
    struct convert_args a = {.src = GOLDEN "narrow/checkpoint", .dst = dst, .layers = beyond, .n_layers = 2};
    check_fails(convert_release(&a), ERR_USAGE, "layer 4, but ");
    a.layers = back;
    check_fails(convert_release(&a), ERR_USAGE, "1 does not come after 2");
    a.layers = NULL;
    a.src = "no/such/release";
    check_fails(convert_release(&a), ERR_IO, "no/such/release");
    assert_false(fixture_exists(dir, "dst") || fixture_exists(dir, "dst.tmp"));
    a.src = GOLDEN "narrow/checkpoint";
    assert_int_equal(mkdir(dst, 0700), 0);
    fixture_write(fixture_join(path, dst, "mine"), "x", 1);
    check_fails(convert_release(&a), ERR_IO, "exists and holds mine");
    assert_false(fixture_exists(dir, "dst.tmp"));
    fixture_remove(dst);
    assert_int_equal(mkdir(fixture_join(path, dir, "dst.tmp"), 0700), 0);
    fixture_write(fixture_join(path, dir, "dst.tmp/thesis.doc"), "x", 1);
    check_fails(convert_release(&a), ERR_IO, "thesis.doc");
    assert_true(fixture_exists(dir, "dst.tmp/thesis.doc"));
}

static void missing_index_tensors_are_refused_unless_attention_is_dense(void **state) /* P14 */
{
    (void)state;
    static const int layers[] = {1, 3};
    struct release *r;
    struct st_writer w;
    struct arch x;
    char path[FIXTURE_PATH];
    check_ok(release_open(&r, GOLDEN "narrow/checkpoint"));
    check_ok(st_writer_open(&w, src));
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < r->n_raw; i++) {
            const struct st_tensor *t = r->raw[i].t;
            if (strstr(t->name, "layers.3.self_attn.index_")) continue;
            void *data = read_all(r, &r->raw[i]);
            if (pass) check_ok(st_writer_write(&w, t->name, data, (size_t)st_bytes(t)));
            else check_ok(st_writer_add(&w, t->name, t->dtype, t->rank, t->dim));
            free(data);
        }
        if (!pass) check_ok(st_writer_begin(&w, 0));
    }
    check_ok(release_copy_file(GOLDEN "narrow/checkpoint/config.json", fixture_join(path, w.tmp, "config.json")));
    check_ok(st_writer_close(&w));
    release_close(&r);
    struct convert_args a = {.src = src, .dst = dst};
    check_fails(convert_release(&a), ERR_FORMAT, "4 tensors missing (first: " L "3.self_attn.index_k_norm.weight");
    a.dense_attention = true;
    check_ok(convert_release(&a));
    check_ok(arch_load(&x, dst));
    assert_true(x.sparse[2] && !x.sparse[3] && x.moe[3]);
    fixture_remove(dst);
    a.layers = layers, a.n_layers = 2;
    check_ok(convert_release(&a));
    check_ok(arch_load(&x, dst));
    assert_true(!x.sparse[0] && !x.sparse[1] && x.moe[1]);
}

static void names_and_shapes_must_be_those_of_the_config(void **state)
{
    (void)state;
    struct convert_args a = {.src = src, .dst = dst};
    fixture_copy(GOLDEN "narrow/checkpoint", src);
    fixture_edit(src, "config.json", "\"dense_intermediate_size\": 96", "\"dense_intermediate_size\": 95", false);
    check_fails(convert_release(&a), ERR_FORMAT, "layers.0.mlp.gate_proj.weight is [96, 64], config.json makes it [95, 64]");
    fixture_edit(src, "config.json", "\"dense_intermediate_size\": 95", "\"dense_intermediate_size\": 96", false);
    fixture_edit(src, "config.json", "\"num_local_experts\": 8", "\"num_local_experts\": 9", false);
    check_fails(convert_release(&a), ERR_FORMAT, "gate.weight is [8, 64], config.json makes it [9, 64]");
    assert_false(fixture_exists(dir, "dst.tmp"));
}

static void a_bad_scale_and_a_full_disk_end_with_words_and_no_destination(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    size_t n;
    struct rlimit old, low;
    struct convert_args a = {.src = src, .dst = dst, .shard_bytes = 60000};
    fixture_copy(GOLDEN "narrow_mxfp8/checkpoint", src);
    char *data = fixture_read(fixture_join(path, src, "model-00002-of-00002.safetensors"), &n);
    data[n - 1] = (char)0xff; /* the last tensor of the file is a scale */
    fixture_write(path, data, n);
    free(data);
    check_fails(convert_release(&a), ERR_FORMAT, "a scale is NaN");
    assert_false(fixture_exists(dir, "dst"));

    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 30000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &low);
    a.src = GOLDEN "narrow/checkpoint";
    enum status s = convert_release(&a);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(s, ERR_IO);
    if (!strstr(status_message(), "dst.tmp/model-")) fail_msg("%s", status_message());
    assert_false(fixture_exists(dir, "dst"));
    check_ok(convert_release(&a)); /* and then there is room */
    check_bf16_of(a.src);
}

static void try_again(void *ctx, int shard, int n)
{
    (void)shard, (void)n;
    struct convert_args a = *(struct convert_args *)ctx;
    a.each_shard = NULL;
    if (convert_release(&a) != ERR_IO || !strstr(status_message(), "another conversion is writing there"))
        ((struct convert_args *)ctx)->dst = "two conversions wrote into one folder";
}

static void a_second_conversion_into_the_same_folder_is_refused(void **state)
{
    (void)state;
    struct convert_args a = {.src = GOLDEN "narrow/checkpoint", .dst = dst, .shard_bytes = 100000, .each_shard = try_again}, seen = a;
    a.ctx = &seen;
    check_ok(convert_release(&a));
    assert_string_equal(seen.dst, dst);
    check_bf16_of(a.src);
}

static enum status plan_tensor(void *ctx, const char *name, int rank, const int64_t *dim)
{
    return st_plan_add(ctx, name, DT_BF16, rank, dim);
}

static void a_disk_that_is_too_small_is_refused_before_the_first_byte(void **state) /* P62 for conversions */
{
    (void)state;
    struct statvfs v;
    struct st_plan p = {0};
    struct st_out o;
    struct arch x;
    char path[FIXTURE_PATH], tmp[FIXTURE_PATH + 8];
    assert_int_equal(statvfs(dir, &v), 0);
    if ((double)v.f_bavail * (double)v.f_frsize > 1e12) skip(); /* it would be big enough */
    /* 2.2 TB of zeros that take no room: two vocabularies of 2^29 rows */
    assert_int_equal(mkdir(src, 0700), 0);
    check_ok(release_copy_file(GOLDEN "narrow/checkpoint/config.json", fixture_join(path, src, "config.json")));
    fixture_edit(src, "config.json", "\"hidden_size\": 64", "\"hidden_size\": 1024", false);
    fixture_edit(src, "config.json", "\"vocab_size\": 260", "\"vocab_size\": 536870912", false);
    check_ok(arch_load(&x, src));
    check_ok(arch_each_tensor(&x, plan_tensor, &p));
    check_ok(st_plan_cut(&p, 0));
    check_ok(st_out_open(&o, &p, 0, fixture_join(path, src, "model.safetensors")));
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    assert_int_equal(rename(tmp, path), 0);
    bool sparse = truncate(path, (off_t)(o.data_start + o.data_bytes)) == 0;
    st_out_abort(&o);
    st_plan_destroy(&p);
    if (!sparse) skip(); /* a file system without large sparse files */
    struct convert_args a = {.src = src, .dst = dst};
    check_fails(convert_release(&a), ERR_IO, "GB are needed, the disk has");
    assert_false(fixture_exists(dir, "dst") || fixture_exists(dir, "dst.tmp"));
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(quantised_releases_become_the_golden_bf16, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(float32_becomes_bf16_but_for_router_and_passed_tensors, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(keep_copies_every_tensor_and_file, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(layers_are_cut_and_renumbered_in_both_dialects, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(the_map_of_a_kept_quantisation_is_cut_too, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(config_keys_stay_but_for_an_allowed_list, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_killed_conversion_goes_on_with_what_is_proven_finished, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(bad_choices_and_destinations_leave_nothing, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(missing_index_tensors_are_refused_unless_attention_is_dense, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(names_and_shapes_must_be_those_of_the_config, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_bad_scale_and_a_full_disk_end_with_words_and_no_destination, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_second_conversion_into_the_same_folder_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_disk_that_is_too_small_is_refused_before_the_first_byte, make_dir, remove_dir),
};

CHECK_MAIN(cases)
