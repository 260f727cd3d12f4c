/* The routed experts. Tokens are routed where they are (a rank's Tl rows), sorted by expert, sent to the experts' ranks,
 * multiplied in one grouped product, sent back and combined:
 *
 *   h [Tl, C] -> router -> experts, weights [Tl, k] -> sent rows by expert -(all-to-all)-> arrived rows by source
 *     -> x [R, C] by expert -> w13 -> swigluoai -> w2 -> back by source -(all-to-all)-> rows [sent, C] -> combine
 *
 * With ep 1 the sent rows are the experts' rows, nothing is exchanged and the host never waits for the device.
 * Rows of no sequence have experts -1: they are not sent and count nowhere. A rank or an expert without a token runs the
 * same collectives with zero rows. */
#include "block.h"

#include <inttypes.h>

/* Counts to and from every member, then the order of the received rows: by source as they arrive, by expert as the
 * grouped product wants them. Collective over ep. */
static enum status exchange_counts(const struct model *m, struct saved_ffn *s, struct workspace *w)
{
    struct group *g = (struct group *)&m->mesh->ep_group;
    int64_t E = m->arch.experts, El = E / g->size, ep = g->size;
    int32_t *offsets = w->host_offsets.data, *mine = w->host_counts[0].data, *theirs = w->host_counts[1].data;
    TRY(m->ops->copy(fit1(w->host_offsets, E + 1), fit1(w->offsets_all, E + 1), m->stream));
    TRY(m->ops->wait(m->stream));
    for (int64_t e = 0; e < E; e++) mine[e] = offsets[e + 1] - offsets[e];
    s->sent = offsets[E];
    int64_t one[ep];
    for (int64_t i = 0; i < ep; i++) one[i] = 1, s->send_rows[i] = offsets[(i + 1) * El] - offsets[i * El];
    struct tensor in = fit2(w->host_counts[0], ep, El), out = fit2(w->host_counts[1], ep, El);
    TRY(comm_all_to_all(g, out, in, one, one, NULL));

    int64_t received = 0;
    for (int64_t i = 0; i < ep; i++) {
        s->recv_rows[i] = 0;
        for (int64_t e = 0; e < El; e++) {
            if (theirs[i * El + e] < 0)
                return FAIL(ERR_INTERNAL, "expert-parallel rank %" PRId64 " announces %d rows for expert %" PRId64, i,
                            theirs[i * El + e], e);
            s->recv_rows[i] += theirs[i * El + e];
        }
        received += s->recv_rows[i];
    }
    if (received > s->x.dim[0])
        return FAIL(ERR_INTERNAL, "%" PRId64 " rows for my experts, room for %" PRId64, received, s->x.dim[0]);
    s->received = received;

    int32_t *by_expert = w->host_index[0].data, *by_source = w->host_index[1].data, row = 0;
    for (int64_t e = 0; e < El; e++) {
        offsets[e] = row;
        int64_t source_start = 0;
        for (int64_t i = 0; i < ep; i++) {
            int64_t at = source_start;
            for (int64_t f = 0; f < e; f++) at += theirs[i * El + f];
            for (int32_t n = 0; n < theirs[i * El + e]; n++, at++, row++) {
                by_expert[row] = (int32_t)at;
                by_source[at] = row;
            }
            source_start += s->recv_rows[i];
        }
    }
    offsets[El] = row;
    TRY(m->ops->copy(fit1(s->offsets, El + 1), fit1(w->host_offsets, El + 1), m->stream));
    TRY(m->ops->copy(fit1(s->by_expert, received), fit1(w->host_index[0], received), m->stream));
    return m->ops->copy(fit1(s->by_source, received), fit1(w->host_index[1], received), m->stream);
}

/* rows [sent, C] at the tokens' ranks -> x [received, C] at the experts' ranks, by expert. */
static enum status to_experts(const struct model *m, struct saved_ffn *s, struct workspace *w, struct tensor x,
                              struct tensor rows)
{
    struct group *g = (struct group *)&m->mesh->ep_group;
    struct tensor arrived = fit2(w->arrived, s->received, m->arch.hidden);
    TRY(comm_all_to_all(g, arrived, tensor_rows(rows, 0, s->sent), s->send_rows, s->recv_rows, NULL));
    return m->ops->gather_rows(x, arrived, fit1(s->by_expert, s->received), m->stream);
}

/* The way back. */
static enum status to_tokens(const struct model *m, struct saved_ffn *s, struct workspace *w, struct tensor rows,
                             struct tensor x)
{
    struct group *g = (struct group *)&m->mesh->ep_group;
    struct tensor leaving = fit2(w->arrived, s->received, m->arch.hidden);
    TRY(m->ops->gather_rows(leaving, x, fit1(s->by_source, s->received), m->stream));
    return comm_all_to_all(g, tensor_rows(rows, 0, s->sent), leaving, s->recv_rows, s->send_rows, NULL);
}

/* out [Tl, C] = routed_scale * sum of the chosen experts' outputs, weighted. */
enum status moe_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                        struct workspace *w, struct tensor h, struct tensor out)
{
    const struct arch *a = &m->arch;
    const struct ops *ops = m->ops;
    int64_t C = a->hidden, F = a->expert_ffn, k = a->experts_per_token, Tl = h.dim[0], ep = m->mesh->ep;
    int64_t first = Tl * m->mesh->tp_rank, valid = p->valid - first;
    valid = valid < 0 ? 0 : valid > Tl ? Tl : valid;

    struct tensor logits = fit2(s->logits, Tl, a->experts), experts = fit2(s->experts, Tl, k);
    struct tensor weights = fit2(s->weights, Tl, k), row_of = fit2(s->row_of, Tl, k);
    struct tensor row_token = fit1(w->row_token, Tl * k);
    struct tensor offsets = ep == 1 ? fit1(s->offsets, a->experts + 1) : fit1(w->offsets_all, a->experts + 1);
    TRY(ops->linear_forward(logits, h, y->router, m->stream));
    bool replay = !tensor_none(p->replay);
    if (replay) {
        struct tensor given = tensor_rows(p->replay, y->index - m->mesh->first_layer, 1);
        TRY(ops->copy(experts, fit2(given, Tl, k), m->stream));
    }
    TRY(ops->route_forward(experts, weights, logits, y->bias, valid, replay, m->stream));
    TRY(ops->dispatch(offsets, row_token, row_of, experts, m->stream));

    s->sent = s->received = Tl * k;
    struct tensor x, rows = fit2(s->rows, Tl * k, C);
    if (ep == 1) {
        x = fit2(s->x, Tl * k, C);
        TRY(ops->gather_rows(x, h, row_token, m->stream));
    } else {
        TRY(exchange_counts(m, s, w));
        struct tensor send = fit2(w->send, s->sent, C);
        TRY(ops->gather_rows(send, h, fit1(row_token, s->sent), m->stream));
        x = fit2(s->x, s->received, C);
        TRY(to_experts(m, s, w, x, send));
    }
    struct tensor my_offsets = fit1(s->offsets, a->experts / ep + 1);
    struct tensor hidden = fit2(s->h, s->received, 2 * F), act = fit2(w->e_act, s->received, F);
    struct tensor result = ep == 1 ? rows : fit2(w->e_rows, s->received, C);
    TRY(ops->grouped_forward(hidden, x, y->w13, my_offsets, m->stream));
    TRY(ops->swiglu_forward(act, hidden, a->swiglu_alpha, a->swiglu_limit, m->stream));
    TRY(ops->grouped_forward(result, act, y->w2, my_offsets, m->stream));
    if (ep > 1) TRY(to_tokens(m, s, w, rows, result));
    return ops->combine_forward(out, rows, row_of, weights, a->routed_scale, TENSOR_NONE, m->stream);
}

/* dh [Tl, C] += gradient of the routed experts and of the router; += d_w13, d_w2, d_router. */
enum status moe_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                         struct workspace *w, struct tensor dh, struct tensor h, struct tensor d_out)
{
    (void)p;
    const struct arch *a = &m->arch;
    const struct ops *ops = m->ops;
    int64_t C = a->hidden, F = a->expert_ffn, k = a->experts_per_token, Tl = h.dim[0], ep = m->mesh->ep;
    struct tensor experts = fit2(s->experts, Tl, k), weights = fit2(s->weights, Tl, k), row_of = fit2(s->row_of, Tl, k);
    struct tensor d_weights = fit2(w->d_weights, Tl, k), d_logits = fit2(w->d_logits, Tl, a->experts);
    struct tensor my_offsets = fit1(s->offsets, a->experts / ep + 1);

    struct tensor d_send = fit2(w->send, Tl * k, C), d_result = d_send;
    TRY(ops->combine_backward(d_send, d_weights, d_out, fit2(s->rows, Tl * k, C), row_of, weights, a->routed_scale,
                              m->stream));
    if (ep > 1) {
        d_result = fit2(w->e_rows, s->received, C);
        TRY(to_experts(m, s, w, d_result, d_send));
    }
    struct tensor x = fit2(s->x, s->received, C), hidden = fit2(s->h, s->received, 2 * F);
    struct tensor act = fit2(w->e_act, s->received, F), d_act = fit2(w->e_dact, s->received, F);
    struct tensor d_hidden = fit2(w->e_dh, s->received, 2 * F), d_x = fit2(w->back, s->received, C);
    TRY(ops->swiglu_forward(act, hidden, a->swiglu_alpha, a->swiglu_limit, m->stream));
    TRY(ops->grouped_dw(y->d_w2, d_result, act, my_offsets, m->stream));
    TRY(ops->grouped_dx(d_act, d_result, y->w2, my_offsets, m->stream));
    TRY(ops->swiglu_backward(d_hidden, d_act, hidden, a->swiglu_alpha, a->swiglu_limit, m->stream));
    TRY(ops->grouped_dw(y->d_w13, d_hidden, x, my_offsets, m->stream));
    TRY(ops->grouped_dx(d_x, d_hidden, y->w13, my_offsets, m->stream));
    if (ep > 1) {
        TRY(to_tokens(m, s, w, d_send, d_x));
        d_x = d_send;
    }
    TRY(ops->combine_forward(dh, d_x, row_of, TENSOR_NONE, 1.0f, dh, m->stream));

    TRY(ops->route_backward(d_logits, d_weights, experts, fit2(s->logits, Tl, a->experts), m->stream));
    TRY(ops->linear_dw(y->d_router, d_logits, h, m->stream));
    return ops->linear_dx(dh, d_logits, y->router, true, m->stream);
}

int64_t moe_max_rows(const struct model *m, int64_t T)
{
    int64_t ep = m->mesh->ep, Tl = T / m->mesh->tp, k = m->arch.experts_per_token, El = m->arch.experts / ep;
    return ep == 1 ? Tl * k : ep * Tl * (k < El ? k : El);
}
