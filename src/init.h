/* m3 init: a random checkpoint in the release layout. */
#ifndef INIT_H
#define INIT_H
#include "tensor.h"

struct init_args {
    const char *config;      /* path of a config.json; the side files beside it come along */
    const char *dst;
    uint64_t seed;
    enum dtype dtype;        /* F32 or BF16; router gate and bias are always F32 */
    uint64_t shard_bytes;
};

/* Matrices are normal(0, initializer_range, 0.02 when config.json names none), norms and biases 0. Every number is a
 * function of (seed, tensor name, index). ERR_IO leaves nothing behind. */
enum status init_release(const struct init_args *a);
#endif
