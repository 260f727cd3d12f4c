#include "weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STAGING_BYTES = 32 << 20 };

enum status weights_check(const struct model *m, const struct release *r)
{
    int64_t n = 0, at = 0;
    for (int i = 0; i < m->n_params; i++) n += param_is_experts(&m->params[i]) ? m->params[i].dim[0] : 1;
    char (*text)[160] = calloc((size_t)n, sizeof *text);
    const char **names = calloc((size_t)n, sizeof *names);
    enum status s = text && names ? OK : FAIL(ERR_MEMORY, "%" PRId64 " parameter names", n);
    for (int i = 0; i < m->n_params && !s; i++) {
        const struct param *p = &m->params[i];
        int64_t outer = param_is_experts(p) ? p->dim[0] : 1;
        for (int64_t e = 0; e < outer && !s; e++, at++) {
            param_release_name(p, e, text[at], sizeof text[at]);
            names[at] = text[at];
            const struct release_tensor *t = release_find(r, text[at]);
            int64_t rows = param_is_experts(p) ? p->dim[1] : p->dim[0], cols = param_is_experts(p) ? p->dim[2] : p->dim[1];
            if (t && (t->rows != rows || t->cols != cols))
                s = FAIL(ERR_FORMAT, "%s: %s is %" PRId64 " x %" PRId64 ", config.json makes it %" PRId64 " x %" PRId64,
                         r->dir, text[at], t->rows, t->cols, rows, cols);
        }
    }
    bool dense = true; /* a model run with dense attention leaves index tensors unread */
    for (int l = 0; l < m->arch.layers; l++) dense = dense && !m->arch.sparse[l];
    if (!s) s = release_check_names(r, names, n, dense ? release_is_indexer : NULL, NULL, NULL);
    free(text);
    free(names);
    return s;
}

/* One [rows, cols] view, in pieces that fit the staging buffer. */
static enum status load_rows(struct model *m, const struct release *r, const char *name, struct tensor w, int64_t row0,
                             int64_t col0, void *staging)
{
    int64_t rows = w.dim[0], cols = w.rank > 1 ? w.dim[1] : 1;
    int64_t step = STAGING_BYTES / (cols * (int64_t)dtype_size(w.dtype));
    if (step < 1) return FAIL(ERR_FORMAT, "%s: a row of %" PRId64 " elements", name, cols);
    for (int64_t at = 0; at < rows; at += step) {
        int64_t n = rows - at < step ? rows - at : step;
        TRY(release_read_rows(r, name, row0 + at, n, col0, cols, w.dtype, staging));
        struct tensor piece = tensor_rows(w, at, n), host = piece;
        host.data = staging;
        host.place = PLACE_HOST;
        TRY(m->ops->copy(piece, host, m->stream));
        TRY(m->ops->wait(m->stream));
    }
    return OK;
}

enum status weights_load(struct model *m, const struct release *r)
{
    void *staging = malloc(STAGING_BYTES);
    enum status s = staging ? OK : FAIL(ERR_MEMORY, "staging buffer of %d bytes", STAGING_BYTES);
    for (int i = 0; i < m->n_params && !s; i++) {
        const struct param *p = &m->params[i];
        if (!p->here) continue;
        bool x = param_is_experts(p);
        for (int64_t e = 0; e < (x ? p->count[0] : 1) && !s; e++) {
            char name[160];
            param_release_name(p, x ? p->start[0] + e : 0, name, sizeof name);
            s = load_rows(m, r, name, param_weight(m, p, e), x ? p->start[1] : p->start[0], x ? p->start[2] : p->start[1],
                          staging);
        }
    }
    free(staging);
    return s;
}
