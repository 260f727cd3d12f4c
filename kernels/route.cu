/* Routing: which experts a token takes and with what weights, the order of rows by expert, the way there and back.
 * No host knows how many rows an expert has: everything stays on the device. Moving rows is bound by memory: 16-byte
 * accesses, a block a row. */
#include "cuda_util.cuh"

enum { ROUTE_THREADS = 128, ROUTE_WARPS = ROUTE_THREADS / 32 };
enum { SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / 32, SORT_ROUNDS = 4, SORT_CHUNK = SORT_THREADS * SORT_ROUNDS };
enum { SORT_EXPERTS_MAX = 4096, ROW_THREADS_MAX = 256 };

/* ---- the choice: a warp a token ---- */
/* Order of (score, -number) is total: each next choice is the largest below the one before, which needs no marks. */
__device__ __forceinline__ bool above(float x, int e, float y, int f) { return x > y || (x == y && e < f); }

__global__ void route_forward_kernel(int32_t *experts, float *weights, const float *logits, const float *bias,
                                     int64_t rows, int E, int k, int64_t valid, bool replay)
{
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (t >= rows) return;
    int32_t *chosen = experts + t * k;
    float *weight = weights + t * k;
    const float *logit = logits + t * E;
    if (t >= valid) {
        for (int j = lane; j < k; j += 32) chosen[j] = -1, weight[j] = 0;
        return;
    }
    float last = INFINITY, sum = 0;
    int last_e = -1;
    for (int j = 0; j < k; j++) {
        int best_e = E;
        if (replay) best_e = chosen[j];
        else {
            float best = -INFINITY;
            for (int e = lane; e < E; e += 32) {
                float x = sigmoid(logit[e]) + bias[e];
                if (x != x) x = -INFINITY;
                if (above(last, last_e, x, e) && (best_e == E || above(x, e, best, best_e))) best = x, best_e = e;
            }
            for (int i = 16; i; i >>= 1) {
                float other = __shfl_xor_sync(~0u, best, i);
                int other_e = __shfl_xor_sync(~0u, best_e, i);
                if (other_e < E && (best_e == E || above(other, other_e, best, best_e))) best = other, best_e = other_e;
            }
            last = best;
            last_e = best_e;
            if (lane == 0) chosen[j] = best_e;
        }
        float s = best_e >= 0 && best_e < E ? sigmoid(logit[best_e]) : 0;
        if (lane == 0) weight[j] = s;
        sum += s;
    }
    __syncwarp();
    for (int j = lane; j < k; j += 32) weight[j] = sum == 0 ? 0 : weight[j] / sum;
}

extern "C" enum status route_forward_cuda(struct tensor experts, struct tensor weights, struct tensor logits,
                                          struct tensor bias, int64_t valid, bool replay, struct stream *s)
{
    TRY(check_route_forward(experts, weights, logits, bias, valid));
    NEED_STREAM("route_forward", s);
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
    if (T == 0) return OK;
    route_forward_kernel<<<(unsigned)ceil_div(T, ROUTE_WARPS), ROUTE_THREADS, 0, s->cuda>>>(
        (int32_t *)experts.data, (float *)weights.data, (const float *)logits.data, (const float *)bias.data, T, (int)E,
        (int)k, valid, replay);
    TRY_LAUNCH("route_forward");
    return OK;
}

/* With s_j the chosen sigmoids and w_j = s_j / sum: dlogit_j = (dw_j - sum_i dw_i w_i) w_j (1 - s_j); the others 0. */
__global__ void route_backward_kernel(float *dlogits, const float *dweights, const int32_t *experts, const float *logits,
                                      int64_t rows, int E, int k)
{
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (t >= rows) return;
    const int32_t *chosen = experts + t * k;
    const float *logit = logits + t * E, *dw = dweights + t * k;
    float sum = 0, mean = 0;
    for (int j = 0; j < k; j++) {
        int e = chosen[j];
        float s = e >= 0 && e < E ? sigmoid(logit[e]) : 0;
        sum += s;
        mean += e >= 0 && e < E ? dw[j] * s : 0;
    }
    mean = sum == 0 ? 0 : mean / sum;
    for (int e = lane; e < E; e += 32) {
        float d = 0, s = sigmoid(logit[e]);
        for (int j = 0; j < k; j++)
            if (chosen[j] == e && sum != 0) d += (dw[j] - mean) * (s / sum) * (1 - s);
        dlogits[t * E + e] = d;
    }
}

extern "C" enum status route_backward_cuda(struct tensor dlogits, struct tensor dweights, struct tensor experts,
                                           struct tensor logits, struct stream *s)
{
    TRY(check_route_backward(dlogits, dweights, experts, logits));
    NEED_STREAM("route_backward", s);
    int64_t T = logits.dim[0], E = logits.dim[1], k = experts.dim[1];
    if (T * E == 0) return OK;
    route_backward_kernel<<<(unsigned)ceil_div(T, ROUTE_WARPS), ROUTE_THREADS, 0, s->cuda>>>(
        (float *)dlogits.data, (const float *)dweights.data, (const int32_t *)experts.data, (const float *)logits.data, T,
        (int)E, (int)k);
    TRY_LAUNCH("route_backward");
    return OK;
}

/* ---- dispatch: a stable counting sort in three launches ---- */
/* count [chunks, E]: how often each expert was chosen among the choices of a chunk. */
__global__ void dispatch_count_kernel(int32_t *count, const int32_t *experts, int64_t n, int E)
{
    extern __shared__ int32_t bins[];
    for (int e = threadIdx.x; e < E; e += blockDim.x) bins[e] = 0;
    __syncthreads();
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = (int64_t)blockIdx.x * SORT_CHUNK + r * SORT_THREADS + threadIdx.x;
        int e = i < n ? experts[i] : -1;
        if (e >= 0 && e < E) atomicAdd(&bins[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += blockDim.x) count[(int64_t)blockIdx.x * E + e] = bins[e];
}

/* One block: count becomes the rows before each (chunk, expert); offsets; -1 in row_token beyond the last row. */
__global__ void dispatch_scan_kernel(int32_t *offsets, int32_t *count, int32_t *row_token, int chunks, int64_t n, int E)
{
    extern __shared__ int32_t start[]; /* [E + 1] */
    for (int e = threadIdx.x; e < E; e += blockDim.x) {
        int total = 0;
#pragma unroll 8
        for (int c = 0; c < chunks; c++) total += count[(int64_t)c * E + e];
        start[e + 1] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        start[0] = 0;
        for (int e = 0; e < E; e++) start[e + 1] += start[e];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += blockDim.x) {
        int before = start[e];
#pragma unroll 8
        for (int c = 0; c < chunks; c++) {
            int here = count[(int64_t)c * E + e];
            count[(int64_t)c * E + e] = before;
            before += here;
        }
    }
    for (int e = threadIdx.x; e <= E; e += blockDim.x) offsets[e] = start[e];
    for (int64_t r = start[E] + threadIdx.x; r < n; r += blockDim.x) row_token[r] = -1;
}

/* Places the choices of a chunk: rank = equal ones earlier in the warp, in earlier warps of the round, in earlier rounds
 * and chunks. shared: next [E], seen [SORT_WARPS, E]. */
__global__ void dispatch_place_kernel(int32_t *row_token, int32_t *row_of, const int32_t *count, const int32_t *experts,
                                      int64_t n, int E, int k)
{
    extern __shared__ int32_t next[];
    int32_t *seen = next + E;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < E; e += blockDim.x) next[e] = count[(int64_t)blockIdx.x * E + e];
    for (int r = 0; r < SORT_ROUNDS; r++) {
        for (int e = threadIdx.x; e < SORT_WARPS * E; e += blockDim.x) seen[e] = 0;
        __syncthreads();
        int64_t i = (int64_t)blockIdx.x * SORT_CHUNK + r * SORT_THREADS + threadIdx.x;
        int e = i < n ? experts[i] : -1;
        bool live = e >= 0 && e < E;
        unsigned same = __match_any_sync(~0u, live ? e : -1);
        int rank = __popc(same & ((1u << lane) - 1));
        if (live && rank == 0) seen[warp * E + e] = __popc(same);
        __syncthreads();
        int row = -1;
        if (live) {
            row = next[e] + rank;
            for (int w = 0; w < warp; w++) row += seen[w * E + e];
            row_token[row] = (int32_t)(i / k);
        }
        if (i < n) row_of[i] = row;
        __syncthreads();
        for (int f = threadIdx.x; f < E; f += blockDim.x)
            for (int w = 0; w < SORT_WARPS; w++) next[f] += seen[w * E + f];
        __syncthreads();
    }
}

extern "C" enum status dispatch_cuda(struct tensor offsets, struct tensor row_token, struct tensor row_of,
                                     struct tensor experts, struct stream *s)
{
    TRY(check_dispatch(offsets, row_token, row_of, experts));
    NEED_STREAM("dispatch", s);
    int64_t n = experts.dim[0] * experts.dim[1], E = offsets.dim[0] - 1, chunks = ceil_div(n, SORT_CHUNK);
    if (n == 0) return zero_cuda(offsets, s);
    size_t shared = (size_t)(E * (SORT_WARPS + 1)) * sizeof(int32_t);
    if (E > SORT_EXPERTS_MAX || (size_t)(chunks * E) * sizeof(int32_t) > STREAM_SCRATCH_BYTES)
        return FAIL(ERR_INTERNAL, "dispatch: %lld choices of %lld experts; at most %d experts and %zu bytes of counts",
                    (long long)n, (long long)E, SORT_EXPERTS_MAX, (size_t)STREAM_SCRATCH_BYTES);
    int32_t *count = (int32_t *)s->scratch;
    const int32_t *pe = (const int32_t *)experts.data;
    TRY_CUDA(cudaFuncSetAttribute(dispatch_place_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    dispatch_count_kernel<<<(unsigned)chunks, SORT_THREADS, E * sizeof(int32_t), s->cuda>>>(count, pe, n, (int)E);
    TRY_LAUNCH("dispatch");
    dispatch_scan_kernel<<<1, 1024, (E + 1) * sizeof(int32_t), s->cuda>>>((int32_t *)offsets.data, count,
                                                                         (int32_t *)row_token.data, (int)chunks, n, (int)E);
    TRY_LAUNCH("dispatch");
    dispatch_place_kernel<<<(unsigned)chunks, SORT_THREADS, shared, s->cuda>>>(
        (int32_t *)row_token.data, (int32_t *)row_of.data, count, pe, n, (int)E, (int)experts.dim[1]);
    TRY_LAUNCH("dispatch");
    return OK;
}

/* ---- rows ---- */
static int row_threads(int64_t C, int N)
{
    int threads = 32;
    while (threads < ROW_THREADS_MAX && (int64_t)threads * N < C) threads *= 2;
    return threads;
}

template <int N, class T>
__global__ void gather_rows_kernel(T *y, const T *x, const int32_t *index, int64_t rows, int64_t C)
{
    int64_t r = blockIdx.x, from = index[r];
    bool live = from >= 0 && from < rows;
    for (int64_t c = (int64_t)threadIdx.x * N; c < C; c += (int64_t)blockDim.x * N) {
        float f[N] = {};
        if (live) load<N>(f, x + from * C + c);
        store<N>(y + r * C + c, f);
    }
}

extern "C" enum status gather_rows_cuda(struct tensor y, struct tensor x, struct tensor index, struct stream *s)
{
    TRY(check_gather_rows(y, x, index));
    NEED_STREAM("gather_rows", s);
    int64_t R = index.dim[0], C = x.dim[1];
    if (R * C == 0) return OK;
    BY_DTYPE(y.dtype, T, BY_WIDTH(is_wide(y) && is_wide(x), N, {
        gather_rows_kernel<N><<<(unsigned)R, row_threads(C, N), 0, s->cuda>>>(
            (T *)y.data, (const T *)x.data, (const int32_t *)index.data, x.dim[0], C);
    }));
    TRY_LAUNCH("gather_rows");
    return OK;
}

template <int N, class T>
__global__ void combine_forward_kernel(T *y, const T *rows, const int32_t *row_of, const float *weights, float scale,
                                       const T *base, int64_t n_rows, int k, int64_t C)
{
    int64_t t = blockIdx.x;
    for (int64_t c = (int64_t)threadIdx.x * N; c < C; c += (int64_t)blockDim.x * N) {
        float sum[N] = {};
        if (base) load<N>(sum, base + t * C + c);
#pragma unroll 4
        for (int j = 0; j < k; j++) {
            int64_t r = row_of[t * k + j];
            if (r < 0 || r >= n_rows) continue;
            float w = weights ? scale * weights[t * k + j] : scale, f[N];
            load<N>(f, rows + r * C + c);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += w * f[i];
        }
        store<N>(y + t * C + c, sum);
    }
}

extern "C" enum status combine_forward_cuda(struct tensor y, struct tensor rows, struct tensor row_of,
                                            struct tensor weights, float scale, struct tensor base, struct stream *s)
{
    TRY(check_combine_forward(y, rows, row_of, weights, base));
    NEED_STREAM("combine_forward", s);
    int64_t T_ = row_of.dim[0], k = row_of.dim[1], C = y.dim[1];
    if (T_ * C == 0) return OK;
    BY_DTYPE(y.dtype, T, BY_WIDTH(is_wide(y) && is_wide(rows) && is_wide(base), N, {
        combine_forward_kernel<N><<<(unsigned)T_, row_threads(C, N), 0, s->cuda>>>(
            (T *)y.data, (const T *)rows.data, (const int32_t *)row_of.data, (const float *)weights.data, scale,
            (const T *)base.data, rows.dim[0], (int)k, C);
    }));
    TRY_LAUNCH("combine_forward");
    return OK;
}

/* A block a token: dy is read once for its k rows. drows may be rows: places are read before they are written. */
template <int N, class T>
__global__ void combine_backward_kernel(T *drows, float *dweights, const T *dy, const T *rows, const int32_t *row_of,
                                        const float *weights, float scale, int64_t n_rows, int k, int64_t C)
{
    __shared__ float shared[32];
    int64_t t = blockIdx.x;
    for (int j = 0; j < k; j++) {
        int64_t r = row_of[t * k + j];
        bool live = r >= 0 && r < n_rows;
        float w = weights ? scale * weights[t * k + j] : scale, dot = 0;
        for (int64_t c = (int64_t)threadIdx.x * N; live && c < C; c += (int64_t)blockDim.x * N) {
            float d[N], f[N];
            load<N>(d, dy + t * C + c);
            load<N>(f, rows + r * C + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                dot += d[i] * f[i];
                d[i] *= w;
            }
            store<N>(drows + r * C + c, d);
        }
        dot = block_sum(dot, shared);
        if (dweights && threadIdx.x == 0) dweights[t * k + j] = scale * dot;
    }
}

extern "C" enum status combine_backward_cuda(struct tensor drows, struct tensor dweights, struct tensor dy,
                                             struct tensor rows, struct tensor row_of, struct tensor weights, float scale,
                                             struct stream *s)
{
    TRY(check_combine_backward(drows, dweights, dy, rows, row_of, weights));
    NEED_STREAM("combine_backward", s);
    int64_t T_ = row_of.dim[0], k = row_of.dim[1], C = dy.dim[1];
    if (T_ == 0) return OK;
    BY_DTYPE(dy.dtype, T, BY_WIDTH(is_wide(drows) && is_wide(dy) && is_wide(rows), N, {
        combine_backward_kernel<N><<<(unsigned)T_, row_threads(C, N), 0, s->cuda>>>(
            (T *)drows.data, (float *)dweights.data, (const T *)dy.data, (const T *)rows.data,
            (const int32_t *)row_of.data, (const float *)weights.data, scale, rows.dim[0], (int)k, C);
    }));
    TRY_LAUNCH("combine_backward");
    return OK;
}
