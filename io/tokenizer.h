/* Byte-level BPE tokenizers as Hugging Face stores them (tokenizer.json): model BPE; pre_tokenizer ByteLevel with its
 * own regular expression, or a Sequence of Split (Isolated) and ByteLevel; added tokens. Any other component, and any
 * option that would change ids, is refused by its name.
 *
 * A tokenizer is immutable: any number of threads may use one at the same time. */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "bpe.h"
#include "text.h"

struct tokenizer;

/* Reads a file, or `len` bytes of JSON that messages call `origin`. Owned by the caller. ERR_IO; ERR_FORMAT with file
 * and reason: JSON that is broken, a component that is not supported, two tokens with one id, a merge of unknown
 * tokens, a byte without a token. */
enum status tokenizer_open(struct tokenizer **t, const char *path);
enum status tokenizer_parse(struct tokenizer **t, const char *json, size_t len, const char *origin);
/* Frees and sets *t to NULL; NULL is fine. */
void tokenizer_close(struct tokenizer **t);

/* Appends the ids of `text`, of any bytes: a byte that belongs to no UTF-8 character becomes its byte token, and pieces
 * end at it. allow_special = true is for templates: added tokens are found first, at each place the longest.
 * allow_special = false is for what users and models write: no added token is ever produced, its spelling is text.
 * On failure `out` is as it was. ERR_FORMAT when a pattern gives up on the text, ERR_MEMORY. */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool allow_special,
                             struct ids *out);

/* Appends the text of ids as UTF-8: U+FFFD stands for each sequence of bytes that is no character, as Hugging Face does
 * it. skip_special leaves out added tokens marked special. An id that has no token (a padded vocabulary) is nothing. */
enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                             struct text *out);
/* The same with the bytes as they are: what tokenizer_encode was given, always. */
enum status tokenizer_decode_bytes(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                   struct text *out);

/* The id of an added token by its content or of a vocabulary entry by its spelling in the file; -1 when absent. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);
/* The largest id + 1. */
int64_t tokenizer_vocab(const struct tokenizer *t);
/* Whether the id is an added token marked special. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
#endif
