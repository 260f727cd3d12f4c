#include "textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        text += done;
        n -= (size_t)done;
    }
    return true;
}

enum status textfile_replace(const char *path, const char *text, size_t n)
{
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return FAIL(ERR_IO, "the path is too long: %.200s...", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot create: %s", tmp, strerror(errno));
    bool ok = write_all(fd, text, n) && !fsync(fd);
    int why = errno;
    if (close(fd) && ok) ok = false, why = errno;
    if (ok && rename(tmp, path)) ok = false, why = errno;
    if (ok) return OK;
    unlink(tmp);
    return FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(why));
}

bool textfile_append_fd(int fd, const char *text, size_t n)
{
    struct stat st;
    if (fstat(fd, &st)) return false;
    if (write_all(fd, text, n)) return true;
    int why = errno;
    if (S_ISREG(st.st_mode) && ftruncate(fd, st.st_size)) why = errno;
    errno = why;
    return false;
}

enum status textfile_append(const char *path, const char *text, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    bool ok = textfile_append_fd(fd, text, n) && !fsync(fd);
    int why = errno;
    close(fd);
    return ok ? OK : FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(why));
}
