/* The q, k, v and index projections of a token: per-head RMSNorm (Gemma style), RoPE on the first `rotary` channels
 * (NeoX halves), and the row's way into the paged caches, in one pass over qkv.
 *
 * One head: n = x * rstd, z = n * (1 + w), y = rope(z); backward dz = rope^T(dy), dw += dz * n, g = dz * (1 + w),
 * dx = rstd * (g - x * rstd^2 mean(g * x)).
 *
 * Bound by memory. A block takes a token: its angles go to shared memory once, then groups of lanes take a head each, 8
 * channels a lane (or one channel at a time where sizes are odd). Where half the rotary channels are whole lanes, partners
 * of a rotation are lanes that exchange registers, and a lane keeps its cosines and sines; else they meet in shared memory.
 *
 * Measured on an H200, 2026-12-01, 16384 tokens, 64/4 heads of 128: forward with 4 index heads 0.280 ms, 2190 GB/s; backward
 * 0.437 ms, 1960: half the copy rate, lost to waits between a warp's heads, which come one after the other. */
#include "cuda_util.cuh"

enum { QKV_THREADS = 256, QKV_WARPS = QKV_THREADS / 32, QKV_HEAD_MAX = 256 };

struct angles {
    float inv_freq[QKV_HEAD_MAX / 2];
};

/* 1 / theta^(2j/rotary) in the roundings of the reference: the exponent, the power and the quotient are float32. */
static struct angles angles_of(float theta, int rotary)
{
    struct angles a = {};
    for (int j = 0; j < rotary / 2; j++) {
        float exponent = (float)(2 * j) / (float)rotary;
        a.inv_freq[j] = 1.0f / (float)pow((double)theta, (double)exponent);
    }
    return a;
}

/* Heads of one kind: columns of qkv, where they go, their norm (none: copied, for v). */
template <class T> struct heads {
    int64_t column;   /* of qkv */
    T *out, *cache;   /* token stride count * D; NULL: not wanted */
    const T *w;
    float *rstd;      /* token stride `rstd_ld`, or NULL */
    int count, D;
};
enum { KINDS = 5 };
template <class T> struct qkv_params {
    const T *qkv;
    int64_t ld, rstd_ld;
    const int32_t *pos, *slot;
    float eps;
    int rotary, units, lanes; /* heads of all kinds; lanes that take a head */
    struct heads<T> kind[KINDS];
};

/* cos and sin of this token's angles to shared memory, by the whole block. */
__device__ __forceinline__ void angles_at(float *cosine, float *sine, const struct angles &a, int pos, int half)
{
    for (int j = threadIdx.x; j < half; j += blockDim.x) sincosf((float)pos * a.inv_freq[j], &sine[j], &cosine[j]);
}

/* N channels from c of the head in `mine` (its group's shared row), rotated. BACK: by the negative angle. */
template <int N, bool BACK>
__device__ __forceinline__ void rotate(float (&f)[N], const float *mine, const float *cosine, const float *sine, int c,
                                       int rotary)
{
    int half = rotary / 2;
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = c + j;
        if (i >= rotary) continue;
        float other = mine[i < half ? i + half : i - half], cs = cosine[i < half ? i : i - half];
        float sn = sine[i < half ? i : i - half];
        if (i < half) sn = -sn;
        if (BACK) sn = -sn;
        f[j] = f[j] * cs + other * sn;
    }
}

/* A lane's channels c .. c + 7 as the rotation sees them: f cs + (partner's f) sn. BACK: by the negative angle. */
struct turn {
    float cs[8], sn[8];
    int partner; /* lane of the warp */
};
template <bool BACK>
__device__ __forceinline__ struct turn turn_at(const float *cosine, const float *sine, int c, int rotary)
{
    int half = rotary / 2, lane = threadIdx.x % 32;
    bool low = c < half, in = c < rotary;
    struct turn r;
    r.partner = !in ? lane : low ? lane + half / 8 : lane - half / 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int i = in ? (low ? c : c - half) + j : 0;
        float sn = sine[i];
        r.cs[j] = in ? cosine[i] : 1;
        r.sn[j] = in ? (low != BACK ? -sn : sn) : 0;
    }
    return r;
}
__device__ __forceinline__ void rotate(float (&f)[8], const struct turn &r)
{
#pragma unroll
    for (int j = 0; j < 8; j++) f[j] = f[j] * r.cs[j] + __shfl_sync(~0u, f[j], r.partner) * r.sn[j];
}

/* PER: steps of lanes * N channels that cover a head. SWAP: partners exchange registers. */
template <int N, int PER, bool SWAP, class T>
__global__ void __launch_bounds__(QKV_THREADS, N == 1 ? 2 : 4) qkv_forward_kernel(const __grid_constant__ struct qkv_params<T> p, const __grid_constant__ struct angles a)
{
    __shared__ float cosine[QKV_HEAD_MAX / 2], sine[QKV_HEAD_MAX / 2], exchange[QKV_WARPS][QKV_HEAD_MAX];
    int64_t t = blockIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = 32 / p.lanes, l = lane % p.lanes;
    angles_at(cosine, sine, a, p.pos[t], p.rotary / 2);
    int32_t slot = p.slot ? p.slot[t] : -1;
    __syncthreads();
    struct turn turn = {};
    if constexpr (SWAP) turn = turn_at<false>(cosine, sine, l * 8, p.rotary);
    for (int first = warp * groups; first < p.units; first += QKV_WARPS * groups) { /* the warp stays together */
        int u = first + lane / p.lanes, kind = 0;
        bool live = u < p.units;
        if (!live) u = p.units - 1;
        while (u >= p.kind[kind].count) u -= p.kind[kind++].count;
        const struct heads<T> &h = p.kind[kind];
        const T *in = p.qkv + t * p.ld + h.column + (int64_t)u * h.D;
        float f[PER][N] = {}, sum = 0;
        float *mine = exchange[warp] + lane / p.lanes * (QKV_HEAD_MAX / groups);
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int c = (k * p.lanes + l) * N;
            if (c >= h.D) continue;
            load<N>(f[k], in + c);
#pragma unroll
            for (int j = 0; j < N; j++) sum += f[k][j] * f[k][j];
        }
        for (int i = p.lanes / 2; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
        float r = 1.0f / sqrtf(sum / (float)h.D + p.eps);
        if (live && h.w && h.rstd && l == 0) h.rstd[t * p.rstd_ld + u] = r;
        if (h.w) {
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int c = (k * p.lanes + l) * N;
                if (c >= h.D) continue;
                float w[N];
                load<N>(w, h.w + c);
#pragma unroll
                for (int j = 0; j < N; j++) f[k][j] = f[k][j] * r * (1.0f + w[j]);
                if constexpr (!SWAP)
#pragma unroll
                    for (int j = 0; j < N; j++) mine[c + j] = f[k][j];
            }
        }
        __syncwarp();
        if constexpr (SWAP) {
            float turned[N];
#pragma unroll
            for (int j = 0; j < N; j++) turned[j] = f[0][j];
            rotate(turned, turn);
#pragma unroll
            for (int j = 0; j < N; j++) f[0][j] = h.w ? turned[j] : f[0][j];
        }
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int c = (k * p.lanes + l) * N;
            if (c >= h.D || !live) continue;
            if (!SWAP && h.w) rotate<N, false>(f[k], mine, cosine, sine, c, p.rotary);
            if (h.out) store<N>(h.out + (t * h.count + u) * h.D + c, f[k]);
            if (h.cache && slot >= 0) store<N>(h.cache + ((int64_t)slot * h.count + u) * h.D + c, f[k]);
        }
        __syncwarp();
    }
}

/* Lanes a head takes: the smallest power of two that covers D with N channels each; at most 32. */
static int lanes_for(int64_t D, int N)
{
    int lanes = 1;
    while (lanes < 32 && (int64_t)lanes * N < D) lanes *= 2;
    return lanes;
}

template <class T> static struct qkv_params<T> forward_params(const struct qkv_args *a)
{
    int64_t H = a->q.dim[1], K = a->k.dim[1], D = a->q.dim[2];
    bool index = !tensor_none(a->iq_norm), cached = !tensor_none(a->k_cache);
    int64_t I = index ? a->iq.dim[1] : 0, Di = index ? a->iq_norm.dim[0] : 0, at = index ? (I + 1) * Di : 0;
    float *rstd = (float *)a->rstd.data;
    struct qkv_params<T> p = {};
    p.qkv = (const T *)a->qkv.data;
    p.ld = a->qkv.ld;
    p.rstd_ld = H + K;
    p.pos = (const int32_t *)a->pos.data;
    p.slot = cached ? (const int32_t *)a->slot.data : NULL;
    p.eps = a->eps;
    p.rotary = a->rotary;
    p.kind[0] = {at, (T *)a->q.data, NULL, (const T *)a->q_norm.data, rstd, (int)H, (int)D};
    p.kind[1] = {at + H * D, (T *)a->k.data, (T *)a->k_cache.data, (const T *)a->k_norm.data, rstd ? rstd + H : NULL,
                 (int)K, (int)D};
    p.kind[2] = {0, (T *)a->iq.data, NULL, (const T *)a->iq_norm.data, NULL, (int)I, (int)Di};
    p.kind[3] = {I * Di, (T *)a->ik.data, (T *)a->ik_cache.data, (const T *)a->ik_norm.data, NULL, index ? 1 : 0, (int)Di};
    p.kind[4] = {at + (H + K) * D, NULL, (T *)a->v_cache.data, NULL, NULL, cached ? (int)K : 0, (int)D};
    for (int i = 0; i < KINDS; i++) p.units += p.kind[i].count;
    return p;
}

static enum status check_head(const char *op, int64_t D, int64_t Di)
{
    if (D <= QKV_HEAD_MAX && Di <= QKV_HEAD_MAX) return OK;
    return FAIL(ERR_INTERNAL, "%s: head sizes %lld and %lld, at most %d", op, (long long)D, (long long)Di, QKV_HEAD_MAX);
}

/* Heads of D channels start on 16 bytes; t: a vector of them, or rows. */
static bool wide_heads(struct tensor t, int64_t D)
{
    return tensor_none(t) || ((uintptr_t)t.data % 16 == 0 && D % 8 == 0 && (t.rank == 1 || t.dim[0] <= 1 || t.ld % 8 == 0));
}

extern "C" enum status qkv_forward_cuda(const struct qkv_args *a, struct stream *s)
{
    TRY(check_qkv_forward(a));
    NEED_STREAM("qkv_forward", s);
    int64_t T_ = a->qkv.dim[0], D = a->q.dim[2], Di = tensor_none(a->iq_norm) ? 0 : a->iq_norm.dim[0];
    TRY(check_head("qkv_forward", D, Di));
    if (T_ == 0) return OK;
    bool wide = wide_heads(a->qkv, D) && wide_heads(a->q, D) && wide_heads(a->k, D) && wide_heads(a->k_cache, D) &&
                wide_heads(a->v_cache, D) && wide_heads(a->q_norm, D) && wide_heads(a->k_norm, D) && Di % 8 == 0 &&
                wide_heads(a->iq, Di) && wide_heads(a->ik, Di) && wide_heads(a->ik_cache, Di) &&
                wide_heads(a->iq_norm, Di) && wide_heads(a->ik_norm, Di);
    struct angles an = angles_of(a->theta, a->rotary);
    BY_DTYPE(a->qkv.dtype, T, {
        struct qkv_params<T> p = forward_params<T>(a);
        p.lanes = lanes_for(D > Di ? D : Di, wide ? 8 : 1);
        if (wide && a->rotary % 16 == 0) qkv_forward_kernel<8, 1, true><<<(unsigned)T_, QKV_THREADS, 0, s->cuda>>>(p, an);
        else if (wide) qkv_forward_kernel<8, 1, false><<<(unsigned)T_, QKV_THREADS, 0, s->cuda>>>(p, an);
        else qkv_forward_kernel<1, QKV_HEAD_MAX / 32, false><<<(unsigned)T_, QKV_THREADS, 0, s->cuda>>>(p, an);
    });
    TRY_LAUNCH("qkv_forward");
    return OK;
}

/* ---- backward ---- */
template <class T> struct dqkv_params {
    const T *qkv, *dy[2], *w[2]; /* qkv: at the first q column; q then k */
    T *dqkv;
    int64_t ld, d_ld, T_;
    const int32_t *pos;
    const float *rstd;
    float *part; /* [gridDim.x, 2, D] */
    int H, K, D, rotary, lanes;
};

template <int N, int PER, bool SWAP, class T>
__global__ void qkv_backward_kernel(const __grid_constant__ struct dqkv_params<T> p, const __grid_constant__ struct angles a)
{
    __shared__ float cosine[QKV_HEAD_MAX / 2], sine[QKV_HEAD_MAX / 2], exchange[QKV_WARPS][QKV_HEAD_MAX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = 32 / p.lanes, l = lane % p.lanes;
    int units = p.H + p.K;
    float dw[2][PER][N] = {};
    float *mine = exchange[warp] + lane / p.lanes * (QKV_HEAD_MAX / groups);
    for (int64_t t = blockIdx.x; t < p.T_; t += gridDim.x) {
        __syncthreads();
        angles_at(cosine, sine, a, p.pos[t], p.rotary / 2);
        __syncthreads();
        struct turn turn = {};
        if constexpr (SWAP) turn = turn_at<true>(cosine, sine, l * 8, p.rotary);
        for (int first = warp * groups; first < units; first += QKV_WARPS * groups) {
            int u = first + lane / p.lanes;
            bool live = u < units;
            if (!live) u = units - 1;
            bool is_k = u >= p.H;
            const T *x = p.qkv + t * p.ld + (int64_t)u * p.D;
            const T *dy = is_k ? p.dy[1] + (t * p.K + u - p.H) * p.D : p.dy[0] + (t * p.H + u) * p.D;
            const T *w = p.w[is_k];
            float r = p.rstd[t * units + u], v[PER][N] = {}, g[PER][N] = {}, sum = 0;
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int c = (k * p.lanes + l) * N;
                if (c >= p.D) continue;
                load<N>(v[k], x + c);
                load<N>(g[k], dy + c);
                if constexpr (!SWAP)
#pragma unroll
                    for (int j = 0; j < N; j++) mine[c + j] = g[k][j];
            }
            __syncwarp();
            if constexpr (SWAP) rotate(g[0], turn);
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int c = (k * p.lanes + l) * N;
                if (c >= p.D) continue;
                float weight[N];
                load<N>(weight, w + c);
                if constexpr (!SWAP) rotate<N, true>(g[k], mine, cosine, sine, c, p.rotary);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    float d = live ? g[k][j] * (v[k][j] * r) : 0;
                    dw[0][k][j] += is_k ? 0 : d;
                    dw[1][k][j] += is_k ? d : 0;
                    g[k][j] *= 1.0f + weight[j];
                    sum += g[k][j] * v[k][j];
                }
            }
            for (int i = p.lanes / 2; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
            float mean = sum / (float)p.D * r * r;
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int c = (k * p.lanes + l) * N;
                if (c >= p.D || !live) continue;
#pragma unroll
                for (int j = 0; j < N; j++) g[k][j] = r * (g[k][j] - v[k][j] * mean);
                store<N>(p.dqkv + t * p.d_ld + (int64_t)u * p.D + c, g[k]);
            }
            __syncwarp();
        }
    }
    /* The block's share of both dw: first over the groups of a warp, then over the warps, in order. */
    for (int which = 0; which < 2; which++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PER; k++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                float d = dw[which][k][j];
                for (int i = p.lanes; i < 32; i <<= 1) d += __shfl_xor_sync(~0u, d, i);
                int c = (k * p.lanes + l) * N + j;
                if (lane < p.lanes && c < p.D) exchange[warp][c] = d;
            }
        __syncthreads();
        for (int c = threadIdx.x; c < p.D; c += blockDim.x) {
            float d = 0;
            for (int i = 0; i < QKV_WARPS; i++) d += exchange[i][c];
            p.part[((int64_t)blockIdx.x * 2 + which) * p.D + c] = d;
        }
    }
}

__global__ void qkv_dw_kernel(float *dq_norm, float *dk_norm, const float *part, int parts, int D)
{
    __shared__ float shared[32];
    int c = blockIdx.x % D, which = blockIdx.x / D;
    float sum = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) sum += part[((int64_t)i * 2 + which) * D + c];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) (which ? dk_norm : dq_norm)[c] += sum;
}

extern "C" enum status qkv_backward_cuda(const struct qkv_args *a, struct stream *s)
{
    TRY(check_qkv_backward(a));
    NEED_STREAM("qkv_backward", s);
    int64_t T_ = a->qkv.dim[0], H = a->dq.dim[1], K = a->dk.dim[1], D = a->dq.dim[2];
    int64_t Di = tensor_none(a->iq_norm) ? 0 : a->iq_norm.dim[0], skip = Di ? (a->iq.dim[1] + 1) * Di : 0;
    TRY(check_head("qkv_backward", D, 0));
    if (T_ * (H + K) == 0) return OK;
    bool wide = wide_heads(a->qkv, D) && wide_heads(a->dq, D) && wide_heads(a->dk, D) && wide_heads(a->dqkv, D) &&
                wide_heads(a->q_norm, D) && wide_heads(a->k_norm, D) && skip % 8 == 0;
    struct angles an = angles_of(a->theta, a->rotary);
    int parts = (int)lesser(T_, s->sms * 4);
    float *part = (float *)s->scratch;
    BY_DTYPE(a->qkv.dtype, T, {
        struct dqkv_params<T> p = {};
        p.qkv = (const T *)a->qkv.data + skip;
        p.dy[0] = (const T *)a->dq.data;
        p.dy[1] = (const T *)a->dk.data;
        p.w[0] = (const T *)a->q_norm.data;
        p.w[1] = (const T *)a->k_norm.data;
        p.dqkv = (T *)a->dqkv.data;
        p.ld = a->qkv.ld;
        p.d_ld = a->dqkv.ld;
        p.T_ = T_;
        p.pos = (const int32_t *)a->pos.data;
        p.rstd = (const float *)a->rstd.data;
        p.part = part;
        p.H = (int)H, p.K = (int)K, p.D = (int)D;
        p.rotary = a->rotary;
        p.lanes = lanes_for(D, wide ? 8 : 1);
        if (wide && a->rotary % 16 == 0) qkv_backward_kernel<8, 1, true><<<parts, QKV_THREADS, 0, s->cuda>>>(p, an);
        else if (wide) qkv_backward_kernel<8, 1, false><<<parts, QKV_THREADS, 0, s->cuda>>>(p, an);
        else qkv_backward_kernel<1, QKV_HEAD_MAX / 32, false><<<parts, QKV_THREADS, 0, s->cuda>>>(p, an);
    });
    TRY_LAUNCH("qkv_backward");
    qkv_dw_kernel<<<(unsigned)(2 * D), 128, 0, s->cuda>>>((float *)a->dq_norm.data, (float *)a->dk_norm.data, part,
                                                          parts, (int)D);
    TRY_LAUNCH("qkv_backward");
    return OK;
}
