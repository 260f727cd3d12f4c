/* What `m3 generate` wrote (GEN, JSON lines) against other numbers; the last line is `N passed, N failed`.
 *   decode_compare tokens GEN                        prints prompt and new tokens as lines for `m3 score`
 *   decode_compare score GEN SCORE.safetensors TOL   log-probs of the new tokens equal those of scoring the whole
 *   decode_compare same GEN OTHER TOL                the same tokens, log-probs within TOL
 *   decode_compare filter GEN SCORE.safetensors K P  every new token is among the K most likely (0: any), and those that
 *                                                    are more likely hold less than the share P; SCORE has logits */
#include "json.h"
#include "safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void verdict(bool ok, int line, const char *what, double got, double limit)
{
    if (ok) passed++;
    else failed++, printf("line %d: %s %.6g, limit %.6g\n", line, what, got, limit);
}

static void need(enum status s)
{
    if (!s) return;
    printf("%s\n", status_message());
    exit(2);
}

/* The lines of a file as an array; small files only. */
static json_t *read_lines(const char *path)
{
    char *text, *save = NULL;
    size_t len;
    need(json_read_bytes(&text, &len, path, 64 << 20));
    json_t *lines = json_array();
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *o = NULL;
        need(json_read_text(&o, line, strlen(line), path));
        json_array_append_new(lines, o);
    }
    free(text);
    return lines;
}

static float *floats(const struct st_file *f, const char *what, int line, int64_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", what, line);
    const struct st_tensor *t = st_find(f, name);
    if (!t) need(FAIL(ERR_FORMAT, "%s: no %s", f->path, name));
    float *x = malloc((size_t)st_bytes(t) + 1);
    need(st_read(f, t, 0, (size_t)st_bytes(t), x));
    *n = st_elements(t);
    return x;
}

static int64_t at(const json_t *o, const char *list, size_t i) { return json_integer_value(json_array_get(json_object_get(o, list), i)); }
static size_t count(const json_t *o, const char *list) { return json_array_size(json_object_get(o, list)); }
static double logprob(const json_t *o, size_t i) { return json_number_value(json_array_get(json_object_get(o, "logprobs"), i)); }

static void print_tokens(const json_t *o)
{
    printf("{\"input_ids\": [");
    for (size_t i = 0; i < count(o, "prompt_ids"); i++) printf("%s%lld", i ? "," : "", (long long)at(o, "prompt_ids", i));
    for (size_t i = 0; i < count(o, "ids"); i++) printf(",%lld", (long long)at(o, "ids", i));
    printf("]}\n");
}

static void against_score(const json_t *o, int line, const struct st_file *f, double tol)
{
    int64_t n;
    float *want = floats(f, "token_logprobs", line, &n);
    size_t prompt = count(o, "prompt_ids"), new = count(o, "ids");
    double worst = prompt + new == (size_t)n + 1 && new ? 0 : INFINITY;
    for (size_t i = 0; i < new && worst < INFINITY; i++)
        worst = fmax(worst, fabs(logprob(o, i) - (double)want[prompt - 1 + i]));
    verdict(worst <= tol, line, "log-prob off by", worst, tol);
    free(want);
}

static void against_other(const json_t *o, const json_t *p, int line, double tol)
{
    double worst = count(o, "ids") == count(p, "ids") && count(o, "ids") ? 0 : INFINITY;
    for (size_t i = 0; i < count(o, "ids"); i++)
        worst = fmax(worst, at(o, "ids", i) == at(p, "ids", i) ? fabs(logprob(o, i) - logprob(p, i)) : INFINITY);
    verdict(worst <= tol, line, "tokens or log-probs off by", worst, tol);
}

static void against_filter(const json_t *o, int line, const struct st_file *f, int k, double share)
{
    int64_t n, total = (int64_t)(count(o, "prompt_ids") + count(o, "ids"));
    float *logits = floats(f, "logits", line, &n);
    int64_t V = n / total, most = 0;
    double mass = 0;
    for (size_t i = 0; i < count(o, "ids"); i++) {
        const float *x = logits + ((int64_t)count(o, "prompt_ids") - 1 + (int64_t)i) * V;
        int64_t id = at(o, "ids", i), above = 0;
        double sum = 0, over = 0;
        for (int64_t v = 0; v < V; v++) {
            double e = exp((double)x[v] - (double)x[id]);
            sum += e;
            if (x[v] > x[id]) above++, over += e;
        }
        if (above > most) most = above;
        mass = fmax(mass, over / sum);
    }
    verdict(k == 0 || most < k, line, "tokens that are more likely", (double)most, k);
    verdict(mass < share, line, "share of what is more likely", mass, share);
    free(logits);
}

int main(int argc, char **argv)
{
    struct st_file f = {.fd = -1};
    if (argc < 3) return 2;
    const char *mode = argv[1];
    json_t *lines = read_lines(argv[2]), *others = NULL;
    bool same = strcmp(mode, "same") == 0, score = strcmp(mode, "score") == 0, filter = strcmp(mode, "filter") == 0;
    if (argc < (same || score ? 5 : filter ? 6 : 3)) return 2;
    if (same) others = read_lines(argv[3]);
    if (score || filter) need(st_open(&f, argv[3]));
    if (same && json_array_size(lines) != json_array_size(others)) verdict(false, 0, "lines", (double)json_array_size(lines),
                                                                           (double)json_array_size(others));
    for (int i = 0; i < (int)json_array_size(lines); i++) {
        const json_t *o = json_array_get(lines, (size_t)i);
        if (same) against_other(o, json_array_get(others, (size_t)i), i, atof(argv[4]));
        else if (score) against_score(o, i, &f, atof(argv[4]));
        else if (filter) against_filter(o, i, &f, atoi(argv[4]), atof(argv[5]));
        else print_tokens(o);
    }
    json_decref(lines);
    json_decref(others);
    st_close(&f);
    if (same || score || filter) printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
