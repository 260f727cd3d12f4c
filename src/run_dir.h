/* The run folder: config.used.yaml, metrics.jsonl, log.txt and log.rankNNNN.txt, checkpoints/, stop. */
#ifndef RUN_DIR_H
#define RUN_DIR_H
#include "comm.h"
#include "config.h"

struct metrics;

/* Makes the folder, opens the logs, compares with the configuration that was used there before (shown as a diff and
 * refused unless only keys that may change did), writes config.used.yaml back. *text is the configuration as written,
 * `fresh` first renames an old folder to DIR.1, DIR.2, ... *resume the newest complete checkpoint or NULL; both the caller's. Collective over world. */
enum status run_dir_open(const struct config *c, struct group *world, bool fresh, char **text, char **resume);
/* Rank 0's metrics file, cut behind `step` (the lines beyond it move to metrics.discarded.jsonl); others: no file. */
enum status run_dir_metrics(const struct config *c, struct group *world, int64_t step, struct metrics **m);

/* Threads for the CPU kernels of one rank: the cores this process may use over the ranks of the host. */
int run_threads(int local_ranks);

/* Signals and the stop file. SIGTERM, SIGUSR1 and SIGINT ask for a stop; a second SIGINT ends the process at once. */
void stop_install(const char *run_dir);
/* This rank was asked. */
bool stop_requested(void);
/* Some rank was asked: the same answer everywhere. Collective over g. */
enum status stop_agreed(struct group *g, bool *stop);
#endif
