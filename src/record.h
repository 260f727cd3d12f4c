/* Rollout records: RUN/rollouts/step_00000010.jsonl, one sample a line, written by rank 0 as .tmp and renamed; and their
 * way back, for training from recorded rollouts (train.replay).
 *
 *   {"step", "version", "prompt_index", "draw", "sample", "prompt", "label", "response", "answer", "finish", "reward",
 *    "unshaped_reward", "advantage", "dropped", "logprob_gap", "prompt_ids", "response_ids", "logprobs"} */
#ifndef RECORD_H
#define RECORD_H
#include "experience.h"

struct record_context {
    const char *run_dir;
    int64_t step, version;       /* of the weights that generated */
    const struct prompts *prompts; /* NULL: replayed, texts are the record's own */
    const struct tokenizer *tok; /* NULL: no texts */
    char *const *answer;         /* [n] what the reward took for the answer; entries may be NULL */
};
/* Rank 0 only. ERR_IO. */
enum status record_write(const struct record_context *c, const struct experience *e);

/* A file of records, or a folder of step files in order, read line by line. */
struct record_reader;
/* ERR_IO, ERR_FORMAT. Rank 0 only. */
enum status record_open(struct record_reader **r, const char *path);
void record_close(struct record_reader **r);
/* The next n samples into e (prompts, responses, log-probs, rewards, draws); every group of e->group lines must share a
 * draw, every response must be what the tokenizer makes of its text back again (`tok`, may be NULL) and every id must be
 * below vocab. ERR_FORMAT with file and line; ERR_FORMAT at the end of the records. Rank 0 only. */
enum status record_read(struct record_reader *r, struct experience *e, int n, const struct tokenizer *tok, int vocab);
/* Passes over n samples (resume). */
enum status record_skip(struct record_reader *r, int64_t n);
#endif
