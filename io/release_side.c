/* The files of a release beside its weights. */
#include "release_inner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool release_file_absent(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 && errno == ENOENT;
}

enum status release_make_dir(const char *path)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) return FAIL(ERR_IO, "%s: the path is too long", path);
    for (char *at = part + 1;; at++) {
        char keep = *at;
        if (keep && keep != '/') continue;
        *at = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return FAIL(ERR_IO, "%s: cannot create the folder: %s", part, strerror(errno));
        *at = keep;
        if (!keep) return OK;
    }
}

static enum status copy_bytes(int in, int out, const char *src, const char *dst)
{
    enum { STEP = 1 << 20 };
    char *buffer = malloc(STEP);
    enum status s = buffer ? OK : FAIL(ERR_MEMORY, "%s: no memory for a copy buffer", src);
    while (!s) {
        ssize_t n = read(in, buffer, STEP);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s = FAIL(ERR_IO, "%s: cannot read: %s", src, strerror(errno));
        if (n <= 0) break;
        for (ssize_t at = 0; at < n && !s;) {
            ssize_t w = write(out, buffer + at, (size_t)(n - at));
            if (w < 0 && errno == EINTR) continue;
            if (w <= 0) s = FAIL(ERR_IO, "%s: cannot write: %s", dst, strerror(errno));
            else at += w;
        }
    }
    free(buffer);
    if (!s && fsync(out)) s = FAIL(ERR_IO, "%s: cannot write: %s", dst, strerror(errno));
    return s;
}

enum status release_copy_file(const char *src, const char *dst)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", dst) >= (int)sizeof tmp) return FAIL(ERR_IO, "%s: the path is too long", dst);
    int in = open(src, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (in < 0) return FAIL(ERR_IO, "%s: cannot open: %s", src, strerror(errno));
    int out = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) {
        int error = errno;
        close(in);
        return FAIL(ERR_IO, "%s: cannot create: %s", tmp, strerror(error));
    }
    enum status s = copy_bytes(in, out, src, dst);
    close(in);
    if (close(out) && !s) s = FAIL(ERR_IO, "%s: cannot write: %s", dst, strerror(errno));
    if (!s && rename(tmp, dst)) s = FAIL(ERR_IO, "%s: cannot rename from %s: %s", dst, tmp, strerror(errno));
    if (s) unlink(tmp);
    return s;
}

bool release_is_side_file(const char *name)
{
    static const char *const not_this[] = {"config.json", "hf_quant_config.json", "*.index.json", "*.safetensors"};
    static const char *const this[] = {"*.json", "*.txt", "*.jinja", "*.py", "*.model", "*.tiktoken", "*.md", "tokenizer*",
                                       "LICENSE*", "LICENCE*", "README*", "NOTICE*"};
    if (*name == '.' || fnmatch("*.tmp", name, 0) == 0) return false;
    for (size_t i = 0; i < sizeof not_this / sizeof *not_this; i++)
        if (fnmatch(not_this[i], name, 0) == 0) return false;
    for (size_t i = 0; i < sizeof this / sizeof *this; i++)
        if (fnmatch(this[i], name, 0) == 0) return true;
    return false;
}

enum status release_copy_side_files(const char *src, const char *dst)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct dirent *e;
    struct stat st;
    enum status s = OK;
    DIR *d = opendir(src);
    if (!d) return FAIL(ERR_IO, "%s: cannot open the folder: %s", src, strerror(errno));
    while (!s && (e = readdir(d))) {
        if (!release_is_side_file(e->d_name)) continue;
        if (snprintf(from, sizeof from, "%s/%s", src, e->d_name) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s/%s", dst, e->d_name) >= (int)sizeof to)
            s = FAIL(ERR_IO, "%s: the path is too long", src);
        else if (stat(from, &st) == 0 && S_ISREG(st.st_mode))
            s = release_copy_file(from, to);
    }
    closedir(d);
    return s;
}
