/* The configuration written out: the used one, the reference, the help. */
#include "config.h"
#include "options.h"
#include "textfile.h"

#include <stdlib.h>
#include <string.h>

static bool in_section(const struct option *o, const char *section)
{
    size_t n = strlen(section);
    return !strncmp(o->name, section, n) && o->name[n] == '.';
}

static const char *key_of(const struct option *o) { return strchr(o->name, '.') + 1; }

static bool print_used(const struct config *c, FILE *f)
{
    fprintf(f, "# The configuration of this run, every key; `default`: nobody set it.\n");
    for (int s = 0; s < n_option_sections; s++) {
        fprintf(f, "\n%s:\n", option_sections[s].name);
        for (int i = 0; i < n_options; i++) {
            if (!in_section(&options[i], option_sections[s].name)) continue;
            char *text = option_text(&options[i], c);
            if (!text) return false;
            fprintf(f, "  %s: %s%s\n", key_of(&options[i]), text, c->source[i] == FROM_DEFAULT ? "  # default" : "");
            free(text);
        }
    }
    return true;
}

enum status config_to_text(const struct config *c, char **text)
{
    size_t len = 0;
    *text = NULL;
    FILE *f = open_memstream(text, &len);
    if (!f) return FAIL(ERR_MEMORY, "no memory for the configuration's text");
    bool ok = print_used(c, f) && !ferror(f);
    if (!fclose(f) && ok) return OK;
    free(*text);
    *text = NULL;
    return FAIL(ERR_MEMORY, "no memory for the configuration's text");
}

enum status config_write(const struct config *c, const char *path)
{
    char *text;
    TRY(config_to_text(c, &text));
    enum status s = textfile_replace(path, text, strlen(text));
    free(text);
    return s;
}

/* "integer in [1, 4096], ranks" and so on. */
static void describe(const struct option *o, char *text, size_t size)
{
    char type[160], range[96];
    option_type_text(o, type, sizeof type);
    option_range_text(o, range, sizeof range);
    snprintf(text, size, "%s%s%s%s%s%s", type, *range ? " in " : "", range, *o->unit ? ", " : "", o->unit,
             o->flags & OPTIONAL ? ", or unset" : "");
}

static const char *initial_text(const struct option *o) { return *o->initial ? o->initial : "\"\""; }

/* Prints `text` broken at spaces, each line behind `indent`. */
static void print_wrapped(FILE *out, const char *indent, const char *text, size_t width)
{
    while (*text) {
        size_t n = strlen(text), room = width - strlen(indent);
        if (n > room) {
            n = room;
            while (n && text[n] != ' ') n--;
            if (!n) n = room;
        }
        fprintf(out, "%s%.*s\n", indent, (int)n, text);
        text += n;
        while (*text == ' ') text++;
    }
}

enum status config_help(FILE *out, const char *section)
{
    bool found = false;
    for (int s = 0; s < n_option_sections; s++) {
        if (section && strcmp(section, option_sections[s].name)) continue;
        found = true;
        fprintf(out, "%s: %s\n", option_sections[s].name, option_sections[s].help);
        for (int i = 0; i < n_options; i++) {
            const struct option *o = &options[i];
            if (!in_section(o, option_sections[s].name)) continue;
            char what[320];
            describe(o, what, sizeof what);
            fprintf(out, "  %s=%s   %s\n", o->name, initial_text(o), what);
            print_wrapped(out, "      ", o->help, 100);
        }
    }
    if (!found) return FAIL(ERR_USAGE, "no section '%.80s' in the configuration", section);
    return OK;
}

void config_print_reference(FILE *out)
{
    fprintf(out, "# Every key of a configuration: its effect, type, range and unit, and its default. A file\n"
                 "# needs only the keys that differ; KEY=VALUE on the command line wins over it. Keys marked * may\n"
                 "# change when a run resumes.\n");
    for (int s = 0; s < n_option_sections; s++) {
        fprintf(out, "\n# %s\n%s:\n", option_sections[s].help, option_sections[s].name);
        for (int i = 0; i < n_options; i++) {
            const struct option *o = &options[i];
            if (!in_section(o, option_sections[s].name)) continue;
            char what[320];
            describe(o, what, sizeof what);
            print_wrapped(out, "  # ", o->help, 120);
            fprintf(out, "  # %s%s\n  %s: %s\n", what, o->flags & MAY_CHANGE ? " *" : "", key_of(o), initial_text(o));
        }
    }
}
