#ifndef GATE_H
#define GATE_H
#include "config.h"
struct gates { int x; };
struct gate_values { int64_t step; double ppo_kl, clip_fraction, ref_kl, grad_norm, logprob_abs_diff, mean_logprob_diff; bool trainer_old; };
enum status gates_open(struct gates *g, const struct config *c);
void gates_close(struct gates *g);
enum status gate_check(const struct gates *g, const struct gate_values *v);
#endif
