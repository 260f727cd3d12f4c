#include "hash.h"

#include "sampling.h"

#include <stdlib.h>
#include <string.h>

bool param_speaker(const struct model *m, const struct param *p)
{
    if (!p->here) return false;
    const struct mesh *g = m->mesh;
    if (p->split == SPLIT_EXPERT) return g->edp_group.rank == 0;
    if (p->split == SPLIT_NONE) return g->plane.rank == 0;
    if (p->split == SPLIT_KV || p->split == SPLIT_INDEX) {
        int copies = g->tp > m->arch.kv_heads ? g->tp / m->arch.kv_heads : 1;
        return g->dp_rank == 0 && g->tp_rank % copies == 0;
    }
    return g->dp_rank == 0;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Rows [rows, cols] at host memory; `first` is the global index of the first element, `stride` from row to row. */
static uint64_t hash_rows(const void *data, enum dtype have, enum dtype as, int64_t rows, int64_t cols, int64_t first,
                          int64_t stride, uint64_t key)
{
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) if (rows * cols > 65536)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            uint64_t bits;
            if (have == DT_BF16) bits = ((const uint16_t *)data)[r * cols + c];
            else if (as == DT_BF16) bits = bf16_from_float(((const float *)data)[r * cols + c]);
            else bits = ((const uint32_t *)data)[r * cols + c];
            sum += mix(key + (uint64_t)(first + r * stride + c) * 0x9e3779b97f4a7c15u + bits * 0xd1b54a32d192ed03u);
        }
    return sum;
}

static enum status hash_param(const struct model *m, const struct param *p, enum dtype as, uint64_t *sum)
{
    bool x = param_is_experts(p);
    *sum = 0;
    if (p->store == STORE_F32) as = DT_F32;
    if (as == DT_F32 && p->store == STORE_MAIN && m->dtype == DT_BF16)
        return FAIL(ERR_INTERNAL, "%s: bf16 weights cannot be hashed as F32", p->name);
    for (int64_t e = 0; e < (x ? p->count[0] : 1); e++) {
        struct tensor w = param_weight(m, p, e), host = w;
        void *copy = NULL;
        if (w.place == PLACE_DEVICE) {
            copy = malloc(tensor_bytes(w) + 1);
            if (!copy) return FAIL(ERR_MEMORY, "%s: %zu bytes to hash", p->name, tensor_bytes(w));
            host.data = copy;
            host.place = PLACE_HOST;
            enum status s = m->ops->copy(host, w, m->stream);
            if (!s) s = m->ops->wait(m->stream);
            if (s) free(copy);
            TRY(s);
        }
        int rd = x ? 1 : 0;
        int64_t cols = p->rank == 1 ? 1 : p->count[rd + 1], stride = p->rank == 1 ? 1 : p->dim[rd + 1];
        int64_t first = (p->start[rd] + (x ? (p->start[0] + e) * p->dim[1] : 0)) * stride;
        if (p->rank > 1) first += p->start[rd + 1];
        *sum += hash_rows(host.data, w.dtype, as, p->count[rd], cols, first, stride, rng_name(p->name));
        free(copy);
    }
    return OK;
}

enum status model_hash_here(const struct model *m, enum dtype as, uint64_t *hash)
{
    for (int i = 0; i < m->n_params; i++) {
        hash[i] = 0;
        if (m->params[i].here) TRY(hash_param(m, &m->params[i], as, &hash[i]));
    }
    return OK;
}

enum status model_hash(const struct model *m, enum dtype as, uint64_t *hash)
{
    enum status s = model_hash_here(m, as, hash);
    TRY(comm_agree((struct group *)&m->mesh->world, s));
    for (int i = 0; i < m->n_params; i++)
        if (!param_speaker(m, &m->params[i])) hash[i] = 0;
    struct tensor all = tensor_view(hash, DT_I64, PLACE_HOST, 1, m->n_params, 1, 1, 1);
    return comm_all_reduce((struct group *)&m->mesh->world, all, REDUCE_SUM);
}
