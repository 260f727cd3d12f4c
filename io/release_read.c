/* Rectangles of a release's tensors, converted or decoded on the way. */
#include "release_inner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4 << 20, PARALLEL_FROM = 1 << 16 };

enum status release_read_raw(const struct release *r, const struct release_raw *raw, uint64_t offset, size_t bytes,
                             void *dst)
{
    return st_read(&r->shards[raw->shard], raw->t, offset, bytes, dst);
}

/* Value of an IEEE half; exact. */
static float float_from_f16(uint16_t h)
{
    union { uint32_t u; float f; } v = {(uint32_t)(h & 0x7fff) << 13};
    if ((h & 0x7c00) == 0x7c00) v.u |= 0x7f800000u;
    else v.f *= 0x1p112f;
    v.u |= (uint32_t)(h & 0x8000) << 16;
    return v.f;
}

/* n stored values to `out`; false when a finite value does not fit bfloat16. */
static bool convert(enum dtype from, const void *src, enum dtype out, void *dst, int64_t n)
{
    const uint16_t *half = src;
    float *f = dst;
    uint16_t *b = dst;
    unsigned bad = 0;
    if (out == DT_F32) {
        if (from == DT_F32) memcpy(dst, src, (size_t)n * 4);
        else if (from == DT_BF16) for (int64_t i = 0; i < n; i++) f[i] = float_from_bf16(half[i]);
        else for (int64_t i = 0; i < n; i++) f[i] = float_from_f16(half[i]);
        return true;
    }
    if (from == DT_BF16) memcpy(dst, src, (size_t)n * 2);
    else if (from == DT_F16) for (int64_t i = 0; i < n; i++) b[i] = bf16_from_float(float_from_f16(half[i]));
    else for (int64_t i = 0; i < n; i++) {
        float x = ((const float *)src)[i];
        b[i] = bf16_from_float(x);
        bad |= (b[i] & 0x7fff) == 0x7f80 && fabsf(x) <= 0x1.fffffep127f;
    }
    return !bad;
}

/* `n` consecutive elements from element `first`. */
static enum status read_plain_run(const struct release *r, const struct release_tensor *t, int64_t first, int64_t n,
                                  enum dtype out, char *dst, void *buffer)
{
    const struct st_tensor *s = t->data->t;
    int64_t size = (int64_t)dtype_size(s->dtype), step = CHUNK_BYTES / size;
    if (s->dtype == out) return release_read_raw(r, t->data, (uint64_t)(first * size), (size_t)(n * size), dst);
    for (int64_t i = 0; i < n; i += step) {
        int64_t m = n - i < step ? n - i : step;
        TRY(release_read_raw(r, t->data, (uint64_t)((first + i) * size), (size_t)(m * size), buffer));
        if (!convert(s->dtype, buffer, out, dst + i * (int64_t)dtype_size(out), m))
            return FAIL(ERR_FORMAT, "%s: tensor %s: a value overflows bfloat16", r->dir, t->name);
    }
    return OK;
}

static enum status read_plain(const struct release *r, const struct release_tensor *t, int64_t row0, int64_t nrows,
                              int64_t col0, int64_t ncols, enum dtype out, char *dst)
{
    enum dtype from = t->data->t->dtype;
    if (from != DT_F32 && from != DT_BF16 && from != DT_F16)
        return FAIL(ERR_FORMAT, "%s: tensor %s is %s, which is no weight that can be loaded", r->dir, t->name, dtype_name(from));
    void *buffer = malloc(CHUNK_BYTES);
    enum status s = buffer ? OK : FAIL(ERR_MEMORY, "%s: no memory for a read buffer", r->dir);
    if (ncols == t->cols && !s) s = read_plain_run(r, t, row0 * ncols, nrows * ncols, out, dst, buffer);
    else for (int64_t i = 0; i < nrows && !s; i++)
        s = read_plain_run(r, t, (row0 + i) * t->cols + col0, ncols, out, dst + i * ncols * (int64_t)dtype_size(out), buffer);
    free(buffer);
    return s;
}

/* Buffers of one quantised read: some rows at a time. */
struct window {
    int64_t rows;                    /* at a time */
    int64_t base;                    /* first column that is read: a block's start */
    int64_t byte0, bytes;            /* of a stored row that are read */
    int64_t scales;                  /* in a row of the scale tensor */
    uint8_t *packed, *scale;         /* [rows, bytes] [rows, scales] */
    uint16_t *decoded;               /* [rows, ncols], for float32 results */
    float scalar;
};

static enum status read_window(const struct release *r, const struct release_tensor *t, const struct window *w, int64_t row,
                               int64_t n)
{
    int64_t stored = st_cols(t->data->t);
    if (w->bytes == stored) TRY(release_read_raw(r, t->data, (uint64_t)(row * stored), (size_t)(n * stored), w->packed));
    else for (int64_t i = 0; i < n; i++)
        TRY(release_read_raw(r, t->data, (uint64_t)((row + i) * stored + w->byte0), (size_t)w->bytes, w->packed + i * w->bytes));
    TRY(release_read_raw(r, t->scale, (uint64_t)(row * w->scales), (size_t)(n * w->scales), w->scale));
    return OK;
}

/* Decodes n rows in parallel. The first bad row is reported, whichever thread met it. */
static enum status decode_window(const struct release *r, const struct release_tensor *t, const struct window *w, int64_t row,
                                 int64_t n, int64_t col0, int64_t ncols, uint16_t *dst)
{
    int64_t bad = n;
    enum quant_fault fault = QUANT_FINE;
#pragma omp parallel for schedule(static) if (n * ncols >= PARALLEL_FROM)
    for (int64_t i = 0; i < n; i++) {
        enum quant_fault f = quant_decode_row(t->quant, dst + i * ncols, w->packed + i * w->bytes,
                                              w->scale + i * w->scales + w->base / quant_block(t->quant), w->scalar,
                                              col0 - w->base, ncols);
        if (f != QUANT_FINE) {
#pragma omp critical(release_fault)
            if (i < bad) bad = i, fault = f;
        }
    }
    if (bad == n) return OK;
    return FAIL(ERR_FORMAT, "%s: tensor %s (%s), row %" PRId64 ": %s", r->dir, t->name, quant_name(t->quant), row + bad,
                quant_fault_text(fault));
}

static enum status read_quant(const struct release *r, const struct release_tensor *t, int64_t row0, int64_t nrows,
                              int64_t col0, int64_t ncols, enum dtype out, char *dst)
{
    struct window w = {.base = col0 / quant_block(t->quant) * quant_block(t->quant), .scales = st_cols(t->scale->t)};
    w.byte0 = quant_stored_cols(t->quant, w.base);
    w.bytes = (t->quant == QUANT_MXFP8 ? col0 + ncols : (col0 + ncols + 1) / 2) - w.byte0;
    w.rows = CHUNK_BYTES / (w.bytes + w.scales + ncols * 2);
    w.rows = w.rows < 1 ? 1 : w.rows > nrows ? nrows : w.rows;
    w.packed = malloc((size_t)(w.rows * w.bytes));
    w.scale = malloc((size_t)(w.rows * w.scales));
    w.decoded = out == DT_F32 ? malloc((size_t)(w.rows * ncols) * 2) : NULL;
    enum status s = OK;
    if (!w.packed || !w.scale || (out == DT_F32 && !w.decoded)) s = FAIL(ERR_MEMORY, "%s: no memory to decode %s", r->dir, t->name);
    else if (t->scalar) s = release_read_raw(r, t->scalar, 0, 4, &w.scalar);
    for (int64_t i = 0; i < nrows && !s; i += w.rows) {
        int64_t n = nrows - i < w.rows ? nrows - i : w.rows;
        uint16_t *bf = out == DT_F32 ? w.decoded : (uint16_t *)dst + i * ncols;
        s = read_window(r, t, &w, row0 + i, n);
        if (!s) s = decode_window(r, t, &w, row0 + i, n, col0, ncols, bf);
        if (!s && out == DT_F32) convert(DT_BF16, bf, DT_F32, (float *)(void *)dst + i * ncols, n * ncols);
    }
    free(w.packed);
    free(w.scale);
    free(w.decoded);
    return s;
}

enum status release_read(const struct release *r, const struct release_tensor *t, int64_t row0, int64_t nrows,
                         int64_t col0, int64_t ncols, enum dtype out, void *dst)
{
    if (out != DT_F32 && out != DT_BF16)
        return FAIL(ERR_INTERNAL, "%s: %s asked as %s, only F32 and BF16 are made", r->dir, t->name, dtype_name(out));
    if (row0 < 0 || nrows < 0 || row0 > t->rows || nrows > t->rows - row0 || col0 < 0 || ncols < 0 || col0 > t->cols ||
        ncols > t->cols - col0)
        return FAIL(ERR_FORMAT, "%s: tensor %s is %" PRId64 " x %" PRId64 ", asked were rows %" PRId64 " + %" PRId64
                    " and columns %" PRId64 " + %" PRId64, r->dir, t->name, t->rows, t->cols, row0, nrows, col0, ncols);
    if (nrows == 0 || ncols == 0) return OK;
    if (t->quant == QUANT_NONE) TRY(read_plain(r, t, row0, nrows, col0, ncols, out, dst));
    else TRY(read_quant(r, t, row0, nrows, col0, ncols, out, dst));
    return OK;
}

enum status release_read_rows(const struct release *r, const char *name, int64_t row0, int64_t nrows, int64_t col0,
                              int64_t ncols, enum dtype out, void *dst)
{
    const struct release_tensor *t = release_find(r, name);
    if (!t) return FAIL(ERR_FORMAT, "%s: tensor %s is missing", r->dir, name);
    return release_read(r, t, row0, nrows, col0, ncols, out, dst);
}
