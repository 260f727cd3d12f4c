/* What the CUDA kernels share: the checks family, the stream, loads and stores of 1 or 8 elements as floats, reductions
 * in a fixed order, and every piece of raw PTX (at the end; matrix and copy engine instructions are in hopper.cuh).
 *
 * All launches of an op go to its stream; an op neither allocates nor waits. Reductions are written so that the order of
 * additions depends on shapes only, never on timing: results are bitwise repeatable on one device. */
#ifndef CUDA_UTIL_CUH
#define CUDA_UTIL_CUH
#include "ops.h"
#include "ops_check.h"
#include "ops_cuda.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

/* A queue of work on one device. Scratch belongs to the op that runs: ops of one stream follow each other. */
struct stream {
    cudaStream_t cuda;
    cublasHandle_t blas;
    cudaEvent_t mark;  /* stream_follow's */
    char *blas_work;   /* [STREAM_BLAS_BYTES] */
    char *scratch;     /* [STREAM_SCRATCH_BYTES] partial sums of reductions, dispatch counts */
    int device, sms;   /* multiprocessors */
    struct profile *profile; /* NULL: nobody asked */
};
enum : size_t { STREAM_BLAS_BYTES = 64u << 20, STREAM_SCRATCH_BYTES = 64u << 20 };

/* ---- profiles: profile.cu ---- */
void profile_begin(struct stream *s, const char *op);
void profile_end(struct stream *s);
struct op_scope {
    struct stream *s;
    op_scope(struct stream *stream, const char *op) : s(stream) { profile_begin(s, op); }
    ~op_scope() { profile_end(s); }
    op_scope(const op_scope &) = delete;
    op_scope &operator=(const op_scope &) = delete;
};

/* ---- checks ---- */
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t cuda_error_ = (call);                                                                              \
        if (cuda_error_ != cudaSuccess) return FAIL(ERR_DEVICE, "%s: %s", #call, cudaGetErrorString(cuda_error_));     \
    } while (0)
#define TRY_CUBLAS(call)                                                                                               \
    do {                                                                                                               \
        cublasStatus_t blas_status_ = (call);                                                                          \
        if (blas_status_ != CUBLAS_STATUS_SUCCESS)                                                                     \
            return FAIL(ERR_DEVICE, "%s: %s", #call, cublasGetStatusString(blas_status_));                             \
    } while (0)
/* After a launch. */
#define TRY_LAUNCH(op)                                                                                                 \
    do {                                                                                                               \
        cudaError_t cuda_error_ = cudaGetLastError();                                                                  \
        if (cuda_error_ != cudaSuccess) return FAIL(ERR_DEVICE, "%s: %s", op, cudaGetErrorString(cuda_error_));        \
    } while (0)
/* An op begins: it needs a stream, and until it returns what it queues is its own in profiles. */
#define NEED_STREAM(op, s)                                                                                             \
    if (!(s)) return FAIL(ERR_INTERNAL, "%s: no stream", op);                                                          \
    struct op_scope op_scope_(s, op)

/* Runs the statements with T = the C++ type of a dtype. */
#define BY_DTYPE(type, T, ...)                                                                                         \
    do {                                                                                                               \
        if ((type) == DT_F32) {                                                                                        \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using T = bf16;                                                                                            \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)
/* Runs the statements with N = 8 (16-byte accesses) or 1. */
#define BY_WIDTH(wide, N, ...)                                                                                         \
    do {                                                                                                               \
        if (wide) {                                                                                                    \
            constexpr int N = 8;                                                                                       \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int N = 1;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

using bf16 = __nv_bfloat16;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* Every row of t starts on 16 bytes and holds a multiple of 8 elements (a none tensor does not stand in the way). */
static inline bool is_wide(struct tensor t)
{
    return tensor_none(t) || ((uintptr_t)t.data % 16 == 0 && tensor_row(t) % 8 == 0 && (t.dim[0] <= 1 || t.ld % 8 == 0));
}
/* The same for a tensor read as one flat run. */
static inline bool is_wide_flat(struct tensor t)
{
    return tensor_none(t) || ((uintptr_t)t.data % 16 == 0 && tensor_count(t) % 8 == 0);
}

/* ---- elements as floats ---- */
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

/* N elements at p (N > 1: on 16 bytes; N * sizeof a multiple of 16). */
template <int N, class T> __device__ __forceinline__ void load(float (&f)[N], const T *p)
{
    if constexpr (N == 1) f[0] = to_float(*p);
    else {
        static_assert(N * sizeof(T) % 16 == 0, "whole 16-byte accesses");
        alignas(16) T e[N];
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++)
            reinterpret_cast<uint4 *>(e)[i] = reinterpret_cast<const uint4 *>(p)[i];
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = to_float(e[i]);
    }
}
template <int N, class T> __device__ __forceinline__ void store(T *p, const float (&f)[N])
{
    if constexpr (N == 1) *p = from_float<T>(f[0]);
    else {
        static_assert(N * sizeof(T) % 16 == 0, "whole 16-byte accesses");
        alignas(16) T e[N];
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = from_float<T>(f[i]);
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++)
            reinterpret_cast<uint4 *>(p)[i] = reinterpret_cast<const uint4 *>(e)[i];
    }
}
/* What storing as T and loading again makes of x. */
template <class T> __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }

/* ---- reductions ---- */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
__device__ __forceinline__ double warp_sum(double x)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
/* Sum over the block, the same in every thread; shared [32]. All threads call it; safe to call again at once. */
template <class F> __device__ __forceinline__ F block_sum(F x, F *shared)
{
    int warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) shared[warp] = x;
    __syncthreads();
    F total = 0;
    for (int i = 0; i < warps; i++) total += shared[i];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* The sequence of token t: cu_seqlens[s] <= t < cu_seqlens[s + 1]; S when it belongs to none. */
__device__ __forceinline__ int sequence_of(const int32_t *cu, int S, int t)
{
    if (t >= cu[S]) return S;
    int lo = 0, hi = S; /* cu[lo] <= t < cu[hi] */
    while (hi - lo > 1) {
        int mid = (lo + hi) >> 1;
        if (cu[mid] <= t) lo = mid;
        else hi = mid;
    }
    return lo;
}

#endif
