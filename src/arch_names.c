/* The release's tensors of the language model (MODEL.md section 1), from the architecture alone. */
#include "arch.h"

#include <stdarg.h>
#include <stdio.h>

struct walk {
    arch_tensor_fn fn;
    void *ctx;
    int layer;
};

static enum status emit(const struct walk *w, int rank, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Layer tensors get the layer's prefix; w->layer -1: none. */
static enum status emit(const struct walk *w, int rank, int64_t rows, int64_t cols, const char *fmt, ...)
{
    char name[160];
    int n = snprintf(name, sizeof name, "language_model.");
    if (w->layer >= 0) n += snprintf(name + n, sizeof name - (size_t)n, "model.layers.%d.", w->layer);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name + n, sizeof name - (size_t)n, fmt, ap);
    va_end(ap);
    TRY(w->fn(w->ctx, name, rank, (int64_t[]){rows, cols}));
    return OK;
}

static enum status attention(const struct arch *a, const struct walk *w)
{
    int64_t C = a->hidden, D = a->head_dim, Di = a->index_dim;
    TRY(emit(w, 1, C, 0, "input_layernorm.weight"));
    TRY(emit(w, 1, C, 0, "post_attention_layernorm.weight"));
    TRY(emit(w, 2, a->heads * D, C, "self_attn.q_proj.weight"));
    TRY(emit(w, 2, a->kv_heads * D, C, "self_attn.k_proj.weight"));
    TRY(emit(w, 2, a->kv_heads * D, C, "self_attn.v_proj.weight"));
    TRY(emit(w, 2, C, a->heads * D, "self_attn.o_proj.weight"));
    TRY(emit(w, 1, D, 0, "self_attn.q_norm.weight"));
    TRY(emit(w, 1, D, 0, "self_attn.k_norm.weight"));
    if (!a->sparse[w->layer]) return OK;
    TRY(emit(w, 2, a->index_heads * Di, C, "self_attn.index_q_proj.weight"));
    TRY(emit(w, 2, Di, C, "self_attn.index_k_proj.weight"));
    TRY(emit(w, 1, Di, 0, "self_attn.index_q_norm.weight"));
    TRY(emit(w, 1, Di, 0, "self_attn.index_k_norm.weight"));
    return OK;
}

static enum status gated(const struct walk *w, const char *module, int64_t width, int64_t C)
{
    TRY(emit(w, 2, width, C, "%s.gate_proj.weight", module));
    TRY(emit(w, 2, width, C, "%s.up_proj.weight", module));
    TRY(emit(w, 2, C, width, "%s.down_proj.weight", module));
    return OK;
}

static enum status experts(const struct arch *a, const struct walk *w)
{
    int64_t C = a->hidden, F = a->expert_ffn;
    TRY(emit(w, 2, a->experts, C, "block_sparse_moe.gate.weight"));
    TRY(emit(w, 1, a->experts, 0, "block_sparse_moe.e_score_correction_bias"));
    for (int e = 0; e < a->experts; e++) {
        TRY(emit(w, 2, F, C, "block_sparse_moe.experts.%d.w1.weight", e));
        TRY(emit(w, 2, C, F, "block_sparse_moe.experts.%d.w2.weight", e));
        TRY(emit(w, 2, F, C, "block_sparse_moe.experts.%d.w3.weight", e));
    }
    if (a->shared_ffn) TRY(gated(w, "block_sparse_moe.shared_experts", a->shared_ffn, C));
    return OK;
}

enum status arch_each_tensor(const struct arch *a, arch_tensor_fn fn, void *ctx)
{
    struct walk w = {fn, ctx, -1};
    TRY(emit(&w, 2, a->vocab, a->hidden, "model.embed_tokens.weight"));
    for (w.layer = 0; w.layer < a->layers; w.layer++) {
        TRY(attention(a, &w));
        if (a->moe[w.layer]) TRY(experts(a, &w));
        else TRY(gated(&w, "mlp", a->dense_ffn, a->hidden));
    }
    w.layer = -1;
    TRY(emit(&w, 1, a->hidden, 0, "model.norm.weight"));
    TRY(emit(&w, 2, a->vocab, a->hidden, "lm_head.weight"));
    return OK;
}
