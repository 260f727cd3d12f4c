#include "cli.h"
#include "value.h"

#include <string.h>

/* Length of the choice at `p`, and the next one or NULL. */
static size_t choice_len(const char *p) { return strcspn(p, "|"); }
static const char *next_choice(const char *p)
{
    p += choice_len(p);
    return *p ? p + 1 : NULL;
}

static enum status set_number(const struct cli_option *o, const char *text, double x, const char *why)
{
    if (why) return FAIL(ERR_USAGE, "%s: '%.80s' %s", o->name, text, why);
    bool limited = o->lo != 0 || o->hi != 0;
    if (limited && !(x >= o->lo && x <= o->hi)) {
        char lo[VALUE_FLOAT_CHARS], hi[VALUE_FLOAT_CHARS];
        return FAIL(ERR_USAGE, "%s: %.80s is outside [%s, %s]", o->name, text, value_float_text(lo, o->lo),
                    value_float_text(hi, o->hi));
    }
    return OK;
}

static enum status set_choice(const struct cli_option *o, const char *text)
{
    int i = 0;
    for (const char *p = o->what; p; p = next_choice(p), i++)
        if (strlen(text) == choice_len(p) && !strncmp(p, text, choice_len(p))) {
            *(int *)o->at = i;
            return OK;
        }
    return FAIL(ERR_USAGE, "%s: '%.80s' is none of %s", o->name, text, o->what);
}

static enum status set_option(const struct cli_option *o, const char *text)
{
    int64_t i = 0;
    double x = 0;
    const char *why;
    switch (o->type) {
    case CLI_FLAG: *(bool *)o->at = true; return OK;
    case CLI_INT:
        why = value_int(text, &i);
        TRY(set_number(o, text, (double)i, why));
        *(int64_t *)o->at = i;
        return OK;
    case CLI_FLOAT:
        why = value_float(text, &x);
        TRY(set_number(o, text, x, why));
        *(double *)o->at = x;
        return OK;
    case CLI_ENUM: return set_choice(o, text);
    default: *(const char **)o->at = text; return OK;
    }
}

static const char *name_at(const void *ctx, int i) { return ((const struct cli *)ctx)->options[i].name; }

static enum status find_option(const struct cli *cli, const char *word, size_t n, const struct cli_option **out)
{
    for (int i = 0; i < cli->n_options; i++) {
        *out = &cli->options[i];
        if (strlen((*out)->name) == n && !strncmp((*out)->name, word, n)) return OK;
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n < 63 ? n : 63), word);
    const char *near = value_nearest(name, name_at, cli, cli->n_options);
    return FAIL(ERR_USAGE, "%s: unknown option '%s'%s%s%s (--help lists them)", cli->command, name,
                near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* The option at argv[*i]; *i moves over its value. */
static enum status take_option(const struct cli *cli, int argc, char **argv, int *i)
{
    const char *word = argv[*i], *equals = strchr(word, '=');
    const struct cli_option *o = NULL;
    TRY(find_option(cli, word, equals ? (size_t)(equals - word) : strlen(word), &o));
    if (o->type == CLI_FLAG) {
        if (equals) return FAIL(ERR_USAGE, "%s takes no value: '%.80s'", o->name, word);
        return set_option(o, NULL);
    }
    if (equals) return set_option(o, equals + 1);
    if (*i + 1 >= argc)
        return FAIL(ERR_USAGE, "%s needs a value: %s %s", o->name, o->name, o->what ? o->what : "VALUE");
    return set_option(o, argv[++*i]);
}

static enum status take_argument(struct cli *cli, char **argv, int *given, char *word)
{
    if (*given < cli->n_arguments) {
        *cli->arguments[(*given)++].at = word;
        return OK;
    }
    if (!cli->rest)
        return FAIL(ERR_USAGE, "%s: '%.80s' is one argument too many (--help lists them)", cli->command, word);
    /* More arguments gather at the front of argv: fewer of them were seen than words were read. */
    argv[1 + cli->n_more++] = word;
    return OK;
}

static enum status set_initial(const struct cli *cli)
{
    for (int i = 0; i < cli->n_options; i++) {
        const struct cli_option *o = &cli->options[i];
        if (o->type == CLI_FLAG)
            *(bool *)o->at = false;
        else if (o->initial)
            TRY(set_option(o, o->initial));
    }
    for (int i = 0; i < cli->n_arguments; i++) *cli->arguments[i].at = NULL;
    return OK;
}

enum status cli_parse(struct cli *cli, int argc, char **argv)
{
    int given = 0;
    bool options = true;
    cli->more = argv + 1;
    cli->n_more = 0;
    cli->helped = false;
    TRY(set_initial(cli));
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (options && !strcmp(word, "--")) {
            options = false;
        } else if (options && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            cli_help(cli, stdout);
            cli->helped = true;
            return OK;
        } else if (options && word[0] == '-' && word[1]) {
            TRY(take_option(cli, argc, argv, &i));
        } else {
            TRY(take_argument(cli, argv, &given, word));
        }
    }
    if (given < cli->n_arguments && !cli->arguments[given].optional)
        return FAIL(ERR_USAGE, "%s: %s is missing: %s", cli->command, cli->arguments[given].name,
                    cli->arguments[given].help);
    return OK;
}

static void help_line(FILE *out, const char *left, const char *help, const char *initial)
{
    if (strlen(left) > 26)
        fprintf(out, "  %s\n  %-26s  %s", left, "", help);
    else
        fprintf(out, "  %-26s  %s", left, help);
    if (initial) fprintf(out, " (default %s)", *initial ? initial : "\"\"");
    fputc('\n', out);
}

void cli_help(const struct cli *cli, FILE *out)
{
    fprintf(out, "usage: %s", cli->command);
    for (int i = 0; i < cli->n_arguments; i++)
        fprintf(out, cli->arguments[i].optional ? " [%s]" : " %s", cli->arguments[i].name);
    if (cli->rest) fprintf(out, " [%s ...]", cli->rest);
    fprintf(out, " [options]\n\n%s\n\n", cli->about);
    for (int i = 0; i < cli->n_arguments; i++) help_line(out, cli->arguments[i].name, cli->arguments[i].help, NULL);
    if (cli->rest) help_line(out, cli->rest, cli->rest_help ? cli->rest_help : "", NULL);
    if (cli->n_arguments || cli->rest) fputs("\n", out);
    for (int i = 0; i < cli->n_options; i++) {
        const struct cli_option *o = &cli->options[i];
        char left[128];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->type == CLI_FLAG ? "" : " ",
                 o->type == CLI_FLAG ? "" : o->what ? o->what : "VALUE");
        help_line(out, left, o->help, o->type == CLI_FLAG ? NULL : o->initial);
    }
    help_line(out, "--help", "this text", NULL);
}
