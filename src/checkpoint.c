#include "checkpoint.h"

#include "fs.h"
#include "hash.h"
#include "hdf5.h"
#include "release.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };

#define PATH(out, ...)                                                                                                 \
    do {                                                                                                               \
        if (snprintf(out, sizeof out, __VA_ARGS__) >= (int)sizeof out)                                                 \
            return FAIL(ERR_CONFIG, "a checkpoint path is longer than %zu characters", sizeof out);                     \
    } while (0)

/* ---------------------------------------------------------------- names ------------------------------------------ */

static void model_name(const struct param *p, char out[256]) { snprintf(out, 256, "/model/%s", p->name); }
static void adam_name(const struct param *p, const char *what, char out[256])
{
    snprintf(out, 256, "/optimizer/%s/%s", p->name, what);
}

static const char *const moments[] = {"master", "exp_avg", "exp_avg_sq"};

/* ---------------------------------------------------------------- writing ---------------------------------------- */

static struct h5_dataset dataset(const char *name, enum dtype dtype, const struct param *p)
{
    struct h5_dataset d = {.name = name, .dtype = dtype, .rank = p->rank};
    for (int i = 0; i < p->rank; i++) d.dim[i] = p->dim[i];
    return d;
}

/* Both files with all their datasets, by one process. */
static enum status create_files(const char *dir, const struct model *m, const struct adam *a)
{
    int n = 0, cap = 3 * m->n_params + 8;
    struct h5_dataset *sets = calloc((size_t)cap, sizeof *sets);
    char (*names)[256] = calloc((size_t)cap, sizeof *names), path[MAX_PATH + 32];
    enum status s = sets && names ? OK : FAIL(ERR_MEMORY, "datasets of %d parameters", m->n_params);
    for (int i = 0; i < m->n_params && !s; i++, n++) {
        const struct param *p = &m->params[i];
        model_name(p, names[n]);
        sets[n] = dataset(names[n], p->store == STORE_F32 ? DT_F32 : m->dtype, p);
    }
    snprintf(path, sizeof path, "%s/model.h5", dir);
    if (!s) s = h5_create(path, sets, n, true);
    n = 0;
    for (int i = 0; i < m->n_params && !s; i++)
        for (int k = 0; k < 3 && m->params[i].trained; k++, n++) {
            adam_name(&m->params[i], moments[k], names[n]);
            sets[n] = dataset(names[n], k ? a->o.moments : DT_F32, &m->params[i]);
        }
    static const char *const counters[] = {"/state/step", "/state/samples", "/state/seed", "/state/adam_step"};
    for (int i = 0; i < 4 && !s; i++) sets[n++] = (struct h5_dataset){.name = counters[i], .dtype = DT_I64};
    if (!s) sets[n++] = (struct h5_dataset){.name = "/state/best_loss", .dtype = DT_F64};
    snprintf(path, sizeof path, "%s/optimizer.h5", dir);
    if (!s) s = h5_create(path, sets, n, true);
    free(sets);
    free(names);
    return s;
}

struct writer {
    struct h5file *f;
    const struct model *m;
    struct tensor from;      /* flat view: the piece `at` elements behind its start */
    const char *what;        /* NULL: weights */
    void *staging;
    int64_t staging_bytes;
};

/* Host view of elements [at, at + n) of a flat tensor; device memory is copied into the staging buffer. */
static enum status to_host(struct writer *w, int64_t at, int64_t n, struct tensor *host)
{
    *host = tensor_flat(w->from, at, n);
    if (host->place != PLACE_DEVICE) return OK;
    struct tensor device = *host;
    if ((int64_t)tensor_bytes(device) > w->staging_bytes) {
        free(w->staging);
        w->staging = malloc(tensor_bytes(device));
        w->staging_bytes = w->staging ? (int64_t)tensor_bytes(device) : 0;
        if (!w->staging) return FAIL(ERR_MEMORY, "%zu bytes of staging", tensor_bytes(device));
    }
    host->data = w->staging;
    host->place = PLACE_HOST;
    TRY(w->m->ops->copy(*host, device, w->m->stream));
    return w->m->ops->wait(w->m->stream);
}

static enum status write_piece(void *ctx, const struct param *p, const int64_t start[3], const int64_t count[3],
                               int64_t at)
{
    struct writer *w = ctx;
    char name[256];
    struct tensor host;
    if (w->what) adam_name(p, w->what, name);
    else model_name(p, name);
    TRY(to_host(w, at, count[0] * count[1] * count[2], &host));
    return h5_write_slab(w->f, name, start, count, host.dtype, host.data);
}

/* A frozen parameter is written by the rank that speaks for its shard. */
static enum status write_frozen(struct writer *w)
{
    const struct model *m = w->m;
    for (int i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        if (p->trained || !param_speaker(m, p)) continue;
        struct tensor whole = param_weight(m, p, 0);
        w->from = tensor_flat(whole, 0, tensor_count(whole));
        TRY(write_piece(w, p, p->start, p->count, 0));
    }
    return OK;
}

/* Every rank writes what it owns: its share of each bucket. */
static enum status write_owned(struct writer *w, const struct adam *a, int which)
{
    const struct model *m = w->m;
    for (int i = 0; i < m->n_buckets; i++) {
        int64_t g_off, w_off, n;
        grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
        if (which < 0) w->from = tensor_flat(m->store[m->buckets[i].store], w_off, n);
        else TRY(adam_fetch((struct adam *)a, which, i, &w->from));
        TRY(model_walk(m, g_off, n, write_piece, w));
    }
    return OK;
}

static enum status write_counters(struct h5file *f, const struct adam *a, const struct train_state *s)
{
    const int64_t none[1] = {0}, one[1] = {1}, seed = (int64_t)s->seed;
    TRY(h5_write_slab(f, "/state/step", none, one, DT_I64, &s->step));
    TRY(h5_write_slab(f, "/state/samples", none, one, DT_I64, &s->samples));
    TRY(h5_write_slab(f, "/state/seed", none, one, DT_I64, &seed));
    TRY(h5_write_slab(f, "/state/adam_step", none, one, DT_I64, &a->step));
    return h5_write_slab(f, "/state/best_loss", none, one, DT_F64, &s->best_loss);
}

static enum status write_file(const char *path, const struct model *m, const struct adam *a,
                              const struct train_state *s, bool weights)
{
    struct group *world = (struct group *)&m->mesh->world;
    struct writer w = {.m = m};
    TRY(h5_open_parallel(&w.f, world->comm, path, true));
    enum status st = OK;
    if (weights) {
        st = write_owned(&w, a, -1);
        if (!st) st = write_frozen(&w);
    } else {
        for (int k = 0; k < 3 && !st; k++) {
            w.what = moments[k];
            st = write_owned(&w, a, k);
        }
        if (!st && world->rank == 0) st = write_counters(w.f, a, s);
    }
    free(w.staging);
    return h5_close(&w.f, st);
}

/* Root attributes, the completion marks, the rename: by one process, after everything is on disk. */
static enum status describe(const char *path, const struct checkpoint_args *c, const struct model *m,
                            const struct train_state *s)
{
    struct h5file *f = NULL;
    char mesh[96];
    const struct mesh *g = m->mesh;
    snprintf(mesh, sizeof mesh, "tp %d, pp %d, ep %d, dp %d", g->tp, g->pp, g->ep, g->dp);
    char *frozen = calloc((size_t)m->n_params, sizeof m->params[0].name);
    if (!frozen) return FAIL(ERR_MEMORY, "names of frozen parameters");
    for (int i = 0, at = 0; i < m->n_params; i++)
        if (!m->params[i].trained) at += sprintf(frozen + at, "%s%s", at ? "\n" : "", m->params[i].name);
    enum status st = h5_open_serial(&f, path, true);
    if (!st) st = h5_put_text(f, "/", "software", "m3");
    if (!st) st = h5_put_text(f, "/", "config", c->config_text ? c->config_text : "");
    if (!st) st = h5_put_text(f, "/", "source", c->source ? c->source : "");
    if (!st) st = h5_put_text(f, "/", "mesh", mesh);
    if (!st) st = h5_put_text(f, "/", "frozen", frozen);
    if (!st) st = h5_put_int(f, "/", "step", s->step);
    if (!st) st = h5_put_int(f, "/", "parameters", model_count(m, false));
    if (!st) st = h5_put_int(f, "/", "trained_parameters", model_count(m, true));
    free(frozen);
    TRY(h5_close(&f, st));
    return h5_mark_complete(path);
}

static void remove_checkpoint(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] != '.') unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
    rmdir(dir);
}

static enum status prepare(const char *tmp, const struct checkpoint_args *c, const struct model *m,
                           const struct adam *a)
{
    char from[MAX_PATH + 32], to[MAX_PATH + 32];
    remove_checkpoint(tmp);
    TRY(release_make_dir(tmp));
    snprintf(from, sizeof from, "%s/config.json", c->files);
    snprintf(to, sizeof to, "%s/config.json", tmp);
    TRY(release_copy_file(from, to));
    TRY(release_copy_side_files(c->files, tmp));
    return create_files(tmp, m, a);
}

/* Steps of the complete-looking checkpoints of a run, newest first. */
static int list_steps(const char *checkpoints, int64_t *steps, int cap)
{
    int n = 0;
    DIR *d = opendir(checkpoints);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step;
        int end = 0;
        if (sscanf(e->d_name, "step_%" SCNd64 "%n", &step, &end) != 1 || e->d_name[end] || step < 0) continue;
        int at = n < cap ? n++ : cap - 1;
        for (; at > 0 && steps[at - 1] < step; at--) steps[at] = steps[at - 1];
        steps[at] = step;
    }
    closedir(d);
    return n;
}

static int64_t best_step(const char *checkpoints)
{
    char path[MAX_PATH + 32], target[64];
    int64_t step = -1;
    snprintf(path, sizeof path, "%s/best", checkpoints);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return -1;
    target[n] = 0;
    return sscanf(target, "step_%" SCNd64, &step) == 1 ? step : -1;
}

static void retire(const char *checkpoints, int keep)
{
    enum { MANY = 4096 };
    int64_t steps[MANY], best = best_step(checkpoints);
    int n = list_steps(checkpoints, steps, MANY);
    for (int i = keep; keep > 0 && i < n; i++) {
        char dir[MAX_PATH + 64];
        if (steps[i] == best) continue;
        snprintf(dir, sizeof dir, "%s/step_%08" PRId64, checkpoints, steps[i]);
        remove_checkpoint(dir);
    }
}

static enum status publish(const char *tmp, const char *dir, const char *checkpoints, const struct checkpoint_args *c,
                           const struct model *m, const struct train_state *s)
{
    char path[MAX_PATH + 32];
    snprintf(path, sizeof path, "%s/optimizer.h5", tmp);
    TRY(describe(path, c, m, s));
    snprintf(path, sizeof path, "%s/model.h5", tmp);
    TRY(describe(path, c, m, s));
    remove_checkpoint(dir); /* the same step written again */
    if (rename(tmp, dir) != 0) return FAIL(ERR_IO, "%s: cannot rename to %s: %s", tmp, dir, strerror(errno));
    TRY(fs_sync(checkpoints));
    retire(checkpoints, c->keep);
    return OK;
}

enum status checkpoint_write(const struct checkpoint_args *c, const struct model *m, const struct adam *a,
                             const struct train_state *state)
{
    struct group *world = (struct group *)&m->mesh->world;
    char checkpoints[MAX_PATH - 64], dir[MAX_PATH], tmp[MAX_PATH], path[MAX_PATH + 32];
    PATH(checkpoints, "%s/checkpoints", c->run_dir);
    PATH(dir, "%s/step_%08" PRId64, checkpoints, state->step);
    PATH(tmp, "%s.tmp", dir);
    enum status s = OK;
    if (world->rank == 0) s = prepare(tmp, c, m, a);
    s = comm_agree(world, s);
    snprintf(path, sizeof path, "%s/model.h5", tmp);
    if (!s) s = write_file(path, m, a, state, true);
    snprintf(path, sizeof path, "%s/optimizer.h5", tmp);
    if (!s) s = write_file(path, m, a, state, false);
    if (!s && world->rank == 0) s = publish(tmp, dir, checkpoints, c, m, state);
    s = comm_agree(world, s);
    if (s && world->rank == 0) remove_checkpoint(tmp);
    return s;
}

enum status checkpoint_mark_best(const char *run_dir, int64_t step)
{
    char link[MAX_PATH], tmp[MAX_PATH], target[64];
    PATH(link, "%s/checkpoints/best", run_dir);
    PATH(tmp, "%s/checkpoints/best.tmp", run_dir);
    snprintf(target, sizeof target, "step_%08" PRId64, step);
    unlink(tmp);
    if (symlink(target, tmp) != 0 || rename(tmp, link) != 0) return FAIL(ERR_IO, "%s: %s", link, strerror(errno));
    return OK;
}

/* ---------------------------------------------------------------- finding ---------------------------------------- */

static bool complete(const char *dir)
{
    char path[MAX_PATH + 32];
    snprintf(path, sizeof path, "%s/model.h5", dir);
    if (!h5_is_complete(path)) return false;
    snprintf(path, sizeof path, "%s/optimizer.h5", dir);
    return h5_is_complete(path);
}

static enum status newest(const char *run_dir, int64_t want, char **dir)
{
    enum { MANY = 4096 };
    int64_t steps[MANY];
    char checkpoints[MAX_PATH - 64], path[MAX_PATH];
    *dir = NULL;
    PATH(checkpoints, "%s/checkpoints", run_dir);
    int n = list_steps(checkpoints, steps, MANY);
    for (int i = 0; i < n && !*dir; i++) {
        if (want >= 0 && steps[i] != want) continue;
        PATH(path, "%s/step_%08" PRId64, checkpoints, steps[i]);
        if (!complete(path)) log_warn("%s is passed over: %s", path, status_message());
        else if (!(*dir = strdup(path))) return FAIL(ERR_MEMORY, "path %s", path);
    }
    return OK;
}

enum status checkpoint_newest(const char *run_dir, char **dir) { return newest(run_dir, -1, dir); }

enum status checkpoint_find(const char *path, char **dir)
{
    char run[MAX_PATH];
    int64_t want = -1;
    *dir = NULL;
    PATH(run, "%s", path);
    if (access(path, F_OK) != 0) {
        char *at = strrchr(run, '@'), *end = NULL;
        if (at) want = strtoll(at + 1, &end, 10);
        if (!at || at[1] == 0 || *end || want < 0) return FAIL(ERR_IO, "%s: %s", path, strerror(ENOENT));
        *at = 0;
    }
    char model[MAX_PATH + 32];
    snprintf(model, sizeof model, "%s/model.h5", run);
    if (want < 0 && access(model, F_OK) == 0) {
        if (!complete(run)) return FAIL(ERR_FORMAT, "%s is not a complete checkpoint", run);
        *dir = strdup(run);
        return *dir ? OK : FAIL(ERR_MEMORY, "path %s", run);
    }
    TRY(newest(run, want, dir));
    if (*dir) return OK;
    if (want >= 0) return FAIL(ERR_IO, "%s: no complete checkpoint of step %" PRId64, run, want);
    return FAIL(ERR_IO, "%s: neither a release (config.json and safetensors), nor a checkpoint (model.h5), nor a run with "
                "a complete checkpoint", run);
}

/* ---------------------------------------------------------------- reading ---------------------------------------- */

enum status checkpoint_arch(const char *dir, struct arch *a) { return arch_load(a, dir); }

enum status checkpoint_source(const char *dir, char **source)
{
    char path[MAX_PATH + 32];
    struct h5file *f = NULL;
    *source = NULL;
    snprintf(path, sizeof path, "%s/model.h5", dir);
    TRY(h5_open_serial(&f, path, false));
    enum status s = h5_get_text(f, "/", "source", source);
    return h5_close(&f, s);
}

/* The dataset has the parameter's shape; a checkpoint of another model is refused by name. */
static enum status check_shape(struct h5file *f, const struct param *p, const char *name)
{
    struct h5_dataset d;
    TRY(h5_find(f, name, &d));
    bool same = d.rank == p->rank;
    for (int i = 0; i < p->rank && same; i++) same = d.dim[i] == p->dim[i];
    if (same) return OK;
    return FAIL(ERR_FORMAT, "%s: %s has %d dimensions, the first %" PRId64 "; this model has %d and %" PRId64,
                h5_path(f), name, d.rank, d.rank ? d.dim[0] : 1, p->rank, p->dim[0]);
}

static enum status read_into(struct h5file *f, const struct model *m, const char *name, const int64_t *start,
                             const int64_t *count, struct tensor to)
{
    if (to.place != PLACE_DEVICE) return h5_read_slab(f, name, start, count, to.dtype, to.data);
    struct tensor host = to;
    host.place = PLACE_HOST;
    host.data = malloc(tensor_bytes(to) + 1);
    if (!host.data) return FAIL(ERR_MEMORY, "%zu bytes of staging", tensor_bytes(to));
    enum status s = h5_read_slab(f, name, start, count, to.dtype, host.data);
    if (!s) s = m->ops->copy(to, host, m->stream);
    if (!s) s = m->ops->wait(m->stream);
    free(host.data);
    return s;
}

static enum status load_param(struct h5file *f, struct model *m, const struct param *p)
{
    char name[256];
    bool x = param_is_experts(p);
    model_name(p, name);
    TRY(check_shape(f, p, name));
    for (int64_t e = 0; e < (x ? p->count[0] : 1); e++) {
        int64_t start[3] = {p->start[0], p->start[1], p->start[2]}, count[3] = {p->count[0], p->count[1], p->count[2]};
        if (x) start[0] += e, count[0] = 1;
        TRY(read_into(f, m, name, start, count, param_weight(m, p, e)));
    }
    return OK;
}

enum status checkpoint_load_weights(const char *dir, struct model *m)
{
    char path[MAX_PATH + 32];
    struct h5file *f = NULL;
    snprintf(path, sizeof path, "%s/model.h5", dir);
    TRY(h5_open_serial(&f, path, false));
    enum status s = h5_verify_all(f, m->mesh->world.rank, m->mesh->world.size);
    for (int i = 0; i < m->n_params && !s; i++)
        if (m->params[i].here) s = load_param(f, m, &m->params[i]);
    return h5_close(&f, s);
}

struct reader {
    struct h5file *f;
    const struct model *m;
    struct tensor to;
    const char *what;
};

static enum status read_piece(void *ctx, const struct param *p, const int64_t start[3], const int64_t count[3],
                              int64_t at)
{
    struct reader *r = ctx;
    char name[256];
    adam_name(p, r->what, name);
    return read_into(r->f, r->m, name, start, count, tensor_flat(r->to, at, count[0] * count[1] * count[2]));
}

static enum status read_counters(struct h5file *f, struct adam *a, struct train_state *s)
{
    const int64_t none[1] = {0}, one[1] = {1};
    int64_t seed;
    TRY(h5_read_slab(f, "/state/step", none, one, DT_I64, &s->step));
    TRY(h5_read_slab(f, "/state/samples", none, one, DT_I64, &s->samples));
    TRY(h5_read_slab(f, "/state/seed", none, one, DT_I64, &seed));
    TRY(h5_read_slab(f, "/state/adam_step", none, one, DT_I64, &a->step));
    TRY(h5_read_slab(f, "/state/best_loss", none, one, DT_F64, &s->best_loss));
    if (s->step < 0 || s->samples < 0 || a->step < 0)
        return FAIL(ERR_FORMAT, "%s: step %" PRId64 ", samples %" PRId64 ", adam_step %" PRId64, h5_path(f), s->step,
                    s->samples, a->step);
    s->seed = (uint64_t)seed;
    return OK;
}

static enum status load_adam(const char *path, struct model *m, struct adam *a, struct train_state *s)
{
    struct reader r = {.m = m};
    TRY(h5_open_serial(&r.f, path, false));
    enum status st = h5_verify_all(r.f, m->mesh->world.rank, m->mesh->world.size);
    for (int i = 0; i < m->n_params && !st; i++) {
        char name[256];
        if (!m->params[i].trained) continue;
        adam_name(&m->params[i], "master", name);
        st = check_shape(r.f, &m->params[i], name);
    }
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < m->n_buckets && !st; i++) {
            int64_t g_off, w_off, n;
            grads_share(m, &m->buckets[i], &g_off, &w_off, &n);
            r.what = moments[k];
            st = adam_room(a, k, i, &r.to);
            if (!st) st = model_walk(m, g_off, n, read_piece, &r);
            if (!st) st = adam_store(a, k, i);
        }
    if (!st) st = read_counters(r.f, a, s);
    return h5_close(&r.f, st);
}

enum status checkpoint_load(const char *dir, struct model *m, struct adam *a, struct train_state *state)
{
    char path[MAX_PATH + 32];
    struct group *world = (struct group *)&m->mesh->world;
    TRY(comm_agree(world, checkpoint_load_weights(dir, m)));
    snprintf(path, sizeof path, "%s/optimizer.h5", dir);
    return comm_agree(world, load_adam(path, m, a, state));
}
