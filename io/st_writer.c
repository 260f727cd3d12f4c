/* struct st_writer: a whole release folder, written in declared order. */
#include "safetensors_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status st_check_destination(const char *dst)
{
    DIR *d = opendir(dst);
    if (!d && errno == ENOENT) return OK;
    if (!d) return FAIL(ERR_IO, "%s: %s", dst, errno == ENOTDIR ? "exists and is no folder" : strerror(errno));
    enum status s = OK;
    struct dirent *e;
    while (!s && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            s = FAIL(ERR_IO, "%s: exists and holds %s; a release is only written to a new or empty folder", dst, e->d_name);
    closedir(d);
    return s;
}

enum status st_sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return FAIL(ERR_IO, "%s: %s", dir, strerror(errno));
    /* Some network file systems cannot sync a folder; the files themselves were synced. */
    if (fsync(fd) && errno != EINVAL && errno != ENOTSUP) {
        int error = errno;
        close(fd);
        return FAIL(ERR_IO, "%s: cannot sync: %s", dir, strerror(error));
    }
    close(fd);
    return OK;
}

/* Removes what a release consists of, and nothing else. */
static void clear_folder(const char *dir)
{
    static const char *const ours[] = {"*.safetensors", "*.tmp", "*.json", "*.txt", "*.jinja", "*.py", "*.md", "*.model",
                                       "*.tiktoken", "tokenizer*", "LICENSE*", "LICENCE*", "README*", "NOTICE*"};
    char path[PATH_MAX];
    struct stat st;
    struct dirent *e;
    DIR *d = opendir(dir);
    if (!d) return;
    while ((e = readdir(d)))
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
            if (fnmatch(ours[i], e->d_name, 0) || snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path)
                continue;
            if (lstat(path, &st) == 0 && S_ISREG(st.st_mode)) unlink(path);
            break;
        }
    closedir(d);
}

enum status st_writer_open(struct st_writer *w, const char *dst)
{
    *w = (struct st_writer){.open_shard = -1, .out.fd = -1};
    TRY(st_check_destination(dst));
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    w->dst = strndup(dst, n);
    if (!w->dst || asprintf(&w->tmp, "%s.tmp", w->dst) < 0) {
        free(w->dst);
        *w = (struct st_writer){.open_shard = -1, .out.fd = -1};
        return FAIL(ERR_MEMORY, "%s: no memory for a path", dst);
    }
    enum status s = OK;
    if (mkdir(w->tmp, 0700) && errno != EEXIST) s = FAIL(ERR_IO, "%s: cannot create the folder: %s", w->tmp, strerror(errno));
    if (!s) clear_folder(w->tmp), s = st_check_destination(w->tmp);
    if (s) {
        free(w->dst);
        free(w->tmp);
        *w = (struct st_writer){.open_shard = -1, .out.fd = -1};
    }
    return s;
}

enum status st_writer_add(struct st_writer *w, const char *name, enum dtype dtype, int rank, const int64_t *dim)
{
    enum status s = st_plan_add(&w->plan, name, dtype, rank, dim);
    return s ? status_prefix(s, "%s", w->dst) : OK;
}

enum status st_writer_begin(struct st_writer *w, uint64_t shard_bytes)
{
    enum status s = st_plan_cut(&w->plan, shard_bytes);
    return s ? status_prefix(s, "%s", w->dst) : OK;
}

/* Closes what is complete and opens the next shards up to `shard`. */
static enum status change_shard(struct st_writer *w, int shard)
{
    char path[PATH_MAX], name[64];
    while (w->open_shard < shard) {
        if (w->open_shard >= 0) TRY(st_out_close(&w->out));
        w->open_shard++;
        if (snprintf(path, sizeof path, "%s/%s", w->tmp, st_plan_name(&w->plan, w->open_shard, name)) >= (int)sizeof path)
            return FAIL(ERR_IO, "%s: the path is too long", w->tmp);
        TRY(st_out_open(&w->out, &w->plan, w->open_shard, path));
    }
    return OK;
}

/* Tensors without elements need no data. */
static void skip_empty(struct st_writer *w)
{
    while (w->at < w->plan.count && st_bytes(&w->plan.tensors[w->at]) == w->offset) w->at++, w->offset = 0;
}

enum status st_writer_write(struct st_writer *w, const char *name, const void *data, size_t bytes)
{
    if (!bytes) return OK;
    skip_empty(w);
    const struct st_tensor *t = w->at < w->plan.count ? &w->plan.tensors[w->at] : NULL;
    if (!t || strcmp(t->name, name))
        return FAIL(ERR_INTERNAL, "%s: tensor %s was written, %s is due", w->dst, name, t ? t->name : "nothing");
    TRY(change_shard(w, w->plan.shard[w->at]));
    TRY(st_out_write(&w->out, t, w->offset, data, bytes));
    w->offset += bytes;
    return OK;
}

static enum status finish(struct st_writer *w)
{
    skip_empty(w);
    if (w->at < w->plan.count)
        return FAIL(ERR_INTERNAL, "%s: tensor %s was not written", w->dst, w->plan.tensors[w->at].name);
    TRY(change_shard(w, w->plan.n_shards - 1)); /* the last tensors may be empty */
    TRY(st_out_close(&w->out));
    TRY(st_plan_write_index(&w->plan, w->tmp));
    TRY(st_sync_dir(w->tmp));
    if (rename(w->tmp, w->dst)) return FAIL(ERR_IO, "%s: cannot rename to %s: %s", w->tmp, w->dst, strerror(errno));
    return OK;
}

static void forget(struct st_writer *w)
{
    st_plan_destroy(&w->plan);
    free(w->dst);
    free(w->tmp);
    *w = (struct st_writer){.open_shard = -1, .out.fd = -1};
}

enum status st_writer_close(struct st_writer *w)
{
    enum status s = finish(w);
    if (s) st_writer_abort(w);
    else forget(w);
    return s;
}

void st_writer_abort(struct st_writer *w)
{
    if (!w->dst) return;
    st_out_abort(&w->out);
    clear_folder(w->tmp);
    rmdir(w->tmp);
    forget(w);
}
