/* The report as a gnuplot script: data blocks first, then a page of panels. Nothing from outside gets into the script
 * but numbers, metric names (letters, digits, _) and the runs' names inside single quotes. */
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CURVES = 6, MAX_PANELS = 24, MAX_POINTS = 1200, CELL_WIDTH = 560, CELL_HEIGHT = 330 };

enum panel_kind { CURVES, EXACT_CURVES, STACK, BARS }; /* exact: nothing to smooth */

struct panel {
    const char *key, *title;
    enum panel_kind kind;
    const char *name[MAX_CURVES];  /* curves, NULL behind the last; STACK and BARS: prefix and suffix of the names */
    const char *label[MAX_CURVES];
};

static const struct panel panels[] = {
    {"loss", "loss", CURVES, {"loss", "eval_loss"}, {"training", "held-out"}},
    {"reward", "reward", CURVES, {"reward_mean", "eval_accuracy"}, {"mean of the batch", "held-out accuracy"}},
    {"gap", "train / rollout log-prob difference", CURVES,
     {"train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff_p99"},
     {"mean |difference|", "p99 by sequence"}},
    {"grad_norm", "gradient norm", CURVES, {"grad_norm"}, {"before clipping"}},
    {"lr", "learning rate", EXACT_CURVES, {"lr"}, {"lr"}},
    {"kl", "KL", CURVES, {"ppo_kl", "ref_kl", "train_rollout_kl"}, {"to old", "to the reference", "train / rollout"}},
    {"clip", "clipped tokens", CURVES, {"clip_fraction"}, {"share of loss tokens"}},
    {"entropy", "entropy", CURVES, {"entropy"}, {"nats a token"}},
    {"length", "response length", CURVES, {"response_length"}, {"tokens"}},
    {"truncated", "truncated responses", CURVES, {"truncated_fraction"}, {"share of samples"}},
    {"balance", "expert load", CURVES, {"tokens_per_expert_max_over_mean"}, {"max / mean"}},
    {"speed", "speed", CURVES, {"tokens_per_s", "rollout_tokens_per_s"}, {"training tokens/s", "rollout tokens/s"}},
    {"mfu", "model FLOP/s of the peak", CURVES, {"mfu"}, {"mfu"}},
    {"time", "seconds of a step by stage", STACK, {"time_", "_s"}, {NULL}},
    {"memory", "peak memory by purpose", BARS, {"memory_", "_bytes"}, {NULL}},
};
enum { PANELS = sizeof panels / sizeof *panels };

static const char *const color[] = {"#1f6fb4", "#e07b1a", "#2e9a4a", "#c23b3b", "#7b5fb0", "#8a6a4f"};
static const char *const pale[] = {"#b9d4ea", "#f6d3ae", "#b7dfc1", "#ecbcbc", "#d3c8e6", "#d8c9bd"};

/* ---------------------------------------------------------------- values ----------------------------------------- */

/* gnuplot's own range arithmetic overflows long before 1e308. */
static bool drawable(double x) { return fabs(x) < 1e30; }

static bool has_points(const struct series *s)
{
    for (int64_t i = 0; s && i < s->n; i++)
        if (drawable(s->value[i])) return true;
    return false;
}

/* Means of at most MAX_POINTS runs of neighbours: what a picture can show. */
struct points {
    double x[MAX_POINTS], y[MAX_POINTS];
    int n;
};

static void thin(struct points *p, const struct series *s)
{
    p->n = s->n < MAX_POINTS ? (int)s->n : MAX_POINTS;
    for (int c = 0; c < p->n; c++) {
        double x = 0, y = 0;
        int64_t from = s->n * c / p->n, to = s->n * (c + 1) / p->n, used = 0;
        for (int64_t i = from; i < to; i++) {
            x += s->step[i];
            if (drawable(s->value[i])) y += s->value[i], used++;
        }
        p->x[c] = x / (double)(to - from);
        p->y[c] = used ? y / (double)used : NAN;
    }
}

/* Mean over a window of 2 half + 1 points, as far as they are there. */
static double smooth(const struct points *p, int at, int half)
{
    double sum = 0;
    int used = 0, from = at > half ? at - half : 0, to = at + half < p->n ? at + half : p->n - 1;
    for (int i = from; i <= to; i++)
        if (!isnan(p->y[i])) sum += p->y[i], used++;
    return used ? sum / used : NAN;
}

/* ---------------------------------------------------------------- script ----------------------------------------- */

static void quote(FILE *f, const char *text)
{
    fputc('\'', f);
    for (int n = 0; *text && n < 120; text++, n++) {
        if (*text == '\'') fputc('\'', f);
        fputc((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f ? '?' : *text, f);
    }
    fputc('\'', f);
}

struct page {
    FILE *f;
    const struct report_data *d;
    const struct panel *panel[MAX_PANELS];
    int n;
    struct points points;
};

static void range_of(const struct page *pg, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int r = 0; r < pg->d->n; r++)
        for (int i = 0; i < pg->d->table[r].n; i++) {
            const struct series *s = &pg->d->table[r].series[i];
            if (!s->n) continue;
            *lo = fmin(*lo, s->step[0]);
            *hi = fmax(*hi, s->step[s->n - 1]);
        }
    if (!(*hi > *lo)) *lo -= 0.5, *hi = *lo + 1;
}

static void print_data(struct page *pg, const char *block, const struct series *s, bool exact)
{
    thin(&pg->points, s);
    int half = exact ? 0 : pg->points.n / 50;
    fprintf(pg->f, "$%s << EOD\n", block);
    for (int i = 0; i < pg->points.n; i++)
        fprintf(pg->f, "%.10g %.9g %.9g\n", pg->points.x[i], pg->points.y[i], smooth(&pg->points, i, half));
    fprintf(pg->f, "EOD\n");
}

/* One curve: pale raw points' line below the smoothed one when there are many, marks when there are few. */
static void print_curve(struct page *pg, const char *block, int c, int64_t n, const char *label, const char *run)
{
    FILE *f = pg->f;
    if (n >= 50) fprintf(f, "$%s using 1:2 with lines lw 1 lc rgb '%s' notitle, ", block, pale[c % 6]);
    fprintf(f, "$%s using 1:3 with %s lw 2 %slc rgb '%s' title ", block, n < 25 ? "linespoints" : "lines",
            n < 25 ? "pt 7 ps 0.6 " : "", color[c % 6]);
    char title[256];
    snprintf(title, sizeof title, "%s%s%.100s", label, run ? ", " : "", run ? run : "");
    quote(f, title);
}

static void print_curves(struct page *pg, const struct panel *p, int number)
{
    char block[64];
    int drawn = 0, curves = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < pg->d->n; r++)
            for (int k = 0; k < MAX_CURVES && p->name[k]; k++) {
                const struct series *s = metrics_series(&pg->d->table[r], p->name[k]);
                if (!has_points(s)) continue;
                snprintf(block, sizeof block, "p%d_%d_%d", number, r, k);
                if (pass == 0) {
                    print_data(pg, block, s, p->kind == EXACT_CURVES);
                    curves++;
                    continue;
                }
                if (!drawn++) fprintf(pg->f, "set offsets 0,0,graph %.2f,0\nplot ", 0.06 + 0.075 * curves); /* the key's room */
                else fputs(", ", pg->f);
                print_curve(pg, block, k + 3 * r, s->n, p->label[k], pg->d->n > 1 ? pg->d->name[r] : NULL);
            }
    fputs("\n", pg->f);
}

static bool matches(const char *name, const struct panel *p, char *middle, size_t size)
{
    size_t n = strlen(name), a = strlen(p->name[0]), b = strlen(p->name[1]);
    if (n <= a + b || strncmp(name, p->name[0], a) || strcmp(name + n - b, p->name[1])) return false;
    snprintf(middle, size, "%.*s", (int)(n - a - b), name + a);
    return p->kind != STACK || strcmp(middle, "step"); /* the whole, not a part */
}

static double total(const struct series *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (drawable(s->value[i])) sum += s->value[i];
    return sum;
}

/* The largest series of run 0 whose names fit the panel, at most MAX_CURVES, in the file's order. */
static int pick(const struct page *pg, const struct panel *p, const struct series **out)
{
    const struct metrics_table *t = &pg->d->table[0];
    char middle[METRICS_NAME];
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const struct series *s = &t->series[i];
        if (!matches(s->name, p, middle, sizeof middle) || !has_points(s)) continue;
        if (n == MAX_CURVES) {
            int least = 0;
            for (int k = 1; k < n; k++)
                if (total(out[k]) < total(out[least])) least = k;
            if (total(s) <= total(out[least])) continue;
            memmove(out + least, out + least + 1, (size_t)(--n - least) * sizeof *out);
        }
        out[n++] = s;
    }
    return n;
}

/* Areas one on the other. Series that miss some steps are left out: they cannot be added up. */
static void print_stack(struct page *pg, const struct panel *p, int number)
{
    const struct series *s[MAX_CURVES];
    char middle[METRICS_NAME];
    int n = pick(pg, p, s), kept = 0;
    int64_t most = 0;
    for (int k = 0; k < n; k++) most = s[k]->n > most ? s[k]->n : most;
    for (int k = 0; k < n; k++)
        if (s[k]->n == most) s[kept++] = s[k];
    struct points below;
    double top = 0;
    for (int k = 0; k < kept; k++) {
        thin(&pg->points, s[k]);
        fprintf(pg->f, "$p%d_%d << EOD\n", number, k);
        for (int i = 0; i < pg->points.n; i++) {
            double low = k ? below.y[i] : 0, high = low + (isnan(pg->points.y[i]) ? 0 : pg->points.y[i]);
            fprintf(pg->f, "%.10g %.9g %.9g\n", pg->points.x[i], low, high);
            below.y[i] = high;
            top = fmax(top, high);
        }
        fprintf(pg->f, "EOD\n");
    }
    /* Room for the key above the areas. */
    fprintf(pg->f, "set yrange [0:%.6g]\nset key maxrows 3\nplot ", top > 0 ? top * 1.35 : 1);
    for (int k = kept - 1; k >= 0; k--) {
        matches(s[k]->name, p, middle, sizeof middle);
        /* An area needs two points: a lone step is a box. */
        const char *style = most > 1 ? "filledcurves fs solid 0.75 noborder" : "boxxyerror fs solid 0.75 noborder";
        const char *columns = most > 1 ? "1:2:3" : "1:3:($1-0.3):($1+0.3):2:3";
        fprintf(pg->f, "$p%d_%d using %s with %s lc rgb '%s' title '%s'%s", number, k, columns, style, color[k % 6],
                middle, k ? ", " : "\n");
    }
    fprintf(pg->f, "set yrange [*:*]\nset key maxrows auto\n");
}

static double peak(const struct series *s)
{
    double x = 0;
    for (int64_t i = 0; s && i < s->n; i++)
        if (drawable(s->value[i]) && s->value[i] > x) x = s->value[i];
    return x;
}

/* 1, 2 or 5 times a power of ten: at most five tics. */
static double tic_step(double most)
{
    double step = most > 0 ? pow(10, floor(log10(most))) : 1;
    if (most / step > 5) return 2 * step;
    return most / step < 2 ? step / 2 : step;
}

/* A bar a purpose and run, its value behind it. */
static void print_bars(struct page *pg, const struct panel *p, int number, double lo, double hi)
{
    const struct series *s[MAX_CURVES];
    char middle[METRICS_NAME];
    int n = pick(pg, p, s);
    double scale = 1, most = 0, width = 0.7 / pg->d->n;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (int k = 0; k < n; k++)
        for (int r = 0; r < pg->d->n; r++) most = fmax(most, peak(metrics_series(&pg->d->table[r], s[k]->name)));
    for (; most >= 1024 && unit < 4; most /= 1024, unit++) scale /= 1024;
    for (int r = 0; r < pg->d->n; r++) {
        fprintf(pg->f, "$p%d_%d << EOD\n", number, r);
        for (int k = 0; k < n; k++) {
            double x = peak(metrics_series(&pg->d->table[r], s[k]->name)) * scale, y = n - k + 0.35 - (r + 1) * width;
            fprintf(pg->f, "%.6g %.6g %.6g %.3g\n", x, y, y + width - 0.04, x);
        }
        fprintf(pg->f, "EOD\n");
    }
    fprintf(pg->f, "set xrange [0:%.6g]\nset yrange [0.4:%d.6]\nset xtics %.6g\nset lmargin 16\nset xlabel '%s'\nset ytics (",
            most > 0 ? most * 1.25 : 1, n, tic_step(most), units[unit]);
    for (int k = 0; k < n; k++) {
        matches(s[k]->name, p, middle, sizeof middle);
        fprintf(pg->f, "%s'%s' %d", k ? ", " : "", middle, n - k);
    }
    fprintf(pg->f, ")\nplot ");
    for (int r = 0; r < pg->d->n; r++) {
        fprintf(pg->f, "%s$p%d_%d using (0):2:(0):1:2:3 with boxxyerror fs solid 0.8 noborder lc rgb '%s' title ",
                r ? ", " : "", number, r, color[3 * r]);
        quote(pg->f, pg->d->n > 1 ? pg->d->name[r] : "");
        fprintf(pg->f, ", $p%d_%d using 1:(($2+$3)/2):(sprintf(' %%.3g', $4)) with labels left notitle", number, r);
    }
    fprintf(pg->f, "\nset xtics autofreq\nset ytics auto\nset yrange [*:*]\nset xrange [%.10g:%.10g]\nset lmargin 10\n", lo, hi);
    fprintf(pg->f, "set xlabel 'step'\n");
}

/* ---------------------------------------------------------------- the page --------------------------------------- */

static bool panel_has_data(const struct page *pg, const struct panel *p)
{
    const struct series *s[MAX_CURVES];
    if (p->kind >= STACK) return pick(pg, p, s) > 0;
    for (int r = 0; r < pg->d->n; r++)
        for (int k = 0; k < MAX_CURVES && p->name[k]; k++)
            if (has_points(metrics_series(&pg->d->table[r], p->name[k]))) return true;
    return false;
}

/* Panels by name, or all; those without numbers are left out. */
static enum status choose(struct page *pg, const char *names)
{
    while (names && *names) {
        size_t len = strcspn(names, ",");
        int i = 0;
        while (i < PANELS && (strlen(panels[i].key) != len || strncmp(panels[i].key, names, len))) i++;
        if (i == PANELS) return FAIL(ERR_USAGE, "no panel '%.*s' in a report", (int)(len < 80 ? len : 80), names);
        if (pg->n < MAX_PANELS && panel_has_data(pg, &panels[i])) pg->panel[pg->n++] = &panels[i];
        names += len + (names[len] == ',');
    }
    for (int i = 0; !names && i < PANELS; i++)
        if (panel_has_data(pg, &panels[i])) pg->panel[pg->n++] = &panels[i];
    if (!pg->n) return FAIL(ERR_FORMAT, "%.200s: no numbers to draw", pg->d->name[0]);
    return OK;
}

static void print_page(struct page *pg, bool svg)
{
    FILE *f = pg->f;
    int columns = pg->n < 3 ? pg->n : pg->n == 4 ? 2 : 3, rows = (pg->n + columns - 1) / columns;
    double lo, hi;
    range_of(pg, &lo, &hi);
    fprintf(f, "set terminal %s size %d,%d font 'Sans,10' background rgb 'white'%s\n", svg ? "svg" : "pngcairo",
            columns * CELL_WIDTH, rows * CELL_HEIGHT + 40, svg ? "" : " noenhanced");
    fprintf(f, "set multiplot layout %d,%d title ", rows, columns);
    char title[256];
    snprintf(title, sizeof title, "%.100s%s%.100s", pg->d->name[0], pg->d->n > 1 ? "  and  " : "",
             pg->d->n > 1 ? pg->d->name[1] : "");
    quote(f, title);
    fprintf(f, " font 'Sans,13' noenhanced\n"
               "set border 3 lc rgb '#808080'\nset tics nomirror out scale 0.5 textcolor rgb '#404040'\n"
               "set grid lc rgb '#e4e4e4' lt 1 lw 1\nset key top right samplen 1.5 noenhanced textcolor rgb '#404040'\n"
               "set xlabel 'step' offset 0,0.5 textcolor rgb '#404040'\nset lmargin 10\nset rmargin 3\n"
               "set xtics autofreq\nset offsets 0,0,graph 0.12,0\nset xrange [%.10g:%.10g]\n", lo, hi);
    for (int i = 0; i < pg->n; i++) {
        const struct panel *p = pg->panel[i];
        char text[256];
        bool first_only = p->kind == STACK && pg->d->n > 1;
        snprintf(text, sizeof text, "%s%s%.100s", p->title, first_only ? ", " : "", first_only ? pg->d->name[0] : "");
        fprintf(f, "set title ");
        quote(f, text);
        fprintf(f, " noenhanced textcolor rgb '#202020'\n");
        if (p->kind < STACK)
            print_curves(pg, p, i);
        else if (p->kind == STACK)
            print_stack(pg, p, i);
        else
            print_bars(pg, p, i, lo, hi);
    }
    fprintf(f, "unset multiplot\n");
}

enum status report_script(const struct report_data *d, const char *names, bool svg, char **script, size_t *n)
{
    struct page pg = {.d = d};
    *script = NULL;
    TRY(choose(&pg, names));
    pg.f = open_memstream(script, n);
    if (!pg.f) return FAIL(ERR_MEMORY, "no memory for the report");
    print_page(&pg, svg);
    bool bad = ferror(pg.f);
    if (fclose(pg.f) || bad) {
        free(*script);
        *script = NULL;
        return FAIL(ERR_MEMORY, "no memory for the report");
    }
    return OK;
}
