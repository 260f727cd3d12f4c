#include "settings.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_SECTIONS = 64 };

struct section {
    char key[SETTINGS_MAX_KEY + 1];
    int line;
};

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;   /* the current one; always deletable */
    struct settings *out;
    struct section section[MAX_SECTIONS];
    int n_sections;
};

static int line_of(const struct reader *r) { return (int)r->event.start_mark.line + 1; }

/* Moves to the next event. */
static enum status next(struct reader *r)
{
    yaml_event_delete(&r->event);
    memset(&r->event, 0, sizeof r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return OK;
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return FAIL(ERR_MEMORY, "%s: no memory to read it", r->out->origin);
    if (p->error == YAML_READER_ERROR)
        return FAIL(ERR_FORMAT, "%s: byte %zu: %s", r->out->origin, p->problem_offset,
                    p->problem ? p->problem : "cannot be read");
    return FAIL(ERR_FORMAT, "%s:%zu: %s%s%s", r->out->origin, p->problem_mark.line + 1,
                p->problem ? p->problem : "broken YAML", p->context ? " " : "", p->context ? p->context : "");
}

#define REFUSE(r, ...) refuse((r), __FILE__, __LINE__, __VA_ARGS__)
static enum status refuse(const struct reader *r, const char *file, int line, const char *what, const char *detail)
{
    return status_fail(ERR_FORMAT, file, line, "%s:%d: %s%.80s", r->out->origin, line_of(r), what, detail);
}

/* Anchors and tags would make a text mean something else than what stands there. */
static enum status check_plain(const struct reader *r)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (r->event.type) {
    case YAML_ALIAS_EVENT: return REFUSE(r, "aliases are not supported: *", (char *)r->event.data.alias.anchor);
    case YAML_SCALAR_EVENT:
        anchor = r->event.data.scalar.anchor, tag = r->event.data.scalar.tag;
        if (memchr(r->event.data.scalar.value, 0, r->event.data.scalar.length))
            return REFUSE(r, "a text holds a zero byte", "");
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = r->event.data.sequence_start.anchor, tag = r->event.data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = r->event.data.mapping_start.anchor, tag = r->event.data.mapping_start.tag;
        break;
    default: break;
    }
    if (anchor) return REFUSE(r, "anchors are not supported: &", (const char *)anchor);
    if (tag) return REFUSE(r, "tags are not supported: ", (const char *)tag);
    return OK;
}

/* Appends the current scalar to the entry's values. */
static enum status take_scalar(struct reader *r, struct setting *e)
{
    if (e->n >= SETTINGS_MAX_VALUES) return REFUSE(r, "too many values in the list ", e->key);
    if ((e->n & (e->n - 1)) == 0) {
        size_t cap = e->n ? 2 * (size_t)e->n : 1;
        char **value = realloc(e->value, cap * sizeof *value);
        if (value) e->value = value;
        bool *quoted = realloc(e->quoted, cap * sizeof *quoted);
        if (quoted) e->quoted = quoted;
        if (!value || !quoted) return FAIL(ERR_MEMORY, "%s: no memory", r->out->origin);
    }
    char *text = strdup((const char *)r->event.data.scalar.value);
    if (!text) return FAIL(ERR_MEMORY, "%s: no memory", r->out->origin);
    e->value[e->n] = text;
    e->quoted[e->n] = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    e->n++;
    return OK;
}

static enum status take_list(struct reader *r, struct setting *e)
{
    e->is_list = true;
    for (;;) {
        TRY(next(r));
        TRY(check_plain(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return REFUSE(r, "a list may only hold plain values: ", e->key);
        TRY(take_scalar(r, e));
    }
}

static enum status add_entry(struct reader *r, const char *key, int line, struct setting **out)
{
    struct settings *s = r->out;
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->item[i].key, key))
            return FAIL(ERR_FORMAT, "%s:%d: %.80s is given twice, first on line %d", s->origin, line, key,
                        s->item[i].line);
    if (s->n >= SETTINGS_MAX_ENTRIES) return REFUSE(r, "too many keys; the first too many is ", key);
    if ((s->n & (s->n - 1)) == 0) {
        struct setting *item = realloc(s->item, (s->n ? 2 * (size_t)s->n : 1) * sizeof *item);
        if (!item) return FAIL(ERR_MEMORY, "%s: no memory", s->origin);
        s->item = item;
    }
    char *own = strdup(key);
    if (!own) return FAIL(ERR_MEMORY, "%s: no memory", s->origin);
    *out = &s->item[s->n++];
    **out = (struct setting){.key = own, .line = line};
    return OK;
}

/* A section that opens a second time: one of the two would be overlooked. */
static enum status note_section(struct reader *r, const char *key, int line)
{
    for (int i = 0; i < r->n_sections; i++)
        if (!strcmp(r->section[i].key, key))
            return FAIL(ERR_FORMAT, "%s:%d: %.80s is given twice, first on line %d", r->out->origin, line, key,
                        r->section[i].line);
    if (r->n_sections == MAX_SECTIONS) return REFUSE(r, "too many sections; the first too many is ", key);
    struct section *s = &r->section[r->n_sections++];
    memcpy(s->key, key, strlen(key) + 1);
    s->line = line;
    return OK;
}

/* Writes `prefix.key` for the current scalar into key[SETTINGS_MAX_KEY + 1]. */
static enum status join_key(struct reader *r, char *key, const char *prefix)
{
    if (r->event.type != YAML_SCALAR_EVENT) return REFUSE(r, "a key must be a plain name, below ", prefix);
    const char *name = (const char *)r->event.data.scalar.value;
    if (!*name) return REFUSE(r, "an empty key below ", prefix);
    int n = snprintf(key, SETTINGS_MAX_KEY + 1, "%s%s%s", prefix, *prefix ? "." : "", name);
    if (n > SETTINGS_MAX_KEY) return REFUSE(r, "the key is too long: ", name);
    return OK;
}

/* The current event is a mapping's start; ends on its end. */
static enum status take_map(struct reader *r, const char *prefix, int depth)
{
    if (depth > SETTINGS_MAX_DEPTH) return REFUSE(r, "nested too deep below ", prefix);
    for (;;) {
        TRY(next(r));
        TRY(check_plain(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return OK;
        char key[SETTINGS_MAX_KEY + 1];
        int line = line_of(r);
        TRY(join_key(r, key, prefix));
        TRY(next(r));
        TRY(check_plain(r));
        if (r->event.type == YAML_MAPPING_START_EVENT) {
            TRY(note_section(r, key, line));
            TRY(take_map(r, key, depth + 1));
            continue;
        }
        struct setting *e = NULL;
        TRY(add_entry(r, key, line, &e));
        if (r->event.type == YAML_SEQUENCE_START_EVENT)
            TRY(take_list(r, e));
        else
            TRY(take_scalar(r, e));
    }
}

static enum status take_stream(struct reader *r)
{
    TRY(next(r)); /* stream start */
    TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return OK;
    TRY(next(r)); /* behind the document's start */
    TRY(check_plain(r));
    if (r->event.type == YAML_MAPPING_START_EVENT)
        TRY(take_map(r, "", 1));
    else if (r->event.type != YAML_SCALAR_EVENT || r->event.data.scalar.length)
        return REFUSE(r, "expected `key: value` lines", "");
    TRY(next(r)); /* document end */
    TRY(next(r));
    if (r->event.type != YAML_STREAM_END_EVENT) return REFUSE(r, "a second document is not supported", "");
    return OK;
}

enum status settings_read_text(struct settings *s, const char *text, size_t len, const char *origin)
{
    *s = (struct settings){.origin = strdup(origin)};
    if (!s->origin) return FAIL(ERR_MEMORY, "%s: no memory", origin);
    struct reader r = {.out = s};
    enum status status;
    if (len > SETTINGS_MAX_BYTES) {
        status = FAIL(ERR_FORMAT, "%s: %zu bytes, the limit is %d", origin, len, (int)SETTINGS_MAX_BYTES);
    } else if (!yaml_parser_initialize(&r.parser)) {
        status = FAIL(ERR_MEMORY, "%s: no memory for the YAML parser", origin);
    } else {
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
        status = take_stream(&r);
        yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
    }
    if (status) settings_free(s);
    return status;
}

enum status settings_read_file(struct settings *s, const char *path)
{
    char *text;
    size_t len;
    *s = (struct settings){0};
    TRY(json_read_bytes(&text, &len, path, SETTINGS_MAX_BYTES));
    enum status status = settings_read_text(s, text, len, path);
    free(text);
    return status;
}

void settings_free(struct settings *s)
{
    for (int i = 0; i < s->n; i++) {
        for (int j = 0; j < s->item[i].n; j++) free(s->item[i].value[j]);
        free(s->item[i].value);
        free(s->item[i].quoted);
        free(s->item[i].key);
    }
    free(s->item);
    free(s->origin);
    *s = (struct settings){0};
}

const struct setting *settings_find(const struct settings *s, const char *key)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->item[i].key, key)) return &s->item[i];
    return NULL;
}
