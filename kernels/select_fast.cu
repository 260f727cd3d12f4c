#include "select.cuh"

bool select_fits(const struct select_shape *z, enum dtype t)
{
    (void)z, (void)t;
    return false;
}
enum status select_scores_bf16(const struct select_shape *z, struct stream *s)
{
    (void)z, (void)s;
    return OK;
}
