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

/* Exponent and mantissa moved into a float's place, the bias corrected by adding to the exponent; bytes below 8 are
 * subnormal: (1 + m/8) 2^-6 - 2^-6. No float operand is subnormal, which would cost some hundred cycles. */
static inline float e4m3(uint8_t b)
{
    uint32_t m = b & 0x7fu, subnormal = 0u - (m < 8); /* a mask: a branch would keep the loops scalar */
    union bits normal = {(m << 20) + (120u << 23)}, low = {(m << 20) + (121u << 23)}, v;
    low.f -= 0x1p-6f;
    v.u = (low.u & subnormal) | (normal.u & ~subnormal) | (uint32_t)(b & 0x80) << 24;
    return v.f;
}

float quant_e4m3(uint8_t byte) { return (byte & 0x7f) == 0x7f ? NAN : e4m3(byte); }

static const float e2m1[16] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

float quant_e2m1(uint8_t nibble) { return e2m1[nibble & 15]; }

/* Rounds a float32 that is no NaN to bfloat16, to nearest even; overflow becomes infinity. 32 bits keep loops vector code. */
static inline uint32_t round_bf16(float f)
{
    union bits v = {.f = f};
    return (v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16;
}

/* n values of one block. Faults are collected, so that the loop has no branches and becomes vector code. */
static inline void mxfp8_block(uint16_t *restrict out, const uint8_t *restrict w, float scale, int64_t n, uint32_t *nan,
                               uint32_t *over)
{
    uint32_t bad = 0, inf = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = round_bf16(e4m3(w[i]) * scale);
        out[i] = (uint16_t)h;
        bad |= (w[i] & 0x7fu) == 0x7fu;
        inf |= (h & 0x7f80u) == 0x7f80u;
    }
    *nan |= bad;
    *over |= inf;
}

static enum quant_fault mxfp8_row(uint16_t *out, const uint8_t *row, const uint8_t *scales, int64_t col0, int64_t n)
{
    uint32_t nan = 0, over = 0;
    for (int64_t c = col0, end = col0 + n; c < end;) {
        int64_t stop = (c / MXFP8_BLOCK + 1) * MXFP8_BLOCK;
        if (stop > end) stop = end;
        uint8_t s = scales[c / MXFP8_BLOCK];
        if (s == 255) return QUANT_SCALE_NAN;
        union bits scale = {s ? (uint32_t)s << 23 : 0x00400000u}; /* 2^(s - 127); s = 0 is subnormal */
        if (stop - c == MXFP8_BLOCK) mxfp8_block(out + (c - col0), row + c, scale.f, MXFP8_BLOCK, &nan, &over);
        else mxfp8_block(out + (c - col0), row + c, scale.f, stop - c, &nan, &over);
        c = stop;
    }
    return nan ? QUANT_VALUE_NAN : over ? QUANT_OVERFLOW : QUANT_FINE;
}

/* A block has 16 different values at most: they are decoded once. True when one of them overflows. */
static inline bool nvfp4_values(uint16_t value[16], float scale, float scalar)
{
    uint32_t over = 0;
    for (int k = 0; k < 16; k++) {
        uint32_t h = round_bf16(e2m1[k] * scale * scalar);
        value[k] = (uint16_t)h;
        over |= (h & 0x7f80u) == 0x7f80u;
    }
    return over;
}

static enum quant_fault nvfp4_row(enum quant q, uint16_t *out, const uint8_t *row, const uint8_t *scales, float scalar,
                                  int64_t col0, int64_t n)
{
    bool over = false;
    uint16_t value[16];
    for (int64_t c = col0, end = col0 + n; c < end;) {
        int64_t stop = (c / NVFP4_BLOCK + 1) * NVFP4_BLOCK;
        if (stop > end) stop = end;
        uint8_t s = scales[c / NVFP4_BLOCK];
        if ((s & 0x7f) == 0x7f) return QUANT_SCALE_NAN;
        bool may_overflow = q == QUANT_NVFP4_CT ? nvfp4_values(value, e4m3(s) / scalar, 1.f) : nvfp4_values(value, e4m3(s), scalar);
        uint16_t *o = out + (c - col0);
        if (stop - c == NVFP4_BLOCK)
            for (int i = 0; i < NVFP4_BLOCK / 2; i++) {
                uint8_t b = row[c / 2 + i];
                o[2 * i] = value[b & 15];
                o[2 * i + 1] = value[b >> 4];
            }
        else
            for (int64_t i = c; i < stop; i++) o[i - c] = value[i % 2 ? row[i / 2] >> 4 : row[i / 2] & 15];
        for (int64_t i = c; may_overflow && i < stop; i++) over |= (o[i - c] & 0x7f80) == 0x7f80;
        c = stop;
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
