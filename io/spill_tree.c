/* Folders of spills: taking one, and removing those of dead runs. */
#include "spill.h"

#include "fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { GUARD_TRIES = 600, GUARD_PAUSE_MS = 50, MAX_RUN = 64 };

static const char *const files[] = {"state.h5", "lock"};

static enum status check_run(const char *run)
{
    size_t n = strlen(run);
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (n == 0 || n > MAX_RUN || strspn(run, allowed) != n || run[0] == '.')
        return FAIL(ERR_INTERNAL, "spill run name '%.80s': 1 to %d of letters, digits, _ . - wanted", run, MAX_RUN);
    return OK;
}

static void host_name(char *out, size_t size)
{
    out[0] = 0;
    gethostname(out, size - 1);
    out[size - 1] = 0;
    for (char *c = out; *c; c++)
        if (*c == '/') *c = '_';
}

/* The root of all our spills: a real folder of this user. In a shared place like /tmp somebody else may have been
 * there first. */
static enum status open_root(const char *dir, char *root, size_t size)
{
    TRY(fs_mkdirs(dir));
    if (snprintf(root, size, "%s/m3-spill-%lu", dir, (unsigned long)geteuid()) >= (int)size)
        return FAIL(ERR_IO, "%.200s...: the path is too long", dir);
    struct stat st;
    if (mkdir(root, 0700) && errno != EEXIST) return FAIL(ERR_IO, "%s: cannot create: %s", root, strerror(errno));
    if (lstat(root, &st)) return FAIL(ERR_IO, "%s: %s", root, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return FAIL(ERR_IO, "%s: not a folder of user %lu (its owner is %lu)", root, (unsigned long)geteuid(),
                    (unsigned long)st.st_uid);
    return OK;
}

/* One start at a time looks for dead runs and locks its own folder; else a folder between mkdir and lock looks dead. */
static enum status take_guard(const char *root, int *guard)
{
    char path[PATH_MAX], holder[256] = "";
    if (snprintf(path, sizeof path, "%s/guard", root) >= (int)sizeof path)
        return FAIL(ERR_IO, "%.200s...: the path is too long", root);
    for (int i = 0; i < GUARD_TRIES; i++) {
        TRY(fs_lock(path, guard, holder, sizeof holder));
        if (*guard >= 0) return OK;
        nanosleep(&(struct timespec){.tv_nsec = GUARD_PAUSE_MS * 1000000L}, NULL);
    }
    return FAIL(ERR_IO, "%s: held for %d s by %s", path, GUARD_TRIES * GUARD_PAUSE_MS / 1000, holder);
}

/* Removes the files that a spill makes, then the folder; files of others keep it alive. */
static bool remove_tree(const char *tree)
{
    int fd = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlinkat(fd, files[i], 0);
    close(fd);
    return rmdir(tree) == 0;
}

/* Removes `tree` when no live run holds it. */
static bool remove_if_dead(const char *tree)
{
    char path[PATH_MAX];
    struct stat st;
    int lock = -1;
    if (lstat(tree, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return false;
    if (snprintf(path, sizeof path, "%s/lock", tree) >= (int)sizeof path) return false;
    if (fs_lock(path, &lock, NULL, 0) || lock < 0) return false;
    bool removed = remove_tree(tree);
    close(lock);
    return removed;
}

/* Folders of this host only: another host's locks may not be visible here. */
static int remove_dead(const char *root, const char *host)
{
    DIR *d = opendir(root);
    int removed = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        char tree[PATH_MAX];
        size_t n = strlen(e->d_name), h = strlen(host);
        if (n <= h + 1 || e->d_name[n - h - 1] != '.' || strcmp(e->d_name + n - h, host) != 0) continue;
        if (snprintf(tree, sizeof tree, "%s/%s", root, e->d_name) >= (int)sizeof tree) continue;
        if (remove_if_dead(tree)) removed++;
    }
    closedir(d);
    return removed;
}

static enum status lock_own(struct spill_tree *t)
{
    char path[PATH_MAX], holder[256] = "";
    if (mkdir(t->path, 0700) && errno != EEXIST) return FAIL(ERR_IO, "%s: cannot create: %s", t->path, strerror(errno));
    snprintf(path, sizeof path, "%s/lock", t->path);
    TRY(fs_lock(path, &t->lock, holder, sizeof holder));
    if (t->lock < 0) return FAIL(ERR_IO, "%s: a live run uses this spill folder (%s)", t->path, holder);
    return OK;
}

enum status spill_tree_take(struct spill_tree *t, const char *dir, const char *run)
{
    char root[PATH_MAX], host[128];
    int guard;
    *t = (struct spill_tree){.lock = -1};
    TRY(check_run(run));
    host_name(host, sizeof host);
    TRY(open_root(dir, root, sizeof root));
    if (snprintf(t->path, sizeof t->path, "%s/%s.%s", root, run, host) >= (int)sizeof t->path)
        return FAIL(ERR_IO, "%.200s...: the path is too long", root);
    TRY(take_guard(root, &guard));
    t->stale = remove_dead(root, host);
    enum status s = lock_own(t);
    close(guard);
    return s;
}

void spill_tree_drop(struct spill_tree *t)
{
    if (t->lock < 0) return;
    if (!remove_tree(t->path)) log_warn("%s: could not be removed", t->path);
    close(t->lock);
    t->lock = -1;
}
