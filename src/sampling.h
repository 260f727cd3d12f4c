/* Counter-based randomness and the choice of a token.
 *
 * There is no generator state: a number is a hash of what it is for, so a draw does not depend on the mesh, on the order
 * of work or on what was drawn before. The hash absorbs 64-bit words one after the other,
 *
 *     h = mix(h + 0x9e3779b97f4a7c15 + mix(word)),    mix(x): the SplitMix64 finaliser, h0 = number of words,
 *
 * so that every word, its place and the number of words count. Domains ("sample", "normal", "order") are words too:
 * the same (seed, index) gives unrelated numbers in two of them. */
#ifndef SAMPLING_H
#define SAMPLING_H
#include "status.h"
#include <stdint.h>

uint64_t rng_hash(const uint64_t *word, int n);
/* The bytes of `name` as a word (a parameter's name, a domain). */
uint64_t rng_name(const char *name);
/* Top 53 bits of a hash as a double in [0, 1). */
static inline double rng_unit(uint64_t hash) { return (double)(hash >> 11) * 0x1p-53; }

/* The draw for one token: in [0, 1). `position` counts generated tokens of that sample from 0. */
double rng_uniform(uint64_t seed, uint64_t step, uint64_t prompt, uint64_t sample, uint64_t position);

/* Standard normal number `index` of the stream (seed, stream = rng_name(parameter)): Box-Muller, the cosine for even and
 * the sine for odd indices of one pair of hashes. Equal on all machines as far as log, sqrt, cos and sin are. */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* order[0..n) becomes the permutation of 0..n-1 of (seed, epoch): Fisher-Yates with unbiased draws. */
void rng_permutation(uint64_t seed, uint64_t epoch, int64_t *order, int64_t n);

struct sampling {
    float temperature; /* 0: greedy */
    int top_k;         /* keep the k largest logits; <= 0: all */
    double top_p;      /* then the smallest set of largest ones that holds this share of their mass; >= 1: all */
};

/* Chooses a token with the draw u in [0, 1). `logits` are [vocab] host floats, `scratch` is [vocab] floats of the
 * caller's. Greedy takes the lowest id among the largest logits. Among equal logits the filters keep the lowest ids; at
 * least one token is always kept. *logprob is the log-prob of the chosen token under the *unfiltered* softmax of
 * logits / temperature (temperature 1 for greedy): that is what a trainer computes for the same token, whatever top_k
 * and top_p are. -inf logits are tokens that cannot be chosen. Linear in vocab: thresholds are found by radix
 * selection, not by sorting. ERR_INTERNAL when a logit is NaN or +inf, or none is finite. */
enum status sample_token(const float *logits, int vocab, const struct sampling *s, double u, float *scratch,
                         int32_t *id, float *logprob);
#endif
