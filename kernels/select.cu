/* M[g,t,b] = max over keys j of block b, j <= t, of <iq[t,g], ik[j]>; then forced blocks and the best of the others.
 *
 * The choice sorts nothing: a warp a row finds the score of the last slot by bisecting the bits of the scores in value
 * order (they sit in registers up to 512 candidates), then writes what lies above it and the first ties. Scores of F32
 * tensors, and of odd ones, come from the plain kernel here; the others from select_fast.cu. */
#include "select.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, HEAD_MAX = 256, SPAN = 16 /* blocks a warp scores */ };
enum : size_t { CHUNK_BYTES = 64u << 20, CHUNK_ROWS_MIN = 128 };

template <int N, class T>
__global__ void __launch_bounds__(THREADS) select_scores_kernel(const __grid_constant__ struct select_shape z)
{
    __shared__ float shared[WARPS][HEAD_MAX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp, row = z.first + i;
    if (i >= z.n) return;
    struct query_at at = query_at(z.map, (int)(row / z.I));
    int b0 = (int)blockIdx.y * SPAN, own = at.pos / z.block;
    if (at.seq >= z.map.S || b0 > own || own < z.topk) return; /* everything is taken: scores do not matter */
    const T *q = (const T *)z.iq + row * z.D, *ik = (const T *)z.ik;
    float *mine = shared[warp];
    for (int d = lane; d < z.D; d += 32) mine[d] = to_float(q[d]);
    __syncwarp();
    for (int b = b0; b < min(b0 + SPAN, own + 1); b++) {
        float most = -INFINITY;
        int to = min((b + 1) * z.block, at.pos + 1);
        for (int j = b * z.block + lane; j < to; j += 32) {
            const T *k = ik + key_row(z.map, at.seq, j) * z.D;
            float sum = 0;
            for (int d = 0; d < z.D; d += N) {
                float f[N];
                load<N>(f, k + d);
#pragma unroll
                for (int e = 0; e < N; e++) sum += mine[d + e] * f[e];
            }
            most = fmaxf(most, sum);
        }
        most = warp_max(most);
        if (lane == 0) z.scores[i * z.blocks + b] = most;
    }
}

__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Writes the r best of candidates [from, from + n) to out, r < n; key(k) is that of candidate k * 32 + lane. HELD: the
 * number of steps, known to the compiler so that keys stay in registers; 0: as many as n needs. */
template <int HELD, class F>
__device__ __forceinline__ void choose(int32_t *out, int r, int from, int n, F key)
{
    int lane = threadIdx.x % 32, steps = HELD ? HELD : (n + 31) / 32;
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t trial = least | 1u << bit;
        int count = 0;
#pragma unroll
        for (int k = 0; k < steps; k++) count += __popc(__ballot_sync(~0u, k * 32 + lane < n && key(k) >= trial));
        if (count >= r) least = trial;
        if (count == r) break;
    }
    int above = 0;
#pragma unroll
    for (int k = 0; k < steps; k++) above += __popc(__ballot_sync(~0u, k * 32 + lane < n && key(k) > least));
    int ties = r - above, written = 0;
#pragma unroll
    for (int k = 0; k < steps; k++) {
        bool in = k * 32 + lane < n;
        uint32_t x = in ? key(k) : 0;
        unsigned tied = __ballot_sync(~0u, in && x == least), below = (1u << lane) - 1;
        bool take = in && (x > least || (x == least && __popc(tied & below) < ties));
        ties -= min(ties, __popc(tied));
        unsigned taken = __ballot_sync(~0u, take);
        if (take) out[written + __popc(taken & below)] = from + k * 32 + lane;
        written += __popc(taken);
    }
}

template <int HELD>
__device__ __forceinline__ void choose_held(int32_t *out, int r, int from, int n, const float *scores)
{
    int lane = threadIdx.x % 32;
    uint32_t keys[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) keys[k] = k * 32 + lane < n ? order_key(scores[k * 32 + lane]) : 0;
    choose<HELD>(out, r, from, n, [&](int k) { return keys[k]; });
}

__global__ void __launch_bounds__(THREADS) select_choose_kernel(int32_t *sel, const __grid_constant__ struct select_shape z)
{
    int lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = z.first + i;
    if (i >= z.n) return;
    int64_t token = row / z.I, g = row % z.I;
    int32_t *out = sel + (g * z.tokens + token) * z.topk;
    struct query_at at = query_at(z.map, (int)token);
    int n = 0;
    if (at.seq < z.map.S) {
        int own = at.pos / z.block, local = max(0, own + 1 - z.local), init = min(z.init, local);
        for (int b = own - lane; b >= local && own - b < z.topk; b -= 32) out[own - b] = b;
        n = min(own + 1 - local, z.topk);
        for (int b = lane; b < init && n + b < z.topk; b += 32) out[n + b] = b;
        n = min(n + init, z.topk);
        int candidates = local - init, r = min(z.topk - n, candidates);
        const float *scores = z.scores + i * z.blocks + init;
        if (r == candidates)
            for (int b = lane; b < r; b += 32) out[n + b] = init + b;
        else if (r > 0 && candidates <= 32 * 4) choose_held<4>(out + n, r, init, candidates, scores);
        else if (r > 0 && candidates <= 32 * 16) choose_held<16>(out + n, r, init, candidates, scores);
        else if (r > 0)
            choose<0>(out + n, r, init, candidates, [&](int k) { return order_key(scores[k * 32 + lane]); });
        n += r;
    }
    for (int j = n + lane; j < z.topk; j += 32) out[j] = -1;
}

static int64_t blocks_of(int64_t max_len, int block) { return max_len > 0 ? ceil_div(max_len, block) : 1; }

/* Scratch for the scores of `rows` rows; grows with either number, up to a bound. */
static size_t scores_bytes(int64_t rows, int64_t blocks)
{
    size_t row = (size_t)blocks * sizeof(float), most = CHUNK_ROWS_MIN * row;
    if (most < CHUNK_BYTES) most = CHUNK_BYTES;
    return (size_t)rows > most / row ? most : (size_t)rows * row;
}

static enum status select_all(struct tensor sel, struct select_shape z, struct tensor iq, struct tensor ik,
                              struct tensor work, struct stream *s)
{
    int64_t rows = z.tokens * z.I, chunk = (int64_t)(scores_bytes(rows, z.blocks) / ((size_t)z.blocks * sizeof(float)));
    if (z.D > HEAD_MAX) return FAIL(ERR_INTERNAL, "select: index head size %d, at most %d", z.D, HEAD_MAX);
    int64_t unit = chunk >= (int64_t)CHUNK_ROWS_MIN * z.I ? (int64_t)CHUNK_ROWS_MIN * z.I : z.I; /* whole tokens */
    if (chunk < rows) chunk = chunk / unit * unit;
    if (chunk == 0) return FAIL(ERR_INTERNAL, "select: %d index heads, at most %d", z.I, (int)CHUNK_ROWS_MIN);
    z.scores = (float *)work.data;
    bool fast = select_fits(&z, iq.dtype);
    bool wide = (uintptr_t)iq.data % 16 == 0 && (uintptr_t)ik.data % 16 == 0 && z.D % 8 == 0;
    for (z.first = 0; z.first < rows; z.first += chunk) {
        z.n = lesser(chunk, rows - z.first);
        unsigned grid = (unsigned)ceil_div(z.n, WARPS);
        if (z.blocks > z.topk && fast) TRY(select_scores_bf16(&z, s));
        else if (z.blocks > z.topk) {
            dim3 spans(grid, (unsigned)ceil_div(z.blocks, SPAN));
            BY_DTYPE(iq.dtype, T, BY_WIDTH(wide, N, (select_scores_kernel<N, T><<<spans, THREADS, 0, s->cuda>>>(z))));
            TRY_LAUNCH("select");
        }
        select_choose_kernel<<<grid, THREADS, 0, s->cuda>>>((int32_t *)sel.data, z);
        TRY_LAUNCH("select");
    }
    return OK;
}

extern "C" size_t select_work_cuda(const struct select_args *a)
{
    return scores_bytes(a->iq.dim[0] * a->iq.dim[1], blocks_of(a->max_seqlen, a->block));
}

static struct select_shape shape_of(struct key_map map, struct tensor iq, struct tensor ik, int max_len, int block, int topk,
                                    int init, int local)
{
    struct select_shape z = {};
    z.map = map;
    z.iq = iq.data, z.ik = ik.data;
    z.tokens = iq.dim[0];
    z.I = (int)iq.dim[1], z.D = (int)iq.dim[2];
    z.block = block, z.topk = topk, z.init = init, z.local = local;
    z.blocks = (int)blocks_of(max_len, block);
    z.max_len = max_len;
    return z;
}

extern "C" enum status select_forward_cuda(const struct select_args *a, struct stream *s)
{
    TRY(check_select(a));
    NEED_STREAM("select_forward", s);
    if (a->iq.dim[0] * a->iq.dim[1] == 0) return OK;
    TRY(check_work("select_forward", a->work, select_work_cuda(a)));
    struct select_shape z = shape_of(packed_map(a->cu_seqlens), a->iq, a->ik, a->max_seqlen, a->block, a->topk, a->init,
                                     a->local);
    return select_all(a->sel, z, a->iq, a->ik, a->work, s);
}

/* ---- paged ---- */
size_t select_paged_bytes(const struct paged_args *a)
{
    if (a->block < 1) return 0;
    int64_t rows = a->iq.dim[0] * a->iq.dim[1];
    return scores_bytes(rows, blocks_of(a->max_kv_len, a->block));
}

extern "C" enum status select_paged_cuda(const struct paged_args *a, struct stream *s)
{
    TRY(check_select_paged(a));
    NEED_STREAM("select_paged", s);
    if (a->iq.dim[0] * a->iq.dim[1] == 0) return OK;
    TRY(check_work("select_paged", a->work, select_paged_bytes(a)));
    struct select_shape z = shape_of(paged_map(a), a->iq, a->ik_cache, a->max_kv_len, a->block, a->topk, a->init, a->local);
    return select_all(a->sel, z, a->iq, a->ik_cache, a->work, s);
}
