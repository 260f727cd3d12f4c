/* What the files of state need from the file system: folders, room, locks, durability. */
#ifndef FS_H
#define FS_H
#include "status.h"
#include <stdint.h>

/* Creates `path` and its missing parents, 0700. Any number of processes may do so at once. ERR_IO. */
enum status fs_mkdirs(const char *path);

/* Where a folder lives. FS_MEMORY (tmpfs, ramfs) and FS_NETWORK (NFS, Lustre, ...) make a poor spill folder. */
enum fs_kind { FS_LOCAL, FS_MEMORY, FS_NETWORK };
/* `name` (may be NULL) receives a word for messages: "tmpfs", "nfs", "local disk". */
enum status fs_kind(const char *path, enum fs_kind *kind, const char **name);

/* Bytes that an unprivileged process may still take on the file system of `path`. */
enum status fs_free(const char *path, int64_t *bytes);
/* ERR_IO with bytes needed and bytes free when the file system of `path` has fewer than `bytes` left. */
enum status fs_need(const char *path, int64_t bytes);
/* Real blocks for the first `bytes` of an open file, so that a full disk is an error now and not in the middle of a
 * write. Holes are filled without touching data. `emulate`: where the file system cannot (EOPNOTSUPP), blocks are
 * touched one by one; otherwise the file stays sparse there. `path` is for messages. */
enum status fs_reserve(int fd, const char *path, int64_t bytes, bool emulate);

/* fsync of a file or folder. */
enum status fs_sync(const char *path);

/* Takes the exclusive lock on the file `path` (created 0600) and writes "host pid" into it. The lock lasts until *fd is
 * closed or the process ends in any way. *fd is -1 when another process holds it; `holder` (may be NULL) then receives
 * what that process wrote. ERR_IO where the file cannot be opened or the file system has no locks. */
enum status fs_lock(const char *path, int *fd, char *holder, size_t size);
#endif
