/* The line that a person watches: rewritten in place on a terminal, a plain log line every few steps elsewhere. */
#ifndef PROGRESS_H
#define PROGRESS_H
#include "config.h"

struct progress {
    enum progress_kind kind;  /* line or plain, once opened */
    int64_t every;            /* plain: steps between lines */
    int64_t first, total;     /* steps done at the start, and in all */
    double start, last;       /* seconds on the monotonic clock: opened, last drawn */
    bool drawn;               /* a line stands on the terminal without its end */
};

/* What the line shows; NAN: not there. */
struct progress_view {
    int64_t step, total;
    double loss, eval_loss, reward, grad_norm, tokens_per_s, eta_s;
};

void progress_open(struct progress *p, enum progress_kind kind, int64_t every, int64_t first, int64_t total);
/* Shows the state after a step, if it is time for that. */
void progress_show(struct progress *p, struct progress_view v);
/* Ends the line on the terminal, so that other output can follow. */
void progress_close(struct progress *p);

/* The text itself: whole items as far as `width` columns hold them, the most important first. Returns its length. */
int progress_text(char *text, size_t size, int width, const struct progress_view *v);
/* "3s", "4m05s", "2h03m", "5d07h". */
const char *progress_duration(char text[32], double seconds);
#endif
