/* m3 convert when things go wrong: kills, torn shards, full disks, bad choices, two at once. */
#include "convert_check.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

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
    cmocka_unit_test_setup_teardown(a_killed_conversion_goes_on_with_what_is_proven_finished, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(bad_choices_and_destinations_leave_nothing, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_bad_scale_and_a_full_disk_end_with_words_and_no_destination, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_second_conversion_into_the_same_folder_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_disk_that_is_too_small_is_refused_before_the_first_byte, make_dir, remove_dir),
};

CHECK_MAIN(cases)
