/* Rewards of generated responses, by config `reward.kind`:
 *
 *   pseudo_random  a hash of all of the sample's token ids, in [0, 1)
 *   math           1 when the answer in the response equals the label (math_answer.h), else 0 (reward.negative: -1)
 *   length         tokens of the response / reward.target_length, at most 1
 *   command        what the user's program says (reward_command.h); NaN drops the sample
 *
 * Rank 0 alone has one; nothing here is collective. */
#ifndef REWARD_H
#define REWARD_H
#include "config.h"

struct reward;

/* Everything is borrowed. Texts may hold any bytes; NULL counts as "". */
struct reward_sample {
    const int32_t *ids;        /* [n] prompt, then response */
    int n_prompt, n;
    const char *prompt_text, *response_text, *label;
    bool truncated;            /* the response hit rollout.max_new_tokens */
};

/* ERR_CONFIG: a command line without a program, or data.instruction and reward.kind=math disagree (reward_lint()). */
enum status reward_open(struct reward **r, const struct config *c);
void reward_close(struct reward **r);
/* out[n]: a number or NaN each. ERR_FORMAT: math with a sample whose label could never be right; and what
 * reward_command_run() returns. */
enum status reward_score(struct reward *r, int n, const struct reward_sample *s, double *out);
/* What counted as the answer, a string of the caller's; NULL when there was none or the kind has none. ERR_MEMORY. */
enum status reward_answer(struct reward *r, const struct reward_sample *s, char **answer);

/* Whether the parser of `math` finds an answer that is written as `instruction` asks. Each form that the instruction
 * shows ("Answer: N", "\boxed{}", "#### N", or a tag like <answer>) is filled with an example and parsed. ERR_CONFIG
 * when it shows none, or shows one that is not found. "" (no instruction) is fine. */
enum status reward_lint(const char *instruction);
#endif
