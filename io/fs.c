#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum status fs_mkdirs(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return FAIL(ERR_IO, "folder name of %zu bytes, 1 to %zu allowed", n, sizeof part - 1);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        part[i] = 0;
        /* EEXIST is the usual case, also when another process was quicker; what is there must be a folder. */
        int failed = mkdir(part, 0700) ? errno : 0;
        struct stat st;
        if (failed && (stat(part, &st) || !S_ISDIR(st.st_mode)))
            return FAIL(ERR_IO, "%s: cannot create the folder: %s", part,
                        failed == EEXIST ? "a file of that name is there" : strerror(failed));
        if (i < n) part[i] = '/';
    }
    return OK;
}

enum status fs_kind(const char *path, enum fs_kind *kind, const char **name)
{
    static const struct {
        uint32_t type;
        enum fs_kind kind;
        const char *name;
    } known[] = {
        {0x01021994, FS_MEMORY, "tmpfs"},   {0x858458f6, FS_MEMORY, "ramfs"},  {0x6969, FS_NETWORK, "nfs"},
        {0x0bd00bd0, FS_NETWORK, "lustre"}, {0xff534d42, FS_NETWORK, "cifs"},  {0xfe534d42, FS_NETWORK, "smb2"},
        {0x00c36400, FS_NETWORK, "ceph"},   {0x47504653, FS_NETWORK, "gpfs"},  {0x19830326, FS_NETWORK, "beegfs"},
        {0x65735546, FS_NETWORK, "fuse"},   {0x01021997, FS_NETWORK, "9p"},    {0x5346414f, FS_NETWORK, "afs"},
        {0x20030528, FS_NETWORK, "pvfs2"},  {0xaad7aaea, FS_NETWORK, "panfs"},
    };
    struct statfs s;
    if (statfs(path, &s)) return FAIL(ERR_IO, "%s: cannot ask for the file system: %s", path, strerror(errno));
    *kind = FS_LOCAL;
    if (name) *name = "local disk";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((uint32_t)s.f_type == known[i].type) {
            *kind = known[i].kind;
            if (name) *name = known[i].name;
        }
    return OK;
}

enum status fs_free(const char *path, int64_t *bytes)
{
    struct statvfs s;
    if (statvfs(path, &s)) return FAIL(ERR_IO, "%s: cannot ask for free space: %s", path, strerror(errno));
    uint64_t total;
    if (__builtin_mul_overflow((uint64_t)s.f_bavail, (uint64_t)s.f_frsize, &total) || total > INT64_MAX)
        total = INT64_MAX;
    *bytes = (int64_t)total;
    return OK;
}

enum status fs_need(const char *path, int64_t bytes)
{
    int64_t room = 0;
    TRY(fs_free(path, &room));
    if (room < bytes) return FAIL(ERR_IO, "%s: %" PRId64 " bytes needed, %" PRId64 " bytes free", path, bytes, room);
    return OK;
}

enum status fs_reserve(int fd, const char *path, int64_t bytes, bool emulate)
{
    if (bytes <= 0) return OK;
    int failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes) ? errno : 0;
    if (failed == EOPNOTSUPP) {
        if (!emulate) return OK;
        failed = posix_fallocate(fd, 0, bytes);
    }
    if (!failed) return OK;
    int64_t room = 0;
    fs_free(path, &room);
    return FAIL(ERR_IO, "%s: cannot reserve %" PRId64 " bytes: %s (%" PRId64 " bytes free)", path, bytes,
                strerror(failed), room);
}

enum status fs_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot open to sync: %s", path, strerror(errno));
    int failed = fsync(fd) ? errno : 0;
    close(fd);
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to do on those. */
    if (failed && failed != EINVAL) return FAIL(ERR_IO, "%s: sync: %s", path, strerror(failed));
    return OK;
}

static void read_holder(int fd, char *holder, size_t size)
{
    if (!holder || size == 0) return;
    ssize_t n = pread(fd, holder, size - 1, 0);
    holder[n > 0 ? n : 0] = 0;
    for (char *c = holder; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~') *c = ' ';
}

enum status fs_lock(const char *path, int *fd, char *holder, size_t size)
{
    *fd = -1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return FAIL(ERR_IO, "%s: cannot open the lock file: %s", path, strerror(errno));
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(file, F_OFD_SETLK, &whole)) {
        int failed = errno;
        read_holder(file, holder, size);
        close(file);
        if (failed == EAGAIN || failed == EACCES) return OK;
        return FAIL(ERR_IO, "%s: the file system gives no lock: %s", path, strerror(failed));
    }
    char host[256] = "", line[320];
    gethostname(host, sizeof host - 1);
    int n = snprintf(line, sizeof line, "%s pid %ld", host, (long)getpid());
    if (ftruncate(file, 0) || pwrite(file, line, (size_t)n, 0) != n) {
        int failed = errno;
        close(file);
        return FAIL(ERR_IO, "%s: cannot write the lock file: %s", path, strerror(failed));
    }
    *fd = file;
    return OK;
}
