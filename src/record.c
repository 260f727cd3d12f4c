#include "record.h"

#include "json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINE = 64 << 20, MAX_PATH = 4096 };

/* ---------------------------------------------------------------- writing ---------------------------------------- */

static json_t *ids_json(const int32_t *ids, int32_t n)
{
    json_t *a = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(a, json_integer(ids[i]));
    return a;
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static enum status put_text(json_t *o, const char *name, const struct tokenizer *tok, const int32_t *ids, int32_t n)
{
    struct text text = {0};
    if (!tok) return OK;
    TRY(tokenizer_decode(tok, ids, (size_t)n, false, &text));
    json_object_set_new(o, name, json_stringn(text.data ? text.data : "", text.n));
    text_free(&text);
    return OK;
}

static enum status write_sample(FILE *f, const struct record_context *c, const struct experience *e, int i)
{
    const int32_t *ids = experience_ids(e, i);
    json_t *o = json_object(), *logprobs = json_array();
    for (int32_t t = 0; t < e->n_new[i]; t++)
        json_array_append_new(logprobs, json_real((double)e->rollout[(int64_t)i * e->max_new + t]));
    json_object_set_new(o, "step", json_integer(c->step));
    json_object_set_new(o, "version", json_integer(c->version));
    json_object_set_new(o, "prompt_index", json_integer(e->prompt[i]));
    json_object_set_new(o, "draw", json_integer((json_int_t)e->draw[i]));
    json_object_set_new(o, "sample", json_integer(i % e->group));
    if (c->prompts) {
        json_object_set_new(o, "prompt", json_string(c->prompts->text[e->prompt[i]]));
        json_object_set_new(o, "label", json_string(c->prompts->label[e->prompt[i]]));
    } else {
        TRY(put_text(o, "prompt", c->tok, ids, e->n_prompt[i]));
    }
    TRY(put_text(o, "response", c->tok, ids + e->n_prompt[i], e->n_new[i]));
    json_object_set_new(o, "answer", c->answer && c->answer[i] ? json_string(c->answer[i]) : json_null());
    json_object_set_new(o, "finish", json_string(e->finish[i] == FINISH_STOP ? "stop" : "length"));
    json_object_set_new(o, "reward", number(e->reward[i]));
    json_object_set_new(o, "unshaped_reward", number(e->unshaped[i]));
    json_object_set_new(o, "advantage", number(e->advantage[i]));
    json_object_set_new(o, "dropped", json_boolean(e->dropped[i]));
    json_object_set_new(o, "logprob_gap", number(e->gap[i]));
    json_object_set_new(o, "prompt_ids", ids_json(ids, e->n_prompt[i]));
    json_object_set_new(o, "response_ids", ids_json(ids + e->n_prompt[i], e->n_new[i]));
    json_object_set_new(o, "logprobs", logprobs);
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (!line) return FAIL(ERR_MEMORY, "the record of sample %d", i);
    bool ok = fprintf(f, "%s\n", line) > 0;
    free(line);
    return ok ? OK : FAIL(ERR_IO, "%s", strerror(errno));
}

enum status record_write(const struct record_context *c, const struct experience *e)
{
    char dir[MAX_PATH - 64], path[MAX_PATH], tmp[MAX_PATH + 8];
    snprintf(dir, sizeof dir, "%s/rollouts", c->run_dir);
    snprintf(path, sizeof path, "%s/step_%08" PRId64 ".jsonl", dir, c->step);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) return FAIL(ERR_IO, "%s: %s", dir, strerror(errno));
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) return FAIL(ERR_IO, "%s: %s", tmp, strerror(errno));
    enum status s = OK;
    for (int i = 0; i < e->n && !s; i++) s = write_sample(f, c, e, i);
    if (!s && fflush(f) != 0) s = FAIL(ERR_IO, "%s", strerror(errno));
    if (fclose(f) != 0 && !s) s = FAIL(ERR_IO, "%s", strerror(errno));
    if (!s && rename(tmp, path) != 0) s = FAIL(ERR_IO, "%s", strerror(errno));
    if (s) {
        unlink(tmp);
        status_prefix(s, "%s", path);
    }
    return s;
}

/* ---------------------------------------------------------------- reading ---------------------------------------- */

struct record_reader {
    char **file;              /* [files] in order */
    int files, next;          /* next to be opened */
    FILE *f;
    int64_t number;           /* line of file[next - 1] */
    char *line;
    size_t cap;
};

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static enum status add_file(struct record_reader *r, const char *dir, const char *name)
{
    char path[MAX_PATH];
    char **grown = realloc(r->file, (size_t)(r->files + 1) * sizeof *grown);
    if (!grown) return FAIL(ERR_MEMORY, "%d record files", r->files);
    r->file = grown;
    if (snprintf(path, sizeof path, "%s%s%s", dir, *name ? "/" : "", name) >= (int)sizeof path)
        return FAIL(ERR_IO, "%s: the path is too long", dir);
    r->file[r->files] = strdup(path);
    if (!r->file[r->files]) return FAIL(ERR_MEMORY, "a path");
    r->files++;
    return OK;
}

static enum status list_files(struct record_reader *r, const char *path)
{
    DIR *d = opendir(path);
    if (!d && errno == ENOTDIR) return add_file(r, path, "");
    if (!d) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    enum status s = OK;
    struct dirent *entry;
    while (!s && (entry = readdir(d))) {
        size_t len = strlen(entry->d_name);
        if (len > 6 && strcmp(entry->d_name + len - 6, ".jsonl") == 0) s = add_file(r, path, entry->d_name);
    }
    closedir(d);
    if (!s && r->files == 0) s = FAIL(ERR_IO, "%s: no .jsonl file", path);
    if (!s) qsort(r->file, (size_t)r->files, sizeof *r->file, by_name);
    return s;
}

enum status record_open(struct record_reader **r, const char *path)
{
    *r = calloc(1, sizeof **r);
    if (!*r) return FAIL(ERR_MEMORY, "a reader of records");
    enum status s = list_files(*r, path);
    if (s) record_close(r);
    return s;
}

void record_close(struct record_reader **r)
{
    if (!*r) return;
    for (int i = 0; i < (*r)->files; i++) free((*r)->file[i]);
    if ((*r)->f) fclose((*r)->f);
    free((*r)->file);
    free((*r)->line);
    free(*r);
    *r = NULL;
}

/* The next line that is not empty. ERR_FORMAT behind the last. */
static enum status next_line(struct record_reader *r, size_t *length)
{
    for (;;) {
        if (!r->f) {
            if (r->next == r->files) return FAIL(ERR_FORMAT, "%s: the records end here", r->file[r->files - 1]);
            r->f = fopen(r->file[r->next], "re");
            r->number = 0;
            if (!r->f) return FAIL(ERR_IO, "%s: %s", r->file[r->next], strerror(errno));
            r->next++;
        }
        ssize_t n = getline(&r->line, &r->cap, r->f);
        if (n < 0) {
            bool bad = ferror(r->f);
            fclose(r->f);
            r->f = NULL;
            if (bad) return FAIL(ERR_IO, "%s: %s", r->file[r->next - 1], strerror(errno));
            continue;
        }
        r->number++;
        while (n > 0 && strchr("\r\n \t", r->line[n - 1])) n--;
        if (n > MAX_LINE) return FAIL(ERR_FORMAT, "%s:%" PRId64 ": a line of %zd bytes", r->file[r->next - 1], r->number, n);
        *length = (size_t)n;
        if (n > 0) return OK;
    }
}

static enum status read_ids(const json_t *list, const char *name, int32_t *out, int32_t room, int vocab, int32_t *n)
{
    if (!json_is_array(list) || json_array_size(list) == 0) return FAIL(ERR_FORMAT, "\"%s\" is no list of token ids", name);
    if (json_array_size(list) > (size_t)room)
        return FAIL(ERR_FORMAT, "\"%s\" has %zu tokens, the run has room for %d", name, json_array_size(list), room);
    *n = (int32_t)json_array_size(list);
    for (int32_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return FAIL(ERR_FORMAT, "%s[%d] is no token id below the vocabulary's %d", name, i, vocab);
        out[i] = (int32_t)json_integer_value(v);
    }
    return OK;
}

/* The recorded text must be what the tokenizer makes of the recorded tokens: records of another tokenizer are refused. */
static enum status check_text(const struct tokenizer *tok, const int32_t *ids, int32_t n, const json_t *recorded)
{
    struct text text = {0};
    if (!tok || !json_is_string(recorded)) return OK;
    enum status s = tokenizer_decode(tok, ids, (size_t)n, false, &text);
    if (!s && (text.n != json_string_length(recorded) || memcmp(text.data, json_string_value(recorded), text.n) != 0))
        s = FAIL(ERR_FORMAT, "response_ids are not the tokens of the recorded response: another tokenizer's record?");
    text_free(&text);
    return s;
}

static enum status read_sample(const json_t *o, struct experience *e, int i, const struct tokenizer *tok, int vocab)
{
    int32_t *ids = experience_ids(e, i);
    const json_t *draw = json_object_get(o, "draw"), *prompt = json_object_get(o, "prompt_index");
    const json_t *reward = json_object_get(o, "unshaped_reward"), *logprobs = json_object_get(o, "logprobs");
    TRY(read_ids(json_object_get(o, "prompt_ids"), "prompt_ids", ids, e->max_prompt, vocab, &e->n_prompt[i]));
    TRY(read_ids(json_object_get(o, "response_ids"), "response_ids", ids + e->n_prompt[i], e->max_new, vocab,
                 &e->n_new[i]));
    TRY(check_text(tok, ids + e->n_prompt[i], e->n_new[i], json_object_get(o, "response")));
    if (!json_is_integer(draw)) return FAIL(ERR_FORMAT, "no integer \"draw\"");
    e->draw[i] = (uint64_t)json_integer_value(draw);
    e->prompt[i] = json_is_integer(prompt) ? json_integer_value(prompt) : 0;
    if (i % e->group && e->draw[i] != e->draw[i - 1])
        return FAIL(ERR_FORMAT, "sample %d of its group has draw %" PRIu64 ", the one before %" PRIu64
                    ": rollout.samples_per_prompt=%d is not the record's", i % e->group, e->draw[i], e->draw[i - 1], e->group);
    if (!json_is_number(reward) && !json_is_null(reward)) return FAIL(ERR_FORMAT, "no number \"unshaped_reward\"");
    e->unshaped[i] = json_is_number(reward) ? json_number_value(reward) : NAN;
    if (!json_is_array(logprobs) || json_array_size(logprobs) != (size_t)e->n_new[i])
        return FAIL(ERR_FORMAT, "%zu logprobs for %d response_ids", json_array_size(logprobs), e->n_new[i]);
    for (int32_t t = 0; t < e->n_new[i]; t++)
        e->rollout[(int64_t)i * e->max_new + t] = (float)json_number_value(json_array_get(logprobs, (size_t)t));
    const char *finish = json_string_value(json_object_get(o, "finish"));
    e->finish[i] = finish && strcmp(finish, "length") == 0 ? FINISH_LENGTH : FINISH_STOP;
    uint8_t *mask = e->mask + (int64_t)i * (e->max_prompt + e->max_new);
    memset(mask, 0, (size_t)(e->max_prompt + e->max_new));
    memset(mask + e->n_prompt[i], 1, (size_t)e->n_new[i]);
    return OK;
}

enum status record_read(struct record_reader *r, struct experience *e, int n, const struct tokenizer *tok, int vocab)
{
    for (int i = 0; i < n; i++) {
        size_t length;
        json_t *o = NULL;
        TRY(next_line(r, &length));
        enum status s = json_read_text(&o, r->line, length, "line");
        if (!s) s = json_is_object(o) ? read_sample(o, e, i, tok, vocab) : FAIL(ERR_FORMAT, "not a JSON object");
        json_decref(o);
        if (s) return status_prefix(s, "%s:%" PRId64, r->file[r->next - 1], r->number);
    }
    return OK;
}

enum status record_skip(struct record_reader *r, int64_t n)
{
    size_t length;
    for (int64_t i = 0; i < n; i++) TRY(next_line(r, &length));
    return OK;
}
