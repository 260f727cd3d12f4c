#include "mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void mesh_stage(const struct mesh_shape *s, int layers, int stage, int *first, int *count)
{
    if (s->layers_per_stage) {
        *first = 0;
        for (int i = 0; i < stage; i++) *first += s->layers_per_stage[i];
        *count = s->layers_per_stage[stage];
        return;
    }
    int even = layers / s->pp, more = layers % s->pp;
    *count = even + (stage < more);
    *first = stage * even + (stage < more ? stage : more);
}

/* Numbers that divide n, up to n, as text: what would fit. */
static const char *divisors(int n, char *text, size_t size)
{
    size_t at = 0;
    for (int d = 1; d <= n && at + 12 < size; d++)
        if (n % d == 0) at += (size_t)snprintf(text + at, size - at, "%s%d", at ? " " : "", d);
    return text;
}

enum status mesh_check(struct mesh_shape *s, const struct arch *a, int world)
{
    char fit[256];
    if (s->tp < 1 || s->pp < 1 || s->ep < 1 || s->dp < 0)
        return FAIL(ERR_CONFIG, "mesh.tp=%d pp=%d ep=%d dp=%d: sizes start at 1 (dp: 0 is auto)", s->tp, s->pp, s->ep,
                    s->dp);
    if (s->tp > world || s->pp > world || (int64_t)s->tp * s->pp > world || world % (s->tp * s->pp))
        return FAIL(ERR_CONFIG, "mesh.tp=%d x mesh.pp=%d = %lld does not divide the %d ranks of this job (sizes that "
                    "divide it: %s)", s->tp, s->pp, (long long)s->tp * s->pp, world, divisors(world, fit, sizeof fit));
    int dp = world / (s->tp * s->pp);
    if (s->dp && s->dp != dp)
        return FAIL(ERR_CONFIG, "mesh.tp=%d x pp=%d x dp=%d is %lld ranks, the job has %d (dp=%d would fit)", s->tp,
                    s->pp, s->dp, (long long)s->tp * s->pp * s->dp, world, dp);
    s->dp = dp;
    if (a->heads % s->tp)
        return FAIL(ERR_CONFIG, "mesh.tp=%d does not divide num_attention_heads=%d (%s would)", s->tp, a->heads,
                    divisors(a->heads, fit, sizeof fit));
    if (a->kv_heads % s->tp && s->tp % a->kv_heads)
        return FAIL(ERR_CONFIG, "mesh.tp=%d and num_key_value_heads=%d: neither divides the other", s->tp, a->kv_heads);
    bool dense = false, moe = false;
    for (int i = 0; i < a->layers; i++) *(a->moe[i] ? &moe : &dense) = true;
    if (dense && a->dense_ffn % s->tp)
        return FAIL(ERR_CONFIG, "mesh.tp=%d does not divide dense_intermediate_size=%d", s->tp, a->dense_ffn);
    if (moe && a->shared_ffn % s->tp)
        return FAIL(ERR_CONFIG, "mesh.tp=%d does not divide shared_intermediate_size=%d", s->tp, a->shared_ffn);
    if (a->vocab < s->tp) return FAIL(ERR_CONFIG, "mesh.tp=%d is more than vocab_size=%d", s->tp, a->vocab);
    if ((s->tp * dp) % s->ep)
        return FAIL(ERR_CONFIG, "mesh.ep=%d does not divide tp x dp = %d x %d = %d (%s would)", s->ep, s->tp, dp,
                    s->tp * dp, divisors(s->tp * dp, fit, sizeof fit));
    if (moe && a->experts % s->ep)
        return FAIL(ERR_CONFIG, "mesh.ep=%d does not divide num_local_experts=%d (%s would)", s->ep, a->experts,
                    divisors(a->experts, fit, sizeof fit));
    if (s->pp > MESH_MAX_STAGES) return FAIL(ERR_CONFIG, "mesh.pp=%d, at most %d", s->pp, MESH_MAX_STAGES);
    if (s->pp > a->layers)
        return FAIL(ERR_CONFIG, "mesh.pp=%d stages for num_hidden_layers=%d", s->pp, a->layers);
    if (s->layers_per_stage) {
        int sum = 0;
        for (int i = 0; i < s->pp; i++) {
            if (s->layers_per_stage[i] < 1)
                return FAIL(ERR_CONFIG, "mesh.layers_per_stage: stage %d has %d layers", i, s->layers_per_stage[i]);
            sum += s->layers_per_stage[i];
        }
        if (sum != a->layers)
            return FAIL(ERR_CONFIG, "mesh.layers_per_stage adds up to %d, num_hidden_layers is %d", sum, a->layers);
    }
    return OK;
}

static void coordinates(struct mesh *m, const struct arch *a, int rank)
{
    m->tp_rank = rank % m->tp;
    m->dp_rank = rank / m->tp % m->dp;
    m->pp_rank = rank / (m->tp * m->dp);
    m->ep_rank = (m->dp_rank * m->tp + m->tp_rank) % m->ep;
    m->kv_heads = a->kv_heads >= m->tp ? a->kv_heads / m->tp : 1;
    m->kv_first = m->tp_rank * a->kv_heads / m->tp;
    m->first_layer = m->stage_first[m->pp_rank];
    m->layers = m->stage_first[m->pp_rank + 1] - m->first_layer;
}

static void stages(struct mesh *m, const struct mesh_shape *s, int layers)
{
    int count;
    for (int i = 0; i < m->pp; i++) mesh_stage(s, layers, i, &m->stage_first[i], &count);
    m->stage_first[m->pp] = layers;
}

void mesh_at(struct mesh *out, const struct mesh *m, const struct arch *a, int rank)
{
    *out = *m;
    coordinates(out, a, rank);
}

enum status mesh_create(struct mesh *m, struct mesh_shape s, const struct arch *a)
{
    int world = comm_world_size(), rank = comm_world_rank();
    TRY(mesh_check(&s, a, world));
    *m = (struct mesh){.tp = s.tp, .pp = s.pp, .ep = s.ep, .dp = s.dp};
    stages(m, &s, a->layers);
    coordinates(m, a, rank);
    int p = m->dp_rank * m->tp + m->tp_rank, plane = m->tp * m->dp;
    TRY(group_world(&m->world));
    struct group *w = &m->world;
    TRY(group_create(&m->tp_group, w, rank / m->tp, rank, "tp"));
    TRY(group_create(&m->dp_group, w, m->pp_rank * m->tp + m->tp_rank, rank, "dp"));
    TRY(group_create(&m->pp_group, w, p, rank, "pp"));
    TRY(group_create(&m->plane, w, m->pp_rank, rank, "plane"));
    int kv_split = a->kv_heads < m->tp ? a->kv_heads : m->tp;
    TRY(group_create(&m->kv_group, w, m->pp_rank * kv_split + m->tp_rank * kv_split / m->tp, rank, "kv"));
    TRY(group_create(&m->ep_group, w, m->pp_rank * (plane / m->ep) + p / m->ep, rank, "ep"));
    TRY(group_create(&m->edp_group, w, m->pp_rank * m->ep + m->ep_rank, rank, "edp"));
    return OK;
}

enum status mesh_plan(struct mesh *m, struct mesh_shape s, const struct arch *a, int world, int rank)
{
    TRY(mesh_check(&s, a, world));
    if (rank < 0 || rank >= world) return FAIL(ERR_INTERNAL, "rank %d of %d planned ranks", rank, world);
    *m = (struct mesh){.tp = s.tp, .pp = s.pp, .ep = s.ep, .dp = s.dp};
    stages(m, &s, a->layers);
    coordinates(m, a, rank);
    int plane = m->tp * m->dp, p = rank % plane, kv_ranks = m->tp > a->kv_heads ? m->tp / a->kv_heads : 1;
    struct { struct group *g; int rank, size; const char *name; } group[] = {
        {&m->world, rank, world, "world"}, {&m->tp_group, m->tp_rank, m->tp, "tp"},
        {&m->pp_group, m->pp_rank, m->pp, "pp"}, {&m->dp_group, m->dp_rank, m->dp, "dp"}, {&m->plane, p, plane, "plane"},
        {&m->kv_group, m->dp_rank * kv_ranks + m->tp_rank % kv_ranks, m->dp * kv_ranks, "kv"},
        {&m->ep_group, m->ep_rank, m->ep, "ep"}, {&m->edp_group, p / m->ep, plane / m->ep, "edp"}};
    for (size_t i = 0; i < sizeof group / sizeof *group; i++)
        *group[i].g = (struct group){.comm = MPI_COMM_NULL, .watch = MPI_COMM_NULL, .rank = group[i].rank,
                                     .size = group[i].size, .name = group[i].name};
    return OK;
}

enum status mesh_single(struct mesh *m, const struct arch *a)
{
    *m = (struct mesh){.tp = 1, .pp = 1, .ep = 1, .dp = 1};
    stages(m, &(struct mesh_shape){1, 1, 1, 1, NULL}, a->layers);
    coordinates(m, a, 0);
    static int self[1] = {0};
    struct group one = {.comm = MPI_COMM_SELF, .watch = MPI_COMM_SELF, .size = 1, .members = self, .name = "self"};
    m->world = m->tp_group = m->pp_group = m->dp_group = m->plane = m->kv_group = m->ep_group = m->edp_group = one;
    return OK;
}

void mesh_destroy(struct mesh *m)
{
    struct group *g[] = {&m->edp_group, &m->ep_group, &m->kv_group, &m->plane, &m->pp_group, &m->dp_group,
                         &m->tp_group, &m->world};
    for (size_t i = 0; i < sizeof g / sizeof *g; i++)
        if (g[i]->comm != MPI_COMM_SELF) group_destroy(g[i]);
    *m = (struct mesh){0};
}

enum status mesh_print(struct mesh *m, const char *device)
{
    enum { LINE = 128 };
    char mine[LINE] = "", host[64] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(mine, sizeof mine, "%-20.20s %5d  %-8.8s %3d %3d %3d %3d   %d..%d", host, comm_local_rank(), device,
             m->tp_rank, m->pp_rank, m->ep_rank, m->dp_rank, m->first_layer, m->first_layer + m->layers - 1);
    char *all = calloc((size_t)m->world.size, LINE);
    enum status s = all ? OK : FAIL(ERR_MEMORY, "rank table of %d lines", m->world.size);
    TRY(comm_agree(&m->world, s));
    memcpy(all + m->world.rank * LINE, mine, LINE);
    struct tensor out = tensor_view(all, DT_U8, PLACE_HOST, 2, m->world.size, LINE, 1, 1);
    s = comm_all_gather(&m->world, out, tensor_rows(out, m->world.rank, 1), NULL, NULL);
    if (!s && m->world.rank == 0) {
        log_info("mesh: tp %d, pp %d, ep %d, dp %d on %d ranks", m->tp, m->pp, m->ep, m->dp, m->world.size);
        if (m->world.size > 1) log_info("rank host                 local  device    tp  pp  ep  dp   layers");
        for (int i = 0; i < m->world.size && m->world.size > 1; i++) log_info("%4d %s", i, all + i * LINE);
    }
    free(all);
    return s;
}
