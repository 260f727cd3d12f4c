/* Files for the tests of outside formats: temporary folders, whole files, copies with one thing changed. Every helper
 * fails the test when the system refuses. */
#ifndef ST_FIXTURE_H
#define ST_FIXTURE_H
#include "check.h"
#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIXTURE_PATH = 512 };

static inline void fixture_dir(char path[FIXTURE_PATH])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, FIXTURE_PATH, "%s/m3-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) fail_msg("mkdtemp %s", path);
}

static inline int fixture_unlink(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void fixture_remove(const char *dir) { nftw(dir, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS); }

static inline const char *fixture_join(char out[FIXTURE_PATH], const char *dir, const char *name)
{
    if (snprintf(out, FIXTURE_PATH, "%s/%s", dir, name) >= FIXTURE_PATH) fail_msg("path too long");
    return out;
}

static inline void fixture_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) fail_msg("cannot write %s", path);
}

/* malloc'ed, with a 0 byte behind it. */
static inline char *fixture_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st)) fail_msg("cannot read %s", path);
    char *data = calloc(1, (size_t)st.st_size + 1);
    *n = fread(data, 1, (size_t)st.st_size, f);
    fclose(f);
    return data;
}

static inline bool fixture_exists(const char *dir, const char *name)
{
    char path[FIXTURE_PATH];
    struct stat st;
    return lstat(fixture_join(path, dir, name), &st) == 0;
}

/* The regular files of a flat folder, into a new folder. */
static inline void fixture_copy(const char *src, const char *dst)
{
    char from[FIXTURE_PATH], to[FIXTURE_PATH];
    struct dirent *e;
    DIR *d = opendir(src);
    if (!d || mkdir(dst, 0700)) fail_msg("cannot copy %s to %s", src, dst);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.') continue;
        size_t n;
        char *data = fixture_read(fixture_join(from, src, e->d_name), &n);
        fixture_write(fixture_join(to, dst, e->d_name), data, n);
        free(data);
    }
    closedir(d);
}

/* Replaces `from`, which must be there, by `to` in DIR/NAME: the first time it occurs, or everywhere. */
static inline void fixture_edit(const char *dir, const char *name, const char *from, const char *to, bool all)
{
    char path[FIXTURE_PATH];
    size_t n, done = 0, skip = strlen(from), put = strlen(to);
    char *text = fixture_read(fixture_join(path, dir, name), &n), *at = text;
    char *out = malloc(n / (skip ? skip : 1) * put + n + 1), *o = out;
    while (at < text + n) {
        if ((all || !done) && strncmp(at, from, skip) == 0) {
            memcpy(o, to, put);
            o += put, at += skip, done++;
        } else *o++ = *at++;
    }
    if (!done) fail_msg("%s does not hold %s", path, from);
    fixture_write(path, out, (size_t)(o - out));
    free(text);
    free(out);
}

/* A safetensors file of this header text and n bytes of data, which count up from 0. */
static inline void fixture_st(const char *path, const char *header, size_t n)
{
    size_t len = strlen(header);
    unsigned char *b = malloc(8 + len + n);
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)((uint64_t)len >> 8 * i);
    memcpy(b + 8, header, len);
    for (size_t i = 0; i < n; i++) b[8 + len + i] = (unsigned char)i;
    fixture_write(path, b, 8 + len + n);
    free(b);
}
#endif
