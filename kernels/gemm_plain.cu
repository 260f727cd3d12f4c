#include "gemm_plain.cuh"

enum { TILE = 64, TILE_K = 16, PLAIN_THREADS = 256 };

/* A tile of one operand, as [TILE_K][TILE]; neighbours in memory go to neighbouring threads. */
template <class T>
__device__ __forceinline__ void load_tile(float (*tile)[TILE + 1], const T *p, const struct plain_operand &o, int64_t row0,
                                          int64_t rows, int64_t k0, int64_t k_end)
{
    for (int i = threadIdx.x; i < TILE * TILE_K; i += PLAIN_THREADS) {
        int r = o.k == 1 ? i / TILE_K : i % TILE, k = o.k == 1 ? i % TILE_K : i / TILE;
        bool in = row0 + r < rows && k0 + k < k_end;
        tile[k][r] = in ? to_float(p[(row0 + r) * o.row + (k0 + k) * o.k]) : 0;
    }
}

template <class A, class B, class C>
__global__ void __launch_bounds__(PLAIN_THREADS) gemm_plain_kernel(const __grid_constant__ struct plain_product p)
{
    __shared__ float ta[TILE_K][TILE + 1], tb[TILE_K][TILE + 1];
    int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE, M = p.M, k0 = 0, k_end = p.K;
    const A *a = (const A *)p.a.data;
    const B *b = (const B *)p.b.data;
    C *c = (C *)p.c;
    if (p.offsets) {
        int64_t e = blockIdx.z, from = p.offsets[e], to = p.offsets[e + 1];
        if (p.group_k) k0 = from, k_end = to;
        else {
            M = to - from;
            a += from * p.a.row;
            c += from * p.c_row;
        }
        a += e * p.a.group;
        b += e * p.b.group;
        c += e * p.c_group;
    }
    if (m0 >= M) return;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int64_t k = k0; k < k_end; k += TILE_K) {
        load_tile(ta, a, p.a, m0, M, k, k_end);
        load_tile(tb, b, p.b, n0, p.N, k, k_end);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_K; i++) {
            float x[4], y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = ta[i][ty + 16 * j], y[j] = tb[i][tx + 16 * j];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int l = 0; l < 4; l++) sum[j][l] += x[j] * y[l];
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int l = 0; l < 4; l++) {
            int64_t m = m0 + ty + 16 * j, n = n0 + tx + 16 * l;
            if (m >= M || n >= p.N) continue;
            C *at = c + m * p.c_row + n;
            *at = from_float<C>(p.accumulate ? to_float(*at) + sum[j][l] : sum[j][l]);
        }
}

enum status gemm_plain(const struct plain_product *p, enum dtype a, enum dtype b, enum dtype c, struct stream *s)
{
    if (p->M * p->N == 0 || (p->offsets && p->groups == 0)) return OK;
    dim3 grid((unsigned)ceil_div(p->N, TILE), (unsigned)ceil_div(p->M, TILE), p->offsets ? (unsigned)p->groups : 1);
    if (grid.y > 65535 || grid.z > 65535)
        return FAIL(ERR_INTERNAL, "product of %lld rows in %d groups: at most %d and 65535", (long long)p->M, p->groups,
                    65535 * TILE);
    int which = (a == DT_F32) * 4 + (b == DT_F32) * 2 + (c == DT_F32);
    switch (which) {
    case 7: gemm_plain_kernel<float, float, float><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    case 6: gemm_plain_kernel<float, float, bf16><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    case 5: gemm_plain_kernel<float, bf16, float><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    case 3: gemm_plain_kernel<bf16, float, float><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    case 1: gemm_plain_kernel<bf16, bf16, float><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    case 0: gemm_plain_kernel<bf16, bf16, bf16><<<grid, PLAIN_THREADS, 0, s->cuda>>>(*p); break;
    default: return FAIL(ERR_INTERNAL, "product of %s and %s into %s", dtype_name(a), dtype_name(b), dtype_name(c));
    }
    TRY_LAUNCH("gemm_plain");
    return OK;
}
