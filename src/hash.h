/* A hash of every parameter that does not depend on the mesh: the sum, modulo 2^64, over its elements of a mix of name,
 * global index and bits. Two models are equal, bit for bit, when all sums are. Used to prove weight syncs, resumes and
 * that what is frozen stayed frozen. */
#ifndef HASH_H
#define HASH_H
#include "model.h"

/* hash[n_params] of the whole model as dtype `as` (F32 parameters of STORE_F32 stay F32), the same on every rank.
 * Collective over the mesh. */
enum status model_hash(const struct model *m, enum dtype as, uint64_t *hash);
/* The same without communication: the sum over this rank's shard; 0 where it holds nothing. */
enum status model_hash_here(const struct model *m, enum dtype as, uint64_t *hash);
/* This rank is the one of those that hold the same shard which speaks for it. */
bool param_speaker(const struct model *m, const struct param *p);
#endif
