/* A reward by a program of the user's. It is started once for a batch, without a shell, in a process group of its own,
 * with only its three standard streams: a JSON line {"prompt", "response", "label"} a sample on stdin, and one number a
 * line expected on stdout in the same order; `nan` is no reward. What it writes on stderr is kept for the error.
 *
 * It is an error, never a reward, when the program cannot be started, does not end in time, ends with another status
 * than 0 or by a signal, prints fewer or more lines than it was given, or a line that is no finite number and not nan.
 * Whatever happened, its process group is gone afterwards. */
#ifndef REWARD_COMMAND_H
#define REWARD_COMMAND_H
#include "reward.h"

struct reward_command {
    char *line;               /* the words of argv, in place */
    char **argv;              /* NULL behind the last */
    double timeout_s;
};

/* Splits at spaces and tabs; there are no quotes. ERR_CONFIG when there is no word, or the first names (with a slash) a
 * file that cannot be executed. */
enum status reward_command_open(struct reward_command *c, const char *line, double timeout_s);
void reward_command_close(struct reward_command *c);
/* out[n]. ERR_IO: not started, too slow, dead; ERR_FORMAT: its output. The message ends with its stderr's end. */
enum status reward_command_run(const struct reward_command *c, int n, const struct reward_sample *s, double *out);
#endif
