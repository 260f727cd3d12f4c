#include "rollout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A request being worked on. */
struct sequence {
    struct request *q;        /* NULL: free place */
    int request;              /* its number */
    int32_t done;             /* tokens whose keys are in the cache */
    int32_t total;            /* tokens known: prompt and generated */
    int32_t *pages;           /* [max_pages] */
    int32_t n_pages;
    int32_t promised;         /* pages it may still take */
    int32_t new_tokens;       /* rows of the pass being built */
};

/* One pass being built on the host. */
struct plan {
    int64_t T, valid;
    int S, picks, max_new, max_len;
    int *who, *pick_who;      /* [S] sequence of each row group; [picks] of each sampled row */
};

/* ---------------------------------------------------------------- memory ----------------------------------------- */

enum { H_IDS, H_POS, H_SLOT, H_CU, H_TABLE, H_LEN, H_PICK, H_U, H_OUT, H_LOGP };

static enum status carve(struct rollout *r, struct arena *a, struct arena *host)
{
    const struct model *m = r->m;
    int64_t T = r->limits.T, N = r->o.max_batch, V = m->arch.vocab;
    TRY(workspace_carve(&r->work, m, &r->limits, a, host));
    r->shared = (struct saved_layer){0};
    TRY(activations_carve(&r->act, &r->shared, m, &r->limits, a, host));
    TRY(head_carve(&r->head, m, T, N, HEAD_DECODE, a));
    size_t work = m->ops->sample_work(N, V);
    struct {
        struct tensor *device;
        enum dtype dtype;
        int64_t d0, d1;
    } row[] = {{&r->ids, DT_I32, T, 1}, {&r->pos, DT_I32, T, 1}, {&r->slot, DT_I32, T, 1},
               {&r->cu_seqlens, DT_I32, N + 1, 1}, {&r->page_table, DT_I32, N, r->max_pages}, {&r->kv_len, DT_I32, N, 1},
               {&r->pick, DT_I32, N, 1}, {&r->u, DT_F64, N, 1}, {&r->out_ids, DT_I32, N, 1},
               {&r->out_logp, DT_F32, N, 1}};
    for (int i = 0; i < 10; i++) {
        int rank = row[i].d1 > 1 ? 2 : 1;
        TRY(tensor_alloc(a, row[i].device, row[i].dtype, rank, row[i].d0, row[i].d1, 1, 1));
        TRY(tensor_alloc(host, &r->host[i], row[i].dtype, rank, row[i].d0, row[i].d1, 1, 1));
    }
    if (r->o.record_routing) {
        int64_t k = m->arch.experts_per_token, L = r->moe_layers;
        TRY(tensor_alloc(host, &r->experts, DT_I32, 3, L, T / m->mesh->tp, k, 1));
        TRY(tensor_alloc(host, &r->experts_all, DT_I32, 4, m->mesh->tp, L, T / m->mesh->tp, k));
    }
    return tensor_alloc(a, &r->sample_work, DT_U8, 1, work ? (int64_t)work : 1, 1, 1, 1);
}

/* Memory for what was measured: at the end of the first lender with room for it (`taken[i]` bytes are in use), else new. */
static enum status arena_open(struct rollout *r, struct arena *a, size_t *taken, bool *lent)
{
    const struct ops *ops = r->m->ops;
    void *base = NULL;
    a->size = a->used;
    for (int i = 0; taken && i < r->o.n_lenders; i++) {
        const struct arena *l = r->o.lender[i];
        size_t from = (taken[i] + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        if (!l->base || l->place != a->place || from > l->size || a->size > l->size - from) continue;
        a->base = l->base + from;
        a->used = 0;
        taken[i] = from + a->size;
        r->lent_bytes += a->size;
        *lent = true;
        return OK;
    }
    TRY(ops->alloc(&base, a->size ? a->size : 1, a->place));
    a->base = base;
    a->used = 0;
    return OK;
}

enum status rollout_create(struct rollout *r, struct model *m, const struct rollout_options *o)
{
    *r = (struct rollout){.m = m, .o = *o};
    int tp = m->mesh->tp, page = kvcache_page(&m->arch);
    if (r->o.max_batch < 1) return FAIL(ERR_CONFIG, "rollout.max_batch=%d: at least 1", r->o.max_batch);
    if (r->o.max_len > m->arch.max_positions)
        return FAIL(ERR_CONFIG, "prompt and new tokens may reach %d, max_position_embeddings is %d", r->o.max_len,
                    m->arch.max_positions);
    if (r->o.max_tokens < r->o.max_batch) r->o.max_tokens = r->o.max_batch;
    r->max_pages = (r->o.max_len + page - 1) / page;
    for (int l = 0; l < m->n_layers; l++) r->moe_layers += m->arch.moe[m->mesh->first_layer + l];
    int64_t pages = r->o.pages ? r->o.pages : r->max_pages * r->o.max_batch;
    if (pages < r->max_pages)
        return FAIL(ERR_CONFIG, "rollout.kv_pages=%" PRId64 " hold %" PRId64 " tokens, one sequence of %d needs %" PRId64,
                    pages, pages * page, r->o.max_len, r->max_pages);
    TRY(kvcache_create(&r->cache, m, pages));
    r->limits = (struct block_limits){.T = (r->o.max_tokens + tp - 1) / tp * tp, .S = r->o.max_batch,
                                      .max_seqlen = r->o.max_len, .cache = &r->cache};
    r->device = arena_measure(m->ops->place, "rollout");
    r->host_arena = arena_measure(PLACE_HOST, "rollout (host)");
    r->pages_arena = arena_measure(m->ops->place, "kv");
    TRY(kvcache_carve(&r->cache, m, pages, &r->pages_arena));
    TRY(carve(r, &r->device, &r->host_arena));
    activations_free(&r->act);
    size_t taken[o->n_lenders + 1];
    memset(taken, 0, sizeof taken);
    r->work_bytes = r->device.used;
    r->page_bytes = r->pages_arena.used;
    TRY(arena_open(r, &r->pages_arena, taken, &r->pages_lent));
    TRY(arena_open(r, &r->device, taken, &r->device_lent));
    TRY(arena_open(r, &r->host_arena, NULL, NULL));
    TRY(kvcache_carve(&r->cache, m, pages, &r->pages_arena));
    TRY(carve(r, &r->device, &r->host_arena));
    r->sequence = calloc((size_t)r->o.max_batch, sizeof *r->sequence);
    int32_t *lists = calloc((size_t)r->o.max_batch, (size_t)r->max_pages * sizeof *lists);
    if (!r->sequence || !lists) return FAIL(ERR_MEMORY, "%d sequences of %" PRId64 " pages", r->o.max_batch, r->max_pages);
    for (int i = 0; i < r->o.max_batch; i++) r->sequence[i].pages = lists + i * r->max_pages;
    return OK;
}

void rollout_destroy(struct rollout *r)
{
    if (!r->m) return;
    struct arena *a[] = {&r->device, &r->host_arena, &r->pages_arena};
    const bool lent[] = {r->device_lent, false, r->pages_lent};
    for (int i = 0; i < 3; i++)
        if (a[i]->base && !lent[i]) r->m->ops->release(a[i]->base, a[i]->place);
    if (r->sequence) free(r->sequence[0].pages);
    free(r->sequence);
    activations_free(&r->act);
    kvcache_destroy(&r->cache);
    *r = (struct rollout){0};
}

/* ---------------------------------------------------------------- admission -------------------------------------- */

static int pages_for(const struct rollout *r, int64_t tokens) { return (int)((tokens + r->cache.page - 1) / r->cache.page); }

static enum status copy_page(struct rollout *r, int32_t to, int32_t from)
{
    const struct ops *ops = r->m->ops;
    int64_t page = r->cache.page;
    for (int l = 0; l < r->cache.layers; l++) {
        struct tensor *t[] = {&r->cache.k[l], &r->cache.v[l], &r->cache.ik[l]};
        for (int i = 0; i < 3; i++)
            if (!tensor_none(*t[i]))
                TRY(ops->copy(tensor_rows(*t[i], to * page, page), tensor_rows(*t[i], from * page, page), r->m->stream));
    }
    return OK;
}

/* The running sequence whose whole prompt is in the cache and equals q's, or NULL. *wait: one is still prefilling. */
static struct sequence *find_leader(struct rollout *r, const struct request *q, bool *wait)
{
    struct sequence *prefilling = NULL;
    for (int i = 0; i < r->o.max_batch; i++) {
        struct sequence *s = &r->sequence[i];
        if (!s->q || s->q->prompt_id != q->prompt_id || s->q->n_prompt != q->n_prompt ||
            memcmp(s->q->prompt, q->prompt, (size_t)q->n_prompt * sizeof *q->prompt) != 0)
            continue;
        if (s->done >= q->n_prompt) return s;
        prefilling = s;
    }
    *wait = prefilling != NULL;
    return NULL;
}

/* Takes a place for the request when its pages are free. With a leader its full pages are shared: all prompt tokens but
 * the last one count as done, and the page that the last one falls into is a copy of ours. */
static enum status admit(struct rollout *r, struct request *q, int number, bool *admitted)
{
    struct sequence *s = NULL;
    for (int i = 0; i < r->o.max_batch && !s; i++)
        if (!r->sequence[i].q) s = &r->sequence[i];
    *admitted = false;
    if (!s) return OK;
    bool wait = false;
    struct sequence *leader = find_leader(r, q, &wait);
    if (wait) return OK;
    int total = pages_for(r, (int64_t)q->n_prompt + q->max_new);
    int shared = leader ? (q->n_prompt - 1) / r->cache.page : 0;
    if (r->cache.n_free - r->promised < total - shared) return OK;
    s->q = q;
    s->request = number;
    s->total = q->n_prompt;
    s->done = leader ? q->n_prompt - 1 : 0;
    s->n_pages = 0;
    s->promised = total - shared;
    r->promised += s->promised;
    for (; s->n_pages < shared; s->n_pages++) {
        s->pages[s->n_pages] = leader->pages[s->n_pages];
        kvcache_share(&r->cache, s->pages[s->n_pages]);
    }
    if (leader && (q->n_prompt - 1) % r->cache.page) {
        int32_t page = kvcache_take(&r->cache);
        s->pages[s->n_pages++] = page;
        s->promised--, r->promised--;
        TRY(copy_page(r, page, leader->pages[shared]));
    }
    if (leader && q->experts)
        memcpy(q->experts, leader->q->experts,
               (size_t)(q->n_prompt - 1) * (size_t)(r->moe_layers * r->m->arch.experts_per_token) * sizeof *q->experts);
    q->n_new = 0;
    q->finish = FINISH_NONE;
    *admitted = true;
    return OK;
}

static void release(struct rollout *r, struct sequence *s)
{
    for (int i = 0; i < s->n_pages; i++) kvcache_drop(&r->cache, s->pages[i]);
    r->promised -= s->promised;
    s->q = NULL;
    s->n_pages = s->promised = 0;
}

/* ---------------------------------------------------------------- a pass ----------------------------------------- */

/* Decoding sequences first, one row each; prompts fill the rows that are left. */
static void share_rows(struct rollout *r)
{
    int64_t left = r->o.max_tokens;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < r->o.max_batch; i++) {
            struct sequence *s = &r->sequence[i];
            if (!s->q || (s->total - s->done == 1) != (turn == 0)) continue;
            int32_t want = s->total - s->done;
            s->new_tokens = want < left ? want : (int32_t)left;
            left -= s->new_tokens;
        }
}

static void put_rows(struct rollout *r, struct sequence *s, struct plan *p)
{
    int32_t *ids = r->host[H_IDS].data, *pos = r->host[H_POS].data, *slot = r->host[H_SLOT].data;
    int page = r->cache.page;
    while (s->n_pages < pages_for(r, s->done + s->new_tokens)) {
        s->pages[s->n_pages++] = kvcache_take(&r->cache);
        s->promised--, r->promised--;
    }
    for (int32_t t = s->done; t < s->done + s->new_tokens; t++, p->valid++) {
        ids[p->valid] = t < s->q->n_prompt ? s->q->prompt[t] : s->q->ids[t - s->q->n_prompt];
        pos[p->valid] = t;
        slot[p->valid] = s->pages[t / page] * page + t % page;
    }
    int32_t *table = (int32_t *)r->host[H_TABLE].data + p->S * r->max_pages;
    for (int i = 0; i < r->max_pages; i++) table[i] = i < s->n_pages ? s->pages[i] : 0;
    s->done += s->new_tokens;
    ((int32_t *)r->host[H_LEN].data)[p->S] = s->done;
    p->who[p->S++] = (int)(s - r->sequence);
    ((int32_t *)r->host[H_CU].data)[p->S] = (int32_t)p->valid;
    if (s->new_tokens > p->max_new) p->max_new = s->new_tokens;
    if (s->done > p->max_len) p->max_len = s->done;
}

static void build(struct rollout *r, struct plan *p, const struct rollout_run *run)
{
    p->S = p->picks = p->max_new = p->max_len = 0;
    p->valid = 0;
    ((int32_t *)r->host[H_CU].data)[0] = 0;
    share_rows(r);
    for (int i = 0; i < r->o.max_batch; i++) {
        struct sequence *s = &r->sequence[i];
        if (!s->q || s->new_tokens == 0) continue;
        put_rows(r, s, p);
        if (s->done < s->total) continue; /* its prompt goes on in the next pass */
        ((int32_t *)r->host[H_PICK].data)[p->picks] = (int32_t)(p->valid - 1);
        ((double *)r->host[H_U].data)[p->picks] =
            rng_uniform(run->seed, run->step, s->q->prompt_id, s->q->sample_id, (uint64_t)s->q->n_new);
        p->pick_who[p->picks++] = i;
    }
    int tp = r->m->mesh->tp;
    p->T = (p->valid + tp - 1) / tp * tp;
    for (int64_t t = p->valid; t < p->T; t++) {
        ((int32_t *)r->host[H_IDS].data)[t] = -1;
        ((int32_t *)r->host[H_POS].data)[t] = 0;
        ((int32_t *)r->host[H_SLOT].data)[t] = -1;
    }
}

static enum status upload(struct rollout *r, struct tensor *out, struct tensor device, int which, int64_t d0, int64_t d1)
{
    *out = d1 > 1 ? fit2(device, d0, d1) : fit1(device, d0);
    struct tensor host = d1 > 1 ? fit2(r->host[which], d0, d1) : fit1(r->host[which], d0);
    return r->m->ops->copy(*out, host, r->m->stream);
}

/* Layer l's experts of this rank's rows, before the next layer takes the same memory. `moe` counts MoE layers. */
static enum status keep_routing(struct rollout *r, int64_t rows, int l, int *moe)
{
    if (!r->o.record_routing || !r->m->layers[l].moe) return OK;
    int64_t n = rows * r->m->arch.experts_per_token;
    struct tensor here = tensor_view(r->experts.data, DT_I32, PLACE_HOST, 1, r->moe_layers * n, 1, 1, 1);
    return r->m->ops->copy(tensor_flat(here, (*moe)++ * n, n), fit1(r->act.layer[l].ffn.experts, n), r->m->stream);
}

/* The experts that each row of the pass took, from all tp ranks, into its request. */
static enum status take_routing(struct rollout *r, const struct plan *p)
{
    const struct mesh *mesh = r->m->mesh;
    int64_t k = r->m->arch.experts_per_token, L = r->moe_layers, Tl = p->T / mesh->tp;
    struct tensor here = tensor_view(r->experts.data, DT_I32, PLACE_HOST, 2, L, Tl * k, 1, 1);
    struct tensor all = tensor_view(r->experts_all.data, DT_I32, PLACE_HOST, 2, L * mesh->tp, Tl * k, 1, 1);
    TRY(r->m->ops->wait(r->m->stream));
    if (mesh->tp > 1) TRY(comm_all_gather((struct group *)&mesh->tp_group, all, here, NULL, NULL));
    else all = here;
    const int32_t *from = all.data;
    int64_t row = 0;
    for (int i = 0; i < p->S; i++) {
        struct sequence *s = &r->sequence[p->who[i]];
        for (int32_t t = s->done - s->new_tokens; t < s->done; t++, row++)
            for (int64_t l = 0; l < L; l++)
                for (int64_t j = 0; j < k; j++)
                    s->q->experts[(t * L + l) * k + j] = (int16_t)from[((row / Tl * L + l) * Tl + row % Tl) * k + j];
    }
    return OK;
}

static enum status run_pass(struct rollout *r, const struct plan *p, const struct rollout_run *run)
{
    struct model *m = r->m;
    int64_t Tl = p->T / m->mesh->tp, C = m->arch.hidden;
    struct pass pass = {.T = p->T, .valid = p->valid, .S = p->S, .max_seqlen = p->max_new, .cache = &r->cache,
                        .max_kv_len = p->max_len};
    struct tensor pick, u;
    int moe = 0;
    TRY(upload(r, &pass.ids, r->ids, H_IDS, p->T, 1));
    TRY(upload(r, &pass.pos, r->pos, H_POS, p->T, 1));
    TRY(upload(r, &pass.slot, r->slot, H_SLOT, p->T, 1));
    TRY(upload(r, &pass.cu_seqlens, r->cu_seqlens, H_CU, p->S + 1, 1));
    TRY(upload(r, &pass.page_table, r->page_table, H_TABLE, p->S, r->max_pages));
    pass.page_table = tensor_view(pass.page_table.data, DT_I32, m->ops->place, 2, p->S, r->max_pages, 1, 1);
    TRY(upload(r, &pass.kv_len, r->kv_len, H_LEN, p->S, 1));
    TRY(upload(r, &pick, r->pick, H_PICK, p->picks, 1));
    TRY(upload(r, &u, r->u, H_U, p->picks, 1));
    struct tensor x = fit2(r->act.layer[0].x, Tl, C);
    TRY(embed_forward(m, x, pass.ids, r->work.part));
    for (int l = 0; l < m->n_layers; l++) {
        struct tensor out = fit2(l + 1 < m->n_layers ? r->act.layer[l + 1].x : r->act.out, Tl, C);
        TRY(block_forward(m, &m->layers[l], &pass, &r->act.layer[l], &r->work, x, out));
        TRY(keep_routing(r, Tl, l, &moe));
        x = out;
    }
    r->passes++;
    if (r->o.record_routing && p->T) TRY(take_routing(r, p));
    struct tensor logits;
    TRY(head_logits(m, &r->head, p->T, x, pick, &logits));
    if (p->picks == 0) return OK;
    TRY(m->ops->sample(fit1(r->out_ids, p->picks), fit1(r->out_logp, p->picks), logits, u, run->sampling.temperature,
                       run->sampling.top_k, (float)run->sampling.top_p, r->sample_work, m->stream));
    TRY(m->ops->copy(fit1(r->host[H_OUT], p->picks), fit1(r->out_ids, p->picks), m->stream));
    TRY(m->ops->copy(fit1(r->host[H_LOGP], p->picks), fit1(r->out_logp, p->picks), m->stream));
    return m->ops->wait(m->stream);
}

static void take_tokens(struct rollout *r, const struct plan *p, const struct rollout_run *run)
{
    for (int i = 0; i < p->picks; i++) {
        struct sequence *s = &r->sequence[p->pick_who[i]];
        struct request *q = s->q;
        int32_t id = ((int32_t *)r->host[H_OUT].data)[i];
        q->ids[q->n_new] = id;
        q->logprobs[q->n_new++] = ((float *)r->host[H_LOGP].data)[i];
        s->total++;
        r->tokens_out++;
        for (int k = 0; k < run->n_stop; k++)
            if (run->stop[k] == id) q->finish = FINISH_STOP;
        if (q->finish == FINISH_NONE && q->n_new == q->max_new) q->finish = FINISH_LENGTH;
        if (q->finish != FINISH_NONE) release(r, s);
    }
}

static enum status check_requests(const struct rollout *r, const struct request *q, int n)
{
    for (int i = 0; i < n; i++) {
        if (q[i].n_prompt < 1) return FAIL(ERR_CONFIG, "prompt %d is empty", i);
        if (q[i].max_new < 1) return FAIL(ERR_CONFIG, "prompt %d asks for %d new tokens: at least 1", i, q[i].max_new);
        if ((int64_t)q[i].n_prompt + q[i].max_new > r->o.max_len)
            return FAIL(ERR_CONFIG, "prompt %d of %d tokens and %d new ones is over the limit of %d", i, q[i].n_prompt,
                        q[i].max_new, r->o.max_len);
        for (int32_t t = 0; t < q[i].n_prompt; t++)
            if (q[i].prompt[t] < 0 || q[i].prompt[t] >= r->m->arch.vocab)
                return FAIL(ERR_FORMAT, "prompt %d: token id %d at %d, the vocabulary has %d", i, q[i].prompt[t], t,
                            r->m->arch.vocab);
    }
    return OK;
}

enum status rollout_generate(struct rollout *r, struct request *q, int n, const struct rollout_run *run)
{
    struct mesh *mesh = (struct mesh *)r->m->mesh;
    int who[r->o.max_batch], pick_who[r->o.max_batch], next = 0;
    struct plan p = {.who = who, .pick_who = pick_who};
    enum status s = check_requests(r, q, n);
    if (s) return s;
    for (;;) {
        bool admitted = true;
        while (next < n && admitted) {
            TRY(admit(r, &q[next], next, &admitted));
            next += admitted;
        }
        build(r, &p, run);
        int64_t more = p.S > 0 || next < n;
        if (run->cancelled && run->cancelled(run->ctx)) more = 2;
        TRY(comm_max_int(mesh->ep > 1 ? &mesh->plane : &mesh->tp_group, &more, 1));
        if (more == 2) break;
        if (!more) return OK;
        TRY(run_pass(r, &p, run));
        r->tokens_in += p.valid;
        take_tokens(r, &p, run);
    }
    for (int i = 0; i < r->o.max_batch; i++)
        if (r->sequence[i].q) release(r, &r->sequence[i]);
    return FAIL(ERR_STOPPED, "generation stopped");
}
