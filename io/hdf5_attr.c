/* Attributes of state files. */
#include "hdf5_inner.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 16 << 20, MAX_LISTED = 64 };

static enum status open_object(struct h5file *f, const char *object, hid_t *id)
{
    if (f->parallel) return FAIL(ERR_INTERNAL, "%s: attributes are for files opened by one process", f->path);
    *id = H5Oopen(f->file, object, H5P_DEFAULT);
    if (*id < 0) return H5_FAIL(ERR_FORMAT, f->path, "no object %s", object);
    return OK;
}

enum status h5_put(struct h5file *f, const char *object, const char *name, hid_t type, int rank, const int64_t *dim,
                   const void *value)
{
    hsize_t d[H5_MAX_RANK];
    hid_t id = -1, space, attr;
    if (!f->write) return FAIL(ERR_INTERNAL, "%s: attribute %s: the file is open for reading", f->path, name);
    TRY(open_object(f, object, &id));
    for (int i = 0; i < rank; i++) d[i] = (hsize_t)dim[i];
    space = rank ? H5Screate_simple(rank, d, NULL) : H5Screate(H5S_SCALAR);
    bool ok = space >= 0;
    if (ok && H5Aexists(id, name) > 0) ok = H5Adelete(id, name) >= 0;
    attr = ok ? H5Acreate2(id, name, type, space, H5P_DEFAULT, H5P_DEFAULT) : -1;
    ok = attr >= 0 && H5Awrite(attr, type, value) >= 0;
    if (attr >= 0) ok = H5Aclose(attr) >= 0 && ok;
    enum status s = ok ? OK : H5_FAIL(ERR_IO, f->path, "cannot write attribute %s of %s", name, object);
    if (space >= 0) H5Sclose(space);
    H5Oclose(id);
    return s;
}

enum status h5_put_text(struct h5file *f, const char *object, const char *name, const char *value)
{
    H5_LOCKED;
    size_t n = strlen(value) + 1;
    if (n > MAX_TEXT) return FAIL(ERR_INTERNAL, "%s: attribute %s: %zu bytes, at most %d", f->path, name, n, MAX_TEXT);
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type < 0 || H5Tset_size(type, n) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)
        return H5_FAIL(ERR_IO, f->path, "text type of %zu bytes", n);
    enum status s = h5_put(f, object, name, type, 0, NULL, value);
    H5Tclose(type);
    return s;
}

enum status h5_put_int(struct h5file *f, const char *object, const char *name, int64_t value)
{
    H5_LOCKED;
    return h5_put(f, object, name, H5T_NATIVE_INT64, 0, NULL, &value);
}

enum status h5_put_ints(struct h5file *f, const char *object, const char *name, const int64_t *value, int n)
{
    H5_LOCKED;
    int64_t dim = n;
    return h5_put(f, object, name, H5T_NATIVE_INT64, 1, &dim, value);
}

enum status h5_put_double(struct h5file *f, const char *object, const char *name, double value)
{
    H5_LOCKED;
    return h5_put(f, object, name, H5T_NATIVE_DOUBLE, 0, NULL, &value);
}

/* An open attribute with what must be known before anything is read into memory. */
struct attribute {
    hid_t id, type;
    H5T_class_t kind;
    size_t size;    /* bytes of one element in the file */
    int64_t points;
};

static void attribute_close(struct attribute *a)
{
    if (a->type >= 0) H5Tclose(a->type);
    if (a->id >= 0) H5Aclose(a->id);
}

static enum status attribute_open(struct h5file *f, const char *object, const char *name, struct attribute *a)
{
    hid_t id = -1, space = -1;
    *a = (struct attribute){.id = -1, .type = -1};
    TRY(open_object(f, object, &id));
    enum status s = OK;
    if (H5Aexists(id, name) <= 0) s = H5_FAIL(ERR_FORMAT, f->path, "%s has no attribute %s", object, name);
    if (!s) a->id = H5Aopen(id, name, H5P_DEFAULT);
    if (a->id >= 0) {
        a->type = H5Aget_type(a->id);
        space = H5Aget_space(a->id);
    }
    if (a->type >= 0 && space >= 0) {
        a->kind = H5Tget_class(a->type);
        a->size = H5Tget_size(a->type);
        a->points = H5Sget_simple_extent_npoints(space);
    }
    if (!s && (a->type < 0 || space < 0 || a->points < 0 || a->size == 0))
        s = H5_FAIL(ERR_FORMAT, f->path, "attribute %s of %s is unreadable", name, object);
    if (space >= 0) H5Sclose(space);
    H5Oclose(id);
    if (s) attribute_close(a);
    return s;
}

static enum status read_text(struct h5file *f, struct attribute *a, const char *name, char **text)
{
    *text = NULL;
    if (a->kind != H5T_STRING || H5Tis_variable_str(a->type) || a->points != 1)
        return FAIL(ERR_FORMAT, "%s: attribute %s is not one text of fixed size", f->path, name);
    if (a->size > MAX_TEXT)
        return FAIL(ERR_FORMAT, "%s: attribute %s: %zu bytes of text, at most %d", f->path, name, a->size, MAX_TEXT);
    *text = calloc(1, a->size + 1);
    if (!*text) return FAIL(ERR_MEMORY, "%s: attribute %s of %zu bytes", f->path, name, a->size);
    if (H5Aread(a->id, a->type, *text) >= 0) return OK;
    free(*text);
    *text = NULL;
    return H5_FAIL(ERR_FORMAT, f->path, "cannot read attribute %s", name);
}

enum status h5_get_text(struct h5file *f, const char *object, const char *name, char **text)
{
    H5_LOCKED;
    struct attribute a;
    *text = NULL;
    TRY(attribute_open(f, object, name, &a));
    enum status s = read_text(f, &a, name, text);
    attribute_close(&a);
    return s;
}

static enum status get_numbers(struct h5file *f, const char *object, const char *name, H5T_class_t kind, hid_t memory,
                               int64_t n, void *value)
{
    struct attribute a;
    TRY(attribute_open(f, object, name, &a));
    enum status s = OK;
    if (a.kind != kind || a.size > 8)
        s = FAIL(ERR_FORMAT, "%s: attribute %s of %s is not %s", f->path, name, object,
                 kind == H5T_INTEGER ? "an integer" : "a number");
    else if (a.points != n)
        s = FAIL(ERR_FORMAT, "%s: attribute %s of %s has %" PRId64 " values, %" PRId64 " wanted", f->path, name, object,
                 a.points, n);
    else if (H5Aread(a.id, memory, value) < 0)
        s = H5_FAIL(ERR_FORMAT, f->path, "cannot read attribute %s of %s", name, object);
    attribute_close(&a);
    return s;
}

enum status h5_get_int(struct h5file *f, const char *object, const char *name, int64_t *value)
{
    H5_LOCKED;
    return get_numbers(f, object, name, H5T_INTEGER, H5T_NATIVE_INT64, 1, value);
}

enum status h5_get_ints(struct h5file *f, const char *object, const char *name, int64_t *value, int n)
{
    H5_LOCKED;
    return get_numbers(f, object, name, H5T_INTEGER, H5T_NATIVE_INT64, n, value);
}

enum status h5_get_double(struct h5file *f, const char *object, const char *name, double *value)
{
    H5_LOCKED;
    return get_numbers(f, object, name, H5T_FLOAT, H5T_NATIVE_DOUBLE, 1, value);
}

/* ---- listing ---- */

struct listing {
    struct h5file *f;
    const char *object;
    h5_attribute_fn fn;
    void *ctx;
    enum status s;
};

static enum status show_numbers(struct listing *l, struct attribute *a, const char *name)
{
    union { int64_t i; double d; } v[MAX_LISTED];
    char text[MAX_LISTED * 26 + 32];
    size_t at = 0;
    bool integer = a->kind == H5T_INTEGER;
    if (a->points > MAX_LISTED || a->size > 8) {
        snprintf(text, sizeof text, "%" PRId64 " numbers", a->points);
        return l->fn(l->ctx, name, text);
    }
    if (H5Aread(a->id, integer ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, v) < 0)
        return H5_FAIL(ERR_FORMAT, l->f->path, "cannot read attribute %s of %s", name, l->object);
    text[0] = 0;
    for (int64_t i = 0; i < a->points; i++) {
        const char *space = i ? " " : "";
        at += (size_t)(integer ? snprintf(text + at, sizeof text - at, "%s%" PRId64, space, v[i].i)
                               : snprintf(text + at, sizeof text - at, "%s%.17g", space, v[i].d));
    }
    return l->fn(l->ctx, name, text);
}

static enum status show(struct listing *l, const char *name)
{
    struct attribute a;
    char *text;
    TRY(attribute_open(l->f, l->object, name, &a));
    enum status s;
    if (a.kind == H5T_INTEGER || a.kind == H5T_FLOAT) {
        s = show_numbers(l, &a, name);
    } else if (a.kind == H5T_STRING && !H5Tis_variable_str(a.type) && a.points == 1) {
        s = read_text(l->f, &a, name, &text);
        if (!s) s = l->fn(l->ctx, name, text);
        free(text);
    } else {
        s = l->fn(l->ctx, name, "(neither numbers nor text of fixed size)");
    }
    attribute_close(&a);
    return s;
}

static herr_t visit(hid_t object, const char *name, const H5A_info_t *info, void *ctx)
{
    struct listing *l = ctx;
    (void)object, (void)info;
    if (strcmp(name, "xxh3") == 0) return 0;
    l->s = show(l, name);
    return l->s ? -1 : 0;
}

enum status h5_attributes(struct h5file *f, const char *object, h5_attribute_fn fn, void *ctx)
{
    H5_LOCKED;
    struct listing l = {.f = f, .object = object, .fn = fn, .ctx = ctx};
    hid_t id = -1;
    TRY(open_object(f, object, &id));
    herr_t failed = H5Aiterate2(id, H5_INDEX_NAME, H5_ITER_INC, NULL, visit, &l);
    H5Oclose(id);
    if (l.s) {
        H5Eclear2(H5E_DEFAULT);
        return l.s;
    }
    return failed < 0 ? H5_FAIL(ERR_FORMAT, f->path, "cannot list the attributes of %s", object) : OK;
}
