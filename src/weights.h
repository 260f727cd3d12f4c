/* Weights from a release folder into the parameter table's shards. Each rank reads just the rectangles that it holds;
 * quantised tensors are decoded on the way. The release is proven whole, and its names are compared with the table,
 * before anything is allocated. */
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "model.h"
#include "release.h"

/* Names of the table against the release's: counts and first names of what is missing or unknown. */
enum status weights_check(const struct model *m, const struct release *r);
/* Fills all parameters of this rank. model_alloc() must have run. */
enum status weights_load(struct model *m, const struct release *r);
#endif
