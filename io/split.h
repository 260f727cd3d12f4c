/* Pre-tokenisation: text cut into pieces by a regular expression, as Hugging Face's Split with behavior Isolated: each
 * match is a piece, and so is what lies between two matches.
 *
 * Patterns are written for Oniguruma and run by PCRE2. What differs is rewritten (\s, $) or refused (sets inside sets,
 * intersections). Three well-known patterns have a hand-written scanner for ASCII; where it meets another character it
 * hands the piece to the regular expression. */
#ifndef SPLIT_H
#define SPLIT_H
#include "status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

extern const char SPLIT_GPT2[], SPLIT_GPT4[], SPLIT_O200K[];

enum split_known { SPLIT_OTHER, SPLIT_IS_GPT2, SPLIT_IS_GPT4, SPLIT_IS_O200K };

struct split {
    pcre2_code *code;
    enum split_known known;
};

/* What a thread needs to match: one for any number of patterns, in one call at a time. */
struct split_work {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Compiles a pattern (literal: a plain string). ERR_FORMAT with the reason and its place in the pattern. */
enum status split_init(struct split *p, const char *pattern, bool literal);
void split_free(struct split *p);
enum status split_work_init(struct split_work *w);
void split_work_free(struct split_work *w);

/* The walk over one text: valid UTF-8, borrowed. */
struct split_walk {
    const struct split *p;
    const struct split_work *w;
    const char *text;
    size_t len, at;
    size_t search, from, to; /* where the next search starts; the match that was found and not yet handed out */
    bool held;
};
static inline struct split_walk split_start(const struct split *p, const struct split_work *w, const char *text,
                                            size_t len)
{
    return (struct split_walk){.p = p, .w = w, .text = text, .len = len};
}
/* The next piece text[*from, *to), never empty; *to = *from at the end. The pieces joined are the text. ERR_FORMAT when
 * the pattern gives up on the text (a limit on backtracking). */
enum status split_next(struct split_walk *walk, size_t *from, size_t *to);

/* The end of the piece at text[at], at < len, of a known pattern; 0 when a character that is not ASCII decides. */
size_t split_scan(enum split_known known, const char *text, size_t len, size_t at);
#endif
