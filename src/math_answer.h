/* Answers in generated text: where the answer is, and whether two answers are the same.
 *
 * The text behind the last </think> or </mm:think> counts, all of it where there is none. In it, candidates are
 *     an `Answer:` line          the rest of the line; any case, `**Answer**:` and `Final answer:` too
 *     \boxed{x}                  with matching braces; one that is not closed is no candidate
 *     #### x                     the rest of the line
 * and the one that starts last is the answer, also when it is empty. Because #### begins a heading in Markdown, such a
 * line counts only with a number behind it, or where there is no other candidate.
 *
 * Both sides are made plain (math_plain.h). When both are numbers (math_number.h), with a unit or without, their exact
 * values are compared; else their bytes, without spaces that separate nothing. What cannot be read -- nothing at all,
 * braces that do not match, a division by zero -- never equals anything, not even itself.
 *
 * Time is linear in the text, whatever it holds. */
#ifndef MATH_ANSWER_H
#define MATH_ANSWER_H
#include "status.h"

struct math_span {
    const char *data;        /* borrowed */
    size_t n;
};

/* The answer in a response, without the spaces around it; *found is false when it has none. ERR_MEMORY. */
enum status math_answer_find(const char *text, size_t n, struct math_span *answer, bool *found);
/* ERR_MEMORY. */
enum status math_answer_equal(struct math_span a, struct math_span b, bool *equal);
/* What a label stands for: the answer in it when it is a worked solution (GSM8K's "... #### 72"), else all of it.
 * *usable is false when it could not equal anything. ERR_MEMORY. */
enum status math_answer_label(const char *label, struct math_span *answer, bool *usable);
#endif
