/* A YAML file as a flat list of dotted keys: "train: {lr: 1e-6}" is the entry train.lr with the text 1e-6. Values stay
 * text; what they mean is the business of whoever reads them. A value is a scalar or a list of scalars. Anchors,
 * aliases, tags, several documents, nested lists, a key given twice, more than SETTINGS_MAX_* of anything: refused with
 * the line.
 * (Not called yaml.h: that is libyaml's own header.) */
#ifndef SETTINGS_H
#define SETTINGS_H
#include "status.h"

enum {
    SETTINGS_MAX_BYTES = 1 << 20,
    SETTINGS_MAX_ENTRIES = 4096,
    SETTINGS_MAX_VALUES = 4096, /* of one list */
    SETTINGS_MAX_DEPTH = 8,
    SETTINGS_MAX_KEY = 255      /* bytes of a dotted key */
};

struct setting {
    char *key;
    char **value;  /* [n] one for a scalar */
    bool *quoted;  /* [n] written with quotes or as a block: surely a string */
    int n;
    bool is_list;
    int line;      /* of the key, from 1 */
};

struct settings {
    char *origin;  /* file name, for messages */
    struct setting *item;
    int n;
};

/* Fills *s, which the caller frees with settings_free() on success; on failure nothing is left to free. ERR_IO when the
 * file cannot be read, else ERR_FORMAT with "origin:line:". */
enum status settings_read_file(struct settings *s, const char *path);
enum status settings_read_text(struct settings *s, const char *text, size_t len, const char *origin);
void settings_free(struct settings *s);
/* The entry with this key, or NULL. */
const struct setting *settings_find(const struct settings *s, const char *key);
#endif
