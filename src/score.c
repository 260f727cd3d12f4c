#include "score.h"

#include "data.h"
#include "grads.h"
#include "pipeline.h"
#include "safetensors_write.h"
#include "source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Named results on the host until the file is written. */
struct results {
    struct st_item *item;
    int64_t n, cap;
};

struct scoring {
    const struct score_args *a;
    const struct model *m;
    struct results out;
    double loss;
    int64_t targets;
};

static enum status add_item(struct results *r, const char *name, enum dtype dtype, int rank, int64_t d0, int64_t d1,
                            int64_t d2, void **data)
{
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        struct st_item *grown = realloc(r->item, (size_t)r->cap * sizeof *grown);
        if (!grown) return FAIL(ERR_MEMORY, "%" PRId64 " results", r->cap);
        r->item = grown;
    }
    struct tensor t = tensor_view(NULL, dtype, PLACE_HOST, rank, d0, d1, d2, 1);
    *data = malloc(tensor_bytes(t) + 1);
    char *copy = strdup(name);
    if (!*data || !copy) return FAIL(ERR_MEMORY, "result %s of %zu bytes", name, tensor_bytes(t));
    r->item[r->n++] = (struct st_item){.name = copy, .dtype = dtype, .rank = rank, .dim = {d0, d1, d2}, .data = *data};
    return OK;
}

static void free_results(struct results *r)
{
    for (int64_t i = 0; i < r->n; i++) {
        free((void *)r->item[i].name);
        free((void *)r->item[i].data);
    }
    free(r->item);
}

/* A device tensor as a result, BF16 widened to F32. */
static enum status add_tensor(struct scoring *s, const char *name, struct tensor t)
{
    void *data;
    enum dtype dtype = t.dtype == DT_BF16 ? DT_F32 : t.dtype;
    TRY(add_item(&s->out, name, dtype, t.rank, t.dim[0], t.dim[1], t.dim[2], &data));
    struct tensor host = tensor_view(data, dtype, PLACE_HOST, t.rank, t.dim[0], t.dim[1], t.dim[2], 1), raw = host;
    void *narrow = NULL;
    if (t.dtype == DT_BF16) {
        narrow = malloc(tensor_bytes(t) + 1);
        if (!narrow) return FAIL(ERR_MEMORY, "result %s", name);
        raw = tensor_view(narrow, DT_BF16, PLACE_HOST, t.rank, t.dim[0], t.dim[1], t.dim[2], 1);
    }
    enum status st = s->m->ops->copy(raw, t, s->m->stream);
    if (!st) st = s->m->ops->wait(s->m->stream);
    if (!st && narrow) st = ops_cpu.cast(host, raw, NULL);
    free(narrow);
    return st;
}

/* Rows [at, at + n) of the packed micro-batch of T rows, as [n, cols] or, without cols, [n]. */
static enum status add_rows(struct scoring *s, const char *name, struct tensor t, int64_t at, int64_t n, int64_t cols)
{
    int64_t row = cols ? cols : 1;
    struct tensor rows = tensor_flat(fit1(t, (at + n) * row), at * row, n * row);
    return add_tensor(s, name, cols ? tensor_reshape(rows, 2, n, cols, 1) : rows);
}

/* The same of selections [I, T, topk]: [I, n, topk]. */
static enum status add_selections(struct scoring *s, const char *name, struct tensor sel, int64_t T, int64_t at,
                                  int64_t n)
{
    const struct ops *ops = s->m->ops;
    int64_t I = s->m->arch.index_heads, topk = s->m->arch.topk_blocks;
    int32_t *data;
    TRY(add_item(&s->out, name, DT_I32, 3, I, n, topk, (void **)&data));
    for (int64_t g = 0; g < I; g++) {
        struct tensor from = tensor_flat(fit1(sel, I * T * topk), (g * T + at) * topk, n * topk);
        TRY(ops->copy(tensor_view(data + g * n * topk, DT_I32, PLACE_HOST, 1, n * topk, 1, 1, 1), from, s->m->stream));
    }
    return ops->wait(s->m->stream);
}

/* Everything asked for of one sequence: rows [at, at + n) of the micro-batch. */
static enum status add_sequence(struct scoring *s, int64_t T, int64_t at, int64_t n, int line, struct activations *act,
                                struct head *hd)
{
    const struct arch *a = &s->m->arch;
    char name[64];
    snprintf(name, sizeof name, "token_logprobs.%d", line);
    TRY(add_rows(s, name, hd->logp, at, n - 1, 0));
    if (s->a->logits) {
        snprintf(name, sizeof name, "logits.%d", line);
        TRY(add_rows(s, name, hd->logits, at, n, a->vocab));
    }
    for (int l = 0; l < act->n_layers; l++) {
        if (s->a->logits) {
            snprintf(name, sizeof name, "hidden.%d.%d", l, line);
            TRY(add_rows(s, name, l + 1 < act->n_layers ? act->layer[l + 1].x : act->out, at, n, a->hidden));
        }
        if (s->a->selections && a->sparse[l]) {
            snprintf(name, sizeof name, "block_indices.%d.%d", l, line);
            TRY(add_selections(s, name, act->layer[l].attention.sel, T, at, n));
        }
        if (s->a->selections && a->moe[l]) {
            snprintf(name, sizeof name, "router_experts.%d.%d", l, line);
            TRY(add_rows(s, name, act->layer[l].ffn.experts, at, n, a->experts_per_token));
        }
    }
    return OK;
}

static enum status seen(void *ctx, const struct micro *u, int micro, struct activations *act, struct head *hd)
{
    (void)micro;
    for (int i = 0; i < u->S; i++) {
        int64_t at = u->cu_seqlens[i];
        TRY(add_sequence(ctx, u->T, at, u->cu_seqlens[i + 1] - at, u->sample[i], act, hd));
    }
    return OK;
}

/* Minus the mean of the targets' log-probs over the whole file. */
static enum status mean_loss(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                             float *dentropy, bool *use_entropy)
{
    struct scoring *s = ctx;
    (void)entropy, (void)dentropy, (void)use_entropy;
    for (int64_t t = 0; t < u->T; t++)
        if (u->targets[t] >= 0) {
            s->loss -= logp[t] / (double)s->targets;
            dlogp[t] = (float)(-1.0 / (double)s->targets);
        }
    return OK;
}

static enum status add_grads(struct scoring *s, double norm)
{
    float *value;
    TRY(add_item(&s->out, "loss", DT_F32, 1, 1, 1, 1, (void **)&value));
    *value = (float)s->loss;
    TRY(add_item(&s->out, "grad_norm", DT_F32, 1, 1, 1, 1, (void **)&value));
    *value = (float)norm;
    for (int i = 0; i < s->m->n_params; i++) {
        const struct param *p = &s->m->params[i];
        for (int64_t e = 0; p->trained && e < (param_is_experts(p) ? p->dim[0] : 1); e++) {
            char release[160], name[192];
            param_release_name(p, e, release, sizeof release);
            snprintf(name, sizeof name, "grad.%s", release);
            TRY(add_tensor(s, name, param_grad(s->m, p, e)));
        }
    }
    return OK;
}

static enum status score_batch(struct scoring *s, struct model *m, const struct dataset *d)
{
    struct sample *samples = calloc((size_t)d->n, sizeof *samples);
    if (!samples) return FAIL(ERR_MEMORY, "%" PRId64 " sequences", d->n);
    for (int64_t i = 0; i < d->n; i++) samples[i] = dataset_sample(d, i);
    struct batch b = {0};
    struct pipeline p = {0};
    struct grads g = {0};
    struct objective o = {mean_loss, s, 1};
    struct observer look = {seen, s};
    int64_t budget = s->a->micro_batch_tokens, T = budget > d->longest ? budget : d->longest;
    if (T > d->offset[d->n]) T = d->offset[d->n];
    struct pipeline_options po = {.T = T, .S = d->n < T ? d->n : T, .max_seqlen = d->longest, .train = true,
                                  .deterministic = true};
    enum status st = batch_pack(&b, samples, (int)d->n, budget, 1, 1, 0);
    double norm = 0;
    s->targets = b.targets;
    if (!st) st = pipeline_create(&p, m, &po);
    if (!st && s->a->grads) st = grads_create(&g, m);
    if (!st && s->a->grads) st = grads_begin(&g);
    if (!st) st = pipeline_run(&p, &b, &o, s->a->grads ? &g : NULL, &look);
    if (!st && s->a->grads) st = grads_finish(&g, &norm);
    if (!st && s->a->grads) st = add_grads(s, norm);
    if (g.m) grads_destroy(&g);
    if (p.m) pipeline_destroy(&p);
    batch_free(&b);
    free(samples);
    return st;
}

static enum status score_source(const struct score_args *a, const struct source *src)
{
    const struct ops *ops = NULL;
    struct mesh one;
    struct model m = {0};
    struct dataset d = {0};
    struct stream *stream = NULL;
    struct scoring s = {.a = a, .m = &m};
    TRY(ops_find(&ops, a->device));
    TRY(ops->open(&stream, 0));
    TRY(mesh_single(&one, &src->arch));
    struct data_options o = {.format = DATA_TOKENS, .max_tokens = src->arch.max_positions, .vocab = src->arch.vocab,
                             .every_line = true};
    TRY(dataset_load(&d, &one.world, a->tokens, NULL, &o));
    enum dtype dtype = strcmp(a->dtype, "bf16") == 0 || (strcmp(a->dtype, "auto") == 0 && ops->place == PLACE_DEVICE)
                     ? DT_BF16 : DT_F32;
    enum status st = model_create(&m, &src->arch, &one, ops, stream, dtype, 1 << 24);
    if (!st) st = source_load(src, &m);
    if (!st && a->grads) st = model_alloc_grads(&m);
    if (!st) st = score_batch(&s, &m, &d);
    if (!st) st = st_write_file(a->out, s.out.item, s.out.n);
    free_results(&s.out);
    dataset_free(&d);
    model_destroy(&m);
    ops->close(stream);
    return st;
}

enum status score_run(const struct score_args *a)
{
    struct source src;
    TRY(source_open(&src, a->checkpoint));
    enum status s = score_source(a, &src);
    source_close(&src);
    return s;
}
