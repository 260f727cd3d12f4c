/* delta = rowsum(d_o * o); p = exp(scale q k^T - lse); ds = p (d_o v^T - delta); dv = p^T d_o, dk = scale ds^T q,
 * dq = scale ds k: dense and causal.
 *
 * Two kernels, each with one writer an output and sums in a fixed order (7 products where a shared one with atomic sums of
 * dq would need 5): bitwise repeatable always. Both bound by the tensor cores; two warpgroups work on 64 rows each, a
 * third one feeds them, and one's exponentials run under the other's products. p and ds stay in registers.
 *
 * dq: a block takes 128 queries of one head and walks over tiles of 128 keys, down from the diagonal.
 * dk, dv: a block takes 128 keys of one KV head, keeps k and v in shared memory, and walks over the heads of its part of
 * the group and their tiles of 64 queries; scores are computed transposed, so that p^T and ds^T are left operands. Short
 * batches have too few blocks for the chip: the group is then cut into parts, whose float32 sums are added after.
 *
 * Measured on an H200, 2026-12-01, useful work (5 products), 16384 tokens, D 128: 16/1 heads 5.92 ms, 465 TFLOP/s; 64/4 heads
 * 24.2 ms, 455. The 7 products done are 650: a shared kernel with atomic sums could not be bitwise repeatable. */
#include "attend_dense.cuh"

enum { KEYS = 128, QUERIES = 64, THREADS = 384, CONSUMER_WARPS = 8, DQ_STAGES = 2, DKV_STAGES = 3 };
enum { BLOCKS_WANTED = 528 /* 4 a multiprocessor: the longest come first, the short ones fill the gaps */ };

/* ---- delta ---- */
template <int D>
__global__ void attend_dense_delta_kernel(float *delta, const bf16 *o, const bf16 *d_o, int64_t units, int H, int T)
{
    constexpr int LANES = D / 8;
    int64_t unit = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    int lane = threadIdx.x % LANES;
    float x[8] = {}, y[8] = {}, sum = 0;
    if (unit < units) {
        load<8>(x, o + unit * D + lane * 8);
        load<8>(y, d_o + unit * D + lane * 8);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum += x[i] * y[i];
#pragma unroll
    for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (lane == 0 && unit < units) delta[unit % H * T + unit / H] = sum;
}

/* ---- dq ---- */
template <int D> struct dq_shared {
    static constexpr int TILE = DENSE_ROWS * D * 2;
    static constexpr int BYTES = TILE * (2 + 2 * DQ_STAGES) + 1024 + 256;
};
struct dq_barriers {
    uint64_t q, full[DQ_STAGES], empty[DQ_STAGES];
};

template <int D>
__device__ __forceinline__ void dq_consume(bf16 *dq_out, const float *lse, const float *delta, const struct dense_shape &z,
                                           const struct dense_tile &t, int head, char *q_tile, char *stages,
                                           struct dq_barriers *bar)
{
    constexpr int TILE = dq_shared<D>::TILE;
    int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int row0 = 64 * group + 16 * warp + lane / 4;
    float s[64], dp[64], dq[D / 2], total[2], del[2];
#pragma unroll
    for (int i = 0; i < D / 2; i++) dq[i] = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int pos = t.index * DENSE_ROWS + row0 + 8 * r;
        int64_t at = (int64_t)head * z.T + t.start + pos;
        total[r] = pos < t.len ? lse[at] * 1.44269504088896f : INFINITY; /* p = 0 */
        del[r] = pos < t.len ? delta[at] : 0;
    }
    uint64_t q = tile_descriptor(q_tile + group * 64 * 128, 0), d_o = descriptor_add(q, TILE);
    barrier_wait(&bar->q, 0);
    for (int n = 0; n <= t.index; n++) {
        int stage = n % DQ_STAGES;
        char *k_tile = stages + stage * 2 * TILE;
        uint64_t k = tile_descriptor(k_tile, KEYS * 128), v = descriptor_add(k, TILE);
        barrier_wait(&bar->full[stage], n / DQ_STAGES & 1);
        wgmma_touch(s);
        wgmma_touch(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma<0, 0>(s, dense_channels<DENSE_ROWS>(q, i), dense_channels<KEYS>(k, i), i);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma<0, 0>(dp, dense_channels<DENSE_ROWS>(d_o, i), dense_channels<KEYS>(v, i), i);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_touch(s);
#pragma unroll
        for (int j = 0; j < 64; j++) s[j] = exp2_fast(s[j] * z.scale_log2 - total[j / 2 % 2]);
        if (n == 0) {
#pragma unroll
            for (int j = 0; j < 64; j++) { /* the diagonal */
                int column = 8 * (j / 4) + 2 * (lane % 4) + j % 2;
                if (column > row0 + 8 * (j / 2 % 2)) s[j] = 0;
            }
        }
        wgmma_wait<0>();
        wgmma_touch(dp);
        uint32_t ds[KEYS / 16][4];
#pragma unroll
        for (int j = 0; j < 64; j++) s[j] *= dp[j] - del[j / 2 % 2];
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) dense_operand(ds[i], s, i);
        wgmma_touch(dq);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) wgmma<1>(dq, ds[i], descriptor_add(k, i * STEP_MN_MAJOR), 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_touch(dq);
        if (lane == 0) barrier_arrive(&bar->empty[stage]);
    }
    bf16 *row[2];
    float by[2] = {z.scale, z.scale};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int pos = t.index * DENSE_ROWS + row0 + 8 * r;
        row[r] = pos < t.len ? dq_out + (((int64_t)t.start + pos) * z.H + head) * D : NULL;
    }
    dense_store(row, dq, by);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
attend_dense_dq_kernel(bf16 *dq, const float *lse, const float *delta, const __grid_constant__ CUtensorMap map_q,
                       const __grid_constant__ CUtensorMap map_do, const __grid_constant__ CUtensorMap map_k,
                       const __grid_constant__ CUtensorMap map_v, const __grid_constant__ struct dense_shape z)
{
    constexpr int TILE = dq_shared<D>::TILE;
    extern __shared__ char raw[];
    char *q = (char *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023), *stages = q + 2 * TILE; /* q d_o | k v | k v */
    struct dq_barriers *bar = (struct dq_barriers *)(stages + 2 * DQ_STAGES * TILE);
    struct dense_tile t;
    if (!dense_find(&t, z, (int)(blockIdx.x / z.H))) return;
    t.index = t.last - t.index; /* the longest first */
    int head = (int)(blockIdx.x % z.H), first = t.start + t.index * DENSE_ROWS;
    if (threadIdx.x == 0) {
        barrier_init(&bar->q, 1);
        for (int i = 0; i < DQ_STAGES; i++) barrier_init(&bar->full[i], 1), barrier_init(&bar->empty[i], CONSUMER_WARPS);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            barrier_expect(&bar->q, 2 * TILE);
            dense_copy<DENSE_ROWS, D>(q, &map_q, &bar->q, head, first);
            dense_copy<DENSE_ROWS, D>(q + TILE, &map_do, &bar->q, head, first);
            for (int n = 0; n <= t.index; n++) {
                int stage = n % DQ_STAGES, row = t.start + (t.index - n) * KEYS;
                char *k = stages + stage * 2 * TILE;
                barrier_wait(&bar->empty[stage], (n / DQ_STAGES & 1) ^ 1);
                barrier_expect(&bar->full[stage], 2 * TILE);
                dense_copy<KEYS, D>(k, &map_k, &bar->full[stage], head / z.G, row);
                dense_copy<KEYS, D>(k + TILE, &map_v, &bar->full[stage], head / z.G, row);
            }
        }
    } else {
        registers_take<240>();
        dq_consume<D>(dq, lse, delta, z, t, head, q, stages, bar);
    }
}

/* ---- dk, dv ---- */
template <int D> struct dkv_shared {
    static constexpr int KEY_TILE = DENSE_ROWS * D * 2, QUERY_TILE = QUERIES * D * 2;
    static constexpr int BYTES = 2 * KEY_TILE + DKV_STAGES * 2 * (QUERY_TILE + QUERIES * 4) + 1024 + 256;
};
struct dkv_barriers {
    uint64_t k, full[DKV_STAGES], empty[DKV_STAGES];
};
struct dkv_out {
    bf16 *dk, *dv; /* or, with parts, the float32 sums [parts, 2, T, K, D] */
    float *sums;
    int64_t dk_ld, dv_ld;
    int parts;
};
/* The queries that a block of keys meets: `heads` heads of `tiles` tiles. */
struct dkv_walk {
    int head, heads, tile, tiles; /* first of each, and how many */
};
__device__ __forceinline__ struct dkv_walk dkv_walk(const struct dense_shape &z, const struct dense_tile &t, int kv, int part,
                                                    int parts)
{
    int heads = z.G / parts, first = t.index * (KEYS / QUERIES);
    struct dkv_walk w = {kv * z.G + part * heads, heads, first, (t.len + QUERIES - 1) / QUERIES - first};
    return w;
}

/* Warp 0 brings q and d_o, and the rows' lse (in powers of 2; infinite where there is no query: p = 0) and delta. */
template <int D>
__device__ __forceinline__ void dkv_produce(const float *lse, const float *delta, const struct dense_shape &z,
                                            const struct dense_tile &t, const struct dkv_walk &w, char *stages, float *rows,
                                            struct dkv_barriers *bar, const CUtensorMap *map_q, const CUtensorMap *map_do)
{
    constexpr int TILE = dkv_shared<D>::QUERY_TILE;
    int lane = threadIdx.x, n = 0;
    for (int h = w.head; h < w.head + w.heads; h++)
        for (int i = 0; i < w.tiles; i++, n++) {
            int stage = n % DKV_STAGES, pos = (w.tile + i) * QUERIES;
            char *q = stages + stage * 2 * TILE;
            float *mine = rows + stage * 2 * QUERIES;
            barrier_wait(&bar->empty[stage], (n / DKV_STAGES & 1) ^ 1);
#pragma unroll
            for (int r = lane; r < QUERIES; r += 32) {
                int64_t at = (int64_t)h * z.T + t.start + pos + r;
                mine[r] = pos + r < t.len ? lse[at] * 1.44269504088896f : INFINITY;
                mine[QUERIES + r] = pos + r < t.len ? delta[at] : 0;
            }
            if (lane == 0) {
                barrier_expect(&bar->full[stage], 2 * TILE);
                dense_copy<QUERIES, D>(q, map_q, &bar->full[stage], h, t.start + pos);
                dense_copy<QUERIES, D>(q + TILE, map_do, &bar->full[stage], h, t.start + pos);
            } else barrier_arrive(&bar->full[stage]);
        }
}

template <int D>
__device__ __forceinline__ void dkv_store(const struct dkv_out &out, const float (&dk)[D / 2], const float (&dv)[D / 2],
                                          const struct dense_shape &z, const struct dense_tile &t, int kv, int part)
{
    int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, K = z.H / z.G;
    bf16 *row_k[2], *row_v[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int pos = t.index * KEYS + 64 * group + 16 * warp + lane / 4 + 8 * r;
        bool live = pos < t.len;
        int64_t token = (int64_t)t.start + pos;
        row_k[r] = live ? out.dk + token * out.dk_ld + kv * D : NULL;
        row_v[r] = live ? out.dv + token * out.dv_ld + kv * D : NULL;
        if (out.parts == 1 || !live) continue;
        float *sum_k = out.sums + (((int64_t)2 * part * z.T + token) * K + kv) * D, *sum_v = sum_k + (int64_t)z.T * K * D;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            int c = 8 * j + 2 * (lane % 4);
            *reinterpret_cast<float2 *>(sum_k + c) = float2{dk[4 * j + 2 * r] * z.scale, dk[4 * j + 2 * r + 1] * z.scale};
            *reinterpret_cast<float2 *>(sum_v + c) = float2{dv[4 * j + 2 * r], dv[4 * j + 2 * r + 1]};
        }
    }
    if (out.parts > 1) return;
    float by_k[2] = {z.scale, z.scale}, by_v[2] = {1, 1};
    dense_store(row_k, dk, by_k);
    dense_store(row_v, dv, by_v);
}

template <int D>
__device__ __forceinline__ void dkv_consume(const struct dkv_out &out, const struct dense_shape &z,
                                            const struct dense_tile &t, const struct dkv_walk &w, int kv, int part,
                                            char *k_tile, char *stages, const float *rows, struct dkv_barriers *bar)
{
    constexpr int TILE = dkv_shared<D>::QUERY_TILE, KEY_TILE = dkv_shared<D>::KEY_TILE;
    int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int key0 = 64 * group + 16 * warp + lane / 4; /* inside the tile of keys; and key0 + 8 */
    float dk[D / 2], dv[D / 2], s[32], dp[32];
#pragma unroll
    for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
    uint64_t k = tile_descriptor(k_tile + group * 64 * 128, 0), v = descriptor_add(k, KEY_TILE);
    barrier_wait(&bar->k, 0);
    int steps = w.heads * w.tiles, tile = 0;
    for (int n = 0; n < steps; n++) {
        int stage = n % DKV_STAGES;
        uint64_t q = tile_descriptor(stages + stage * 2 * TILE, QUERIES * 128), d_o = descriptor_add(q, TILE);
        const float *total = rows + stage * 2 * QUERIES + 2 * (lane % 4), *del = total + QUERIES;
        barrier_wait(&bar->full[stage], n / DKV_STAGES & 1);
        wgmma_touch(s);
        wgmma_touch(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma<0, 0>(s, dense_channels<KEYS>(k, i), dense_channels<QUERIES>(q, i), i);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma<0, 0>(dp, dense_channels<KEYS>(v, i), dense_channels<QUERIES>(d_o, i), i);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_touch(s);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 l = *reinterpret_cast<const float2 *>(total + 8 * j);
#pragma unroll
            for (int i = 0; i < 4; i++) s[4 * j + i] = exp2_fast(s[4 * j + i] * z.scale_log2 - (i % 2 ? l.y : l.x));
        }
        if (tile < KEYS / QUERIES) { /* the diagonal: a query sees the keys up to itself */
#pragma unroll
            for (int j = 0; j < 32; j++) {
                int column = tile * QUERIES + 8 * (j / 4) + 2 * (lane % 4) + j % 2;
                if (key0 + 8 * (j / 2 % 2) > column) s[j] = 0;
            }
        }
        if (++tile == w.tiles) tile = 0;
        uint32_t p[QUERIES / 16][4], ds[QUERIES / 16][4];
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) dense_operand(p[i], s, i);
        wgmma_wait<0>();
        wgmma_touch(dp);
        wgmma_touch(dv);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) wgmma<1>(dv, p[i], descriptor_add(d_o, i * STEP_MN_MAJOR), 1);
        wgmma_commit();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 d = *reinterpret_cast<const float2 *>(del + 8 * j);
#pragma unroll
            for (int i = 0; i < 4; i++) s[4 * j + i] *= dp[4 * j + i] - (i % 2 ? d.y : d.x);
        }
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) dense_operand(ds[i], s, i);
        wgmma_touch(dk);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) wgmma<1>(dk, ds[i], descriptor_add(q, i * STEP_MN_MAJOR), 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_touch(dk);
        wgmma_touch(dv);
        if (lane == 0) barrier_arrive(&bar->empty[stage]);
    }
    dkv_store<D>(out, dk, dv, z, t, kv, part);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
attend_dense_dkv_kernel(const __grid_constant__ struct dkv_out out, const float *lse, const float *delta,
                        const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_do,
                        const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
                        const __grid_constant__ struct dense_shape z)
{
    constexpr int KEY_TILE = dkv_shared<D>::KEY_TILE, TILE = dkv_shared<D>::QUERY_TILE;
    extern __shared__ char raw[];
    char *k = (char *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023), *stages = k + 2 * KEY_TILE; /* k v | q d_o | ... */
    float *rows = (float *)(stages + DKV_STAGES * 2 * TILE);
    struct dkv_barriers *bar = (struct dkv_barriers *)(rows + DKV_STAGES * 2 * QUERIES);
    struct dense_tile t;
    int across = z.H / z.G * out.parts, unit = (int)(blockIdx.x % across), kv = unit / out.parts, part = unit % out.parts;
    if (!dense_find(&t, z, (int)(blockIdx.x / across))) return;
    struct dkv_walk w = dkv_walk(z, t, kv, part, out.parts);
    if (threadIdx.x == 0) {
        barrier_init(&bar->k, 1);
        for (int i = 0; i < DKV_STAGES; i++) barrier_init(&bar->full[i], 32), barrier_init(&bar->empty[i], CONSUMER_WARPS);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            int first = t.start + t.index * KEYS;
            barrier_expect(&bar->k, 2 * KEY_TILE);
            dense_copy<KEYS, D>(k, &map_k, &bar->k, kv, first);
            dense_copy<KEYS, D>(k + KEY_TILE, &map_v, &bar->k, kv, first);
        }
        if (threadIdx.x < 32) dkv_produce<D>(lse, delta, z, t, w, stages, rows, bar, &map_q, &map_do);
    } else {
        registers_take<240>();
        dkv_consume<D>(out, z, t, w, kv, part, k, stages, rows, bar);
    }
}

/* dk and dv from the parts' sums, in order. */
__global__ void attend_dense_join_kernel(const __grid_constant__ struct dkv_out out, int64_t rows, int row, const int32_t *cu,
                                         int S)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8, n = rows * row, live = (int64_t)cu[S] * row;
    if (i >= live) return;
#pragma unroll
    for (int which = 0; which < 2; which++) {
        float sum[8] = {};
        for (int p = 0; p < out.parts; p++) {
            float x[8];
            load<8>(x, out.sums + (2 * p + which) * n + i);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += x[j];
        }
        bf16 *to = which ? out.dv + i / row * out.dv_ld : out.dk + i / row * out.dk_ld;
        store<8>(to + i % row, sum);
    }
}

/* ---- the call ---- */
static int dkv_parts(const struct dense_shape *z)
{
    int64_t blocks = dense_tiles(z) * (z->H / z->G);
    int parts = 1;
    while (blocks * parts < BLOCKS_WANTED && z->G % (2 * parts) == 0) parts *= 2;
    return parts;
}
static size_t delta_bytes(const struct attend_args *a)
{
    return ((size_t)(a->q.dim[0] * a->q.dim[1]) * sizeof(float) + 255) & ~(size_t)255;
}

/* Enough for any packing of at most as many rows: parts of all rows together never exceed 2 x BLOCKS_WANTED tiles. */
size_t attend_dense_bytes(const struct attend_args *a, bool backward)
{
    if (!backward) return 0;
    size_t row = (size_t)a->q.dim[2] * 2 * sizeof(float), all = (size_t)(a->q.dim[0] * a->q.dim[1]) * row;
    size_t most = 2 * BLOCKS_WANTED * (size_t)KEYS * row;
    return delta_bytes(a) + (all < most ? all : most);
}

template <int D> static enum status launch(const struct attend_args *a, struct stream *s)
{
    struct dense_shape z = dense_shape(a);
    int64_t units = (int64_t)z.T * z.H;
    float *delta = (float *)a->work.data;
    const float *lse = (const float *)a->lse.data;
    CUtensorMap q, d_o, k, v, q_short, do_short;
    TRY(dense_map(&q, a->q, DENSE_ROWS));
    TRY(dense_map(&d_o, a->d_o, DENSE_ROWS));
    TRY(dense_map(&q_short, a->q, QUERIES));
    TRY(dense_map(&do_short, a->d_o, QUERIES));
    TRY(dense_map(&k, a->k, KEYS));
    TRY(dense_map(&v, a->v, KEYS));

    attend_dense_delta_kernel<D><<<(unsigned)ceil_div(units * (D / 8), 256), 256, 0, s->cuda>>>(
        delta, (const bf16 *)a->o.data, (const bf16 *)a->d_o.data, units, z.H, z.T);
    TRY_LAUNCH("attend_delta");

    auto dq = attend_dense_dq_kernel<D>;
    constexpr int dq_bytes = dq_shared<D>::BYTES, dkv_bytes = dkv_shared<D>::BYTES;
    TRY_CUDA(cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, dq_bytes));
    dq<<<(unsigned)(dense_tiles(&z) * z.H), THREADS, dq_bytes, s->cuda>>>((bf16 *)a->dq.data, lse, delta, q, d_o, k, v, z);
    TRY_LAUNCH("attend_dq");

    struct dkv_out out = {(bf16 *)a->dk.data, (bf16 *)a->dv.data, (float *)((char *)a->work.data + delta_bytes(a)), a->dk.ld,
                          a->dv.ld, dkv_parts(&z)};
    auto dkv = attend_dense_dkv_kernel<D>;
    TRY_CUDA(cudaFuncSetAttribute(dkv, cudaFuncAttributeMaxDynamicSharedMemorySize, dkv_bytes));
    dkv<<<(unsigned)(dense_tiles(&z) * (z.H / z.G) * out.parts), THREADS, dkv_bytes, s->cuda>>>(out, lse, delta, q_short,
                                                                                               do_short, k, v, z);
    TRY_LAUNCH("attend_dkv");
    if (out.parts > 1) {
        attend_dense_join_kernel<<<(unsigned)ceil_div(tensor_count(a->k), 8 * 256), 256, 0, s->cuda>>>(
            out, z.T, z.H / z.G * D, z.cu, z.S);
        TRY_LAUNCH("attend_join");
    }
    TRY(dense_clear_rest(a->dq, NULL, z.cu, z.S, s));
    TRY(dense_clear_rest(a->dk, NULL, z.cu, z.S, s));
    return dense_clear_rest(a->dv, NULL, z.cu, z.S, s);
}

enum status attend_dense_backward(const struct attend_args *a, struct stream *s)
{
    return a->q.dim[2] == 64 ? launch<64>(a, s) : launch<128>(a, s);
}
