/* m3 score: log-probs of given tokens, and on demand logits, hidden states, selections and gradients (MODEL.md's names).
 * S in a tensor's name is the line's number from 0. */
#ifndef SCORE_H
#define SCORE_H
#include "status.h"
#include <stdint.h>

struct score_args {
    const char *checkpoint, *tokens, *out;
    bool logits, selections, grads;
    int64_t micro_batch_tokens; /* sequences are packed up to that many tokens; 1: each alone */
    const char *device, *dtype; /* "auto", "cpu", "cuda"; "auto", "fp32", "bf16" */
};

/* Writes OUT (a safetensors file) whole or not at all. */
enum status score_run(const struct score_args *a);
#endif
