/* The attention, selection and paged cases of cuda_ops. */
#ifndef CUDA_CASES_H
#define CUDA_CASES_H
#include "cuda_pairs.h"

#include <stdarg.h>

enum { SEQUENCES_MAX = 64 };

struct packing {
    int S, T, longest; /* T: tail rows of no sequence included */
    int32_t cu[SEQUENCES_MAX + 1];
};

static inline struct packing packing_of(struct bench *b, int S, int most, int tail)
{
    struct packing p = {.S = S};
    for (int s = 0; s < S; s++) {
        int n = S == 1 ? most : s == 1 ? 0 : 1 + pair_below(b, most);
        p.cu[s + 1] = p.cu[s] + n;
        if (n > p.longest) p.longest = n;
    }
    p.T = p.cu[S] + tail;
    return p;
}

/* A valid selection: the own block, then distinct earlier ones in random order, -1 at the end. */
static inline struct pair *random_selection(struct bench *b, const struct packing *p, int K, int slots, int block)
{
    struct pair *sel = pair_new(b, "sel", DT_I32, K, p->T, slots, 0);
    int32_t *v = sel->t[0].data, *pick = malloc((size_t)(p->longest / block + 2) * sizeof *pick);
    for (int64_t i = 0; i < (int64_t)K * p->T * slots; i++) v[i] = -1;
    for (int k = 0; k < K; k++)
        for (int s = 0; s < p->S; s++)
            for (int t = p->cu[s]; t < p->cu[s + 1]; t++) {
                int own = (t - p->cu[s]) / block, n = own + 1;
                for (int i = 0; i < n; i++) pick[i] = own - i;
                for (int i = 1; i < n; i++) {
                    int j = i + pair_below(b, n - i);
                    int32_t held = pick[i];
                    pick[i] = pick[j], pick[j] = held;
                }
                for (int i = 0; i < n && i < slots; i++) v[((int64_t)k * p->T + t) * slots + i] = pick[i];
            }
    free(pick);
    return pair_upload(b, sel);
}

static inline void attend_case(struct bench *b, enum dtype t, int S, int most, int tail, int H, int K, int D, int slots,
                               int block)
{
    struct packing p = packing_of(b, S, most, tail);
    struct pair *cu = pair_ints(b, "cu_seqlens", p.cu, S + 1), *sel = slots ? random_selection(b, &p, K, slots, block) : NULL;
    struct pair *q = pair_in(b, "q", t, p.T, H, D), *d_o = pair_in(b, "d_o", t, p.T, H, D);
    struct pair *k = pair_random(b, "k", t, p.T, K, D, K * D, 1, 0), *v = pair_random(b, "v", t, p.T, K, D, 2 * K * D, 1, 0);
    struct pair *o = pair_out(b, "o", t, p.T, H, D, 0), *lse = pair_out(b, "lse", DT_F32, H, p.T, 0, 0);
    struct pair *dq = pair_out(b, "dq", t, p.T, H, D, 0), *dk = pair_out(b, "dk", t, p.T, K, D, 0);
    struct pair *dv = pair_out(b, "dv", t, p.T, K, D, 3 * K * D);
    struct attend_args a[SIDES];
    EACH(b, i)
    {
        a[i] = (struct attend_args){.q = q->t[i], .k = k->t[i], .v = v->t[i], .cu_seqlens = cu->t[i],
            .max_seqlen = p.longest, .block = block, .scale = 1 / sqrtf((float)D) * 2, .o = o->t[i], .lse = lse->t[i],
            .d_o = d_o->t[i], .dq = dq->t[i], .dk = dk->t[i], .dv = dv->t[i], .deterministic = true};
        if (sel) a[i].sel = sel->t[i];
        a[i].work = pair_work(b, i, b->ops[i]->attend_work(&a[i], false));
        OP(attend_forward, &a[i]);
    }
    double tol = t == DT_F32 ? 1e-5 : 8e-3;
    pair_check(b, o, tol);
    pair_check(b, lse, t == DT_F32 ? 1e-5 : 1e-3);
    EACH(b, i)
    {
        a[i].work = pair_work(b, i, b->ops[i]->attend_work(&a[i], true));
        OP(attend_backward, &a[i]);
    }
    pair_check(b, dq, tol);
    pair_check(b, dk, tol);
    pair_check(b, dv, tol);
    char shape[128];
    snprintf(shape, sizeof shape, "S %d T %d H %d K %d D %d slots %d block %d", S, p.T, H, K, D, slots, block);
    pair_end(b, slots ? "attend sparse" : "attend dense", t == DT_F32 ? "f32" : "bf16", shape);
}

static inline void attend_cases(struct bench *b, enum dtype t, bool short_run)
{
    attend_case(b, t, 3, 40, 2, 4, 2, 16, 0, 0);
    attend_case(b, t, 3, 70, 1, 4, 2, 16, 3, 8);
    attend_case(b, t, 2, 150, 3, 16, 1, 128, 2, 32);
    attend_case(b, t, 3, 150, 3, 4, 1, 128, 0, 0);
    attend_case(b, t, 2, 200, 0, 4, 2, 64, 0, 0);
    if (short_run) return;
    attend_case(b, t, 1, 2100, 0, 16, 1, 128, 0, 0);
    attend_case(b, t, 40, 300, 1, 8, 4, 128, 0, 0);
    attend_case(b, t, 3, 900, 1, 6, 2, 64, 0, 0);
    attend_case(b, t, 1, 700, 0, 8, 2, 128, 0, 0);
    attend_case(b, t, 5, 300, 3, 6, 3, 64, 0, 0);
    attend_case(b, t, 4, 200, 0, 4, 1, 256, 0, 0);
    attend_case(b, t, 3, 200, 1, 5, 5, 80, 0, 0);
    attend_case(b, t, 2, 100, 1, 2, 1, 20, 0, 0);
    attend_case(b, t, 20, 33, 0, 4, 4, 32, 0, 0);
    attend_case(b, t, 1, 1500, 1, 16, 1, 128, 4, 128);
    attend_case(b, t, 1, 3000, 0, 32, 2, 128, 16, 128);
    attend_case(b, t, 6, 700, 3, 32, 2, 128, 3, 128);
    attend_case(b, t, 3, 500, 0, 12, 1, 256, 20, 4);
    attend_case(b, t, 4, 300, 2, 6, 2, 64, 5, 16);
    attend_case(b, t, 2, 900, 1, 24, 3, 64, 5, 64);
    attend_case(b, t, 3, 200, 0, 3, 3, 96, 4, 8);
    attend_case(b, t, 2, 90, 0, 4, 2, 20, 3, 5);
    attend_case(b, t, 30, 256, 0, 16, 1, 128, 2, 128);
}

static int by_value(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Order inside a row is free: sorted before it is compared. */
static inline void sort_rows(struct bench *b, struct pair *sel)
{
    int64_t slots = sel->t[0].dim[2], rows = sel->t[0].dim[0] * sel->t[0].dim[1];
    for (int i = 0; i < SIDES; i++) {
        struct tensor host = i ? pair_fetch(b, sel->t[i]) : sel->t[0];
        int32_t *v = host.data;
        for (int64_t r = 0; r < rows; r++) {
            bool ended = false;
            for (int64_t j = 0; j < slots; j++) {
                if (v[r * slots + j] >= 0 && ended) pair_fail(b, "sel: -1 before a block", OK);
                ended |= v[r * slots + j] < 0;
            }
            qsort(v + r * slots, (size_t)slots, sizeof *v, by_value);
        }
        if (i) {
            PAIR_TRY(b, b->ops[i]->copy(sel->t[i], host, b->stream[i]));
            PAIR_TRY(b, b->ops[i]->wait(b->stream[i]));
            free(host.data);
        }
    }
}

static inline void select_case(struct bench *b, enum dtype t, int S, int most, int tail, int I, int D, int block, int topk,
                               int init, int local)
{
    struct packing p = packing_of(b, S, most, tail);
    struct pair *cu = pair_ints(b, "cu_seqlens", p.cu, S + 1);
    /* On a grid of 1/4 all products and sums are exact: the same sets, ties included. */
    struct pair *iq = pair_random(b, "iq", t, p.T, I, D, 0, 1, 4), *ik = pair_random(b, "ik", t, p.T, D, 0, 0, 1, 4);
    struct pair *sel = pair_out(b, "sel", DT_I32, I, p.T, topk, 0);
    EACH(b, i)
    {
        struct select_args a = {.iq = iq->t[i], .ik = ik->t[i], .cu_seqlens = cu->t[i], .max_seqlen = p.longest,
            .block = block, .topk = topk, .init = init, .local = local, .sel = sel->t[i]};
        a.work = pair_work(b, i, b->ops[i]->select_work(&a));
        OP(select_forward, &a);
    }
    sort_rows(b, sel);
    pair_check(b, sel, 0);
    char shape[128];
    snprintf(shape, sizeof shape, "S %d T %d I %d D %d block %d topk %d init %d local %d", S, p.T, I, D, block, topk, init,
             local);
    pair_end(b, "select", t == DT_F32 ? "f32" : "bf16", shape);
}

static inline void select_cases(struct bench *b, enum dtype t, bool short_run)
{
    select_case(b, t, 3, 90, 2, 2, 16, 8, 3, 0, 1);
    select_case(b, t, 2, 200, 1, 4, 128, 16, 4, 1, 2);
    if (short_run) return;
    select_case(b, t, 1, 3000, 0, 1, 128, 128, 16, 0, 1);
    select_case(b, t, 4, 1500, 3, 4, 128, 128, 4, 0, 1);
    select_case(b, t, 3, 1000, 0, 2, 64, 32, 8, 1, 1);
    select_case(b, t, 2, 2500, 1, 3, 64, 4, 100, 2, 3);
    select_case(b, t, 5, 300, 0, 4, 32, 64, 3, 2, 2);
    select_case(b, t, 3, 120, 0, 1, 256, 8, 5, 0, 0);
    select_case(b, t, 2, 100, 1, 2, 20, 7, 3, 4, 5);
    select_case(b, t, 40, 130, 0, 4, 128, 64, 1, 0, 1);
}

/* Sequence s: `len` keys in shuffled pages, the last `rows` of them are this call's queries. */
static inline void paged_case(struct bench *b, enum dtype t, int S, int longest, int rows, int H, int K, int D, int Di,
                              int page, int block, int topk)
{
    int32_t q_start[SEQUENCES_MAX + 1] = {0}, kv_len[SEQUENCES_MAX];
    int max_pages = (longest + page - 1) / page, pages = S * max_pages + 1, max_len = 0, max_q = 0;
    struct pair *table = pair_new(b, "page_table", DT_I32, S, max_pages, 0, 0);
    for (int s = 0; s < S; s++) {
        kv_len[s] = s == 0 ? longest : 1 + pair_below(b, longest);
        int n = s == 2 ? 0 : rows > 1 ? 1 + pair_below(b, rows) : 1;
        if (n > kv_len[s]) n = kv_len[s];
        q_start[s + 1] = q_start[s] + n;
        if (kv_len[s] > max_len) max_len = kv_len[s];
        if (n > max_q) max_q = n;
        for (int i = 0; i < max_pages; i++)
            ((int32_t *)table->t[0].data)[s * max_pages + i] = i * page < kv_len[s] ? (i * S + (s + i) % S) : -1;
    }
    pair_upload(b, table);
    int N = q_start[S], slots = pages * page;
    struct pair *start = pair_ints(b, "q_start", q_start, S + 1), *len = pair_ints(b, "kv_len", kv_len, S);
    struct pair *q = pair_in(b, "q", t, N, H, D), *kc = pair_in(b, "k_cache", t, slots, K, D);
    struct pair *vc = pair_in(b, "v_cache", t, slots, K, D);
    struct pair *iq = pair_random(b, "iq", t, N, K, Di, 0, 1, 4), *ic = pair_random(b, "ik_cache", t, slots, Di, 0, 0, 1, 4);
    struct pair *sel = pair_out(b, "sel", DT_I32, K, N, topk, 0), *o = pair_out(b, "o", t, N, H, D, 0);
    struct pair *dense = pair_out(b, "dense o", t, N, H, D, 0);
    struct paged_args a[SIDES];
    EACH(b, i)
    {
        a[i] = (struct paged_args){.q = q->t[i], .k_cache = kc->t[i], .v_cache = vc->t[i], .iq = iq->t[i],
            .ik_cache = ic->t[i], .page_table = table->t[i], .q_start = start->t[i], .kv_len = len->t[i], .page = page,
            .max_kv_len = max_len, .max_q_len = max_q, .sel = sel->t[i], .block = block, .topk = topk, .init = 0,
            .local = 1, .scale = 1 / sqrtf((float)D) * 2, .o = o->t[i]};
        a[i].work = pair_work(b, i, b->ops[i]->paged_work(&a[i]));
        OP(select_paged, &a[i]);
    }
    struct pair *given = pair_new(b, "given sel", DT_I32, K, N, topk, 0); /* one selection for both sides */
    if (N) memcpy(given->t[0].data, sel->t[0].data, tensor_bytes(sel->t[0]));
    pair_upload(b, given);
    sort_rows(b, sel);
    pair_check(b, sel, 0);
    EACH(b, i)
    {
        a[i].sel = given->t[i];
        OP(attend_paged, &a[i]);
        a[i].sel = TENSOR_NONE;
        a[i].o = dense->t[i];
        a[i].work = pair_work(b, i, b->ops[i]->paged_work(&a[i]));
        OP(attend_paged, &a[i]);
    }
    double tol = t == DT_F32 ? 1e-5 : 8e-3;
    pair_check(b, o, tol);
    pair_check(b, dense, tol);
    char shape[128];
    snprintf(shape, sizeof shape, "S %d N %d keys %d H %d K %d D %d page %d block %d", S, N, longest, H, K, D, page, block);
    pair_end(b, "paged", t == DT_F32 ? "f32" : "bf16", shape);
}

static inline void paged_cases(struct bench *b, enum dtype t, bool short_run)
{
    paged_case(b, t, 4, 60, 3, 4, 2, 16, 16, 16, 8, 3);
    paged_case(b, t, 3, 130, 1, 16, 1, 128, 128, 32, 32, 2);
    if (short_run) return;
    paged_case(b, t, 9, 1500, 1, 64, 4, 128, 128, 128, 128, 4);
    paged_case(b, t, 3, 900, 40, 16, 1, 128, 128, 256, 128, 3);
    paged_case(b, t, 4, 300, 5, 12, 1, 256, 64, 64, 4, 20);
    paged_case(b, t, 4, 200, 2, 6, 3, 20, 20, 14, 7, 3);
    paged_case(b, t, 1, 5000, 1, 32, 2, 64, 64, 64, 64, 16);
}
#endif
