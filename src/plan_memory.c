/* Memory of a rank. Nothing is computed here that an arena's own size function knows: model, pipeline, rollout and Adam are
 * asked, over an op table whose memory is address space only. */
#include "adam.h"
#include "experience.h"
#include "pipeline.h"
#include "plan_inner.h"
#include "reference.h"
#include "spill.h"
#include "sync.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- an op table without memory --------------------- */

/* The size lies in front of what is handed out. */
static enum status reserve(void **p, size_t bytes, enum place place)
{
    (void)place;
    size_t all = bytes + 4096;
    char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return FAIL(ERR_MEMORY, "planning: %zu bytes of address space", all);
    *(size_t *)(void *)base = all;
    *p = base + 4096;
    return OK;
}

static void unreserve(void *p, enum place place)
{
    (void)place;
    if (!p) return;
    char *base = (char *)p - 4096;
    munmap(base, *(size_t *)(void *)base);
}

static enum status no_copy(struct tensor dst, struct tensor src, struct stream *s)
{
    (void)dst, (void)src, (void)s;
    return OK;
}
static enum status no_zero(struct tensor t, struct stream *s)
{
    (void)t, (void)s;
    return OK;
}
static enum status no_wait(struct stream *s)
{
    (void)s;
    return OK;
}

/* Scratch of the CUDA kernels, for builds that do not have them: the attention's backward keeps dq in float32 and one
 * number a query; the selection keeps the scores of a tile of queries against every block. */
static size_t attend_work(const struct attend_args *a, bool backward)
{
    size_t rows = (size_t)a->q.dim[0] * (size_t)a->q.dim[1];
    return backward ? rows * ((size_t)a->q.dim[2] + 1) * sizeof(float) : 0;
}
static size_t select_work(const struct select_args *a)
{
    size_t blocks = a->block > 0 ? ((size_t)a->max_seqlen + (size_t)a->block - 1) / (size_t)a->block : 0;
    return (size_t)a->iq.dim[0] * (size_t)a->iq.dim[1] * blocks * sizeof(float);
}
static size_t paged_work(const struct paged_args *a)
{
    size_t blocks = a->block > 0 ? ((size_t)a->max_kv_len + (size_t)a->block - 1) / (size_t)a->block : 0;
    return (size_t)a->q.dim[0] * (size_t)a->q.dim[1] * (blocks + 2 * (size_t)a->q.dim[2]) * sizeof(float);
}
static size_t sample_work(int64_t rows, int64_t vocab) { return (size_t)rows * (size_t)vocab * sizeof(float); }

extern const struct ops ops_cuda __attribute__((weak)); /* there in a build with CUDA */

const struct ops *plan_ops(const struct plan_machine *m)
{
    static struct ops table[2];
    struct ops *o = &table[m->gpu];
    *o = m->gpu && &ops_cuda ? ops_cuda : ops_cpu;
    if (m->gpu && !&ops_cuda) {
        o->attend_work = attend_work;
        o->select_work = select_work;
        o->paged_work = paged_work;
        o->sample_work = sample_work;
    }
    o->name = "plan";
    o->place = m->gpu ? PLACE_DEVICE : PLACE_HOST;
    o->alloc = reserve;
    o->release = unreserve;
    o->copy = o->cast = no_copy;
    o->zero = no_zero;
    o->wait = no_wait;
    return o;
}

/* ---------------------------------------------------------------- training --------------------------------------- */

enum status plan_model(const struct plan *p, const struct plan_input *in, int rank, struct mesh *mesh, struct model *m)
{
    *m = (struct model){0};
    TRY(mesh_plan(mesh, p->shape, in->arch, p->ranks, rank));
    int64_t bucket = in->config->adam.bucket_mb * (1 << 20) / 4;
    enum status s = model_create(m, in->arch, mesh, plan_ops(in->machine), NULL, p->dtype, bucket);
    if (s) model_destroy(m);
    return s;
}

static void count_params(const struct model *m, struct plan_rank *r)
{
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        if (!p->here) continue;
        int64_t n = p->count[0] * p->count[1] * p->count[2];
        r->params += n;
        if (p->trained) r->trained += n;
    }
}

static int by_size(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a < b) - (a > b);
}

/* Buffers that the MPI transport keeps for host tensors: the contributions of the gradient buckets in flight, and those of
 * one reduce-scatter over tp. NCCL's are part of the machine's reserve. */
static enum status comm_bytes(const struct model *m, int64_t rows, int64_t *bytes)
{
    *bytes = 0;
    if (m->ops->place == PLACE_DEVICE) return OK;
    int64_t *size = calloc((size_t)m->n_buckets + 1, sizeof *size);
    if (!size) return FAIL(ERR_MEMORY, "%d buckets", m->n_buckets);
    for (int i = 0; i < m->n_buckets; i++)
        if (model_group(m, m->buckets[i].replica)->size > 1) size[i] = m->buckets[i].n * 4;
    qsort(size, (size_t)m->n_buckets, sizeof *size, by_size);
    for (int i = 0; i < m->n_buckets && i < GRADS_IN_FLIGHT; i++) *bytes += size[i];
    free(size);
    if (m->mesh->tp > 1) *bytes += rows * m->arch.hidden * (int64_t)dtype_size(m->dtype);
    return OK;
}

/* Streamed Adam: three buckets move at a time (one read, one updated, one written), each this rank's share of master and
 * moments; on a GPU once there and once in pinned memory. *file is what the node's spill file takes for this rank. */
static enum status spill_sizes(const struct model *m, enum dtype moments, int64_t *buffers, int64_t *file)
{
    struct spill_kind kind[3] = {{"master", DT_F32}, {"exp_avg", moments}, {"exp_avg_sq", moments}};
    int64_t most = 0, g_off, w_off, *n = calloc((size_t)m->n_buckets + 1, sizeof *n);
    if (!n) return FAIL(ERR_MEMORY, "%d buckets", m->n_buckets);
    for (int i = 0; i < m->n_buckets; i++) {
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n[i]);
        if (n[i] > most) most = n[i];
    }
    *buffers = adam_ring_bytes(most, moments);
    *file = spill_file_bytes(kind, 3, n, m->n_buckets);
    free(n);
    return OK;
}

enum status plan_memory(const struct plan *p, const struct plan_input *in, const struct model *m, struct plan_rank *r)
{
    const struct config *c = in->config;
    int64_t element = c->adam.moments == DTYPE_BF16 ? 8 : 12;
    struct pipeline_options o = {.T = p->rows, .S = in->sequences < p->rows ? in->sequences : p->rows,
                                 .max_seqlen = in->longest, .logits_chunk = c->train.logits_chunk, .train = true,
                                 .deterministic = c->run.deterministic, .count_experts = true,
                                 .replay = p->rl && c->rl.routing_replay};
    size_t device = 0, host = 0;
    count_params(m, r);
    r->first_layer = m->mesh->first_layer;
    r->layers = m->mesh->layers;
    r->weights = (int64_t)model_weight_bytes(m);
    r->gradients = (int64_t)model_grad_bytes(m);
    r->adam_elems = adam_elems(m);
    for (int i = RECOMPUTE_NONE; i <= RECOMPUTE_LAYER; i++) {
        o.recompute = (enum recompute)i;
        TRY(pipeline_bytes(m, &o, &device, &host));
        r->activations[i] = (int64_t)device;
        if (o.recompute == p->recompute) r->host_work = (int64_t)host;
    }
    if (p->spilled) TRY(spill_sizes(m, c->adam.moments == DTYPE_BF16 ? DT_BF16 : DT_F32, &r->adam, &r->spill));
    else r->adam = r->adam_elems * element;
    if (p->spilled && m->ops->place == PLACE_DEVICE) r->host_adam = r->adam;
    if (p->rl && (c->rl.kl_coef != 0 || c->ref.report)) TRY(reference_bytes(m, &r->reference, &r->host_reference));
    TRY(comm_bytes(m, p->rows, &r->comm));
    r->reserved = (int64_t)in->machine->reserved_bytes;
    return OK;
}

/* ---------------------------------------------------------------- rollout ---------------------------------------- */

/* Elements that a rank holds on both meshes: they need not travel. */
static int64_t overlap(const struct param *p, const struct arch *a, const struct mesh *x, const struct mesh *y)
{
    int64_t s0[3], c0[3], s1[3], c1[3], n = 1;
    if (!param_shard(p, a, x, s0, c0) || !param_shard(p, a, y, s1, c1)) return 0;
    for (int i = 0; i < 3; i++) {
        int64_t lo = s0[i] > s1[i] ? s0[i] : s1[i];
        int64_t hi = s0[i] + c0[i] < s1[i] + c1[i] ? s0[i] + c0[i] : s1[i] + c1[i];
        n *= hi > lo ? hi - lo : 0;
    }
    return n;
}

/* Mean over the ranks of what a sync brings to each, from one rank of every stage. */
static int64_t sync_bytes(const struct plan *p, const struct plan_input *in, const struct model *m)
{
    struct mesh train, here;
    int plane = p->shape.tp * p->shape.dp;
    double sum = 0;
    if (mesh_plan(&train, p->shape, in->arch, p->ranks, 0)) return 0;
    for (int stage = 0; stage < p->shape.pp; stage++) {
        struct mesh at;
        mesh_at(&at, &train, in->arch, stage * plane + plane / 2);
        mesh_at(&here, m->mesh, in->arch, stage * plane + plane / 2);
        for (int i = 0; i < m->n_params; i++) {
            const struct param *q = &m->params[i];
            int64_t start[3], count[3];
            if (!param_shard(q, in->arch, &here, start, count)) continue;
            int64_t element = q->store == STORE_F32 ? 4 : (int64_t)dtype_size(m->dtype);
            sum += (double)((count[0] * count[1] * count[2] - overlap(q, in->arch, &at, &here)) * element);
        }
    }
    return (int64_t)(sum / p->shape.pp);
}

static void split_weights(const struct model *m, struct plan_decode *d)
{
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        int64_t n = p->count[0] * p->count[1] * p->count[2] * (p->store == STORE_F32 ? 4 : (int64_t)dtype_size(m->dtype));
        if (p->layer < 0 && strstr(p->name, "embed_tokens")) continue; /* a few rows are read */
        *(param_is_experts(p) ? &d->expert_bytes : &d->dense_bytes) += n;
    }
}

/* As worker_open() asks for them. */
static struct rollout_options engine_options(const struct config *c, const struct plan_input *in, int64_t capacity)
{
    enum { PASS_ROWS = 2048 };
    struct rollout_options o = {.max_batch = (int)c->rollout.max_batch, .max_tokens = PASS_ROWS, .pages = c->rollout.kv_pages,
                                .max_len = in->prompt_tokens + (int)c->rollout.max_new_tokens,
                                .record_routing = c->rl.routing_replay};
    if (o.max_batch > capacity) o.max_batch = (int)capacity;
    if (o.max_tokens > (int64_t)o.max_batch * o.max_len) o.max_tokens = (int64_t)o.max_batch * o.max_len;
    return o;
}

static int64_t sample_bytes(const struct plan_input *in, int64_t samples)
{
    const struct config *c = in->config;
    const struct arch *a = in->arch;
    int64_t moe = 0, news = c->rollout.max_new_tokens;
    for (int l = 0; l < a->layers && c->rl.routing_replay; l++) moe += a->moe[l];
    return experience_bytes(samples, in->prompt_tokens, news, moe, a->experts_per_token) +
           experience_bytes(in->held_out ? in->held_out : 1, in->prompt_tokens, news, moe, a->experts_per_token);
}

enum status plan_rollout_memory(struct plan *p, const struct plan_input *in, struct plan_decode *d)
{
    struct mesh mesh;
    struct model m = {0};
    struct rollout r = {0};
    int64_t samples = (int64_t)p->samples;
    *d = (struct plan_decode){0};
    if (p->rl) d->samples = sample_bytes(in, samples);
    if (!p->rollouts) return OK;
    struct rollout_options o = engine_options(in->config, in, samples > in->held_out ? samples : in->held_out);
    TRY(mesh_plan(&mesh, p->rollout_shape, in->arch, p->ranks, p->rollout_shape.tp - 1));
    enum status s;
    TRY_GOTO(s, done, model_create(&m, in->arch, &mesh, plan_ops(in->machine), NULL, p->rollout_dtype, 1 << 24));
    TRY_GOTO(s, done, rollout_create(&r, &m, &o));
    d->weights = p->aliased ? 0 : (int64_t)model_weight_bytes(&m);
    d->kv = (int64_t)r.page_bytes;
    d->work = (int64_t)r.work_bytes;
    d->host = (int64_t)r.host_arena.size;
    d->sync_bytes = p->aliased ? 0 : sync_bytes(p, in, &m);
    d->sync_host = p->aliased ? 0 : sync_host_bytes(&m, p->ranks, in->config->adam.bucket_mb << 20);
    d->page_bytes = (int64_t)kvcache_page_bytes(&m);
    p->pages = r.cache.pages;
    p->page_tokens = r.cache.page;
    split_weights(&m, d);
done:
    rollout_destroy(&r);
    model_destroy(&m);
    return s;
}
