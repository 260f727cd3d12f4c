/* Writing safetensors: shards, index, single files, and what stays behind when a write fails. */
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#include <signal.h>
#include <sys/resource.h>

static char dir[FIXTURE_PATH], dst[FIXTURE_PATH], tmp[FIXTURE_PATH + 8];

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(dst, dir, "out");
    snprintf(tmp, sizeof tmp, "%s.tmp", dst);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

static const struct {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t dim[5];
} things[] = {
    {"language_model.a.weight", DT_BF16, 2, {3, 5}},  {"language_model.b", DT_U8, 1, {7}},
    {"language_model.c", DT_F32, 0, {0}},             {"language_model.none", DT_F32, 2, {0, 4}},
    {"vision_tower.d", DT_BF16, 5, {1, 2, 1, 3, 2}},  {"language_model.e", DT_I64, 1, {9}},
    {"language_model.f", DT_F8_E4M3, 2, {4, 4}},      {"language_model.last", DT_I8, 1, {0}},
};
enum { THINGS = sizeof things / sizeof *things };

static size_t thing_bytes(int i)
{
    size_t n = dtype_size(things[i].dtype);
    for (int k = 0; k < things[i].rank; k++) n *= (size_t)things[i].dim[k];
    return n;
}

static unsigned char thing_byte(int i, size_t at) { return (unsigned char)check_hash((uint64_t)i << 32 | at); }

static void declare(struct st_writer *w, uint64_t shard_bytes)
{
    check_ok(st_writer_open(w, dst));
    for (int i = 0; i < THINGS; i++) check_ok(st_writer_add(w, things[i].name, things[i].dtype, things[i].rank, things[i].dim));
    check_ok(st_writer_begin(w, shard_bytes));
}

static void write_all(struct st_writer *w, size_t piece)
{
    for (int i = 0; i < THINGS; i++)
        for (size_t at = 0; at < thing_bytes(i); at += piece) {
            unsigned char b[128];
            size_t n = thing_bytes(i) - at < piece ? thing_bytes(i) - at : piece;
            for (size_t k = 0; k < n; k++) b[k] = thing_byte(i, at + k);
            check_ok(st_writer_write(w, things[i].name, b, n));
        }
}

static void a_written_release_is_read_back_bit_for_bit(void **state)
{
    (void)state;
    static const uint64_t limits[] = {0, 1, 30, 72, 100, 1000};
    char path[FIXTURE_PATH];
    for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
        struct st_writer w;
        struct release *r;
        declare(&w, limits[l]);
        int shards = w.plan.n_shards;
        write_all(&w, l % 2 ? 3 : 128);
        assert_false(fixture_exists(dir, "out"));
        fixture_write(fixture_join(path, tmp, "config.json"), "{}", 2);
        check_ok(st_writer_close(&w));
        assert_false(fixture_exists(dir, "out.tmp"));
        /* language_model.b is U8 without scales: a plain copy, not a weight */
        check_ok(release_open(&r, dst));
        assert_int_equal(r->n_shards, shards);
        assert_int_equal(r->n_raw, THINGS);
        json_t *index;
        check_ok(json_read_file(&index, fixture_join(path, dst, "model.safetensors.index.json"), 1 << 20));
        size_t total = 0;
        for (int i = 0; i < THINGS; i++) {
            unsigned char b[128];
            const struct release_raw *raw = release_find_raw(r, things[i].name);
            assert_non_null(raw);
            assert_int_equal(raw->t->dtype, things[i].dtype);
            assert_int_equal(raw->t->rank, things[i].rank);
            assert_memory_equal(raw->t->dim, things[i].dim, sizeof(int64_t) * (size_t)things[i].rank);
            assert_int_equal(st_bytes(raw->t), thing_bytes(i));
            if (thing_bytes(i)) assert_int_equal((r->shards[raw->shard].data_start + raw->t->begin) % dtype_size(raw->t->dtype), 0);
            check_ok(release_read_raw(r, raw, 0, thing_bytes(i), b));
            for (size_t k = 0; k < thing_bytes(i); k++) assert_int_equal(b[k], thing_byte(i, k));
            total += thing_bytes(i);
        }
        assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), total);
        json_decref(index);
        release_close(&r);
        fixture_remove(dst);
    }
}

static void shards_keep_the_size_that_was_asked(void **state)
{
    (void)state;
    struct st_plan p = {0};
    char name[64];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "t%d", i);
        check_ok(st_plan_add(&p, name, DT_U8, 1, (int64_t[]){i == 4 ? 500 : 40}));
    }
    check_ok(st_plan_cut(&p, 100));
    static const int want[] = {0, 0, 1, 1, 2, 3, 3, 4, 4, 5};
    assert_int_equal(p.n_shards, 6);
    assert_memory_equal(p.shard, want, sizeof want);
    assert_string_equal(st_plan_name(&p, 2, name), "model-00003-of-00006.safetensors");
    assert_int_equal(p.tensors[3].begin, 40);
    check_ok(st_plan_add(&p, "t3", DT_U8, 1, (int64_t[]){1}));
    check_fails(st_plan_cut(&p, 100), ERR_FORMAT, "t3 is written twice");
    check_fails(st_plan_add(&p, "x", DT_F32, 2, ((int64_t[]){INT64_MAX, 4})), ERR_FORMAT, "not possible");
    check_fails(st_plan_add(&p, "x", DT_F32, 1, (int64_t[]){-1}), ERR_FORMAT, "not possible");
    check_fails(st_plan_add(&p, "x", DT_F32, 9, (int64_t[9]){1}), ERR_FORMAT, "rank 9");
    check_fails(st_plan_add(&p, "__metadata__", DT_F32, 0, NULL), ERR_FORMAT, "__metadata__");
    st_plan_destroy(&p);
}

static void a_folder_that_holds_something_is_refused(void **state)
{
    (void)state;
    struct st_writer w;
    char path[FIXTURE_PATH];
    assert_int_equal(mkdir(dst, 0700), 0);
    declare(&w, 0); /* an empty folder is fine */
    write_all(&w, 128);
    check_ok(st_writer_close(&w));
    check_fails(st_writer_open(&w, dst), ERR_IO, "exists and holds");
    fixture_remove(dst);
    fixture_write(dst, "x", 1);
    check_fails(st_writer_open(&w, dst), ERR_IO, "is no folder");
    assert_int_equal(unlink(dst), 0);
    /* a left-over of an earlier run is replaced, a stranger's folder is not */
    assert_int_equal(mkdir(tmp, 0700), 0);
    fixture_write(fixture_join(path, tmp, "model-00001-of-00009.safetensors"), "x", 1);
    declare(&w, 0);
    assert_false(fixture_exists(tmp, "model-00001-of-00009.safetensors"));
    st_writer_abort(&w);
    assert_false(fixture_exists(dir, "out.tmp"));
    assert_int_equal(mkdir(tmp, 0700), 0);
    fixture_write(fixture_join(path, tmp, "thesis.doc"), "x", 1);
    check_fails(st_writer_open(&w, dst), ERR_IO, "thesis.doc");
    assert_true(fixture_exists(tmp, "thesis.doc"));
}

static void a_wrong_order_or_an_unfinished_tensor_is_an_error(void **state)
{
    (void)state;
    struct st_writer w;
    char b[64] = {0};
    declare(&w, 0);
    check_fails(st_writer_write(&w, things[1].name, b, 7), ERR_INTERNAL, "language_model.a.weight is due");
    check_fails(st_writer_write(&w, things[0].name, b, 31), ERR_INTERNAL, "31 bytes at 0");
    check_ok(st_writer_write(&w, things[0].name, b, 29));
    check_fails(st_writer_close(&w), ERR_INTERNAL, "language_model.a.weight was not written");
    assert_false(fixture_exists(dir, "out"));
    assert_false(fixture_exists(dir, "out.tmp"));
}

/* Room for `bytes` in every file from now on, as on a disk that is full. */
static void limit_files(rlim_t bytes)
{
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = bytes;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void a_full_disk_is_an_error_with_the_path_and_leaves_nothing(void **state)
{
    (void)state;
    struct st_writer w;
    struct rlimit old;
    char path[FIXTURE_PATH], *big = calloc(1, 1 << 20);
    struct st_item item = {"x", DT_U8, 1, {1 << 20}, big};
    size_t n;
    fixture_write(fixture_join(path, dir, "score.safetensors"), "good", 4);
    getrlimit(RLIMIT_FSIZE, &old);
    limit_files(100000);
    enum status single = st_write_file(path, &item, 1), s;
    bool named = strstr(status_message(), "score.safetensors") != NULL;
    check_ok(st_writer_open(&w, dst));
    check_ok(st_writer_add(&w, "x", DT_U8, 1, (int64_t[]){1 << 20}));
    check_ok(st_writer_begin(&w, 0));
    s = st_writer_write(&w, "x", big, 1 << 20);
    bool folder_named = strstr(status_message(), "out.tmp/model-00001-of-00001.safetensors") != NULL;
    st_writer_abort(&w);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(single, ERR_IO);
    assert_int_equal(s, ERR_IO);
    assert_true(named && folder_named);
    assert_false(fixture_exists(dir, "out") || fixture_exists(dir, "out.tmp") || fixture_exists(dir, "score.safetensors.tmp"));
    char *kept = fixture_read(path, &n); /* the good file is still the good file */
    assert_int_equal(n, 4);
    free(kept);
    free(big);
}

static void a_single_file_holds_its_items(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    struct st_file f;
    struct stat st;
    float lp[3] = {-1.5f, -2.f, 0.f};
    int32_t blocks[4] = {0, 1, -1, -1};
    struct st_item items[] = {{"token_logprobs.0", DT_F32, 1, {3}, lp}, {"block_indices.2.0", DT_I32, 3, {1, 2, 2}, blocks}};
    check_ok(st_write_file(fixture_join(path, dir, "score.safetensors"), items, 2));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    check_ok(st_open(&f, path));
    float got[3];
    int32_t b[4];
    check_ok(st_read(&f, st_find(&f, "token_logprobs.0"), 0, sizeof got, got));
    check_ok(st_read(&f, st_find(&f, "block_indices.2.0"), 0, sizeof b, b));
    assert_memory_equal(got, lp, sizeof lp);
    assert_memory_equal(b, blocks, sizeof b);
    assert_int_equal(f.data_start % 8, 0);
    st_close(&f);
    check_ok(st_write_file(path, items, 0));
    check_ok(st_open(&f, path));
    assert_int_equal(f.count, 0);
    st_close(&f);
    check_fails(st_write_file("no/such/folder/x.safetensors", items, 2), ERR_IO, "no/such/folder/x.safetensors");
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(a_written_release_is_read_back_bit_for_bit, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(shards_keep_the_size_that_was_asked, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_folder_that_holds_something_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_wrong_order_or_an_unfinished_tensor_is_an_error, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_full_disk_is_an_error_with_the_path_and_leaves_nothing, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_single_file_holds_its_items, make_dir, remove_dir),
};

CHECK_MAIN(cases)
