/* run.profile: the time of every op of the device, for some steps after the first one. */
#ifndef PROFILE_H
#define PROFILE_H
#include "config.h"
#include "device.h"

struct profile_run {
    int64_t done;  /* steps that this process has made */
    bool open;     /* being timed */
};

/* Between steps: starts behind the first one, and after run.profile more writes the table to run.dir/profile/ops.rankNNNN.txt
 * and, on rank 0, to the log. */
enum status profile_step(struct profile_run *p, const struct config *c, struct stream *s, int rank);
/* At the end of the run: writes what was timed, if the run ended before its table. */
enum status profile_finish(struct profile_run *p, const struct config *c, struct stream *s, int rank);

#endif
