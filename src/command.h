/* The subcommands: argv in, a status out. argv[0] is the subcommand's name. `m3 NAME --help` describes each. */
#ifndef COMMAND_H
#define COMMAND_H
#include "status.h"

struct command {
    const char *name;
    enum status (*run)(int argc, char **argv);
    const char *about;
};
extern const struct command commands[];
extern const int n_commands;

enum status command_init(int argc, char **argv);
enum status command_train(int argc, char **argv);
enum status command_score(int argc, char **argv);
enum status command_generate(int argc, char **argv);
enum status command_export(int argc, char **argv);
enum status command_convert(int argc, char **argv);
enum status command_inspect(int argc, char **argv);
enum status command_bench(int argc, char **argv);
enum status command_report(int argc, char **argv);
#endif
