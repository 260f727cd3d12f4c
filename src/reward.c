#include "reward.h"
#include "sampling.h"
#include <string.h>
#include <stdlib.h>
struct reward { int kind; };
enum status reward_open(struct reward **r, const struct config *c) { (void)c; *r = calloc(1, 8); return OK; }
void reward_close(struct reward **r) { free(*r); *r = NULL; }
enum status reward_score(struct reward *r, int n, const struct reward_sample *s, double *out)
{ (void)r; for (int i = 0; i < n; i++) { uint64_t h = 7; for (int j = 0; j < s[i].n; j++) h = h * 31 + (uint64_t)s[i].ids[j]; out[i] = rng_unit(rng_hash(&h, 1)); 
  if (s[i].label && *s[i].label) { char t[64]; snprintf(t, 64, "%s", s[i].response_text); char *e = strchr(t, '\n'); if (e) *e = 0; out[i] = strcmp(t, s[i].label) == 0; } } return OK; }
enum status reward_answer(struct reward *r, const struct reward_sample *s, char **a) { (void)r; *a = strdup(s->response_text); return OK; }
