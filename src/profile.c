#include "profile.h"

#include "fs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct out {
    FILE *f;
    bool log;
};

static void put_line(void *ctx, const char *text)
{
    struct out *o = ctx;
    fprintf(o->f, "%s\n", text);
    if (o->log) log_info("%s", text);
}

enum status profile_finish(struct profile_run *p, const struct config *c, struct stream *s, int rank)
{
    char path[PATH_MAX];
    if (!p->open) return OK;
    p->open = false;
    if (snprintf(path, sizeof path, "%s/profile", c->run.dir) >= (int)sizeof path - 32)
        return FAIL(ERR_IO, "%s: a path of more than %d bytes", c->run.dir, PATH_MAX - 32);
    TRY(fs_mkdirs(path));
    snprintf(path + strlen(path), 32, "/ops.rank%04d.txt", rank);
    struct out o = {.f = fopen(path, "w"), .log = rank == 0};
    if (!o.f) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    enum status st = device_profile_print(s, put_line, &o);
    device_profile_stop(s);
    if (fclose(o.f) != 0 && !st) st = FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    return st;
}

enum status profile_step(struct profile_run *p, const struct config *c, struct stream *s, int rank)
{
    if (!s || c->run.profile == 0) return OK; /* the CPU's ops are not timed */
    if (p->open && p->done == 1 + c->run.profile) TRY(profile_finish(p, c, s, rank));
    if (p->done++ == 1) {
        p->open = true;
        return device_profile_start(s);
    }
    return OK;
}
