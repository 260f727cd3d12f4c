#include "init.h"

#include "json.h"
#include "model.h"
#include "release.h"
#include "safetensors_write.h"
#include "sampling.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* initializer_range of the language model or of the file's root. */
static enum status init_range(const char *config, double *range)
{
    json_t *root = NULL, *text = NULL;
    *range = 0.02;
    TRY(json_read_file(&root, config, 16 << 20));
    enum status s = json_want_object(root, "text_config", &text, config);
    if (!s) s = json_want_number(root, "initializer_range", 0, 10, range, config);
    if (!s && text) s = json_want_number(text, "initializer_range", 0, 10, range, config);
    json_decref(root);
    return s;
}

static enum status write_random(struct st_writer *w, const char *name, int64_t n, enum dtype dtype, uint64_t seed,
                                double std)
{
    uint64_t stream = rng_name(name);
    float *value = malloc(CHUNK * sizeof *value);
    uint16_t *half = malloc(CHUNK * sizeof *half);
    enum status s = value && half ? OK : FAIL(ERR_MEMORY, "%d values of %s", CHUNK, name);
    for (int64_t at = 0; at < n && !s; at += CHUNK) {
        int64_t m = n - at < CHUNK ? n - at : CHUNK;
#pragma omp parallel for if (m > 4096)
        for (int64_t i = 0; i < m; i++) {
            value[i] = std > 0 ? (float)(std * rng_normal(seed, stream, (uint64_t)(at + i))) : 0.0f;
            half[i] = bf16_from_float(value[i]);
        }
        s = dtype == DT_F32 ? st_writer_write(w, name, value, (size_t)m * 4) : st_writer_write(w, name, half, (size_t)m * 2);
    }
    free(value);
    free(half);
    return s;
}

/* Both passes walk the same list: declared first, written second. */
static enum status each_tensor(const struct model *m, const struct init_args *a, struct st_writer *w, double std,
                               bool declare)
{
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        bool x = param_is_experts(p);
        int64_t dim[2] = {x ? p->dim[1] : p->dim[0], x ? p->dim[2] : p->dim[1]};
        enum dtype dtype = p->store == STORE_F32 ? DT_F32 : a->dtype;
        for (int64_t e = 0; e < (x ? p->dim[0] : 1); e++) {
            char name[160];
            param_release_name(p, e, name, sizeof name);
            if (declare) TRY(st_writer_add(w, name, dtype, p->rank == 1 ? 1 : 2, dim));
            else TRY(write_random(w, name, dim[0] * dim[1], dtype, a->seed, p->rank == 1 ? 0 : std));
        }
    }
    return OK;
}

static enum status write_all(const struct model *m, const struct init_args *a, struct st_writer *w)
{
    double std;
    char path[4096], side[4096];
    TRY(init_range(a->config, &std));
    TRY(each_tensor(m, a, w, std, true));
    TRY(st_writer_begin(w, a->shard_bytes));
    TRY(each_tensor(m, a, w, std, false));
    snprintf(path, sizeof path, "%s/config.json", w->tmp);
    TRY(release_copy_file(a->config, path));
    const char *slash = strrchr(a->config, '/');
    snprintf(side, sizeof side, "%.*s", slash ? (int)(slash - a->config) : 1, slash ? a->config : ".");
    TRY(release_copy_side_files(side, w->tmp));
    return st_writer_close(w);
}

enum status init_release(const struct init_args *a)
{
    char *text = NULL;
    size_t len = 0;
    struct arch arch;
    struct mesh one;
    struct model m;
    struct st_writer w = {0};
    TRY(json_read_bytes(&text, &len, a->config, 16 << 20));
    enum status s = arch_parse(&arch, text, len, a->config);
    free(text);
    TRY(s);
    TRY(mesh_single(&one, &arch));
    TRY(model_create(&m, &arch, &one, &ops_cpu, NULL, a->dtype, 1 << 20));
    s = st_writer_open(&w, a->dst);
    if (!s) s = write_all(&m, a, &w);
    if (s) st_writer_abort(&w);
    model_destroy(&m);
    return s;
}
