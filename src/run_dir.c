#include "run_dir.h"

#include "checkpoint.h"
#include "json.h"
#include "metrics.h"
#include "release.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status path_of(char *out, size_t size, const char *dir, const char *name)
{
    if (snprintf(out, size, "%s/%s", dir, name) < (int)size) return OK;
    return FAIL(ERR_CONFIG, "run.dir is %zu characters long", strlen(dir));
}

/* What the folder was run with before, if anything, against what is asked now. */
static enum status compare_config(const struct config *now, const char *path)
{
    char *text = NULL;
    size_t len = 0;
    struct config old;
    bool harmless = true;
    if (access(path, F_OK) != 0) return OK;
    TRY(json_read_bytes(&text, &len, path, 1 << 20));
    enum status s = config_from_text(&old, text, len, path);
    free(text);
    TRY(s);
    int n = config_diff(&old, now, stderr, &harmless);
    config_free(&old);
    if (n == 0 || harmless) return OK;
    return FAIL(ERR_CONFIG, "%s: %d keys differ from the run in this folder and some may not change in a run: take another "
                "run.dir, or --fresh", path, n);
}

static enum status set_aside(const char *dir)
{
    char to[4096];
    if (access(dir, F_OK) != 0) return OK;
    for (int i = 1; i < 10000; i++) {
        if (snprintf(to, sizeof to, "%s.%d", dir, i) >= (int)sizeof to) break;
        if (access(to, F_OK) == 0) continue;
        if (rename(dir, to) != 0) return FAIL(ERR_IO, "%s: cannot rename to %s: %s", dir, to, strerror(errno));
        log_info("%s was renamed to %s", dir, to);
        return OK;
    }
    return FAIL(ERR_CONFIG, "%s: no free name to set the old run aside", dir);
}

static enum status make_folder(const struct config *c, bool fresh)
{
    TRY(config_need(c, "run.dir", "train"));
    if (fresh) TRY(set_aside(c->run.dir));
    return release_make_dir(c->run.dir);
}

/* The configuration against the one used before, then written back; the checkpoint to go on from. */
static enum status settle_folder(const struct config *c, char **text, char **resume)
{
    char path[4096];
    TRY(path_of(path, sizeof path, c->run.dir, "config.used.yaml"));
    TRY(compare_config(c, path));
    TRY(config_write(c, path));
    TRY(config_to_text(c, text));
    return checkpoint_newest(c->run.dir, resume);
}

/* Rank 0's string to everyone; NULL stays NULL. */
static enum status share_text(struct group *world, char **text)
{
    size_t n = world->rank == 0 && *text ? strlen(*text) + 1 : 0;
    void *data = *text;
    TRY(comm_broadcast_bytes(world, &data, &n, 0));
    if (world->rank == 0) return OK;
    *text = data;
    if (n == 0) free(data), *text = NULL;
    return OK;
}

/* Everyone's log in the folder that rank 0 made. */
static enum status open_logs(const struct config *c, struct group *world)
{
    char name[64] = "log.txt", path[4096], trace[4200];
    if (world->rank) snprintf(name, sizeof name, "log.rank%04d.txt", world->rank);
    TRY(path_of(path, sizeof path, c->run.dir, name));
    TRY(log_open(world->rank, path));
    stop_install(c->run.dir);
    if (!c->run.trace_comm) return OK;
    snprintf(trace, sizeof trace, "%s/comm.rank%04d.txt", c->run.dir, world->rank);
    return comm_configure(c->comm.timeout_s, trace);
}

enum status run_dir_open(const struct config *c, struct group *world, bool fresh, char **text, char **resume)
{
    *text = *resume = NULL;
    TRY(comm_agree(world, world->rank == 0 ? make_folder(c, fresh) : OK));
    TRY(comm_agree(world, open_logs(c, world)));
    TRY(comm_agree(world, world->rank == 0 ? settle_folder(c, text, resume) : OK));
    TRY(share_text(world, text));
    return share_text(world, resume);
}

enum status run_dir_metrics(const struct config *c, struct group *world, int64_t step, struct metrics **m)
{
    enum status s = OK;
    *m = NULL;
    if (world->rank == 0) {
        s = metrics_truncate(c->run.dir, step);
        if (!s) s = metrics_open(m, c, step);
    }
    return comm_agree(world, s);
}

int run_threads(int local_ranks)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (local_ranks == 1 || cores == online) cores = (int)(cores / local_ranks); /* not bound: cores are shared */
    return cores < 1 ? 1 : cores;
}

/* ---------------------------------------------------------------- stop requests ---------------------------------- */

static volatile sig_atomic_t stop_flag;
static char stop_path[4096], told_path[4096];

static void on_signal(int sig)
{
    if (stop_flag && sig == SIGINT) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    stop_flag = 1;
}

void stop_install(const char *run_dir)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    snprintf(stop_path, sizeof stop_path, "%s/stop", run_dir);
    snprintf(told_path, sizeof told_path, "%s/stopping", run_dir);
    if (comm_world_rank() == 0) unlink(told_path);
}

/* The signal may reach one rank only: it leaves a file for the others, who may be far from the next collective of all. */
bool stop_requested(void)
{
    static double looked;
    static bool told;
    if (!*stop_path) return stop_flag != 0;
    if (stop_flag && !told) {
        int fd = open(told_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) close(fd);
        told = true;
    }
    if (!stop_flag && time_now() - looked > 0.2) {
        looked = time_now();
        if (access(stop_path, F_OK) == 0 || access(told_path, F_OK) == 0) stop_flag = 1;
    }
    return stop_flag != 0;
}

enum status stop_agreed(struct group *g, bool *stop)
{
    int64_t asked = stop_requested();
    TRY(comm_max_int(g, &asked, 1));
    *stop = asked != 0;
    return OK;
}
