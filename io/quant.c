#include "quant.h"

#include <math.h>
#include <string.h>

const char *quant_name(enum quant q)
{
    static const char *const name[] = {"no quantisation", "MXFP8", "NVFP4", "NVFP4 (nvfp4-pack-quantized)"};
    return name[q];
}

int quant_block(enum quant q) { return q == QUANT_NONE ? 1 : q == QUANT_MXFP8 ? MXFP8_BLOCK : NVFP4_BLOCK; }

int64_t quant_stored_cols(enum quant q, int64_t cols) { return q == QUANT_NVFP4 || q == QUANT_NVFP4_CT ? cols / 2 : cols; }

const char *quant_fault_text(enum quant_fault f)
{
    switch (f) {
    case QUANT_SCALE_NAN: return "a scale is NaN";
    case QUANT_VALUE_NAN: return "a value is NaN";
    case QUANT_OVERFLOW: return "a value overflows bfloat16";
    default: return "fine";
    }
}

union bits { uint32_t u; float f; };

/* The byte's exponent and mantissa, moved into a float's, are the value times 2^-120: also for subnormals. */
static inline float e4m3(uint8_t b)
{
    union bits v = {(uint32_t)(b & 0x80) << 24 | (uint32_t)(b & 0x7f) << 20};
    return v.f * 0x1p120f;
}

float quant_e4m3(uint8_t byte) { return (byte & 0x7f) == 0x7f ? NAN : e4m3(byte); }

static const float e2m1[16] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

float quant_e2m1(uint8_t nibble) { return e2m1[nibble & 15]; }

/* Rounds a float32 that is no NaN to bfloat16, to nearest even; overflow becomes infinity. */
static inline uint16_t round_bf16(float f)
{
    union bits v = {.f = f};
    return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}

/* n values of one block: (*nan, *over) collect faults so that the loop stays free of branches. */
static void mxfp8_block(uint16_t *out, const uint8_t *w, float scale, int64_t n, unsigned *nan, unsigned *over)
{
    unsigned bad = 0, inf = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = round_bf16(e4m3(w[i]) * scale);
        out[i] = h;
        bad |= (w[i] & 0x7f) == 0x7f;
        inf |= (h & 0x7f80) == 0x7f80;
    }
    *nan |= bad;
    *over |= inf;
}

static enum quant_fault mxfp8_row(uint16_t *out, const uint8_t *row, const uint8_t *scales, int64_t col0, int64_t n)
{
    unsigned nan = 0, over = 0;
    for (int64_t c = col0, end = col0 + n; c < end;) {
        int64_t stop = (c / MXFP8_BLOCK + 1) * MXFP8_BLOCK;
        if (stop > end) stop = end;
        uint8_t s = scales[c / MXFP8_BLOCK];
        if (s == 255) return QUANT_SCALE_NAN;
        union bits scale = {s ? (uint32_t)s << 23 : 0x00400000u}; /* 2^(s - 127); s = 0 is subnormal */
        mxfp8_block(out + (c - col0), row + c, scale.f, stop - c, &nan, &over);
        c = stop;
    }
    return nan ? QUANT_VALUE_NAN : over ? QUANT_OVERFLOW : QUANT_FINE;
}

static enum quant_fault nvfp4_row(enum quant q, uint16_t *out, const uint8_t *row, const uint8_t *scales, float scalar,
                                  int64_t col0, int64_t n)
{
    unsigned over = 0;
    for (int64_t c = col0, end = col0 + n; c < end;) {
        int64_t stop = (c / NVFP4_BLOCK + 1) * NVFP4_BLOCK;
        if (stop > end) stop = end;
        uint8_t s = scales[c / NVFP4_BLOCK];
        if ((s & 0x7f) == 0x7f) return QUANT_SCALE_NAN;
        float scale = e4m3(s);
        uint16_t value[16]; /* a block has 16 different values at most: decode them once */
        for (int k = 0; k < 16; k++) value[k] = round_bf16(q == QUANT_NVFP4_CT ? e2m1[k] * (scale / scalar)
                                                                               : e2m1[k] * scale * scalar);
        for (; c < stop; c++) {
            uint16_t h = value[c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15];
            out[c - col0] = h;
            over |= (h & 0x7f80) == 0x7f80;
        }
    }
    return over ? QUANT_OVERFLOW : QUANT_FINE;
}

enum quant_fault quant_decode_row(enum quant q, uint16_t *out, const uint8_t *row, const uint8_t *scales, float scalar,
                                  int64_t col0, int64_t n)
{
    if (q == QUANT_MXFP8) return mxfp8_row(out, row, scales, col0, n);
    if (!isfinite(scalar) || (q == QUANT_NVFP4_CT && scalar == 0)) return QUANT_SCALE_NAN;
    return nvfp4_row(q, out, row, scales, scalar, col0, n);
}
