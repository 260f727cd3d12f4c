/* Datasets: JSONL in four formats -> token sequences with loss masks (FORMATS.md, "Prompts and data").
 *
 *   tokens    {"input_ids": [...], "loss_mask": [...]}     mask absent: all but the first token are targets
 *   text      {"text": "..."}                              encoded as it is, plus the end token
 *   prompt    {"prompt": "...", "response": "..."}         targets: the response and its end token
 *   messages  {"messages": [{"role", "content"}]}          targets: every assistant turn and its end token
 *
 * prompt and messages go through the tokenizer's chat layout where it has one. Field names can be set. Rank 0 reads and
 * encodes; the others receive the tokens. */
#ifndef DATA_H
#define DATA_H
#include "batch.h"
#include "comm.h"
#include "config.h"
#include "text.h"
#include "tokenizer.h"

struct data_options {
    enum data_format format;
    enum overlong overlong;
    enum tri_state chat;     /* auto: where the tokenizer has the layout's tokens */
    int max_tokens;          /* of a sample */
    int vocab, eos_id;       /* eos_id -1: the tokenizer's end-of-turn token */
    bool append_eos;
    bool every_line;         /* every line is a sample or an error: nothing is rejected, cut or skipped */
    int64_t limit;           /* samples at most; 0: all */
    const char *prompt_field, *response_field, *text_field, *messages_field;
    const char *instruction; /* NULL or "": none */
};

struct dataset {
    int64_t n;               /* samples kept */
    int64_t *offset;         /* [n + 1] in ids and mask */
    int32_t *ids;
    uint8_t *mask;
    int64_t too_long, truncated, unsupervised; /* rejected, cut, rejected */
    int32_t longest;
};

/* Reads `path`; `tok` may be NULL for tokens. ERR_FORMAT with file and line for a bad line, ERR_FORMAT for a file
 * without any usable sample. Collective over g: only its rank 0 touches the file. */
enum status dataset_load(struct dataset *d, struct group *g, const char *path, const struct tokenizer *tok,
                         const struct data_options *o);
void dataset_free(struct dataset *d);
/* Replaces what *text holds by the prompt and, on a line of its own, the instruction. ERR_MEMORY. */
enum status data_prompt_text(struct text *text, const struct data_options *o, const char *prompt, size_t n);
/* Share of the tokens that are targets. */
double dataset_target_share(const struct dataset *d);
struct sample dataset_sample(const struct dataset *d, int64_t i);

/* The order of samples: sample number `at` of the endless stream of epochs, each a permutation of (seed, epoch) or, not
 * shuffled, the file's order. The cumulative counter is all there is to save. */
struct data_order {
    uint64_t seed;
    bool shuffle;
    int64_t n, epoch;        /* of the permutation held */
    int64_t *order;
};
enum status data_order_at(struct data_order *o, int64_t at, int64_t *sample);
void data_order_free(struct data_order *o);
#endif
