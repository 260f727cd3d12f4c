/* Quantised weights: the three storage forms of a matrix (MXFP8, NVFP4 as ModelOpt and as compressed-tensors write it),
 * their exact decoding to bfloat16, and struct quant_map, what config.json and hf_quant_config.json say about which
 * module is stored how. A release is decoded only where tensors and map agree (release.c). */
#ifndef QUANT_H
#define QUANT_H
#include "json.h"
#include "tensor.h"

enum quant {
    QUANT_NONE,     /* F32, F16, BF16 */
    QUANT_MXFP8,    /* weight F8_E4M3 [out, in], scale U8 [out, ceil(in/32)]: e4m3 * 2^(s - 127) */
    QUANT_NVFP4,    /* weight U8 [out, in/2], scale F8_E4M3 [out, ceil(in/16)], scalar F32: e2m1 * scale * scalar */
    QUANT_NVFP4_CT, /* weight_packed, scale, global F32: e2m1 * (scale / global) */
};
enum { MXFP8_BLOCK = 32, NVFP4_BLOCK = 16 };

const char *quant_name(enum quant q);
/* Columns that share a scale. 1 for QUANT_NONE. */
int quant_block(enum quant q);
/* Stored columns of `cols` logical ones. */
int64_t quant_stored_cols(enum quant q, int64_t cols);

/* The exact value of an E4M3 byte (NaN for 0x7f and 0xff) and of an E2M1 nibble (-0.0 for 8). */
float quant_e4m3(uint8_t byte);
float quant_e2m1(uint8_t nibble);

/* Why a decoded range is refused. */
enum quant_fault { QUANT_FINE, QUANT_SCALE_NAN, QUANT_VALUE_NAN, QUANT_OVERFLOW };
const char *quant_fault_text(enum quant_fault f);

/* Decodes columns [col0, col0 + n) of one row to bfloat16, round to nearest even from the float32 product. `row` is the
 * whole stored row, `scales` the row's scales; `scalar` is weight_scale_2 or weight_global_scale (NVFP4 forms). The
 * output is complete but meaningless when a fault is returned. */
enum quant_fault quant_decode_row(enum quant q, uint16_t *out, const uint8_t *row, const uint8_t *scales, float scalar,
                                  int64_t col0, int64_t n);

/* What the map says of a module. */
enum quant_rule {
    RULE_PLAIN,    /* not quantised */
    RULE_DEFAULT,  /* covered by a rule for all linear layers */
    RULE_NAMED     /* named (or matched by a pattern): must be stored so */
};

struct quant_patterns; /* a compiled list of module patterns */

struct quant_map {
    char *origin;                     /* the file that decides, for messages */
    enum quant all;                   /* of every linear layer not excluded; QUANT_NONE: no such rule */
    struct quant_patterns *excluded;  /* or NULL */
    struct quant_patterns *targets;   /* compressed-tensors: modules of form QUANT_NVFP4_CT, or NULL */
    json_t *layers;                   /* MIXED_PRECISION: module -> {quant_algo}, or NULL */
};

/* Reads the quantization section of a parsed config.json and, when it is there, DIR/hf_quant_config.json. Without either
 * the map is empty: nothing is quantised. ERR_FORMAT naming what is not supported (other methods, bit widths and block
 * sizes; DeepSeek-style fp8 with [128, 128] blocks) or where the two files disagree. On failure the map is empty. */
enum status quant_map_load(struct quant_map *m, const json_t *config, const char *dir);
void quant_map_destroy(struct quant_map *m);
/* The rule for a module ("language_model.model.layers.0.self_attn.q_proj") and its form. ERR_FORMAT when the map itself
 * is broken there (an algorithm that is not supported). */
enum status quant_map_find(const struct quant_map *m, const char *module, enum quant *q, enum quant_rule *rule);

/* Compiles a JSON list of patterns. "re:..." is a regular expression from the start of the module's name; any other names
 * whole components ("gate" names a.gate and a.gate.b, never a.gate_proj), with *, ? and [...] as in a shell. */
enum status quant_patterns_create(struct quant_patterns **p, const json_t *list, const char *origin);
bool quant_patterns_match(const struct quant_patterns *p, const char *module);
void quant_patterns_destroy(struct quant_patterns **p);
#endif
