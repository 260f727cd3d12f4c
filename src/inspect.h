/* m3 inspect: what is in a release folder, a safetensors file, a checkpoint or any other of the program's HDF5 files.
 *
 * A view is what they have in common: named tensors with shapes and dtypes that can be read piece by piece as float32. */
#ifndef INSPECT_H
#define INSPECT_H
#include "tensor.h"

enum { INSPECT_MAX_FILES = 2 };

struct release;
struct st_file;
struct h5file;

struct inspect_item {
    char *name;
    const char *dtype;       /* as stored: "BF16", "MXFP8", ... */
    int rank;
    int64_t dim[8];
    int64_t rows, cols;      /* of the pieces it is read in */
    int64_t bytes;           /* stored */
    bool numbers;            /* can be read as float32 */
    const void *at;          /* the view's own */
    int file;
};

struct inspect_view {
    char *path;              /* as found: the checkpoint of a run folder */
    const char *kind;        /* "release", "safetensors", "checkpoint", "HDF5" */
    struct release *release;
    struct st_file *st;
    struct h5file *h5[INSPECT_MAX_FILES];
    int files;
    struct inspect_item *item; /* [n] in the order of names */
    int64_t n;
};

/* Opens whatever `path` is, with the checks that its kind has. ERR_IO, ERR_FORMAT. */
enum status inspect_open(struct inspect_view *v, const char *path);
void inspect_close(struct inspect_view *v);
const struct inspect_item *inspect_find(const struct inspect_view *v, const char *name);
/* Rows [row, row + n) as float32 [n, cols]. */
enum status inspect_read(const struct inspect_view *v, const struct inspect_item *t, int64_t row, int64_t n, float *out);
/* Every checksum there is (HDF5), every byte readable and every quantised value decodable (releases). */
enum status inspect_verify(struct inspect_view *v);

struct inspect_stats {
    double min, max, mean, rms;
    int64_t nan, inf, count;
};
enum status inspect_stats(const struct inspect_view *v, const struct inspect_item *t, struct inspect_stats *s);

struct inspect_args {
    const char *path, *other; /* other: compare */
    const char *mesh;        /* "tp,pp,ep,dp" or NULL */
    double tolerance;        /* of a comparison: largest absolute difference that is none */
    bool stats, verify, json;
};
/* Prints to standard output. ERR_GATE when a comparison found a difference. */
enum status inspect_run(const struct inspect_args *a);
#endif
