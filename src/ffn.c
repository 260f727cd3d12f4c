/* The second half of a block: residual add + norm, then the dense MLP, or experts beside the shared expert (moe.c).
 * The dense MLP and the shared expert are the same two column/row split products around swigluoai. */
#include "block.h"

/* part [T, C] = this rank's share of the MLP of h [T, C]. */
static enum status mlp_forward(const struct model *m, struct layer *y, int64_t T, struct saved_ffn *s,
                               struct workspace *w, struct tensor part, struct tensor h)
{
    int64_t F = y->down.dim[1];
    struct tensor gate_up = fit2(s->gate_up, T, 2 * F), act = fit2(w->act, T, F);
    TRY(m->ops->linear_forward(gate_up, h, y->gate_up, m->stream));
    TRY(m->ops->swiglu_forward(act, gate_up, m->arch.swiglu_alpha, m->arch.swiglu_limit, m->stream));
    return m->ops->linear_forward(part, act, y->down, m->stream);
}

/* dh [T, C] = this rank's share of the input gradient; += d_gate_up, d_down. */
static enum status mlp_backward(const struct model *m, struct layer *y, int64_t T, struct saved_ffn *s,
                                struct workspace *w, struct tensor dh, struct tensor h, struct tensor d_part)
{
    const struct arch *a = &m->arch;
    int64_t F = y->down.dim[1];
    struct tensor gate_up = fit2(s->gate_up, T, 2 * F), d_gate_up = fit2(w->d_gate_up, T, 2 * F);
    struct tensor act = fit2(w->act, T, F), d_act = fit2(w->d_act, T, F);
    TRY(m->ops->swiglu_forward(act, gate_up, a->swiglu_alpha, a->swiglu_limit, m->stream));
    TRY(m->ops->linear_dw(y->d_down, d_part, act, m->stream));
    TRY(m->ops->linear_dx(d_act, d_part, y->down, false, m->stream));
    TRY(m->ops->swiglu_backward(d_gate_up, d_act, gate_up, a->swiglu_alpha, a->swiglu_limit, m->stream));
    TRY(m->ops->linear_dw(y->d_gate_up, d_gate_up, h, m->stream));
    return m->ops->linear_dx(dh, d_gate_up, y->gate_up, false, m->stream);
}

enum status ffn_forward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                        struct workspace *w, struct tensor x, struct tensor add, struct tensor out)
{
    int64_t C = m->arch.hidden, Tl = x.dim[0];
    struct tensor x1 = fit2(s->x1, Tl, C), h = fit2(w->h_shard, Tl, C), shared = fit2(w->out, Tl, C);
    TRY(m->ops->rmsnorm_forward(h, fit1(s->rstd, Tl), x1, x, add, y->post_norm, m->arch.rms_eps, m->stream));
    if (y->moe) TRY(moe_forward(m, y, p, s, w, h, out));
    if (tensor_none(y->gate_up)) return m->ops->add(out, out, x1, m->stream); /* experts without a shared one */
    struct tensor full = fit2(w->h, p->T, C), part = fit2(w->part, p->T, C);
    TRY(tp_gather(m, &full, h));
    TRY(mlp_forward(m, y, p->T, s, w, part, full));
    TRY(tp_scatter(m, &shared, part));
    if (y->moe) TRY(m->ops->add(out, out, shared, m->stream));
    else TRY(m->ops->add(out, x1, shared, m->stream));
    return y->moe ? m->ops->add(out, out, x1, m->stream) : OK;
}

enum status ffn_backward(const struct model *m, struct layer *y, const struct pass *p, struct saved_ffn *s,
                         struct workspace *w, struct tensor dx1, struct tensor d_out)
{
    int64_t C = m->arch.hidden, Tl = d_out.dim[0];
    struct tensor none = TENSOR_NONE, x1 = fit2(s->x1, Tl, C), h = fit2(w->h_shard, Tl, C), dh = fit2(w->out, Tl, C);
    TRY(m->ops->rmsnorm_forward(h, fit1(w->rstd, Tl), none, x1, none, y->post_norm, m->arch.rms_eps, m->stream));
    if (!tensor_none(y->gate_up)) {
        struct tensor full = fit2(w->h, p->T, C), d_part = fit2(w->d_full, p->T, C), d_full = fit2(w->part, p->T, C);
        TRY(tp_gather(m, &full, h));
        TRY(tp_gather(m, &d_part, d_out));
        TRY(mlp_backward(m, y, p->T, s, w, d_full, full, d_part));
        TRY(tp_scatter(m, &dh, d_full));
    } else {
        TRY(m->ops->zero(dh, m->stream));
    }
    if (y->moe) TRY(moe_backward(m, y, p, s, w, dh, h, d_out)); /* dh += */
    return m->ops->rmsnorm_backward(dx1, y->d_post_norm, dh, x1, y->post_norm, fit1(s->rstd, Tl), d_out, m->stream);
}
