/* The order of things in m3 convert. Each stage ends in an agreement of the ranks, so that none waits for one that failed. */
#include "convert_inner.h"
#include "comm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SLACK_BYTES = 64 << 20 }; /* index, JSON, tokenizer, records */

static enum status agree(const struct convert *c, enum status s)
{
    return c->args->world ? comm_agree(c->args->world, s) : s;
}

static enum status name_folders(struct convert *c)
{
    size_t n = strlen(c->args->dst);
    while (n > 1 && c->args->dst[n - 1] == '/') n--;
    if (!n) return FAIL(ERR_USAGE, "the destination has no name");
    c->dst = strndup(c->args->dst, n);
    if (!c->dst || asprintf(&c->tmp, "%s.tmp", c->dst) < 0) {
        c->tmp = NULL;
        return FAIL(ERR_MEMORY, "%s: no memory for a path", c->args->dst);
    }
    return OK;
}

/* A shard, a record of the plan, or what a release has beside: anything else in DST.tmp is not ours. */
static bool is_planned(const struct convert *c, const char *name, bool *shard)
{
    char text[80];
    int k, of;
    *shard = sscanf(name, "model-%5d-of-%5d.safetensors", &k, &of) == 2;
    if (!*shard || k < 1 || k > c->plan.n_shards) return false;
    return strcmp(name, st_plan_name(&c->plan, k - 1, text)) == 0 || strcmp(name, convert_record_name(c, k - 1, text)) == 0;
}

/* Removes from DST.tmp what this conversion will write anew, and shards of another one. */
static enum status clear_tmp(const struct convert *c)
{
    char path[PATH_MAX];
    struct dirent *e;
    DIR *d = opendir(c->tmp);
    enum status s = OK;
    if (!d) return FAIL(ERR_IO, "%s: cannot open the folder: %s", c->tmp, strerror(errno));
    while (!s && (e = readdir(d))) {
        bool shard;
        const char *dot = strrchr(e->d_name, '.');
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || is_planned(c, e->d_name, &shard)) continue;
        bool side = release_is_side_file(e->d_name) || (dot && (!strcmp(dot, ".tmp") || !strcmp(dot, ".json") || !strcmp(dot, ".lock")));
        if (!shard && !side) s = FAIL(ERR_IO, "%s: holds %s, which no conversion wrote; move it away", c->tmp, e->d_name);
        else if (strcmp(e->d_name, "convert.lock") && snprintf(path, sizeof path, "%s/%s", c->tmp, e->d_name) < (int)sizeof path &&
                 unlink(path))
            s = FAIL(ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(d);
    return s;
}

/* Two conversions into the same folder would mix their shards. File systems without locks get none. */
static enum status lock_tmp(const struct convert *c, int *fd)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/convert.lock", c->tmp) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", c->tmp);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0) return FAIL(ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return OK;
    close(*fd);
    *fd = -1;
    return FAIL(ERR_IO, "%s: another conversion is writing there", c->tmp);
}

static enum status prepare(const struct convert *c, int *lock)
{
    TRY(st_check_destination(c->dst));
    if (mkdir(c->tmp, 0700) && errno != EEXIST) return FAIL(ERR_IO, "%s: cannot create the folder: %s", c->tmp, strerror(errno));
    TRY(lock_tmp(c, lock));
    TRY(clear_tmp(c));
    return OK;
}

/* Finds this rank's finished shards of an earlier run; *bytes is what is still to be written. */
static enum status find_finished(struct convert *c, double *bytes)
{
    int kept = 0;
    *bytes = 0;
    c->finished = calloc((size_t)c->plan.n_shards, sizeof *c->finished);
    if (!c->finished) return FAIL(ERR_MEMORY, "%s: no memory for %d shards", c->dst, c->plan.n_shards);
    for (int k = c->rank; k < c->plan.n_shards; k += c->size) {
        uint64_t size;
        TRY(convert_check_record(c, k, &c->finished[k]));
        TRY(st_plan_file_bytes(&c->plan, k, &size));
        if (!c->finished[k]) *bytes += (double)size;
        kept += c->finished[k];
    }
    if (kept) log_info("%s: %d of %d shards are finished and proven by their checksums", c->tmp, kept, (c->plan.n_shards - c->rank +
                       c->size - 1) / c->size);
    return OK;
}

static enum status check_space(const struct convert *c, double bytes)
{
    struct statvfs v;
    if (c->args->world) TRY(comm_sum_double(c->args->world, &bytes, 1));
    if (c->rank) return OK;
    if (statvfs(c->tmp, &v)) return FAIL(ERR_IO, "%s: %s", c->tmp, strerror(errno));
    double have = (double)v.f_bavail * (double)v.f_frsize;
    if (bytes + SLACK_BYTES > have)
        return FAIL(ERR_IO, "%s: %.3f GB are needed, the disk has %.3f GB free", c->tmp, (bytes + SLACK_BYTES) / 1e9, have / 1e9);
    return OK;
}

/* Index, configuration and side files; then the folder must open as a release before it gets its name. */
static enum status finish(const struct convert *c)
{
    char path[PATH_MAX], name[80];
    struct release *made;
    struct arch arch;
    TRY(convert_write_config(c));
    TRY(release_copy_side_files(c->args->src, c->tmp));
    TRY(st_plan_write_index(&c->plan, c->tmp));
    TRY(release_open(&made, c->tmp));
    release_close(&made);
    TRY(arch_load(&arch, c->tmp));
    for (int k = 0; k < c->plan.n_shards; k++)
        if (snprintf(path, sizeof path, "%s/%s", c->tmp, convert_record_name(c, k, name)) < (int)sizeof path && unlink(path))
            return FAIL(ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    if (snprintf(path, sizeof path, "%s/convert.lock", c->tmp) < (int)sizeof path) unlink(path);
    TRY(st_sync_dir(c->tmp));
    if (rename(c->tmp, c->dst)) return FAIL(ERR_IO, "%s: cannot rename to %s: %s", c->tmp, c->dst, strerror(errno));
    return OK;
}

static enum status convert(struct convert *c, int *lock)
{
    double bytes = 0;
    TRY(agree(c, name_folders(c)));
    TRY(agree(c, release_open(&c->r, c->args->src)));
    TRY(agree(c, convert_plan(c)));
    TRY(agree(c, c->rank ? OK : prepare(c, lock)));
    TRY(agree(c, find_finished(c, &bytes)));
    TRY(agree(c, check_space(c, bytes)));
    TRY(agree(c, convert_copy(c)));
    if (c->args->verify) TRY(agree(c, convert_verify(c)));
    TRY(agree(c, c->rank ? OK : finish(c)));
    if (c->rank == 0)
        log_info("%s: %" PRId64 " tensors, %.3f GB in %d shards", c->dst, c->plan.count, (double)c->plan.total / 1e9,
                 c->plan.n_shards);
    return OK;
}

/* After a failure before the first finished shard nothing stays behind. */
static void remove_if_empty(const char *tmp)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/convert.lock", tmp) < (int)sizeof path) unlink(path);
    rmdir(tmp);
}

enum status convert_release(const struct convert_args *a)
{
    int lock = -1;
    struct convert *c = calloc(1, sizeof *c);
    if (!c) return FAIL(ERR_MEMORY, "no memory");
    c->args = a;
    c->rank = a->world ? a->world->rank : 0;
    c->size = a->world ? a->world->size : 1;
    enum status s = convert(c, &lock);
    if (s && lock >= 0) remove_if_empty(c->tmp);
    if (lock >= 0) close(lock);
    release_close(&c->r);
    st_plan_destroy(&c->plan);
    free(c->items);
    free(c->finished);
    free(c->dst);
    free(c->tmp);
    free(c);
    return s;
}
