/* The experts' products in one launch: expert e owns rows offsets[e] .. offsets[e + 1] of x and y, found on the device.
 *
 *   forward y = x w^T    A x [R, K] K-major,   B w[e] [N, K] K-major
 *   dx      dx = dy w    A dy [R, N] K-major,  B w[e] [N, K] MN-major
 *   dw      dw += dy^T x A dy MN-major,        B x MN-major, k runs over the expert's rows
 *
 * Bound by the tensor cores. A block stays and takes tiles of 128 x 256 in turn: the largest tile whose sums (128
 * registers a thread) two warpgroups can hold, so that shared memory is read once for 2 x 64 rows. One more warpgroup
 * keeps the copy engine 4 stages of 64 k ahead (48 KB each), also across tiles. Tiles go down up to 16 tiles of rows before
 * the next columns: what runs together shares w.
 * Rows of other experts in a tile's last rows are computed and not stored; in dw, where they would be summed, they are
 * cleared in shared memory.
 *
 * Measured on an H200, 2026-12-01, 16 experts of 6144 x 6144 (ceiling 775 TFLOP/s, 4237 GB/s): 8192 rows: forward 0.81 ms, 765
 * TFLOP/s, dx 761, dw into float32 1.84 ms, 337 TFLOP/s, 2741 GB/s (its 4.8 GB of sums are 1.14 ms alone); 65536 rows: 703,
 * 675, 599 TFLOP/s. */
#include "grouped.cuh"
#include "hopper.cuh"

#include <type_traits>

enum { TILE_M = 128, TILE_N = 256, TILE_K = 64, STAGES = 4, PANEL = 16 };
enum { THREADS = 384, CONSUMERS = 256, CONSUMER_WARPS = 8 };
enum { A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES };
enum { SHARED_BYTES = STAGES * STAGE_BYTES + 1024 /* alignment */ + 256 /* barriers */ };
enum { SUB_BYTES = 64 * TILE_K * 2 /* a 64-wide MN-major tile */ };

struct grouped_shape {
    const int32_t *offsets;
    int64_t ld;        /* of the output's rows */
    int E, M, N, K;    /* dw: M, N of an expert, K unused; else M unused */
    int64_t out_group; /* dw: elements from one expert's output to the next */
};

struct tile {
    int e, m0, n0;     /* m0, n0 inside the expert */
    int from, rows;    /* the expert's rows */
    int steps;         /* of TILE_K */
};

/* Walks over the tiles in order; both sides of the pipeline see the same ones. `base` is the first tile of expert e. */
template <bool DW> struct walk {
    int e, base;
    __device__ bool find(struct tile *t, int index, const struct grouped_shape &z)
    {
        int across = (z.N + TILE_N - 1) / TILE_N;
        for (; e < z.E; e++) {
            int from = z.offsets[e], rows = z.offsets[e + 1] - from;
            int down = ((DW ? z.M : rows) + TILE_M - 1) / TILE_M, tiles = DW && rows == 0 ? 0 : down * across;
            if (index < base + tiles) {
                int i = index - base, panel = i / (PANEL * across), high = min(PANEL, down - panel * PANEL);
                i -= panel * PANEL * across;
                t->e = e;
                t->m0 = (panel * PANEL + i % high) * TILE_M;
                t->n0 = i / high * TILE_N;
                t->from = from;
                t->rows = rows;
                t->steps = ((DW ? rows : z.K) + TILE_K - 1) / TILE_K;
                return true;
            }
            base += tiles;
        }
        return false;
    }
};

/* One stage of a tile by the copy engine. */
template <bool DW, bool B_MN>
__device__ __forceinline__ void fill(char *a, uint64_t *full, const struct tile &t, int step, const CUtensorMap *ma,
                                     const CUtensorMap *mb)
{
    char *b = a + A_BYTES;
    int k = step * TILE_K;
    barrier_expect(full, STAGE_BYTES);
    if (DW)
        for (int i = 0; i < TILE_M / 64; i++) copy_box(a + i * SUB_BYTES, ma, full, t.m0 + 64 * i, t.from + k);
    else copy_box(a, ma, full, k, t.from + t.m0);
    if (DW)
        for (int i = 0; i < TILE_N / 64; i++) copy_box(b + i * SUB_BYTES, mb, full, t.n0 + 64 * i, t.from + k);
    else if (B_MN)
        for (int i = 0; i < TILE_N / 64; i++) copy_box(b + i * SUB_BYTES, mb, full, t.n0 + 64 * i, k, t.e);
    else copy_box(b, mb, full, k, t.n0, t.e);
}

/* Clears rows of k from `valid` on in every 64-wide tile of a stage. */
__device__ __forceinline__ void clear_tail(char *stage, int valid, int thread)
{
    int per_tile = (TILE_K - valid) * 8; /* 16-byte pieces */
    for (int i = thread; i < per_tile * (STAGE_BYTES / SUB_BYTES); i += CONSUMERS)
        *reinterpret_cast<uint4 *>(stage + i / per_tile * SUB_BYTES + valid * 128 + i % per_tile * 16) = uint4{};
    fence_async_proxy();
    named_barrier(1, CONSUMERS);
}

/* This warpgroup's 64 x 256 sums, rows m0 .. of which `rows` exist. */
template <class Out, bool ADD>
__device__ __forceinline__ void store_tile(Out *out, int64_t ld, const float (&d)[128], int m0, int rows, int n0, int N)
{
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int m = m0 + 16 * warp + lane / 4 + 8 * half;
        Out *row = out + m * ld;
        if constexpr (sizeof(Out) == 2 && !ADD) {
#pragma unroll
            for (int j = 0; j < 32; j += 4) { /* 4 x 8 columns: after the exchange a lane holds 8 neighbours */
                uint32_t r[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    r[i] = pack_bf16(d[4 * (j + i) + 2 * half], d[4 * (j + i) + 2 * half + 1]);
                quad_transpose(r);
                int n = n0 + 8 * (j + q);
                if (m < rows && n < N) *reinterpret_cast<uint4 *>(row + n) = uint4{r[0], r[1], r[2], r[3]};
            }
        } else if (m < rows) {
            constexpr int AHEAD = 16; /* reads in flight: one by one, each would wait for the write before it */
            using Pair = typename std::conditional<sizeof(Out) == 4, float2, __nv_bfloat162>::type;
#pragma unroll
            for (int j0 = 0; j0 < 32; j0 += AHEAD) {
                Pair old[AHEAD] = {};
#pragma unroll
                for (int i = 0; ADD && i < AHEAD; i++)
                    if (n0 + 8 * (j0 + i) < N) old[i] = *reinterpret_cast<const Pair *>(row + n0 + 8 * (j0 + i) + 2 * q);
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    int n = n0 + 8 * (j0 + i) + 2 * q;
                    float x = d[4 * (j0 + i) + 2 * half], y = d[4 * (j0 + i) + 2 * half + 1];
                    if (n >= N) continue;
                    if constexpr (sizeof(Out) == 4) *reinterpret_cast<Pair *>(row + n) = float2{old[i].x + x, old[i].y + y};
                    else {
                        float2 f = __bfloat1622float2(old[i]);
                        *reinterpret_cast<Pair *>(row + n) = __floats2bfloat162_rn(f.x + x, f.y + y);
                    }
                }
            }
        }
    }
}

template <bool DW, bool B_MN, class Out>
__global__ void __launch_bounds__(THREADS, 1)
grouped_kernel(Out *out, const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
               const __grid_constant__ struct grouped_shape z)
{
    extern __shared__ char raw[];
    char *stages = (char *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint64_t *full = (uint64_t *)(stages + STAGES * STAGE_BYTES), *empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], CONSUMER_WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    struct walk<DW> w = {0, 0};
    struct tile t;
    uint32_t count = 0; /* stages used so far */
    if (threadIdx.x < 128) {
        registers_give<40>();
        if (threadIdx.x == 0) {
            prefetch_map(&map_a);
            prefetch_map(&map_b);
            for (int index = blockIdx.x; w.find(&t, index, z); index += gridDim.x)
                for (int step = 0; step < t.steps; step++, count++) {
                    int stage = count % STAGES;
                    barrier_wait(&empty[stage], (count / STAGES & 1) ^ 1);
                    fill<DW, B_MN>(stages + stage * STAGE_BYTES, &full[stage], t, step, &map_a, &map_b);
                }
        }
    } else {
        registers_take<232>();
        int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        float d[128];
        for (int index = blockIdx.x; w.find(&t, index, z); index += gridDim.x) {
            for (int step = 0; step < t.steps; step++, count++) {
                int stage = count % STAGES;
                char *a = stages + stage * STAGE_BYTES;
                barrier_wait(&full[stage], count / STAGES & 1);
                if (DW && t.rows - step * TILE_K < TILE_K) clear_tail(a, t.rows - step * TILE_K, threadIdx.x - 128);
                uint64_t da = tile_descriptor(a + group * SUB_BYTES, SUB_BYTES);
                uint64_t db = tile_descriptor(a + A_BYTES, SUB_BYTES);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < TILE_K / 16; k++)
                    wgmma<DW, B_MN>(d, descriptor_add(da, k * (DW ? STEP_MN_MAJOR : STEP_K_MAJOR)),
                                    descriptor_add(db, k * (B_MN ? STEP_MN_MAJOR : STEP_K_MAJOR)), step || k);
                wgmma_commit();
                wgmma_wait<1>(); /* the stage before is read: give it back */
                if (step && lane == 0) barrier_arrive(&empty[(count - 1) % STAGES]);
            }
            wgmma_wait<0>();
            wgmma_touch(d);
            if (t.steps && lane == 0) barrier_arrive(&empty[(count - 1) % STAGES]);
            if (DW) store_tile<Out, true>(out + t.e * z.out_group, z.ld, d, t.m0 + 64 * group, z.M, t.n0, z.N);
            else store_tile<Out, false>(out + t.from * z.ld, z.ld, d, t.m0 + 64 * group, t.rows, t.n0, z.N);
        }
    }
}

bool grouped_fits(struct tensor out, struct tensor a, struct tensor b)
{
    struct tensor t[3] = {out, a, b};
    for (int i = 0; i < 3; i++) {
        if (i && t[i].dtype != DT_BF16) return false;
        if ((uintptr_t)t[i].data % 16 || t[i].dim[t[i].rank - 1] % 8) return false;
    }
    return b.rank < 3 || b.dim[1] % 8 == 0;
}

template <bool DW, bool B_MN, class Out>
static enum status launch(Out *out, const CUtensorMap *a, const CUtensorMap *b, const struct grouped_shape *z,
                          int64_t most_tiles, struct stream *s)
{
    auto kernel = grouped_kernel<DW, B_MN, Out>;
    TRY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    kernel<<<(unsigned)lesser(most_tiles, s->sms), THREADS, SHARED_BYTES, s->cuda>>>(out, *a, *b, *z);
    TRY_LAUNCH("grouped");
    return OK;
}

/* Rows [R, K] read as K-major boxes of 64 k x 128 rows, or MN-major ones of 64 columns x 64 rows. */
static enum status rows_map(CUtensorMap *map, struct tensor t, bool mn)
{
    int64_t dim[2] = {t.dim[1], t.dim[0]}, stride[1] = {t.dim[1] * 2};
    int box[2] = {64, mn ? TILE_K : TILE_M};
    return tensor_map(map, t.data, 2, dim, stride, box);
}

/* w [E, N, K]: K-major boxes of 64 k x 256 n, or MN-major ones of 64 k x 64 n (n is summed over then). */
static enum status weight_map(CUtensorMap *map, struct tensor w, bool mn)
{
    int64_t dim[3] = {w.dim[2], w.dim[1], w.dim[0]}, stride[2] = {w.dim[2] * 2, w.dim[1] * w.dim[2] * 2};
    int box[3] = {64, mn ? TILE_K : TILE_N, 1};
    return tensor_map(map, w.data, 3, dim, stride, box);
}

enum status grouped_bf16_forward(struct tensor y, struct tensor x, struct tensor w, struct tensor offsets, struct stream *s)
{
    CUtensorMap a, b;
    TRY(rows_map(&a, x, false));
    TRY(weight_map(&b, w, false));
    int E = (int)w.dim[0], N = (int)w.dim[1], K = (int)w.dim[2];
    struct grouped_shape z = {(const int32_t *)offsets.data, N, E, 0, N, K, 0};
    int64_t most = (ceil_div(x.dim[0], TILE_M) + E) * ceil_div(N, TILE_N);
    return launch<false, false>((bf16 *)y.data, &a, &b, &z, most, s);
}

enum status grouped_bf16_dx(struct tensor dx, struct tensor dy, struct tensor w, struct tensor offsets, struct stream *s)
{
    CUtensorMap a, b;
    TRY(rows_map(&a, dy, false));
    TRY(weight_map(&b, w, true));
    int E = (int)w.dim[0], N = (int)w.dim[1], K = (int)w.dim[2];
    struct grouped_shape z = {(const int32_t *)offsets.data, K, E, 0, K, N, 0};
    int64_t most = (ceil_div(dy.dim[0], TILE_M) + E) * ceil_div(K, TILE_N);
    return launch<false, true>((bf16 *)dx.data, &a, &b, &z, most, s);
}

enum status grouped_bf16_dw(struct tensor dw, struct tensor dy, struct tensor x, struct tensor offsets, struct stream *s)
{
    CUtensorMap a, b;
    TRY(rows_map(&a, dy, true));
    TRY(rows_map(&b, x, true));
    int E = (int)dw.dim[0], N = (int)dw.dim[1], K = (int)dw.dim[2];
    struct grouped_shape z = {(const int32_t *)offsets.data, K, E, N, K, 0, (int64_t)N * K};
    int64_t most = E * ceil_div(N, TILE_M) * ceil_div(K, TILE_N);
    if (dw.dtype == DT_F32) return launch<true, true>((float *)dw.data, &a, &b, &z, most, s);
    return launch<true, true>((bf16 *)dw.data, &a, &b, &z, most, s);
}
