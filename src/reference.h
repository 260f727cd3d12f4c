/* The reference model of the KL term: the weights that the run started from, on the training mesh. They stay in host
 * memory; where the ops compute elsewhere, one layer at a time passes through a staging area there. */
#ifndef REFERENCE_H
#define REFERENCE_H
#include "pipeline.h"
#include "source.h"

struct reference {
    struct model m;               /* layers: views of host memory, or of the staging area once fetched */
    struct model *trained;
    struct layer *host;           /* [n_layers] views of host memory; NULL where the ops compute there */
    struct tensor whole[3];       /* embedding, final norm, head, in host memory */
    struct arena staging;
};

/* Collective over the mesh of `trained`. */
enum status reference_open(struct reference *r, const struct source *s, struct model *trained);
/* What it will take: staging where the ops compute elsewhere than in host memory, and the kept weights. For planning, over
 * ops whose memory is address space only. */
enum status reference_bytes(const struct model *trained, int64_t *staging, int64_t *kept);
void reference_close(struct reference *r);
/* Forward of all micro-batches with the reference's weights through the trainer's pipeline. Collective over the mesh. */
enum status reference_run(struct reference *r, struct pipeline *p, const struct batch *b, const struct objective *o);
#endif
