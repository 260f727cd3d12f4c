/* Weight sync between meshes, and its proof; ranks: 4. For pairs of training and rollout meshes and both dtypes, scribbled
 * weights are refused, synced ones pass, and a single changed element of any kind of parameter is found by its name. */
#include "../src/source.h"
#include "../src/sync.h"
#include "check.h"

static int passed, failed;

static void verdict(struct group *world, bool ok, const char *what, const char *detail)
{
    int64_t bad = !ok;
    if (comm_max_int(world, &bad, 1)) bad = 1;
    if (world->rank == 0) *(bad ? &failed : &passed) += 1;
    if (!ok) printf("rank %d: %s: %s\n", world->rank, what, detail);
}

/* Flips the lowest bit of the last element of the parameter's shard, on the highest rank that holds one. */
static bool corrupt(struct model *m, const char *tail, const char **name)
{
    struct group *world = (struct group *)&m->mesh->world;
    const struct param *found = NULL;
    for (int i = 0; i < m->n_params; i++) {
        size_t len = strlen(m->params[i].name), n = strlen(tail);
        if (len >= n && strcmp(m->params[i].name + len - n, tail) == 0) found = &m->params[i];
    }
    *name = found ? found->name : "?";
    int64_t who = found && found->here && found->count[0] > 0 ? world->rank : -1;
    if (!found || comm_max_int(world, &who, 1) || who != world->rank) return found != NULL;
    struct tensor t = param_weight(m, found, param_is_experts(found) ? found->count[0] - 1 : 0);
    int64_t rows = t.rank > 1 ? t.dim[0] : 1, cols = t.rank > 1 ? t.dim[1] : t.dim[0], at = (rows - 1) * t.ld * (t.rank > 1) + cols - 1;
    if (t.dtype == DT_F32) ((uint32_t *)t.data)[at] ^= 1;
    else ((uint16_t *)t.data)[at] ^= 1;
    return true;
}

static enum status pair(const struct source *src, struct mesh_shape from, struct mesh_shape to, enum dtype dtype)
{
    static const char *const tails[] = {"embed_tokens.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                        "index_q_proj.weight", "index_k_norm.weight", "o_proj.weight", "w1.weight",
                                        "w2.weight", "w3.weight", "gate.weight", "e_score_correction_bias",
                                        "shared_experts.up_proj.weight", "model.norm.weight", "lm_head.weight"};
    struct mesh a, b;
    struct model m = {0}, r = {0};
    struct sync s = {0};
    struct stream *stream = NULL;
    char what[128];
    TRY(mesh_create(&a, from, &src->arch));
    TRY(mesh_create(&b, to, &src->arch));
    TRY(model_create(&m, &src->arch, &a, &ops_cpu, stream, DT_F32, 1 << 20));
    TRY(source_load(src, &m));
    TRY(model_create(&r, &src->arch, &b, &ops_cpu, stream, dtype, 1 << 20));
    TRY(sync_create(&s, &m, &r, 1 << 14)); /* small windows: many exchanges */
    snprintf(what, sizeof what, "tp%d pp%d ep%d -> tp%d ep%d dp%d %s", a.tp, a.pp, a.ep, b.tp, b.ep, b.dp, dtype_name(dtype));
    if (!s.aliased) {
        TRY(sync_scribble(&s));
        enum status st = sync_check(&s);
        verdict(&a.world, st == ERR_GATE || st == ERR_PEER, what, "scribbled weights passed");
    }
    TRY(sync_weights(&s));
    verdict(&a.world, sync_check(&s) == OK, what, status_message());
    for (size_t i = 0; i < sizeof tails / sizeof *tails && !s.aliased; i++) {
        const char *name;
        bool exists = corrupt(&r, tails[i], &name);
        enum status st = sync_check(&s);
        verdict(&a.world, exists && (st == ERR_PEER || (st == ERR_GATE && strstr(status_message(), name))), what, name);
        TRY(sync_weights(&s));
    }
    verdict(&a.world, sync_check(&s) == OK, what, status_message());
    verdict(&a.world, s.count == 1 + (s.aliased ? 0 : (int64_t)(sizeof tails / sizeof *tails)), what, "the counter of syncs");
    sync_destroy(&s);
    model_destroy(&r);
    model_destroy(&m);
    mesh_destroy(&b);
    mesh_destroy(&a);
    return OK;
}

static enum status run(void)
{
    static const struct mesh_shape shape[][2] = {
        {{.tp = 1, .pp = 1, .ep = 1}, {.tp = 1, .pp = 1, .ep = 1}}, {{.tp = 2, .pp = 2, .ep = 2}, {.tp = 1, .pp = 1, .ep = 4}},
        {{.tp = 1, .pp = 4, .ep = 1}, {.tp = 4, .pp = 1, .ep = 2}}, {{.tp = 4, .pp = 1, .ep = 4}, {.tp = 2, .pp = 1, .ep = 1}},
        {{.tp = 2, .pp = 1, .ep = 1}, {.tp = 2, .pp = 1, .ep = 4}}};
    struct source src;
    TRY(source_open(&src, "tests/data/golden/narrow/checkpoint"));
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        TRY(pair(&src, shape[i][0], shape[i][1], DT_F32));
        if (i) TRY(pair(&src, shape[i][0], shape[i][1], DT_BF16));
    }
    source_close(&src);
    return OK;
}

int main(int argc, char **argv)
{
    enum status s = comm_open(&argc, &argv);
    ops_cpu_threads(1);
    comm_configure(60, NULL);
    if (!s) s = run();
    if (s) printf("rank %d: %s (%s)\n", comm_world_rank(), status_message(), status_where());
    if (comm_world_rank() == 0) printf("%d passed, %d failed\n", passed, failed + (s != OK));
    comm_close(s != OK, 1);
    return failed || s;
}
