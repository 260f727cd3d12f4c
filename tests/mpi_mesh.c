/* One mesh against one rank: mpirun -n N mpi_mesh CHECKPOINT tp pp ep CASE [layers,per,stage]
 *
 * Every rank runs three AdamW steps of the whole model by itself, then the same steps on the mesh, and compares what it
 * holds: loss and global norm of each step, the gradient of every element it owns, the weights after the third step.
 * CASE picks the batch: even, uneven (lengths), idle (a dp rank without a token), single (one micro-batch), one_expert
 * (the router sends every token to the same experts; the others see none).
 *
 * Adam's update of an element whose gradient is rounding noise is the noise's sign: such elements (below NOISE of their
 * parameter's root mean square at some step) are held to the size of their updates instead. */
#include "../src/adam.h"
#include "../src/pipeline.h"
#include "../src/weights.h"
#include "check.h"

#define LR 1e-3
#define NOISE 1e-4
enum { STEPS = 3, MAX_SAMPLES = 16 };

struct run {
    struct mesh mesh;
    struct model m;
    struct pipeline p;
    struct grads g;
    struct adam a;
    double loss[STEPS], norm[STEPS];
    float *grad; /* of the first step, a copy */
    float *tiny; /* smallest |gradient| of any step over the parameter's root mean square */
};

struct loss {
    double sum;
    int64_t targets;
    bool counts;
};

static enum status sft_loss(void *ctx, const struct micro *u, const float *logp, const float *entropy, float *dlogp,
                            float *dentropy, bool *use_entropy)
{
    struct loss *l = ctx;
    (void)entropy, (void)dentropy, (void)use_entropy;
    for (int64_t t = 0; t < u->T; t++)
        if (u->targets[t] >= 0) {
            if (l->counts) l->sum -= logp[t] / (double)l->targets;
            dlogp[t] = -1.0f / (float)l->targets;
        }
    return OK;
}

static int make_samples(const char *which, int vocab, int dp, struct sample *s)
{
    static int32_t ids[MAX_SAMPLES][64];
    static uint8_t mask[MAX_SAMPLES][64];
    int n = strcmp(which, "idle") == 0 ? (dp > 1 ? dp - 1 : 1) : strcmp(which, "single") == 0 ? dp : 2 * dp + 3;
    if (n > MAX_SAMPLES) n = MAX_SAMPLES;
    for (int i = 0; i < n; i++) {
        int len = strcmp(which, "uneven") == 0 ? 3 + (int)(check_hash((uint64_t)i) % 40) : 24 + i % 3;
        for (int t = 0; t < len; t++) {
            ids[i][t] = (int32_t)(check_hash((uint64_t)(i * 1000 + t)) % (uint64_t)vocab);
            mask[i][t] = t > 0 && t % 7 != 3;
        }
        s[i] = (struct sample){.id = i, .n = len, .ids = ids[i], .mask = mask[i]};
    }
    return n;
}

static enum status one_expert(struct model *m)
{
    for (int l = 0; l < m->n_layers; l++)
        if (m->layers[l].moe)
            for (int e = 0; e < m->arch.experts; e++)
                ((float *)m->layers[l].bias.data)[e] = e < m->arch.experts_per_token ? 100.0f : 0.0f;
    return OK;
}

static void note_tiny(struct run *r)
{
    for (int i = 0; i < r->m.n_params; i++) {
        const struct param *p = &r->m.params[i];
        for (int64_t e = 0; p->g_off >= 0 && e < (param_is_experts(p) ? p->count[0] : 1); e++) {
            struct tensor g = param_grad(&r->m, p, e);
            const float *x = g.data;
            double sum = 0;
            int64_t n = tensor_count(g), off = x - (float *)r->m.grad.data;
            for (int64_t k = 0; k < n; k++) sum += (double)x[k] * x[k];
            double rms = sqrt(sum / (double)n);
            for (int64_t k = 0; k < n; k++) r->tiny[off + k] = fminf(r->tiny[off + k], (float)(fabs(x[k]) / (rms + 1e-30)));
        }
    }
}

static enum status steps(struct run *r, const struct release *rel, const struct arch *a, const char *which, int micro)
{
    struct sample samples[MAX_SAMPLES];
    int n = make_samples(which, a->vocab, 2, samples);
    struct batch b = {0};
    TRY(model_create(&r->m, a, &r->mesh, &ops_cpu, NULL, DT_F32, 1 << 14));
    TRY(model_alloc(&r->m));
    TRY(model_alloc_grads(&r->m));
    TRY(weights_load(&r->m, rel));
    if (strcmp(which, "one_expert") == 0) TRY(one_expert(&r->m));
    TRY(grads_create(&r->g, &r->m));
    struct adam_options o = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .moments = DT_F32};
    TRY(adam_create(&r->a, &r->m, &o));
    TRY(batch_pack(&b, samples, n, micro, r->mesh.tp, r->mesh.dp, r->mesh.dp_rank));
    struct pipeline_options po = {.T = batch_max_rows(micro, 64, r->mesh.tp), .S = MAX_SAMPLES, .max_seqlen = 64,
                                  .train = true, .deterministic = true};
    TRY(pipeline_create(&r->p, &r->m, &po));
    for (int s = 0; s < STEPS; s++) {
        struct loss l = {.targets = b.targets, .counts = r->mesh.tp_rank == 0};
        struct objective obj = {sft_loss, &l, 1};
        TRY(grads_begin(&r->g));
        TRY(pipeline_run(&r->p, &b, &obj, &r->g, NULL));
        TRY(grads_finish(&r->g, &r->norm[s]));
        TRY(comm_sum_double(&r->mesh.world, &l.sum, 1));
        r->loss[s] = l.sum;
        if (s == 0) {
            r->grad = malloc((size_t)r->m.grad_elems * sizeof(float));
            memcpy(r->grad, r->m.grad.data, (size_t)r->m.grad_elems * sizeof(float));
            r->tiny = malloc((size_t)r->m.grad_elems * sizeof(float));
            for (int64_t i = 0; i < r->m.grad_elems; i++) r->tiny[i] = INFINITY;
        }
        note_tiny(r);
        TRY(adam_update(&r->a, LR, r->norm[s] > 1 ? 1 / (r->norm[s] + 1e-6) : 1));
    }
    batch_free(&b);
    return OK;
}

static double worst;
static char worst_name[160];
struct pair { const struct run *mesh, *one; };

/* Per parameter: squared difference and squared size of the reference, over this rank's pieces. */
static double (*tally)[2];

static enum status compare_piece(void *ctx, const struct param *p, const int64_t start[3], const int64_t count[3],
                                 int64_t at)
{
    const struct pair *x = ctx;
    const struct param *q = model_find(&x->one->m, p->name);
    double *t = tally[p - x->mesh->m.params];
    const float *mine = x->mesh->grad + at;
    for (int64_t i = 0; i < count[0]; i++)
        for (int64_t j = 0; j < count[1]; j++)
            for (int64_t k = 0; k < count[2]; k++, mine++) {
                int64_t e = start[0] + i, row = start[1] + j, col = start[2] + k;
                int64_t off = param_is_experts(q) ? e * q->outer_stride + row * q->dim[2] + col
                                                  : e * q->dim[1] + row; /* 2-D: dim 0 rows, dim 1 columns */
                float ref = x->one->grad[q->g_off + off];
                t[0] += ((double)*mine - ref) * ((double)*mine - ref);
                t[1] += (double)ref * ref;
            }
    return OK;
}

static void compare_weights(const struct run *mesh, const struct run *one, const struct param *p, double t[2],
                            double *noise)
{
    const struct param *q = model_find(&one->m, p->name);
    bool x = param_is_experts(p);
    for (int64_t e = 0; e < (x ? p->count[0] : 1); e++) {
        struct tensor w = param_weight(&mesh->m, p, e), ref = param_weight(&one->m, q, x ? p->start[0] + e : 0);
        int64_t r0 = x ? p->start[1] : p->start[0], c0 = x ? p->start[2] : p->start[1];
        int64_t cols = w.rank > 1 ? w.dim[1] : 1, ref_cols = ref.rank > 1 ? ref.dim[1] : 1;
        for (int64_t r = 0; r < w.dim[0]; r++)
            for (int64_t c = 0; c < cols; c++) {
                float a = ((float *)w.data)[r * cols + c], b = ((float *)ref.data)[(r0 + r) * ref_cols + c0 + c];
                int64_t at = (r0 + r) * ref_cols + c0 + c;
                if (q->g_off >= 0 && one->tiny[q->g_off + (x ? (p->start[0] + e) * q->outer_stride : 0) + at] < NOISE)
                    *noise = fmax(*noise, fabs((double)a - b));
                else t[0] += ((double)a - b) * ((double)a - b);
                t[1] += (double)b * b;
            }
    }
}

static void note(const char *what, const char *name, double diff, double size, double tol, int *failed)
{
    double rel = size > 0 ? sqrt(diff / size) : sqrt(diff);
    if (rel > worst && tol < 1e-4) worst = rel, snprintf(worst_name, sizeof worst_name, "%s %s", what, name);
    if (rel <= tol) return;
    printf("rank %d: %s of %s differs by %.3g (tolerance %.1g)\n", comm_world_rank(), what, name, rel, tol);
    ++*failed;
}

static enum status compare(const struct run *mesh, const struct run *one, int *failed)
{
    for (int s = 0; s < STEPS; s++) {
        note("loss", "the batch", (mesh->loss[s] - one->loss[s]) * (mesh->loss[s] - one->loss[s]),
             one->loss[s] * one->loss[s], 1e-5, failed);
        note("grad_norm", "the batch", (mesh->norm[s] - one->norm[s]) * (mesh->norm[s] - one->norm[s]),
             one->norm[s] * one->norm[s], 1e-5, failed);
    }
    tally = calloc((size_t)mesh->m.n_params, sizeof *tally);
    for (int b = 0; b < mesh->m.n_buckets; b++) {
        int64_t g_off, w_off, n;
        grads_share(&mesh->m, &mesh->m.buckets[b], &g_off, &w_off, &n);
        struct run shifted = *mesh;
        shifted.grad = mesh->grad + g_off;
        struct pair x = {&shifted, one};
        TRY(model_walk(&mesh->m, g_off, n, compare_piece, &x));
    }
    /* a parameter's pieces lie on several ranks: its error is that of all of them together */
    TRY(comm_sum_double((struct group *)&mesh->mesh.world, &tally[0][0], 2 * mesh->m.n_params));
    for (int i = 0; i < mesh->m.n_params; i++)
        if (mesh->m.params[i].trained)
            note("gradient", mesh->m.params[i].name, tally[i][0], tally[i][1], 1e-5, failed);
    for (int i = 0; i < mesh->m.n_params; i++) {
        double t[2] = {0, 0}, noise = 0;
        if (!mesh->m.params[i].here) continue;
        compare_weights(mesh, one, &mesh->m.params[i], t, &noise);
        note("noisy updates", mesh->m.params[i].name, noise * noise, 1, 2.2 * STEPS * LR, failed);
        note("weights", mesh->m.params[i].name, t[0], t[1], 1e-5, failed);
    }
    return OK;
}

static enum status run(int argc, char **argv, int *failed)
{
    if (argc < 6) return FAIL(ERR_USAGE, "usage: mpi_mesh CHECKPOINT tp pp ep CASE [layers,per,stage]");
    int layers[64], n_layers = 0;
    for (char *t = argc > 6 ? strtok(argv[6], ",") : NULL; t; t = strtok(NULL, ",")) layers[n_layers++] = atoi(t);
    struct mesh_shape shape = {.tp = atoi(argv[2]), .pp = atoi(argv[3]), .ep = atoi(argv[4]),
                               .layers_per_stage = n_layers ? layers : NULL};
    struct arch *a = malloc(sizeof *a);
    static struct run one, mesh;
    struct release *r = NULL;
    TRY(arch_load(a, argv[1]));
    TRY(release_open(&r, argv[1]));
    TRY(mesh_single(&one.mesh, a));
    TRY(mesh_create(&mesh.mesh, shape, a));
    int micro = strcmp(argv[5], "single") == 0 ? 4096 : 64;
    TRY(steps(&one, r, a, argv[5], micro));
    TRY(steps(&mesh, r, a, argv[5], micro));
    TRY(compare(&mesh, &one, failed));
    double total = *failed;
    TRY(comm_sum_double(&mesh.mesh.world, &total, 1));
    *failed = (int)total;
    if (mesh.mesh.world.rank == 0)
        printf("tp %d pp %d ep %d dp %d %s: loss %.6f, worst %.2g (%s)\n%d passed, %d failed\n", mesh.mesh.tp,
               mesh.mesh.pp, mesh.mesh.ep, mesh.mesh.dp, argv[5], mesh.loss[0], worst, worst_name, *failed == 0,
               *failed != 0);
    return OK;
}

int main(int argc, char **argv)
{
    int failed = 0;
    enum status s = comm_open(&argc, &argv);
    ops_cpu_threads(1);
    comm_configure(60, NULL);
    if (!s) s = run(argc, argv, &failed);
    if (s) printf("rank %d: %s (%s)\n", comm_world_rank(), status_message(), status_where());
    comm_close(s != OK, 1);
    return failed != 0;
}
