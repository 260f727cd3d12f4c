/* The device beside the op table: whether one answers, queues that follow each other, memory left. Without CUDA in the
 * build these are stubs (device_cpu.c). */
#ifndef DEVICE_H
#define DEVICE_H
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* OK when a device of compute capability 9.0 answers; ERR_DEVICE with the reason otherwise. */
enum status cuda_available(void);
/* Work queued on s from now on starts after everything queued on `before` so far. The host does not wait. */
enum status stream_follow(struct stream *s, struct stream *before);
/* The cudaStream_t behind s, for NCCL; NULL on the CPU. */
void *stream_handle(struct stream *s);
/* Bytes of device memory free and in all, on the current device. */
enum status device_memory(size_t *left, size_t *total);
/* Milliseconds the device spends from here to there, by its own clock: timer_start and timer_stop queue marks on s,
 * timer_read waits for the second one. */
struct device_timer;
enum status device_timer_open(struct device_timer **t);
void device_timer_close(struct device_timer *t);
enum status device_timer_start(struct device_timer *t, struct stream *s);
enum status device_timer_stop(struct device_timer *t, struct stream *s);
enum status device_timer_read(struct device_timer *t, double *ms);

/* Times every op queued on s from now on by the device's clock, up to PROFILE_OPS of them; ops also are ranges in Nsight
 * (NVTX) always. device_profile_print waits for s and prints a table, line by line: op, calls, milliseconds, share. On the
 * CPU (s NULL) nothing is timed or printed. */
enum { PROFILE_OPS = 1 << 17 };
enum status device_profile_start(struct stream *s);
void device_profile_stop(struct stream *s);
enum status device_profile_print(struct stream *s, void (*line)(void *ctx, const char *text), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
