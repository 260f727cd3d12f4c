/* m3 generate: prompts in, JSON lines out: {"prompt_ids", "ids", "logprobs", "text"}. */
#ifndef GENERATE_H
#define GENERATE_H
#include "sampling.h"
#include "status.h"

struct generate_args {
    const char *checkpoint;
    const char *prompt;      /* text, or */
    const char *prompts;     /* a JSONL file of {"prompt"} or {"messages"}, or */
    const char *tokens;      /* a JSONL file of {"input_ids"}; exactly one of the three */
    const char *out;         /* file, or NULL: standard output */
    int max_new;
    struct sampling sampling; /* temperature 0: greedy */
    bool profile;             /* print the device's time by op */
    bool ignore_eos, chat;    /* chat: render prompts through the chat layout */
    int batch;               /* sequences in flight */
    int64_t pages;           /* KV pages; 0: enough for `batch` of the longest */
    int64_t seed;
    const char *device, *dtype;
};

enum status generate_run(const struct generate_args *a);
#endif
