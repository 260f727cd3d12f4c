/* device.h for a build without CUDA. */
#ifndef HAVE_CUDA_BUILD
#include "device.h"

static enum status absent(void) { return FAIL(ERR_DEVICE, "this program was built without CUDA: nvcc was not found then"); }

enum status stream_follow(struct stream *s, struct stream *before)
{
    (void)s, (void)before;
    return OK;
}
void *stream_handle(struct stream *s)
{
    (void)s;
    return NULL;
}
enum status device_memory(size_t *left, size_t *total)
{
    *left = *total = 0;
    return absent();
}
enum status device_timer_open(struct device_timer **t)
{
    *t = NULL;
    return absent();
}
void device_timer_close(struct device_timer *t) { (void)t; }
enum status device_timer_start(struct device_timer *t, struct stream *s)
{
    (void)t, (void)s;
    return absent();
}
enum status device_timer_stop(struct device_timer *t, struct stream *s)
{
    (void)t, (void)s;
    return absent();
}
enum status device_timer_read(struct device_timer *t, double *ms)
{
    (void)t;
    *ms = 0;
    return absent();
}
enum status device_profile_start(struct stream *s)
{
    (void)s;
    return OK;
}
void device_profile_stop(struct stream *s) { (void)s; }
enum status device_profile_print(struct stream *s, void (*line)(void *ctx, const char *text), void *ctx)
{
    (void)s, (void)line, (void)ctx;
    return OK;
}
#else
typedef int device_cpu_is_empty;
#endif
