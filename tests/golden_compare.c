/* What the program wrote against a golden reference (MODEL.md section 4):
 *   golden_compare tokens REF               the reference's sequences as JSON lines
 *   golden_compare prompt REF               its decoding prompt as a JSON line
 *   golden_compare score REF OUT            m3 score --logits --selections --grads
 *   golden_compare bf16   REF OUT            the same of a bf16 run: the loss within 1e-2, at least 94% of the block sets
 *                                            (rounding the weights alone changes 3%); the share of expert sets is told
 *   golden_compare decode REF OUT.jsonl     m3 generate --greedy
 *   golden_compare adamw REF METRICS EXPORT [SLACK] three training steps, exported; from the second step on
 *                                                   the tolerances are SLACK times as wide
 * Gradients stand in the reference under the implementation's fused names; they are fused here. */
#include "check.h"
#include "json.h"
#include "release.h"
#include "safetensors.h"

static int passed, failed;
static struct st_file ref;

static void verdict(bool ok, const char *what, double error, double tol)
{
    if (ok) passed++;
    else failed++;
    if (!ok) printf("%s: error %.3g, tolerance %.3g\n", what, error, tol);
}

static void *load(const struct st_file *f, const struct st_tensor *t)
{
    void *data = malloc(st_bytes(t) + 1);
    check_ok(st_read(f, t, 0, st_bytes(t), data));
    return data;
}

static double relative(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), norm += (double)b[i] * b[i];
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void compare_floats(const char *what, const float *got, int64_t n, const struct st_tensor *t, double tol)
{
    float *want = load(&ref, t);
    double e = n == st_elements(t) ? relative(got, want, n) : INFINITY;
    verdict(e <= tol, what, e, tol);
    free(want);
}

static bool contains(const int32_t *row, int n, int32_t x)
{
    for (int i = 0; i < n; i++)
        if (row[i] == x) return true;
    return false;
}

static bool bf16;
static int64_t set_rows[2], set_wrong[2]; /* of blocks, of experts */

/* Rows as sets; -1 is nothing. */
static void compare_sets(const char *what, const struct st_file *out, const struct st_tensor *g, const struct st_tensor *t)
{
    int wide_g = (int)g->dim[g->rank - 1], wide_t = (int)t->dim[t->rank - 1];
    int64_t rows = st_elements(t) / wide_t, wrong = 0;
    int32_t *got = load(out, g), *want = load(&ref, t);
    if (st_elements(g) / wide_g != rows) wrong = rows;
    for (int64_t r = 0; r < rows && wrong < rows; r++) {
        int n_got = 0, n_want = 0, shared = 0;
        for (int i = 0; i < wide_g; i++) n_got += got[r * wide_g + i] >= 0;
        for (int i = 0; i < wide_t; i++) {
            int32_t x = want[r * wide_t + i];
            n_want += x >= 0;
            shared += x >= 0 && contains(got + r * wide_g, wide_g, x);
        }
        wrong += n_got != n_want || shared != n_want;
    }
    if (bf16) set_rows[t->name[0] == 'r'] += rows, set_wrong[t->name[0] == 'r'] += wrong;
    else verdict(wrong == 0, what, (double)wrong, 0);
    free(got);
    free(want);
}

/* ---------------------------------------------------------------- gradients -------------------------------------- */

static int64_t append(float *to, const struct st_file *f, const char *name)
{
    const struct st_tensor *t = st_find(f, name);
    if (!t) return 0;
    check_ok(st_read(f, t, 0, st_bytes(t), to));
    return st_elements(t);
}

/* The release tensors that a fused reference name stands for, one behind the other. Returns elements written. */
static int64_t fuse(const struct st_file *f, const char *fused, float *to)
{
    char base[256], name[400];
    int64_t n = append(to, f, fused);
    if (n) return n;
    snprintf(base, sizeof base, "%s", fused);
    bool moe = strstr(base, ".mlp.experts.") || strstr(base, ".mlp.gate.") || strstr(base, ".mlp.shared_experts.");
    char *mlp = strstr(base, ".mlp.");
    if (!mlp) return 0;
    const char *tail = mlp + 5;
    int head = (int)(mlp - base);
    if (strncmp(tail, "experts.", 8) == 0) {
        for (int e = 0;; e++) {
            const char *parts[] = {"w1", "w3"};
            int64_t before = n;
            if (strstr(tail, "gate_up"))
                for (int i = 0; i < 2; i++) {
                    snprintf(name, sizeof name, "%.*s.block_sparse_moe.experts.%d.%s.weight", head, base, e, parts[i]);
                    n += append(to + n, f, name);
                }
            else {
                snprintf(name, sizeof name, "%.*s.block_sparse_moe.experts.%d.w2.weight", head, base, e);
                n += append(to + n, f, name);
            }
            if (n == before) return n;
        }
    }
    const char *fused_tail = strstr(tail, "gate_up_proj.weight");
    const char *room = moe ? "block_sparse_moe" : "mlp";
    if (!fused_tail) {
        snprintf(name, sizeof name, "%.*s.%s.%s", head, base, room, tail);
        return append(to, f, name);
    }
    const char *parts[] = {"gate_proj", "up_proj"};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%.*s.%s.%.*s%s.weight", head, base, room, (int)(fused_tail - tail), tail, parts[i]);
        n += append(to + n, f, name);
    }
    return n;
}

static void compare_score(const char *path)
{
    struct st_file out;
    check_ok(st_open(&out, path));
    for (int64_t i = 0; i < ref.count; i++) {
        const struct st_tensor *t = &ref.tensors[i], *g = st_find(&out, t->name);
        const char *n = t->name;
        if (bf16 && strcmp(n, "loss") != 0 && strncmp(n, "block_indices.", 14) != 0 && strncmp(n, "router_experts.", 15) != 0)
            continue;
        if (strncmp(n, "logits.", 7) == 0 || strncmp(n, "hidden.", 7) == 0 || strncmp(n, "token_logprobs.", 15) == 0) {
            float *got = g ? load(&out, g) : NULL;
            compare_floats(n, got, g ? st_elements(g) : 0, t, 2e-5);
            free(got);
        } else if (strncmp(n, "block_indices.", 14) == 0 || strncmp(n, "router_experts.", 15) == 0) {
            if (g) compare_sets(n, &out, g, t);
            else verdict(false, n, INFINITY, 0);
        } else if (strcmp(n, "loss") == 0 || strcmp(n, "grad_norm") == 0) {
            float *got = g ? load(&out, g) : NULL;
            compare_floats(n, got, g ? st_elements(g) : 0, t, bf16 ? 1e-2 : 1e-5);
            free(got);
        } else if (strncmp(n, "grad.", 5) == 0) {
            float *got = malloc(st_bytes(t) * 2);
            int64_t count = fuse(&out, n, got);
            compare_floats(n, got, count, t, 1e-4);
            free(got);
        }
    }
    st_close(&out);
    if (!bf16) return;
    double blocks = (double)set_wrong[0] / (double)set_rows[0];
    printf("block sets as the reference's: %.2f%%, expert sets %.2f%%\n", 100 - 100 * blocks,
           100 - 100 * (double)set_wrong[1] / (double)set_rows[1]);
    verdict(blocks <= 0.06, "block sets", blocks, 0.06);
}

/* ---------------------------------------------------------------- the rest --------------------------------------- */

static void print_ids(const char *name, const char *prefix)
{
    const struct st_tensor *t = st_find(&ref, name);
    int32_t *ids = load(&ref, t);
    printf("%s[", prefix);
    for (int64_t i = 0; i < st_elements(t); i++) printf("%s%d", i ? "," : "", ids[i]);
    printf("]}\n");
    free(ids);
}

static void compare_decode(const char *path)
{
    json_t *line = NULL;
    check_ok(json_read_file(&line, path, 1 << 20));
    json_t *ids = json_object_get(line, "ids"), *lp = json_object_get(line, "logprobs");
    const struct st_tensor *t = st_find(&ref, "decode.tokens"), *l = st_find(&ref, "decode.logprobs");
    int32_t *want = load(&ref, t);
    int64_t n = st_elements(t), wrong = (int64_t)json_array_size(ids) == n ? 0 : n;
    float *got = calloc((size_t)n, sizeof *got);
    for (int64_t i = 0; i < n && !wrong; i++) {
        wrong += json_integer_value(json_array_get(ids, (size_t)i)) != want[i];
        got[i] = (float)json_real_value(json_array_get(lp, (size_t)i));
    }
    verdict(wrong == 0, "decode.tokens", (double)wrong, 0);
    compare_floats("decode.logprobs", got, n, l, 1e-4);
    json_decref(line);
}

static void compare_steps(const char *what, const float *got, int n, double slack)
{
    const struct st_tensor *t = st_find(&ref, what);
    float *want = load(&ref, t);
    double e = n == 3 ? fabs((double)got[0] - want[0]) / fabs((double)want[0]) : INFINITY;
    verdict(e <= 1e-5, what, e, 1e-5);
    compare_floats(what, got, n, t, 1e-5 * slack);
    free(want);
}

static void compare_adamw(const char *metrics, const char *export, double slack)
{
    FILE *f = fopen(metrics, "r");
    char text[65536];
    float loss[3] = {0}, norm[3] = {0};
    int n = 0;
    while (f && n < 3 && fgets(text, sizeof text, f)) {
        json_t *o = NULL;
        check_ok(json_read_text(&o, text, strlen(text), metrics));
        loss[n] = (float)json_real_value(json_object_get(o, "loss"));
        norm[n++] = (float)json_real_value(json_object_get(o, "grad_norm"));
        json_decref(o);
    }
    compare_steps("adamw.losses", loss, n, slack);
    compare_steps("adamw.grad_norms", norm, n, slack);
    struct release *r = NULL;
    check_ok(release_open(&r, export));
    for (int64_t i = 0; i < ref.count; i++) {
        const struct st_tensor *t = &ref.tensors[i];
        const char *prefix = "adamw.param.";
        if (strncmp(t->name, prefix, strlen(prefix)) != 0) continue;
        char name[400], fused[400];
        float *got = malloc(st_bytes(t) * 2);
        int64_t count = 0;
        const struct release_tensor *p = release_find(r, t->name + strlen(prefix));
        snprintf(fused, sizeof fused, "%s", t->name + strlen(prefix));
        char *mlp = strstr(fused, ".mlp."), *up = strstr(fused, "gate_up_proj");
        if (p) {
            check_ok(release_read(r, p, 0, p->rows, 0, p->cols, DT_F32, got));
            count = p->rows * p->cols;
        } else if (mlp) {
            int experts = strstr(mlp, ".experts.") ? (int)t->dim[0] : 1;
            for (int e = 0; e < experts; e++)
                for (int half = 0; half < (up ? 2 : 1); half++) {
                    if (experts > 1)
                        snprintf(name, sizeof name, "%.*s.block_sparse_moe.experts.%d.%s.weight", (int)(mlp - fused), fused,
                                 e, up ? half ? "w3" : "w1" : "w2");
                    else if (up)
                        snprintf(name, sizeof name, "%.*s.block_sparse_moe.%.*s%s.weight", (int)(mlp - fused), fused,
                                 (int)(up - mlp - 5), mlp + 5, half ? "up_proj" : "gate_proj");
                    else
                        snprintf(name, sizeof name, "%.*s.block_sparse_moe.%s", (int)(mlp - fused), fused, mlp + 5);
                    p = release_find(r, name);
                    if (!p) break;
                    check_ok(release_read(r, p, 0, p->rows, 0, p->cols, DT_F32, got + count));
                    count += p->rows * p->cols;
                }
        }
        compare_floats(t->name, got, count, t, 1e-4 * slack);
        free(got);
    }
    release_close(&r);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    check_ok(st_open(&ref, argv[2]));
    if (strcmp(argv[1], "tokens") == 0) {
        char name[32];
        for (int s = 0; snprintf(name, sizeof name, "input_ids.%d", s), st_find(&ref, name); s++)
            print_ids(name, "{\"input_ids\": ");
        return 0;
    }
    if (strcmp(argv[1], "prompt") == 0) {
        print_ids("decode.prompt", "{\"input_ids\": ");
        return 0;
    }
    bf16 = strcmp(argv[1], "bf16") == 0;
    if (bf16 || strcmp(argv[1], "score") == 0) compare_score(argv[3]);
    else if (strcmp(argv[1], "decode") == 0) compare_decode(argv[3]);
    else compare_adamw(argv[3], argv[4], argc > 5 ? atof(argv[5]) : 1);
    st_close(&ref);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
