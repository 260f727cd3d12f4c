/* m3 export: a release folder from a checkpoint. */
#ifndef EXPORT_H
#define EXPORT_H
#include "status.h"
#include <stdint.h>

/* Writes DST: every language-model tensor of the checkpoint under the release's names, one an expert, with the dtype
 * that the source release stores it in (bfloat16 for a quantised one); vision, projector and MTP tensors of the source byte
 * for byte; config.json and the side files. Without the source release the checkpoint's own dtypes stand and nothing is
 * passed through, with a warning. `path` is a checkpoint or a run folder. ERR_IO leaves nothing behind. */
enum status export_release(const char *path, const char *dst, uint64_t shard_bytes);
#endif
