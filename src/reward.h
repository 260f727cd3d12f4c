#ifndef REWARD_H
#define REWARD_H
#include "config.h"
struct reward;
struct reward_sample { const int32_t *ids; int n_prompt, n; const char *prompt_text, *response_text, *label; bool truncated; };
enum status reward_open(struct reward **r, const struct config *c);
void reward_close(struct reward **r);
enum status reward_score(struct reward *r, int n, const struct reward_sample *s, double *out);
enum status reward_answer(struct reward *r, const struct reward_sample *s, char **answer);
#endif
