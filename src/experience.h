/* Experience: what one rollout of a step produced, sample by sample, on every rank. Prompts come from a dataset of
 * prompts with labels; responses, their log-probs, rewards and advantages are filled in stage by stage.
 *
 * Every array is indexed by the sample's number in the step, prompt-major: sample = prompt * samples_per_prompt + j. */
#ifndef EXPERIENCE_H
#define EXPERIENCE_H
#include "batch.h"
#include "comm.h"
#include "data.h"
#include "rollout.h"

/* A dataset of prompts: token ids on every rank, label and text on rank 0. */
struct prompts {
    int64_t n;
    int64_t *offset;         /* [n + 1] in ids */
    int32_t *ids;
    int32_t longest;
    char **label, **text;    /* [n] rank 0; text is what the user wrote, before the chat layout */
};

/* JSONL of {"prompt", "label"}, {"messages", "label"} or {"input_ids", "label"}; a prompt goes through the chat layout,
 * with the start of the assistant's turn, where o->chat says so. Prompts over `max_prompt` tokens are counted in
 * *too_long and left out. Collective over g. */
enum status prompts_load(struct prompts *p, struct group *g, const char *path, const struct tokenizer *tok,
                         const struct data_options *o, const char *label_field, int max_prompt, int64_t *too_long);
void prompts_free(struct prompts *p);

struct experience {
    int capacity, n;         /* samples there is room for; of this step */
    int group;               /* samples of a prompt */
    int32_t max_prompt, max_new;
    int64_t *prompt;         /* [n] number of the prompt in the dataset */
    uint64_t *draw;          /* [n] number of the prompt in the endless order: key of its random draws */
    int32_t *n_prompt, *n_new; /* [n] */
    int32_t *finish;         /* [n] enum finish */
    int32_t *ids;            /* [n, max_prompt + max_new] prompt and response */
    uint8_t *mask;           /* [n, max_prompt + max_new] 1 on the response */
    float *rollout;          /* [n, max_new] log-prob of each response token when it was drawn */
    float *old, *ref;        /* [n, max_new] the trainer's before the first update; the reference's */
    double *reward, *unshaped; /* [n] */
    double *advantage;       /* [n] */
    bool *dropped;           /* [n] counts nowhere: NaN reward, masked truncation */
    double *gap;             /* [n] mean |old - rollout|, where it is known; summed over ranks on demand */
    int16_t *experts;        /* [n, max_prompt + max_new, moe layers, k] of routing replay, or NULL */
    int moe_layers, k;
};

enum status experience_create(struct experience *e, int capacity, int max_prompt, int max_new, int moe_layers, int k);
/* What it allocates. For planning. */
int64_t experience_bytes(int64_t capacity, int64_t max_prompt, int64_t max_new, int64_t moe_layers, int64_t k);
void experience_free(struct experience *e);
static inline int32_t *experience_ids(const struct experience *e, int i)
{
    return e->ids + (int64_t)i * (e->max_prompt + e->max_new);
}
/* As a training sample. */
struct sample experience_sample(const struct experience *e, int i);
/* Responses that other ranks generated: sample i was made by the ranks of dp coordinate owner[i]. Collective over g, the
 * rollout mesh's dp group. */
enum status experience_share(struct experience *e, struct group *g, const int *owner);
#endif
