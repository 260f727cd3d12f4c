#include "gate.h"

enum status gates_open(struct gates *g, const struct config *c) { (void)g; (void)c; return OK; }
void gates_close(struct gates *g) { (void)g; }
enum status gate_check(const struct gates *g, const struct gate_values *v) { (void)g; (void)v; return OK; }
