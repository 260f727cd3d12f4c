#include "release.h"
#include "release_inner.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool safe_file_name(const char *s)
{
    return *s && *s != '.' && !strchr(s, '/') && strlen(s) < NAME_MAX && ends_with(s, ".safetensors");
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorted names of the *.safetensors files in DIR; strings and list are the caller's. */
static enum status list_shards(const char *dir, char ***names, int *count)
{
    DIR *d = opendir(dir);
    enum status s = OK;
    struct dirent *e;
    *names = NULL;
    *count = 0;
    if (!d) return FAIL(ERR_IO, "%s: cannot open the folder: %s", dir, strerror(errno));
    while (!s && (e = readdir(d))) {
        if (!safe_file_name(e->d_name)) continue;
        char **more = realloc(*names, ((size_t)*count + 1) * sizeof **names);
        if (more) *names = more;
        if (!more || !(more[*count] = strdup(e->d_name))) s = FAIL(ERR_MEMORY, "%s: no memory for file names", dir);
        else ++*count;
    }
    closedir(d);
    if (*count) qsort(*names, (size_t)*count, sizeof **names, by_text);
    return s;
}

static int find_text(char **names, int count, const char *key)
{
    char **hit = count ? bsearch(&key, names, (size_t)count, sizeof *names, by_text) : NULL;
    return hit ? (int)(hit - names) : -1;
}

/* Files on disk against files of the index, before any is opened. */
static enum status check_files(const json_t *map, char **names, int count, const char *index)
{
    const char *tensor;
    json_t *v;
    bool *used = calloc((size_t)count + 1, sizeof *used);
    enum status s = used ? OK : FAIL(ERR_MEMORY, "%s: no memory for %d shards", index, count);
    json_object_foreach((json_t *)map, tensor, v) {
        if (s) break;
        const char *file = json_is_string(v) ? json_string_value(v) : "";
        int k = find_text(names, count, file);
        if (!safe_file_name(file))
            s = FAIL(ERR_FORMAT, "%s: tensor %s: \"%.64s\" is no name of a shard", index, tensor, file);
        else if (k < 0)
            s = FAIL(ERR_FORMAT, "%s: tensor %s: shard %s is not on disk", index, tensor, file);
        else used[k] = true;
    }
    for (int k = 0; k < count && !s; k++)
        if (!used[k]) s = FAIL(ERR_FORMAT, "%s: the index names no tensor of shard %s", index, names[k]);
    free(used);
    return s;
}

/* Tensors of the opened shards against the index, both ways. */
static enum status check_tensors(const struct release *r, const json_t *map, char **names, const char *index)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        int k = find_text(names, r->n_shards, json_string_value(v));
        if (!st_find(&r->shards[k], tensor))
            return FAIL(ERR_FORMAT, "%s: tensor %s is not in its shard %s", index, tensor, names[k]);
    }
    for (int k = 0; k < r->n_shards; k++)
        for (int64_t i = 0; i < r->shards[k].count; i++) {
            const char *name = r->shards[k].tensors[i].name, *file = json_string_value(json_object_get(map, name));
            if (!file) return FAIL(ERR_FORMAT, "%s: shard %s holds tensor %s, which the index does not name", index, names[k],
                                   name);
            if (strcmp(file, names[k]))
                return FAIL(ERR_FORMAT, "%s: tensor %s is also in shard %s, the index says %s", index, name, names[k], file);
        }
    return OK;
}

static enum status open_shards(struct release *r, char **names, int count)
{
    char path[PATH_MAX];
    r->shards = calloc((size_t)count + 1, sizeof *r->shards);
    if (!r->shards) return FAIL(ERR_MEMORY, "%s: no memory for %d shards", r->dir, count);
    for (int k = 0; k < count; k++) {
        if (snprintf(path, sizeof path, "%s/%s", r->dir, names[k]) >= (int)sizeof path)
            return FAIL(ERR_IO, "%s: the path is too long", r->dir);
        TRY(st_open(&r->shards[k], path));
        r->n_shards++;
    }
    return OK;
}

static enum status open_files(struct release *r, const json_t *index, const char *index_path)
{
    char **names = NULL;
    int count = 0;
    json_t *map = NULL;
    enum status s;
    TRY_GOTO(s, out, list_shards(r->dir, &names, &count));
    if (index) {
        TRY_GOTO(s, out, json_need_object(index, "weight_map", &map, index_path));
        TRY_GOTO(s, out, check_files(map, names, count, index_path));
    } else if (count != 1 || strcmp(names[0], "model.safetensors")) {
        s = FAIL(count ? ERR_FORMAT : ERR_IO, "%s: no model.safetensors.index.json, and %d *.safetensors files, expected just "
                 "model.safetensors", r->dir, count);
        goto out;
    }
    TRY_GOTO(s, out, open_shards(r, names, count));
    if (index) TRY_GOTO(s, out, check_tensors(r, map, names, index_path));
out:
    for (int k = 0; k < count; k++) free(names[k]);
    free(names);
    return s;
}

static int raw_by_name(const void *a, const void *b)
{
    return strcmp(((const struct release_raw *)a)->t->name, ((const struct release_raw *)b)->t->name);
}

static int tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const struct release_tensor *)a)->name, ((const struct release_tensor *)b)->name);
}

static enum status collect_raw(struct release *r)
{
    int64_t n = 0;
    for (int k = 0; k < r->n_shards; k++) n += r->shards[k].count;
    r->raw = calloc((size_t)n + 1, sizeof *r->raw);
    r->tensors = calloc((size_t)n + 1, sizeof *r->tensors);
    if (!r->raw || !r->tensors) return FAIL(ERR_MEMORY, "%s: no memory for %" PRId64 " tensors", r->dir, n);
    for (int k = 0; k < r->n_shards; k++)
        for (int64_t i = 0; i < r->shards[k].count; i++)
            r->raw[r->n_raw++] = (struct release_raw){.t = &r->shards[k].tensors[i], .shard = k};
    qsort(r->raw, (size_t)n, sizeof *r->raw, raw_by_name);
    return OK;
}

static enum status check_unique(const struct release *r)
{
    for (int64_t i = 1; i < r->count; i++)
        if (strcmp(r->tensors[i - 1].name, r->tensors[i].name) == 0)
            return FAIL(ERR_FORMAT, "%s: tensor %s is there twice, as %s and as %s", r->dir, r->tensors[i].name,
                        r->tensors[i - 1].data->t->name, r->tensors[i].data->t->name);
    return OK;
}

static enum status open_release(struct release *r)
{
    char path[PATH_MAX];
    json_t *index = NULL;
    if (snprintf(path, sizeof path, "%s/config.json", r->dir) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", r->dir);
    TRY(json_read_file(&r->config, path, RELEASE_JSON_MAX));
    if (!json_is_object(r->config)) return FAIL(ERR_FORMAT, "%s: the file is %s", path, json_type_name(r->config));
    TRY(quant_map_load(&r->map, r->config, r->dir));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", r->dir);
    bool single = release_file_absent(path);
    if (!single) TRY(json_read_file(&index, path, RELEASE_JSON_MAX));
    enum status s = open_files(r, index, path);
    json_decref(index);
    TRY(s);
    TRY(collect_raw(r));
    TRY(release_resolve(r));
    qsort(r->tensors, (size_t)r->count, sizeof *r->tensors, tensor_by_name);
    TRY(check_unique(r));
    TRY(release_check_map(r));
    return OK;
}

enum status release_open(struct release **out, const char *dir)
{
    *out = NULL;
    struct release *r = calloc(1, sizeof *r);
    if (!r || !(r->dir = strdup(dir))) {
        free(r);
        return FAIL(ERR_MEMORY, "%s: no memory for a release", dir);
    }
    enum status s = open_release(r);
    if (s) {
        status_trace(s, __FILE__, __LINE__);
        release_close(&r);
    }
    *out = r;
    return s;
}

void release_close(struct release **rp)
{
    struct release *r = *rp;
    if (!r) return;
    for (int64_t i = 0; i < r->count; i++) free(r->tensors[i].name);
    for (int k = 0; k < r->n_shards; k++) st_close(&r->shards[k]);
    free(r->tensors);
    free(r->raw);
    free(r->shards);
    free(r->dir);
    json_decref(r->config);
    quant_map_destroy(&r->map);
    free(r);
    *rp = NULL;
}

const struct release_raw *release_find_raw(const struct release *r, const char *stored_name)
{
    struct st_tensor t = {.name = (char *)stored_name};
    struct release_raw key = {.t = &t};
    return r->n_raw ? bsearch(&key, r->raw, (size_t)r->n_raw, sizeof key, raw_by_name) : NULL;
}

const struct release_tensor *release_find(const struct release *r, const char *name)
{
    struct release_tensor key = {.name = (char *)name};
    return r->count ? bsearch(&key, r->tensors, (size_t)r->count, sizeof key, tensor_by_name) : NULL;
}

bool release_is_passed(const char *name)
{
    static const char *const part[] = {"vision_tower", "multi_modal_projector", "patch_merge_mlp", "mtp"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        size_t n = strlen(part[i]);
        for (const char *at = name; (at = strstr(at, part[i])); at++)
            if ((at == name || at[-1] == '.') && at[n] == '.') return true;
    }
    return false;
}

bool release_is_indexer(void *ctx, const char *name)
{
    (void)ctx;
    return strncmp(name, "language_model.", 15) == 0 && strstr(name, ".self_attn.index_") != NULL;
}

struct name_list {
    char *text;
    size_t size, shown;
};

static void list_name(struct name_list *l, const char *name)
{
    size_t n = strlen(l->text);
    if (l->shown++ < 3) snprintf(l->text + n, l->size - n, "%s%s", n ? ", " : "", name);
}

enum status release_check_names(const struct release *r, const char *const *expected, int64_t n,
                                bool (*also)(void *ctx, const char *name), void *ctx, struct release_report *report)
{
    struct release_report own, *p = report ? report : &own;
    *p = (struct release_report){0};
    struct name_list missing = {p->first_missing, sizeof p->first_missing, 0};
    struct name_list unknown = {p->first_unknown, sizeof p->first_unknown, 0};
    const char **sorted = malloc(((size_t)n + 1) * sizeof *sorted);
    if (!sorted) return FAIL(ERR_MEMORY, "%s: no memory for %" PRId64 " names", r->dir, n);
    for (int64_t i = 0; i < n; i++) sorted[i] = expected[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    for (int64_t i = 0; i < n; i++)
        if (!release_find(r, sorted[i])) p->missing++, list_name(&missing, sorted[i]);
    for (int64_t i = 0; i < r->count; i++) {
        const char *name = r->tensors[i].name;
        if (r->tensors[i].passed || (also && also(ctx, name))) continue;
        if (!n || !bsearch(&name, sorted, (size_t)n, sizeof *sorted, by_text)) p->unknown++, list_name(&unknown, name);
    }
    free(sorted);
    if (!p->missing && !p->unknown) return OK;
    return FAIL(ERR_FORMAT, "%s: %" PRId64 " tensors missing%s%s%s, %" PRId64 " unknown%s%s%s", r->dir, p->missing,
                p->missing ? " (first: " : "", p->first_missing, p->missing ? ")" : "", p->unknown,
                p->unknown ? " (first: " : "", p->first_unknown, p->unknown ? ")" : "");
}
