/* One token a row. The choice itself is src/sampling.c's, the same for every place. */
#include "cpu.h"
#include "ops_check.h"
#include "sampling.h"

/* A row of float logits and as much scratch, for each thread. */
size_t sample_work_cpu(int64_t rows, int64_t vocab)
{
    (void)rows;
    return (size_t)cpu_threads() * 2 * (size_t)vocab * sizeof(float);
}

enum status sample_cpu(struct tensor ids, struct tensor logp, struct tensor logits, struct tensor u, float temperature,
                       int top_k, float top_p, struct tensor work, struct stream *s)
{
    (void)s;
    TRY(check_sample(ids, logp, logits, u));
    int64_t N = logits.dim[0], V = logits.dim[1], failed = N;
    if (N == 0) return OK;
    TRY(check_work("sample", work, sample_work_cpu(N, V)));
    struct sampling how = {temperature, top_k, top_p};
#pragma omp parallel for num_threads(cpu_share(N * V)) schedule(static) reduction(min : failed)
    for (int64_t i = 0; i < N; i++) {
        float *buf = (float *)work.data + cpu_thread() * 2 * V;
        if (sample_token(cpu_load(logits, i * V, V, buf), (int)V, &how, ((double *)u.data)[i], buf + V,
                         (int32_t *)ids.data + i, (float *)logp.data + i))
            failed = cpu_min(failed, i);
    }
    /* A message belongs to its thread: the first failing row fails once more, on ours. */
    if (failed < N)
        return sample_token(cpu_load(logits, failed * V, V, work.data), (int)V, &how, ((double *)u.data)[failed],
                            (float *)work.data + V, (int32_t *)ids.data + failed, (float *)logp.data + failed);
    return OK;
}
