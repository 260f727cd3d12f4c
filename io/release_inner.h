/* What the files of struct release share: release.c opens, release_quant.c decides how tensors are stored, release_read.c
 * reads, release_side.c copies files. Not for others. */
#ifndef RELEASE_INNER_H
#define RELEASE_INNER_H
#include "release.h"

enum { RELEASE_JSON_MAX = 100 << 20 };

/* Fills r->tensors from r->raw: names, storage forms, scales; checks shapes, and each module against the map. */
enum status release_resolve(struct release *r);
/* Every module that the map names must exist. Needs sorted tensors. */
enum status release_check_map(const struct release *r);
#endif
