#include "source.h"

#include "checkpoint.h"
#include "release.h"
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_file(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && stat(path, &st) == 0;
}

static enum status join(char **out, const char *dir, const char *name)
{
    if (asprintf(out, "%s/%s", dir, name) < 0) {
        *out = NULL;
        return FAIL(ERR_MEMORY, "path %s/%s", dir, name);
    }
    return OK;
}

static enum status open_release(struct source *s, const char *path)
{
    TRY(arch_load(&s->arch, path));
    TRY(release_open(&s->release, path));
    s->dir = strdup(path);
    s->origin = strdup(path);
    if (!s->dir || !s->origin) return FAIL(ERR_MEMORY, "path %s", path);
    return has_file(path, "tokenizer.json") ? join(&s->tokenizer, path, "tokenizer.json") : OK;
}

static enum status open_hdf5(struct source *s, const char *path)
{
    TRY(checkpoint_find(path, &s->dir));
    TRY(checkpoint_arch(s->dir, &s->arch));
    TRY(checkpoint_source(s->dir, &s->origin));
    return has_file(s->dir, "tokenizer.json") ? join(&s->tokenizer, s->dir, "tokenizer.json") : OK;
}

enum status source_open(struct source *s, const char *path)
{
    *s = (struct source){0};
    enum status st = has_file(path, "config.json") && !has_file(path, "model.h5") ? open_release(s, path) : open_hdf5(s, path);
    if (st) source_close(s);
    return st;
}

void source_close(struct source *s)
{
    release_close(&s->release);
    free(s->dir);
    free(s->origin);
    free(s->tokenizer);
    *s = (struct source){0};
}

enum status source_load(const struct source *s, struct model *m)
{
    if (!s->release) {
        TRY(model_alloc(m));
        return checkpoint_load_weights(s->dir, m);
    }
    TRY(weights_check(m, s->release));
    TRY(model_alloc(m));
    return weights_load(m, s->release);
}
