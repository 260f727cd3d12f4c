/* The global gradient norm counts every element once; ranks: 4. Four experts whose gradients have the norm sqrt(120)
 * together give 10.95445 on EP1, EP2, EP4 and TP2 x EP2; a replicated parameter and a split one count once each too. */
#include "../src/grads.h"
#include "check.h"

static int passed, failed;

static enum status norm_on(struct mesh_shape shape, const char *tail, int outer, double want)
{
    struct arch a;
    struct mesh mesh;
    struct model m;
    struct grads g;
    double norm;
    TRY(arch_load(&a, "tests/data/golden/narrow/checkpoint"));
    TRY(mesh_create(&mesh, shape, &a));
    TRY(model_create(&m, &a, &mesh, &ops_cpu, NULL, DT_F32, 1 << 16));
    TRY(model_alloc(&m));
    TRY(model_alloc_grads(&m));
    TRY(grads_create(&g, &m));
    TRY(grads_begin(&g));
    for (int i = 0; i < m.n_params; i++) {
        const struct param *p = &m.params[i];
        size_t len = strlen(p->name), n = strlen(tail);
        if (!p->here || p->layer > 2 || len < n || strcmp(p->name + len - n, tail) != 0 || (p->layer >= 0 && p->layer != 2)) continue;
        /* element [e, 0, 0] is 2 (e + 1): the squares of four are 4 + 16 + 36 + 64 = 120; each replica brings its share */
        int replicas = model_group(&m, p->replica)->size;
        for (int64_t e = 0; e < (param_is_experts(p) ? p->count[0] : 1); e++) {
            int64_t number = param_is_experts(p) ? p->start[0] + e : 0;
            if (number >= outer || p->start[1] != 0 || (!param_is_experts(p) && p->start[0] != 0)) continue;
            ((float *)param_grad(&m, p, e).data)[0] = 2.0f * (float)(number + 1) / (float)replicas;
        }
    }
    TRY(grads_ready(&g, -1));
    TRY(grads_finish(&g, &norm));
    bool ok = fabs(norm - want) <= 1e-6 * want;
    if (mesh.world.rank == 0) {
        *(ok ? &passed : &failed) += 1;
        if (!ok) printf("%s on tp%d pp%d ep%d dp%d: norm %.7f, expected %.7f\n", tail, mesh.tp, mesh.pp, mesh.ep, mesh.dp, norm, want);
    }
    grads_destroy(&g);
    model_destroy(&m);
    mesh_destroy(&mesh);
    return OK;
}

static enum status run(void)
{
    static const struct mesh_shape shape[] = {{.tp = 1, .pp = 1, .ep = 1}, {.tp = 1, .pp = 1, .ep = 2}, {.tp = 1, .pp = 1, .ep = 4},
                                              {.tp = 2, .pp = 1, .ep = 2}, {.tp = 2, .pp = 2, .ep = 1}, {.tp = 4, .pp = 1, .ep = 4}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        TRY(norm_on(shape[i], "experts.w1.weight", 4, 10.954451150103322));
        TRY(norm_on(shape[i], "experts.w2.weight", 4, 10.954451150103322));
        TRY(norm_on(shape[i], "input_layernorm.weight", 1, 2));
        TRY(norm_on(shape[i], "self_attn.q_proj.weight", 1, 2));
        TRY(norm_on(shape[i], "self_attn.k_proj.weight", 1, 2));
        TRY(norm_on(shape[i], "embed_tokens.weight", 1, 2));
    }
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
