/* One token a row, as src/sampling.c chooses it: x = logit / temperature; the top_k largest are kept, of those the
 * smallest set of largest ones that holds top_p of their mass (equal logits: the lowest ids); then the kept ids in
 * ascending order, the first whose cumulative mass exceeds u times the kept mass. A NaN or no finite logit: id 0 with
 * log-prob NaN.
 *
 * A block a row; the row stays in L2 and is read a few times. Thresholds are found by bisection, eight ways a pass, on the
 * bits of the logits in value order: counts and masses are summed in a fixed order, so a draw is repeatable. */
#include "cuda_util.cuh"

enum { SAMPLE_THREADS = 1024, SAMPLE_WARPS = SAMPLE_THREADS / 32, WAYS = 8 };

/* A float's bits in an order that is the order of the values. -0 counts as 0. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <class T> struct row {
    const T *logits;
    int64_t V;
    float temperature, most; /* the largest logit */
    __device__ float logit(int64_t i) const { return to_float(logits[i]); }
    __device__ float weight(float x) const { return expf((x - most) / temperature); }
};

/* Per way: how many logits have keys >= least + way * step, and their mass; the same in every thread. */
struct tally {
    double count[WAYS], mass[WAYS];
};
template <class T> __device__ void tally_up(struct tally &sum, const struct row<T> &r, uint32_t least, uint32_t step, int ways)
{
    __shared__ double shared[32];
    int count[WAYS] = {};
    double mass[WAYS] = {};
    for (int64_t i = threadIdx.x; i < r.V; i += SAMPLE_THREADS) {
        float x = r.logit(i);
        uint32_t key = order_key(x);
        if (key < least) continue;
        double w = (double)r.weight(x);
#pragma unroll
        for (int k = 0; k < WAYS; k++)
            if (k < ways && key - least >= (uint32_t)k * step) {
                count[k]++;
                mass[k] += w;
            }
    }
    for (int k = 0; k < WAYS; k++) {
        sum.count[k] = block_sum((double)count[k], shared);
        sum.mass[k] = block_sum(mass[k], shared);
    }
}

/* The largest key such that the logits from it on reach `want` in number or in mass. */
template <class T> __device__ uint32_t threshold(const struct row<T> &r, double want, bool by_mass)
{
    uint32_t least = 0;
    for (int shift = 30; shift >= 0; shift -= 3) {
        int ways = shift == 30 ? 4 : WAYS, best = 0;
        struct tally sum;
        tally_up(sum, r, least, 1u << shift, ways);
        for (int k = 1; k < ways; k++)
            if ((by_mass ? sum.mass[k] : sum.count[k]) >= want) best = k;
        least += (uint32_t)best << shift;
    }
    return least;
}

/* The kept set: every logit above `key`, and the first `ties` ones equal to it. */
struct kept {
    uint32_t key;
    double ties, mass;
};

/* Keys at and above key: how many equal it, how much lies above. */
template <class T> __device__ struct kept keep_at(const struct row<T> &r, uint32_t key, double want, bool by_mass)
{
    struct tally sum;
    tally_up(sum, r, key, 1, 2);
    double in = sum.count[0] - sum.count[1], above = by_mass ? sum.mass[1] : sum.count[1];
    double each = in > 0 ? (sum.mass[0] - sum.mass[1]) / in : 0;
    double more = by_mass ? (each > 0 ? ceil((want - above) / each) : 0) : want - above;
    double ties = more < 1 ? 1 : more > in ? in : more;
    struct kept k = {key, ties, sum.mass[1] + each * ties};
    return k;
}

/* Each warp owns a run of ids. First how many ties lie in earlier runs, then the mass of each run, then the walk. */
template <class T>
__device__ int64_t draw(const struct row<T> &r, const struct kept &k, double u, int64_t *fallback)
{
    __shared__ double run_ties[SAMPLE_WARPS], run_mass[SAMPLE_WARPS];
    __shared__ long long result, last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t run = (r.V + SAMPLE_THREADS - 1) / SAMPLE_THREADS * 32, from = warp * run;
    int64_t to = from + run < r.V ? from + run : r.V;
    if (threadIdx.x == 0) result = -1, last = -1;
    double ties = 0;
    for (int64_t i = from; i < to; i += 32)
        ties += __popc(__ballot_sync(~0u, i + lane < to && order_key(r.logit(i + lane)) == k.key));
    if (lane == 0) run_ties[warp] = ties;
    __syncthreads();
    double before = 0, total = 0, start = 0;
    for (int w = 0; w < warp; w++) before += run_ties[w];
    for (int pass = 0; pass < 2; pass++) {
        double seen = before, cum = start;
        for (int64_t i = from; i < to; i += 32) {
            float x = i + lane < to ? r.logit(i + lane) : -INFINITY;
            uint32_t key = order_key(x);
            bool tie = i + lane < to && key == k.key;
            unsigned tied = __ballot_sync(~0u, tie);
            bool in = i + lane < to && (key > k.key || (tie && seen + __popc(tied & ((1u << lane) - 1)) < k.ties));
            seen += __popc(tied);
            double w = in ? (double)r.weight(x) : 0, sum = w;
            for (int j = 1; j < 32; j <<= 1) {
                double lower = __shfl_up_sync(~0u, sum, j);
                if (lane >= j) sum += lower;
            }
            if (pass == 1) {
                unsigned over = __ballot_sync(~0u, w > 0 && cum + sum > u * total);
                unsigned any = __ballot_sync(~0u, w > 0);
                if (any && lane == 0) atomicMax(&last, (long long)(i + 31 - __clz(any)));
                if (over) {
                    if (lane == 0) result = i + __ffs(over) - 1;
                    break;
                }
            }
            cum += __shfl_sync(~0u, sum, 31);
        }
        if (pass == 0) {
            if (lane == 0) run_mass[warp] = cum;
            __syncthreads();
            for (int w = 0; w < SAMPLE_WARPS; w++) {
                if (w == warp) start = total;
                total += run_mass[w];
            }
            /* Only the run in which the sum passes u * total walks on. */
            if (!(u * total >= start && u * total < start + run_mass[warp]) && warp != SAMPLE_WARPS - 1) to = from;
            if (warp == SAMPLE_WARPS - 1 && u * total < start) to = from;
        }
    }
    __syncthreads();
    *fallback = last;
    return result;
}

template <class T>
__global__ void __launch_bounds__(SAMPLE_THREADS)
sample_kernel(int32_t *ids, float *logp, const T *logits, const double *u, int64_t V, float temperature, int top_k,
              float top_p)
{
    __shared__ double shared[32];
    __shared__ float best[32];
    __shared__ int64_t best_id[32];
    struct row<T> r = {logits + blockIdx.x * V, V, temperature > 0 ? temperature : 1.0f, -INFINITY};
    float most = -INFINITY;
    int64_t id = 0;
    bool bad = false;
    for (int64_t i = threadIdx.x; i < V; i += SAMPLE_THREADS) {
        float x = r.logit(i);
        bad |= x != x || x == INFINITY;
        if (x > most) most = x, id = i;
    }
    for (int i = 16; i; i >>= 1) {
        float x = __shfl_xor_sync(~0u, most, i);
        int64_t other = __shfl_xor_sync(~0u, id, i);
        if (x > most || (x == most && other < id)) most = x, id = other;
    }
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = most, best_id[threadIdx.x / 32] = id;
    bad = __syncthreads_or(bad);
    for (int w = 0; w < SAMPLE_WARPS; w++)
        if (best[w] > most || (best[w] == most && best_id[w] < id)) most = best[w], id = best_id[w];
    if (bad || most == -INFINITY) {
        if (threadIdx.x == 0) ids[blockIdx.x] = 0, logp[blockIdx.x] = NAN;
        return;
    }
    r.most = most;
    double mass = 0;
    for (int64_t i = threadIdx.x; i < V; i += SAMPLE_THREADS) mass += (double)r.weight(r.logit(i));
    mass = block_sum(mass, shared);
    if (temperature > 0) {
        struct kept k = {0, 0, mass};
        if (top_k > 0 && top_k < V) k = keep_at(r, threshold(r, top_k, false), top_k, false);
        if (top_p < 1) {
            double want = (double)top_p * k.mass;
            uint32_t key = threshold(r, want, true);
            if (key > k.key) k = keep_at(r, key, want, true);
            else { /* inside the ties that top_k kept, or no top_k */
                struct kept cut = keep_at(r, k.key, want, true);
                if (cut.ties < k.ties) k = cut;
            }
        }
        int64_t last, drawn = draw(r, k, u[blockIdx.x], &last);
        id = drawn >= 0 ? drawn : last >= 0 ? last : id;
    }
    if (threadIdx.x == 0) {
        ids[blockIdx.x] = (int32_t)id;
        logp[blockIdx.x] = (float)((double)(r.logit(id) - most) / (double)r.temperature - log(mass));
    }
}

extern "C" size_t sample_work_cuda(int64_t rows, int64_t vocab)
{
    (void)rows, (void)vocab;
    return 0;
}

extern "C" enum status sample_cuda(struct tensor ids, struct tensor logp, struct tensor logits, struct tensor u,
                                   float temperature, int top_k, float top_p, struct tensor work, struct stream *s)
{
    (void)work;
    TRY(check_sample(ids, logp, logits, u));
    NEED_STREAM("sample", s);
    int64_t N = logits.dim[0], V = logits.dim[1];
    if (N == 0) return OK;
    BY_DTYPE(logits.dtype, T, {
        sample_kernel<<<(unsigned)N, SAMPLE_THREADS, 0, s->cuda>>>((int32_t *)ids.data, (float *)logp.data,
                                                                  (const T *)logits.data, (const double *)u.data, V,
                                                                  temperature, top_k, top_p);
    });
    TRY_LAUNCH("sample");
    return OK;
}
