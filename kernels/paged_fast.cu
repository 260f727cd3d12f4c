/* o = softmax(scale q k^T) v for few queries a sequence: decoding, and prompts in pieces.
 *
 * Bound by reading the keys and values once. The up to 16 query heads of a KV head are the 16 rows of m16n8k16 products. A
 * warp takes 16 keys at a time straight from memory into registers: sums over channels may take the channels in any order,
 * and so may the columns of v, so each lane reads 16 neighbouring bytes of k, and 2 D / 8 of v, and no exchange is needed.
 * The four warps of a block take every fourth tile; where rows are few, blocks share a row's tiles (`splits`), and a second
 * kernel joins them.
 *
 * Measured on an H200, 2026-12-01, 64/4 heads of 128, keys and values once: batch 64, 576 keys 0.054 ms, 1385 GB/s; 16 blocks
 * of 8192 keys 0.104 ms, 2570 GB/s; batch 1, 576 keys 0.017 ms. */
#include "paged_fast.cuh"

#include "hopper.cuh"

enum { KEYS = 16, ROWS = 16, WARPS = 4, THREADS = WARPS * 32, SPLITS_MAX = 64, BLOCKS_WANTED = 1056 };

struct paged_shape {
    struct key_map map;
    const int32_t *sel; /* [K, rows, slots] or NULL */
    float *parts;       /* [rows, H, splits, D + 2]: sums, maximum, sum of p; or NULL: one split */
    int rows, H, K, G, chunks, slots, block, splits;
    float scale_log2;
};

__device__ __forceinline__ void mma_16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The first key of a tile of a row's keys, or -1: nothing there. Tiles count over the selected blocks in their order. */
__device__ __forceinline__ int tile_key(const struct paged_shape &z, const int32_t *sel, int tile)
{
    if (!sel) return tile * KEYS;
    int per = z.block / KEYS, b = sel[tile / per];
    return b < 0 ? -1 : b * z.block + tile % per * KEYS;
}

template <int D> struct warp_sums {
    float o[D / 8][4], most[2], sum[2]; /* rows lane / 4 and + 8; o[j]: channels (2q) D/8 + j and (2q + 1) D/8 + j */
};

/* One tile of 16 keys, `left` of them real. */
template <int D>
__device__ __forceinline__ void take_tile(struct warp_sums<D> &w, const uint4 (&q)[2][D / 32], const bf16 *k, const bf16 *v,
                                          int64_t ld, int left, float scale)
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint4 kk[2][D / 32], vv[4][D / 64];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int key = min(8 * n + g, left - 1);
#pragma unroll
        for (int c = 0; c < D / 32; c++) kk[n][c] = *reinterpret_cast<const uint4 *>(k + key * ld + 32 * c + 8 * t);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int key = min(2 * t + i % 2 + 8 * (i / 2), left - 1);
#pragma unroll
        for (int c = 0; c < D / 64; c++) vv[i][c] = *reinterpret_cast<const uint4 *>(v + key * ld + g * (D / 8) + 8 * c);
    }
    float s[2][4] = {};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            mma_16816(s[n], q[0][c].x, q[1][c].x, q[0][c].y, q[1][c].y, kk[n][c].x, kk[n][c].y);
            mma_16816(s[n], q[0][c].z, q[1][c].z, q[0][c].w, q[1][c].w, kk[n][c].z, kk[n][c].w);
        }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * n + 2 * t + i % 2 >= left) s[n][i] = -INFINITY;
    float fix[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float now = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
        now = fmaxf(fmaxf(now, __shfl_xor_sync(~0u, now, 2)), w.most[r]);
        fix[r] = exp2_fast((w.most[r] - now) * scale);
        w.most[r] = now;
        float add = 0;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) add += s[n][i] = exp2_fast((s[n][i] - now) * scale);
        w.sum[r] = w.sum[r] * fix[r] + add;
    }
    uint32_t a[4] = {pack_bf16(s[0][0], s[0][1]), pack_bf16(s[0][2], s[0][3]), pack_bf16(s[1][0], s[1][1]),
                     pack_bf16(s[1][2], s[1][3])};
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        const uint32_t *row[4] = {&vv[0][c].x, &vv[1][c].x, &vv[2][c].x, &vv[3][c].x};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float(&o)[4] = w.o[8 * c + j];
            int pick = j % 2 ? 0x7632 : 0x5410; /* the high or the low halves of two registers */
            uint32_t b0 = __byte_perm(row[0][j / 2], row[1][j / 2], pick), b1 = __byte_perm(row[2][j / 2], row[3][j / 2], pick);
#pragma unroll
            for (int i = 0; i < 4; i++) o[i] *= fix[i / 2];
            mma_16816(o, a[0], a[1], a[2], a[3], b0, b1);
        }
    }
}

/* The block's warps joined: shared [WARPS][ROWS][D + 2]; thread by thread over rows and channels. */
template <int D>
__device__ __forceinline__ void join_warps(float *shared, const struct warp_sums<D> &w, int live, float *parts, int64_t part_ld,
                                           bf16 *o)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *mine = shared + warp * ROWS * (D + 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = w.sum[r], *row = mine + (g + 8 * r) * (D + 2);
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) row[(2 * t + i) * (D / 8) + j] = w.o[j][2 * r + i];
        if (t == 0) row[D] = w.most[r], row[D + 1] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < live * D; i += THREADS) {
        int r = i / D, c = i % D;
        float most = -INFINITY, sum = 0, x = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) most = fmaxf(most, shared[(k * ROWS + r) * (D + 2) + D]);
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            const float *row = shared + (k * ROWS + r) * (D + 2);
            float by = most == -INFINITY ? 0 : exp2_fast(row[D] - most);
            sum += row[D + 1] * by;
            x += row[c] * by;
        }
        if (parts) {
            parts[r * part_ld + c] = x;
            if (c == 0) parts[r * part_ld + D] = most, parts[r * part_ld + D + 1] = sum;
        } else o[r * D + c] = __float2bfloat16_rn(sum > 0 ? x / sum : 0);
    }
}

template <int D>
__global__ void __launch_bounds__(THREADS, 3)
paged_fast_kernel(bf16 *o, const bf16 *q, const bf16 *k, const bf16 *v, const __grid_constant__ struct paged_shape z)
{
    __shared__ float shared[WARPS * ROWS * (D + 2)];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int split = blockIdx.x % z.splits, unit = blockIdx.x / z.splits;
    int chunk = unit % z.chunks, kv = unit / z.chunks % z.K, row = unit / z.chunks / z.K;
    int first = kv * z.G + chunk * ROWS, live = min(ROWS, z.G - chunk * ROWS); /* query heads */
    struct query_at at = query_at(z.map, row);
    bool reads = at.seq < z.map.S;
    int pos = reads ? at.pos : -1;
    const int32_t *sel = z.sel ? z.sel + ((int64_t)kv * z.rows + row) * z.slots : NULL;
    uint4 qq[2][D / 32];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            qq[r][c] = g + 8 * r < live ? *reinterpret_cast<const uint4 *>(q + ((int64_t)row * z.H + first + g + 8 * r) * D +
                                                                          32 * c + 8 * t)
                                        : uint4{0, 0, 0, 0};
    struct warp_sums<D> w = {};
    w.most[0] = w.most[1] = -INFINITY;
    int blocks = 0; /* selected; empty slots come last */
    for (int i = 0; sel && i < z.slots; i += 32) blocks += __popc(__ballot_sync(~0u, i + lane < z.slots && sel[i + lane] >= 0));
    int tiles = sel ? blocks * (z.block / KEYS) : pos / KEYS + 1, per = (tiles + z.splits - 1) / z.splits;
    int end = reads ? min(tiles, (split + 1) * per) : 0;
    for (int tile = split * per + warp; tile < end; tile += WARPS) {
        int key = tile_key(z, sel, tile);
        if (key < 0 || key > pos) continue;
        int64_t from = key_row(z.map, at.seq, key) * z.K + kv;
        take_tile<D>(w, qq, k + from * D, v + from * D, (int64_t)z.K * D, min(KEYS, pos + 1 - key), z.scale_log2);
    }
    w.most[0] *= z.scale_log2, w.most[1] *= z.scale_log2;
    int64_t head = (int64_t)row * z.H + first, part_ld = (int64_t)z.splits * (D + 2);
    join_warps<D>(shared, w, live, z.parts ? z.parts + head * part_ld + split * (D + 2) : NULL, part_ld, o + head * D);
}

/* A warp a row and head. */
template <int D> __global__ void paged_join_kernel(bf16 *o, const float *parts, int64_t heads, int splits)
{
    int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (head >= heads) return;
    parts += head * splits * (D + 2);
    float most = -INFINITY, sum = 0, x[D / 32] = {};
    for (int i = 0; i < splits; i++) most = fmaxf(most, parts[i * (D + 2) + D]);
    for (int i = 0; i < splits; i++) {
        const float *p = parts + i * (D + 2);
        float by = most == -INFINITY ? 0 : exp2_fast(p[D] - most);
        sum += p[D + 1] * by;
#pragma unroll
        for (int c = 0; c < D / 32; c++) x[c] += p[32 * c + lane] * by;
    }
#pragma unroll
    for (int c = 0; c < D / 32; c++) o[head * D + 32 * c + lane] = __float2bfloat16_rn(sum > 0 ? x[c] / sum : 0);
}

bool paged_fast_fits(const struct paged_args *a)
{
    int64_t D = a->q.dim[2];
    if (a->q.dtype != DT_BF16 || (D != 64 && D != 128) || a->page % KEYS) return false;
    if (a->sel.data && a->block % KEYS) return false;
    return ((uintptr_t)a->q.data | (uintptr_t)a->k_cache.data | (uintptr_t)a->v_cache.data | (uintptr_t)a->o.data) % 16 == 0;
}

size_t paged_fast_bytes(const struct paged_args *a)
{
    return (size_t)2 * BLOCKS_WANTED * ROWS * (size_t)(a->q.dim[2] + 2) * sizeof(float);
}

static struct paged_shape shape_of(const struct paged_args *a)
{
    struct paged_shape z = {};
    z.map = paged_map(a);
    z.sel = (const int32_t *)a->sel.data;
    z.rows = (int)a->q.dim[0], z.H = (int)a->q.dim[1], z.K = (int)a->k_cache.dim[1], z.G = z.H / z.K;
    z.chunks = (z.G + ROWS - 1) / ROWS;
    z.slots = (int)a->sel.dim[2], z.block = a->block;
    z.scale_log2 = a->scale * 1.44269504088896f;
    int64_t keys = a->max_kv_len, units = (int64_t)z.rows * z.K * z.chunks;
    if (z.sel) keys = lesser(keys, (int64_t)z.slots * z.block);
    int64_t useful = ceil_div(keys, KEYS * WARPS), wanted = units ? BLOCKS_WANTED / units : 1;
    z.splits = (int)lesser(lesser(useful, wanted), SPLITS_MAX);
    if (z.splits < 2) z.splits = 1;
    else z.parts = (float *)a->work.data;
    return z;
}

template <int D> static enum status launch(const struct paged_args *a, struct stream *s)
{
    struct paged_shape z = shape_of(a);
    unsigned blocks = (unsigned)((int64_t)z.rows * z.K * z.chunks * z.splits);
    paged_fast_kernel<D><<<blocks, THREADS, 0, s->cuda>>>((bf16 *)a->o.data, (const bf16 *)a->q.data,
                                                          (const bf16 *)a->k_cache.data, (const bf16 *)a->v_cache.data, z);
    TRY_LAUNCH("attend_paged");
    if (!z.parts) return OK;
    int64_t heads = (int64_t)z.rows * z.H;
    paged_join_kernel<D><<<(unsigned)ceil_div(heads, WARPS), THREADS, 0, s->cuda>>>((bf16 *)a->o.data, z.parts, heads, z.splits);
    TRY_LAUNCH("attend_paged");
    return OK;
}

enum status paged_fast(const struct paged_args *a, struct stream *s)
{
    TRY(check_work("attend_paged", a->work, paged_fast_bytes(a)));
    return a->q.dim[2] == 64 ? launch<64>(a, s) : launch<128>(a, s);
}
