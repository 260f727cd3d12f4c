/* Errors are values. A fallible function returns enum status; the first failure records a message that carries both
 * values ("tp=3 does not divide num_attention_heads=64"), every frame above adds its place, and only main() ends the
 * process. The message and the trace belong to the calling thread. Log lines go to stderr and, once log_open() ran, to
 * the run's log files. */
#ifndef STATUS_H
#define STATUS_H
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum status {
    OK = 0,
    ERR_USAGE,    /* wrong command line                      exit 2 */
    ERR_CONFIG,   /* a configuration that cannot work        exit 2 */
    ERR_IO,       /* the system refused: open, read, full    exit 1 */
    ERR_FORMAT,   /* a file that is not what it should be    exit 1 */
    ERR_MEMORY,   /* an allocation or an arena ran out       exit 1 */
    ERR_COMM,     /* MPI or NCCL                             exit 1 */
    ERR_DEVICE,   /* CUDA or cuBLAS                          exit 1 */
    ERR_PEER,     /* another rank failed; its message counts exit 1 */
    ERR_INTERNAL, /* a broken promise inside the program     exit 1 */
    ERR_GATE,     /* a gate of the configuration failed      exit 3 */
    ERR_STOPPED   /* stopped by a signal, checkpoint written exit 75 */
};

/* Process exit status for a status value. */
int status_exit_code(enum status s);

/* Records message and place, returns `s`. A second call on the same thread replaces the first message. */
enum status status_fail(enum status s, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds one frame to the trace of the failure being returned, returns `s`. */
enum status status_trace(enum status s, const char *file, int line);
/* The recorded message ("" when none), and the trace "file:line < file:line". Valid until the thread's next failure. */
const char *status_message(void);
const char *status_where(void);
/* Puts `prefix: ` before the recorded message (a file name, a line number, a tensor); returns `s`. */
enum status status_prefix(enum status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define FAIL(code, ...) status_fail((code), __FILE__, __LINE__, __VA_ARGS__)
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum status try_status_ = (call);                                                                              \
        if (try_status_) return status_trace(try_status_, __FILE__, __LINE__);                                         \
    } while (0)
/* The same where something must be released: sets `var` and jumps. */
#define TRY_GOTO(var, label, call)                                                                                     \
    do {                                                                                                               \
        (var) = (call);                                                                                                \
        if (var) {                                                                                                     \
            status_trace((var), __FILE__, __LINE__);                                                                   \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Rank 0 prints LOG_INFO and up on stderr, the others LOG_WARN and up. With `path`, every line is also appended there
 * (created 0600). Call again with NULL to close. */
enum status log_open(int rank, const char *path);
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)

/* Seconds on the monotonic clock. */
double time_now(void);

#ifdef __cplusplus
}
#endif
#endif
