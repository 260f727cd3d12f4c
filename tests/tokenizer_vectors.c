/* tokenizer_vectors TOKENIZER.json VECTORS.json: encodes the text of each vector and decodes its ids, prints every
 * difference with both values and ends with `N passed, N failed`; exit status 1 when one failed, 2 when a file is bad.
 *   VECTORS.json: [{"text", "ids", "decoded", "decoded_skip"}, ...]; the last two may be absent.
 * tokenizer_vectors TOKENIZER.json --roundtrip FILE.jsonl: encodes every string of the lines and wants it back.
 * tokenizer_vectors TOKENIZER.json --bench FILE.jsonl: MB/s of encoding those strings, again and again for 2 s. */
#include "json.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VECTORS = 1 << 30 };

struct run {
    struct tokenizer *t;
    int passed, failed;
    size_t bytes, tokens;
};

static bool same_ids(const struct ids *got, const json_t *want)
{
    if (got->n != json_array_size(want)) return false;
    for (size_t i = 0; i < got->n; i++)
        if (!json_is_integer(json_array_get(want, i)) || json_integer_value(json_array_get(want, i)) != got->id[i])
            return false;
    return true;
}

static void print_ids(const char *label, const struct ids *got, const json_t *want)
{
    printf("    %s", label);
    for (size_t i = 0; got && i < got->n; i++) printf(" %d", got->id[i]);
    for (size_t i = 0; !got && i < json_array_size(want); i++)
        printf(" %lld", (long long)json_integer_value(json_array_get(want, i)));
    printf("\n");
}

static void print_text(const char *label, const char *text, size_t n)
{
    json_t *quoted = json_stringn(text, n);
    char *line = quoted ? json_dumps(quoted, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    printf("    %s %s\n", label, line ? line : "(not UTF-8)");
    free(line);
    json_decref(quoted);
}

/* One decoding of the vector's own ids; true when it is as wanted or nothing is wanted. */
static bool check_decoded(const struct run *r, size_t i, const json_t *vector, const char *key, bool skip)
{
    const json_t *want = json_object_get(vector, key), *list = json_object_get(vector, "ids");
    if (!want) return true;
    struct ids ids = {0};
    struct text text = {0};
    enum status s = json_is_string(want) ? OK : FAIL(ERR_FORMAT, "%s is no string", key);
    for (size_t k = 0; k < json_array_size(list) && !s; k++)
        s = ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, k)));
    if (!s) s = tokenizer_decode(r->t, ids.id, ids.n, skip, &text);
    size_t n = json_string_length(want);
    bool same = !s && text.n == n && (!n || !memcmp(text.data, json_string_value(want), n));
    if (s) printf("vector %zu: %s\n", i, status_message());
    if (!s && !same) {
        printf("vector %zu: %s differs\n", i, key);
        print_text("got     ", text.data ? text.data : "", text.n);
        print_text("expected", json_string_value(want), n);
    }
    ids_free(&ids);
    text_free(&text);
    return same;
}

static bool check_ids(const struct run *r, size_t i, const json_t *vector)
{
    const json_t *text = json_object_get(vector, "text"), *want = json_object_get(vector, "ids");
    if (!json_is_string(text) || !json_is_array(want)) {
        printf("vector %zu: no \"text\" or no \"ids\"\n", i);
        return false;
    }
    struct ids got = {0};
    enum status s = tokenizer_encode(r->t, json_string_value(text), json_string_length(text), true, &got);
    bool same = !s && same_ids(&got, want);
    if (s) printf("vector %zu: %s\n", i, status_message());
    if (!s && !same) {
        printf("vector %zu: ids differ\n", i);
        print_text("text    ", json_string_value(text), json_string_length(text));
        print_ids("got     ", &got, NULL);
        print_ids("expected", NULL, want);
    }
    ids_free(&got);
    return same;
}

static void check_vector(struct run *r, size_t i, const json_t *vector)
{
    bool ok = check_ids(r, i, vector);
    ok = check_decoded(r, i, vector, "decoded", false) && ok;
    ok = check_decoded(r, i, vector, "decoded_skip", true) && ok;
    if (ok) r->passed++;
    else r->failed++;
}

/* Vectors may hold U+0000, which files of the program may not. */
static enum status run_vectors(struct run *r, const char *path)
{
    char *text;
    size_t len;
    json_error_t error;
    TRY(json_read_bytes(&text, &len, path, MAX_VECTORS));
    json_t *list = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    free(text);
    if (!list) return FAIL(ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    enum status s = json_array_size(list) ? OK : FAIL(ERR_FORMAT, "%s: not an array of vectors, or empty", path);
    for (size_t i = 0; i < json_array_size(list); i++) check_vector(r, i, json_array_get(list, i));
    json_decref(list);
    return s;
}

/* All strings of a JSONL file, one after the other, each behind its length. */
static enum status read_strings(struct text *all, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status s = file ? OK : FAIL(ERR_IO, "%s: cannot open", path);
    while (!s && (n = getline(&line, &cap, file)) > 0) {
        json_t *object = NULL, *value;
        const char *key;
        s = json_read_text(&object, line, (size_t)n, path);
        json_object_foreach(object, key, value) {
            size_t len = json_string_length(value);
            if (!s) s = text_push(all, &len, sizeof len);
            if (!s) s = text_push(all, json_string_value(value), len);
        }
        json_decref(object);
    }
    if (file) fclose(file);
    free(line);
    return s;
}

static bool round_trips(struct run *r, const char *text, size_t len)
{
    struct ids ids = {0};
    struct text back = {0};
    enum status s = tokenizer_encode(r->t, text, len, false, &ids);
    if (!s) s = tokenizer_decode(r->t, ids.id, ids.n, false, &back);
    bool same = !s && back.n == len && (!len || !memcmp(back.data, text, len));
    if (!same) {
        printf("does not round-trip%s%s\n", s ? ": " : "", s ? status_message() : "");
        print_text("text", text, len);
        print_text("back", back.data ? back.data : "", back.n);
    }
    r->bytes += len;
    r->tokens += ids.n;
    ids_free(&ids);
    text_free(&back);
    return same;
}

static enum status over_strings(struct run *r, const struct text *all, bool bench, struct ids *ids)
{
    size_t len;
    for (size_t at = 0; at < all->n; at += len) {
        memcpy(&len, all->data + at, sizeof len);
        at += sizeof len;
        if (bench) {
            ids->n = 0;
            TRY(tokenizer_encode(r->t, all->data + at, len, false, ids));
            r->bytes += len;
            r->tokens += ids->n;
        } else if (round_trips(r, all->data + at, len)) r->passed++;
        else r->failed++;
    }
    return OK;
}

static enum status run_bench(struct run *r, const struct text *all)
{
    struct ids ids = {0};
    double start = time_now(), seconds;
    enum status s;
    do {
        s = over_strings(r, all, true, &ids);
        seconds = time_now() - start;
    } while (!s && seconds < 2);
    ids_free(&ids);
    if (!s)
        printf("%.1f MB/s: %zu bytes, %zu tokens in %.2f s, %.2f bytes a token\n", (double)r->bytes / seconds / 1e6,
               r->bytes, r->tokens, seconds, (double)r->bytes / (double)(r->tokens ? r->tokens : 1));
    return s;
}

static enum status run_strings(struct run *r, const char *path, bool bench)
{
    struct text all = {0};
    enum status s = read_strings(&all, path);
    if (!s && !all.n) s = FAIL(ERR_FORMAT, "%s: no strings", path);
    if (!s) s = bench ? run_bench(r, &all) : over_strings(r, &all, false, NULL);
    text_free(&all);
    return s;
}

int main(int argc, char **argv)
{
    struct run r = {0};
    bool bench = argc == 4 && !strcmp(argv[2], "--bench"), trip = argc == 4 && !strcmp(argv[2], "--roundtrip");
    if (argc != 3 && !bench && !trip) {
        fprintf(stderr, "usage: %s TOKENIZER.json (VECTORS.json | --roundtrip FILE.jsonl | --bench FILE.jsonl)\n",
                argv[0]);
        return 2;
    }
    enum status s = tokenizer_open(&r.t, argv[1]);
    if (!s) s = argc == 3 ? run_vectors(&r, argv[2]) : run_strings(&r, argv[3], bench);
    if (s) fprintf(stderr, "%s (%s)\n", status_message(), status_where());
    tokenizer_close(&r.t);
    if (s) return 2;
    if (!bench) printf("%d passed, %d failed\n", r.passed, r.failed);
    return r.failed != 0;
}
