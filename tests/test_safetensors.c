/* One safetensors file: what is accepted, what is refused and with which words, and mutated files. */
#include "safetensors.h"
#include "st_fixture.h"

static char dir[FIXTURE_PATH], path[FIXTURE_PATH];

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(path, dir, "x.safetensors");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    fixture_remove(dir);
    return 0;
}

static void golden_file_is_read(void **state)
{
    (void)state;
    struct st_file f;
    float values[260 * 64];
    check_ok(st_open(&f, "tests/data/golden/narrow/checkpoint/model-00001-of-00008.safetensors"));
    assert_int_equal(f.count, 4);
    const struct st_tensor *t = st_find(&f, "language_model.lm_head.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DT_F32);
    assert_int_equal(st_rows(t), 260);
    assert_int_equal(st_cols(t), 64);
    assert_int_equal(st_bytes(t), sizeof values);
    check_ok(st_read(&f, t, 0, sizeof values, values));
    for (int i = 0; i < 260 * 64; i++) assert_true(isfinite(values[i]) && fabsf(values[i]) < 10);
    float one;
    check_ok(st_read(&f, t, 4 * 1000, 4, &one));
    assert_true(one == values[1000]);
    assert_null(st_find(&f, "language_model.lm_head.weigh"));
    check_fails(st_read(&f, t, sizeof values - 3, 4, &one), ERR_INTERNAL, "66557");
    st_close(&f);
    st_close(&f);
}

/* Every verdict: the header, the bytes of data behind it, and the words of the refusal (NULL: accepted). */
static const struct verdict {
    const char *header;
    size_t data;
    const char *words;
} verdicts[] = {
    {"{}", 0, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}   ", 24, NULL},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]},\"a\":{\"dtype\":\"I8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}", 8, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, NULL},
    {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2,1,2,1],\"data_offsets\":[0,8]}}", 8, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}", 1, NULL},
    {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"I64\",\"shape\":[1],"
     "\"data_offsets\":[2,10]},\"c\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[10,14]},"
     "\"d\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[14,15]}}", 15, NULL},
    /* trailing bytes, a short file, holes, overlaps */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, "1 bytes after the last tensor"},
    {"{}", 1, "1 bytes after the last tensor"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "outside the 3 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5, "a hole of 1 bytes between the header and a"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[3,5]}}", 5, "a hole of 1 bytes between a and b"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
     "\"data_offsets\":[2,5]}}", 5, "a and b overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
     "\"data_offsets\":[0,3]}}", 3, "overlap"},
    /* keys and types */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}", 1, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate"},
    {"{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown dtype \"F8_E5M2\""},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"f32\""},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "keys"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, "4 keys"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, "not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "outside"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "outside"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]}}", 1, "integer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "negative"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]}}", 1, "real"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "9 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20, "is 24 bytes, data_offsets span 20"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "overflows"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, "overflows"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":\"pt\"}", 0, "__metadata__"},
    {"{\"a\":[]}", 0, "an array"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "name of 0 bytes"},
    {"[]", 0, "does not begin with {"},
    {" {}", 0, "does not begin with {"},
    {"", 0, "does not begin with {"},
    {"{\"a\":", 0, "line 1"},
    {"{} {}", 0, "line 1"},
    {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "line 1"},
};

static void each_fixture_gets_the_documented_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
        const struct verdict *v = &verdicts[i];
        struct st_file f;
        fixture_st(path, v->header, v->data);
        enum status s = st_open(&f, path);
        if (!v->words && s) fail_msg("%s + %zu: refused: %s", v->header, v->data, status_message());
        if (v->words && (s != ERR_FORMAT || !strstr(status_message(), v->words) || !strstr(status_message(), path)))
            fail_msg("%s + %zu: %d \"%s\", expected \"%s\"", v->header, v->data, (int)s, s ? status_message() : "", v->words);
        st_close(&f);
    }
}

static void a_header_length_beyond_the_file_or_the_limit_is_refused(void **state)
{
    (void)state;
    struct st_file f;
    unsigned char b[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    fixture_write(path, b, sizeof b);
    check_fails(st_open(&f, path), ERR_FORMAT, "header of 9 bytes in a file of 16");
    memset(b, 0xff, 8);
    fixture_write(path, b, sizeof b);
    check_fails(st_open(&f, path), ERR_FORMAT, "header of 18446744073709551615 bytes");
    fixture_write(path, b, 7);
    check_fails(st_open(&f, path), ERR_FORMAT, "7 bytes");
    /* Sparse: the limit counts, not the memory. */
    uint64_t n = 100000000;
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(n >> 8 * i);
    fixture_write(path, b, sizeof b);
    assert_int_equal(truncate(path, (off_t)n + 100), 0);
    check_fails(st_open(&f, path), ERR_FORMAT, "100000000 bytes, the limit is 100000000");
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct st_file f;
    char fifo[FIXTURE_PATH];
    check_fails(st_open(&f, "no/such/file.safetensors"), ERR_IO, "no/such/file.safetensors");
    check_fails(st_open(&f, dir), ERR_FORMAT, "not a regular file");
    assert_int_equal(mkfifo(fixture_join(fifo, dir, "pipe"), 0600), 0);
    check_fails(st_open(&f, fifo), ERR_FORMAT, "not a regular file");
}

static void a_file_that_shrinks_after_opening_is_a_short_read(void **state)
{
    (void)state;
    struct st_file f;
    char data[8];
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
    fixture_st(path, header, 8);
    check_ok(st_open(&f, path));
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + 5)), 0);
    check_fails(st_read(&f, st_find(&f, "a"), 0, 8, data), ERR_IO, "short read: 5 of 8 bytes");
    st_close(&f);
}

/* Opens whatever the bytes are; what is accepted must also be readable to the last byte. */
static bool open_mutant(const unsigned char *b, size_t n)
{
    struct st_file f;
    fixture_write(path, b, n);
    enum status s = st_open(&f, path);
    if (s) {
        assert_true(s == ERR_FORMAT && strstr(status_message(), path));
        return false;
    }
    uint64_t sum = 0;
    for (int64_t i = 0; i < f.count; i++) {
        const struct st_tensor *t = &f.tensors[i];
        char *data = malloc((size_t)st_bytes(t) + 1);
        check_ok(st_read(&f, t, 0, (size_t)st_bytes(t), data));
        assert_true(st_find(&f, t->name) != NULL);
        sum += st_bytes(t);
        free(data);
    }
    assert_int_equal(sum, f.data_bytes);
    st_close(&f);
    return true;
}

static void mutated_files_are_refused_or_read_whole(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],"
        "\"data_offsets\":[0,24]},\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[32,33]}}";
    size_t n;
    fixture_st(path, header, 33);
    unsigned char *good = (unsigned char *)fixture_read(path, &n), *b = malloc(n + 64);
    int accepted = 0, refused = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t h = check_hash(i), at = h % n, size = n;
        memcpy(b, good, n);
        switch (h >> 32 & 7) {
        case 0: size = at; break;                                                  /* cut */
        case 1: memset(b + n, (int)(h >> 40), 64), size = n + 1 + (h >> 48) % 64; break; /* grown */
        case 2: memmove(b + at, b + at + 1, n - at - 1), size = n - 1; break;       /* a byte less */
        case 3: memmove(b + at + 1, b + at, n - at), b[at] = (unsigned char)(h >> 40), size = n + 1; break;
        case 4: b[h >> 56 & 7] ^= (unsigned char)(1u << (h >> 40 & 7)); break;      /* the length */
        case 5: b[at] = (unsigned char)"0123456789-.eE[]{}\",:ntf"[(h >> 40) % 24]; break;
        default: b[at] ^= (unsigned char)(1u << (h >> 40 & 7)); break;
        }
        if (open_mutant(b, size)) accepted++;
        else refused++;
    }
    assert_true(accepted > 50 && refused > 1000); /* both happen: data bits and names may change, structure may not */
    free(good);
    free(b);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(golden_file_is_read),
    cmocka_unit_test_setup_teardown(each_fixture_gets_the_documented_verdict, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_header_length_beyond_the_file_or_the_limit_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(what_is_no_file_is_refused, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_file_that_shrinks_after_opening_is_a_short_read, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(mutated_files_are_refused_or_read_whole, make_dir, remove_dir),
};

CHECK_MAIN(cases)
