#include "worker.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PASS_ROWS = 2048 }; /* rows of a pass that prefill may fill */

static enum status open_mesh(struct worker *w, const struct config *c, const struct mesh *trained, const struct arch *a)
{
    int world = trained->world.size;
    struct mesh_shape s = {.tp = c->rollout.tp ? (int)c->rollout.tp : trained->tp, .pp = 1,
                           .ep = c->rollout.ep ? (int)c->rollout.ep : 1, .dp = (int)c->rollout.dp};
    if (world % s.tp) return FAIL(ERR_CONFIG, "rollout.tp=%d does not divide the job's %d ranks", s.tp, world);
    if (!c->rollout.ep) s.ep = trained->ep;
    if (!c->rollout.ep && world % s.ep) s.ep = 1;
    enum status st = mesh_check(&s, a, world);
    if (st) return status_prefix(st, "rollout mesh"), st;
    return mesh_create(&w->mesh, s, a);
}

enum status worker_open(struct worker *w, const struct config *c, struct model *trained, int max_prompt, int max_new,
                        int capacity, struct arena *const *lender, int n_lenders)
{
    enum dtype dtype = trained->dtype;
    *w = (struct worker){.check = c->rl.check_weight_update_equal, .capacity = capacity};
    if (c->rollout.dtype != DTYPE_AUTO) dtype = c->rollout.dtype == DTYPE_BF16 ? DT_BF16 : DT_F32;
    TRY(open_mesh(w, c, trained->mesh, &trained->arch));
    enum status s = model_create(&w->model, &trained->arch, &w->mesh, trained->ops, trained->stream, dtype, 1 << 24);
    if (!s) s = sync_create(&w->sync, trained, &w->model, c->adam.bucket_mb << 20);
    struct rollout_options o = {.max_batch = (int)c->rollout.max_batch, .max_tokens = PASS_ROWS,
                                .max_len = max_prompt + max_new, .pages = c->rollout.kv_pages,
                                .record_routing = c->rl.routing_replay, .lender = lender, .n_lenders = n_lenders};
    if (o.max_batch > capacity) o.max_batch = capacity;
    if (o.max_tokens > (int64_t)o.max_batch * o.max_len) o.max_tokens = (int64_t)o.max_batch * o.max_len;
    if (!s) s = rollout_create(&w->engine, &w->model, &o);
    w->request = calloc((size_t)capacity, sizeof *w->request);
    w->owner = calloc((size_t)capacity, sizeof *w->owner);
    if (!s && (!w->request || !w->owner)) s = FAIL(ERR_MEMORY, "%d requests", capacity);
    TRY(comm_agree((struct group *)&trained->mesh->world, s));
    const double mib = 1.0 / (1 << 20);
    log_info("rollout: tp %d, ep %d, dp %d, %s, weights %s %.1f MiB, %" PRId64 " KV pages of %d tokens %.1f, workspace %.1f; "
             "%.1f of them lent", w->mesh.tp, w->mesh.ep, w->mesh.dp, dtype_name(dtype), w->sync.aliased ? "aliased" : "copied",
             mib * (double)model_weight_bytes(&w->model), w->engine.cache.pages, w->engine.cache.page,
             mib * (double)w->engine.page_bytes, mib * (double)w->engine.work_bytes, mib * (double)w->engine.lent_bytes);
    return OK;
}

void worker_close(struct worker *w)
{
    if (!w->request) return;
    rollout_destroy(&w->engine);
    sync_destroy(&w->sync);
    model_destroy(&w->model);
    mesh_destroy(&w->mesh);
    free(w->request);
    free(w->owner);
    *w = (struct worker){0};
}

enum status worker_update(struct worker *w)
{
    if (w->check && w->sync.count == 0) TRY(sync_scribble(&w->sync));
    TRY(sync_weights(&w->sync));
    return w->check ? sync_check(&w->sync) : OK;
}

/* Neighbours stay together: samples of one prompt share its pages. */
static int owner_of(int k, int n, int dp) { return (int)((int64_t)k * dp / n); }

enum status worker_generate(struct worker *w, struct experience *e, const int *which, int n, const struct rollout_run *run)
{
    struct group *world = (struct group *)&w->sync.from->mesh->world;
    int64_t row = e->max_prompt + e->max_new;
    int mine = 0;
    for (int i = 0; i < e->n; i++) w->owner[i] = 0; /* what everybody has already */
    for (int k = 0; k < n; k++) {
        int i = which[k];
        w->owner[i] = owner_of(k, n, w->mesh.dp);
        if (w->owner[i] != w->mesh.dp_rank) continue;
        w->request[mine++] = (struct request){
            .prompt = experience_ids(e, i), .n_prompt = e->n_prompt[i], .max_new = e->max_new, .prompt_id = e->draw[i],
            .sample_id = (uint64_t)(i % e->group), .tag = i, .ids = experience_ids(e, i) + e->n_prompt[i],
            .logprobs = e->rollout + (int64_t)i * e->max_new,
            .experts = e->experts ? e->experts + i * row * e->moe_layers * e->k : NULL};
    }
    enum status s = rollout_generate(&w->engine, w->request, mine, run);
    int64_t stopped = s == ERR_STOPPED;
    TRY(comm_max_int(world, &stopped, 1));
    if (stopped) return FAIL(ERR_STOPPED, "stopped while generating");
    TRY(comm_agree(world, s));
    for (int k = 0; k < mine; k++) {
        const struct request *q = &w->request[k];
        e->n_new[q->tag] = q->n_new;
        e->finish[q->tag] = q->finish;
    }
    return experience_share(e, &w->mesh.dp_group, w->owner);
}
