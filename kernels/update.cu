/* Flat element-wise work: casts, sums, the squared norm and AdamW. All of it is bound by memory: 8 elements a thread and
 * step in 16-byte accesses; a tail or an odd address goes one element at a time. */
#include "cuda_util.cuh"

enum { FLAT_THREADS = 256, SUM_BLOCKS = 1024 };

/* Blocks for n steps of one thread each. */
static unsigned flat_grid(int64_t n) { return (unsigned)lesser(ceil_div(n, FLAT_THREADS), 1 << 30); }

/* Rows of `row` elements, `ld` apart; with wide, row and both ld are multiples of 8. */
template <int N, class D, class S>
__global__ void cast_kernel(D *dst, int64_t dst_ld, const S *src, int64_t src_ld, int64_t rows, int64_t row)
{
    int64_t steps = row / N, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < rows * steps; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = i / steps, c = i % steps * N;
        float f[N];
        load<N>(f, src + r * src_ld + c);
        store<N>(dst + r * dst_ld + c, f);
    }
}

extern "C" enum status cast_cuda(struct tensor dst, struct tensor src, struct stream *s)
{
    TRY(check_cast(dst, src));
    NEED_STREAM("cast", s);
    if (tensor_count(src) == 0) return OK;
    if (dst.dtype == src.dtype) return copy_cuda(dst, src, s);
    bool flat = tensor_contiguous(dst) && tensor_contiguous(src);
    int64_t rows = flat ? 1 : src.dim[0], row = flat ? tensor_count(src) : tensor_row(src);
    bool wide = flat ? is_wide_flat(dst) && is_wide_flat(src) : is_wide(dst) && is_wide(src);
    BY_WIDTH(wide, N, {
        unsigned grid = flat_grid(rows * row / N);
        if (dst.dtype == DT_F32)
            cast_kernel<N><<<grid, FLAT_THREADS, 0, s->cuda>>>((float *)dst.data, dst.ld, (const bf16 *)src.data, src.ld,
                                                               rows, row);
        else
            cast_kernel<N><<<grid, FLAT_THREADS, 0, s->cuda>>>((bf16 *)dst.data, dst.ld, (const float *)src.data, src.ld,
                                                               rows, row);
    });
    TRY_LAUNCH("cast");
    return OK;
}

template <int N, class T> __global__ void add_kernel(T *y, const T *a, const T *b, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x * N) {
        float p[N], q[N];
        load<N>(p, a + i);
        load<N>(q, b + i);
#pragma unroll
        for (int j = 0; j < N; j++) p[j] += q[j];
        store<N>(y + i, p);
    }
}

extern "C" enum status add_cuda(struct tensor y, struct tensor a, struct tensor b, struct stream *s)
{
    TRY(check_add(y, a, b));
    NEED_STREAM("add", s);
    int64_t n = tensor_count(y);
    if (n == 0) return OK;
    BY_DTYPE(y.dtype, T, BY_WIDTH(is_wide_flat(y) && is_wide_flat(a) && is_wide_flat(b), N, {
        add_kernel<N><<<flat_grid(ceil_div(n, N)), FLAT_THREADS, 0, s->cuda>>>((T *)y.data, (const T *)a.data,
                                                                               (const T *)b.data, n);
    }));
    TRY_LAUNCH("add");
    return OK;
}

/* Partial sums of a fixed grid, then one block adds them in order: the same bits every time. */
template <int N, class T> __global__ void square_sum_kernel(double *part, const T *x, int64_t n)
{
    __shared__ double shared[32];
    double sum = 0;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x * N) {
        float f[N];
        load<N>(f, x + i);
        float eight = 0; /* squares of 8 in float32, the rest in float64: far inside 1e-6, and no wait for FP64 */
#pragma unroll
        for (int j = 0; j < N; j++) eight += f[j] * f[j];
        sum += (double)eight;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void square_total_kernel(double *sum, const double *part, int n)
{
    __shared__ double shared[32];
    double mine = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine += part[i];
    mine = block_sum(mine, shared);
    if (threadIdx.x == 0) *sum += mine;
}

extern "C" enum status square_sum_cuda(struct tensor sum, struct tensor x, struct stream *s)
{
    TRY(check_square_sum(sum, x));
    NEED_STREAM("square_sum", s);
    int64_t n = tensor_count(x);
    if (n == 0) return OK;
    double *part = (double *)s->scratch;
    int blocks = 0;
    BY_DTYPE(x.dtype, T, BY_WIDTH(is_wide_flat(x), N, {
        blocks = (int)lesser(ceil_div(n, FLAT_THREADS * N), SUM_BLOCKS);
        square_sum_kernel<N><<<blocks, FLAT_THREADS, 0, s->cuda>>>(part, (const T *)x.data, n);
    }));
    TRY_LAUNCH("square_sum");
    square_total_kernel<<<1, FLAT_THREADS, 0, s->cuda>>>((double *)sum.data, part, blocks);
    TRY_LAUNCH("square_sum");
    return OK;
}

struct adamw_scalars {
    float lr, beta1, beta2, eps, decay, m_hat, v_hat, grad_scale;
};

template <int N, class M, class V, class G, class W>
__global__ void adamw_kernel(float *master, M *exp_avg, V *exp_avg_sq, const G *grad, W *weight, int64_t n,
                             struct adamw_scalars a)
{
    float to_m = 1 - a.beta1, to_v = 1 - a.beta2;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (; i < n; i += (int64_t)gridDim.x * blockDim.x * N) {
        float p[N], m[N], v[N], g[N];
        load<N>(p, master + i);
        load<N>(m, exp_avg + i);
        load<N>(v, exp_avg_sq + i);
        load<N>(g, grad + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] *= a.grad_scale;
            m[j] = a.beta1 * m[j] + to_m * g[j];
            v[j] = a.beta2 * v[j] + to_v * g[j] * g[j];
            float step = m[j] * a.m_hat / (sqrtf(v[j]) * a.v_hat + a.eps);
            p[j] -= a.lr * (step + a.decay * p[j]);
        }
        store<N>(master + i, p);
        store<N>(exp_avg + i, m);
        store<N>(exp_avg_sq + i, v);
        store<N>(weight + i, p);
    }
}

template <class M, class V, class G, class W>
static void adamw_launch(const struct adamw_args *a, int64_t n, struct adamw_scalars k, struct stream *s)
{
    bool wide = is_wide_flat(a->master) && is_wide_flat(a->exp_avg) && is_wide_flat(a->exp_avg_sq) &&
                is_wide_flat(a->grad) && is_wide_flat(a->weight);
    BY_WIDTH(wide, N, {
        adamw_kernel<N><<<flat_grid(ceil_div(n, N)), FLAT_THREADS, 0, s->cuda>>>(
            (float *)a->master.data, (M *)a->exp_avg.data, (V *)a->exp_avg_sq.data, (const G *)a->grad.data,
            (W *)a->weight.data, n, k);
    });
}

extern "C" enum status adamw_cuda(const struct adamw_args *a, struct stream *s)
{
    TRY(check_adamw(a));
    NEED_STREAM("adamw", s);
    int64_t n = a->master.dim[0];
    if (n == 0) return OK;
    struct adamw_scalars k = {a->lr, a->beta1, a->beta2, a->eps, a->decay, 1 / a->bias1, 1 / sqrtf(a->bias2),
                              a->grad_scale};
    BY_DTYPE(a->exp_avg.dtype, M, BY_DTYPE(a->exp_avg_sq.dtype, V, BY_DTYPE(a->grad.dtype, G, BY_DTYPE(a->weight.dtype,
             W, (adamw_launch<M, V, G, W>(a, n, k, s))))));
    TRY_LAUNCH("adamw");
    return OK;
}
