#include "plan_machine.h"

#include "settings.h"
#include "value.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum kind { RATE, SHARE, SIZE, COUNT };

static const struct field {
    const char *key;
    size_t offset;
    enum kind kind;
} fields[] = {
#define F(key, kind) {#key, offsetof(struct plan_machine, key), kind}
    F(ranks_per_node, COUNT), F(link_ranks, COUNT),
    F(flops, RATE), F(gemm_share, SHARE), F(grouped_share, SHARE), F(attention_share, SHARE),
    F(memory_bytes_s, RATE), F(memory_share, SHARE), F(memory_bytes, RATE), F(reserved_bytes, SIZE),
    F(link_bytes_s, RATE), F(link_share, SHARE), F(network_bytes_s, RATE), F(network_share, SHARE),
    F(link_latency_s, SIZE), F(network_latency_s, SIZE), F(launch_s, SIZE), F(host_bytes, RATE),
    F(disk_bytes, SIZE), F(disk_read_bytes_s, RATE), F(disk_write_bytes_s, RATE), F(shared_bytes_s, RATE),
#undef F
};
enum { FIELDS = sizeof fields / sizeof *fields };

static enum status set_number(struct plan_machine *m, const struct field *f, const struct setting *s, const char *origin)
{
    double x = 0;
    const char *why = s->is_list ? "is a list" : value_float(s->value[0], &x);
    if (why) return FAIL(ERR_CONFIG, "%s:%d: %s: \"%s\" %s", origin, s->line, s->key, s->n ? s->value[0] : "", why);
    double lo = f->kind == SIZE ? 0 : f->kind == COUNT ? 1 : 1e-9;
    double hi = f->kind == SHARE ? 1 : f->kind == COUNT ? 1 << 20 : 1e24;
    if (!(x >= lo && x <= hi))
        return FAIL(ERR_CONFIG, "%s:%d: %s=%g is not within %g and %g", origin, s->line, s->key, x, lo, hi);
    if (f->kind == COUNT) *(int *)((char *)m + f->offset) = (int)x;
    else *(double *)((char *)m + f->offset) = x;
    return OK;
}

static enum status set_text(struct plan_machine *m, const struct setting *s, const char *origin)
{
    const char *text = s->is_list ? "" : s->value[0];
    if (strcmp(s->key, "name") == 0) {
        if (snprintf(m->name, sizeof m->name, "%s", text) < (int)sizeof m->name && *text) return OK;
        return FAIL(ERR_CONFIG, "%s:%d: name: between 1 and %zu characters", origin, s->line, sizeof m->name - 1);
    }
    m->gpu = strcmp(text, "cuda") == 0;
    if (m->gpu || strcmp(text, "cpu") == 0) return OK;
    return FAIL(ERR_CONFIG, "%s:%d: device: \"%.64s\" is neither cpu nor cuda", origin, s->line, text);
}

static enum status fill(struct plan_machine *m, const struct settings *s)
{
    bool seen[FIELDS] = {false};
    for (int i = 0; i < s->n; i++) {
        int f = 0;
        while (f < FIELDS && strcmp(fields[f].key, s->item[i].key)) f++;
        bool text = strcmp(s->item[i].key, "name") == 0 || strcmp(s->item[i].key, "device") == 0;
        if (f == FIELDS && !text)
            return FAIL(ERR_CONFIG, "%s:%d: %s is no key of a machine file", s->origin, s->item[i].line, s->item[i].key);
        if (text) TRY(set_text(m, &s->item[i], s->origin));
        else TRY(set_number(m, &fields[f], &s->item[i], s->origin));
        if (!text) seen[f] = true;
    }
    for (int f = 0; f < FIELDS; f++)
        if (!seen[f]) return FAIL(ERR_CONFIG, "%s: %s is missing", s->origin, fields[f].key);
    if (!*m->name || !settings_find(s, "device")) return FAIL(ERR_CONFIG, "%s: name or device is missing", s->origin);
    return OK;
}

/* NAME -> the file of that name in the working folder's configs/machines, else in that beside the program's folder. */
static enum status find_file(char path[PATH_MAX], const char *name)
{
    char program[PATH_MAX];
    if (strchr(name, '/') || strstr(name, ".yaml")) {
        if (snprintf(path, PATH_MAX, "%s", name) < PATH_MAX) return OK;
        return FAIL(ERR_CONFIG, "machine: a path of %zu characters", strlen(name));
    }
    if (snprintf(path, PATH_MAX, "configs/machines/%s.yaml", name) < PATH_MAX && access(path, R_OK) == 0) return OK;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 3 && strrchr(program, '/'); up++) { /* build/m3, build/tests/test_plan */
        *strrchr(program, '/') = 0;
        if (snprintf(path, PATH_MAX, "%s/configs/machines/%s.yaml", program, name) < PATH_MAX && access(path, R_OK) == 0)
            return OK;
    }
    return FAIL(ERR_IO, "machine %s: there is no configs/machines/%s.yaml here or beside the program", name, name);
}

enum status plan_machine_load(struct plan_machine *m, const char *name_or_path)
{
    char path[PATH_MAX];
    struct settings s;
    *m = (struct plan_machine){0};
    TRY(find_file(path, name_or_path));
    enum status st = settings_read_file(&s, path);
    TRY(st == ERR_FORMAT ? ERR_CONFIG : st);
    st = fill(m, &s);
    settings_free(&s);
    return st;
}
