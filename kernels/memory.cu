/* The device: queues, memory by place, copies. */
#include "cuda_util.cuh"

#include <stdlib.h>

extern "C" enum status cuda_available(void)
{
    int n = 0, major = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1) {
        cudaGetLastError(); /* an error that was only asked about must not be found by the next launch check */
        return FAIL(ERR_DEVICE, "no CUDA device answers: %s", e ? cudaGetErrorString(e) : "there is none");
    }
    TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) return FAIL(ERR_DEVICE, "the device has compute capability %d, the kernels are for 9", major);
    return OK;
}

static enum status fill_stream(struct stream *s, int local_rank)
{
    int n = 0;
    TRY_CUDA(cudaGetDeviceCount(&n));
    if (n < 1) return FAIL(ERR_DEVICE, "no CUDA device for local rank %d", local_rank);
    s->device = local_rank % n;
    TRY_CUDA(cudaSetDevice(s->device));
    TRY_CUDA(cudaDeviceGetAttribute(&s->sms, cudaDevAttrMultiProcessorCount, s->device));
    TRY_CUDA(cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking));
    TRY_CUDA(cudaEventCreateWithFlags(&s->mark, cudaEventDisableTiming));
    TRY_CUDA(cudaMalloc(&s->blas_work, STREAM_BLAS_BYTES));
    TRY_CUDA(cudaMalloc(&s->scratch, STREAM_SCRATCH_BYTES));
    TRY_CUBLAS(cublasCreate(&s->blas));
    TRY_CUBLAS(cublasSetStream(s->blas, s->cuda));
    TRY_CUBLAS(cublasSetWorkspace(s->blas, s->blas_work, STREAM_BLAS_BYTES));
    /* Partial sums of a product stay float32. TF32 is never asked for. */
    TRY_CUBLAS(cublasSetMathMode(s->blas, (cublasMath_t)(CUBLAS_DEFAULT_MATH |
                                                         CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    return OK;
}

extern "C" enum status open_cuda(struct stream **out, int local_rank)
{
    *out = NULL;
    struct stream *s = (struct stream *)calloc(1, sizeof *s);
    if (!s) return FAIL(ERR_MEMORY, "%zu bytes for a stream wanted", sizeof *s);
    enum status e = fill_stream(s, local_rank);
    if (e) {
        close_cuda(s);
        return status_trace(e, __FILE__, __LINE__);
    }
    *out = s;
    return OK;
}

extern "C" void close_cuda(struct stream *s)
{
    if (!s) return;
    if (s->cuda) cudaStreamSynchronize(s->cuda);
    device_profile_stop(s);
    if (s->blas) cublasDestroy(s->blas);
    if (s->mark) cudaEventDestroy(s->mark);
    if (s->cuda) cudaStreamDestroy(s->cuda);
    cudaFree(s->blas_work);
    cudaFree(s->scratch);
    free(s);
}

extern "C" enum status stream_follow(struct stream *s, struct stream *before)
{
    if (!s || !before || s == before) return OK;
    TRY_CUDA(cudaEventRecord(before->mark, before->cuda));
    TRY_CUDA(cudaStreamWaitEvent(s->cuda, before->mark, 0));
    return OK;
}

extern "C" void *stream_handle(struct stream *s) { return s ? (void *)s->cuda : NULL; }

extern "C" enum status device_memory(size_t *left, size_t *total)
{
    TRY_CUDA(cudaMemGetInfo(left, total));
    return OK;
}

struct device_timer {
    cudaEvent_t from, to;
};

extern "C" enum status device_timer_open(struct device_timer **out)
{
    struct device_timer *t = *out = (struct device_timer *)calloc(1, sizeof *t);
    if (!t) return FAIL(ERR_MEMORY, "%zu bytes for a timer wanted", sizeof *t);
    TRY_CUDA(cudaEventCreate(&t->from));
    TRY_CUDA(cudaEventCreate(&t->to));
    return OK;
}

extern "C" void device_timer_close(struct device_timer *t)
{
    if (!t) return;
    if (t->from) cudaEventDestroy(t->from);
    if (t->to) cudaEventDestroy(t->to);
    free(t);
}

extern "C" enum status device_timer_start(struct device_timer *t, struct stream *s)
{
    TRY_CUDA(cudaEventRecord(t->from, s->cuda));
    return OK;
}

extern "C" enum status device_timer_stop(struct device_timer *t, struct stream *s)
{
    TRY_CUDA(cudaEventRecord(t->to, s->cuda));
    return OK;
}

extern "C" enum status device_timer_read(struct device_timer *t, double *ms)
{
    float f = 0;
    TRY_CUDA(cudaEventSynchronize(t->to));
    TRY_CUDA(cudaEventElapsedTime(&f, t->from, t->to));
    *ms = (double)f;
    return OK;
}

extern "C" enum status alloc_cuda(void **p, size_t bytes, enum place place)
{
    *p = NULL;
    if (bytes == 0) bytes = 1;
    if (place == PLACE_HOST) {
        if (bytes > SIZE_MAX - ARENA_ALIGN) return FAIL(ERR_MEMORY, "%zu bytes of host memory wanted", bytes);
        *p = aligned_alloc(ARENA_ALIGN, (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
        return *p ? OK : FAIL(ERR_MEMORY, "%zu bytes of host memory wanted: the system has no more", bytes);
    }
    cudaError_t e = place == PLACE_PINNED ? cudaHostAlloc(p, bytes, cudaHostAllocPortable) : cudaMalloc(p, bytes);
    if (e == cudaSuccess) return OK;
    cudaGetLastError();
    size_t left = 0, total = 0;
    if (place == PLACE_DEVICE && cudaMemGetInfo(&left, &total) == cudaSuccess)
        return FAIL(ERR_MEMORY, "%zu bytes of device memory wanted, %zu of %zu free: %s", bytes, left, total,
                    cudaGetErrorString(e));
    return FAIL(ERR_MEMORY, "%zu bytes of %s memory wanted: %s", bytes, place == PLACE_PINNED ? "pinned" : "device",
                cudaGetErrorString(e));
}

extern "C" void release_cuda(void *p, enum place place)
{
    if (place == PLACE_HOST) free(p);
    else if (place == PLACE_PINNED) cudaFreeHost(p);
    else cudaFree(p);
}

extern "C" enum status copy_cuda(struct tensor dst, struct tensor src, struct stream *s)
{
    TRY(check_copy(dst, src));
    size_t size = dtype_size(src.dtype), row = (size_t)tensor_row(src) * size, rows = (size_t)src.dim[0];
    if (tensor_count(src) == 0 || dst.data == src.data) return OK;
    cudaStream_t queue = s ? s->cuda : 0;
    struct op_scope scope(s, "copy");
    if (tensor_contiguous(dst) && tensor_contiguous(src)) {
        TRY_CUDA(cudaMemcpyAsync(dst.data, src.data, row * rows, cudaMemcpyDefault, queue));
        return OK;
    }
    TRY_CUDA(cudaMemcpy2DAsync(dst.data, (size_t)dst.ld * size, src.data, (size_t)src.ld * size, row, rows,
                               cudaMemcpyDefault, queue));
    return OK;
}

extern "C" enum status zero_cuda(struct tensor t, struct stream *s)
{
    size_t size = dtype_size(t.dtype), row = (size_t)tensor_row(t) * size, rows = (size_t)t.dim[0];
    if (tensor_count(t) == 0) return OK;
    if (t.place == PLACE_HOST) return FAIL(ERR_INTERNAL, "zero: host memory given to the CUDA table");
    cudaStream_t queue = s ? s->cuda : 0;
    struct op_scope scope(s, "zero");
    if (tensor_contiguous(t)) TRY_CUDA(cudaMemsetAsync(t.data, 0, row * rows, queue));
    else TRY_CUDA(cudaMemset2DAsync(t.data, (size_t)t.ld * size, 0, row, rows, queue));
    return OK;
}

extern "C" enum status wait_cuda(struct stream *s)
{
    TRY_CUDA(cudaStreamSynchronize(s ? s->cuda : 0));
    return OK;
}
