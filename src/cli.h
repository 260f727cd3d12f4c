/* The command line of a subcommand: one table of options and one of positional arguments make the parsing, the checks
 * and the --help text.
 *
 *     const char *src, *text = NULL;
 *     int64_t max_new;
 *     bool greedy;
 *     const struct cli_option options[] = {
 *         {"--prompt", CLI_STRING, &text, NULL, "TEXT", 0, 0, "what to continue"},
 *         {"--max-new", CLI_INT, &max_new, "256", "N", 1, 1e8, "longest response in tokens"},
 *         {"--greedy", CLI_FLAG, &greedy, NULL, NULL, 0, 0, "always take the most likely token"}};
 *     const struct cli_argument arguments[] = {{"CHECKPOINT", &src, "a release folder or an HDF5 checkpoint", false}};
 *     struct cli cli = {"m3 generate", "Continues prompts.", options, 3, arguments, 1};
 *     TRY(cli_parse(&cli, argc, argv));
 *     if (cli.helped) return OK;
 */
#ifndef CLI_H
#define CLI_H
#include "status.h"
#include <stdint.h>
#include <stdio.h>

enum cli_type { CLI_FLAG, CLI_INT, CLI_FLOAT, CLI_STRING, CLI_ENUM };

struct cli_option {
    const char *name;         /* "--max-new" */
    enum cli_type type;
    void *at;                 /* bool, int64_t, double, const char * (borrowed from argv), int (the choice's number) */
    const char *initial;      /* default as it would be written; NULL: false for a flag, else *at stays as it is */
    const char *what;         /* the value's name in the help; CLI_ENUM: the choices, "fp32|bf16" */
    double lo, hi;            /* range of a number; both 0: any */
    const char *help;
};

struct cli_argument {
    const char *name;
    const char **at;          /* borrowed from argv; NULL when optional and not given */
    const char *help;
    bool optional;            /* only the last ones */
};

struct cli {
    const char *command;      /* "m3 generate" */
    const char *about;        /* a sentence or two */
    const struct cli_option *options;
    int n_options;
    const struct cli_argument *arguments;
    int n_arguments;
    const char *rest;         /* "KEY=VALUE": further arguments are allowed and called so; NULL: they are refused */
    const char *rest_help;
    /* set by cli_parse() */
    char **more;              /* [n_more] the further arguments, in argv */
    int n_more;
    bool helped;              /* --help was there and the help is printed on stdout: nothing else to do */
};

/* Reads argv[1..argc); argv[0] is the command's own name. Options may stand anywhere, as --name VALUE or --name=VALUE;
 * behind -- there are none. The last of equal ones counts. Reorders argv's pointers. ERR_USAGE with what is near. */
enum status cli_parse(struct cli *cli, int argc, char **argv);
void cli_help(const struct cli *cli, FILE *out);
#endif
