#include "progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PLAIN_WIDTH = 160, BAR = 20 };

const char *progress_duration(char text[32], double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(text, 32, "?");
        return text;
    }
    long long s = (long long)(seconds + 0.5);
    if (s < 60)
        snprintf(text, 32, "%llds", s);
    else if (s < 3600)
        snprintf(text, 32, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, 32, "%lldh%02lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(text, 32, "%lldd%02lldh", s / 86400, s % 86400 / 3600);
    return text;
}

/* 950, 12.3k, 4.56M */
static const char *short_number(char text[32], double x)
{
    static const char unit[] = " kMGT";
    int u = 0;
    while (x >= 999.5 && u < 4) x /= 1000, u++;
    if (u)
        snprintf(text, 32, "%.3g%c", x, unit[u]);
    else
        snprintf(text, 32, "%.3g", x);
    return text;
}

struct line {
    char *text;
    int n, room;
};

/* Adds a whole item or nothing. */
static void add(struct line *l, const char *item)
{
    int len = (int)strlen(item), gap = l->n ? 2 : 0;
    if (l->n + gap + len > l->room) return;
    l->n += sprintf(l->text + l->n, "%*s%s", gap, "", item);
}

static void add_value(struct line *l, const char *name, double x)
{
    char item[64];
    if (isnan(x)) return;
    snprintf(item, sizeof item, "%s %.4g", name, x);
    add(l, item);
}

int progress_text(char *text, size_t size, int width, const struct progress_view *v)
{
    struct line l = {text, 0, width < (int)size - 1 ? width : (int)size - 1};
    char item[96], number[32];
    int digits = snprintf(NULL, 0, "%lld", (long long)v->total);
    *text = 0;
    snprintf(item, sizeof item, "step %*lld/%lld", digits, (long long)v->step, (long long)v->total);
    add(&l, item);
    add_value(&l, "loss", v->loss);
    add_value(&l, "reward", v->reward);
    if (!isnan(v->eta_s)) {
        snprintf(item, sizeof item, "eta %s", progress_duration(number, v->eta_s));
        add(&l, item);
    }
    if (!isnan(v->tokens_per_s)) {
        snprintf(item, sizeof item, "%s tokens/s", short_number(number, v->tokens_per_s));
        add(&l, item);
    }
    add_value(&l, "eval_loss", v->eval_loss);
    add_value(&l, "grad_norm", v->grad_norm);
    return l.n;
}

void progress_open(struct progress *p, enum progress_kind kind, int64_t every, int64_t first, int64_t total)
{
    if (kind == PROGRESS_AUTO) kind = isatty(STDERR_FILENO) ? PROGRESS_LINE : PROGRESS_PLAIN;
    *p = (struct progress){kind, every < 1 ? 1 : every, first, total, time_now(), 0, false};
}

static int terminal_width(void)
{
    struct winsize w;
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col > 0) return w.ws_col;
    const char *columns = getenv("COLUMNS");
    int n = columns ? atoi(columns) : 0;
    return n > 0 && n < 10000 ? n : 80;
}

/* The bar stands before the text where there is room for both. The last column stays free: some terminals wrap. */
static void draw(const struct progress_view *v)
{
    char text[512], line[1024], bar[BAR + 4] = "";
    int width = terminal_width() - 1, n = progress_text(text, sizeof text, width, v);
    if (v->total > 0 && n + BAR + 3 <= width) {
        int full = (int)((double)BAR * (double)v->step / (double)v->total);
        if (full > BAR) full = BAR;
        bar[0] = '[';
        for (int i = 0; i < BAR; i++) bar[1 + i] = i < full ? '#' : '.';
        memcpy(bar + 1 + BAR, "] ", 3);
    }
    int len = snprintf(line, sizeof line, "\r%s%s\033[K", bar, text);
    ssize_t done = write(STDERR_FILENO, line, (size_t)len);
    (void)done; /* nobody to tell when the terminal is gone */
}

void progress_show(struct progress *p, struct progress_view v)
{
    double now = time_now();
    int64_t made = v.step - p->first;
    bool last = v.step >= p->total;
    v.total = p->total;
    v.eta_s = made > 0 && !last ? (now - p->start) / (double)made * (double)(p->total - v.step) : NAN;
    if (p->kind == PROGRESS_LINE && (last || !p->drawn || now - p->last >= 0.1)) {
        draw(&v);
        p->drawn = true;
        p->last = now;
    }
    if (!last && v.step % p->every) return;
    char text[PLAIN_WIDTH + 1];
    progress_text(text, sizeof text, PLAIN_WIDTH, &v);
    /* A debug line goes to the log file only: the terminal has its own. */
    log_line(p->kind == PROGRESS_LINE ? LOG_DEBUG : LOG_INFO, "%s", text);
}

void progress_close(struct progress *p)
{
    if (!p->drawn) return;
    p->drawn = false;
    ssize_t done = write(STDERR_FILENO, "\n", 1);
    (void)done;
}
