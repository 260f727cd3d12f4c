#include "reward.h"

#include "math_answer.h"
#include "reward_command.h"
#include "sampling.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct reward {
    enum reward_kind kind;
    double wrong;             /* math: 0 or -1 */
    int64_t target_length;
    struct reward_command command;
};

enum status reward_open(struct reward **r, const struct config *c)
{
    enum status s = OK;
    *r = calloc(1, sizeof **r);
    if (!*r) return FAIL(ERR_MEMORY, "the reward");
    (*r)->kind = c->reward.kind;
    (*r)->wrong = c->reward.negative ? -1 : 0;
    (*r)->target_length = c->reward.target_length;
    if (c->reward.kind == REWARD_COMMAND)
        s = reward_command_open(&(*r)->command, c->reward.command, c->reward.timeout_s);
    if (c->reward.kind == REWARD_MATH) s = reward_lint(c->data.instruction);
    if (s) reward_close(r);
    return s;
}

void reward_close(struct reward **r)
{
    if (!*r) return;
    reward_command_close(&(*r)->command);
    free(*r);
    *r = NULL;
}

/* ---------------------------------------------------------------- kinds ------------------------------------------ */

/* A chain over the ids: no copy of them is needed. */
static double pseudo_random(const struct reward_sample *s)
{
    uint64_t h = rng_name("reward");
    for (int i = 0; i < s->n; i++) h = rng_hash((uint64_t[]){h, (uint64_t)s->ids[i]}, 2);
    return rng_unit(h);
}

static double length(const struct reward *r, const struct reward_sample *s)
{
    double share = (double)(s->n - s->n_prompt) / (double)r->target_length;
    return share < 1 ? share : 1;
}

static const char *or_empty(const char *s) { return s ? s : ""; }

static enum status math(const struct reward *r, const struct reward_sample *s, double *out)
{
    const char *response = or_empty(s->response_text), *label = or_empty(s->label);
    struct math_span answer, want;
    bool usable, found, equal = false;
    TRY(math_answer_label(label, &want, &usable));
    if (!usable)
        return FAIL(ERR_FORMAT, "reward.kind=math: the label \"%.60s\" of the prompt \"%.60s\" is no answer "
                    "(data.label_field)", label, or_empty(s->prompt_text));
    TRY(math_answer_find(response, strlen(response), &answer, &found));
    if (found) TRY(math_answer_equal(answer, want, &equal));
    *out = equal ? 1 : r->wrong;
    return OK;
}

enum status reward_score(struct reward *r, int n, const struct reward_sample *s, double *out)
{
    if (r->kind == REWARD_COMMAND) return reward_command_run(&r->command, n, s, out);
    for (int i = 0; i < n; i++) {
        if (r->kind == REWARD_MATH) TRY(math(r, &s[i], &out[i]));
        else out[i] = r->kind == REWARD_LENGTH ? length(r, &s[i]) : pseudo_random(&s[i]);
    }
    return OK;
}

enum status reward_answer(struct reward *r, const struct reward_sample *s, char **answer)
{
    const char *response = or_empty(s->response_text);
    struct math_span span;
    bool found;
    *answer = NULL;
    if (r->kind != REWARD_MATH) return OK;
    TRY(math_answer_find(response, strlen(response), &span, &found));
    if (!found) return OK;
    *answer = strndup(span.data, span.n);
    return *answer ? OK : FAIL(ERR_MEMORY, "an answer of %zu bytes", span.n);
}

/* ---------------------------------------------------------------- instruction and parser ------------------------- */

/* What an instruction may show, and an answer of 42 in that form. */
static const struct form {
    const char *shows, *example;
} forms[] = {
    {"answer:", "Answer: 42"},
    {"\\boxed", "\\boxed{42}"},
    {"\\fbox", "\\fbox{42}"},
    {"####", "#### 42"},
    {"<answer>", "<answer>42</answer>"},
    {"[answer]", "[answer]42[/answer]"},
    {"answer is", "The answer is 42."},
    {"json", "{\"answer\": 42}"},
};

static enum status lint_form(const struct form *f, const char *instruction)
{
    static const char label[] = "42";
    struct math_span answer;
    bool found, equal = false;
    TRY(math_answer_find(f->example, strlen(f->example), &answer, &found));
    if (found) TRY(math_answer_equal(answer, (struct math_span){label, sizeof label - 1}, &equal));
    if (equal) return OK;
    return FAIL(ERR_CONFIG, "data.instruction \"%.120s\" makes a model write \"%s\", where reward.kind=math finds no "
                "answer: ask for a line `Answer: N`, \\boxed{N} or #### N", instruction, f->example);
}

enum status reward_lint(const char *instruction)
{
    int shown = 0;
    if (!*instruction) return OK;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (!strcasestr(instruction, forms[i].shows)) continue;
        TRY(lint_form(&forms[i], instruction));
        shown++;
    }
    if (shown) return OK;
    return FAIL(ERR_CONFIG, "data.instruction \"%.120s\" does not say how to mark the answer for reward.kind=math: ask "
                "for a line `Answer: N`, \\boxed{N} or #### N", instruction);
}
