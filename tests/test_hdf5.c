/* State files, one process: round trips, attributes, checksums, and files that are broken in every way. */
#include "../io/fs.h"
#include "../io/hdf5.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[PATH_MAX];
static int skipped;

#define SKIP(...)                                                                                                      \
    do {                                                                                                               \
        print_message(__VA_ARGS__);                                                                                    \
        skipped++;                                                                                                     \
        skip();                                                                                                        \
    } while (0)

static const char *in_dir(const char *name)
{
    static char path[4][PATH_MAX + 64];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int make_dir(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/m3_hdf5_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {"a.h5", "b.h5", "c.h5", "full"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove(in_dir(names[i]));
    return rmdir(dir);
}

/* The library asks the system for file locks; a test can make the system say no. */
static int flock_errno;
int flock(int fd, int operation)
{
    struct flock whole = {.l_type = operation & LOCK_UN ? F_UNLCK : operation & LOCK_SH ? F_RDLCK : F_WRLCK};
    if (flock_errno) {
        errno = flock_errno;
        return -1;
    }
    return fcntl(fd, F_OFD_SETLK, &whole);
}

/* The library loses memory of its own when a file is broken; leaks of ours are still reported. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libhdf5"; }

static char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*n + 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    text[*n] = 0;
    fclose(f);
    return text;
}

static void write_whole(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* Output of a program, without a shell; NULL when it is not installed. */
static char *output_of(char *const argv[])
{
    static char text[1 << 16];
    int fd[2], status;
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    for (ssize_t got; n < sizeof text - 1 && (got = read(fd[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    close(fd[0]);
    text[n] = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return NULL;
    assert_int_equal(status, 0);
    return text;
}

static int64_t zero[4];

static void put(struct h5file *f, const char *name, const int64_t *count, enum dtype t, const void *data)
{
    check_ok(h5_write_slab(f, name, zero, count, t, data));
}

/* Six datasets of all dtypes, a few attributes, marked complete. */
static void make_sample(const char *path)
{
    const struct h5_dataset sets[] = {
        {"/model/a.weight", DT_BF16, 2, {6, 5}}, {"/model/b.weight", DT_F32, 3, {3, 4, 5}},
        {"/optimizer/a.weight/exp_avg", DT_F64, 1, {7}}, {"/state/counters", DT_I64, 1, {3}},
        {"/state/ids", DT_I32, 2, {2, 2}}, {"/state/random", DT_U8, 1, {9}}};
    float w[60];
    double d[7];
    int64_t n64[3] = {1, -2, INT64_MAX};
    int32_t n32[4] = {1, 2, -3, 4};
    struct h5file *f;
    for (int i = 0; i < 60; i++) w[i] = (float)i / 8 - 2;
    for (int i = 0; i < 7; i++) d[i] = i * 0.1;
    remove(path);
    check_ok(h5_create(path, sets, 6, false));
    check_ok(h5_open_serial(&f, path, true));
    check_ok(h5_put_text(f, "/", "mesh", "tp=2 pp=1"));
    check_ok(h5_put_int(f, "/", "step", 7));
    check_ok(h5_put_double(f, "/model/a.weight", "scale", 0.5));
    put(f, sets[0].name, sets[0].dim, DT_F32, w);
    put(f, sets[1].name, sets[1].dim, DT_F32, w);
    put(f, sets[2].name, sets[2].dim, DT_F64, d);
    put(f, sets[3].name, sets[3].dim, DT_I64, n64);
    put(f, sets[4].name, sets[4].dim, DT_I32, n32);
    put(f, sets[5].name, sets[5].dim, DT_U8, "123456789");
    check_ok(h5_close(&f, OK));
    check_ok(h5_mark_complete(path));
}

static void every_dtype_round_trips(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    make_sample(path);
    struct h5file *f;
    check_ok(h5_open_serial(&f, path, false));
    float w[60];
    uint16_t half[30];
    double d[7];
    int64_t n64[3];
    int32_t n32[4];
    char text[10] = "";
    check_ok(h5_read_slab(f, "/model/a.weight", zero, (int64_t[]){6, 5}, DT_F32, w));
    for (int i = 0; i < 30; i++) check_equal_f(w[i], (float)i / 8 - 2, 0);
    check_ok(h5_read_slab(f, "/model/a.weight", zero, (int64_t[]){6, 5}, DT_BF16, half));
    for (int i = 0; i < 30; i++) assert_int_equal(half[i], bf16_from_float((float)i / 8 - 2));
    check_ok(h5_read_slab(f, "/model/b.weight", zero, (int64_t[]){3, 4, 5}, DT_F32, w));
    for (int i = 0; i < 60; i++) check_equal_f(w[i], (float)i / 8 - 2, 0);
    check_ok(h5_read_slab(f, "/model/b.weight", (int64_t[]){1, 2, 1}, (int64_t[]){2, 1, 3}, DT_F32, w));
    for (int i = 0; i < 6; i++) check_equal_f(w[i], (float)(20 + i / 3 * 20 + 10 + 1 + i % 3) / 8 - 2, 0);
    check_ok(h5_read_slab(f, "/optimizer/a.weight/exp_avg", zero, (int64_t[]){7}, DT_F64, d));
    for (int i = 0; i < 7; i++) check_equal_f(d[i], i * 0.1, 0);
    check_ok(h5_read_slab(f, "/state/counters", zero, (int64_t[]){3}, DT_I64, n64));
    assert_true(n64[0] == 1 && n64[1] == -2 && n64[2] == INT64_MAX);
    check_ok(h5_read_slab(f, "/state/ids", zero, (int64_t[]){2, 2}, DT_I32, n32));
    assert_true(n32[0] == 1 && n32[2] == -3);
    check_ok(h5_read_slab(f, "/state/random", zero, (int64_t[]){9}, DT_U8, text));
    assert_string_equal(text, "123456789");
    check_ok(h5_verify_all(f, 0, 1));
    check_ok(h5_close(&f, OK));
    assert_null(f);
}

static void bf16_values_survive_as_bits_and_convert_by_rounding_to_nearest_even(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    struct h5_dataset set = {"/x", DT_BF16, 1, {65536}};
    uint16_t *bits = malloc(65536 * 2), *back = malloc(65536 * 2);
    float *wide = malloc(65536 * 4);
    struct h5file *f;
    for (int i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    remove(path);
    check_ok(h5_create(path, &set, 1, false));
    check_ok(h5_open_serial(&f, path, true));
    put(f, "/x", set.dim, DT_BF16, bits);
    check_ok(h5_read_slab(f, "/x", zero, set.dim, DT_BF16, back));
    check_ok(h5_read_slab(f, "/x", zero, set.dim, DT_F32, wide));
    for (int i = 0; i < 65536; i++) {
        float want = float_from_bf16((uint16_t)i);
        if (back[i] != i || memcmp(&want, &wide[i], 4)) fail_msg("bits %04x came back %04x, %g", i, back[i], wide[i]);
    }
    check_ok(h5_write_slab(f, "/x", zero, (int64_t[]){2}, DT_F32, (float[]){1.00390625f, 1.01171875f}));
    check_ok(h5_read_slab(f, "/x", zero, (int64_t[]){2}, DT_BF16, back));
    assert_int_equal(back[0], 0x3f80);
    assert_int_equal(back[1], 0x3f82);
    check_ok(h5_close(&f, OK));
    free(bits), free(back), free(wide);
}

static void h5dump_prints_bf16_as_numbers_and_h5ls_lists_the_tree(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    make_sample(path);
    char *text = output_of((char *[]){"h5dump", "-d", "/model/a.weight", (char *)path, NULL});
    if (!text) SKIP("h5dump is not installed\n");
    if (!strstr(text, "-2, -1.875, -1.75, -1.625, -1.5")) fail_msg("h5dump printed %s", text);
    text = output_of((char *[]){"h5ls", "-r", (char *)path, NULL});
    if (!text || !strstr(text, "/optimizer/a.weight/exp_avg Dataset {7}")) fail_msg("h5ls printed %s", text);
}

static void attributes_round_trip_are_replaced_and_are_typed(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    make_sample(path);
    size_t n = 200000;
    char *big = malloc(n + 1), *text;
    memset(big, 'x', n);
    big[n] = 0;
    struct h5file *f;
    int64_t i, list[3];
    double d;
    check_ok(h5_open_serial(&f, path, true));
    check_ok(h5_put_text(f, "/", "config", big));
    check_ok(h5_put_text(f, "/", "empty", ""));
    check_ok(h5_put_int(f, "/", "step", -8));
    check_ok(h5_put_ints(f, "/state", "seeds", (int64_t[]){3, 2, INT64_MIN}, 3));
    check_fails(h5_put_int(f, "/nowhere", "x", 1), ERR_FORMAT, "/nowhere");
    check_ok(h5_close(&f, OK));
    check_ok(h5_open_serial(&f, path, false));
    check_ok(h5_get_text(f, "/", "config", &text));
    assert_string_equal(text, big);
    free(text);
    check_ok(h5_get_text(f, "/", "empty", &text));
    assert_string_equal(text, "");
    free(text);
    check_ok(h5_get_int(f, "/", "step", &i));
    assert_int_equal(i, -8);
    check_ok(h5_get_ints(f, "/state", "seeds", list, 3));
    assert_true(list[0] == 3 && list[2] == INT64_MIN);
    check_ok(h5_get_double(f, "/model/a.weight", "scale", &d));
    check_equal_f(d, 0.5, 0);
    check_fails(h5_get_ints(f, "/state", "seeds", list, 2), ERR_FORMAT, "has 3 values, 2 wanted");
    check_fails(h5_get_int(f, "/", "mesh", &i), ERR_FORMAT, "mesh");
    check_fails(h5_get_text(f, "/", "step", &text), ERR_FORMAT, "step");
    check_fails(h5_get_double(f, "/", "nothing", &d), ERR_FORMAT, "nothing");
    check_fails(h5_put_int(f, "/", "step", 1), ERR_INTERNAL, "open for reading");
    check_ok(h5_close(&f, OK));
    free(big);
}

static enum status count_sets(void *ctx, const struct h5_dataset *d)
{
    char *all = ctx;
    snprintf(all + strlen(all), 400 - strlen(all), "%s %s %d %" PRId64 "\n", d->name, dtype_name(d->dtype), d->rank, d->dim[0]);
    return OK;
}

static enum status count_attributes(void *ctx, const char *name, const char *value)
{
    char *all = ctx;
    snprintf(all + strlen(all), 400 - strlen(all), "%s=%s\n", name, value);
    return OK;
}

static void listing_is_sorted_and_complete(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    make_sample(path);
    char all[400] = "";
    struct h5file *f;
    check_ok(h5_open_serial(&f, path, false));
    check_ok(h5_list(f, count_sets, all));
    assert_string_equal(all, "/model/a.weight BF16 2 6\n/model/b.weight F32 3 3\n/optimizer/a.weight/exp_avg F64 1 7\n"
                             "/state/counters I64 1 3\n/state/ids I32 2 2\n/state/random U8 1 9\n");
    all[0] = 0;
    check_ok(h5_attributes(f, "/", count_attributes, all));
    assert_string_equal(all, "complete=1\nformat_version=1\nmesh=tp=2 pp=1\nstep=7\n");
    all[0] = 0;
    check_ok(h5_attributes(f, "/model/a.weight", count_attributes, all));
    assert_string_equal(all, "scale=0.5\n");
    struct h5_dataset d;
    check_ok(h5_find(f, "/state/ids", &d));
    assert_true(d.dtype == DT_I32 && d.rank == 2 && d.dim[1] == 2);
    check_fails(h5_find(f, "/state/id", &d), ERR_FORMAT, "/state/id");
    check_ok(h5_close(&f, OK));
}

static void slabs_outside_the_dataset_or_of_another_dtype_are_refused_with_both_values(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    make_sample(path);
    struct h5file *f;
    float w[64];
    check_ok(h5_open_serial(&f, path, false));
    check_fails(h5_read_slab(f, "/model/a.weight", (int64_t[]){5, 0}, (int64_t[]){2, 5}, DT_F32, w), ERR_INTERNAL,
                "slab 5+2 of dimension 0, which has 6");
    check_fails(h5_read_slab(f, "/model/a.weight", (int64_t[]){-1, 0}, (int64_t[]){1, 5}, DT_F32, w), ERR_INTERNAL, "-1");
    check_fails(h5_read_slab(f, "/model/a.weight", (int64_t[]){1, 0}, (int64_t[]){INT64_MAX, 5}, DT_F32, w),
                ERR_INTERNAL, "dimension 0");
    check_fails(h5_read_slab(f, "/state/ids", zero, (int64_t[]){1, 1}, DT_F32, w), ERR_INTERNAL, "I32, memory is F32");
    check_fails(h5_write_slab(f, "/state/ids", zero, (int64_t[]){1, 1}, DT_I32, w), ERR_INTERNAL, "open for reading");
    check_ok(h5_read_slab(f, "/model/a.weight", (int64_t[]){6, 0}, (int64_t[]){0, 5}, DT_F32, NULL));
    check_ok(h5_close(&f, OK));
}

static void pieces_cover_a_slab_once_in_order_and_stay_below_the_limit(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        int rank = (int)(check_hash(i) % 5);
        int64_t count[4], total = 1, limit = 1 + (int64_t)(check_hash(i + 7777) % 40), at = 0;
        for (int d = 0; d < rank; d++) total *= count[d] = (int64_t)(check_hash(i * 8 + (uint64_t)d) % 7);
        struct h5_piece p = {.n = 0};
        while (h5_next_piece(rank, count, limit, &p)) {
            int64_t linear = 0, n = 1;
            for (int d = 0; d < rank; d++) {
                linear = linear * count[d] + p.start[d];
                n *= p.count[d];
                if (p.count[d] < 1 || p.start[d] + p.count[d] > count[d]) fail_msg("case %d: piece leaves the slab", (int)i);
            }
            if (p.at != at || linear != at || p.n != n || n > limit)
                fail_msg("case %d: at %d expected %d, linear %d, n %d of %d, limit %d", (int)i, (int)p.at, (int)at,
                         (int)linear, (int)p.n, (int)n, (int)limit);
            at += n;
        }
        if (at != total) fail_msg("case %d: %d of %d elements", (int)i, (int)at, (int)total);
    }
}

static void no_transfer_of_a_huge_slab_is_above_one_gib(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {{128, 3072, 6144, 1}, {200064, 6144, 1, 1}, {INT64_C(1) << 40, 1, 1, 1}, {1, 1, 1, INT64_C(1) << 40}};
    for (int i = 0; i < 4; i++) {
        struct h5_piece p = {.n = 0};
        int64_t sum = 0;
        while (h5_next_piece(4, shapes[i], H5_SLAB_BYTES / 4, &p)) {
            assert_true(p.n * 4 <= H5_SLAB_BYTES && p.n * 4 <= 1 << 30);
            sum += p.n;
        }
        assert_int_equal(sum, shapes[i][0] * shapes[i][1] * shapes[i][2] * shapes[i][3]);
    }
}

static void a_dataset_above_2_to_31_elements_round_trips_at_both_ends_and_around_the_boundary(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    const int64_t n = (INT64_C(1) << 31) + 8, edge = INT64_C(1) << 31;
    struct h5_dataset set = {"/x", DT_U8, 1, {n}};
    unsigned char data[4096], back[4096];
    const int64_t from[] = {0, edge - 4096, edge - 2048, n - 8}, size[] = {4096, 4096, 2056, 8};
    struct h5file *f;
    for (int i = 0; i < 4096; i++) data[i] = (unsigned char)check_hash((uint64_t)i);
    remove(path);
    check_ok(h5_create(path, &set, 1, false));
    for (int i = 0; i < 4; i++) {
        check_ok(h5_open_serial(&f, path, true));
        check_ok(h5_write_slab(f, "/x", &from[i], &size[i], DT_U8, data));
        check_ok(h5_close(&f, OK));
        check_ok(h5_open_serial(&f, path, false));
        check_ok(h5_read_slab(f, "/x", &from[i], &size[i], DT_U8, back));
        assert_memory_equal(back, data, (size_t)size[i]);
        check_ok(h5_close(&f, OK));
    }
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > n && st.st_blocks < 4096);
    remove(path);
}

static void an_existing_file_is_not_overwritten_and_a_new_one_is_private(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    struct h5_dataset set = {"/x", DT_U8, 1, {4}};
    struct stat st;
    remove(path);
    check_ok(h5_create(path, &set, 1, true));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    check_fails(h5_create(path, &set, 1, false), ERR_IO, "File exists");
    check_fails(h5_create(in_dir("no/such/folder.h5"), &set, 1, false), ERR_IO, "No such file");
    set.name = "x";
    check_fails(h5_create(in_dir("b.h5"), &set, 1, false), ERR_INTERNAL, "dataset name");
    assert_int_not_equal(access(in_dir("b.h5"), F_OK), 0);
    const struct h5_dataset twice[] = {{"/x", DT_U8, 1, {4}}, {"/x", DT_U8, 1, {4}}};
    check_fails(h5_create(in_dir("b.h5"), twice, 2, false), ERR_IO, "/x");
    assert_int_not_equal(access(in_dir("b.h5"), F_OK), 0);
}

static void scalars_and_empty_datasets_work(void **state)
{
    (void)state;
    const char *path = in_dir("a.h5");
    const struct h5_dataset sets[] = {{"/scalar", DT_F64, 0, {0}}, {"/empty", DT_F32, 2, {0, 4}}};
    struct h5file *f;
    double d = 3.25, back = 0;
    remove(path);
    check_ok(h5_create(path, sets, 2, false));
    check_ok(h5_open_serial(&f, path, true));
    put(f, "/scalar", NULL, DT_F64, &d);
    put(f, "/empty", sets[1].dim, DT_F32, NULL);
    check_ok(h5_close(&f, OK));
    check_ok(h5_open_serial(&f, path, false));
    check_ok(h5_read_slab(f, "/scalar", NULL, NULL, DT_F64, &back));
    check_equal_f(back, 3.25, 0);
    check_ok(h5_verify_all(f, 0, 1));
    check_ok(h5_close(&f, OK));
}

static void one_flipped_byte_is_found_with_the_tensors_name_and_slab(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    make_sample(path);
    size_t n, at;
    char *file = read_whole(path, &n);
    float first = -2 + 42.0f / 8; /* element 42 of b.weight, [2, 0, 2] */
    for (at = 0; at + 4 <= n; at++)
        if (memcmp(file + at, &first, 4) == 0) break;
    assert_true(at + 4 <= n);
    file[at] ^= 1;
    write_whole(path, file, n);
    free(file);
    struct h5file *f;
    struct h5_slab bad;
    bool ok;
    assert_true(h5_is_complete(path));
    check_ok(h5_open_serial(&f, path, false));
    check_fails(h5_verify_all(f, 0, 1), ERR_FORMAT, "/model/b.weight is damaged");
    check_ok(h5_verify(f, "/model/a.weight", NULL, NULL, &ok, &bad));
    assert_true(ok);
    check_ok(h5_verify(f, "/model/b.weight", NULL, NULL, &ok, &bad));
    assert_false(ok);
    assert_true(bad.start[0] == 0 && bad.count[0] == 3 && bad.count[2] == 5);
    check_ok(h5_close(&f, OK));
}

static void a_box_is_verified_by_the_slabs_that_touch_it(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    struct h5_dataset set = {"/x", DT_U8, 2, {4, 8}};
    struct h5file *f;
    struct h5_slab *slab, bad;
    int64_t slabs;
    bool ok;
    remove(path);
    check_ok(h5_create(path, &set, 1, false));
    check_ok(h5_open_serial(&f, path, true));
    for (int64_t i = 0; i < 4; i++)
        check_ok(h5_write_slab(f, "/x", (int64_t[]){i / 2 * 2, i % 2 * 4}, (int64_t[]){2, 4}, DT_U8, "UNIQUE!!"));
    check_ok(h5_close(&f, OK));
    check_ok(h5_open_serial(&f, path, false));
    check_ok(h5_slabs(f, "/x", &slab, &slabs));
    assert_int_equal(slabs, 4);
    free(slab);
    check_ok(h5_close(&f, OK));
    size_t n;
    char *file = read_whole(path, &n), *at = memmem(file, n, "UNIQ", 4);
    assert_non_null(at);
    *at = 'u'; /* element [0, 0] */
    write_whole(path, file, n);
    free(file);
    check_ok(h5_open_serial(&f, path, false));
    check_ok(h5_verify(f, "/x", (int64_t[]){1, 3}, (int64_t[]){1, 1}, &ok, &bad));
    assert_false(ok);
    check_ok(h5_verify(f, "/x", (int64_t[]){1, 4}, (int64_t[]){3, 4}, &ok, &bad));
    assert_true(ok);
    check_fails(h5_verify_all(f, 0, 4), ERR_FORMAT, "slab 0+2 0+4");
    check_ok(h5_verify_all(f, 1, 4));
    check_ok(h5_close(&f, OK));
}

static void a_lost_or_doubled_slice_is_noticed(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    struct h5_dataset set = {"/x", DT_U8, 1, {8}};
    const int64_t start[3][2] = {{0, 5}, {0, 3}, {0, 2}}, size[3][2] = {{4, 3}, {4, 4}, {3, 5}};
    const char *const want[] = {"only 7 of 8 elements were written", "overlap", "overlap"};
    for (int i = 0; i < 3; i++) {
        struct h5file *f;
        remove(path);
        check_ok(h5_create(path, &set, 1, false));
        check_ok(h5_open_serial(&f, path, true));
        for (int k = 0; k < 2; k++) check_ok(h5_write_slab(f, "/x", &start[i][k], &size[i][k], DT_U8, "abcdefgh"));
        check_ok(h5_close(&f, OK));
        check_ok(h5_open_serial(&f, path, false));
        check_fails(h5_verify_all(f, 0, 1), ERR_FORMAT, want[i]);
        check_ok(h5_close(&f, OK));
    }
}

static void many_slabs_of_one_dataset_fit(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    struct h5_dataset set = {"/x", DT_I32, 3, {10, 20, 30}};
    struct h5file *f;
    int32_t row[3];
    remove(path);
    check_ok(h5_create(path, &set, 1, false));
    check_ok(h5_open_serial(&f, path, true));
    for (int64_t i = 0; i < 2000; i++) {
        int64_t at[3] = {i / 200, i / 10 % 20, i % 10 * 3};
        for (int k = 0; k < 3; k++) row[k] = (int32_t)(3 * i + k);
        check_ok(h5_write_slab(f, "/x", at, (int64_t[]){1, 1, 3}, DT_I32, row));
    }
    check_ok(h5_close(&f, OK));
    check_ok(h5_open_serial(&f, path, false));
    struct h5_slab *slab;
    int64_t n;
    check_ok(h5_slabs(f, "/x", &slab, &n));
    assert_int_equal(n, 2000);
    free(slab);
    check_ok(h5_verify_all(f, 0, 1));
    check_ok(h5_close(&f, OK));
}

static void a_file_without_checksums_is_not_verified(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    struct h5_dataset set = {"/x", DT_U8, 1, {4}};
    struct h5file *f;
    remove(path);
    check_ok(h5_create(path, &set, 1, true));
    check_ok(h5_open_serial(&f, path, false));
    check_fails(h5_verify_all(f, 0, 1), ERR_FORMAT, "/x has no checksums");
    check_ok(h5_close(&f, OK));
}

static void complete_is_said_of_finished_files_only_and_the_reason_is_given(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    struct h5_dataset set = {"/x", DT_U8, 1, {4}};
    remove(path);
    check_ok(h5_create(path, &set, 1, false));
    assert_false(h5_is_complete(path));
    assert_non_null(strstr(status_message(), "not complete"));
    check_ok(h5_mark_complete(path));
    assert_true(h5_is_complete(path));
    const char *const broken[] = {"", "x", "\x89HDF\r\n\x1a\n", "\x89HDF\r\n\x1a\n and then text that is longer than a superblock, much longer"};
    for (int i = 0; i < 4; i++) {
        write_whole(path, broken[i], strlen(broken[i]));
        assert_false(h5_is_complete(path));
        if (!strstr(status_message(), path)) fail_msg("the message \"%s\" does not name %s", status_message(), path);
    }
    remove(path);
    assert_false(h5_is_complete(path));
    assert_non_null(strstr(status_message(), "No such file"));
    assert_false(h5_is_complete(dir));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(h5_is_complete(path));
}

static void another_format_version_is_refused_with_both_values(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    make_sample(path);
    struct h5file *f;
    check_ok(h5_open_serial(&f, path, true));
    check_ok(h5_put_int(f, "/", "format_version", 9));
    check_ok(h5_close(&f, OK));
    assert_false(h5_is_complete(path));
    check_fails(h5_open_serial(&f, path, false), ERR_FORMAT, "format_version 9, this program reads 1");
}

/* Opens, lists, verifies and reads a file that may be broken; true when every check passed. */
static bool survives(const char *path)
{
    struct h5file *f;
    char all[400] = "";
    if (!h5_is_complete(path)) return false;
    if (h5_open_serial(&f, path, false)) return false;
    enum status s = h5_list(f, count_sets, all);
    all[0] = 0;
    if (!s) s = h5_attributes(f, "/", count_attributes, all);
    if (!s) s = h5_attributes(f, "/model/a.weight", count_attributes, all);
    if (!s) s = h5_verify_all(f, 0, 1);
    return h5_close(&f, s) == OK;
}

static void truncation_at_any_point_is_refused(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    make_sample(path);
    size_t n;
    char *file = read_whole(path, &n);
    assert_true(survives(path));
    for (size_t cut = 0; cut < n; cut += cut < 512 ? 1 : 37) {
        write_whole(path, file, cut);
        if (survives(path)) fail_msg("%zu of %zu bytes were taken for a whole file", cut, n);
        if (!*status_message()) fail_msg("no reason for %zu of %zu bytes", cut, n);
    }
    free(file);
}

static bool same_contents(const char *path)
{
    float w[60];
    int64_t n64[3];
    struct h5file *f;
    if (h5_open_serial(&f, path, false)) return false;
    enum status s = h5_read_slab(f, "/model/b.weight", zero, (int64_t[]){3, 4, 5}, DT_F32, w);
    for (int i = 0; i < 60 && !s; i++)
        if (w[i] != (float)i / 8 - 2) s = ERR_FORMAT;
    if (!s) s = h5_read_slab(f, "/state/counters", zero, (int64_t[]){3}, DT_I64, n64);
    if (!s && (n64[0] != 1 || n64[1] != -2 || n64[2] != INT64_MAX)) s = ERR_FORMAT;
    return h5_close(&f, s) == OK;
}

/* A mutation either is refused or touched nothing that counts (the library leaves gaps between its blocks). */
static void no_mutation_crashes_or_passes_for_other_contents(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    make_sample(path);
    size_t n;
    char *file = read_whole(path, &n), *copy = malloc(n);
    int refused = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        memcpy(copy, file, n);
        uint64_t h = check_hash(i);
        for (uint64_t k = 0; k <= h % 3; k++) {
            uint64_t r = check_hash(h + k + 1);
            size_t at = (size_t)(r >> 16) % n, run = 1 + (size_t)(r % 9 == 0 ? r % 64 : r % 4);
            for (size_t b = at; b < n && b < at + run; b++)
                copy[b] = (char)(r % 5 == 0 ? 0xff : r % 5 == 1 ? 0 : copy[b] ^ (1 << r % 8));
        }
        write_whole(path, copy, n);
        if (!survives(path)) refused++;
        else if (!same_contents(path)) fail_msg("mutation %d passed every check with other contents", (int)i);
    }
    if (refused < 1000) fail_msg("only %d of 3000 mutations were refused", refused);
    free(file), free(copy);
}

static void without_file_locks_the_message_names_the_cure_and_reading_works(void **state)
{
    (void)state;
    const char *path = in_dir("b.h5");
    const int codes[] = {524, ENOLCK, EAGAIN};
    make_sample(path);
    struct h5file *f;
    for (int i = 0; i < 3; i++) {
        flock_errno = codes[i];
        enum status s = h5_open_serial(&f, path, true);
        char message[1024];
        snprintf(message, sizeof message, "%s", status_message());
        bool readable = h5_is_complete(path);
        flock_errno = 0;
        if (s != ERR_FORMAT && s != ERR_IO) fail_msg("errno %d: opening for writing gave %d", codes[i], (int)s);
        if (!strstr(message, "HDF5_USE_FILE_LOCKING") || !strstr(message, path)) fail_msg("errno %d: \"%s\"", codes[i], message);
        assert_true(readable);
    }
}

static void a_full_disk_is_an_error_with_bytes_needed_and_free_and_leaves_no_file(void **state)
{
    (void)state;
    const char *folder = in_dir("full");
    char path[PATH_MAX + 80];
    assert_int_equal(mkdir(folder, 0700), 0);
    if (mount("m3", folder, "tmpfs", 0, "size=1m")) SKIP("mount is not permitted: %s\n", strerror(errno));
    snprintf(path, sizeof path, "%s/x.h5", folder);
    struct h5_dataset set = {"/x", DT_U8, 1, {3 << 20}};
    struct h5file *f = NULL;
    enum status create = h5_create(path, &set, 1, true);
    char message[512];
    snprintf(message, sizeof message, "%s", status_message());
    bool left = access(path, F_OK) == 0;
    /* Unreserved, the write finds out. */
    enum status later = h5_create(path, &set, 1, false), write = OK;
    char *data = calloc(1, 3 << 20), text[1024];
    if (!later) later = h5_open_serial(&f, path, true);
    if (!later) write = h5_write_slab(f, "/x", zero, set.dim, DT_U8, data);
    snprintf(text, sizeof text, "%s", status_message());
    enum status close = h5_close(&f, write);
    free(data);
    unlink(path);
    assert_int_equal(umount(folder), 0);
    assert_int_equal(create, ERR_IO);
    if (!strstr(message, "3145728 bytes needed") || !strstr(message, "bytes free")) fail_msg("\"%s\"", message);
    assert_false(left);
    assert_int_equal(later, OK);
    if (write != ERR_IO || !strstr(text, "No space left on device")) fail_msg("write gave %d: \"%s\"", (int)write, text);
    assert_int_equal(close, ERR_IO);
}

static void equal_contents_are_equal_files(void **state)
{
    (void)state;
    size_t n, m;
    make_sample(in_dir("a.h5"));
    make_sample(in_dir("b.h5"));
    char *a = read_whole(in_dir("a.h5"), &n), *b = read_whole(in_dir("b.h5"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a), free(b);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(every_dtype_round_trips),
    cmocka_unit_test(bf16_values_survive_as_bits_and_convert_by_rounding_to_nearest_even),
    cmocka_unit_test(h5dump_prints_bf16_as_numbers_and_h5ls_lists_the_tree),
    cmocka_unit_test(attributes_round_trip_are_replaced_and_are_typed),
    cmocka_unit_test(listing_is_sorted_and_complete),
    cmocka_unit_test(slabs_outside_the_dataset_or_of_another_dtype_are_refused_with_both_values),
    cmocka_unit_test(pieces_cover_a_slab_once_in_order_and_stay_below_the_limit),
    cmocka_unit_test(no_transfer_of_a_huge_slab_is_above_one_gib),
    cmocka_unit_test(a_dataset_above_2_to_31_elements_round_trips_at_both_ends_and_around_the_boundary),
    cmocka_unit_test(an_existing_file_is_not_overwritten_and_a_new_one_is_private),
    cmocka_unit_test(scalars_and_empty_datasets_work),
    cmocka_unit_test(one_flipped_byte_is_found_with_the_tensors_name_and_slab),
    cmocka_unit_test(a_box_is_verified_by_the_slabs_that_touch_it),
    cmocka_unit_test(a_lost_or_doubled_slice_is_noticed),
    cmocka_unit_test(many_slabs_of_one_dataset_fit),
    cmocka_unit_test(a_file_without_checksums_is_not_verified),
    cmocka_unit_test(complete_is_said_of_finished_files_only_and_the_reason_is_given),
    cmocka_unit_test(another_format_version_is_refused_with_both_values),
    cmocka_unit_test(truncation_at_any_point_is_refused),
    cmocka_unit_test(no_mutation_crashes_or_passes_for_other_contents),
    cmocka_unit_test(without_file_locks_the_message_names_the_cure_and_reading_works),
    cmocka_unit_test(a_full_disk_is_an_error_with_bytes_needed_and_free_and_leaves_no_file),
    cmocka_unit_test(equal_contents_are_equal_files),
};

int main(void)
{
    int failed = cmocka_run_group_tests(cases, make_dir, remove_dir), n = (int)(sizeof cases / sizeof *cases);
    printf("%d passed, %d failed, %d skipped\n", n - failed - skipped, failed, skipped);
    return failed != 0;
}
