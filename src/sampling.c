#include "sampling.h"

#include <math.h>
#include <string.h>

static const uint64_t golden = 0x9e3779b97f4a7c15u;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t absorb(uint64_t h, uint64_t word) { return mix(h + golden + mix(word)); }

uint64_t rng_hash(const uint64_t *word, int n)
{
    uint64_t h = (uint64_t)n;
    for (int i = 0; i < n; i++) h = absorb(h, word[i]);
    return h;
}

uint64_t rng_name(const char *name)
{
    uint64_t h = strlen(name);
    for (; *name; name++) h = absorb(h, (unsigned char)*name);
    return h;
}

/* Domains are eight letters each: words that no counter reaches. */
static const uint64_t domain_sample = 0x73616d706c652e31u, domain_normal = 0x6e6f726d616c2e31u,
                      domain_order = 0x6f726465722e3131u;

double rng_uniform(uint64_t seed, uint64_t step, uint64_t prompt, uint64_t sample, uint64_t position)
{
    return rng_unit(rng_hash((uint64_t[]){domain_sample, seed, step, prompt, sample, position}, 6));
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double two_pi = 6.283185307179586476925;
    uint64_t word[5] = {domain_normal, seed, stream, index / 2, 0};
    double u = 1 - rng_unit(rng_hash(word, 5)); /* in (0, 1]: its logarithm is finite */
    word[4] = 1;
    double angle = two_pi * rng_unit(rng_hash(word, 5)), radius = sqrt(-2 * log(u));
    return radius * (index % 2 ? sin(angle) : cos(angle));
}

/* Uniform in [0, n): the high half of hash * n, drawn again in the few cases that would favour small values. */
static uint64_t below(uint64_t seed, uint64_t epoch, uint64_t i, uint64_t n)
{
    uint64_t word[5] = {domain_order, seed, epoch, i, 0}, least = (0 - n) % n;
    for (;; word[4]++) {
        unsigned __int128 product = (unsigned __int128)rng_hash(word, 5) * n;
        if ((uint64_t)product >= least) return (uint64_t)(product >> 64);
    }
}

void rng_permutation(uint64_t seed, uint64_t epoch, int64_t *order, int64_t n)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)below(seed, epoch, (uint64_t)i, (uint64_t)i + 1), held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
}

/* A float's bits in an order that is the order of the values. -0 counts as 0. */
static uint32_t order_key(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The kept set: every logit above `key`, and the first `ties` ones equal to it. */
struct kept {
    uint32_t key;
    int64_t ties;
    double mass;
};

/* Keys are cut into three digits, from the top. */
enum { DIGITS = 1 << 11, PASSES = 3 };
static const struct {
    int shift, width;
} radix[PASSES] = {{21, 11}, {10, 11}, {0, 10}};

struct histogram {
    int64_t count[DIGITS];
    double mass[DIGITS];
};

/* Counts and weighs the digit of pass `p` over the logits whose higher digits are `prefix`. */
static void histogram_fill(struct histogram *h, const float *logits, const float *weight, int vocab, int p,
                           uint32_t prefix)
{
    memset(h, 0, sizeof *h);
    uint32_t low = (1u << radix[p].width) - 1;
    for (int i = 0; i < vocab; i++) {
        uint64_t key = order_key(logits[i]);
        if (key >> (radix[p].shift + radix[p].width) != prefix) continue;
        uint32_t digit = (uint32_t)(key >> radix[p].shift) & low;
        h->count[digit]++;
        h->mass[digit] += (double)weight[i];
    }
}

/* The smallest set of largest logits whose size reaches `want` (by_mass false) or whose weight does: radix selection.
 * `above` is what lies over the digits chosen so far. */
static struct kept keep_top(const float *logits, const float *weight, int vocab, double want, bool by_mass)
{
    struct histogram h;
    double above_count = 0, above_mass = 0, each = 0, in_key = 0;
    uint32_t prefix = 0;
    for (int p = 0; p < PASSES; p++) {
        histogram_fill(&h, logits, weight, vocab, p, prefix);
        /* The sums of two passes round differently: a total that stays just short of `want` ends at the lowest digit. */
        int lowest = 0, digit = (1 << radix[p].width) - 1;
        while (!h.count[lowest]) lowest++;
        for (; digit > lowest; digit--) {
            double next = by_mass ? above_mass + h.mass[digit] : above_count + (double)h.count[digit];
            if (h.count[digit] && next >= want) break;
            above_count += (double)h.count[digit];
            above_mass += h.mass[digit];
        }
        prefix = prefix << radix[p].width | (uint32_t)digit;
        in_key = (double)h.count[digit];
        each = h.mass[digit] / in_key;
    }
    double more = !by_mass ? want - above_count : each > 0 ? ceil((want - above_mass) / each) : 1;
    more = fmin(fmax(more, 1), in_key);
    return (struct kept){prefix, (int64_t)more, above_mass + each * more};
}

static enum status largest(const float *logits, int vocab, int *at)
{
    int best = -1;
    for (int i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return FAIL(ERR_INTERNAL, "logit %d of %d is %g", i, vocab, (double)logits[i]);
        if (best < 0 || logits[i] > logits[best]) best = i;
    }
    if (best < 0 || logits[best] == -INFINITY) return FAIL(ERR_INTERNAL, "none of %d logits is finite", vocab);
    *at = best;
    return OK;
}

/* Walks the kept tokens by id until their weights pass u times their total. */
static int draw(const float *logits, const float *weight, int vocab, struct kept kept, double u)
{
    double goal = u * kept.mass, sum = 0;
    int last = -1;
    for (int i = 0; i < vocab; i++) {
        uint32_t key = order_key(logits[i]);
        if (key < kept.key || (key == kept.key && kept.ties-- <= 0) || !(weight[i] > 0)) continue;
        last = i;
        sum += (double)weight[i];
        if (sum > goal) break;
    }
    return last;
}

enum status sample_token(const float *logits, int vocab, const struct sampling *s, double u, float *scratch,
                         int32_t *id, float *logprob)
{
    int best = 0;
    TRY(largest(logits, vocab, &best));
    float temperature = s->temperature > 0 ? s->temperature : 1, high = logits[best];
    double total = 0;
    for (int i = 0; i < vocab; i++) {
        scratch[i] = expf((logits[i] - high) / temperature);
        total += (double)scratch[i];
    }
    int chosen = best;
    if (s->temperature > 0) {
        struct kept kept = {0, vocab, total};
        if (s->top_k > 0 && s->top_k < vocab) kept = keep_top(logits, scratch, vocab, s->top_k, false);
        if (s->top_p < 1) {
            struct kept nucleus = keep_top(logits, scratch, vocab, s->top_p * kept.mass, true);
            bool smaller = nucleus.key > kept.key || (nucleus.key == kept.key && nucleus.ties < kept.ties);
            if (smaller) kept = nucleus;
        }
        chosen = draw(logits, scratch, vocab, kept, u);
    }
    *id = chosen;
    *logprob = (float)((double)(logits[chosen] - high) / (double)temperature - log(total));
    return OK;
}
