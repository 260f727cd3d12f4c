/* The report as text: a row a metric. */
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { SPARK = 32, NAME_WIDTH = 34 };

/* Those that are looked at first; the others follow in the file's order. */
static const char *const important[] = {
    "loss", "eval_loss", "reward_mean", "eval_accuracy", "train_rollout_logprob_abs_diff", "ppo_kl", "ref_kl",
    "clip_fraction", "entropy", "grad_norm", "lr", "response_length", "tokens_per_s", "mfu"};
enum { IMPORTANT = sizeof important / sizeof *important };

struct summary {
    double first, last, min, max, mean;
    int64_t n;
};

static struct summary summarise(const struct series *s)
{
    struct summary r = {NAN, NAN, NAN, NAN, NAN, 0};
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) {
        double x = s->value[i];
        if (!isfinite(x)) continue;
        if (!r.n) r.first = r.min = r.max = x;
        if (x < r.min) r.min = x;
        if (x > r.max) r.max = x;
        r.last = x;
        sum += x;
        r.n++;
    }
    if (r.n) r.mean = sum / (double)r.n;
    return r;
}

void report_sparkline(char *text, int width, const double *value, int64_t n)
{
    double lo = INFINITY, hi = -INFINITY;
    int cells = n < width ? (int)n : width;
    char *p = text;
    *p = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int c = 0; c < cells; c++) {
            double sum = 0;
            int64_t used = 0, from = n * c / cells, to = n * (c + 1) / cells;
            for (int64_t i = from; i < to; i++)
                if (fabs(value[i]) < 1e300) sum += value[i], used++;
            double mean = used ? sum / (double)used : NAN;
            if (pass == 0) {
                if (mean < lo) lo = mean;
                if (mean > hi) hi = mean;
                continue;
            }
            int height = hi > lo ? (int)((mean - lo) / (hi - lo) * 7.999) : 3;
            if (!used)
                p += sprintf(p, " ");
            else
                p += sprintf(p, "\xe2\x96%c", 0x81 + height); /* U+2581 to U+2588 */
        }
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end);
}

static void number(char text[16], const char *name, double x)
{
    static const char unit[] = " KMGTPE";
    int u = 0;
    if (isnan(x)) {
        snprintf(text, 16, "-");
    } else if (ends_with(name, "_bytes")) {
        while (fabs(x) >= 1024 && u < 6) x /= 1024, u++;
        snprintf(text, 16, u ? "%.4g%ciB" : "%.4gB", x, unit[u]);
    } else {
        snprintf(text, 16, "%.5g", x);
    }
}

static void print_row(FILE *out, const char *label, const struct series *s)
{
    struct summary r = summarise(s);
    double column[] = {r.first, r.last, r.min, r.max, r.mean};
    char text[16], spark[3 * SPARK + 1];
    fprintf(out, "%-*s", NAME_WIDTH, label);
    for (int i = 0; i < 5; i++) {
        number(text, s->name, column[i]);
        fprintf(out, " %11s", text);
    }
    report_sparkline(spark, SPARK, s->value, s->n);
    fprintf(out, "  %s", spark);
    if (r.n < s->n) fprintf(out, "  %lld not finite", (long long)(s->n - r.n));
    fputc('\n', out);
}

/* One row, or with two runs a row each below the name. */
static void print_metric(FILE *out, const struct report_data *d, const char *name)
{
    char label[128];
    for (int i = 0; i < d->n; i++) {
        const struct series *s = metrics_series(&d->table[i], name);
        if (!s) continue;
        if (d->n == 2)
            snprintf(label, sizeof label, "%s [%c]", name, 'A' + i);
        else
            snprintf(label, sizeof label, "%s", name);
        print_row(out, label, s);
    }
}

static bool is_important(const char *name)
{
    for (int i = 0; i < IMPORTANT; i++)
        if (!strcmp(important[i], name)) return true;
    return false;
}

/* A folder's name may hold anything: only what a terminal shows as text goes there. */
static void print_plain(FILE *out, const char *text)
{
    for (; *text; text++) fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
}

void report_text(const struct report_data *d, FILE *out)
{
    for (int i = 0; i < d->n; i++) {
        const struct metrics_table *t = &d->table[i];
        if (d->n == 2) fprintf(out, "[%c] ", 'A' + i);
        print_plain(out, d->name[i]);
        fprintf(out, ": %lld steps, the last is %lld", (long long)t->lines, (long long)t->last_step);
        if (t->bad_lines) fprintf(out, ", %lld unreadable lines", (long long)t->bad_lines);
        fputc('\n', out);
    }
    static const char *const head[] = {"first", "last", "min", "max", "mean"};
    fprintf(out, "\n%-*s", NAME_WIDTH, "metric");
    for (int i = 0; i < 5; i++) fprintf(out, " %11s", head[i]);
    fprintf(out, "  curve\n");
    for (int i = 0; i < IMPORTANT; i++) print_metric(out, d, important[i]);
    for (int r = 0; r < d->n; r++)
        for (int i = 0; i < d->table[r].n; i++) {
            const char *name = d->table[r].series[i].name;
            bool seen = (r == 1 && metrics_series(&d->table[0], name)) || ends_with(name, "_hash"); /* a hash has no curve */
            if (!seen && !is_important(name)) print_metric(out, d, name);
        }
}
