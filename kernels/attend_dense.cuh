/* Dense causal attention of BF16 tensors on tensor cores: attend_dense.cu forward, attend_dense_backward.cu. Head sizes 64
 * and 128, rows and addresses on 16 bytes.
 *
 * Tiles of a sequence start at its own start, so that only tiles on the diagonal are masked. A tile's last rows may belong
 * to the next sequence: no query before them sees them as keys, and as queries they are not stored (forward, dq) or their
 * p is 0 (dk, dv). Their products with 0 are added, so a sequence of infinities spoils its neighbour: so be it. */
#ifndef ATTEND_DENSE_CUH
#define ATTEND_DENSE_CUH
#include "hopper.cuh"

enum { DENSE_ROWS = 128 }; /* of a tile, queries or keys: two warpgroups of 64 */

bool attend_dense_fits(const struct attend_args *a);
size_t attend_dense_bytes(const struct attend_args *a, bool backward);
enum status attend_dense_forward(const struct attend_args *a, struct stream *s);
enum status attend_dense_backward(const struct attend_args *a, struct stream *s);
/* A map of [T, heads, D], rows ld apart, read in boxes of 64 channels x `rows` rows of one head. */
enum status dense_map(CUtensorMap *map, struct tensor t, int rows);
/* Zeroes the rows of t [T, heads, D] that belong to no sequence, and those of lse [heads, T] when it is not NULL. */
enum status dense_clear_rest(struct tensor t, float *lse, const int32_t *cu, int S, struct stream *s);

struct dense_shape {
    const int32_t *cu;
    int S, T, H, G; /* G query heads a KV head */
    float scale, scale_log2;
};

static inline struct dense_shape dense_shape(const struct attend_args *a)
{
    struct dense_shape z = {(const int32_t *)a->cu_seqlens.data, (int)a->cu_seqlens.dim[0] - 1, (int)a->q.dim[0],
                            (int)a->q.dim[1], (int)(a->q.dim[1] / a->k.dim[1]), a->scale, a->scale * 1.44269504088896f};
    return z;
}
/* At least the tiles of all sequences. */
static inline int64_t dense_tiles(const struct dense_shape *z) { return z->T / DENSE_ROWS + (z->S ? z->S : 1); }

struct dense_tile {
    int start, len;  /* of the sequence */
    int index, last; /* of the tile in it, and of its last one */
};
/* The u-th tile, counted from the last sequence; false beyond the first one. Whole warps call it. */
__device__ __forceinline__ bool dense_find(struct dense_tile *t, const struct dense_shape &z, int u)
{
    int lane = threadIdx.x % 32;
    for (int s0 = z.S - 1; s0 >= 0; s0 -= 32) {
        int s = s0 - lane, from = s >= 0 ? z.cu[s] : 0, len = s >= 0 ? z.cu[s + 1] - from : 0;
        int n = (len + DENSE_ROWS - 1) / DENSE_ROWS, sum = n;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            int below = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += below;
        }
        unsigned beyond = __ballot_sync(~0u, sum > u);
        if (beyond) {
            int l = __ffs(beyond) - 1;
            t->start = __shfl_sync(~0u, from, l);
            t->len = __shfl_sync(~0u, len, l);
            t->index = u - __shfl_sync(~0u, sum - n, l);
            t->last = __shfl_sync(~0u, n, l) - 1;
            return true;
        }
        u -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

/* An operand tile of `ROWS` rows x D channels: D / 64 subtiles of 64 channels. */
template <int ROWS> __device__ __forceinline__ uint64_t dense_channels(uint64_t tile, int k16)
{
    return descriptor_add(tile, k16 / 4 * (ROWS * 128) + k16 % 4 * STEP_K_MAJOR);
}
/* The copy engine brings such a tile: rows from `row` on of one head. */
template <int ROWS, int D>
__device__ __forceinline__ void dense_copy(char *tile, const CUtensorMap *map, uint64_t *bar, int head, int row)
{
#pragma unroll
    for (int c = 0; c < D; c += 64) copy_box(tile + c / 64 * (ROWS * 128), map, bar, c, head, row);
}
/* Accumulators of 16 columns as the left operand of 16 k. */
template <int N> __device__ __forceinline__ void dense_operand(uint32_t (&a)[4], const float (&d)[N], int k16)
{
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack_bf16(d[8 * k16 + 2 * i], d[8 * k16 + 2 * i + 1]);
}
/* This lane's two rows (16 (warp % 4) + lane / 4 and + 8) of a 64 x D result, times `by`, as BF16: row pointers or NULL. */
template <int N> __device__ __forceinline__ void dense_store(bf16 *const (&row)[2], const float (&d)[N], const float (&by)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < N / 4; j += 4) { /* 4 x 8 columns: after the exchange a lane holds 8 neighbours */
            uint32_t r[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] = pack_bf16(d[4 * (j + i) + 2 * half] * by[half], d[4 * (j + i) + 2 * half + 1] * by[half]);
            quad_transpose(r);
            if (row[half])
                *reinterpret_cast<uint4 *>(row[half] + 8 * (j + threadIdx.x % 4)) = uint4{r[0], r[1], r[2], r[3]};
        }
    }
}

#endif
