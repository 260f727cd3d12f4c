/* s = scale q k^T, p = exp(s - lse), o = p v
 * delta = rowsum(d_o * o), dv = p^T d_o, dp = d_o v^T, ds = p (dp - delta), dk = scale ds^T q, dq = scale ds k
 *
 * A warp a query and head; a lane a key for the scores, a lane every 32nd channel for the sums. dk and dv: a warp a key
 * and KV head, a lane a query. One writer an output, additions in a fixed order. */
#include "attend_plain.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, CHANNELS = PLAIN_HEAD_MAX / 32 };

struct plain_shape {
    struct key_map map;
    const int32_t *sel; /* [K, rows, slots] or NULL */
    int64_t rows, k_ld, v_ld, dk_ld, dv_ld;
    int H, K, D, slots, block;
    float scale;
};

/* Key ranges of a query: all up to its position, or its blocks. */
__device__ __forceinline__ int range_count(const struct plain_shape &z) { return z.sel ? z.slots : 1; }
__device__ __forceinline__ void range_at(const struct plain_shape &z, int i, int64_t row, int kv, int pos, int *from, int *to)
{
    *from = 0, *to = pos + 1;
    if (!z.sel) return;
    int b = z.sel[((int64_t)kv * z.rows + row) * z.slots + i];
    *from = b < 0 ? pos + 1 : b * z.block;
    *to = b < 0 ? 0 : min(pos + 1, (b + 1) * z.block);
}

template <class T> __device__ __forceinline__ float dot(const float *q, const T *k, int D)
{
    float s = 0;
    for (int d = 0; d < D; d++) s += q[d] * to_float(k[d]);
    return s;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
attend_plain_forward_kernel(T *o, float *lse, const T *q, const T *k, const T *v, const __grid_constant__ struct plain_shape z)
{
    __shared__ float shared[WARPS][PLAIN_HEAD_MAX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t unit = (int64_t)blockIdx.x * WARPS + warp, row = unit / z.H;
    if (row >= z.rows) return;
    int h = (int)(unit % z.H), kv = h / (z.H / z.K);
    struct query_at at = query_at(z.map, (int)row);
    float acc[CHANNELS] = {}, most = -INFINITY, sum = 0, *mine = shared[warp];
    for (int d = lane; d < z.D; d += 32) mine[d] = to_float(q[unit * z.D + d]) * z.scale;
    __syncwarp();
    for (int i = 0; at.seq < z.map.S && i < range_count(z); i++) {
        int from, to;
        range_at(z, i, row, kv, at.pos, &from, &to);
        for (int j0 = from; j0 < to; j0 += 32) {
            int j = j0 + lane, n = min(32, to - j0);
            int64_t key = j < to ? key_row(z.map, at.seq, j) : 0;
            float x = j < to ? dot(mine, k + key * z.k_ld + kv * z.D, z.D) : -INFINITY;
            float now = fmaxf(most, warp_max(x)), old = most == -INFINITY ? 0 : expf(most - now);
            float p = j < to ? expf(x - now) : 0;
            sum = sum * old + warp_sum(p);
            most = now;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) acc[c] *= old;
            for (int l = 0; l < n; l++) {
                float pl = __shfl_sync(~0u, p, l);
                const T *vl = v + __shfl_sync(~0u, key, l) * z.v_ld + kv * z.D;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++)
                    if (lane + 32 * c < z.D) acc[c] += pl * to_float(vl[lane + 32 * c]);
            }
        }
    }
    float r = sum > 0 ? 1.0f / sum : 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (lane + 32 * c < z.D) o[unit * z.D + lane + 32 * c] = from_float<T>(acc[c] * r);
    if (lse && lane == 0) lse[h * z.rows + row] = sum > 0 ? most + logf(sum) : 0;
}

template <class T>
__global__ void attend_delta_kernel(float *delta, const T *o, const T *d_o, int64_t rows, int H, int D)
{
    int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = unit / H;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int d = lane; d < D; d += 32) sum += to_float(o[unit * D + d]) * to_float(d_o[unit * D + d]);
    sum = warp_sum(sum);
    if (lane == 0) delta[unit % H * rows + row] = sum;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
attend_plain_dq_kernel(T *dq, const T *d_o, const T *q, const T *k, const T *v, const float *lse, const float *delta,
                       const __grid_constant__ struct plain_shape z)
{
    __shared__ float shared[WARPS][2][PLAIN_HEAD_MAX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t unit = (int64_t)blockIdx.x * WARPS + warp, row = unit / z.H;
    if (row >= z.rows) return;
    int h = (int)(unit % z.H), kv = h / (z.H / z.K);
    struct query_at at = query_at(z.map, (int)row);
    float acc[CHANNELS] = {}, *mq = shared[warp][0], *md = shared[warp][1];
    float total = lse[h * z.rows + row], del = delta[h * z.rows + row];
    for (int d = lane; d < z.D; d += 32) {
        mq[d] = to_float(q[unit * z.D + d]) * z.scale;
        md[d] = to_float(d_o[unit * z.D + d]);
    }
    __syncwarp();
    for (int i = 0; at.seq < z.map.S && i < range_count(z); i++) {
        int from, to;
        range_at(z, i, row, kv, at.pos, &from, &to);
        for (int j0 = from; j0 < to; j0 += 32) {
            int j = j0 + lane, n = min(32, to - j0);
            int64_t key = j < to ? key_row(z.map, at.seq, j) : 0;
            float ds = 0;
            if (j < to) {
                float p = expf(dot(mq, k + key * z.k_ld + kv * z.D, z.D) - total);
                ds = p * (dot(md, v + key * z.v_ld + kv * z.D, z.D) - del) * z.scale;
            }
            for (int l = 0; l < n; l++) {
                float dl = __shfl_sync(~0u, ds, l);
                const T *kl = k + __shfl_sync(~0u, key, l) * z.k_ld + kv * z.D;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++)
                    if (lane + 32 * c < z.D) acc[c] += dl * to_float(kl[lane + 32 * c]);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (lane + 32 * c < z.D) dq[unit * z.D + lane + 32 * c] = from_float<T>(acc[c]);
}

/* Does query row t (of the key's sequence, not before it) read the key's block? */
__device__ __forceinline__ bool reads_block(const struct plain_shape &z, int kv, int64_t row, int b)
{
    if (!z.sel) return true;
    const int32_t *sel = z.sel + ((int64_t)kv * z.rows + row) * z.slots;
    for (int i = 0; i < z.slots; i++)
        if (sel[i] == b) return true;
    return false;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
attend_plain_dkv_kernel(T *dk, T *dv, const T *d_o, const T *q, const T *k, const T *v, const float *lse,
                        const float *delta, const __grid_constant__ struct plain_shape z)
{
    __shared__ float shared[WARPS][2][PLAIN_HEAD_MAX];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, G = z.H / z.K;
    int64_t unit = (int64_t)blockIdx.x * WARPS + warp, row = unit / z.K;
    if (row >= z.rows) return;
    int kv = (int)(unit % z.K);
    struct query_at at = query_at(z.map, (int)row);
    float ak[CHANNELS] = {}, av[CHANNELS] = {}, *mk = shared[warp][0], *mv = shared[warp][1];
    for (int d = lane; d < z.D; d += 32) {
        mk[d] = to_float(k[row * z.k_ld + kv * z.D + d]) * z.scale;
        mv[d] = to_float(v[row * z.v_ld + kv * z.D + d]);
    }
    __syncwarp();
    int64_t end = at.seq < z.map.S ? z.map.start[at.seq + 1] : row;
    for (int64_t t0 = row; t0 < end; t0 += 32) {
        int64_t t = t0 + lane;
        bool live = t < end && reads_block(z, kv, t, z.sel ? at.pos / z.block : 0);
        unsigned any = __ballot_sync(~0u, live);
        for (int g = 0; any && g < G; g++) {
            int h = kv * G + g;
            float p = 0, ds = 0;
            if (live) {
                const int64_t u = t * z.H + h;
                p = expf(dot(mk, q + u * z.D, z.D) - lse[h * z.rows + t]);
                ds = p * (dot(mv, d_o + u * z.D, z.D) - delta[h * z.rows + t]) * z.scale;
            }
            for (unsigned left = any; left; left &= left - 1) {
                int l = __ffs(left) - 1;
                float pl = __shfl_sync(~0u, p, l), dl = __shfl_sync(~0u, ds, l);
                int64_t u = ((t0 + l) * z.H + h) * z.D;
#pragma unroll
                for (int c = 0; c < CHANNELS; c++)
                    if (lane + 32 * c < z.D) {
                        ak[c] += dl * to_float(q[u + lane + 32 * c]);
                        av[c] += pl * to_float(d_o[u + lane + 32 * c]);
                    }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (lane + 32 * c < z.D) {
            dk[row * z.dk_ld + kv * z.D + lane + 32 * c] = from_float<T>(ak[c]);
            dv[row * z.dv_ld + kv * z.D + lane + 32 * c] = from_float<T>(av[c]);
        }
}

static enum status check_head_size(const char *op, int64_t D)
{
    if (D <= PLAIN_HEAD_MAX) return OK;
    return FAIL(ERR_INTERNAL, "%s: head size %lld, at most %d", op, (long long)D, PLAIN_HEAD_MAX);
}

static struct plain_shape packed_shape(const struct attend_args *a)
{
    struct plain_shape z = {};
    z.map = packed_map(a->cu_seqlens);
    z.sel = (const int32_t *)a->sel.data;
    z.rows = a->q.dim[0];
    z.k_ld = a->k.ld, z.v_ld = a->v.ld, z.dk_ld = a->dk.ld, z.dv_ld = a->dv.ld;
    z.H = (int)a->q.dim[1], z.K = (int)a->k.dim[1], z.D = (int)a->q.dim[2];
    z.slots = (int)a->sel.dim[2], z.block = a->block;
    z.scale = a->scale;
    return z;
}

static unsigned grid_for(int64_t rows, int heads) { return (unsigned)ceil_div(rows * heads, WARPS); }

enum status attend_plain_forward(const struct attend_args *a, struct stream *s)
{
    struct plain_shape z = packed_shape(a);
    TRY(check_head_size("attend_forward", z.D));
    BY_DTYPE(a->q.dtype, T, {
        attend_plain_forward_kernel<<<grid_for(z.rows, z.H), THREADS, 0, s->cuda>>>(
            (T *)a->o.data, (float *)a->lse.data, (const T *)a->q.data, (const T *)a->k.data, (const T *)a->v.data, z);
    });
    TRY_LAUNCH("attend_forward");
    return OK;
}

enum status attend_delta(float *delta, const struct attend_args *a, struct stream *s)
{
    int64_t rows = a->q.dim[0];
    int H = (int)a->q.dim[1], D = (int)a->q.dim[2];
    BY_DTYPE(a->q.dtype, T, {
        attend_delta_kernel<<<grid_for(rows, H), THREADS, 0, s->cuda>>>(delta, (const T *)a->o.data, (const T *)a->d_o.data,
                                                                       rows, H, D);
    });
    TRY_LAUNCH("attend_delta");
    return OK;
}

enum status attend_plain_backward(const struct attend_args *a, float *delta, struct stream *s)
{
    struct plain_shape z = packed_shape(a);
    TRY(check_head_size("attend_backward", z.D));
    TRY(attend_delta(delta, a, s));
    const float *lse = (const float *)a->lse.data;
    BY_DTYPE(a->q.dtype, T, {
        const T *d = (const T *)a->d_o.data, *q = (const T *)a->q.data, *k = (const T *)a->k.data, *v = (const T *)a->v.data;
        attend_plain_dq_kernel<<<grid_for(z.rows, z.H), THREADS, 0, s->cuda>>>((T *)a->dq.data, d, q, k, v, lse, delta, z);
        attend_plain_dkv_kernel<<<grid_for(z.rows, z.K), THREADS, 0, s->cuda>>>((T *)a->dk.data, (T *)a->dv.data, d, q, k,
                                                                               v, lse, delta, z);
    });
    TRY_LAUNCH("attend_backward");
    return OK;
}

enum status attend_plain_paged(const struct paged_args *a, struct stream *s)
{
    struct plain_shape z = {};
    z.map = paged_map(a);
    z.sel = (const int32_t *)a->sel.data;
    z.rows = a->q.dim[0];
    z.k_ld = z.v_ld = tensor_row(a->k_cache);
    z.H = (int)a->q.dim[1], z.K = (int)a->k_cache.dim[1], z.D = (int)a->q.dim[2];
    z.slots = (int)a->sel.dim[2], z.block = a->block;
    z.scale = a->scale;
    TRY(check_head_size("attend_paged", z.D));
    BY_DTYPE(a->q.dtype, T, {
        attend_plain_forward_kernel<<<grid_for(z.rows, z.H), THREADS, 0, s->cuda>>>(
            (T *)a->o.data, (float *)NULL, (const T *)a->q.data, (const T *)a->k_cache.data, (const T *)a->v_cache.data, z);
    });
    TRY_LAUNCH("attend_paged");
    return OK;
}
