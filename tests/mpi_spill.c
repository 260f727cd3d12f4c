/* ranks: 4 */
/* The spill of one node's ranks: one file, real blocks, direct I/O, and still an HDF5 file. */
#include "../io/fs.h"
#include "../io/hdf5.h"
#include "../io/io_bench.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, size, passed, failed, skipped;
static char dir[PATH_MAX];

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

static const struct spill_kind kinds[3] = {{"master", DT_F32}, {"exp_avg", DT_BF16}, {"exp_avg_sq", DT_BF16}};
/* Odd sizes: rank 3 has nothing in its first bucket. */
static int64_t elements_of(int bucket) { return rank == 3 && bucket == 0 ? 0 : 1000 + 777 * bucket + rank; }
enum { BUCKETS = 5 };

static enum status create(struct spill **s, const char *where, const char *run)
{
    int64_t elements[BUCKETS];
    for (int b = 0; b < BUCKETS; b++) elements[b] = elements_of(b);
    struct spill_options o = {.dir = where, .run = run, .node = MPI_COMM_WORLD, .rank = rank, .kind = kinds, .kinds = 3,
                              .elements = elements, .buckets = BUCKETS, .checksums = true};
    return spill_create(s, &o);
}

static unsigned char byte_of(int kind, int bucket, int64_t i)
{
    return (unsigned char)check_hash((uint64_t)(rank + 10 * kind + 100 * bucket) * 100000 + (uint64_t)i);
}

static enum status write_all(struct spill *s, char *buffer)
{
    for (int k = 0; k < 3; k++)
        for (int b = 0; b < BUCKETS; b++) {
            int64_t ticket;
            for (int64_t i = 0; i < spill_bytes(s, k, b); i++) buffer[i] = (char)byte_of(k, b, i);
            TRY(spill_write(s, k, b, buffer, &ticket));
            TRY(spill_wait(s, ticket));
        }
    return OK;
}

static enum status read_all(struct spill *s, char *buffer)
{
    for (int k = 0; k < 3; k++)
        for (int b = 0; b < BUCKETS; b++) {
            int64_t ticket;
            TRY(spill_read(s, k, b, buffer, &ticket));
            TRY(spill_wait(s, ticket));
            for (int64_t i = 0; i < spill_bytes(s, k, b); i++)
                EXPECT(buffer[i] == (char)byte_of(k, b, i), "kind %d bucket %d byte %lld differs", k, b, (long long)i);
        }
    return OK;
}

/* The file as HDF5 sees it: every dataset there, and bucket 1 of each kind where the spill wrote it. */
static enum status read_as_hdf5(struct spill *s, char *buffer)
{
    struct h5file *f;
    char name[64];
    TRY(h5_open_serial(&f, spill_path(s), false));
    enum status st = OK;
    for (int k = 0; k < 3 && !st; k++) {
        int64_t width = (int64_t)dtype_size(kinds[k].dtype), start = spill_bytes(s, k, 0) / width, count = elements_of(1);
        snprintf(name, sizeof name, "/rank_%04d/%s", rank, kinds[k].name);
        st = h5_read_slab(f, name, &start, &count, kinds[k].dtype, buffer);
        for (int64_t i = 0; i < count * width && !st; i++)
            if (buffer[i] != (char)byte_of(k, 1, i)) st = FAIL(ERR_FORMAT, "%s: byte %lld differs", name, (long long)i);
    }
    return h5_close(&f, st);
}

static enum status buckets_round_trip_and_the_file_stays_hdf5(void)
{
    struct spill *s;
    struct stat st;
    char *buffer = aligned_alloc(SPILL_ALIGN, 1 << 16);
    EXPECT(buffer, "no memory");
    TRY(create(&s, dir, "round"));
    enum status r = write_all(s, buffer);
    if (!r) r = read_all(s, buffer);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!r) r = read_as_hdf5(s, buffer);
    if (!r && (stat(spill_path(s), &st) || (st.st_mode & 0777) != 0600 || st.st_blocks * 512 < st.st_size - (4 << 20)))
        r = FAIL(ERR_IO, "%lld bytes, %lld on disk, mode %o", (long long)st.st_size, (long long)st.st_blocks * 512, st.st_mode & 0777);
    MPI_Barrier(MPI_COMM_WORLD);
    char path[800];
    snprintf(path, sizeof path, "%s", spill_path(s));
    spill_destroy(&s);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!r && access(path, F_OK) == 0) r = FAIL(ERR_IO, "%s was left behind", path);
    free(buffer);
    return r;
}

/* Rank 1's bucket 2 of exp_avg is damaged in the file; rank 1 alone must notice, by name. */
static enum status a_flipped_byte_in_a_bucket_is_found_by_name(void)
{
    struct spill *s;
    char *buffer = aligned_alloc(SPILL_ALIGN, 1 << 16);
    EXPECT(buffer, "no memory");
    TRY(create(&s, dir, "flip"));
    enum status r = write_all(s, buffer);
    if (!r && rank == 1) {
        struct h5file *f;
        int64_t at = 0;
        r = h5_open_serial(&f, spill_path(s), false);
        if (!r) r = h5_close(&f, h5_offset(f, "/rank_0001/exp_avg", &at));
        at += spill_bytes(s, 1, 0) + spill_bytes(s, 1, 1) + 5;
        int fd = open(spill_path(s), O_WRONLY);
        char wrong = (char)(byte_of(1, 2, 5) ^ 4);
        if (!r && (fd < 0 || pwrite(fd, &wrong, 1, at) != 1 || fsync(fd))) r = FAIL(ERR_IO, "cannot damage: %s", strerror(errno));
        if (fd >= 0) close(fd);
    }
    if (!r) {
        enum status read = read_all(s, buffer);
        if (rank != 1) r = read;
        else if (read != ERR_FORMAT || !strstr(status_message(), "/rank_0001/exp_avg bucket 2 is damaged"))
            r = FAIL(ERR_INTERNAL, "status %d: %s", (int)read, status_message());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    spill_destroy(&s);
    free(buffer);
    return r;
}

static enum status wrong_calls_are_refused(void)
{
    struct spill *s;
    int64_t ticket;
    char *buffer = aligned_alloc(SPILL_ALIGN, 1 << 16);
    EXPECT(buffer, "no memory");
    TRY(create(&s, dir, "wrong"));
    enum status a = spill_read(s, 0, 1, buffer, &ticket);
    EXPECT(a == ERR_INTERNAL && strstr(status_message(), "read before it was written"), "%d %s", (int)a, status_message());
    a = spill_write(s, 0, 1, buffer + 8, &ticket);
    EXPECT(a == ERR_INTERNAL && strstr(status_message(), "no multiple of 4096"), "%d %s", (int)a, status_message());
    a = spill_write(s, 3, 1, buffer, &ticket);
    EXPECT(a == ERR_INTERNAL && strstr(status_message(), "kind 3 of 3"), "%d %s", (int)a, status_message());
    spill_destroy(&s);
    free(buffer);
    MPI_Barrier(MPI_COMM_WORLD);
    return OK;
}

static enum status ranks_that_disagree_on_kinds_fail_together(void)
{
    struct spill *s;
    int64_t elements = 10;
    struct spill_options o = {.dir = dir, .run = "kinds", .node = MPI_COMM_WORLD, .rank = rank, .kind = kinds,
                              .kinds = rank == 2 ? 2 : 3, .elements = &elements, .buckets = 1};
    enum status st = spill_create(&s, &o);
    EXPECT(!s && st == (rank ? ERR_PEER : ERR_INTERNAL), "status %d", (int)st);
    if (rank == 0) EXPECT(strstr(status_message(), "rank 2 has 2 kinds, rank 0 has 3"), "%s", status_message());
    return OK;
}

static enum status tmpfs_is_used_with_a_warning(void)
{
    struct spill *s;
    enum fs_kind kind;
    char where[64] = "/dev/shm/m3_spill_XXXXXX";
    char *buffer = aligned_alloc(SPILL_ALIGN, 1 << 16);
    EXPECT(buffer, "no memory");
    if (rank == 0 && (fs_kind("/dev/shm", &kind, NULL) || kind != FS_MEMORY || !mkdtemp(where))) where[0] = 0;
    MPI_Bcast(where, sizeof where, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (!where[0]) {
        if (rank == 0) printf("no tmpfs at /dev/shm\n");
        skipped++;
        free(buffer);
        return OK;
    }
    TRY(create(&s, where, "memory"));
    enum status r = strstr(spill_warning(s), "tmpfs") ? OK : FAIL(ERR_INTERNAL, "warning \"%s\"", spill_warning(s));
    if (!r) r = write_all(s, buffer);
    if (!r) r = read_all(s, buffer);
    MPI_Barrier(MPI_COMM_WORLD);
    spill_destroy(&s);
    free(buffer);
    if (rank == 0) {
        char root[128];
        snprintf(root, sizeof root, "%s/m3-spill-%lu/guard", where, (unsigned long)geteuid());
        unlink(root);
        *strrchr(root, '/') = 0;
        rmdir(root);
        if (rmdir(where)) r = FAIL(ERR_IO, "%s: %s", where, strerror(errno));
    }
    return r;
}

static enum status a_full_disk_is_an_error_at_start_and_leaves_nothing(void)
{
    char where[PATH_MAX + 16], message[512];
    struct spill *s;
    snprintf(where, sizeof where, "%s/full", dir);
    int mounted = 0;
    if (rank == 0) mounted = mkdir(where, 0700) == 0 && mount("m3", where, "tmpfs", 0, "size=1m") == 0;
    MPI_Bcast(&mounted, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!mounted) {
        if (rank == 0) printf("mount is not permitted\n"), rmdir(where);
        skipped++;
        return OK;
    }
    enum status st = create(&s, where, "full");
    snprintf(message, sizeof message, "%s", status_message());
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t room = 0;
    if (rank == 0) {
        fs_free(where, &room);
        umount(where);
        rmdir(where);
    }
    EXPECT(!s && st == (rank ? ERR_PEER : ERR_IO), "status %d: %s", (int)st, message);
    if (rank == 0) EXPECT(strstr(message, "50331648 bytes needed") && strstr(message, "bytes free"), "%s", message);
    if (rank == 0) EXPECT(room > 900000, "%lld bytes free after the failure", (long long)room);
    return OK;
}

static enum status the_bench_measures_and_cleans_up(void)
{
    struct io_bench b;
    TRY(io_bench_run(&b, dir, MPI_COMM_WORLD, rank, 4 << 20, 1 << 20));
    EXPECT(b.ranks == size && b.bytes == (int64_t)size * (4 << 20), "%d ranks, %lld bytes", b.ranks, (long long)b.bytes);
    EXPECT(b.raw_write > 0 && b.raw_read > 0 && b.spill_write > 0 && b.spill_read > 0 && b.step_ratio > 0, "a rate is 0");
    EXPECT(io_bench_run(&b, dir, MPI_COMM_WORLD, rank, 4 << 20, 1000) == ERR_INTERNAL, "block of 1000 bytes");
    return OK;
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        const char *tmp = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%s/m3_mpi_spill_XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(dir)) dir[0] = 0;
    }
    MPI_Bcast(dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (size != 4 || !dir[0]) {
        if (rank == 0) printf("%d ranks, 4 wanted; folder '%s'\n0 passed, 1 failed\n", size, dir);
        MPI_Finalize();
        return 1;
    }
#define CASE(fn) report(#fn, fn())
    CASE(buckets_round_trip_and_the_file_stays_hdf5);
    CASE(a_flipped_byte_in_a_bucket_is_found_by_name);
    CASE(wrong_calls_are_refused);
    CASE(ranks_that_disagree_on_kinds_fail_together);
    CASE(tmpfs_is_used_with_a_warning);
    CASE(a_full_disk_is_an_error_at_start_and_leaves_nothing);
    CASE(the_bench_measures_and_cleans_up);
    if (rank == 0) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/m3-spill-%lu/guard", dir, (unsigned long)geteuid());
        unlink(path);
        *strrchr(path, '/') = 0;
        rmdir(path);
        if (rmdir(dir)) failed++, printf("FAILED %s is not empty\n", dir);
        printf("%d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped);
    }
    MPI_Finalize();
    return failed != 0;
}
