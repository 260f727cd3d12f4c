/* A release folder: index and shards both ways, the alias of dense MLPs, names, rectangles, side files, mutated JSON. */
#include "arch.h"
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#define NARROW "tests/data/golden/narrow/checkpoint"
#define WIDE "tests/data/golden/wide/checkpoint"
#define INDEX "model.safetensors.index.json"

static char dir[FIXTURE_PATH], sub[FIXTURE_PATH];
static struct release *r;

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(sub, dir, "ckpt");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    release_close(&r);
    fixture_remove(dir);
    return 0;
}

static void write_text(const char *name, const char *text)
{
    char path[FIXTURE_PATH];
    fixture_write(fixture_join(path, sub, name), text, strlen(text));
}

static void an_index_that_names_an_absent_shard_is_refused(void **state) /* P01 */
{
    (void)state;
    char path[FIXTURE_PATH];
    fixture_copy(NARROW, sub);
    assert_int_equal(unlink(fixture_join(path, sub, "model-00003-of-00008.safetensors")), 0);
    check_fails(release_open(&r, sub), ERR_FORMAT, "shard model-00003-of-00008.safetensors is not on disk");
    assert_null(r);
}

static void a_tensor_mapped_to_another_shard_is_refused(void **state) /* P03 */
{
    (void)state;
    fixture_copy(NARROW, sub);
    fixture_edit(sub, INDEX, "lm_head.weight\": \"model-00001", "lm_head.weight\": \"model-00002", false);
    check_fails(release_open(&r, sub), ERR_FORMAT, "tensor language_model.lm_head.weight is not in its shard model-00002-of-00008");
}

static void a_tensor_that_the_index_does_not_name_is_refused(void **state) /* P03 */
{
    (void)state;
    fixture_copy(NARROW, sub);
    fixture_edit(sub, INDEX, "\"language_model.lm_head.weight\": \"model-00001-of-00008.safetensors\",", "", false);
    check_fails(release_open(&r, sub), ERR_FORMAT,
                "shard model-00001-of-00008.safetensors holds tensor language_model.lm_head.weight");
}

static void a_shard_that_the_index_does_not_name_is_refused(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    fixture_copy(NARROW, sub);
    fixture_st(fixture_join(path, sub, "extra.safetensors"), "{}", 0);
    check_fails(release_open(&r, sub), ERR_FORMAT, "extra.safetensors");
}

static void shard_names_cannot_leave_the_folder(void **state)
{
    (void)state;
    static const char *const bad[] = {"../model-00001-of-00008.safetensors", "/etc/passwd", ".safetensors", "config.json", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fixture_copy(NARROW, sub);
        char to[200];
        snprintf(to, sizeof to, "lm_head.weight\": \"%s\"", bad[i]);
        fixture_edit(sub, INDEX, "lm_head.weight\": \"model-00001-of-00008.safetensors\"", to, false);
        check_fails(release_open(&r, sub), ERR_FORMAT, "is no name of a shard");
        fixture_remove(sub);
    }
}

static void a_truncated_shard_is_refused_before_anything_is_read(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    fixture_copy(NARROW, sub);
    assert_int_equal(truncate(fixture_join(path, sub, "model-00008-of-00008.safetensors"), 30000), 0);
    check_fails(release_open(&r, sub), ERR_FORMAT, "model-00008-of-00008.safetensors");
    assert_null(r);
}

static void several_shards_need_an_index_and_one_does_not(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    fixture_copy(NARROW, sub);
    assert_int_equal(unlink(fixture_join(path, sub, INDEX)), 0);
    check_fails(release_open(&r, sub), ERR_FORMAT, "no model.safetensors.index.json, and 8 *.safetensors files");
    fixture_remove(sub);
    assert_int_equal(mkdir(sub, 0700), 0);
    check_fails(release_open(&r, sub), ERR_IO, "config.json");
    write_text("config.json", "{}");
    check_fails(release_open(&r, sub), ERR_IO, "0 *.safetensors files");
    fixture_st(fixture_join(path, sub, "model.safetensors"),
               "{\"x.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    check_ok(release_open(&r, sub));
    assert_int_equal(r->count, 1);
}

static void dense_mlps_are_found_under_either_name(void **state)
{
    (void)state;
    check_ok(release_open(&r, WIDE));
    const struct release_tensor *t = release_find(r, "language_model.model.layers.1.mlp.gate_proj.weight");
    assert_non_null(t);
    assert_string_equal(t->data->t->name, "language_model.model.layers.1.block_sparse_moe.gate_proj.weight");
    assert_int_equal(t->rows, 160);
    assert_int_equal(t->cols, 96);
    assert_null(release_find(r, "language_model.model.layers.1.block_sparse_moe.gate_proj.weight"));
    assert_non_null(release_find(r, "vision_tower.vision_model.encoder.layers.0.block_sparse_moe.fc1.weight"));
    assert_non_null(release_find(r, "language_model.model.layers.3.block_sparse_moe.gate.weight"));
    release_close(&r);
    check_ok(release_open(&r, NARROW));
    assert_non_null(release_find(r, "language_model.model.layers.1.mlp.gate_proj.weight"));
}

static void the_alias_is_not_undone_where_a_layer_has_a_router(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    assert_int_equal(mkdir(sub, 0700), 0);
    write_text("config.json", "{}");
    fixture_st(fixture_join(path, sub, "model.safetensors"),
               "{\"language_model.model.layers.0.block_sparse_moe.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],"
               "\"data_offsets\":[0,4]},\"language_model.model.layers.0.block_sparse_moe.gate.weight\":{\"dtype\":\"F32\","
               "\"shape\":[1,1],\"data_offsets\":[4,8]}}", 8);
    check_ok(release_open(&r, sub));
    assert_null(release_find(r, "language_model.model.layers.0.mlp.up_proj.weight"));
    assert_non_null(release_find(r, "language_model.model.layers.0.block_sparse_moe.up_proj.weight"));
    release_close(&r);
    fixture_st(path,
               "{\"language_model.model.layers.0.block_sparse_moe.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],"
               "\"data_offsets\":[0,4]},\"language_model.model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"F32\","
               "\"shape\":[1,1],\"data_offsets\":[4,8]}}", 8);
    check_fails(release_open(&r, sub), ERR_FORMAT, "layers.0.mlp.up_proj.weight is there twice");
}

static bool is_indexer(void *ctx, const char *name)
{
    ++*(int *)ctx;
    return strstr(name, ".index_") != NULL;
}

static void unknown_and_missing_names_are_counted_and_listed(void **state) /* P13 */
{
    (void)state;
    char path[FIXTURE_PATH];
    int calls = 0;
    struct release_report report;
    static const char *const expected[] = {"language_model.model.norm.weight", "language_model.lm_head.weight",
        "language_model.model.layers.0.block_sparse_moe.experts.0.w1.weight",
        "language_model.model.layers.0.block_sparse_moe.experts.1.w1.weight"};
    assert_int_equal(mkdir(sub, 0700), 0);
    write_text("config.json", "{}");
    fixture_st(fixture_join(path, sub, "model.safetensors"),
               "{\"language_model.model.norm.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"language_model.model.layers.0.block_sparse_moe.switch_mlp.gate_proj\":{\"dtype\":\"U8\",\"shape\":[0],"
               "\"data_offsets\":[0,0]},"
               "\"language_model.model.layers.0.self_attn.index_k_norm.bias\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"language_model.model.mtp.0.eh_proj.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"patch_merge_mlp.linear_1.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"vision_tower.x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    enum status s = release_open(&r, sub);
    check_fails(s, ERR_FORMAT, "module language_model.model.norm"); /* U8 is no norm */
    fixture_edit(sub, "model.safetensors", "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"language_model.model.layers",
                 "{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]},\"language_model.model.layers", false);
    check_ok(release_open(&r, sub));
    check_fails(release_check_names(r, expected, 4, is_indexer, &calls, &report), ERR_FORMAT,
                "3 tensors missing (first: language_model.lm_head.weight, language_model.model.layers.0.block_sparse_moe.experts.0."
                "w1.weight, ");
    if (!strstr(status_message(), "1 unknown (first: language_model.model.layers.0.block_sparse_moe.switch_mlp.gate_proj)"))
        fail_msg("%s", status_message());
    assert_int_equal(report.missing, 3);
    assert_int_equal(report.unknown, 1);
    assert_true(calls > 0);
}

static void every_rectangle_equals_the_slice_of_the_whole(void **state)
{
    (void)state;
    check_ok(release_open(&r, NARROW));
    static float whole[128 * 64], part[128 * 64];
    static uint16_t half[128 * 64];
    const char *name = "language_model.model.layers.2.self_attn.q_proj.weight";
    check_ok(release_read_rows(r, name, 0, 128, 0, 64, DT_F32, whole));
    for (uint64_t k = 0; k < 200; k++) {
        int64_t r0 = (int64_t)(check_hash(4 * k) % 128), n = 1 + (int64_t)(check_hash(4 * k + 1) % (uint64_t)(128 - r0));
        int64_t c0 = (int64_t)(check_hash(4 * k + 2) % 64), m = 1 + (int64_t)(check_hash(4 * k + 3) % (uint64_t)(64 - c0));
        check_ok(release_read_rows(r, name, r0, n, c0, m, DT_F32, part));
        check_ok(release_read_rows(r, name, r0, n, c0, m, DT_BF16, half));
        for (int64_t i = 0; i < n * m; i++) {
            float want = whole[(r0 + i / m) * 64 + c0 + i % m];
            if (part[i] != want || half[i] != bf16_from_float(want))
                fail_msg("%lld+%lld x %lld+%lld [%lld]: %g, expected %g", (long long)r0, (long long)n, (long long)c0,
                         (long long)m, (long long)i, part[i], want);
        }
    }
    check_fails(release_read_rows(r, name, 1, 128, 0, 64, DT_F32, whole), ERR_FORMAT, "128 x 64");
    check_fails(release_read_rows(r, name, 0, 1, 64, 1, DT_F32, whole), ERR_FORMAT, "columns 64 + 1");
    check_fails(release_read_rows(r, name, -1, 1, 0, 64, DT_F32, whole), ERR_FORMAT, "rows -1 + 1");
    check_fails(release_read_rows(r, "no.such", 0, 1, 0, 1, DT_F32, whole), ERR_FORMAT, "no.such is missing");
}

static void halves_convert_exactly_and_overflow_is_refused(void **state)
{
    (void)state;
    static uint16_t all[65536], bf[65536];
    static float wide[65536];
    char path[FIXTURE_PATH];
    float big[2] = {1.f, 0x1.ffp127f};
    assert_int_equal(mkdir(sub, 0700), 0);
    write_text("config.json", "{}");
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    struct st_item items[] = {{"h", DT_F16, 1, {65536}, all}, {"b", DT_BF16, 2, {256, 256}, all}, {"big", DT_F32, 1, {2}, big}};
    check_ok(st_write_file(fixture_join(path, sub, "model.safetensors"), items, 3));
    check_ok(release_open(&r, sub));
    check_ok(release_read_rows(r, "h", 0, 65536, 0, 1, DT_F32, wide));
    for (int i = 0; i < 65536; i++) {
        int e = i >> 10 & 31, m = i & 1023;
        double want = (e ? ldexp(1024 + m, e - 25) : ldexp(m, -24)) * (i >> 15 ? -1 : 1);
        if (e == 31 ? (m ? !isnan(wide[i]) : !isinf(wide[i])) : ((double)wide[i] != want || (signbit(wide[i]) != 0) != i >> 15))
            fail_msg("half %04x = %g, expected %g", (unsigned)i, (double)wide[i], want);
    }
    check_ok(release_read_rows(r, "b", 0, 256, 0, 256, DT_BF16, bf));
    assert_memory_equal(bf, all, sizeof all);
    check_ok(release_read_rows(r, "big", 0, 2, 0, 1, DT_F32, wide));
    check_fails(release_read_rows(r, "big", 0, 2, 0, 1, DT_BF16, bf), ERR_FORMAT, "tensor big: a value overflows bfloat16");
}

static void side_files_come_along_byte_for_byte(void **state)
{
    (void)state;
    char to[FIXTURE_PATH], a[FIXTURE_PATH];
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "merges.txt",
        "chat_template.jinja", "modeling.py", "LICENSE", "README.md"};
    assert_int_equal(mkdir(sub, 0700), 0);
    assert_int_equal(mkdir(fixture_join(to, dir, "to"), 0700), 0);
    for (size_t i = 0; i < 8; i++) fixture_write(fixture_join(a, sub, names[i]), "a\0b\xff\n", 5);
    write_text("config.json", "{}");
    write_text("hf_quant_config.json", "{}");
    write_text(INDEX, "{}");
    write_text("model.safetensors", "x");
    write_text("tokenizer.json.tmp", "x");
    write_text(".hidden.json", "x");
    check_ok(release_copy_side_files(sub, to));
    for (size_t i = 0; i < 8; i++) {
        size_t n;
        char *data = fixture_read(fixture_join(a, to, names[i]), &n);
        assert_int_equal(n, 5);
        assert_memory_equal(data, "a\0b\xff\n", 5);
        free(data);
    }
    static const char *const stay[] = {"config.json", "hf_quant_config.json", INDEX, "model.safetensors", "tokenizer.json.tmp",
        ".hidden.json", "tokenizer.json.tmp.tmp"};
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++) assert_false(fixture_exists(to, stay[i]));
}

/* JSON files of a quantised release, mutated: opened or refused with words, never worse. */
static void mutated_json_of_a_release_is_refused_or_consistent(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", INDEX, "hf_quant_config.json"};
    char path[FIXTURE_PATH];
    int refused = 0, runs = 0;
    struct arch a;
    fixture_copy("tests/data/golden/narrow_nvfp4_mixed/checkpoint", sub);
    for (int k = 0; k < 3; k++) {
        size_t n;
        char *good = fixture_read(fixture_join(path, sub, names[k]), &n), *b = malloc(n + 1);
        for (uint64_t i = 0; i < 250; i++, runs++) {
            uint64_t h = check_hash(i * 3 + (uint64_t)k), at = h % n;
            memcpy(b, good, n);
            size_t size = n;
            if ((h >> 32 & 3) == 0) b[at] = "0123456789-.eE[]{}\",:ntf"[(h >> 40) % 24];
            else if ((h >> 32 & 3) == 1) memmove(b + at, b + at + 1, n - at - 1), size = n - 1;
            else if ((h >> 32 & 3) == 2) b[at] ^= (char)(1u << (h >> 40 & 7));
            else size = i % 8 ? n : at, b[at] = (char)(h >> 40);
            fixture_write(path, b, size);
            if (release_open(&r, sub)) refused++, assert_true(*status_message());
            release_close(&r);
            if (k == 0 && arch_load(&a, sub)) assert_true(*status_message());
        }
        fixture_write(path, good, n);
        free(good);
        free(b);
    }
    check_ok(release_open(&r, sub));
    assert_true(refused > runs / 2);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(an_index_that_names_an_absent_shard_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_tensor_mapped_to_another_shard_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_tensor_that_the_index_does_not_name_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_shard_that_the_index_does_not_name_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(shard_names_cannot_leave_the_folder, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_truncated_shard_is_refused_before_anything_is_read, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(several_shards_need_an_index_and_one_does_not, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(dense_mlps_are_found_under_either_name, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(the_alias_is_not_undone_where_a_layer_has_a_router, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(unknown_and_missing_names_are_counted_and_listed, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(every_rectangle_equals_the_slice_of_the_whole, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(halves_convert_exactly_and_overflow_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(side_files_come_along_byte_for_byte, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(mutated_json_of_a_release_is_refused_or_consistent, make_dir, remove_dir),
};

CHECK_MAIN(cases)
