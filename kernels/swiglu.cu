/* g = min(gate, limit), u = clamp(up, +-limit), y = (u + 1) g sigmoid(alpha g). Where a clamp is active its input has no
 * gradient. Bound by memory: 3 elements moved an output forward, 5 backward. */
#include "cuda_util.cuh"

enum { SWIGLU_THREADS = 256 };

template <int N, class T>
__global__ void swiglu_forward_kernel(T *y, const T *gu, int64_t rows, int64_t F, float alpha, float limit)
{
    int64_t steps = F / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * steps) return;
    int64_t r = i / steps, c = i % steps * N;
    float g[N], u[N];
    load<N>(g, gu + r * 2 * F + c);
    load<N>(u, gu + r * 2 * F + F + c);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float gate = g[j] > limit ? limit : g[j], up = u[j] > limit ? limit : u[j] < -limit ? -limit : u[j];
        g[j] = (up + 1) * gate * sigmoid(alpha * gate);
    }
    store<N>(y + r * F + c, g);
}

extern "C" enum status swiglu_forward_cuda(struct tensor y, struct tensor gu, float alpha, float limit,
                                           struct stream *s)
{
    TRY(check_swiglu_forward(y, gu));
    NEED_STREAM("swiglu_forward", s);
    int64_t R = gu.dim[0], F = y.dim[1];
    if (R * F == 0) return OK;
    BY_DTYPE(y.dtype, T, BY_WIDTH(is_wide(y) && is_wide(gu), N, {
        swiglu_forward_kernel<N><<<(unsigned)ceil_div(R * F / N, SWIGLU_THREADS), SWIGLU_THREADS, 0, s->cuda>>>(
            (T *)y.data, (const T *)gu.data, R, F, alpha, limit);
    }));
    TRY_LAUNCH("swiglu_forward");
    return OK;
}

/* dgu may be gu: a thread reads its own places before it writes them. */
template <int N, class T>
__global__ void swiglu_backward_kernel(T *dgu, const T *dy, const T *gu, int64_t rows, int64_t F, float alpha,
                                       float limit)
{
    int64_t steps = F / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * steps) return;
    int64_t r = i / steps, c = i % steps * N, at = r * 2 * F + c;
    float g[N], u[N], d[N];
    load<N>(g, gu + at);
    load<N>(u, gu + at + F);
    load<N>(d, dy + r * F + c);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float g0 = g[j], u0 = u[j];
        float gate = g0 > limit ? limit : g0, up = u0 > limit ? limit : u0 < -limit ? -limit : u0;
        float sig = sigmoid(alpha * gate);
        g[j] = g0 > limit ? 0 : d[j] * (up + 1) * sig * (1 + alpha * gate * (1 - sig));
        u[j] = u0 > limit || u0 < -limit ? 0 : d[j] * gate * sig;
    }
    store<N>(dgu + at, g);
    store<N>(dgu + at + F, u);
}

extern "C" enum status swiglu_backward_cuda(struct tensor dgu, struct tensor dy, struct tensor gu, float alpha,
                                            float limit, struct stream *s)
{
    TRY(check_swiglu_backward(dgu, dy, gu));
    NEED_STREAM("swiglu_backward", s);
    int64_t R = gu.dim[0], F = dy.dim[1];
    if (R * F == 0) return OK;
    BY_DTYPE(dgu.dtype, T, BY_WIDTH(is_wide(dgu) && is_wide(dy) && is_wide(gu), N, {
        swiglu_backward_kernel<N><<<(unsigned)ceil_div(R * F / N, SWIGLU_THREADS), SWIGLU_THREADS, 0, s->cuda>>>(
            (T *)dgu.data, (const T *)dy.data, (const T *)gu.data, R, F, alpha, limit);
    }));
    TRY_LAUNCH("swiglu_backward");
    return OK;
}
