#include "batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int64_t batch_max_rows(int64_t budget, int64_t longest, int tp)
{
    int64_t rows = budget > longest ? budget : longest;
    return (rows + tp - 1) / tp * tp;
}

struct slot { int32_t sample, n; };

static int longest_first(const void *x, const void *y)
{
    const struct slot *a = x, *b = y;
    return a->n != b->n ? (a->n < b->n) - (a->n > b->n) : (a->sample > b->sample) - (a->sample < b->sample);
}

/* rank_of[i]: samples go, longest first, to the rank with the fewest tokens that still has room for a sample. */
static void assign_ranks(const struct slot *order, int n, int dp, int *rank_of, int64_t *tokens, int *count)
{
    int share = (n + dp - 1) / dp;
    memset(tokens, 0, (size_t)dp * sizeof *tokens);
    memset(count, 0, (size_t)dp * sizeof *count);
    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int r = 0; r < dp; r++)
            if (count[r] < share && (best < 0 || tokens[r] < tokens[best])) best = r;
        rank_of[i] = best;
        tokens[best] += order[i].n;
        count[best]++;
    }
}

/* First fit of one rank's samples; bin[i] for its i-th sample in `order`. Returns the number of bins. */
static int fill_bins(const struct slot *order, int n, const int *rank_of, int rank, int64_t budget, int *bin,
                     int64_t *room)
{
    int bins = 0;
    for (int i = 0; i < n; i++) {
        if (rank_of[i] != rank) continue;
        int b = 0;
        while (b < bins && room[b] < order[i].n) b++;
        if (b == bins) room[bins++] = budget > order[i].n ? budget : order[i].n;
        room[b] -= order[i].n;
        bin[i] = b;
    }
    return bins;
}

static void put_sample(struct micro *u, const struct sample *s, int32_t index)
{
    int64_t at = u->valid;
    u->sample[u->S] = index;
    u->cu_seqlens[u->S++] = (int32_t)at;
    for (int32_t t = 0; t < s->n; t++) {
        u->ids[at + t] = s->ids[t];
        u->pos[at + t] = t;
        u->targets[at + t] = t + 1 < s->n && s->mask[t + 1] ? s->ids[t + 1] : -1;
    }
    u->valid = at + s->n;
    if (s->n > u->max_seqlen) u->max_seqlen = s->n;
}

/* Carves the arrays of a micro-batch of `T` rows and `S` sequences from p; returns what is behind them. */
static int32_t *carve(struct micro *u, int32_t *p, int64_t T, int S)
{
    *u = (struct micro){.T = T, .ids = p, .pos = p + T, .targets = p + 2 * T, .cu_seqlens = p + 3 * T,
                        .sample = p + 3 * T + S + 1};
    return p + 3 * T + 2 * S + 1;
}

enum status batch_pack(struct batch *b, const struct sample *samples, int n, int64_t budget, int tp, int dp, int dp_rank)
{
    b->samples = samples;
    b->n = n;
    b->tokens = b->targets = 0;
    int64_t padded = 0;
    for (int i = 0; i < n; i++) {
        b->tokens += samples[i].n;
        padded += samples[i].n + tp;
        for (int32_t t = 1; t < samples[i].n; t++) b->targets += samples[i].mask[t];
    }
    /* working lists and, behind them, the rows: one block, kept for the next batch */
    size_t lists = (size_t)n * (sizeof(struct slot) + 2 * sizeof(int) + sizeof(int64_t)) + (size_t)dp * 16 + 64;
    size_t rows = ((size_t)padded * 3 + (size_t)n * 4 + 64) * sizeof(int32_t), need = lists + rows;
    if (need > b->arena_bytes) {
        free(b->arena);
        b->arena = malloc(need);
        b->arena_bytes = b->arena ? need : 0;
        if (!b->arena) return FAIL(ERR_MEMORY, "a batch of %d samples, %" PRId64 " tokens", n, b->tokens);
    }
    int64_t *room = b->arena, *rank_tokens = room + n;
    struct slot *order = (struct slot *)(rank_tokens + dp);
    int *rank_of = (int *)(order + n), *bin = rank_of + n, *count = bin + n;
    int32_t *next = (int32_t *)((char *)b->arena + (lists & ~(size_t)7));

    for (int i = 0; i < n; i++) order[i] = (struct slot){i, samples[i].n};
    qsort(order, (size_t)n, sizeof *order, longest_first);
    assign_ranks(order, n, dp, rank_of, rank_tokens, count);
    b->n_micro = 1;
    for (int r = 0; r < dp; r++) {
        int bins = fill_bins(order, n, rank_of, r, budget, bin, room);
        if (bins > b->n_micro) b->n_micro = bins;
    }
    if (b->n_micro > b->micro_cap) {
        struct micro *grown = realloc(b->micro, (size_t)b->n_micro * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%d micro-batches", b->n_micro);
        b->micro = grown;
        b->micro_cap = b->n_micro;
    }
    int bins = fill_bins(order, n, rank_of, dp_rank, budget, bin, room);
    for (int m = 0; m < b->n_micro; m++) {
        int64_t T = 0;
        int S = 0;
        for (int i = 0; i < n && m < bins; i++)
            if (rank_of[i] == dp_rank && bin[i] == m) T += order[i].n, S++;
        next = carve(&b->micro[m], next, (T + tp - 1) / tp * tp, S);
        struct micro *u = &b->micro[m];
        for (int i = 0; i < n && m < bins; i++)
            if (rank_of[i] == dp_rank && bin[i] == m) put_sample(u, &samples[order[i].sample], order[i].sample);
        u->cu_seqlens[u->S] = (int32_t)u->valid;
        for (int64_t t = u->valid; t < u->T; t++) u->ids[t] = -1, u->pos[t] = 0, u->targets[t] = -1;
    }
    return OK;
}

void batch_free(struct batch *b)
{
    free(b->micro);
    free(b->arena);
    *b = (struct batch){0};
}
