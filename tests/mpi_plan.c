/* ranks: 8. The planner against running steps: on several meshes, model sizes and recompute choices, what each rank's arenas
 * take and what leaves it over each network in a step must be what `m3 plan` says for that rank. */
#include "../src/adam.h"
#include "../src/pipeline.h"
#include "../src/plan.h"
#include "../src/worker.h"
#include "check.h"

enum { RANKS = 8, LEN = 32, SAMPLES = 16, MICRO = 64 };

static const struct mesh_case {
    int tp, pp, ep, size;
    enum recompute recompute;
} meshes[] = {
    {2, 2, 4, 0, RECOMPUTE_NONE},  {4, 1, 8, 1, RECOMPUTE_LAYER}, {1, 4, 2, 2, RECOMPUTE_ATTENTION},
    {8, 1, 8, 1, RECOMPUTE_NONE},  {2, 1, 2, 2, RECOMPUTE_LAYER}, {1, 1, 1, 0, RECOMPUTE_NONE},
    {4, 2, 4, 0, RECOMPUTE_LAYER}, {2, 4, 1, 1, RECOMPUTE_ATTENTION},
};
enum { CASES = sizeof meshes / sizeof *meshes };

/* Three sizes; the vocabulary is not always divisible by tp, KV heads may be fewer than tp. */
static struct arch arch_of(int size)
{
    static const int hidden[] = {64, 96, 160}, vocab[] = {104, 203, 320};
    struct arch a = {.hidden = hidden[size], .layers = 4 + size, .heads = 8, .kv_heads = 4, .head_dim = 16, .rotary_dim = 8,
                     .rope_theta = 1e4f, .rms_eps = 1e-6f, .vocab = vocab[size], .max_positions = 4096,
                     .dense_ffn = 96 << size, .expert_ffn = 32 << size, .shared_ffn = size == 2 ? 0 : 48, .experts = 8,
                     .experts_per_token = 2, .routed_scale = 2, .swiglu_alpha = 1.702f, .swiglu_limit = 7, .index_heads = 4,
                     .index_dim = 8, .block_size = 16, .topk_blocks = 2, .local_blocks = 1, .bos_id = -1, .eos_id = -1,
                     .pad_id = -1};
    for (int i = 2; i < a.layers; i++) a.moe[i] = a.sparse[i] = true;
    return a;
}

static enum status loss(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                        float *dentropy, bool *use_entropy)
{
    (void)ctx, (void)logp, (void)entropy, (void)dentropy, (void)use_entropy;
    for (int64_t t = 0; t < u->T; t++) dlogp[t] = u->targets[t] < 0 ? 0 : -1e-3f;
    return OK;
}

/* Every token chooses experts 0 and 5: the plan spreads rows evenly, these owners get them all. Rows that leave this rank in
 * one layer and direction: to the owners, and back from here when this is one. */
enum { FIRST = 0, SECOND = 5 };
static double rows_sent(const struct mesh *m, int experts, double rows)
{
    int first = FIRST / (experts / m->ep) == m->ep_rank, second = SECOND / (experts / m->ep) == m->ep_rank;
    return rows * (2 - first - second) + rows * (first + second) * (m->ep - 1);
}

static int failures;
static void same(const char *what, int which, double got, double want, double tolerance)
{
    if (fabs(got - want) <= tolerance * fmax(1, fabs(want))) return;
    printf("rank %d, mesh %d: %s is %.0f, planned %.0f\n", comm_world_rank(), which, what, got, want);
    failures++;
}

static double sent(const struct mesh *m, int net)
{
    if (net == PLAN_TP) return (double)m->tp_group.bytes;
    if (net == PLAN_EP) return (double)m->ep_group.bytes;
    if (net == PLAN_PP) return (double)m->pp_group.bytes;
    return (double)(m->dp_group.bytes + m->plane.bytes + m->kv_group.bytes + m->edp_group.bytes);
}

static void fill(struct model *m)
{
    for (int s = 0; s < STORE_COUNT; s++)
        for (int64_t i = 0; i < m->store_elems[s]; i++) ((float *)m->store[s].data)[i] = 0.1f * check_uniform(7, (uint64_t)i);
    for (int l = 0; l < m->n_layers; l++)
        for (int e = 0; m->layers[l].moe && e < m->arch.experts; e++)
            ((float *)m->layers[l].bias.data)[e] = e == FIRST || e == SECOND ? 100 : 0;
}

/* One step; leaves in `left` what each network carried. */
static enum status step(struct model *m, struct pipeline *p, struct adam *adam, const struct mesh *mesh,
                        double left[PLAN_NETS])
{
    static int32_t ids[SAMPLES][LEN];
    static uint8_t mask[SAMPLES][LEN];
    struct sample samples[SAMPLES];
    struct batch b = {0};
    struct grads g;
    struct objective o = {loss, NULL, 1};
    double norm;
    for (int i = 0; i < SAMPLES; i++) {
        for (int t = 0; t < LEN; t++)
            ids[i][t] = (int32_t)(check_hash((uint64_t)(i * LEN + t)) % (uint64_t)m->arch.vocab), mask[i][t] = t > 0;
        samples[i] = (struct sample){.id = i, .n = LEN, .ids = ids[i], .mask = mask[i]};
    }
    TRY(grads_create(&g, m));
    TRY(batch_pack(&b, samples, SAMPLES, MICRO, mesh->tp, mesh->dp, mesh->dp_rank));
    for (int i = 0; i < PLAN_SYNC; i++) left[i] = -sent(mesh, i);
    TRY(grads_begin(&g));
    TRY(pipeline_run(p, &b, &o, &g, NULL));
    TRY(grads_finish(&g, &norm));
    TRY(adam_update(adam, 1e-3, 1));
    for (int i = 0; i < PLAN_SYNC; i++) left[i] += sent(mesh, i);
    grads_destroy(&g);
    batch_free(&b);
    return OK;
}

/* The rollout's side of an RL run on the same model: its weights, pages and workspaces, what the trainer lends it, and the
 * buffers of the weight exchange. Odd cases lend too little and allocate pages of their own. */
static enum status check_rollout(int which, const struct plan_machine *machine, const struct arch *a, struct model *m,
                                 struct pipeline *pipe, struct pipeline_options o, char *const key[4])
{
    static const int rollout_tp[] = {4, 2, 8, 1}, rollout_ep[] = {8, 4, 2, 1};
    char more[2][64];
    snprintf(more[0], sizeof more[0], "rollout.tp=%d", rollout_tp[which % 4]);
    snprintf(more[1], sizeof more[1], "rollout.ep=%d", rollout_ep[which % 4]);
    char *keys[] = {key[0], key[1], key[2], key[3], more[0], more[1], "run.device=cpu", "adam.bucket_mb=1",
                    "train.micro_batch_tokens=64", "train.logits_chunk=0", "train.objective=rl", "data.max_tokens=20",
                    "rollout.max_new_tokens=12", which % 2 ? "rollout.max_batch=16" : "rollout.max_batch=3",
                    "rl.prompts_per_step=4", "rollout.samples_per_prompt=4",
                    which % 3 ? "rl.routing_replay=false" : "rl.routing_replay=true"};
    struct config c;
    struct plan_input in;
    struct plan p;
    struct plan_rank r;
    struct worker w;
    struct arena *lender[] = {&m->grads, &pipe->device};
    TRY(config_load(&c, NULL, (int)(sizeof keys / sizeof *keys), keys));
    plan_input_default(&in, &c, a, machine, RANKS);
    TRY(plan_estimate(&p, &in));
    TRY(plan_rank_of(&p, &in, comm_world_rank(), &r));
    size_t device, host;
    o.replay = c.rl.routing_replay;
    o.S = 16;
    TRY(pipeline_bytes(m, &o, &device, &host));
    same("activations of RL", which, (double)device, (double)r.activations[p.recompute], 0);
    TRY(worker_open(&w, &c, m, 20, 12, 16, lender, 2));
    same("rollout weights", which, w.sync.aliased ? 0 : (double)(w.model.weights[0].size + w.model.weights[1].size),
         (double)r.rollout_weights, 0.001);
    same("KV pages", which, (double)w.engine.page_bytes, (double)r.kv, 0);
    same("decoding", which, (double)w.engine.work_bytes, (double)r.rollout_work, 0);
    same("lent", which, (double)w.engine.lent_bytes, (double)r.lent, 0);
    same("exchange", which, (double)w.sync.window_bytes * (w.sync.aliased ? 0 : RANKS + 2), (double)r.host_sync, 0);
    same("indices and samples", which, (double)(w.engine.host_arena.size + host), (double)r.host_work, 0);
    worker_close(&w);
    config_free(&c);
    return OK;
}

static enum status check_mesh(int which, const struct plan_machine *machine)
{
    const struct mesh_case *c = &meshes[which];
    struct arch a = arch_of(c->size);
    struct config config;
    char key[4][64];
    snprintf(key[0], sizeof key[0], "mesh.tp=%d", c->tp);
    snprintf(key[1], sizeof key[1], "mesh.pp=%d", c->pp);
    snprintf(key[2], sizeof key[2], "mesh.ep=%d", c->ep);
    snprintf(key[3], sizeof key[3], "train.recompute=%s", (const char *[]){"none", "attention", "layer"}[c->recompute]);
    char *keys[] = {key[0], key[1], key[2], key[3], "run.device=cpu", "adam.bucket_mb=1", "train.micro_batch_tokens=64",
                    "data.max_tokens=32", "train.global_batch=16", "train.logits_chunk=0"};
    TRY(config_load(&config, NULL, 10, keys));

    struct plan_input in;
    struct plan p;
    struct plan_rank r;
    plan_input_default(&in, &config, &a, machine, RANKS);
    TRY(plan_compute(&p, &in));
    TRY(plan_rank_of(&p, &in, comm_world_rank(), &r));

    static struct mesh mesh;
    struct model m;
    struct pipeline pipe;
    struct adam adam;
    TRY(mesh_create(&mesh, p.shape, &a));
    TRY(model_create(&m, &a, &mesh, &ops_cpu, NULL, DT_F32, (1 << 20) / 4));
    TRY(model_alloc(&m));
    TRY(model_alloc_grads(&m));
    fill(&m);
    struct pipeline_options o = {.T = MICRO, .S = SAMPLES, .max_seqlen = LEN, .recompute = c->recompute, .train = true,
                                 .count_experts = true};
    struct adam_options ao = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .moments = DT_F32};
    TRY(pipeline_create(&pipe, &m, &o));
    TRY(adam_create(&adam, &m, &ao));
    same("weights", which, (double)(m.weights[0].size + m.weights[1].size), (double)r.weights, 0.001);
    same("gradients", which, (double)m.grads.size, (double)r.gradients, 0.001);
    same("activations", which, (double)pipe.device.size, (double)r.activations[c->recompute], 0);
    same("host memory", which, (double)pipe.host_arena.size, (double)r.host, 0);
    same("adam", which, (double)adam.arena.size, (double)r.adam, 0.005);

    double left[PLAN_NETS] = {0};
    TRY(step(&m, &pipe, &adam, &mesh, left));
    same("tp traffic", which, left[PLAN_TP], (double)r.sent[PLAN_TP], 0);
    same("pp traffic", which, left[PLAN_PP], (double)r.sent[PLAN_PP], 0);
    same("dp traffic", which, left[PLAN_DP], (double)r.sent[PLAN_DP], 0);
    double passes = c->recompute == RECOMPUTE_LAYER ? 3 : 2, moe = 0, rows = MICRO / c->tp;
    for (int l = 0; l < m.n_layers; l++) moe += m.layers[l].moe;
    double even = 2 * rows * a.experts_per_token * (c->ep - 1) / c->ep, moved = rows_sent(&mesh, a.experts, rows);
    double more = passes * moe * (double)p.micro_batches * (moved - even) * a.hidden * 4;
    same("ep traffic", which, left[PLAN_EP], (double)r.sent[PLAN_EP] + more, 0);
    TRY(check_rollout(which, machine, &a, &m, &pipe, o, (char *const[]){key[0], key[1], key[2], key[3]}));

    adam_destroy(&adam);
    pipeline_destroy(&pipe);
    model_destroy(&m);
    mesh_destroy(&mesh);
    config_free(&config);
    return OK;
}

int main(int argc, char **argv)
{
    struct plan_machine machine;
    int failed = 0, which = 0;
    enum status s = comm_open(&argc, &argv);
    ops_cpu_threads(1);
    comm_configure(60, NULL);
    if (!s && comm_world_size() != RANKS) s = FAIL(ERR_USAGE, "mpi_plan runs on %d ranks, not %d", RANKS, comm_world_size());
    if (!s) s = plan_machine_load(&machine, "cpu");
    for (; which < CASES && !s; which++) {
        failures = 0;
        s = check_mesh(which, &machine);
        struct group world;
        double all = failures;
        if (!s) s = group_world(&world);
        if (!s) s = comm_sum_double(&world, &all, 1);
        if (!s) group_destroy(&world);
        failed += all > 0;
    }
    if (s) printf("rank %d, mesh %d: %s (%s)\n", comm_world_rank(), which - 1, status_message(), status_where());
    else if (comm_world_rank() == 0) printf("%d passed, %d failed\n", CASES - failed, failed);
    comm_close(s != OK, 1);
    return failed != 0;
}
