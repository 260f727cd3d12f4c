/* Quantised weights: exact decoding, slices, and every disagreement between tensors and map. */
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#define MODULE "language_model.model.layers.0.self_attn.k_proj"

static char dir[FIXTURE_PATH];
static struct release *r;

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    release_close(&r);
    fixture_remove(dir);
    return 0;
}

static void check_golden(const char *name)
{
    char ckpt[FIXTURE_PATH], expected[FIXTURE_PATH];
    struct st_file f;
    snprintf(ckpt, sizeof ckpt, "tests/data/golden/%s/checkpoint", name);
    snprintf(expected, sizeof expected, "tests/data/golden/%s/expected_bf16.safetensors", name);
    check_ok(release_open(&r, ckpt));
    check_ok(st_open(&f, expected));
    assert_int_equal(r->count, f.count);
    int64_t quantised = 0;
    for (int64_t i = 0; i < f.count; i++) {
        const struct st_tensor *want = &f.tensors[i];
        const struct release_tensor *t = release_find(r, want->name);
        if (!t) fail_msg("%s: %s is missing", name, want->name);
        quantised += t->quant != QUANT_NONE;
        char *a = malloc((size_t)st_bytes(want)), *b = malloc((size_t)st_bytes(want));
        float *wide = malloc(sizeof(float) * (size_t)st_elements(want));
        check_ok(st_read(&f, want, 0, (size_t)st_bytes(want), a));
        check_ok(release_read(r, t, 0, t->rows, 0, t->cols, want->dtype, b));
        check_ok(release_read(r, t, 0, t->rows, 0, t->cols, DT_F32, wide));
        for (int64_t k = 0; k < st_elements(want) && want->dtype == DT_BF16; k++) {
            uint16_t x = ((uint16_t *)(void *)a)[k], y = ((uint16_t *)(void *)b)[k];
            float z = float_from_bf16(x);
            if (x != y || memcmp(&z, &wide[k], 4))
                fail_msg("%s: %s [%lld] = %04x, expected %04x", name, want->name, (long long)k, y, x);
        }
        assert_memory_equal(a, b, (size_t)st_bytes(want));
        free(a);
        free(b);
        free(wide);
    }
    assert_true(quantised >= 48);
    st_close(&f);
    release_close(&r);
}

static void golden_mxfp8_is_decoded_bit_for_bit(void **state) { (void)state; check_golden("narrow_mxfp8"); }
static void golden_nvfp4_is_decoded_bit_for_bit(void **state) { (void)state; check_golden("narrow_nvfp4_mixed"); }
static void golden_packed_nvfp4_is_decoded_bit_for_bit(void **state) { (void)state; check_golden("narrow_nvfp4_ct"); }

/* The value of an E4M3 byte from its definition. */
static double e4m3(int b)
{
    int e = b >> 3 & 15, m = b & 7;
    return (e ? ldexp(8 + m, e - 10) : ldexp(m, -9)) * (b >> 7 ? -1 : 1);
}

static void small_floats_have_the_values_of_their_definition(void **state)
{
    (void)state;
    static const double fp4[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (int b = 0; b < 256; b++) {
        double got = quant_e4m3((uint8_t)b);
        if ((b & 127) == 127 ? !isnan(got) : (got != e4m3(b) || (signbit(got) != 0) != b >> 7)) fail_msg("E4M3 %02x = %g", b, got);
    }
    for (int b = 0; b < 16; b++) {
        double got = quant_e2m1((uint8_t)b);
        assert_true(got == fp4[b & 7] * (b >> 3 ? -1 : 1) && (signbit(got) != 0) == b >> 3);
    }
}

/* One quantised matrix as a release of its own, from these parts. */
struct parts {
    enum quant q;
    int64_t rows, cols;
    const char *scale_name;
    uint8_t *w, *s;
    int64_t w_cols, s_cols;
    float scalar;
};

static void make_parts(struct parts *p, enum quant q, int64_t rows, int64_t cols, uint64_t seed)
{
    *p = (struct parts){q, rows, cols, q == QUANT_MXFP8 ? ".weight_scale_inv" : ".weight_scale", NULL, NULL, 0, 0, 0};
    p->w_cols = quant_stored_cols(q, cols);
    p->s_cols = (cols + quant_block(q) - 1) / quant_block(q);
    p->w = malloc((size_t)(rows * p->w_cols));
    p->s = malloc((size_t)(rows * p->s_cols));
    p->scalar = q == QUANT_NVFP4_CT ? 1237.5f : 0.000731f;
    for (int64_t i = 0; i < rows * p->w_cols; i++) {
        p->w[i] = (uint8_t)check_hash(seed + (uint64_t)i);
        if (q == QUANT_MXFP8 && (p->w[i] & 127) == 127) p->w[i] &= 0xf0;
    }
    for (int64_t i = 0; i < rows * p->s_cols; i++) {
        p->s[i] = (uint8_t)check_hash(~seed + (uint64_t)i);
        if (q == QUANT_MXFP8 ? p->s[i] > 245 : (p->s[i] & 127) == 127) p->s[i] &= 0x70;
    }
}

static void free_parts(struct parts *p)
{
    free(p->w);
    free(p->s);
}

static void write_config(const char *text)
{
    char path[FIXTURE_PATH];
    fixture_write(fixture_join(path, dir, "config.json"), text, strlen(text));
}

static const char *const config_of[] = {"{}",
    "{\"quantization_config\": {\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 32]}}",
    "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}}",
    ("{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", \"config_groups\": "
     "{\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16}}}}}")};

static void write_parts(const struct parts *p)
{
    char path[FIXTURE_PATH], scale[128];
    snprintf(scale, sizeof scale, MODULE "%s", p->scale_name);
    struct st_item items[] = {
        {p->q == QUANT_NVFP4_CT ? MODULE ".weight_packed" : MODULE ".weight", p->q == QUANT_MXFP8 ? DT_F8_E4M3 : DT_U8, 2,
         {p->rows, p->w_cols}, p->w},
        {scale, p->q == QUANT_MXFP8 ? DT_U8 : DT_F8_E4M3, 2, {p->rows, p->s_cols}, p->s},
        {p->q == QUANT_NVFP4_CT ? MODULE ".weight_global_scale" : MODULE ".weight_scale_2", DT_F32, p->q == QUANT_NVFP4 ? 0 : 1,
         {1}, &p->scalar}};
    write_config(config_of[p->q]);
    check_ok(st_write_file(fixture_join(path, dir, "model.safetensors"), items, p->q == QUANT_MXFP8 ? 2 : 3));
}

/* The value from FORMATS' formula, products in float32. */
static uint16_t expected(const struct parts *p, int64_t row, int64_t col)
{
    uint8_t s = p->s[row * p->s_cols + col / quant_block(p->q)];
    if (p->q == QUANT_MXFP8) return bf16_from_float((float)ldexp(e4m3(p->w[row * p->w_cols + col]), s - 127));
    uint8_t b = p->w[row * p->w_cols + col / 2];
    float v = quant_e2m1(col % 2 ? b >> 4 : b & 15), scale = (float)e4m3(s);
    if (p->q == QUANT_NVFP4_CT) scale = scale / p->scalar, v = v * scale;
    else v = v * scale, v = v * p->scalar;
    return bf16_from_float(v);
}

static void check_rectangle(const struct parts *p, int64_t r0, int64_t n, int64_t c0, int64_t m)
{
    uint16_t *got = malloc((size_t)(n * m) * 2);
    float *wide = malloc((size_t)(n * m) * 4);
    check_ok(release_read_rows(r, MODULE ".weight", r0, n, c0, m, DT_BF16, got));
    check_ok(release_read_rows(r, MODULE ".weight", r0, n, c0, m, DT_F32, wide));
    for (int64_t i = 0; i < n * m; i++) {
        uint16_t want = expected(p, r0 + i / m, c0 + i % m);
        float w = float_from_bf16(want);
        if (got[i] != want || memcmp(&w, &wide[i], 4))
            fail_msg("%s %lld x %lld: [%lld, %lld] = %04x, expected %04x", quant_name(p->q), (long long)p->rows,
                     (long long)p->cols, (long long)(r0 + i / m), (long long)(c0 + i % m), got[i], want);
    }
    free(got);
    free(wide);
}

static void other_shapes_and_all_their_slices_are_exact(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 32}, {3, 33}, {5, 1}, {2, 31}, {7, 64}, {4, 95}, {1, 100}, {300, 257}, {9, 16}, {6, 48},
        {2, 2}, {3, 18}, {70, 1040}};
    for (int q = QUANT_MXFP8; q <= QUANT_NVFP4_CT; q++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct parts p;
            int64_t rows = shapes[k][0], cols = shapes[k][1];
            if (q != QUANT_MXFP8 && cols % 2) continue; /* two to a byte */
            make_parts(&p, (enum quant)q, rows, cols, k);
            if (q == QUANT_MXFP8 && k % 2) p.scale_name = ".weight_scale";
            write_parts(&p);
            check_ok(release_open(&r, dir));
            check_rectangle(&p, 0, rows, 0, cols);
            for (uint64_t i = 0; i < 30; i++) {
                int64_t r0 = (int64_t)(check_hash(4 * i) % (uint64_t)rows), c0 = (int64_t)(check_hash(4 * i + 1) % (uint64_t)cols);
                check_rectangle(&p, r0, 1 + (int64_t)(check_hash(4 * i + 2) % (uint64_t)(rows - r0)), c0,
                                1 + (int64_t)(check_hash(4 * i + 3) % (uint64_t)(cols - c0)));
            }
            release_close(&r);
            free_parts(&p);
        }
}

static void shares_of_kv_heads_equal_the_slice_of_the_whole(void **state) /* P09 */
{
    (void)state;
    for (int spelling = 0; spelling < 2; spelling++) {
        struct parts p; /* 4 KV heads of 16 rows; each of 8 ranks takes the head rank / 2 */
        make_parts(&p, QUANT_MXFP8, 64, 80, 9);
        p.scale_name = spelling ? ".weight_scale" : ".weight_scale_inv";
        write_parts(&p);
        check_ok(release_open(&r, dir));
        for (int rank = 0; rank < 8; rank++) check_rectangle(&p, rank / 2 * 16, 16, 0, 80);
        release_close(&r);
        free_parts(&p);
    }
}

static void scale_bytes_at_both_ends_are_exact(void **state)
{
    (void)state;
    uint8_t w[32], s = 0;
    uint16_t out[32];
    for (int i = 0; i < 32; i++) w[i] = (uint8_t)(i * 4);
    struct parts p = {QUANT_MXFP8, 1, 32, ".weight_scale_inv", w, &s, 32, 1, 0};
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 32), QUANT_FINE);
    for (int i = 0; i < 32; i++) assert_int_equal(out[i], expected(&p, 0, i));
    assert_true(out[30] != 0 && float_from_bf16(out[30]) < 0x1p-117f); /* 448/2 * 2^-127: subnormals are kept */
    s = 254;
    for (int i = 0; i < 32; i++) w[i] = (uint8_t)((i & 16) << 3 | (i & 15) * 4); /* up to 1.75 * 2^127 */
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 32), QUANT_FINE);
    for (int i = 0; i < 32; i++) assert_int_equal(out[i], expected(&p, 0, i));
    w[5] = 0x40; /* 2 * 2^127 */
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 32), QUANT_OVERFLOW);
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 6, 26), QUANT_FINE);
    s = 255;
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 32), QUANT_SCALE_NAN);
    s = 127, w[7] = 0xff;
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 32), QUANT_VALUE_NAN);
}

static void minus_zero_stays_minus_zero(void **state)
{
    (void)state;
    uint8_t w[8] = {0x80, 0, 0x80, 0, 0x80, 0, 0x80, 0}, packed[8] = {8, 0x80, 0x88, 0, 0, 0, 0, 0}, s = 0, one = 0x38;
    uint16_t out[16];
    assert_int_equal(quant_decode_row(QUANT_MXFP8, out, w, &s, 0, 0, 8), QUANT_FINE);
    for (int i = 0; i < 8; i++) assert_int_equal(out[i], i % 2 ? 0 : 0x8000);
    for (int q = QUANT_NVFP4; q <= QUANT_NVFP4_CT; q++) {
        assert_int_equal(quant_decode_row((enum quant)q, out, packed, &one, 3.f, 0, 16), QUANT_FINE);
        static const uint16_t want[6] = {0x8000, 0, 0, 0x8000, 0x8000, 0x8000};
        assert_memory_equal(out, want, sizeof want);
    }
}

static void bad_numbers_are_refused_with_tensor_and_row(void **state)
{
    (void)state;
    static uint16_t out[4 * 64];
    static const struct { enum quant q; int scale, value; float scalar; const char *words; } bad[] = {
        {QUANT_MXFP8, 255, 0, 0, "row 2: a scale is NaN"},     {QUANT_MXFP8, 127, 0x7f, 0, "row 2: a value is NaN"},
        {QUANT_MXFP8, 254, 0x7e, 0, "row 2: a value overflows bfloat16"},
        {QUANT_NVFP4, 0x7f, 0, 1, "row 2: a scale is NaN"},    {QUANT_NVFP4, 0xff, 0, 1, "row 2: a scale is NaN"},
        {QUANT_NVFP4, 0x7e, 7, 1e36f, "row 2: a value overflows bfloat16"},
        {QUANT_NVFP4, 0x38, 1, NAN, "a scale is NaN"},         {QUANT_NVFP4, 0x38, 1, INFINITY, "a scale is NaN"},
        {QUANT_NVFP4_CT, 0x38, 1, 0, "a scale is NaN"},        {QUANT_NVFP4_CT, 0x7e, 7, 1e-36f, "row 2: a value overflows bfloat16"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct parts p;
        make_parts(&p, bad[i].q, 4, 64, i);
        memset(p.s, bad[i].q == QUANT_MXFP8 ? 127 : 0, (size_t)(4 * p.s_cols));
        memset(p.w, 1, (size_t)(4 * p.w_cols));
        p.scalar = bad[i].scalar;
        p.s[2 * p.s_cols + 1] = (uint8_t)bad[i].scale;
        p.w[2 * p.w_cols + p.w_cols / 2 - 1] = (uint8_t)bad[i].value;
        if (bad[i].q == QUANT_MXFP8) p.w[2 * p.w_cols + 40] = (uint8_t)bad[i].value;
        else p.w[2 * p.w_cols + 8] = (uint8_t)bad[i].value;
        write_parts(&p);
        check_ok(release_open(&r, dir));
        enum status s = release_read_rows(r, MODULE ".weight", 0, 4, 0, 64, DT_BF16, out);
        if (s != ERR_FORMAT || !strstr(status_message(), bad[i].words) || !strstr(status_message(), MODULE ".weight"))
            fail_msg("case %zu: %d \"%s\", expected \"%s\"", i, (int)s, s ? status_message() : "", bad[i].words);
        release_close(&r);
        free_parts(&p);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(golden_mxfp8_is_decoded_bit_for_bit),
    cmocka_unit_test(golden_nvfp4_is_decoded_bit_for_bit),
    cmocka_unit_test(golden_packed_nvfp4_is_decoded_bit_for_bit),
    cmocka_unit_test(small_floats_have_the_values_of_their_definition),
    cmocka_unit_test_setup_teardown(other_shapes_and_all_their_slices_are_exact, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(shares_of_kv_heads_equal_the_slice_of_the_whole, make_dir, remove_dir),
    cmocka_unit_test(scale_bytes_at_both_ends_are_exact),
    cmocka_unit_test(minus_zero_stays_minus_zero),
    cmocka_unit_test_setup_teardown(bad_numbers_are_refused_with_tensor_and_row, make_dir, remove_dir),
};

CHECK_MAIN(cases)
