/* The option table: the only place that knows a configuration key's name, type, range, default and meaning. Parsing,
 * overrides, --help, config.used.yaml, configs/reference.yaml and the diff of two configurations all walk it. */
#ifndef OPTIONS_H
#define OPTIONS_H
#include "config.h"

enum option_type { OPT_BOOL, OPT_INT, OPT_FLOAT, OPT_STRING, OPT_PATH, OPT_ENUM, OPT_INTS };

enum option_flags {
    MAY_CHANGE = 1,  /* may differ when a run resumes */
    OPTIONAL = 2,    /* a number that may be `unset` */
    ABOVE_LO = 4,    /* lo itself is refused */
    BELOW_HI = 8     /* hi itself is refused */
};

struct option {
    const char *name;           /* "train.lr" */
    enum option_type type;
    size_t offset;              /* in struct config */
    const char *initial;        /* default, as it would stand in the file */
    double lo, hi;              /* numbers: the range; enums: lo is the first choice's value */
    const char *unit;           /* "tokens", "s", "" */
    const char *const *choices; /* enums: names in the order of the values, NULL behind the last */
    int flags;
    const char *help;           /* one sentence: the effect */
};

struct option_section {
    const char *name, *help;
};

extern const struct option options[];
extern const int n_options;
extern const struct option_section option_sections[]; /* in the table's order */
extern const int n_option_sections;

const struct option *option_find(const char *name);
/* The key nearest to `name`, or NULL. */
const char *option_nearest(const char *name);
/* "integer", "number", "auto | cpu | cuda", ...; and "[0, 1)" with the unit, or "". */
void option_type_text(const struct option *o, char *text, size_t size);
void option_range_text(const struct option *o, char *text, size_t size);

/* Reads the value into the config; a scalar has n 1. `where` ("x.yaml:3") begins the messages. ERR_CONFIG. */
enum status option_set(const struct option *o, struct config *c, char *const *value, const bool *quoted, int n,
                       bool is_list, const char *where);
/* The value as YAML on one line; the caller frees it. NULL: no memory. */
char *option_text(const struct option *o, const struct config *c);
bool option_equal(const struct option *o, const struct config *a, const struct config *b);
bool option_is_set(const struct option *o, const struct config *c);
void option_clear(const struct option *o, struct config *c);
#endif
