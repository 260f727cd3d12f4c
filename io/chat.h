/* The chat layout of MiniMax-M3: messages -> token ids and a loss mask.
 *
 *   ]~!b[]~b]system\n...[e~[\n]~b]user\n...[e~[\n]~b]ai\n</mm:think>...[e~[\n
 *
 * Every id comes from the tokenizer's file by the token's spelling; <mm:think> or, where the file has none, <think>.
 *
 * Thinking follows the released template. A turn of the assistant that thinks is <mm:think>thoughts</mm:think>answer;
 * one that does not is </mm:think>answer: the lone closing token is "no thoughts". The mode decides how a generation
 * prompt ends:
 *   disabled   ]~b]ai\n</mm:think>   the answer starts at once
 *   enabled    ]~b]ai\n<mm:think>    the thoughts start at once
 *   adaptive   ]~b]ai\n              the model writes one of the two tokens itself
 *
 * Content never makes a special token: its spelling stays text. The one exception is the assistant's own turn when its
 * content starts with a think block, in either spelling: it is split into thoughts and answer, newlines around both
 * dropped. */
#ifndef CHAT_H
#define CHAT_H
#include "tokenizer.h"

enum chat_thinking { CHAT_THINKING_DISABLED, CHAT_THINKING_ENABLED, CHAT_THINKING_ADAPTIVE };

/* role: "system", "developer", "user", "assistant" (or "ai"). content: `len` bytes, borrowed. */
struct chat_message {
    const char *role, *content;
    size_t len;
};

/* The tokens of the layout. */
struct chat_tokens {
    int32_t begin, role, end, think, think_end; /* ]~!b[  ]~b]  [e~[  <mm:think>  </mm:think> */
};
/* ERR_FORMAT with the name of a token that the tokenizer lacks. */
enum status chat_tokens_find(const struct tokenizer *t, struct chat_tokens *k);

/* Appends n >= 1 messages, then with `generation_prompt` the head of the next assistant turn, to `ids`, and one entry a
 * token to `mask`: 1 for what the model writes itself (of every assistant turn the thoughts, the answer and [e~[; in
 * mode adaptive also the think token that opens the turn), 0 for everything else. On failure both are as they were.
 * ERR_FORMAT: an unknown role, a missing token. */
enum status chat_render(const struct tokenizer *t, const struct chat_message *m, int n, enum chat_thinking mode,
                        bool generation_prompt, struct ids *ids, struct ids *mask);
#endif
