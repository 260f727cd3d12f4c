/* ranks: 4 */
/* State files through MPI-IO: every rank its own slices, another mesh reads and verifies them. */
#include "../io/fs.h"
#include "../io/hdf5.h"
#include "check.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size, passed, failed;
static char dir[PATH_MAX];

/* A case passes when it is OK on every rank. */
static void report(const char *name, enum status s)
{
    int bad = s != OK, any;
    if (bad) fprintf(stderr, "rank %d: %s: %s (%s)\n", rank, name, status_message(), status_where());
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) printf("%s %s\n", any ? "FAILED" : "ok", name);
    any ? failed++ : passed++;
}

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) return FAIL(ERR_INTERNAL, __VA_ARGS__);                                                      \
    } while (0)

static const char *in_dir(const char *name)
{
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Rank 0 creates, all hear how it went. */
static enum status create(const char *path, const struct h5_dataset *sets, int n)
{
    int s = OK;
    if (rank == 0) {
        unlink(path);
        s = h5_create(path, sets, n, true);
    }
    MPI_Bcast(&s, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return rank == 0 || s == OK ? (enum status)s : FAIL(ERR_PEER, "%s was not created", path);
}

static float value(int64_t i) { return check_uniform(5, (uint64_t)i) + 2; /* never 0 */ }

/* Rows [first, first + n) of x are rank r's; `empty` holds none. */
static void rows_of(int r, int empty, int64_t *first, int64_t *n)
{
    static const int64_t cut[] = {0, 3, 10, 11, 16};
    *first = cut[r];
    *n = r == empty ? 0 : cut[r + 1] - cut[r];
}

static enum status write_rows(const char *path, int empty, int twist)
{
    struct h5file *f;
    float data[16 * 6];
    int64_t first, n;
    TRY(h5_open_parallel(&f, MPI_COMM_WORLD, path, true));
    rows_of(rank, empty, &first, &n);
    for (int64_t i = 0; i < n * 6; i++) data[i] = value(first * 6 + i);
    enum status s = h5_write_slab(f, "/model/x", (int64_t[]){first, 0}, (int64_t[]){n, 6}, DT_F32, data);
    /* y is split by columns: slabs that are not contiguous in the file */
    for (int64_t i = 0; i < 8; i++)
        for (int64_t j = 0; j < 3; j++) data[i * 3 + j] = value(1000 + i * 12 + rank * 3 + j);
    if (!s) s = h5_write_slab(f, "/model/y", (int64_t[]){0, rank * 3}, (int64_t[]){8, 3}, DT_F32, data);
    if (!s && rank == twist) s = FAIL(ERR_INTERNAL, "this rank fails on purpose");
    return h5_close(&f, s);
}

static enum status read_back(const char *path, int empty)
{
    struct h5file *f;
    float data[16 * 6];
    TRY(h5_open_serial(&f, path, false));
    enum status s = h5_verify_all(f, empty < 0 ? rank : 0, empty < 0 ? size : 1);
    if (!s) s = h5_read_slab(f, "/model/x", (int64_t[]){0, 0}, (int64_t[]){16, 6}, DT_F32, data);
    for (int64_t i = 0; i < 96 && !s; i++)
        if (data[i] != value(i)) s = FAIL(ERR_FORMAT, "x element %d is %g, %g was written", (int)i, data[i], value(i));
    if (!s) s = h5_read_slab(f, "/model/y", (int64_t[]){0, 0}, (int64_t[]){8, 12}, DT_BF16, data);
    for (int64_t i = 0; i < 96 && !s; i++)
        if (((uint16_t *)data)[i] != bf16_from_float(value(1000 + i))) s = FAIL(ERR_FORMAT, "y element %d differs", (int)i);
    return h5_close(&f, s);
}

static const struct h5_dataset pair[] = {{"/model/x", DT_F32, 2, {16, 6}}, {"/model/y", DT_BF16, 2, {8, 12}}};

static enum status disjoint_slices_of_four_ranks_are_all_there(void)
{
    const char *path = in_dir("a.h5");
    TRY(create(path, pair, 2));
    TRY(write_rows(path, -1, -1));
    return read_back(path, -1);
}

static enum status a_rank_with_an_empty_selection_takes_part_and_the_hole_is_noticed(void)
{
    const char *path = in_dir("a.h5");
    for (int empty = 0; empty < size; empty++) {
        TRY(create(path, pair, 2));
        TRY(write_rows(path, empty, -1));
        enum status s = read_back(path, empty);
        EXPECT(s == ERR_FORMAT && strstr(status_message(), "elements were written"), "empty rank %d: %d %s", empty,
               (int)s, status_message());
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return OK;
}

static enum status one_ranks_failure_is_everyones_and_stores_no_checksums(void)
{
    const char *path = in_dir("a.h5");
    TRY(create(path, pair, 2));
    enum status s = write_rows(path, -1, 2);
    EXPECT(s == (rank == 2 ? ERR_INTERNAL : ERR_PEER), "status %d", (int)s);
    EXPECT(strstr(status_message(), rank == 2 ? "on purpose" : "rank 2 of 4 failed"), "message \"%s\"", status_message());
    EXPECT(read_back(path, 0) == ERR_FORMAT && strstr(status_message(), "no checksums"), "\"%s\"", status_message());
    EXPECT(!h5_is_complete(path), "complete");
    MPI_Barrier(MPI_COMM_WORLD);
    return OK;
}

static enum status a_missing_or_broken_file_is_refused_on_all_ranks(void)
{
    struct h5file *f;
    enum status s = h5_open_parallel(&f, MPI_COMM_WORLD, in_dir("nothing.h5"), true);
    EXPECT(s == (rank ? ERR_PEER : ERR_IO) && !f, "status %d", (int)s);
    const char *path = in_dir("b.h5");
    if (rank == 0) {
        FILE *text = fopen(path, "w");
        if (text) {
            fprintf(text, "this is text and no state file, whatever its name says");
            fclose(text);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    s = h5_open_parallel(&f, MPI_COMM_WORLD, path, false);
    EXPECT(s == (rank ? ERR_PEER : ERR_FORMAT) && !f, "status %d", (int)s);
    return OK;
}

static enum status parallel_files_take_no_attributes(void)
{
    const char *path = in_dir("a.h5");
    struct h5file *f;
    TRY(create(path, pair, 2));
    TRY(h5_open_parallel(&f, MPI_COMM_WORLD, path, true));
    enum status s = h5_put_int(f, "/", "step", 1);
    EXPECT(s == ERR_INTERNAL && strstr(status_message(), "one process"), "status %d", (int)s);
    return h5_close(&f, OK);
}

/* 2^31 + 8 bytes, sparse; each rank writes 4 KiB around the boundary or at the ends. */
static enum status writes_around_2_gib_arrive(void)
{
    const char *path = in_dir("a.h5");
    const int64_t n = (INT64_C(1) << 31) + 8, edge = INT64_C(1) << 31, from[4] = {0, edge - 4096, edge, edge - 8192};
    const int64_t count[4] = {4096, 4096, 8, 4096};
    struct h5_dataset set = {"/x", DT_U8, 1, {n}};
    unsigned char data[4096], back[4096];
    struct h5file *f;
    int s = OK;
    if (rank == 0) {
        unlink(path);
        s = h5_create(path, &set, 1, false);
    }
    MPI_Bcast(&s, 1, MPI_INT, 0, MPI_COMM_WORLD);
    EXPECT(s == OK, "not created");
    for (int i = 0; i < 4096; i++) data[i] = (unsigned char)check_hash((uint64_t)(i + 5000 * rank));
    TRY(h5_open_parallel(&f, MPI_COMM_WORLD, path, true));
    TRY(h5_close(&f, h5_write_slab(f, "/x", &from[rank], &count[rank], DT_U8, data)));
    TRY(h5_open_parallel(&f, MPI_COMM_WORLD, path, false));
    TRY(h5_close(&f, h5_read_slab(f, "/x", &from[rank], &count[rank], DT_U8, back)));
    EXPECT(memcmp(data, back, (size_t)count[rank]) == 0, "bytes differ at %lld", (long long)from[rank]);
    return OK;
}

static enum status folders_may_be_created_by_all_at_once(void)
{
    char deep[PATH_MAX + 64];
    for (int round = 0; round < 20; round++) {
        snprintf(deep, sizeof deep, "%s/race/%d/x/y", dir, round / 2);
        MPI_Barrier(MPI_COMM_WORLD);
        TRY(fs_mkdirs(deep));
        EXPECT(access(deep, W_OK) == 0, "%s is not there", deep);
    }
    return OK;
}

static void remove_all(void)
{
    char cmd[PATH_MAX + 80];
    static const char *const parts[] = {"/x/y", "/x", ""};
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < 3; k++) {
            snprintf(cmd, sizeof cmd, "%s/race/%d%s", dir, i, parts[k]);
            rmdir(cmd);
        }
    rmdir(in_dir("race"));
    unlink(in_dir("a.h5"));
    unlink(in_dir("b.h5"));
    rmdir(dir);
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        const char *tmp = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%s/m3_mpi_hdf5_XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(dir)) dir[0] = 0;
    }
    MPI_Bcast(dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (size != 4 || !dir[0]) {
        if (rank == 0) printf("%d ranks, 4 wanted; folder '%s'\n0 passed, 1 failed\n", size, dir);
        MPI_Finalize();
        return 1;
    }
#define CASE(fn) report(#fn, fn())
    CASE(disjoint_slices_of_four_ranks_are_all_there);
    CASE(a_rank_with_an_empty_selection_takes_part_and_the_hole_is_noticed);
    CASE(one_ranks_failure_is_everyones_and_stores_no_checksums);
    CASE(a_missing_or_broken_file_is_refused_on_all_ranks);
    CASE(parallel_files_take_no_attributes);
    CASE(writes_around_2_gib_arrive);
    CASE(folders_may_be_created_by_all_at_once);
    if (rank == 0) {
        remove_all();
        printf("%d passed, %d failed\n", passed, failed);
    }
    MPI_Finalize();
    return failed != 0;
}
