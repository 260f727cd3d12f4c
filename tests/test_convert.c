/* m3 convert: exact decoding, copies, cut layers in both dialects, names and index tensors. */
#include "convert_check.h"

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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(quantised_releases_become_the_golden_bf16, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(float32_becomes_bf16_but_for_router_and_passed_tensors, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(keep_copies_every_tensor_and_file, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(layers_are_cut_and_renumbered_in_both_dialects, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(the_map_of_a_kept_quantisation_is_cut_too, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(config_keys_stay_but_for_an_allowed_list, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(missing_index_tensors_are_refused_unless_attention_is_dense, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(names_and_shapes_must_be_those_of_the_config, make_dir, remove_dir),
};

CHECK_MAIN(cases)
