/* A checkpoint by path: a release folder, an HDF5 checkpoint folder, or a run folder (its newest complete checkpoint;
 * PATH@10 names a step). Opened first for its architecture, then for its weights. */
#ifndef SOURCE_H
#define SOURCE_H
#include "model.h"

struct release;

struct source {
    char *dir;               /* the folder that holds the weights */
    struct release *release; /* NULL: HDF5 */
    char *origin;            /* the release it all started from: config.json, side files, passed tensors */
    char *tokenizer;         /* path of a tokenizer.json, or NULL */
    struct arch arch;
};

/* ERR_IO or ERR_FORMAT naming the path and why it is none of the three. */
enum status source_open(struct source *s, const char *path);
void source_close(struct source *s);
/* Names and shapes against the table; then the weights into this rank's shards. */
enum status source_load(const struct source *s, struct model *m);
#endif
