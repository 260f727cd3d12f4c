/* m3 convert: a release to a release. Layers are cut and renumbered, quantised weights decoded to bfloat16, everything
 * else passes byte for byte.
 *
 * Memory is a few buffers, whatever the size. DST is built as DST.tmp: each shard is written beside, synced, renamed and
 * then recorded with a checksum, so that the same command after a kill keeps what is proven finished; the folder gets
 * its name when everything is there and opens as a release. Ranks split the shards; reading and decoding overlap writing. */
#ifndef CONVERT_H
#define CONVERT_H
#include "status.h"
#include <stdint.h>

struct group;

struct convert_args {
    const char *src, *dst;
    const int *layers;       /* chosen layers, increasing; NULL: all */
    int n_layers;
    bool keep;               /* --dtype keep: stored forms and dtypes stay; else floating language-model tensors become BF16,
                                but for the router's gate and bias */
    uint64_t shard_bytes;    /* of data in a shard; 0: 5 GB */
    bool verify;             /* read everything back and compare it with the source */
    bool dense_attention;    /* sparse layers without index tensors become dense ones, instead of being refused */
    struct group *world;     /* ranks that share the work; NULL: this process alone. The watchdog must be off: ranks finish
                                at different times. */
    void (*each_shard)(void *ctx, int shard, int n_shards); /* after each finished shard, on the writing thread; or NULL */
    void *ctx;
};

/* ERR_USAGE for a layer list that does not fit; ERR_IO for a destination that exists, a full disk (checked before the
 * first byte) or a failing one; ERR_FORMAT for a release that is not what it should be. After a failure DST does not
 * exist; DST.tmp keeps the finished shards. *Collective over world.* */
enum status convert_release(const struct convert_args *a);
#endif
