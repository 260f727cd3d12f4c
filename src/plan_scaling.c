/* Strong and weak scaling: the best mesh for each number of ranks, as a table and as curves. */
#include "gnuplot.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 24, STRONG = 0, WEAK = 1 };

struct scaling {
    int n, ranks[MOST_ROWS];
    struct plan_candidate best[MOST_ROWS][2];
    int base[2]; /* first row where something fits; -1: none */
};

static enum status best_of(const struct plan_input *in, struct plan_candidate *best)
{
    struct plan_sweep s;
    *best = (struct plan_candidate){0};
    enum status st = plan_sweep_run(&s, in);
    if (!st && s.n) *best = s.list[0];
    plan_sweep_free(&s);
    return st;
}

static enum status measure(struct scaling *s, const struct plan_input *in, int most)
{
    *s = (struct scaling){.base = {-1, -1}};
    for (int64_t ranks = in->ranks; ranks <= most && s->n < MOST_ROWS; ranks *= 2, s->n++) {
        s->ranks[s->n] = (int)ranks;
        for (int weak = STRONG; weak <= WEAK; weak++) {
            struct config c = *in->config;
            struct plan_input now = *in;
            now.config = &c;
            now.ranks = (int)ranks;
            if (weak) {
                c.train.global_batch *= ranks / in->ranks;
                c.rl.prompts_per_step *= ranks / in->ranks;
                now.sequences *= ranks / in->ranks;
            }
            TRY(best_of(&now, &s->best[s->n][weak]));
            if (s->best[s->n][weak].fits && s->base[weak] < 0) s->base[weak] = s->n;
        }
    }
    return OK;
}

/* Tokens/s of that many ranks if the first row's went on. */
static double ideal(const struct scaling *s, int row, int weak)
{
    int base = s->base[weak];
    return s->best[base][weak].tokens_per_s * s->ranks[row] / s->ranks[base];
}

static void print_best(const struct scaling *s, int row, int weak, FILE *out)
{
    const struct plan_candidate *c = &s->best[row][weak];
    char mesh[48];
    if (!c->fits) {
        fprintf(out, "  %-46s", "nothing fits");
        return;
    }
    snprintf(mesh, sizeof mesh, "%d/%d/%d/%d", c->shape.tp, c->shape.pp, c->shape.ep, c->shape.dp);
    fprintf(out, "  %-16s %10.0f %6.1f%% %8.0f%%", mesh, c->tokens_per_s, 100 * c->mfu,
            100 * c->tokens_per_s / ideal(s, row, weak));
}

static void print_table(const struct scaling *s, FILE *out)
{
    fprintf(out, "\n         strong: the batch as it is                      weak: the batch grows with the ranks\n");
    fprintf(out, " ranks   tp/pp/ep/dp        tokens/s    MFU  efficiency   tp/pp/ep/dp        tokens/s    MFU  efficiency\n");
    for (int i = 0; i < s->n; i++) {
        fprintf(out, "%6d ", s->ranks[i]);
        print_best(s, i, STRONG, out);
        print_best(s, i, WEAK, out);
        fprintf(out, "\n");
    }
}

/* Only numbers get into the script. */
static enum status draw(const struct scaling *s, const char *path)
{
    char *script = NULL;
    size_t n = 0, len = strlen(path);
    bool svg = len > 4 && !strcmp(path + len - 4, ".svg");
    if (s->base[STRONG] < 0 && s->base[WEAK] < 0) return FAIL(ERR_CONFIG, "nothing fits: there are no curves to draw");
    FILE *f = open_memstream(&script, &n);
    if (!f) return FAIL(ERR_MEMORY, "the scaling curves");
    for (int weak = STRONG; weak <= WEAK; weak++) {
        fprintf(f, "$d%d << EOD\n", weak);
        for (int i = 0; i < s->n; i++)
            if (s->best[i][weak].fits)
                fprintf(f, "%d %.9g %.9g\n", s->ranks[i], s->best[i][weak].tokens_per_s, ideal(s, i, weak));
        fprintf(f, "EOD\n");
    }
    fprintf(f, "set terminal %s size 760,520 font 'Sans,10' background rgb 'white'\n", svg ? "svg" : "pngcairo");
    fprintf(f, "set logscale xy\nset xlabel 'ranks'\nset ylabel 'tokens/s'\nset grid lc rgb '#e4e4e4' lt 1\nset key top left\n"
               "set border 3 lc rgb '#808080'\nset tics nomirror\nset xtics (");
    for (int i = 0; i < s->n; i++) fprintf(f, "%s%d", i ? ", " : "", s->ranks[i]);
    fprintf(f, ")\nset xrange [%g:%g]\nplot ", 0.8 * s->ranks[0], 1.25 * s->ranks[s->n - 1]);
    static const char *const color[] = {"#1f6fb4", "#e07b1a"}, *const title[] = {"strong: the batch as it is",
                                                                                "weak: the batch grows with the ranks"};
    for (int weak = STRONG; weak <= WEAK; weak++)
        if (s->base[weak] >= 0)
            fprintf(f, "$d%d using 1:2 with linespoints pt 7 lw 2 lc rgb '%s' title '%s', $d%d using 1:3 with lines dt 2 lc rgb "
                       "'%s' title 'ideal'%s", weak, color[weak], title[weak], weak, color[weak],
                    weak == STRONG && s->base[WEAK] >= 0 ? ", " : "\n");
    enum status st = fclose(f) ? FAIL(ERR_MEMORY, "the scaling curves") : OK;
    if (!st) st = gnuplot_run(script, n, path, 60);
    free(script);
    return st;
}

enum status plan_scaling(const struct plan_input *in, int most, const char *picture, FILE *out)
{
    struct scaling *s = malloc(sizeof *s);
    if (!s) return FAIL(ERR_MEMORY, "scaling");
    enum status st = measure(s, in, most);
    if (!st) print_table(s, out);
    fflush(out);
    if (!st && picture) st = draw(s, picture);
    free(s);
    return st;
}
