/* Where queries stand and keys lie, packed or paged: what the attention and selection kernels share. */
#ifndef KEYS_CUH
#define KEYS_CUH
#include "cuda_util.cuh"

struct key_map {
    const int32_t *start;  /* [S + 1] rows of each sequence: cu_seqlens, or q_start */
    const int32_t *kv_len; /* [S]: paged; NULL: keys are rows start[s] + j */
    const int32_t *table;  /* [S, pages] */
    int S, page, pages;
};

/* A query row: its sequence (S: none), its position there. */
struct query_at {
    int seq, pos;
};
__device__ __forceinline__ struct query_at query_at(const struct key_map &m, int row)
{
    struct query_at q = {sequence_of(m.start, m.S, row), 0};
    if (q.seq < m.S) {
        q.pos = row - m.start[q.seq];
        if (m.kv_len) q.pos += m.kv_len[q.seq] - (m.start[q.seq + 1] - m.start[q.seq]);
    }
    return q;
}

/* The row of key j of a sequence. */
__device__ __forceinline__ int64_t key_row(const struct key_map &m, int seq, int j)
{
    if (!m.kv_len) return (int64_t)m.start[seq] + j;
    return (int64_t)m.table[(int64_t)seq * m.pages + j / m.page] * m.page + j % m.page;
}

static inline struct key_map packed_map(struct tensor cu_seqlens)
{
    struct key_map m = {(const int32_t *)cu_seqlens.data, NULL, NULL, (int)cu_seqlens.dim[0] - 1, 0, 0};
    return m;
}
static inline struct key_map paged_map(const struct paged_args *a)
{
    struct key_map m = {(const int32_t *)a->q_start.data, (const int32_t *)a->kv_len.data,
                        (const int32_t *)a->page_table.data, (int)a->kv_len.dim[0], a->page, (int)a->page_table.dim[1]};
    return m;
}

#endif
