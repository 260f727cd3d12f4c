/* Selection and attention over paged caches: the tiles of attend_tile.h and select_tile.h with keys found through page
 * tables. A decoding step is a tile of one query; its few rows are dot products along the keys as they lie in the
 * pages. */
#include "select_tile.h"
#include "ops_check.h"

#include <inttypes.h>

static struct attend_shape attend_shape(const struct paged_args *a)
{
    struct tensor t = a->k_cache;
    return attend_shape_of(a->q.dim[1], t.dim[1], a->q.dim[2], a->max_kv_len, a->sel, a->block, a->scale);
}

static struct select_shape select_shape(const struct paged_args *a)
{
    return select_shape_of(a->iq.dim[1], a->iq.dim[2], a->max_kv_len, a->block, a->topk, a->init, a->local);
}

size_t paged_work_cpu(const struct paged_args *a)
{
    size_t attend = 0, select = 0;
    if (a->q.data) {
        struct attend_space w;
        struct attend_shape z = attend_shape(a);
        attend = attend_carve(&w, NULL, &z, false);
    }
    if (a->iq.data && a->block > 0) {
        struct select_space w;
        struct select_shape z = select_shape(a);
        select = select_carve(&w, NULL, &z);
    }
    return (attend > select ? attend : select) * (size_t)cpu_threads();
}

/* Rows, lengths and pages must lie inside their tensors: they are followed blindly afterwards. */
static enum status check_cache(const char *op, const struct paged_args *a, int64_t rows, int64_t slots)
{
    int64_t S = a->kv_len.dim[0], most = a->page_table.dim[1];
    const int32_t *start = a->q_start.data, *len = a->kv_len.data, *table = a->page_table.data;
    if (start[0] != 0) return FAIL(ERR_INTERNAL, "%s: the first sequence starts at row %d, not 0", op, start[0]);
    for (int64_t s = 0; s < S; s++) {
        int64_t n = (int64_t)start[s + 1] - start[s];
        if (n < 0 || start[s + 1] > rows || n > len[s] || len[s] > a->max_kv_len || len[s] > most * a->page)
            return FAIL(ERR_INTERNAL, "%s: sequence %" PRId64 " has rows %d to %d of %" PRId64 ", %d keys of at most %d,"
                        " %" PRId64 " pages of %d", op, s, start[s], start[s + 1], rows, len[s], a->max_kv_len, most,
                        a->page);
        for (int64_t i = 0; n && i * a->page < len[s]; i++) {
            int64_t p = table[s * most + i];
            if (p < 0 || (p + 1) * a->page > slots)
                return FAIL(ERR_INTERNAL, "%s: sequence %" PRId64 " has page %" PRId64 " in a cache of %" PRId64
                            " slots", op, s, p, slots);
        }
    }
    return OK;
}

/* Keys that all rows together look at, at most `most` a row. */
static int64_t visits(const struct paged_args *a, int64_t most)
{
    const int32_t *start = a->q_start.data, *len = a->kv_len.data;
    int64_t total = 0;
    for (int64_t s = 0; s < a->kv_len.dim[0]; s++) total += (start[s + 1] - start[s]) * cpu_min(len[s], most);
    return total;
}

static struct keys pages_of(const struct paged_args *a, struct tensor cache, int64_t s)
{
    return (struct keys){.t = cache, .pages = (int32_t *)a->page_table.data + s * a->page_table.dim[1],
                         .page = a->page};
}

enum status select_paged_cpu(const struct paged_args *a, struct stream *s)
{
    (void)s;
    TRY(check_select_paged(a));
    int64_t N = a->iq.dim[0], S = a->kv_len.dim[0];
    if (N == 0) return OK;
    TRY(check_cache("select_paged", a, N, a->ik_cache.dim[0]));
    TRY(check_work("select_paged", a->work, paged_work_cpu(a)));
    struct select_shape z = select_shape(a);
    const int32_t *start = a->q_start.data, *len = a->kv_len.data;
    select_none(a->sel, start[S]);
#pragma omp parallel num_threads(cpu_share(visits(a, a->max_kv_len) * z.I * z.D / 8))
    {
        struct select_space w;
        size_t each = select_carve(&w, NULL, &z);
        select_carve(&w, (char *)a->work.data + (size_t)cpu_thread() * each, &z);
        for (int64_t q = 0; q < S; q++) {
            struct keys ik = pages_of(a, a->ik_cache, q);
            int64_t n = start[q + 1] - start[q], tiles = (n + z.queries - 1) / z.queries;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t i = 0; i < tiles; i++) {
                int64_t row = (tiles - 1 - i) * z.queries;
                select_tile(&w, &z, a->sel, a->iq, &ik, start[q] + row, cpu_min(z.queries, n - row), len[q] - n + row);
            }
        }
    }
    return OK;
}

static struct attend_tile tile_at(const struct paged_args *a, const struct attend_shape *z, int64_t s, int64_t head,
                                  int64_t row)
{
    const int32_t *start = a->q_start.data, *len = a->kv_len.data;
    int64_t n = start[s + 1] - start[s];
    struct attend_tile u = {.head = head, .first = start[s] + row, .n = cpu_min(z->queries, n - row),
                            .pos = len[s] - n + row, .k = pages_of(a, a->k_cache, s), .v = pages_of(a, a->v_cache, s)};
    if (z->slots) u.sel = (int32_t *)a->sel.data + (head * a->sel.dim[1] + u.first) * z->slots;
    return u;
}

enum status attend_paged_cpu(const struct paged_args *a, struct stream *s)
{
    (void)s;
    TRY(check_attend_paged(a));
    int64_t N = a->q.dim[0], S = a->kv_len.dim[0];
    if (N == 0) return OK;
    TRY(check_cache("attend_paged", a, N, cpu_min(a->k_cache.dim[0], a->v_cache.dim[0])));
    TRY(check_work("attend_paged", a->work, paged_work_cpu(a)));
    struct attend_shape z = attend_shape(a);
    const int32_t *start = a->q_start.data;
    if (start[S] < N) zero_cpu(tensor_rows(a->o, start[S], N - start[S]), NULL);
    int64_t most = z.slots ? z.slots * z.block : a->max_kv_len;
#pragma omp parallel num_threads(cpu_share(visits(a, most) * z.H * z.D / 4))
    {
        struct attend_space w;
        size_t each = attend_carve(&w, NULL, &z, false);
        attend_carve(&w, (char *)a->work.data + (size_t)cpu_thread() * each, &z, false);
        for (int64_t q = 0; q < S; q++) {
            int64_t tiles = (start[q + 1] - start[q] + z.queries - 1) / z.queries;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t i = 0; i < tiles * z.K; i++) {
                struct attend_tile u = tile_at(a, &z, q, i % z.K, (tiles - 1 - i / z.K) * z.queries);
                attend_tile_forward(&w, &z, &u, a->q);
                attend_tile_store(&w, &z, &u, a->o, NULL, 0);
            }
        }
    }
    return OK;
}
