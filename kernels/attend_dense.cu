/* o = softmax(scale q k^T) v and its log sum, dense and causal.
 *
 * Bound by the tensor cores, with exp close behind. A block takes 128 queries of one head: two warpgroups of 64 rows, a
 * third one keeps the copy engine 2 tiles of 128 keys ahead. The products of the next tile's scores run while this tile's
 * probabilities meet v, and one warpgroup's exponentials run under the other's products. Keys go down from the diagonal,
 * whose tile is the only masked one. Blocks start with the longest rows, the heads of one KV head beside each other.
 *
 * Measured on an H200, 2026-12-01, useful work, 16384 tokens, D 128: 16/1 heads 1.52 ms, 725 TFLOP/s; 64/4 heads 6.22 ms,
 * 707 (8192^3 matrix product in the same call: 793). Sequences of 256 spend their time on tiles' starts and masks: 143. */
#include "attend_dense.cuh"

enum { KEYS = 128, STAGES = 2, THREADS = 384, CONSUMER_WARPS = 8 };

template <int D> struct forward_shared {
    static constexpr int TILE = DENSE_ROWS * D * 2;
    static constexpr int BYTES = TILE * (1 + 2 * STAGES) + 1024 /* alignment */ + 256 /* barriers */;
};

struct forward_barriers {
    uint64_t q, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

/* Row maximum, probabilities and sums of one tile of scores: s becomes p; `fix` is what older sums are multiplied by. */
__device__ __forceinline__ void softmax_step(float (&s)[64], float (&most)[2], float (&sum)[2], float (&fix)[2], float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float now = most[r];
#pragma unroll
        for (int j = 0; j < 32; j++) now = fmaxf(now, s[4 * (j / 2) + 2 * r + j % 2]);
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
        fix[r] = exp2_fast((most[r] - now) * scale);
        most[r] = now;
        float shift = now * scale, add = 0;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            float &x = s[4 * (j / 2) + 2 * r + j % 2];
            x = exp2_fast(x * scale - shift);
            add += x;
        }
        sum[r] = sum[r] * fix[r] + add;
    }
}

template <int D>
__device__ __forceinline__ void start_scores(float (&s)[64], uint64_t q, uint64_t k)
{
    wgmma_touch(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma<0, 0>(s, dense_channels<DENSE_ROWS>(q, i), dense_channels<KEYS>(k, i), i);
    wgmma_commit();
}

template <int D>
__device__ __forceinline__ void start_values(float (&o)[D / 2], const uint32_t (&p)[KEYS / 16][4], uint64_t v)
{
    wgmma_touch(o);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wgmma<1>(o, p[i], descriptor_add(v, i * STEP_MN_MAJOR), 1);
    wgmma_commit();
}

template <int D>
__device__ __forceinline__ void forward_consume(bf16 *o_out, float *lse, const struct dense_shape &z,
                                                const struct dense_tile &t, int head, char *q_tile, char *k_tiles,
                                                char *v_tiles, struct forward_barriers *bar)
{
    constexpr int TILE = forward_shared<D>::TILE;
    int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int row0 = 64 * group + 16 * warp + lane / 4; /* inside the tile; and row0 + 8 */
    float s[64], o[D / 2], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, fix[2];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    uint64_t q = tile_descriptor(q_tile + group * 64 * 128, 0);
    barrier_wait(&bar->q, 0);
    barrier_wait(&bar->k_full[0], 0);
    start_scores<D>(s, q, tile_descriptor(k_tiles, 0));
    wgmma_wait<0>();
    wgmma_touch(s);
    if (lane == 0) barrier_arrive(&bar->k_empty[0]);
#pragma unroll
    for (int j = 0; j < 64; j++) { /* the diagonal */
        int column = 8 * (j / 4) + 2 * (lane % 4) + j % 2;
        if (column > row0 + 8 * (j / 2 % 2)) s[j] = -INFINITY;
    }
    softmax_step(s, most, sum, fix, z.scale_log2);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) dense_operand(p[i], s, i);
    for (int n = 1; n <= t.index; n++) {
        int stage = n % STAGES, before = (n - 1) % STAGES;
        barrier_wait(&bar->k_full[stage], n / STAGES & 1);
        start_scores<D>(s, q, tile_descriptor(k_tiles + stage * TILE, 0));
        barrier_wait(&bar->v_full[before], (n - 1) / STAGES & 1);
        start_values<D>(o, p, tile_descriptor(v_tiles + before * TILE, KEYS * 128));
        wgmma_wait<1>();
        wgmma_touch(s);
        if (lane == 0) barrier_arrive(&bar->k_empty[stage]);
        softmax_step(s, most, sum, fix, z.scale_log2);
        wgmma_wait<0>();
        wgmma_touch(o);
        if (lane == 0) barrier_arrive(&bar->v_empty[before]);
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= fix[i / 2 % 2];
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) dense_operand(p[i], s, i);
    }
    int stage = t.index % STAGES;
    barrier_wait(&bar->v_full[stage], t.index / STAGES & 1);
    start_values<D>(o, p, tile_descriptor(v_tiles + stage * TILE, KEYS * 128));
    wgmma_wait<0>();
    wgmma_touch(o);
    bf16 *row[2];
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        by[r] = 1.0f / sum[r];
        int pos = t.index * DENSE_ROWS + row0 + 8 * r;
        int64_t token = (int64_t)t.start + pos;
        row[r] = pos < t.len ? o_out + (token * z.H + head) * D : NULL;
        if (pos < t.len && lane % 4 == 0) lse[(int64_t)head * z.T + token] = most[r] * z.scale + logf(sum[r]);
    }
    dense_store(row, o, by);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
attend_dense_forward_kernel(bf16 *o, float *lse, const __grid_constant__ CUtensorMap map_q,
                            const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
                            const __grid_constant__ struct dense_shape z)
{
    constexpr int TILE = forward_shared<D>::TILE;
    extern __shared__ char raw[];
    char *q = (char *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023), *k = q + TILE, *v = k + STAGES * TILE;
    struct forward_barriers *bar = (struct forward_barriers *)(v + STAGES * TILE);
    struct dense_tile t;
    if (!dense_find(&t, z, (int)(blockIdx.x / z.H))) return;
    t.index = t.last - t.index; /* the longest first */
    int head = (int)(blockIdx.x % z.H), first = t.start + t.index * DENSE_ROWS;
    if (threadIdx.x == 0) {
        barrier_init(&bar->q, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&bar->k_full[i], 1), barrier_init(&bar->v_full[i], 1);
            barrier_init(&bar->k_empty[i], CONSUMER_WARPS), barrier_init(&bar->v_empty[i], CONSUMER_WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            barrier_expect(&bar->q, TILE);
            dense_copy<DENSE_ROWS, D>(q, &map_q, &bar->q, head, first);
            for (int n = 0; n <= t.index; n++) {
                int stage = n % STAGES, parity = (n / STAGES & 1) ^ 1, row = t.start + (t.index - n) * KEYS;
                barrier_wait(&bar->k_empty[stage], parity);
                barrier_expect(&bar->k_full[stage], TILE);
                dense_copy<KEYS, D>(k + stage * TILE, &map_k, &bar->k_full[stage], head / z.G, row);
                barrier_wait(&bar->v_empty[stage], parity);
                barrier_expect(&bar->v_full[stage], TILE);
                dense_copy<KEYS, D>(v + stage * TILE, &map_v, &bar->v_full[stage], head / z.G, row);
            }
        }
    } else {
        registers_take<240>();
        forward_consume<D>(o, lse, z, t, head, q, k, v, bar);
    }
}

__global__ void attend_clear_rest_kernel(uint16_t *t, int64_t ld, int row, float *lse, int heads, int T, const int32_t *cu,
                                         int S)
{
    int64_t first = cu[S], rows = T - first;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * row; i += (int64_t)gridDim.x * blockDim.x)
        t[(first + i / row) * ld + i % row] = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; lse && i < rows * heads; i += (int64_t)gridDim.x * blockDim.x)
        lse[i % heads * T + first + i / heads] = 0;
}

enum status dense_clear_rest(struct tensor t, float *lse, const int32_t *cu, int S, struct stream *s)
{
    attend_clear_rest_kernel<<<32, 256, 0, s->cuda>>>((uint16_t *)t.data, t.ld, (int)(t.dim[1] * t.dim[2]), lse,
                                                      (int)t.dim[1], (int)t.dim[0], cu, S);
    TRY_LAUNCH("attend: rows of no sequence");
    return OK;
}

enum status dense_map(CUtensorMap *map, struct tensor t, int rows)
{
    int64_t dim[3] = {t.dim[2], t.dim[1], t.dim[0]}, stride[2] = {t.dim[2] * 2, t.ld * 2};
    int box[3] = {64, 1, rows};
    return tensor_map(map, t.data, 3, dim, stride, box);
}

bool attend_dense_fits(const struct attend_args *a)
{
    int64_t D = a->q.dim[2];
    if (a->sel.data || a->q.dtype != DT_BF16 || (D != 64 && D != 128)) return false;
    struct tensor t[] = {a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv};
    for (struct tensor x : t)
        if ((uintptr_t)x.data % 16 || x.ld % 8) return false;
    return true;
}

template <int D> static enum status launch(const struct attend_args *a, struct stream *s)
{
    CUtensorMap q, k, v;
    TRY(dense_map(&q, a->q, DENSE_ROWS));
    TRY(dense_map(&k, a->k, KEYS));
    TRY(dense_map(&v, a->v, KEYS));
    struct dense_shape z = dense_shape(a);
    auto kernel = attend_dense_forward_kernel<D>;
    constexpr int bytes = forward_shared<D>::BYTES;
    TRY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<(unsigned)(dense_tiles(&z) * z.H), THREADS, bytes, s->cuda>>>((bf16 *)a->o.data, (float *)a->lse.data, q, k, v, z);
    TRY_LAUNCH("attend_forward");
    return dense_clear_rest(a->o, (float *)a->lse.data, z.cu, z.S, s);
}

enum status attend_dense_forward(const struct attend_args *a, struct stream *s)
{
    return a->q.dim[2] == 64 ? launch<64>(a, s) : launch<128>(a, s);
}
