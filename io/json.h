/* JSON through jansson, with the checks that every outside file needs: a size limit, no duplicate keys, nothing behind
 * the value. The typed getters name the file (`origin`) and the key in their errors. */
#ifndef JSON_H
#define JSON_H
#include "status.h"
#include <jansson.h>
#include <stdint.h>

/* Reads a whole file of at most max_bytes into a malloc'ed buffer, owned by the caller, with a 0 byte behind it. ERR_IO
 * when it cannot be read, ERR_FORMAT when it is larger, not a regular file or changes while it is read. */
enum status json_read_bytes(char **text, size_t *len, const char *path, size_t max_bytes);
/* Parses a file or a text. The value is owned by the caller (json_decref). ERR_FORMAT with line and column. */
enum status json_read_file(json_t **out, const char *path, size_t max_bytes);
enum status json_read_text(json_t **out, const char *text, size_t len, const char *origin);
/* Writes `value` indented by two, keys in their order, through PATH.tmp, fsync and rename. ERR_IO. */
enum status json_write_file(const json_t *value, const char *path);

/* The member `key`, which must be there: ERR_FORMAT when it is absent, of another type or outside [lo, hi]. */
enum status json_need_int(const json_t *object, const char *key, int64_t lo, int64_t hi, int64_t *out,
                          const char *origin);
/* A finite number, integer or real. */
enum status json_need_number(const json_t *object, const char *key, double lo, double hi, double *out,
                             const char *origin);
/* The string is borrowed from `object`. */
enum status json_need_string(const json_t *object, const char *key, const char **out, const char *origin);
enum status json_need_object(const json_t *object, const char *key, json_t **out, const char *origin);

/* The same where absence or null leaves *out as it is. */
enum status json_want_int(const json_t *object, const char *key, int64_t lo, int64_t hi, int64_t *out,
                          const char *origin);
enum status json_want_number(const json_t *object, const char *key, double lo, double hi, double *out,
                             const char *origin);
enum status json_want_string(const json_t *object, const char *key, const char **out, const char *origin);
enum status json_want_bool(const json_t *object, const char *key, bool *out, const char *origin);
enum status json_want_object(const json_t *object, const char *key, json_t **out, const char *origin);
enum status json_want_array(const json_t *object, const char *key, json_t **out, const char *origin);

/* The member, NULL when absent or null. Borrowed. */
json_t *json_member(const json_t *object, const char *key);
/* "object", "array", "string", ...: for messages. */
const char *json_type_name(const json_t *value);
#endif
