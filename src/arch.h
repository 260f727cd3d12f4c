/* struct arch: the shape of a MiniMax-M3 language model, read once from a release's config.json and then plain fields.
 * Both dialects are accepted (MODEL.md section 1: the release's nested keys; newer re-saves' flat keys). After
 * arch_check() hot code has no "if the model had ...": what is not supported was refused with both values. */
#ifndef ARCH_H
#define ARCH_H
#include "status.h"
#include <stdint.h>

enum { ARCH_MAX_LAYERS = 1024 };

struct arch {
    int hidden;              /* C */
    int layers;              /* L */
    int heads;               /* H query heads */
    int kv_heads;            /* K */
    int head_dim;            /* D */
    int rotary_dim;          /* first channels of a head that rotate, even, <= D and <= index_dim */
    float rope_theta;
    float rms_eps;
    int vocab;               /* V */
    int max_positions;
    int dense_ffn;           /* Fd, dense MLP width */
    int expert_ffn;          /* F, one routed expert */
    int shared_ffn;          /* width of the shared expert (n_shared_experts x its size); 0: none */
    int experts;             /* E */
    int experts_per_token;   /* k */
    float routed_scale;      /* routed_scaling_factor */
    float swiglu_alpha, swiglu_limit;
    int index_heads;         /* I, equals kv_heads: head g decides for KV head g */
    int index_dim;           /* Di */
    int block_size;          /* B, tokens a key block */
    int topk_blocks;         /* slots a query has */
    int init_blocks, local_blocks;
    int bos_id, eos_id, pad_id; /* -1 when absent */
    bool moe[ARCH_MAX_LAYERS];    /* layer has experts (else a dense MLP) */
    bool sparse[ARCH_MAX_LAYERS]; /* layer's attention is block-sparse (else dense causal) */
};

/* Parses the text of config.json. ERR_FORMAT with the key and both values when it is broken or not supported (tied
 * embeddings, other activations, score types, layer lists of another length, ...). `origin` names the file. */
enum status arch_parse(struct arch *a, const char *text, size_t len, const char *origin);
/* The same from DIR/config.json (at most 16 MiB). */
enum status arch_load(struct arch *a, const char *dir);

/* Calls fn for every tensor of the language model under the release's name, with its shape, layer by layer; stops at the
 * first failure. */
typedef enum status (*arch_tensor_fn)(void *ctx, const char *name, int rank, const int64_t *dim);
enum status arch_each_tensor(const struct arch *a, arch_tensor_fn fn, void *ctx);
#endif
