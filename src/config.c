#include "config.h"
#include "options.h"
#include "settings.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

/* Sets option o from one plain text: a default or an override. Lists stand as [1, 2] or 1,2. */
static enum status set_plain(const struct option *o, struct config *c, const char *text, const char *where)
{
    bool plain[1024] = {false};
    char *part[1024], *own = strdup(text);
    int n = 0;
    if (!own) return FAIL(ERR_MEMORY, "%s: no memory", o->name);
    if (o->type != OPT_INTS) {
        part[n++] = own;
    } else {
        char *save, *p = own;
        size_t len = strlen(p);
        if (*p == '[' && p[len - 1] == ']') p[len - 1] = 0, p++;
        for (p = strtok_r(p, ", ", &save); p && n < 1024; p = strtok_r(NULL, ", ", &save)) part[n++] = p;
    }
    enum status s = option_set(o, c, part, plain, n, o->type == OPT_INTS, where);
    free(own);
    return s;
}

static enum status set_defaults(struct config *c)
{
    for (int i = 0; i < n_options; i++) TRY(set_plain(&options[i], c, options[i].initial, "default"));
    return OK;
}

static enum status unknown_key(const char *where, const char *key)
{
    for (int i = 0; i < n_option_sections; i++)
        if (!strcmp(option_sections[i].name, key))
            return FAIL(ERR_CONFIG, "%s: %s is a section: its keys stand below it, or are written %s.KEY", where, key,
                        key);
    for (int i = 0; i < n_options; i++) {
        size_t n = strlen(options[i].name);
        if (!strncmp(key, options[i].name, n) && key[n] == '.')
            return FAIL(ERR_CONFIG, "%s: %s is a value and has no keys below it: '%.80s'", where, options[i].name, key);
    }
    const char *near = option_nearest(key);
    return FAIL(ERR_CONFIG, "%s: unknown key '%.80s'%s%s%s", where, key, near ? "; did you mean " : "",
                near ? near : "", near ? "?" : "");
}

/* `rl:` with nothing below it. */
static bool is_empty_section(const struct setting *e)
{
    if (e->is_list || e->quoted[0] || !value_is_null(e->value[0])) return false;
    for (int i = 0; i < n_option_sections; i++)
        if (!strcmp(option_sections[i].name, e->key)) return true;
    return false;
}

static enum status set_from_settings(struct config *c, const struct settings *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct setting *e = &s->item[i];
        char where[512];
        snprintf(where, sizeof where, "%.480s:%d", s->origin, e->line);
        if (is_empty_section(e)) continue;
        const struct option *o = option_find(e->key);
        if (!o) return unknown_key(where, e->key);
        TRY(option_set(o, c, e->value, e->quoted, e->n, e->is_list, where));
        c->source[o - options] = FROM_FILE;
    }
    return OK;
}

static enum status set_overrides(struct config *c, int n, char **text)
{
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(text[i], '=');
        if (!equals || equals == text[i])
            return FAIL(ERR_USAGE, "command line: expected KEY=VALUE, got '%.80s'", text[i]);
        char key[SETTINGS_MAX_KEY + 1];
        size_t len = (size_t)(equals - text[i]);
        snprintf(key, sizeof key, "%.*s", (int)(len < SETTINGS_MAX_KEY ? len : SETTINGS_MAX_KEY), text[i]);
        const struct option *o = option_find(key);
        if (!o) return unknown_key("command line", key);
        TRY(set_plain(o, c, equals + 1, "command line"));
        c->source[o - options] = FROM_OVERRIDE;
    }
    return OK;
}

/* Consumes `s`. */
static enum status fill(struct config *c, struct settings *s, int n_overrides, char **overrides)
{
    enum status status;
    *c = (struct config){0};
    TRY_GOTO(status, done, set_defaults(c));
    TRY_GOTO(status, done, set_from_settings(c, s));
    TRY_GOTO(status, done, set_overrides(c, n_overrides, overrides));
    TRY_GOTO(status, done, config_check(c));
done:
    settings_free(s);
    if (status) config_free(c);
    return status;
}

/* A file that cannot be read or parsed is the user's configuration being wrong. */
static enum status as_config_error(enum status s) { return s == ERR_IO || s == ERR_FORMAT ? ERR_CONFIG : s; }

enum status config_load(struct config *c, const char *path, int n_overrides, char **key_equals_value)
{
    struct settings s = {0};
    *c = (struct config){0};
    if (path) TRY(as_config_error(settings_read_file(&s, path)));
    return fill(c, &s, n_overrides, key_equals_value);
}

enum status config_from_text(struct config *c, const char *text, size_t len, const char *origin)
{
    struct settings s = {0};
    *c = (struct config){0};
    TRY(as_config_error(settings_read_text(&s, text, len, origin)));
    return fill(c, &s, 0, NULL);
}

void config_free(struct config *c)
{
    for (int i = 0; i < n_options; i++) option_clear(&options[i], c);
    *c = (struct config){0};
}

enum config_source config_source_of(const struct config *c, const char *key)
{
    const struct option *o = option_find(key);
    return o ? (enum config_source)c->source[o - options] : FROM_DEFAULT;
}

enum status config_need(const struct config *c, const char *key, const char *who)
{
    const struct option *o = option_find(key);
    if (!o) return FAIL(ERR_INTERNAL, "%s is no configuration key", key);
    if (option_is_set(o, c)) return OK;
    return FAIL(ERR_CONFIG, "%s needs %s: set it in the file or as %s=...", who, key, key);
}

int config_diff(const struct config *old, const struct config *now, FILE *out, bool *only_may_change)
{
    int n = 0;
    *only_may_change = true;
    for (int i = 0; i < n_options; i++) {
        const struct option *o = &options[i];
        if (option_equal(o, old, now)) continue;
        n++;
        if (!(o->flags & MAY_CHANGE)) *only_may_change = false;
        char *a = option_text(o, old), *b = option_text(o, now);
        if (out)
            fprintf(out, "%s: %s -> %s%s\n", o->name, a ? a : "?", b ? b : "?",
                    o->flags & MAY_CHANGE ? "" : "   (may not change when a run resumes)");
        free(a);
        free(b);
    }
    return n;
}
