/* Floating-point operations, and bytes on the networks. The formulas follow block.c's halves call by call:
 *
 *   x = (tp - 1) / tp * T C e     one all-gather or reduce-scatter of [T, C] over tp, e bytes an element
 *   attention   forward 2 x       gather of the input, scatter of the output
 *               backward 3 x      gather of the output's gradient and of the input again, scatter of its gradient
 *   MLP, shared expert            the same
 *   experts     forward           (ep - 1) El 4 of counts, twice (ep - 1) / ep of T / tp * k rows of C e
 *               backward          those rows twice
 *   embedding   x and x           head: x, (tp - 1) T 16 of statistics; backward x, and x again when logits are in chunks
 *   stages      T / tp * C e      down in the forward but for the last stage, up in the backward but for the first
 *   update      a bucket of n elements over g ranks: (n - n/g) 4 reduced, (g - 1) n/g e of weights gathered */
#include "plan_inner.h"

#include <math.h>

const char *const plan_net_name[PLAN_NETS] = {"tp", "ep", "pp", "dp", "sync"};

/* ---------------------------------------------------------------- operations ------------------------------------- */

/* Mean number of keys that a token of a sample of n sees when at most `most` count. */
static double mean_keys(double n, double most)
{
    if (n <= most) return (n + 1) / 2;
    return (most * (most + 1) / 2 + (n - most) * most) / n;
}

struct plan_flops plan_flops(const struct arch *a, int first, int n, bool head, double sample_tokens)
{
    struct plan_flops f = {0};
    double C = a->hidden, HD = (double)a->heads * a->head_dim, KD = (double)a->kv_heads * a->head_dim;
    double ID = (double)a->index_heads * a->index_dim, all = mean_keys(sample_tokens, INFINITY);
    for (int l = first; l < first + n; l++) {
        double keys = a->sparse[l] ? mean_keys(sample_tokens, (double)a->topk_blocks * a->block_size) : all;
        f.dense += 2 * C * (2 * HD + 2 * KD);
        f.attention += 4 * HD * keys;
        if (a->sparse[l]) f.frozen += 2 * C * (ID + a->index_dim) + 2 * ID * all;
        if (!a->moe[l]) f.dense += 6 * C * a->dense_ffn;
        else {
            f.dense += 2 * C * a->experts + 6 * C * a->shared_ffn;
            f.experts += 6 * C * a->expert_ffn * a->experts_per_token;
        }
    }
    if (head) f.dense += 2 * C * a->vocab;
    return f;
}

/* ---------------------------------------------------------------- bytes ------------------------------------------ */

void plan_sent_micro(const struct model *m, int64_t rows, int64_t chunk, enum recompute r, bool backward,
                     double sent[PLAN_NETS])
{
    const struct arch *a = &m->arch;
    const struct mesh *g = m->mesh;
    double e = (double)dtype_size(m->dtype), Tl = (double)(rows / g->tp), C = a->hidden;
    double x = (g->tp - 1) * Tl * C * e, ep = g->ep, El = (double)a->experts / g->ep;
    double counts = (ep - 1) * El * 4, moved = 2 * Tl * a->experts_per_token * (ep - 1) / ep * C * e;
    for (int i = 0; i < g->layers; i++) {
        bool moe = a->moe[g->first_layer + i];
        double mlp = !moe || a->shared_ffn ? x : 0;
        double times = 1 + (backward && r == RECOMPUTE_LAYER);
        sent[PLAN_TP] += times * (2 * x + 2 * mlp);
        if (moe) sent[PLAN_EP] += times * (counts + moved);
        if (!backward) continue;
        sent[PLAN_TP] += 3 * x + 3 * mlp + (r == RECOMPUTE_ATTENTION ? 2 * x : 0);
        if (moe) sent[PLAN_EP] += moved;
    }
    if (m->first) sent[PLAN_TP] += backward ? 2 * x : x;
    else if (backward) sent[PLAN_PP] += Tl * C * e;
    if (!m->last) sent[PLAN_PP] += Tl * C * e;
    else {
        sent[PLAN_TP] += x + (g->tp - 1) * (double)rows * 16;
        if (backward) sent[PLAN_TP] += chunk > 0 && rows > chunk ? 2 * x : x;
    }
}

void plan_sent_update(const struct model *m, double sent[PLAN_NETS])
{
    for (int i = 0; i < m->n_buckets; i++) {
        const struct bucket *b = &m->buckets[i];
        const struct group *g = model_group(m, b->replica);
        int64_t first, n;
        if (g->size == 1) continue;
        bucket_share(b, g->rank, g->size, &first, &n);
        double weight = b->store == STORE_F32 ? 4 : (double)dtype_size(m->dtype);
        sent[PLAN_DP] += 4 * (double)(b->n - n) + weight * (double)n * (g->size - 1);
    }
}

void plan_counts(const struct plan *p, const struct plan_input *in, const struct model *m, struct plan_rank *r)
{
    const struct mesh *g = m->mesh;
    double sent[PLAN_NETS] = {0}, micro = (double)(p->micro_batches * p->updates);
    double tokens = p->tokens / g->dp; /* of a data-parallel rank in a step */
    int64_t rows = plan_align((int64_t)ceil(tokens / micro), g->tp);
    double scale = tokens / ((double)rows * micro) * micro; /* the mean micro-batch is not padded to a whole row */
    plan_sent_micro(m, rows, in->config->train.logits_chunk, p->recompute, true, sent);
    int forwards = p->rl ? 1 + (in->config->rl.kl_coef != 0 || in->config->ref.report) : 0; /* old, reference */
    for (int i = 0; i < forwards; i++)
        plan_sent_micro(m, rows, in->config->train.logits_chunk, p->recompute, false, sent);
    for (int i = 0; i < PLAN_NETS; i++) sent[i] *= scale;
    double update[PLAN_NETS] = {0};
    plan_sent_update(m, update);
    for (int i = 0; i < PLAN_NETS; i++) r->sent[i] = (int64_t)(sent[i] + p->updates * update[i]);

    struct plan_flops f = plan_flops(in->arch, g->first_layer, g->layers, m->last, in->sample_tokens);
    struct plan_flops layers = plan_flops(in->arch, g->first_layer, g->layers, false, in->sample_tokens);
    double forward = f.dense + f.experts + f.attention + f.frozen;
    double backward = 2 * (f.dense + f.experts) + 2.5 * f.attention;
    if (p->recompute == RECOMPUTE_LAYER) backward += layers.dense + layers.experts + layers.attention + layers.frozen;
    if (p->recompute == RECOMPUTE_ATTENTION) backward += layers.attention + layers.frozen;
    r->flops = tokens / g->tp * ((1 + forwards) * forward + backward);
}

double plan_outside(const struct plan_machine *m, int rank, int stride, int size)
{
    if (size < 2) return 0;
    int first = rank - rank / stride % size * stride, outside = 0;
    for (int i = 0; i < size; i++) outside += (first + i * stride) / m->link_ranks != rank / m->link_ranks;
    return (double)outside / (size - 1);
}
