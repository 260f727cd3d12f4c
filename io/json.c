#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *json_type_name(const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

static enum status read_fd(int fd, char **text, size_t *len, const char *path, size_t max_bytes)
{
    struct stat st;
    if (fstat(fd, &st)) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return FAIL(ERR_FORMAT, "%s: not a regular file", path);
    if ((uint64_t)st.st_size > max_bytes)
        return FAIL(ERR_FORMAT, "%s: %lld bytes, the limit is %zu", path, (long long)st.st_size, max_bytes);
    size_t size = (size_t)st.st_size, got = 0;
    char *buffer = malloc(size + 1);
    if (!buffer) return FAIL(ERR_MEMORY, "%s: no memory for %zu bytes", path, size);
    while (got < size) {
        ssize_t n = read(fd, buffer + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            free(buffer);
            if (n < 0) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
            return FAIL(ERR_FORMAT, "%s: ends after %zu of %zu bytes", path, got, size);
        }
        got += (size_t)n;
    }
    buffer[size] = 0;
    *text = buffer;
    *len = size;
    return OK;
}

enum status json_read_bytes(char **text, size_t *len, const char *path, size_t max_bytes)
{
    *text = NULL;
    *len = 0;
    /* O_NONBLOCK: opening a FIFO by accident must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    enum status s = read_fd(fd, text, len, path, max_bytes);
    close(fd);
    return s;
}

enum status json_read_text(json_t **out, const char *text, size_t len, const char *origin)
{
    json_error_t error;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return FAIL(ERR_FORMAT, "%s: line %d column %d: %s", origin, error.line, error.column, error.text);
    return OK;
}

enum status json_read_file(json_t **out, const char *path, size_t max_bytes)
{
    char *text;
    size_t len;
    *out = NULL;
    TRY(json_read_bytes(&text, &len, path, max_bytes));
    enum status s = json_read_text(out, text, len, path);
    free(text);
    return s;
}

static int write_chunk(const char *data, size_t n, void *fd)
{
    while (n) {
        ssize_t done = write(*(int *)fd, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

/* Digits (at least 15) with which every real number of the value reads back as itself: 1e-06 stays 1e-06. */
static int real_digits(const json_t *value)
{
    char text[40];
    const char *key;
    json_t *v;
    size_t i;
    int most = 15;
    if (json_is_object(value)) json_object_foreach((json_t *)value, key, v) {
        int n = real_digits(v);
        if (n > most) most = n;
    } else if (json_is_array(value)) json_array_foreach(value, i, v) {
        int n = real_digits(v);
        if (n > most) most = n;
    }
    else if (json_is_real(value))
        while (snprintf(text, sizeof text, "%.*g", most, json_real_value(value)), most < 17 && strtod(text, NULL) != json_real_value(value))
            most++;
    return most;
}

enum status json_write_file(const json_t *value, const char *path)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return FAIL(ERR_IO, "%s: the path is too long", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return FAIL(ERR_IO, "%s: cannot create: %s", tmp, strerror(errno));
    bool ok = json_dump_callback(value, write_chunk, &fd, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)real_digits(value))) == 0 &&
              write_chunk("\n", 1, &fd) == 0 && fsync(fd) == 0;
    int error = errno;
    if (close(fd) && ok) ok = false, error = errno;
    if (ok && rename(tmp, path)) ok = false, error = errno;
    if (ok) return OK;
    unlink(tmp);
    return FAIL(ERR_IO, "%s: cannot write: %s", path, strerror(error));
}

json_t *json_member(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static enum status missing(const char *key, const char *origin)
{
    return FAIL(ERR_FORMAT, "%s: key \"%s\" is missing", origin, key);
}

static enum status wrong_type(const char *key, const json_t *v, const char *want, const char *origin)
{
    return FAIL(ERR_FORMAT, "%s: key \"%s\" is %s, expected %s", origin, key, json_type_name(v), want);
}

enum status json_want_int(const json_t *object, const char *key, int64_t lo, int64_t hi, int64_t *out,
                          const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_integer(v)) return wrong_type(key, v, "an integer", origin);
    int64_t x = json_integer_value(v);
    if (x < lo || x > hi)
        return FAIL(ERR_FORMAT, "%s: %s = %lld is outside %lld .. %lld", origin, key, (long long)x, (long long)lo,
                    (long long)hi);
    *out = x;
    return OK;
}

enum status json_want_number(const json_t *object, const char *key, double lo, double hi, double *out,
                             const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_number(v)) return wrong_type(key, v, "a number", origin);
    double x = json_number_value(v);
    if (!isfinite(x) || x < lo || x > hi)
        return FAIL(ERR_FORMAT, "%s: %s = %g is outside %g .. %g", origin, key, x, lo, hi);
    *out = x;
    return OK;
}

enum status json_want_string(const json_t *object, const char *key, const char **out, const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_string(v)) return wrong_type(key, v, "a string", origin);
    *out = json_string_value(v);
    return OK;
}

enum status json_want_bool(const json_t *object, const char *key, bool *out, const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_boolean(v)) return wrong_type(key, v, "true or false", origin);
    *out = json_is_true(v);
    return OK;
}

enum status json_want_object(const json_t *object, const char *key, json_t **out, const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_object(v)) return wrong_type(key, v, "an object", origin);
    *out = v;
    return OK;
}

enum status json_want_array(const json_t *object, const char *key, json_t **out, const char *origin)
{
    json_t *v = json_member(object, key);
    if (!v) return OK;
    if (!json_is_array(v)) return wrong_type(key, v, "an array", origin);
    *out = v;
    return OK;
}

enum status json_need_int(const json_t *object, const char *key, int64_t lo, int64_t hi, int64_t *out,
                          const char *origin)
{
    if (!json_member(object, key)) return missing(key, origin);
    return json_want_int(object, key, lo, hi, out, origin);
}

enum status json_need_number(const json_t *object, const char *key, double lo, double hi, double *out,
                             const char *origin)
{
    if (!json_member(object, key)) return missing(key, origin);
    return json_want_number(object, key, lo, hi, out, origin);
}

enum status json_need_string(const json_t *object, const char *key, const char **out, const char *origin)
{
    if (!json_member(object, key)) return missing(key, origin);
    return json_want_string(object, key, out, origin);
}

enum status json_need_object(const json_t *object, const char *key, json_t **out, const char *origin)
{
    if (!json_member(object, key)) return missing(key, origin);
    return json_want_object(object, key, out, origin);
}
