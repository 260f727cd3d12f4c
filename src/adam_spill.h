/* Adam state that is streamed: a ring of ADAM_RING bucket buffers over the node's spill file (io/spill.h).
 *
 *     I/O thread    read i+1 ............ | write i-1 ......      order of the queue: read i+1, write i, read i+2, ...
 *     here          wait read i, update i | gather the weights of i
 *
 * Where the ops compute on a device a bucket moves disk, pinned host, device and back. Memory is the ring, however large
 * the state is. Before the first update nothing is on disk: a bucket's master is its weights and its moments are 0, made
 * in the buffer, so that the first update only writes. */
#ifndef ADAM_SPILL_H
#define ADAM_SPILL_H
#include "model.h"

enum { ADAM_RING = 3, ADAM_KINDS = 3 }; /* master, exp_avg, exp_avg_sq */

struct adam_spill;

/* Bytes of the ring for buckets of `most` elements, one of its copies. */
int64_t adam_ring_bytes(int64_t most, enum dtype moments);

/* elements[m->n_buckets]: this rank's share of each. `dir` is local disk, `run` names the file. ERR_IO with bytes needed
 * and free where the disk is too small. Collective over the world. */
enum status adam_spill_create(struct adam_spill **s, struct model *m, enum dtype moments, const char *dir, const char *run,
                              const int64_t *elements);
void adam_spill_destroy(struct adam_spill **s);
/* Forgets the state: the next update starts from the weights. */
void adam_spill_reset(struct adam_spill *s);

/* A pass over all buckets in order: begin, then for each bucket take and put. take() returns views at ops->place of the
 * bucket's three arrays, filled from disk; put() sends them back and starts the next read. */
enum status adam_spill_begin(struct adam_spill *s);
enum status adam_spill_take(struct adam_spill *s, int bucket, struct tensor kind[ADAM_KINDS]);
enum status adam_spill_put(struct adam_spill *s, int bucket);
enum status adam_spill_end(struct adam_spill *s);

/* One array of one bucket by itself, in host memory, for checkpoints: valid until the next call. load() fills a buffer
 * and stores it: get it with room(), write into it, then store(). */
enum status adam_spill_fetch(struct adam_spill *s, int kind, int bucket, struct tensor *host);
enum status adam_spill_room(struct adam_spill *s, int kind, int bucket, struct tensor *host);
enum status adam_spill_store(struct adam_spill *s, int kind, int bucket);

size_t adam_spill_bytes(const struct adam_spill *s);
/* Bytes moved since the start. */
void adam_spill_moved(struct adam_spill *s, int64_t *read, int64_t *written);
#endif
