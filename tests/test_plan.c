/* The planner against numbers worked out by hand, against memory really allocated, and against itself. */
#include "../src/adam.h"
#include "../src/experience.h"
#include "../src/pipeline.h"
#include "../src/plan.h"
#include "check.h"

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <unistd.h>

#define FULL_JSON "tests/data/m3_full_config.json"

static struct arch full;
static struct plan_machine h200, gb300, cpu;

static void load_arch(struct arch *a, const char *path)
{
    FILE *f = fopen(path, "r");
    static char text[1 << 16];
    if (!f) fail_msg("%s is missing", path);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    check_ok(arch_parse(a, text, n, path));
}

static int setup(void **state)
{
    (void)state;
    load_arch(&full, FULL_JSON);
    check_ok(plan_machine_load(&h200, "h200"));
    check_ok(plan_machine_load(&gb300, "gb300"));
    check_ok(plan_machine_load(&cpu, "cpu"));
    ops_cpu_threads(1);
    return 0;
}

static struct config config_with(int n, const char *const *key)
{
    struct config c;
    check_ok(config_load(&c, NULL, n, (char **)key));
    return c;
}
#define CONFIG(...)                                                                                                    \
    config_with((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static struct plan plan_of(const struct config *c, const struct arch *a, const struct plan_machine *m, int ranks)
{
    struct plan p;
    struct plan_input in;
    plan_input_default(&in, c, a, m, ranks);
    check_ok(plan_compute(&p, &in));
    return p;
}

/* A small model with every kind of layer: 2 dense, 2 sparse with experts. */
static struct arch small_arch(int vocab, int kv)
{
    struct arch a = {.hidden = 64, .layers = 4, .heads = 8, .kv_heads = kv, .head_dim = 16, .rotary_dim = 8,
                     .rope_theta = 1e4f, .rms_eps = 1e-6f, .vocab = vocab, .max_positions = 4096, .dense_ffn = 96,
                     .expert_ffn = 32, .shared_ffn = 48, .experts = 8, .experts_per_token = 2, .routed_scale = 2,
                     .swiglu_alpha = 1.702f, .swiglu_limit = 7, .index_heads = kv, .index_dim = 8, .block_size = 16,
                     .topk_blocks = 4, .local_blocks = 1, .bos_id = -1, .eos_id = -1, .pad_id = -1};
    for (int i = 2; i < 4; i++) a.moe[i] = a.sparse[i] = true;
    return a;
}

/* ---------------------------------------------------------------- meshes ----------------------------------------- */

/* Size of the group of `rank` and its place in it, when `same` says who belongs together. */
static void check_group(const struct group *g, const struct mesh *of, int rank, int world, const struct arch *a,
                        bool (*same)(const struct mesh *, const struct mesh *))
{
    int size = 0, place = -1;
    struct mesh other, me;
    mesh_at(&me, of, a, rank);
    for (int r = 0; r < world; r++) {
        mesh_at(&other, of, a, r);
        if (r == rank) place = size;
        if (same(&me, &other)) size++;
    }
    if (g->size != size || g->rank != place)
        fail_msg("rank %d of tp%d pp%d ep%d dp%d: group %s has rank %d of %d, expected %d of %d", rank, of->tp, of->pp,
                 of->ep, of->dp, g->name, g->rank, g->size, place, size);
}
static bool same_tp(const struct mesh *x, const struct mesh *y) { return x->pp_rank == y->pp_rank && x->dp_rank == y->dp_rank; }
static bool same_dp(const struct mesh *x, const struct mesh *y) { return x->pp_rank == y->pp_rank && x->tp_rank == y->tp_rank; }
static bool same_pp(const struct mesh *x, const struct mesh *y) { return x->dp_rank == y->dp_rank && x->tp_rank == y->tp_rank; }
static bool same_plane(const struct mesh *x, const struct mesh *y) { return x->pp_rank == y->pp_rank; }
static bool same_kv(const struct mesh *x, const struct mesh *y) { return same_plane(x, y) && x->kv_first == y->kv_first; }
static int in_plane(const struct mesh *x) { return x->dp_rank * x->tp + x->tp_rank; }
static bool same_ep(const struct mesh *x, const struct mesh *y)
{
    return same_plane(x, y) && in_plane(x) / x->ep == in_plane(y) / y->ep;
}
static bool same_edp(const struct mesh *x, const struct mesh *y) { return same_plane(x, y) && x->ep_rank == y->ep_rank; }

static void planned_groups_are_those_of_the_definition(void **state)
{
    (void)state;
    static const int shape[][5] = {{1, 1, 1, 1, 1}, {4, 2, 1, 2, 2}, {8, 2, 2, 4, 2}, {16, 8, 1, 8, 2}, {16, 4, 2, 2, 2},
                                   {32, 4, 4, 8, 2}, {32, 8, 2, 4, 2}};
    struct arch a = small_arch(101, 4);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int r = 0; r < shape[i][0]; r++) {
            struct mesh m;
            struct mesh_shape s = {.tp = shape[i][1], .pp = shape[i][2], .ep = shape[i][3]};
            check_ok(mesh_plan(&m, s, &a, shape[i][0], r));
            assert_int_equal(m.dp, shape[i][4]);
            check_group(&m.tp_group, &m, r, shape[i][0], &a, same_tp);
            check_group(&m.dp_group, &m, r, shape[i][0], &a, same_dp);
            check_group(&m.pp_group, &m, r, shape[i][0], &a, same_pp);
            check_group(&m.plane, &m, r, shape[i][0], &a, same_plane);
            check_group(&m.kv_group, &m, r, shape[i][0], &a, same_kv);
            check_group(&m.ep_group, &m, r, shape[i][0], &a, same_ep);
            check_group(&m.edp_group, &m, r, shape[i][0], &a, same_edp);
        }
}

/* ---------------------------------------------------------------- the full model by hand ------------------------- */

/* MODEL.md's tensor shapes of one layer; the indexer is frozen. */
enum { C = 6144, HD = 64 * 128, KD = 4 * 128, F = 3072, E = 128, FD = 12288, V = 200064 };
static const int64_t attention = 2ll * HD * C + 2ll * KD * C + 2 * 128, indexer = 4 * 128 * C + 128 * C + 2 * 128;
static const int64_t norms = 2 * C, dense_mlp = 3ll * FD * C, router = (int64_t)E * C, shared = 3ll * F * C;
static const int64_t experts = (int64_t)E * 3 * F * C, ends = (int64_t)V * C;

static void the_full_model_has_425_95_billion_trained_parameters(void **state)
{
    (void)state;
    struct config c = CONFIG("train.objective=sft", "mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "adam.spill_dir=/local");
    struct plan p = plan_of(&c, &full, &gb300, 32);
    int64_t trained = 60 * (attention + norms) + 3 * dense_mlp + 57 * (router + shared + experts) + 2 * ends + C;
    assert_int_equal(p.trained, trained);
    assert_int_equal(p.trained, 425950417920);
    assert_int_equal(p.params, trained + 57 * (indexer + E));
    assert_int_equal(p.adam_state, 5111405015040); /* 12 bytes each */
    config_free(&c);
}

static void each_rank_holds_the_parameters_of_its_stage_and_shard(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "adam.spill_dir=/local");
    struct plan p = plan_of(&c, &full, &gb300, 32);
    struct plan_input in;
    plan_input_default(&in, &c, &full, &gb300, 32);
    static const int dense[] = {3, 0, 0, 0};
    for (int rank = 0; rank < 32; rank += 5) {
        struct plan_rank r;
        int s = rank / 8, moe = 15 - dense[s];
        check_ok(plan_rank_of(&p, &in, rank, &r));
        int64_t split = 15 * (attention - 256) + dense[s] * dense_mlp + moe * shared;
        int64_t want = split / 4 + moe * experts / 8 + (s == 0 || s == 3 ? ends / 4 : 0) + 15 * (norms + 256) + moe * router +
                       (s == 3 ? C : 0);
        assert_int_equal(r.trained, want);
        assert_int_equal(r.params, want + moe * (4 * 128 * C / 4 + 128 * C + 256 + E));
        int64_t in_f32 = moe * (router + E), padding = r.weights - (2 * (r.params - in_f32) + 4 * in_f32);
        if (padding < 0 || padding > 64 * 1024) fail_msg("rank %d: %lld bytes of padding", rank, (long long)padding);
    }
    config_free(&c);
}

static enum status count_piece(void *ctx, const struct param *p, const int64_t start[3], const int64_t count[3], int64_t at)
{
    (void)p, (void)start, (void)at;
    *(int64_t *)ctx += count[0] * count[1] * count[2];
    return OK;
}

static void every_trained_element_has_one_owner(void **state)
{
    (void)state;
    static const struct { int ranks, tp, pp, ep, vocab, kv; } mesh[] = {
        {1, 1, 1, 1, 101, 4}, {8, 2, 2, 4, 101, 4}, {16, 8, 1, 8, 101, 2}, {32, 4, 4, 8, 200, 4}, {12, 4, 3, 2, 50, 2}};
    for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
        struct arch a = small_arch(mesh[i].vocab, mesh[i].kv);
        int64_t owned = 0, trained = 0;
        for (int rank = 0; rank < mesh[i].ranks; rank++) {
            struct mesh m;
            struct model model;
            int64_t mine = 0;
            struct mesh_shape shape = {.tp = mesh[i].tp, .pp = mesh[i].pp, .ep = mesh[i].ep};
            check_ok(mesh_plan(&m, shape, &a, mesh[i].ranks, rank));
            check_ok(model_create(&model, &a, &m, &ops_cpu, NULL, DT_F32, 4096));
            for (int b = 0; b < model.n_buckets; b++) {
                int64_t g_off, w_off, n;
                grads_share(&model, &model.buckets[b], &g_off, &w_off, &n);
                check_ok(model_walk(&model, g_off, n, count_piece, &mine));
            }
            owned += mine;
            trained = model_count(&model, true);
            int64_t padding = adam_elems(&model) - mine; /* what aligns parameters of odd sizes is owned too */
            if (padding < 0 || padding > 64 * 40) fail_msg("rank %d: %lld elements of padding", rank, (long long)padding);
            model_destroy(&model);
        }
        assert_int_equal(owned, trained);
    }
}

static void the_full_run_streams_5_111_terabytes_and_fits_both_machines(void **state)
{
    (void)state;
    struct config c;
    check_ok(config_load(&c, "configs/m3_full.yaml", 0, NULL));
    const struct plan_machine *machine[] = {&h200, &gb300};
    for (int i = 0; i < 2; i++) {
        struct plan p = plan_of(&c, &full, machine[i], 32);
        struct plan_input in;
        plan_input_default(&in, &c, &full, machine[i], 32);
        if (!p.fits) fail_msg("%s: %s", machine[i]->name, p.why);
        int64_t owned = 0, disk = 0;
        for (int rank = 0; rank < 32; rank++) {
            struct plan_rank r;
            check_ok(plan_rank_of(&p, &in, rank, &r));
            owned += 12 * r.adam_elems;
            if (rank >= 24 && rank < 28) disk += r.spill;
        }
        assert_int_equal(owned, 5111405015040);
        check_equal_f((double)p.spill_node, (double)disk, 1e-6);
        check_equal_f(1e-9 * (double)p.stage[0].adam_elems * 12, 136.763, 1e-5);
        check_equal_f(1e-9 * (double)p.stage[1].adam_elems * 12, 166.773, 1e-5);
        check_equal_f(1e-9 * (double)p.stage[3].adam_elems * 12, 168.617, 1e-5);
    }
    config_free(&c);
}

/* GB300's variant is the same run, with what its memory allows. */
static void the_variant_for_gb300_differs_in_recompute_alone(void **state)
{
    (void)state;
    struct config h, g;
    bool harmless;
    char text[4096] = "";
    check_ok(config_load(&h, "configs/m3_full.yaml", 0, NULL));
    check_ok(config_load(&g, "configs/m3_full_gb300.yaml", 0, NULL));
    FILE *f = fmemopen(text, sizeof text, "w");
    int n = config_diff(&h, &g, f, &harmless);
    fclose(f);
    if (n != 1 || !strstr(text, "train.recompute")) fail_msg("%d keys differ: %s", n, text);
    struct plan p = plan_of(&g, &full, &gb300, 32), slow = plan_of(&h, &full, &gb300, 32);
    if (!p.fits || p.step_s >= slow.step_s) fail_msg("fits %d (%s), %g s against %g s", p.fits, p.why, p.step_s, slow.step_s);
    config_free(&h);
    config_free(&g);
}

static void one_node_runs_four_layers(void **state)
{
    (void)state;
    struct config c;
    static struct arch four;
    load_arch(&four, "configs/m3_4layer.json");
    check_ok(config_load(&c, "configs/m3_4layer.yaml", 0, NULL));
    struct plan p = plan_of(&c, &four, &h200, 4);
    if (!p.fits) fail_msg("%s", p.why);
    assert_true(p.aliased);
    assert_int_equal(p.trained, 4 * (attention + norms) + 2 * dense_mlp + 2 * (router + shared + experts) + 2 * ends + C);
    config_free(&c);
}

static void the_configs_and_the_tests_describe_the_same_full_model(void **state)
{
    (void)state;
    static struct arch other;
    load_arch(&other, "configs/m3_full.json");
    assert_memory_equal(&other, &full, sizeof full);
}

/* ---------------------------------------------------------------- memory ----------------------------------------- */

/* What a run on one rank takes, by taking it. */
static void memory_is_what_the_arenas_take(void **state)
{
    (void)state;
    static const char *const recompute[] = {"train.recompute=none", "train.recompute=attention", "train.recompute=layer"};
    static const char *const batch[] = {"train.micro_batch_tokens=64", "train.micro_batch_tokens=256",
                                        "train.micro_batch_tokens=100"};
    for (int i = 0; i < 3; i++) {
        struct config c = CONFIG(recompute[i], batch[i], "train.objective=rl", "run.device=cpu", "data.max_tokens=40",
                                 "rollout.max_new_tokens=30", "rollout.max_batch=4", "train.logits_chunk=32");
        struct arch a = small_arch(97 + i, 4 >> i);
        struct plan p = plan_of(&c, &a, &cpu, 1);
        const struct plan_rank *r = &p.stage[0];
        struct mesh mesh;
        struct model m;
        struct pipeline pipe;
        struct adam adam;
        struct rollout roll;
        check_ok(mesh_single(&mesh, &a));
        check_ok(model_create(&m, &a, &mesh, &ops_cpu, NULL, DT_F32, c.adam.bucket_mb * (1 << 20) / 4));
        check_ok(model_alloc(&m));
        check_ok(model_alloc_grads(&m));
        struct pipeline_options o = {.T = p.rows, .S = p.rows < 64 ? p.rows : 64, .max_seqlen = 70, .logits_chunk = 32,
                                     .recompute = c.train.recompute, .train = true, .count_experts = true};
        check_ok(pipeline_create(&pipe, &m, &o));
        struct adam_options ao = {.moments = DT_F32};
        check_ok(adam_create(&adam, &m, &ao));
        struct arena *lender[] = {&m.grads, &pipe.device};
        struct rollout_options ro = {.max_batch = 4, .max_tokens = 4 * 70, .max_len = 70, .lender = lender, .n_lenders = 2};
        check_ok(rollout_create(&roll, &m, &ro));
        check_equal_f((double)r->weights, (double)(m.weights[0].size + m.weights[1].size), 1e-3);
        check_equal_f((double)r->gradients, (double)m.grads.size, 1e-3);
        check_equal_f((double)r->adam, (double)adam.arena.size, 1e-2);
        assert_int_equal(r->activations[p.recompute], pipe.device.size);
        assert_int_equal(r->kv, roll.page_bytes);
        assert_int_equal(r->rollout_work, roll.work_bytes);
        assert_int_equal(r->lent, roll.lent_bytes);
        assert_int_equal(r->host_work, pipe.host_arena.size + roll.host_arena.size);
        rollout_destroy(&roll);
        adam_destroy(&adam);
        pipeline_destroy(&pipe);
        model_destroy(&m);
        config_free(&c);
    }
}

static void samples_take_what_they_are_planned_to_take(void **state)
{
    (void)state;
    struct experience e;
    for (int moe = 0; moe < 3; moe += 2) {
        check_ok(experience_create(&e, 64, 100, 300, moe, 4));
        size_t taken = malloc_usable_size(e.prompt) + malloc_usable_size(e.draw) + malloc_usable_size(e.n_prompt) +
                       malloc_usable_size(e.ids) + malloc_usable_size(e.mask) + malloc_usable_size(e.rollout) +
                       malloc_usable_size(e.reward) + malloc_usable_size(e.dropped) + malloc_usable_size(e.experts);
        check_equal_f((double)experience_bytes(64, 100, 300, moe, 4), (double)taken, 0.01);
        experience_free(&e);
    }
}

static void the_reference_is_kept_and_passes_through_layer_by_layer(void **state)
{
    (void)state;
    struct config c;
    check_ok(config_load(&c, "configs/m3_full.yaml", 0, NULL));
    c.ref.report = true;
    struct plan with = plan_of(&c, &full, &gb300, 32);
    c.ref.report = false;
    struct plan without = plan_of(&c, &full, &gb300, 32);
    for (int i = 0; i < 4; i++) {
        const struct plan_rank *r = &with.stage[i];
        /* one layer of a middle stage: experts / 8, a quarter of attention and shared expert, and what is whole */
        double layer = 2.0 * ((double)experts / 8 + (double)(attention + shared) / 4 + 4 * 128 * C / 4 + 128 * C) + 4.0 * router;
        if (i == 1 || i == 2) check_equal_f((double)r->reference, layer, 2e-3);
        assert_int_equal(r->peak - without.stage[i].peak, r->reference);
        check_equal_f((double)r->host_reference, (double)r->weights, 1e-3);
        assert_int_equal(r->host - without.stage[i].host, r->host_reference);
    }
    check_equal_f(with.time[PLAN_REF], with.time[PLAN_OLD], 1e-12);
    config_free(&c);
}

static void shards_shrink_as_the_mesh_says(void **state)
{
    (void)state;
    struct config c = CONFIG("run.device=cpu");
    struct arch a = small_arch(96, 4);
    struct plan one = plan_of(&c, &a, &cpu, 1);
    c.mesh.tp = 4;
    c.mesh.ep = 8;
    struct plan p = plan_of(&c, &a, &cpu, 8);
    int64_t moe = 2ll * 8 * 3 * 64 * 32, whole = 4 * (2 * 64 + 32) + 64 + 2 * (8 * 64 + 8) + 2 * (8 * 64 + 16);
    int64_t split = one.stage[0].params - moe - whole; /* index_k and the norms, router and bias are not split */
    assert_int_equal(p.stage[0].params, moe / 8 + split / 4 + whole);
    config_free(&c);
}

static void spilled_state_leaves_buckets_in_memory(void **state)
{
    (void)state;
    struct config c = CONFIG("adam.spill_dir=/local", "mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "adam.bucket_mb=64");
    struct plan p = plan_of(&c, &full, &h200, 32);
    for (int i = 0; i < 4; i++) {
        const struct plan_rank *r = &p.stage[i];
        int64_t bucket = 64ll * (1 << 20) / 4 * 12; /* one rank may own a whole bucket of experts */
        if (r->adam > 4 * bucket) fail_msg("%lld bytes of buckets, four are %lld", (long long)r->adam, 4ll * bucket);
        double over = (double)r->spill / (12.0 * (double)r->adam_elems) - 1;
        if (!(over >= 0 && over < 1e-3)) fail_msg("%lld bytes of file for %lld elements", (long long)r->spill,
                                                  (long long)r->adam_elems);
    }
    config_free(&c);
}

/* ---------------------------------------------------------------- what fits -------------------------------------- */

static void what_does_not_fit_says_why_and_what_would(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "train.micro_batch_tokens=16384", "data.max_tokens=8192");
    struct plan p = plan_of(&c, &full, &h200, 32);
    assert_false(p.fits);
    assert_non_null(strstr(p.why, "h200 has 150.1 GB"));
    assert_non_null(strstr(p.instead, "adam.spill_dir=<local disk>"));
    assert_non_null(strstr(p.instead, "train.recompute="));
    bool layer = strstr(p.instead, "train.recompute=layer") != NULL, half = strstr(p.instead, "train.micro_batch_tokens=8192");
    free(c.adam.spill_dir);
    c.adam.spill_dir = strdup("/local");
    c.train.recompute = layer ? RECOMPUTE_LAYER : RECOMPUTE_ATTENTION;
    if (half) c.train.micro_batch_tokens = 8192;
    struct plan again = plan_of(&c, &full, &h200, 32);
    if (!again.fits) fail_msg("\"%s\" does not help: %s", p.instead, again.why);
    config_free(&c);
}

static void a_disk_that_is_too_small_is_named(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "adam.spill_dir=/local", "train.recompute=layer");
    struct plan_machine m = h200;
    m.disk_bytes = 500e9;
    struct plan p = plan_of(&c, &full, &m, 32);
    assert_false(p.fits);
    assert_non_null(strstr(p.why, "674.5 GB of local disk, it has 500.0 GB"));
    assert_non_null(strstr(p.instead, "adam.moments=bf16"));
    config_free(&c);
}

static void an_impossible_mesh_keeps_its_message(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=3");
    struct plan p;
    struct plan_input in;
    plan_input_default(&in, &c, &full, &h200, 6);
    check_fails(plan_compute(&p, &in), ERR_CONFIG, "mesh.tp=3 does not divide num_attention_heads=64");
    c.mesh.tp = 4;
    c.train.objective = OBJECTIVE_RL;
    c.rollout.tp = 5;
    plan_input_default(&in, &c, &full, &h200, 8);
    check_fails(plan_compute(&p, &in), ERR_CONFIG, "the rollout's mesh: mesh.tp=5");
    config_free(&c);
}

/* ---------------------------------------------------------------- operations, bytes, time ------------------------ */

static void a_token_costs_twice_its_active_parameters(void **state)
{
    (void)state;
    struct plan_flops f = plan_flops(&full, 0, 60, true, 1);
    double active = 60 * (double)(attention - 256) + 3 * (double)dense_mlp + 57 * (double)(router + shared + experts / 32) + ends;
    check_equal_f(f.dense + f.experts, 2 * active, 1e-12);
    /* of 4096 tokens one sees 2048.5 keys in the mean, on a sparse layer the nearest and chosen 2048 at most */
    f = plan_flops(&full, 0, 60, false, 4096);
    double sparse = (2048.0 * 2049 / 2 + 2048.0 * 2048) / 4096;
    check_equal_f(f.attention, 4.0 * HD * (3 * 2048.5 + 57 * sparse), 1e-12);
    check_equal_f(f.frozen, 57 * (2.0 * C * 640 + 2 * 512 * 2048.5), 1e-12);
}

static void bytes_of_a_micro_batch_are_those_of_the_calls(void **state)
{
    (void)state;
    struct arch a = small_arch(96, 4);
    struct mesh mesh;
    struct model m;
    double sent[PLAN_NETS] = {0};
    check_ok(mesh_plan(&mesh, (struct mesh_shape){.tp = 2, .pp = 2, .ep = 4, .dp = 2}, &a, 8, 7));
    check_ok(model_create(&m, &a, &mesh, &ops_cpu, NULL, DT_F32, 1 << 16));
    plan_sent_micro(&m, 100, 0, RECOMPUTE_NONE, true, sent); /* the last stage: layers 2 and 3 with experts, and the head */
    double x = 50.0 * 64 * 4, rows = 50.0 * 2 * 3 / 4 * 64 * 4;
    check_equal_f(sent[PLAN_TP], 2 * (4 + 6) * x + x + 100 * 16 + x, 1e-12);
    check_equal_f(sent[PLAN_EP], 2 * (3 * 2 * 4 + 2 * rows + 2 * rows), 1e-12);
    check_equal_f(sent[PLAN_PP], 50.0 * 64 * 4, 1e-12);
    double more[PLAN_NETS] = {0};
    plan_sent_micro(&m, 100, 32, RECOMPUTE_LAYER, true, more);
    check_equal_f(more[PLAN_TP] - sent[PLAN_TP], 2 * 4 * x + x, 1e-12);
    check_equal_f(more[PLAN_EP] - sent[PLAN_EP], 2 * (3 * 2 * 4 + 2 * rows), 1e-12);
    model_destroy(&m);
}

static void an_update_reduces_and_gathers_each_shard_once(void **state)
{
    (void)state;
    struct arch a = small_arch(96, 4);
    struct mesh mesh;
    struct model m;
    double sent[PLAN_NETS] = {0}, elements = 0;
    check_ok(mesh_plan(&mesh, (struct mesh_shape){.tp = 1, .pp = 1, .ep = 1, .dp = 4}, &a, 4, 2));
    check_ok(model_create(&m, &a, &mesh, &ops_cpu, NULL, DT_BF16, 1 << 16));
    plan_sent_update(&m, sent);
    for (int i = 0; i < m.n_buckets; i++) elements += (double)m.buckets[i].n * (m.buckets[i].store == STORE_F32 ? 8 : 6);
    check_equal_f(sent[PLAN_DP], elements * 3 / 4, 1e-3); /* (g - 1) / g of 4 bytes down and 2 or 4 up */
    model_destroy(&m);
}

static void times_add_up_and_follow_the_machine(void **state)
{
    (void)state;
    struct config c;
    check_ok(config_load(&c, "configs/m3_full.yaml", 0, NULL));
    struct plan slow = plan_of(&c, &full, &h200, 32);
    struct plan_machine m = h200;
    double sum = 0;
    for (int i = 0; i < PLAN_PARTS; i++) sum += slow.time[i];
    check_equal_f(slow.step_s, sum, 1e-12);
    check_equal_f(slow.tokens_per_s * slow.step_s, slow.tokens, 1e-9);
    check_equal_f(slow.mfu * slow.step_s * h200.flops * 32, slow.model_flops, 1e-9);
    /* the slowest rank streams its 12 bytes an element both ways at a quarter of the node's disk rates */
    double most = (double)slow.stage[3].adam_elems * 12;
    check_equal_f(slow.time[PLAN_ADAM], most * 4 / h200.disk_read_bytes_s + most * 4 / h200.disk_write_bytes_s, 1e-9);
    m.disk_read_bytes_s *= 2;
    m.disk_write_bytes_s *= 2;
    struct plan fast = plan_of(&c, &full, &m, 32);
    check_equal_f(fast.time[PLAN_ADAM], slow.time[PLAN_ADAM] / 2, 1e-9);
    assert_non_null(strstr(slow.limit, "adam"));
    config_free(&c);
}

static void more_micro_batches_leave_a_smaller_bubble(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "train.micro_batch_tokens=4096", "train.global_batch=8");
    struct plan few = plan_of(&c, &full, &gb300, 32);
    c.train.global_batch = 128;
    struct plan many = plan_of(&c, &full, &gb300, 32);
    assert_int_equal(few.micro_batches, 4);
    assert_int_equal(many.micro_batches, 64);
    if (!(few.bubble > 0.3 && many.bubble < 0.1 && many.tokens_per_s > few.tokens_per_s))
        fail_msg("bubbles %g and %g, %g and %g tokens/s", few.bubble, many.bubble, few.tokens_per_s, many.tokens_per_s);
    config_free(&c);
}

/* ---------------------------------------------------------------- sweep, JSON, machines -------------------------- */

static void a_sweep_ranks_meshes_and_keeps_the_reasons(void **state)
{
    (void)state;
    struct config c;
    struct plan_input in;
    struct plan_sweep s;
    check_ok(config_load(&c, "configs/m3_full.yaml", 0, NULL));
    plan_input_default(&in, &c, &full, &gb300, 96);
    check_ok(plan_sweep_run(&s, &in));
    int fit = 0, refused = 0;
    for (int i = 0; i < s.n; i++) {
        const struct plan_candidate *x = &s.list[i];
        if (i && x->fits && s.list[i - 1].tokens_per_s < x->tokens_per_s) fail_msg("line %d is faster than line %d", i, i - 1);
        if (i && x->fits && !s.list[i - 1].fits) fail_msg("line %d fits, line %d does not", i, i - 1);
        fit += x->fits;
        if (!x->possible) refused += strstr(x->why, x->shape.tp % 3 == 0 ? "num_attention_heads=64" : "=") != NULL;
        if (!x->fits && !*x->why) fail_msg("tp%d pp%d ep%d: no reason", x->shape.tp, x->shape.pp, x->shape.ep);
    }
    if (fit < 1 || refused < 1) fail_msg("%d fit, %d refused with numbers, of %d", fit, refused, s.n);
    plan_sweep_free(&s);
    config_free(&c);
}

/* With a growing batch the streaming of Adam state, which more disks share, weighs less and less. */
static void a_growing_batch_scales_better_than_a_constant_one(void **state)
{
    (void)state;
    struct config c = CONFIG("train.objective=sft", "train.global_batch=32", "train.micro_batch_tokens=4096",
                             "adam.spill_dir=/local", "train.recompute=layer");
    struct plan_input in;
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    plan_input_default(&in, &c, &full, &gb300, 32);
    check_ok(plan_scaling(&in, 128, NULL, f));
    fclose(f);
    int ranks = 0;
    double strong = 0, weak = 0;
    const char *last = strstr(text, "\n   128 ");
    assert_non_null(last);
    int n = sscanf(last, "%d %*s %*f %*f%% %lf%% %*s %*f %*f%% %lf%%", &ranks, &strong, &weak);
    if (n != 3 || !(strong > 50 && strong < 110 && weak > strong)) fail_msg("read %d numbers of:\n%s", n, text);
    config_free(&c);
}

static void json_holds_the_numbers(void **state)
{
    (void)state;
    struct config c = CONFIG("mesh.tp=4", "mesh.pp=4", "mesh.ep=8", "adam.spill_dir=/local", "train.recompute=layer");
    struct plan p = plan_of(&c, &full, &h200, 32);
    struct plan_input in;
    static char text[1 << 16];
    FILE *f = fmemopen(text, sizeof text, "w");
    plan_input_default(&in, &c, &full, &h200, 32);
    check_ok(plan_print_json(&p, &in, f));
    fclose(f);
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!o) fail_msg("not JSON: %.200s", text);
    assert_int_equal(json_integer_value(json_object_get(o, "adam_state_bytes")), 5111405015040);
    json_t *stages = json_object_get(o, "stages");
    assert_int_equal(json_array_size(stages), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(stages, (size_t)i), "weights_bytes")),
                         p.stage[i].weights);
    check_equal_f(json_real_value(json_object_get(o, "step_s")), p.step_s, 1e-9);
    json_decref(o);
    config_free(&c);
}

static void machine_with(const char *name, const char *from, const char *to, enum status want, const char *message)
{
    char path[] = "/tmp/m3_plan_XXXXXX.yaml", text[8192] = "";
    FILE *f = fopen("configs/machines/h200.yaml", "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    char *at = strstr(text, from);
    int fd = mkstemps(path, 5);
    if (!at || fd < 0 || n == 0) fail_msg("%s: cannot make the file", name);
    f = fdopen(fd, "w");
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(f);
    struct plan_machine m;
    enum status s = plan_machine_load(&m, path);
    unlink(path);
    if (s != want || !strstr(status_message(), message))
        fail_msg("%s -> %d \"%s\", expected %d with \"%s\"", name, (int)s, status_message(), (int)want, message);
}

static void broken_machine_files_are_refused(void **state)
{
    (void)state;
    machine_with("unknown key", "gemm_share:", "gem_share:", ERR_CONFIG, "gem_share is no key");
    machine_with("share above 1", "gemm_share: 0.65", "gemm_share: 1.65", ERR_CONFIG, "gemm_share=1.65");
    machine_with("no number", "flops: 989e12", "flops: fast", ERR_CONFIG, "flops: \"fast\" is not a number");
    machine_with("zero rate", "disk_read_bytes_s: 26e9", "disk_read_bytes_s: 0", ERR_CONFIG, "disk_read_bytes_s=0");
    machine_with("missing key", "link_share: 0.75", "", ERR_CONFIG, "link_share is missing");
    machine_with("another device", "device: cuda", "device: abacus", ERR_CONFIG, "\"abacus\" is neither");
    machine_with("a list", "flops: 989e12", "flops: [1, 2]", ERR_CONFIG, "flops");
    machine_with("an empty list", "name: h200", "name: []", ERR_CONFIG, "name");
    struct plan_machine m;
    check_fails(plan_machine_load(&m, "abacus"), ERR_IO, "configs/machines/abacus.yaml");
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(planned_groups_are_those_of_the_definition),
    cmocka_unit_test(the_full_model_has_425_95_billion_trained_parameters),
    cmocka_unit_test(each_rank_holds_the_parameters_of_its_stage_and_shard),
    cmocka_unit_test(every_trained_element_has_one_owner),
    cmocka_unit_test(the_full_run_streams_5_111_terabytes_and_fits_both_machines),
    cmocka_unit_test(the_variant_for_gb300_differs_in_recompute_alone),
    cmocka_unit_test(one_node_runs_four_layers),
    cmocka_unit_test(the_configs_and_the_tests_describe_the_same_full_model),
    cmocka_unit_test(memory_is_what_the_arenas_take),
    cmocka_unit_test(samples_take_what_they_are_planned_to_take),
    cmocka_unit_test(the_reference_is_kept_and_passes_through_layer_by_layer),
    cmocka_unit_test(shards_shrink_as_the_mesh_says),
    cmocka_unit_test(spilled_state_leaves_buckets_in_memory),
    cmocka_unit_test(what_does_not_fit_says_why_and_what_would),
    cmocka_unit_test(a_disk_that_is_too_small_is_named),
    cmocka_unit_test(an_impossible_mesh_keeps_its_message),
    cmocka_unit_test(a_token_costs_twice_its_active_parameters),
    cmocka_unit_test(bytes_of_a_micro_batch_are_those_of_the_calls),
    cmocka_unit_test(an_update_reduces_and_gathers_each_shard_once),
    cmocka_unit_test(times_add_up_and_follow_the_machine),
    cmocka_unit_test(more_micro_batches_leave_a_smaller_bubble),
    cmocka_unit_test(a_sweep_ranks_meshes_and_keeps_the_reasons),
    cmocka_unit_test(a_growing_batch_scales_better_than_a_constant_one),
    cmocka_unit_test(json_holds_the_numbers),
    cmocka_unit_test(broken_machine_files_are_refused),
};

int main(void)
{
    int n = (int)(sizeof cases / sizeof *cases), failed = cmocka_run_group_tests(cases, setup, NULL);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
