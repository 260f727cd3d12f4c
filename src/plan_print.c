/* The plan as text and as JSON. */
#include "plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 8 }; /* stages that a table has room for */

static const char *const recompute_name[] = {"none", "attention", "layer"};

static double gb(int64_t bytes) { return 1e-9 * (double)bytes; }

/* Bytes or parameters with three digits and a unit: "5.11 T". */
static const char *amount(char text[32], double x)
{
    static const char unit[] = " kMGT";
    int u = 0;
    for (; x >= 999.5 && u < 4; x /= 1000) u++;
    snprintf(text, 32, "%.3g %c", x, unit[u]);
    return text;
}

/* The stages to show: all, or the first, the worst and the last. */
static int shown(const struct plan *p, int list[SHOWN])
{
    int n = 0;
    for (int i = 0; i < p->n_stages && p->n_stages <= SHOWN; i++) list[n++] = i;
    if (n) return n;
    list[n++] = 0;
    if (p->worst > 0 && p->worst < p->n_stages - 1) list[n++] = p->worst;
    list[n++] = p->n_stages - 1;
    return n;
}

struct row {
    const char *name;
    size_t offset;
};
#define ROW(name, field) {name, offsetof(struct plan_rank, field)}
static const struct row memory_rows[] = {
    ROW("weights", weights), ROW("rollout weights", rollout_weights), ROW("gradients", gradients),
    ROW("activations, recompute none", activations[0]), ROW("  recompute attention", activations[1]),
    ROW("  recompute layer", activations[2]), ROW("adam", adam), ROW("KV pages", kv),
    ROW("decoding workspaces", rollout_work), ROW("  these lie in the above", lent), ROW("reference", reference),
    ROW("communication", comm), ROW("reserved", reserved), ROW("all", peak),
    ROW("host memory beside it", host), ROW("  micro-batches", host_work), ROW("  pinned buckets", host_adam),
    ROW("  samples of a step", host_samples), ROW("  weight exchange", host_sync), ROW("  reference", host_reference),
    ROW("local disk", spill)};
enum { MEMORY_ROWS = sizeof memory_rows / sizeof *memory_rows };

static int64_t value(const struct plan_rank *r, const struct row *row)
{
    return *(const int64_t *)((const char *)r + row->offset);
}

static void print_memory(const struct plan *p, FILE *out)
{
    int list[SHOWN], n = shown(p, list);
    fprintf(out, "\na rank of stage%*s", 15, "");
    for (int i = 0; i < n; i++) fprintf(out, "  %10d", list[i]);
    fprintf(out, "\n  layers                      ");
    for (int i = 0; i < n; i++) {
        char text[32];
        const struct plan_rank *r = &p->stage[list[i]];
        snprintf(text, sizeof text, "%d..%d", r->first_layer, r->first_layer + r->layers - 1);
        fprintf(out, "  %10s", text);
    }
    fprintf(out, "\n  parameters, 1e9             ");
    for (int i = 0; i < n; i++) fprintf(out, "  %10.4g", gb(p->stage[list[i]].params));
    fprintf(out, "\nmemory, GB\n");
    for (int k = 0; k < MEMORY_ROWS; k++) {
        int64_t most = 0;
        for (int i = 0; i < n; i++) most = value(&p->stage[list[i]], &memory_rows[k]) > most ? 1 : most;
        if (!most) continue;
        fprintf(out, "  %-28s", memory_rows[k].name);
        for (int i = 0; i < n; i++) fprintf(out, "  %10.4g", gb(value(&p->stage[list[i]], &memory_rows[k])));
        fprintf(out, "\n");
    }
    if (p->ranks > 1) fprintf(out, "sent a step, GB\n");
    for (int k = 0; k < PLAN_NETS; k++) {
        int64_t any = 0;
        for (int i = 0; i < n; i++) any |= p->stage[list[i]].sent[k];
        if (!any) continue;
        fprintf(out, "  over %-23s", plan_net_name[k]);
        for (int i = 0; i < n; i++) fprintf(out, "  %10.4g", gb(p->stage[list[i]].sent[k]));
        fprintf(out, "\n");
    }
    fprintf(out, "TFLOP a step                  ");
    for (int i = 0; i < n; i++) fprintf(out, "  %10.4g", 1e-12 * p->stage[list[i]].flops);
    fprintf(out, "\n");
}

void plan_print(const struct plan *p, const struct plan_input *in, FILE *out)
{
    const struct mesh_shape *s = &p->shape;
    const struct plan_machine *m = in->machine;
    fprintf(out, "%.6g M parameters, %.6g M trained; %d rank%s on %d node%s of %s: tp %d, pp %d, ep %d, dp %d\n",
            1e-6 * (double)p->params, 1e-6 * (double)p->trained, p->ranks, p->ranks == 1 ? "" : "s", p->nodes,
            p->nodes == 1 ? "" : "s", m->name, s->tp, s->pp, s->ep, s->dp);
    if (p->rollouts)
        fprintf(out, "rollouts on tp %d, ep %d, dp %d%s; %" PRId64 " KV pages of %" PRId64 " tokens a rank\n",
                p->rollout_shape.tp, p->rollout_shape.ep, p->rollout_shape.dp,
                p->aliased ? ", with the trainer's own weights" : "", p->pages, p->page_tokens);
    fprintf(out, "a step: %.0f samples of %.0f tokens on average, the longest %d; %d update%s of %" PRId64
            " micro-batches of at most %" PRId64 " rows; recompute %s\n", p->samples, in->sample_tokens, in->longest,
            p->updates, p->updates == 1 ? "" : "s", p->micro_batches, p->rows, recompute_name[p->recompute]);
    print_memory(p, out);
    fprintf(out, "\nworst: stage %d, %.1f GB of %.1f GB a rank; a node: %.1f GB of host memory (%.0f GB there)", p->worst,
            gb(p->stage[p->worst].peak), 1e-9 * m->memory_bytes, gb(p->host_node), 1e-9 * m->host_bytes);
    if (p->spilled) fprintf(out, ", %.1f GB of local disk (%.0f GB there)", gb(p->spill_node), 1e-9 * m->disk_bytes);
    char adam[32], checkpoint[32];
    fprintf(out, "\nAdam state in all %sB; a checkpoint %sB, about %.0f s to write\n", amount(adam, (double)p->adam_state),
            amount(checkpoint, (double)p->checkpoint), p->checkpoint_s);
    fprintf(out, "\ntime of a step, s (estimated)\n");
    for (int i = 0; i < PLAN_PARTS; i++)
        if (p->time[i] > 0) fprintf(out, "  %-20s %10.4g\n", plan_part_name[i], p->time[i]);
    fprintf(out, "  %-20s %10.4g   %.0f tokens/s, %.0f a rank; MFU %.1f%%\n", "step", p->step_s, p->tokens_per_s,
            p->tokens_per_s / p->ranks, 100 * p->mfu);
    fprintf(out, "limit: %s\n", p->limit);
    if (p->fits) fprintf(out, "it fits\n");
    else fprintf(out, "it does NOT fit: %s\n", p->why);
    if (!p->fits && *p->instead) fprintf(out, "this would: %s\n", p->instead);
    else if (!p->fits) fprintf(out, "no change of recompute, micro-batch, spill or up to 32 times the ranks would\n");
}

/* ---------------------------------------------------------------- JSON ------------------------------------------- */

static json_t *shape_json(const struct mesh_shape *s)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "tp", s->tp, "pp", s->pp, "ep", s->ep, "dp", s->dp);
}

static void set_int(json_t *o, const char *key, int64_t x) { json_object_set_new(o, key, json_integer(x)); }

static json_t *rank_json(const struct plan *p, const struct plan_rank *r)
{
    json_t *o = json_object(), *sent = json_object();
    set_int(o, "stage", r->stage);
    set_int(o, "rank", r->rank);
    set_int(o, "first_layer", r->first_layer);
    set_int(o, "layers", r->layers);
    set_int(o, "params", r->params);
    set_int(o, "trained", r->trained);
    set_int(o, "adam_elements", r->adam_elems);
    set_int(o, "weights_bytes", r->weights);
    set_int(o, "rollout_weights_bytes", r->rollout_weights);
    set_int(o, "gradients_bytes", r->gradients);
    set_int(o, "activations_bytes", r->activations[p->recompute]);
    for (int i = 0; i < 3; i++) {
        char key[64];
        snprintf(key, sizeof key, "activations_recompute_%s_bytes", recompute_name[i]);
        set_int(o, key, r->activations[i]);
    }
    set_int(o, "adam_bytes", r->adam);
    set_int(o, "kv_bytes", r->kv);
    set_int(o, "decoding_bytes", r->rollout_work);
    set_int(o, "communication_bytes", r->comm);
    set_int(o, "reserved_bytes", r->reserved);
    set_int(o, "lent_bytes", r->lent);
    set_int(o, "reference_bytes", r->reference);
    set_int(o, "peak_bytes", r->peak);
    set_int(o, "host_bytes", r->host);
    set_int(o, "host_batches_bytes", r->host_work);
    set_int(o, "host_buckets_bytes", r->host_adam);
    set_int(o, "host_samples_bytes", r->host_samples);
    set_int(o, "host_sync_bytes", r->host_sync);
    set_int(o, "host_reference_bytes", r->host_reference);
    set_int(o, "local_disk_bytes", r->spill);
    for (int i = 0; i < PLAN_NETS; i++) set_int(sent, plan_net_name[i], r->sent[i]);
    json_object_set_new(o, "sent_bytes", sent);
    json_object_set_new(o, "flop", json_real(r->flops));
    return o;
}

enum status plan_print_json(const struct plan *p, const struct plan_input *in, FILE *out)
{
    json_t *o = json_object(), *stages = json_array(), *time = json_object();
    json_object_set_new(o, "machine", json_string(in->machine->name));
    set_int(o, "ranks", p->ranks);
    set_int(o, "nodes", p->nodes);
    json_object_set_new(o, "mesh", shape_json(&p->shape));
    if (p->rollouts) json_object_set_new(o, "rollout_mesh", shape_json(&p->rollout_shape));
    set_int(o, "params", p->params);
    set_int(o, "trained", p->trained);
    set_int(o, "adam_state_bytes", p->adam_state);
    set_int(o, "checkpoint_bytes", p->checkpoint);
    set_int(o, "node_host_bytes", p->host_node);
    set_int(o, "node_local_disk_bytes", p->spill_node);
    set_int(o, "worst_stage", p->worst);
    set_int(o, "rows", p->rows);
    set_int(o, "micro_batches", p->micro_batches);
    set_int(o, "updates", p->updates);
    set_int(o, "kv_pages", p->pages);
    json_object_set_new(o, "tokens", json_real(p->tokens));
    for (int i = 0; i < p->n_stages; i++) json_array_append_new(stages, rank_json(p, &p->stage[i]));
    json_object_set_new(o, "stages", stages);
    for (int i = 0; i < PLAN_PARTS; i++) json_object_set_new(time, plan_part_name[i], json_real(p->time[i]));
    json_object_set_new(o, "time_s", time);
    json_object_set_new(o, "step_s", json_real(p->step_s));
    json_object_set_new(o, "checkpoint_s", json_real(p->checkpoint_s));
    json_object_set_new(o, "bubble", json_real(p->bubble));
    json_object_set_new(o, "model_flop", json_real(p->model_flops));
    json_object_set_new(o, "tokens_per_s", json_real(p->tokens_per_s));
    json_object_set_new(o, "mfu", json_real(p->mfu));
    json_object_set_new(o, "limit", json_string(p->limit));
    json_object_set_new(o, "fits", json_boolean(p->fits));
    json_object_set_new(o, "why", json_string(p->why));
    json_object_set_new(o, "instead", json_string(p->instead));
    int failed = json_dumpf(o, out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(o);
    if (failed || fprintf(out, "\n") < 0) return FAIL(ERR_IO, "the plan could not be written");
    return OK;
}
