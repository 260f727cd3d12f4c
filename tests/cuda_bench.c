/* Times of the device's ops at real widths: milliseconds (median of a few), TFLOP/s of useful work, GB/s of bytes that
 * must move, share of the better ceiling. Random inputs; ceilings measured in the same call.
 *
 *   cuda_bench [PREFIX]   rows whose name starts so */
#include "cuda_pairs.h"

enum { REPEATS = 9 };

static struct bench b;
static struct device_timer *timer;
static const char *only = "";
static double peak_flops = 1, peak_bytes = 1;

static int by_time(const void *x, const void *y) { return *(const double *)x < *(const double *)y ? -1 : 1; }

static double report(const char *name, const char *shape, double *ms, double flops, double bytes)
{
    qsort(ms, REPEATS, sizeof *ms, by_time);
    double t = ms[REPEATS / 2] * 1e-3, f = flops / t, g = bytes / t;
    double share = f / peak_flops > g / peak_bytes ? f / peak_flops : g / peak_bytes;
    printf("%-18s %-46s %9.3f ms %8.1f TFLOP/s %8.0f GB/s %5.0f%%%s%s\n", name, shape, t * 1e3, f * 1e-12, g * 1e-9,
           100 * share, b.message[0] ? "  " : "", b.message);
    fflush(stdout);
    b.message[0] = 0;
    return t;
}

/* Runs the call twice to warm up, then REPEATS times; i is the device's side. */
#define TIME(name, shape, flops, bytes, ...)                                                                           \
    do {                                                                                                               \
        if (strncmp(name, only, strlen(only))) break;                                                                  \
        double ms_[REPEATS];                                                                                           \
        int i = 1;                                                                                                     \
        (void)i;                                                                                                       \
        for (int r_ = -2; r_ < REPEATS; r_++) {                                                                        \
            PAIR_TRY(&b, device_timer_start(timer, b.stream[1]));                                                      \
            PAIR_TRY(&b, (__VA_ARGS__));                                                                               \
            PAIR_TRY(&b, device_timer_stop(timer, b.stream[1]));                                                       \
            double t_ = 0;                                                                                             \
            PAIR_TRY(&b, device_timer_read(timer, &t_));                                                               \
            if (r_ >= 0) ms_[r_] = t_;                                                                                 \
        }                                                                                                              \
        last_time = report(name, shape, ms_, flops, bytes);                                                            \
    } while (0)
static double last_time;

/* Device tensors only. Random BF16 or F32 come from one random megabyte, repeated. */
static struct tensor device(enum dtype type, int64_t d0, int64_t d1, int64_t d2, bool random)
{
    static uint16_t *some;
    enum { SOME = 1 << 19 };
    struct pair *p = &b.pair[b.pairs++];
    memset(p, 0, sizeof *p);
    struct tensor t = tensor_view(NULL, type, PLACE_DEVICE, d2 ? 3 : d1 ? 2 : 1, d0, d1 ? d1 : 1, d2 ? d2 : 1, 1);
    PAIR_TRY(&b, b.ops[1]->alloc(&t.data, tensor_bytes(t) + 256, PLACE_DEVICE));
    p->t[1] = t;
    if (!random) {
        PAIR_TRY(&b, b.ops[1]->zero(t, b.stream[1]));
        return t;
    }
    if (!some) {
        some = malloc(SOME * sizeof *some * 2);
        for (int i = 0; i < SOME; i++) {
            float f = (float)pair_uniform(&b);
            some[i] = bf16_from_float(f);
            memcpy(some + SOME + 2 * (i / 2) + i % 2, &some[i], 2);
        }
    }
    /* As F32 the same bytes are pairs of BF16: the upper one is the value, still in [-1, 1). */
    size_t bytes = tensor_bytes(t), piece = SOME * sizeof *some;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        struct tensor to = tensor_view((char *)t.data + at, DT_U8, PLACE_DEVICE, 1, (int64_t)n, 1, 1, 1);
        struct tensor from = tensor_view(at ? t.data : (void *)some, DT_U8, at ? PLACE_DEVICE : PLACE_HOST, 1, (int64_t)n, 1,
                                         1, 1);
        PAIR_TRY(&b, b.ops[1]->copy(to, from, b.stream[1]));
    }
    PAIR_TRY(&b, b.ops[1]->wait(b.stream[1]));
    return t;
}
static struct tensor device_ints(const int32_t *v, int64_t n)
{
    struct tensor t = device(DT_I32, n, 0, 0, false), host = t;
    host.data = (void *)v;
    host.place = PLACE_HOST;
    PAIR_TRY(&b, b.ops[1]->copy(t, host, b.stream[1]));
    PAIR_TRY(&b, b.ops[1]->wait(b.stream[1]));
    return t;
}
static void done(void)
{
    b.ops[1]->wait(b.stream[1]);
    for (int i = 0; i < b.pairs; i++) b.ops[1]->release(b.pair[i].t[1].data, PLACE_DEVICE);
    b.pairs = 0;
}

#define RUN(op, ...) b.ops[1]->op(__VA_ARGS__, b.stream[1])

static void ceilings(void)
{
    struct tensor x = device(DT_BF16, 8192, 8192, 0, true), w = device(DT_BF16, 8192, 8192, 0, true);
    struct tensor y = device(DT_BF16, 8192, 8192, 0, false);
    struct tensor big = device(DT_U8, (int64_t)1 << 31, 0, 0, true), to = device(DT_U8, (int64_t)1 << 31, 0, 0, false);
    const char *keep = only;
    only = "";
    TIME("matmul 8192^3", "ceiling", 2.0 * 8192 * 8192 * 8192, 0, RUN(linear_forward, y, x, w));
    peak_flops = 2.0 * 8192 * 8192 * 8192 / last_time;
    TIME("copy 2 GiB", "ceiling", 0, 2.0 * (1u << 31), RUN(copy, to, big));
    peak_bytes = 2.0 * (1u << 31) / last_time;
    only = keep;
    done();
}

static void memory_bound(void)
{
    int64_t T = 16384, C = 6144, F = 3072, V = 50016, k = 4, R = T * k;
    double a = (double)(T * C) * 2; /* bytes of one activation */
    struct tensor x = device(DT_BF16, T, C, 0, true), y = device(DT_BF16, T, C, 0, true), z = device(DT_BF16, T, C, 0, true);
    struct tensor w = device(DT_BF16, C, 0, 0, true), rstd = device(DT_F32, T, 0, 0, true), dw = device(DT_F32, C, 0, 0, true);
    struct tensor none = TENSOR_NONE;
    TIME("add", "T 16384 C 6144", 0, 3 * a, RUN(add, z, x, y));
    TIME("norm fwd", "T 16384 C 6144", 0, 2 * a, RUN(rmsnorm_forward, z, rstd, none, x, none, w, 1e-6f));
    TIME("norm fwd + add", "T 16384 C 6144", 0, 4 * a, RUN(rmsnorm_forward, z, rstd, x, x, y, w, 1e-6f));
    TIME("norm bwd", "T 16384 C 6144", 0, 4 * a, RUN(rmsnorm_backward, z, dw, y, x, w, rstd, z));
    done();
    int H = 64, K = 4, D = 128;
    int64_t cols = (K + 1) * D + (H + 2 * K) * D;
    struct tensor qkv = device(DT_BF16, T, cols, 0, true), pos = device(DT_I32, T, 0, 0, false);
    struct qkv_args q = {.qkv = qkv, .q_norm = device(DT_BF16, D, 0, 0, true), .k_norm = device(DT_BF16, D, 0, 0, true),
        .iq_norm = device(DT_BF16, D, 0, 0, true), .ik_norm = device(DT_BF16, D, 0, 0, true), .pos = pos, .theta = 5e6f,
        .eps = 1e-6f, .rotary = 64, .q = device(DT_BF16, T, H, D, true), .k = device(DT_BF16, T, K, D, true),
        .iq = device(DT_BF16, T, K, D, true), .ik = device(DT_BF16, T, D, 0, true), .rstd = device(DT_F32, T, H + K, 0, true),
        .dqkv = device(DT_BF16, T, (H + 2 * K) * D, 0, true), .dq_norm = device(DT_F32, D, 0, 0, true),
        .dk_norm = device(DT_F32, D, 0, 0, true)};
    q.dq = q.q, q.dk = q.k;
    TIME("qkv fwd", "T 16384 64/4 heads, 4 index heads", 0, (double)T * (H + 2 * K + 1) * D * 4, RUN(qkv_forward, &q));
    TIME("qkv bwd", "T 16384 64/4 heads", 0, (double)T * (H + K) * D * 6, RUN(qkv_backward, &q));
    done();
    struct tensor gu = device(DT_BF16, R, 2 * F, 0, true), act = device(DT_BF16, R, F, 0, true);
    TIME("swiglu fwd", "R 65536 F 3072", 0, (double)(R * F) * 6, RUN(swiglu_forward, act, gu, 1.702f, 7.0f));
    TIME("swiglu bwd", "R 65536 F 3072", 0, (double)(R * F) * 10, RUN(swiglu_backward, gu, act, gu, 1.702f, 7.0f));
    done();
    struct tensor logits = device(DT_F32, T, 128, 0, true), bias = device(DT_F32, 128, 0, 0, true);
    struct tensor experts = device(DT_I32, T, k, 0, false), weights = device(DT_F32, T, k, 0, true);
    struct tensor off = device(DT_I32, 129, 0, 0, false), token = device(DT_I32, R, 0, 0, false), row = device(DT_I32, T, k, 0, false);
    struct tensor rows = device(DT_BF16, R, C, 0, true), h = device(DT_BF16, T, C, 0, true), out = device(DT_BF16, T, C, 0, true);
    struct tensor dwe = device(DT_F32, T, k, 0, true), wr = device(DT_F32, 128, C, 0, true), dwr = device(DT_F32, 128, C, 0, true);
    TIME("route", "T 16384 E 128 k 4", 0, (double)T * 128 * 4, RUN(route_forward, experts, weights, logits, bias, T, false));
    TIME("dispatch", "T 16384 E 128 k 4", 0, (double)R * 12, RUN(dispatch, off, token, row, experts));
    TIME("gather", "R 65536 C 6144", 0, 5 * a, RUN(gather_rows, rows, h, token));
    TIME("combine fwd", "T 16384 k 4 C 6144", 0, 5 * a, RUN(combine_forward, out, rows, row, weights, 2, none));
    TIME("combine bwd", "T 16384 k 4 C 6144", 0, 9 * a, RUN(combine_backward, rows, dwe, h, rows, row, weights, 2));
    TIME("router fwd", "T 16384 E 128 C 6144", 2.0 * (double)(T * C) * 128, a, RUN(linear_forward, logits, h, wr));
    TIME("router dx", "T 16384 E 128 C 6144", 2.0 * (double)(T * C) * 128, 2 * a, RUN(linear_dx, h, logits, wr, true));
    TIME("router dw", "T 16384 E 128 C 6144", 2.0 * (double)(T * C) * 128, a, RUN(linear_dw, dwr, logits, h));
    done();
    T = 4096;
    struct tensor lg = device(DT_BF16, T, V, 0, true), st = device(DT_F32, T, 4, 0, true), ids = device(DT_I32, T, 0, 0, false);
    struct tensor lse = device(DT_F32, T, 0, 0, true), dl = device(DT_F32, T, 0, 0, true);
    TIME("vocab stats", "T 4096 V 50016", 0, (double)(T * V) * 2, RUN(vocab_stats, st, lg, ids, 0, 1));
    TIME("vocab bwd", "T 4096 V 50016", 0, (double)(T * V) * 4, RUN(vocab_backward, lg, lg, ids, 0, 1, lse, none, dl, none));
    struct tensor u = device(DT_F64, 64, 0, 0, false), id = device(DT_I32, 64, 0, 0, false), lp = device(DT_F32, 64, 0, 0, true);
    struct tensor l64 = device(DT_BF16, 64, 200064, 0, true);
    TIME("sample", "N 64 V 200064, no filter", 0, 64.0 * 200064 * 2, RUN(sample, id, lp, l64, u, 1, 0, 1, none));
    TIME("sample", "N 64 V 200064, top_k 50 top_p 0.9", 0, 64.0 * 200064 * 2, RUN(sample, id, lp, l64, u, 1, 50, 0.9f, none));
    done();
    int64_t n = 200000000;
    struct adamw_args ad = {.master = device(DT_F32, n, 0, 0, true), .exp_avg = device(DT_F32, n, 0, 0, true),
        .exp_avg_sq = device(DT_F32, n, 0, 0, false), .grad = device(DT_F32, n, 0, 0, true), .weight = device(DT_BF16, n, 0, 0, true),
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .bias1 = 0.1f, .bias2 = 0.05f, .grad_scale = 1};
    TIME("adamw", "200M, f32 state and gradient", 0, (double)n * 30, RUN(adamw, &ad));
    struct tensor sum = device(DT_F64, 1, 0, 0, false);
    TIME("square_sum", "200M f32", 0, (double)n * 4, RUN(square_sum, sum, ad.grad));
    done();
}

static void experts(int64_t R, int E, int64_t N, int64_t K)
{
    int32_t offsets[129];
    for (int e = 0; e <= E; e++) offsets[e] = (int32_t)(R * e / E);
    struct tensor off = device_ints(offsets, E + 1);
    struct tensor x = device(DT_BF16, R, K, 0, true), w = device(DT_BF16, E, N, K, true), y = device(DT_BF16, R, N, 0, true);
    struct tensor dw = device(DT_F32, E, N, K, true);
    double flops = 2.0 * (double)(R * N) * (double)K;
    double in = 2.0 * (double)(R * K), out = 2.0 * (double)(R * N), weights = 2.0 * (double)(E * N) * (double)K;
    char shape[64];
    snprintf(shape, sizeof shape, "%lld rows, %d experts of %lld x %lld", (long long)R, E, (long long)N, (long long)K);
    TIME("grouped fwd", shape, flops, in + out + weights, RUN(grouped_forward, y, x, w, off));
    TIME("grouped dx", shape, flops, in + out + weights, RUN(grouped_dx, x, y, w, off));
    TIME("grouped dw", shape, flops, in + out + 4 * weights, RUN(grouped_dw, dw, y, x, off));
    done();
}

static void attention(int64_t T, int S, int H, int K, int D, int slots, int block, bool local)
{
    int32_t *cu = malloc((size_t)(S + 1) * sizeof *cu);
    for (int s = 0; s <= S; s++) cu[s] = (int32_t)(T * s / S);
    int len = cu[1];
    struct attend_args a = {.q = device(DT_BF16, T, H, D, true), .k = device(DT_BF16, T, K, D, true),
        .v = device(DT_BF16, T, K, D, true), .cu_seqlens = device_ints(cu, S + 1), .max_seqlen = len, .block = block,
        .scale = 1 / sqrtf((float)D), .o = device(DT_BF16, T, H, D, true), .lse = device(DT_F32, H, T, 0, true),
        .d_o = device(DT_BF16, T, H, D, true), .dq = device(DT_BF16, T, H, D, true), .dk = device(DT_BF16, T, K, D, true),
        .dv = device(DT_BF16, T, K, D, true), .deterministic = true};
    double pairs = 0; /* (query, key) of one head */
    if (slots) {
        int32_t *sel = malloc((size_t)(T * slots * K) * sizeof *sel), *v = sel;
        for (int k = 0; k < K; k++)
            for (int64_t t = 0; t < T; t++, v += slots) {
                int own = (int)(t % len) / block, n = 0;
                v[n++] = own;
                pairs += (double)(t % len % block + 1) / K;
                while (n < slots && n <= own) {
                    /* correlated: mostly the choice of a group of 64 tokens, else uniform */
                    uint64_t key = local && n < slots - 2 ? (uint64_t)(t / 64) * 4099 + (uint64_t)n * 7 + (uint64_t)k : b.seed++;
                    int c = (int)(pair_hash(key) % (uint64_t)(own + 1)), i = 0;
                    for (bool again = true; again;) {
                        again = false;
                        for (i = 0; i < n; i++)
                            if (v[i] == c) again = true;
                        if (again) c = (c + 1) % (own + 1);
                    }
                    v[n++] = c;
                    pairs += (double)block / K;
                }
                while (n < slots) v[n++] = -1;
            }
        a.sel = device_ints(sel, T * slots * K);
        a.sel = tensor_view(a.sel.data, DT_I32, PLACE_DEVICE, 3, K, T, slots, 1);
        free(sel);
    } else pairs = (double)S * ((double)len * (len + 1) / 2);
    size_t fw = b.ops[1]->attend_work(&a, false), bw = b.ops[1]->attend_work(&a, true);
    a.work = device(DT_U8, (int64_t)(fw > bw ? fw : bw) + 1, 0, 0, false);
    char shape[96];
    snprintf(shape, sizeof shape, "T %lld S %d H %d K %d D %d%s", (long long)T, S, H, K, D, local ? " correlated" : "");
    if (slots) snprintf(shape + strlen(shape), sizeof shape - strlen(shape), " %d x %d", slots, block);
    double flops = 4.0 * pairs * H * D;
    TIME(slots ? "sparse fwd" : "dense fwd", shape, flops, 0, RUN(attend_forward, &a));
    double forward = last_time;
    TIME(slots ? "sparse bwd" : "dense bwd", shape, 2.5 * flops, 0, RUN(attend_backward, &a));
    if (strncmp(slots ? "sparse" : "dense", only, strlen(only)) == 0)
        printf("%-18s %-46s %9.3f ms %8.1f TFLOP/s   work %.0f MiB\n", "  fwd + bwd", shape, 1e3 * (forward + last_time),
               3.5 * flops / (forward + last_time) * 1e-12, (double)(fw > bw ? fw : bw) / 1048576);
    free(cu);
    done();
}

static void selection(int64_t T, int I)
{
    int32_t cu[2] = {0, (int32_t)T};
    struct select_args a = {.iq = device(DT_BF16, T, I, 128, true), .ik = device(DT_BF16, T, 128, 0, true),
        .cu_seqlens = device_ints(cu, 2), .max_seqlen = (int)T, .block = 128, .topk = 16, .init = 0, .local = 1,
        .sel = device(DT_I32, I, T, 16, false)};
    a.work = device(DT_U8, (int64_t)b.ops[1]->select_work(&a) + 1, 0, 0, false);
    char shape[64];
    snprintf(shape, sizeof shape, "T %lld I %d block 128 topk 16", (long long)T, I);
    TIME("select", shape, (double)T * (double)T * 128 * I, 0, RUN(select_forward, &a));
    done();
}

/* One new token each of S sequences of `len` keys. */
static void decoding(int S, int len, bool sparse)
{
    int page = 128, pages = (len + page - 1) / page, H = 64, K = 4, D = 128;
    int32_t *table = malloc((size_t)(S * pages) * 4), *start = malloc((size_t)(S + 1) * 4), *lens = malloc((size_t)S * 4);
    for (int i = 0; i < S * pages; i++) table[i] = i;
    for (int s = 0; s <= S; s++) start[s] = s;
    for (int s = 0; s < S; s++) lens[s] = len;
    struct paged_args a = {.q = device(DT_BF16, S, H, D, true), .k_cache = device(DT_BF16, (int64_t)S * pages * page, K, D, true),
        .v_cache = device(DT_BF16, (int64_t)S * pages * page, K, D, true), .iq = device(DT_BF16, S, K, D, true),
        .ik_cache = device(DT_BF16, (int64_t)S * pages * page, D, 0, true), .q_start = device_ints(start, S + 1),
        .kv_len = device_ints(lens, S), .page = page, .max_kv_len = len, .max_q_len = 1, .block = 128, .topk = 16, .local = 1,
        .scale = 0.088f, .o = device(DT_BF16, S, H, D, true)};
    struct tensor t = device_ints(table, (int64_t)S * pages);
    a.page_table = tensor_view(t.data, DT_I32, PLACE_DEVICE, 2, S, pages, 1, 1);
    a.sel = device(DT_I32, K, S, 16, false);
    a.work = device(DT_U8, (int64_t)b.ops[1]->paged_work(&a) + 1, 0, 0, false);
    char shape[64];
    snprintf(shape, sizeof shape, "batch %d, %d keys, 64/4 heads%s", S, len, sparse ? ", 16 blocks" : "");
    double read = sparse && len > 2048 ? 2048 : len;
    if (sparse) TIME("paged select", shape, 0, (double)S * len * D * 2, RUN(select_paged, &a));
    else a.sel = TENSOR_NONE;
    TIME("paged attend", shape, 0, (double)S * read * K * D * 4, RUN(attend_paged, &a));
    free(table), free(start), free(lens);
    done();
}

int main(int argc, char **argv)
{
    if (argc > 1) only = argv[1];
    const struct ops *device_ops;
    if (ops_find(&device_ops, "cuda")) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    b.ops[1] = b.ops[2] = device_ops;
    b.seed = 1;
    if (device_ops->open(&b.stream[1], 0) || device_timer_open(&timer)) {
        printf("%s (%s)\n", status_message(), status_where());
        return 1;
    }
    ceilings();
    memory_bound();
    experts(8192, 16, 6144, 6144);
    experts(65536, 16, 6144, 6144);
    experts(8192, 16, 6144, 3072);
    experts(256, 8, 6144, 6144);
    experts(4, 8, 6144, 6144);
    attention(16384, 1, 16, 1, 128, 0, 0, false);
    attention(16384, 1, 64, 4, 128, 0, 0, false);
    attention(16384, 64, 16, 1, 128, 0, 0, false);
    attention(16384, 1, 16, 1, 128, 16, 128, false);
    attention(16384, 1, 16, 1, 128, 16, 128, true);
    attention(32768, 1, 16, 1, 128, 16, 128, true);
    attention(16384, 1, 64, 4, 128, 16, 128, true);
    attention(16384, 64, 16, 1, 128, 16, 128, false);
    attention(16384, 1, 12, 1, 256, 512, 4, true);
    selection(16384, 1);
    selection(16384, 4);
    selection(32768, 1);
    selection(32768, 4);
    decoding(64, 576, false);
    decoding(64, 8192, true);
    decoding(1, 576, false);
    device_timer_close(timer);
    device_ops->close(b.stream[1]);
    return 0;
}
