/* The vocabulary's ends: embedding rows, and log-probabilities of targets over logits that may be split over ranks.
 * Bound by memory: logits are read once by the statistics (running maximum, sums rescaled when it grows) and once by the
 * gradient, which may overwrite them. */
#include "cuda_util.cuh"

enum { EMBED_THREADS = 128, STATS_THREADS = 512, JOIN_THREADS = 128, GRAD_THREADS = 256, GRAD_STEPS = 4 };

/* ---- embedding ---- */
template <int N, class T>
__global__ void embed_forward_kernel(T *y, const int32_t *ids, const T *w, int64_t first, int64_t V, int64_t C)
{
    int64_t t = blockIdx.x, id = (int64_t)ids[t] - first;
    bool mine = id >= 0 && id < V;
    for (int64_t c = (int64_t)threadIdx.x * N; c < C; c += (int64_t)blockDim.x * N) {
        float f[N] = {};
        if (mine) load<N>(f, w + id * C + c);
        store<N>(y + t * C + c, f);
    }
}

extern "C" enum status embed_forward_cuda(struct tensor y, struct tensor ids, struct tensor w, int64_t first,
                                          struct stream *s)
{
    TRY(check_embed_forward(y, ids, w));
    NEED_STREAM("embed_forward", s);
    int64_t T_ = ids.dim[0], C = w.dim[1];
    if (T_ * C == 0) return OK;
    BY_DTYPE(y.dtype, T, BY_WIDTH(is_wide(y) && is_wide(w), N, {
        embed_forward_kernel<N><<<(unsigned)T_, EMBED_THREADS, 0, s->cuda>>>(
            (T *)y.data, (const int32_t *)ids.data, (const T *)w.data, first, w.dim[0], C);
    }));
    TRY_LAUNCH("embed_forward");
    return OK;
}

/* next[t]: the next token with the same id, or -1; later[t] = 1 where an earlier one exists. A warp a token. */
__global__ void embed_chain_kernel(int32_t *next, uint8_t *later, const int32_t *ids, int64_t T, int64_t first, int64_t V)
{
    int64_t t = (int64_t)blockIdx.x * (EMBED_THREADS / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (t >= T) return;
    int32_t id = ids[t];
    int64_t found = -1;
    if (id - first >= 0 && id - first < V)
        for (int64_t i = t + 1; i < T; i += 32) {
            unsigned hit = __ballot_sync(~0u, i + lane < T && ids[i + lane] == id);
            if (hit) {
                found = i + __ffs(hit) - 1;
                break;
            }
        }
    if (lane) return;
    next[t] = (int32_t)found;
    if (found >= 0) later[found] = 1;
}

/* The first token of an id adds all of its rows, in token order: no two blocks touch one place of dw. */
template <int N, class G, class T>
__global__ void embed_backward_kernel(G *dw, const T *dy, const int32_t *ids, const int32_t *next, const uint8_t *later,
                                      int64_t first, int64_t V, int64_t C)
{
    int64_t t = blockIdx.x, id = (int64_t)ids[t] - first;
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (id < 0 || id >= V || later[t] || c >= C) return;
    float sum[N];
    load<N>(sum, dw + id * C + c);
    while (t >= 0) {
        float f[N];
        int64_t following = next[t];
        load<N>(f, dy + t * C + c);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += f[j];
        t = following;
    }
    store<N>(dw + id * C + c, sum);
}

extern "C" enum status embed_backward_cuda(struct tensor dw, struct tensor dy, struct tensor ids, int64_t first,
                                           struct stream *s)
{
    TRY(check_embed_backward(dw, dy, ids));
    NEED_STREAM("embed_backward", s);
    int64_t T_ = ids.dim[0], V = dw.dim[0], C = dw.dim[1];
    if (T_ * C == 0) return OK;
    if ((uint64_t)T_ * 5 > STREAM_SCRATCH_BYTES)
        return FAIL(ERR_INTERNAL, "embed_backward: %lld tokens, scratch for %zu", (long long)T_,
                    (size_t)STREAM_SCRATCH_BYTES / 5);
    int32_t *next = (int32_t *)s->scratch;
    uint8_t *later = (uint8_t *)(next + T_);
    const int32_t *pi = (const int32_t *)ids.data;
    TRY_CUDA(cudaMemsetAsync(later, 0, (size_t)T_, s->cuda));
    embed_chain_kernel<<<(unsigned)ceil_div(T_, EMBED_THREADS / 32), EMBED_THREADS, 0, s->cuda>>>(next, later, pi, T_, first,
                                                                                               V);
    TRY_LAUNCH("embed_backward");
    BY_DTYPE(dw.dtype, G, BY_DTYPE(dy.dtype, T, BY_WIDTH(is_wide(dw) && is_wide(dy), N, {
        dim3 grid((unsigned)T_, (unsigned)ceil_div(C, EMBED_THREADS * N));
        embed_backward_kernel<N><<<grid, EMBED_THREADS, 0, s->cuda>>>((G *)dw.data, (const T *)dy.data, pi, next, later,
                                                                      first, V, C);
    })));
    TRY_LAUNCH("embed_backward");
    return OK;
}

/* ---- statistics of a row ---- */
struct row_stats {
    float most, sum, mean; /* max x, sum e^(x - max), sum e^(x - max) x */
};

__device__ __forceinline__ struct row_stats merge(struct row_stats a, struct row_stats b)
{
    if (b.most > a.most) {
        struct row_stats c = a;
        a = b;
        b = c;
    }
    if (b.most == -INFINITY) return a;
    float e = expf(b.most - a.most);
    a.sum += b.sum * e;
    a.mean += b.mean * e;
    return a;
}

template <int N, class T>
__global__ void vocab_stats_kernel(float *stats, const T *logits, const int32_t *targets, int64_t first, int64_t V,
                                   float inv_temp)
{
    __shared__ struct row_stats shared[32];
    const T *row = logits + blockIdx.x * V;
    struct row_stats mine = {-INFINITY, 0, 0};
    for (int64_t c = (int64_t)threadIdx.x * N; c < V; c += (int64_t)blockDim.x * N) {
        float f[N], most = -INFINITY;
        load<N>(f, row + c);
#pragma unroll
        for (int j = 0; j < N; j++) {
            f[j] *= inv_temp;
            most = fmaxf(most, f[j]);
        }
        if (most > mine.most) {
            float e = mine.most == -INFINITY ? 0 : expf(mine.most - most);
            mine.sum *= e;
            mine.mean *= e;
            mine.most = most;
        }
        float base = mine.most == -INFINITY ? 0 : mine.most;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float e = expf(f[j] - base);
            mine.sum += e;
            mine.mean += e == 0 ? 0 : e * f[j];
        }
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        struct row_stats other = {__shfl_xor_sync(~0u, mine.most, i), __shfl_xor_sync(~0u, mine.sum, i),
                                  __shfl_xor_sync(~0u, mine.mean, i)};
        mine = merge(mine, other);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < (int)blockDim.x / 32; i++) mine = merge(mine, shared[i]);
    int64_t target = targets[blockIdx.x] < 0 ? -1 : targets[blockIdx.x] - first;
    float *out = stats + (int64_t)blockIdx.x * 4;
    out[0] = mine.most;
    out[1] = mine.sum;
    out[2] = target >= 0 && target < V ? to_float(row[target]) * inv_temp : 0;
    out[3] = mine.mean;
}

extern "C" enum status vocab_stats_cuda(struct tensor stats, struct tensor logits, struct tensor targets, int64_t first,
                                        float inv_temp, struct stream *s)
{
    TRY(check_vocab_stats(stats, logits, targets));
    NEED_STREAM("vocab_stats", s);
    int64_t T_ = targets.dim[0], V = logits.dim[1];
    if (T_ == 0) return OK;
    BY_DTYPE(logits.dtype, T, BY_WIDTH(is_wide(logits), N, {
        vocab_stats_kernel<N><<<(unsigned)T_, STATS_THREADS, 0, s->cuda>>>(
            (float *)stats.data, (const T *)logits.data, (const int32_t *)targets.data, first, V, inv_temp);
    }));
    TRY_LAUNCH("vocab_stats");
    return OK;
}

__global__ void vocab_join_kernel(float *logp, float *entropy, float *lse, const float *stats, const int32_t *targets,
                                  int64_t T, int64_t ranks)
{
    int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= T) return;
    double most = -INFINITY, sum = 0, own = 0, mean = 0;
    for (int64_t r = 0; r < ranks; r++) most = fmax(most, (double)stats[(r * T + t) * 4]);
    for (int64_t r = 0; r < ranks; r++) {
        const float *p = stats + (r * T + t) * 4;
        double scale = (double)p[0] == most ? 1 : exp((double)p[0] - most);
        sum += p[1] * scale;
        own += p[2];
        mean += p[3] * scale;
    }
    double total = most + log(sum);
    lse[t] = (float)total;
    entropy[t] = (float)(total - mean / sum);
    logp[t] = targets[t] < 0 ? 0 : (float)(own - total);
}

extern "C" enum status vocab_join_cuda(struct tensor logp, struct tensor entropy, struct tensor lse, struct tensor stats,
                                       struct tensor targets, struct stream *s)
{
    TRY(check_vocab_join(logp, entropy, lse, stats, targets));
    NEED_STREAM("vocab_join", s);
    int64_t T = targets.dim[0];
    if (T == 0) return OK;
    vocab_join_kernel<<<(unsigned)ceil_div(T, JOIN_THREADS), JOIN_THREADS, 0, s->cuda>>>(
        (float *)logp.data, (float *)entropy.data, (float *)lse.data, (const float *)stats.data,
        (const int32_t *)targets.data, T, stats.dim[0]);
    TRY_LAUNCH("vocab_join");
    return OK;
}

/* With H the entropy: dH/dx_i = -p_i (x_i - lse + H). A block a piece of a row. */
template <int N, class T>
__global__ void vocab_backward_kernel(T *dlogits, const T *logits, const int32_t *targets, int64_t first, int64_t V,
                                      float inv_temp, const float *lse, const float *entropy, const float *dlogp,
                                      const float *dentropy, int pieces)
{
    int64_t t = blockIdx.x / pieces, c0 = (int64_t)(blockIdx.x % pieces) * GRAD_THREADS * GRAD_STEPS * N;
    int64_t target = targets[t] < 0 ? -1 : targets[t] - first;
    float d = targets[t] < 0 ? 0 : dlogp[t], de = dentropy ? dentropy[t] : 0, total = lse[t];
    float h = dentropy ? entropy[t] : 0;
#pragma unroll
    for (int k = 0; k < GRAD_STEPS; k++) {
        int64_t c = c0 + ((int64_t)k * GRAD_THREADS + threadIdx.x) * N;
        if (c >= V) return;
        float f[N] = {};
        if (d != 0 || de != 0) {
            load<N>(f, logits + t * V + c);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float v = f[j] * inv_temp - total, p = expf(v);
                f[j] = p == 0 ? 0 : -inv_temp * p * (de == 0 ? d : d + de * (v + h));
                if (c + j == target) f[j] += inv_temp * d;
            }
        }
        store<N>(dlogits + t * V + c, f);
    }
}

extern "C" enum status vocab_backward_cuda(struct tensor dlogits, struct tensor logits, struct tensor targets,
                                           int64_t first, float inv_temp, struct tensor lse, struct tensor entropy,
                                           struct tensor dlogp, struct tensor dentropy, struct stream *s)
{
    TRY(check_vocab_backward(dlogits, logits, targets, lse, entropy, dlogp, dentropy));
    NEED_STREAM("vocab_backward", s);
    int64_t T_ = targets.dim[0], V = logits.dim[1];
    if (T_ * V == 0) return OK;
    BY_DTYPE(logits.dtype, T, BY_WIDTH(is_wide(logits) && is_wide(dlogits), N, {
        int64_t pieces = ceil_div(V, GRAD_THREADS * GRAD_STEPS * N);
        vocab_backward_kernel<N><<<(unsigned)(T_ * pieces), GRAD_THREADS, 0, s->cuda>>>(
            (T *)dlogits.data, (const T *)logits.data, (const int32_t *)targets.data, first, V, inv_temp,
            (const float *)lse.data, (const float *)entropy.data, (const float *)dlogp.data,
            (const float *)dentropy.data, (int)pieces);
    }));
    TRY_LAUNCH("vocab_backward");
    return OK;
}
