/* Hopper's own instructions, each behind one function: barriers in shared memory, the bulk tensor copy engine (TMA),
 * warpgroup matrix products (wgmma), register donation. Nothing here knows what is computed.
 *
 * Operand tiles in shared memory are made of atoms of 8 rows of 128 bytes, swizzled by the copy engine (SWIZZLE_128B),
 * aligned to 1024 bytes. K-major: a row is 64 consecutive k of one m (n). MN-major: a row is 64 consecutive m (n) of one
 * k; tiles wider than 64 are several such tiles one after the other. */
#ifndef HOPPER_CUH
#define HOPPER_CUH
#include "cuda_util.cuh"

#include <cuda.h>

/* ---- barriers ---- */
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals));
}
/* After the inits, before anything else uses them. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
/* Arrives and announces bytes that copies will bring. */
__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
/* Until the phase of this parity is over. */
__device__ __forceinline__ void barrier_wait(uint64_t *bar, int parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done_%=;\n"
                 "bra again_%=;\n"
                 "done_%=:\n"
                 "}" ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
/* Of `threads` threads that name the same id (1 to 15). */
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Makes ordinary writes to shared memory visible to wgmma and the copy engine; then a barrier. */
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- the copy engine ---- */
__device__ __forceinline__ void copy_box(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
                     "r"(shared_address(dst)), "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void copy_box(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(shared_address(dst)), "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A map of a BF16 array [dim[2], dim[1], dim[0]], dim[0] contiguous, the others `stride` bytes apart, read in boxes. What
 * lies outside reads as zero. */
enum status tensor_map(CUtensorMap *map, const void *data, int rank, const int64_t *dim, const int64_t *stride,
                       const int *box);

/* ---- wgmma ---- */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Keeps the compiler from moving reads or writes of accumulators across. */
template <int N> __device__ __forceinline__ void wgmma_touch(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* Descriptor of a tile: `leading` bytes from one 64-wide MN-major tile to the next (K-major: unused), 1024 bytes from
 * one atom to the next. */
__device__ __forceinline__ uint64_t tile_descriptor(const void *p, uint32_t leading)
{
    uint64_t address = (shared_address(p) & 0x3ffff) >> 4;
    return address | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* Bytes from one k16 step of a tile to the next. */
enum { STEP_K_MAJOR = 32, STEP_MN_MAJOR = 2048 };
__device__ __forceinline__ uint64_t descriptor_add(uint64_t d, uint32_t bytes) { return d + (bytes >> 4); }

template <int REGS> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGS));
}
template <int REGS> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGS));
}

/* d [64, N] = (keep ? d : 0) + a b over 16 k, BF16 operands, float32 sums. A thread holds of row 16 (warp % 4) + lane / 4
 * (d[4j], d[4j + 1]) and of that row + 8 (d[4j + 2], d[4j + 3]) the columns 8j + 2 (lane % 4) and the next. TA, TB: 1 when
 * the operand is MN-major. The second form takes a from registers (always K-major): a[0], a[2] of the first row with k
 * 2 (lane % 4) + {0, 1} and + 8, a[1], a[3] of the row + 8. */
#define ACC8(d, i)                                                                                                     \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),             \
        "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define ACC16(d, i) ACC8(d, i), ACC8(d, i + 8)
#define ACC32(d, i) ACC16(d, i), ACC16(d, i + 16)
#define ACC64(d, i) ACC32(d, i), ACC32(d, i + 32)
#define ACC128(d, i) ACC64(d, i), ACC64(d, i + 64)

template <int TA, int TB> __device__ __forceinline__ void wgmma(float (&d)[8], uint64_t a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, %11, %12;\n}"
        : ACC8(d, 0) : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB> __device__ __forceinline__ void wgmma(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}"
        : ACC8(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

template <int TA, int TB> __device__ __forceinline__ void wgmma(float (&d)[16], uint64_t a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, %19, %20;\n}"
        : ACC16(d, 0) : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB> __device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"
        : ACC16(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

template <int TA, int TB> __device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, %35, %36;\n}"
        : ACC32(d, 0) : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB> __device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : ACC32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

template <int TA, int TB> __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, %67, %68;\n}"
        : ACC64(d, 0) : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB> __device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : ACC64(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

template <int TA, int TB> __device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, %131, %132;\n}"
        : ACC128(d, 0) : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB> __device__ __forceinline__ void wgmma(float (&d)[128], const uint32_t (&a)[4], uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}"
        : ACC128(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

/* ---- small pieces ---- */
/* 2^x in one instruction: within 2 units of the last place; very small results are 0. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
}
/* Lane q of every four gets r[q] of all four: r[i] becomes what lane i had in r[q]. */
__device__ __forceinline__ void quad_transpose(uint32_t (&r)[4])
{
    int q = threadIdx.x & 3;
#pragma unroll
    for (int b = 0; b < 4; b += 2) {
        uint32_t got = __shfl_xor_sync(~0u, q & 1 ? r[b] : r[b + 1], 1);
        if (q & 1) r[b] = got;
        else r[b + 1] = got;
    }
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t got = __shfl_xor_sync(~0u, q & 2 ? r[b] : r[b + 2], 2);
        if (q & 2) r[b] = got;
        else r[b + 2] = got;
    }
}

#endif
