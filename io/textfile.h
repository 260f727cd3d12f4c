/* A small file replaced as a whole: readers see the old or the new content, also after a crash. */
#ifndef TEXTFILE_H
#define TEXTFILE_H
#include "status.h"

/* Writes `n` bytes to PATH.tmp (0600), syncs, renames to PATH. On failure PATH is as it was and PATH.tmp is gone.
 * ERR_IO with the system's reason. */
enum status textfile_replace(const char *path, const char *text, size_t n);
/* Appends `n` bytes to PATH, created 0600 when it is not there, and syncs. On failure the file has its old length. */
enum status textfile_append(const char *path, const char *text, size_t n);
/* Appends to an O_APPEND descriptor in one write; what a full disk leaves of it is cut off again. errno on false. */
bool textfile_append_fd(int fd, const char *text, size_t n);
#endif
