/* g = min(gate, limit), u = clamp(up, +-limit), y = (u + 1) g sigmoid(alpha g). Where a clamp is active its input has
 * no gradient. */
#include "cpu.h"
#include "ops_check.h"

enum status swiglu_forward_cpu(struct tensor y, struct tensor gu, float alpha, float limit, struct stream *s)
{
    (void)s;
    TRY(check_swiglu_forward(y, gu));
    int64_t R = gu.dim[0], F = y.dim[1], chunks = (F + CPU_CHUNK - 1) / CPU_CHUNK;
#pragma omp parallel for num_threads(cpu_share(R * F)) schedule(static)
    for (int64_t t = 0; t < R * chunks; t++) {
        float buf[3][CPU_CHUNK];
        int64_t row = t / chunks, c = t % chunks * CPU_CHUNK, n = cpu_chunk(F, c);
        const float *gate = cpu_load(gu, row * 2 * F + c, n, buf[0]);
        const float *up = cpu_load(gu, row * 2 * F + F + c, n, buf[1]);
        float *out = cpu_open(y, row * F + c, buf[2]);
        for (int64_t i = 0; i < n; i++) {
            float g = gate[i] > limit ? limit : gate[i];
            float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
            out[i] = (u + 1) * g * cpu_sigmoid(alpha * g);
        }
        cpu_close(y, row * F + c, n, out);
    }
    return OK;
}

enum status swiglu_backward_cpu(struct tensor dgu, struct tensor dy, struct tensor gu, float alpha, float limit,
                                struct stream *s)
{
    (void)s;
    TRY(check_swiglu_backward(dgu, dy, gu));
    int64_t R = gu.dim[0], F = dy.dim[1], chunks = (F + CPU_CHUNK - 1) / CPU_CHUNK;
#pragma omp parallel for num_threads(cpu_share(R * F)) schedule(static)
    for (int64_t t = 0; t < R * chunks; t++) {
        float buf[5][CPU_CHUNK];
        int64_t row = t / chunks, c = t % chunks * CPU_CHUNK, n = cpu_chunk(F, c), at = row * 2 * F + c;
        const float *gate = cpu_load(gu, at, n, buf[0]), *up = cpu_load(gu, at + F, n, buf[1]);
        const float *d = cpu_load(dy, row * F + c, n, buf[2]);
        float *d_gate = cpu_open(dgu, at, buf[3]), *d_up = cpu_open(dgu, at + F, buf[4]);
        for (int64_t i = 0; i < n; i++) {
            float g0 = gate[i], u0 = up[i];
            float g = g0 > limit ? limit : g0, u = u0 > limit ? limit : u0 < -limit ? -limit : u0;
            float sig = cpu_sigmoid(alpha * g);
            float to_g = d[i] * (u + 1) * sig * (1 + alpha * g * (1 - sig)), to_u = d[i] * g * sig;
            d_gate[i] = g0 > limit ? 0 : to_g;
            d_up[i] = u0 > limit || u0 < -limit ? 0 : to_u;
        }
        cpu_close(dgu, at, n, d_gate);
        cpu_close(dgu, at + F, n, d_up);
    }
    return OK;
}
