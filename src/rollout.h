/* The rollout engine: continuous batching over block_forward() with paged caches.
 *
 * Every pass mixes sequences that decode (one new token) with prompts being prefilled (chunks of what fits). A sequence
 * is admitted when the pages it can ever need are free, so nothing is evicted half-way. Samples of one prompt share its
 * pages: the first prefills, the others start when it is done, borrow its full pages and copy the last one.
 *
 * Randomness is keyed by (seed, step, prompt, sample, position): results do not depend on the batch or the mesh. All tp
 * ranks run the same requests and draw the same tokens. Requests of other dp ranks are theirs; with expert parallelism
 * all ranks of the plane run the same number of passes. */
#ifndef ROLLOUT_H
#define ROLLOUT_H
#include "head.h"
#include "sampling.h"

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };

struct request {
    const int32_t *prompt;
    int32_t n_prompt;
    int32_t max_new;
    uint64_t prompt_id, sample_id; /* of the random draws; equal prompt_id of neighbours: one prompt */
    int tag;                  /* the caller's */
    /* results, caller's arrays of max_new */
    int32_t *ids;
    float *logprobs;
    int16_t *experts;         /* [n_prompt + max_new, MoE layers, k] where routing is recorded, else NULL: the experts of
                                 every token that went through the model, which the last one does not */
    int32_t n_new;
    enum finish finish;
};

struct rollout_options {
    int max_batch;            /* sequences in a pass */
    int64_t max_tokens;       /* rows of a pass: prefill chunks fill what decoding leaves */
    int max_len;              /* prompt + new tokens of any request */
    int64_t pages;            /* KV pages; 0: enough for max_batch sequences of max_len */
    bool record_routing;      /* fill request.experts */
    struct arena *const *lender; /* [n_lenders] arenas of ops->place that are idle while this engine runs; it works in */
    int n_lenders;               /* their memory where there is room */
};

struct rollout_run {
    uint64_t seed, step;
    struct sampling sampling;
    const int32_t *stop;      /* [n_stop] ids that end a sequence (kept in its ids) */
    int n_stop;
    bool (*cancelled)(void *ctx); /* polled between passes; NULL: never */
    void *ctx;
};

struct rollout {
    struct model *m;
    struct rollout_options o;
    struct kvcache cache;
    int64_t max_pages;        /* of one sequence */
    int64_t promised;         /* pages that admitted sequences may still take */
    struct block_limits limits;
    struct workspace work;
    struct saved_layer shared;
    struct activations act;
    struct head head;
    struct sequence *sequence; /* [max_batch] */
    struct tensor ids, pos, slot, cu_seqlens, page_table, kv_len, pick, u, out_ids, out_logp, sample_work;
    struct tensor host[10];   /* the same on the host */
    struct tensor experts, experts_all; /* host [MoE layers, Tl, k] here, [tp, MoE layers, Tl, k] i32; routing recorded */
    struct arena device, host_arena, pages_arena;
    bool device_lent, pages_lent; /* their memory belongs to a lender */
    size_t work_bytes, page_bytes, lent_bytes;
    int moe_layers;
    int64_t passes, tokens_in, tokens_out; /* counters */
};

enum status rollout_create(struct rollout *r, struct model *m, const struct rollout_options *o);
void rollout_destroy(struct rollout *r);
/* Runs all requests to their end. Collective over tp, and over the plane with expert parallelism. ERR_CONFIG when a
 * request is longer than max_len or a prompt is empty; ERR_STOPPED when cancelled. */
enum status rollout_generate(struct rollout *r, struct request *q, int n, const struct rollout_run *run);
#endif
