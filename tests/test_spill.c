/* The I/O thread's queue, the folders of spills, and what the file system is asked; one process, no MPI. */
#include "../io/fs.h"
#include "../io/spill.h"
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[PATH_MAX];

static const char *in_dir(const char *name)
{
    static char path[4][PATH_MAX + 300];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int make_dir(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/m3_spill_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static void remove_below(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char sub[2 * PATH_MAX];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        if (unlink(sub)) remove_below(sub);
    }
    if (d) closedir(d);
    rmdir(path);
}

static int remove_dir(void **state)
{
    (void)state;
    remove_below(dir);
    return access(dir, F_OK) == 0;
}

static int open_file(const char *name)
{
    int fd = open(in_dir(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static struct io_job job(enum io_kind kind, int fd, int64_t offset, void *buffer, int64_t bytes, uint64_t *hash)
{
    return (struct io_job){.kind = kind, .fd = fd, .offset = offset, .buffer = buffer, .bytes = bytes, .name = "bucket 7",
                           .hash = hash};
}

static void jobs_run_in_the_order_of_submission(void **state)
{
    (void)state;
    struct io_queue *q;
    int fd = open_file("a");
    enum { N = 300 };
    int64_t put[N], get[N];
    static char in[N][64], out[N][64];
    check_ok(io_queue_create(&q));
    for (int i = 0; i < N; i++) {
        memset(in[i], 'a' + i % 26, 64);
        struct io_job w = job(IO_WRITE, fd, 0, in[i], 64, NULL), r = job(IO_READ, fd, 0, out[i], 64, NULL);
        check_ok(io_queue_submit(q, &w, &put[i]));
        check_ok(io_queue_submit(q, &r, &get[i]));
    }
    for (int i = N - 1; i >= 0; i--) {
        check_ok(io_queue_wait(q, get[i]));
        check_ok(io_queue_wait(q, put[i]));
        if (memcmp(in[i], out[i], 64)) fail_msg("read %d saw '%c', '%c' was written before it", i, out[i][0], in[i][0]);
    }
    struct io_stats s = io_queue_stats(q);
    assert_int_equal(s.read, N * 64);
    assert_int_equal(s.written, N * 64);
    io_queue_destroy(&q);
    assert_null(q);
    close(fd);
}

static enum status refuse(void *ctx) { return FAIL(ERR_FORMAT, "no %s today", (const char *)ctx); }

static void an_error_comes_back_at_its_own_ticket(void **state)
{
    (void)state;
    struct io_queue *q;
    int fd = open_file("a");
    char data[16] = "0123456789abcdef";
    int64_t t[4];
    struct io_job jobs[] = {job(IO_WRITE, fd, 0, data, 16, NULL), job(IO_READ, fd, 8, data, 16, NULL),
                            {.kind = IO_CALL, .fn = refuse, .ctx = "tea"}, job(IO_WRITE, -1, 0, data, 16, NULL)};
    check_ok(io_queue_create(&q));
    for (int i = 0; i < 4; i++) check_ok(io_queue_submit(q, &jobs[i], &t[i]));
    check_fails(io_queue_wait(q, t[3]), ERR_IO, "bucket 7: writing 16 bytes at 0: Bad file descriptor");
    check_fails(io_queue_wait(q, t[2]), ERR_FORMAT, "no tea today");
    check_fails(io_queue_wait(q, t[1]), ERR_IO, "the file ends at 16, 8 bytes too early");
    check_ok(io_queue_wait(q, t[0]));
    check_fails(io_queue_wait(q, t[0]), ERR_INTERNAL, "not outstanding");
    check_fails(io_queue_wait(q, 99), ERR_INTERNAL, "not outstanding");
    check_fails(io_queue_wait(q, -1), ERR_INTERNAL, "ticket -1");
    for (int i = 0; i < 4; i++) check_ok(io_queue_submit(q, &jobs[i], &t[i]));
    check_fails(io_queue_wait_all(q), ERR_IO, "8 bytes too early");
    check_ok(io_queue_wait_all(q));
    io_queue_destroy(&q);
    close(fd);
}

static void tickets_that_nobody_waits_for_fill_the_queue_and_are_refused(void **state)
{
    (void)state;
    struct io_queue *q;
    int fd = open_file("a");
    char byte = 'x';
    int64_t ticket, first = -1;
    struct io_job w = job(IO_WRITE, fd, 0, &byte, 1, NULL);
    check_ok(io_queue_create(&q));
    for (int i = 0; i < IO_QUEUE_ROOM; i++) {
        check_ok(io_queue_submit(q, &w, &ticket));
        if (first < 0) first = ticket;
    }
    check_fails(io_queue_submit(q, &w, &ticket), ERR_INTERNAL, "not waited for");
    check_ok(io_queue_wait(q, first));
    check_ok(io_queue_submit(q, &w, &ticket));
    check_ok(io_queue_wait_all(q));
    io_queue_destroy(&q);
    close(fd);
}

static void a_flipped_byte_is_found_by_the_hash_with_the_buckets_name(void **state)
{
    (void)state;
    struct io_queue *q;
    int fd = open_file("a");
    char data[256];
    uint64_t hash = 0;
    int64_t ticket;
    memset(data, 'q', sizeof data);
    struct io_job w = job(IO_WRITE, fd, 0, data, 256, &hash), r = job(IO_READ, fd, 0, data, 256, &hash);
    check_ok(io_queue_create(&q));
    check_ok(io_queue_submit(q, &w, &ticket));
    check_ok(io_queue_wait(q, ticket));
    check_ok(io_queue_submit(q, &r, &ticket));
    check_ok(io_queue_wait(q, ticket));
    assert_int_equal(pwrite(fd, "p", 1, 100), 1);
    check_ok(io_queue_submit(q, &r, &ticket));
    check_fails(io_queue_wait(q, ticket), ERR_FORMAT, "bucket 7 is damaged");
    io_queue_destroy(&q);
    close(fd);
}

/* A process that takes a spill folder, leaves a big file in it and ends: at once, or when `end` is closed. */
static pid_t runner(const char *run, bool lives, int *end)
{
    int ready[2], hold[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(hold), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct spill_tree t;
        char path[PATH_MAX];
        close(hold[1]);
        enum status s = spill_tree_take(&t, dir, run);
        snprintf(path, sizeof path, "%s/state.h5", t.path);
        int fd = s ? -1 : open(path, O_WRONLY | O_CREAT, 0600);
        bool ok = fd >= 0 && write(ready[1], "r", 1) == 1;
        if (lives && read(hold[0], &c, 1) != 0) ok = false;
        _exit(ok ? 0 : 1);
    }
    close(ready[1]);
    close(hold[0]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    *end = hold[1];
    if (!lives) {
        int status;
        close(hold[1]);
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
    }
    return pid;
}

static void finish(pid_t pid, int end)
{
    int status;
    close(end);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static int entries_of(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void folders_of_dead_runs_are_removed_and_those_of_live_runs_and_others_stay(void **state)
{
    (void)state;
    int end, none;
    char root[PATH_MAX + 40], foreign[PATH_MAX + 80], held[PATH_MAX + 80];
    struct spill_tree t;
    snprintf(root, sizeof root, "%s/m3-spill-%lu", dir, (unsigned long)geteuid());
    runner("dead-1", false, &none);
    assert_int_equal(entries_of(root), 2); /* guard, dead-1 */
    pid_t live = runner("live", true, &end);
    snprintf(foreign, sizeof foreign, "%s/somebody.elsewhere", root);
    assert_int_equal(mkdir(foreign, 0700), 0);
    check_ok(spill_tree_take(&t, dir, "mine"));
    assert_int_equal(t.stale, 0); /* the live one removed dead-1 */
    assert_int_equal(entries_of(root), 4); /* guard, live, mine, the foreign one */
    assert_int_equal(access(foreign, F_OK), 0);
    spill_tree_drop(&t);
    snprintf(held, sizeof held, "%s", t.path);
    assert_int_not_equal(access(held, F_OK), 0);
    check_fails(spill_tree_take(&t, dir, "live"), ERR_IO, "a live run uses this spill folder");
    assert_non_null(strstr(status_message(), "pid"));
    finish(live, end);
    check_ok(spill_tree_take(&t, dir, "live"));
    assert_int_equal(t.stale, 1);
    assert_int_equal(entries_of(root), 3);
    spill_tree_drop(&t);
    rmdir(foreign);
}

static void a_dead_folder_with_foreign_files_loses_only_ours(void **state)
{
    (void)state;
    int none;
    struct spill_tree t;
    char own[700], note[720];
    runner("odd", false, &none);
    check_ok(spill_tree_take(&t, dir, "other"));
    spill_tree_drop(&t);
    check_ok(spill_tree_take(&t, dir, "odd"));
    snprintf(own, sizeof own, "%s", t.path);
    snprintf(note, sizeof note, "%s/notes.txt", own);
    close(t.lock);
    int fd = open(note, O_CREAT | O_WRONLY, 0600);
    close(fd);
    check_ok(spill_tree_take(&t, dir, "next"));
    assert_int_equal(access(note, F_OK), 0);
    assert_int_equal(entries_of(own), 1);
    spill_tree_drop(&t);
    unlink(note);
    rmdir(own);
}

static void names_that_leave_the_folder_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "..", "a/b", ".x", "a b",
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    struct spill_tree t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(spill_tree_take(&t, dir, bad[i]), ERR_INTERNAL, "spill run name");
}

static void a_spill_root_that_is_a_link_is_refused(void **state)
{
    (void)state;
    char root[PATH_MAX + 80], other[PATH_MAX + 40];
    struct spill_tree t;
    snprintf(other, sizeof other, "%s/elsewhere", dir);
    snprintf(root, sizeof root, "%s/m3-spill-%lu", other, (unsigned long)geteuid());
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(symlink("/", root), 0);
    check_fails(spill_tree_take(&t, other, "run"), ERR_IO, "not a folder of user");
    unlink(root);
    rmdir(other);
}

static void sixteen_processes_may_create_one_folder_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        char deep[PATH_MAX + 40];
        int go[2], status;
        pid_t pid[16];
        char c;
        snprintf(deep, sizeof deep, "%s/race/%d/checkpoints/step", dir, round);
        assert_int_equal(pipe(go), 0);
        for (int i = 0; i < 16; i++)
            if ((pid[i] = fork()) == 0) {
                close(go[1]);
                bool ok = read(go[0], &c, 1) == 0 && fs_mkdirs(deep) == OK;
                _exit(ok ? 0 : 1);
            }
        close(go[0]);
        close(go[1]);
        for (int i = 0; i < 16; i++) {
            waitpid(pid[i], &status, 0);
            if (status) fail_msg("round %d: process %d could not create %s", round, i, deep);
        }
        check_ok(fs_mkdirs(deep));
    }
}

static void a_file_in_the_way_of_a_folder_is_named(void **state)
{
    (void)state;
    close(open_file("plain"));
    check_fails(fs_mkdirs(in_dir("plain/x")), ERR_IO, "plain");
    check_fails(fs_mkdirs(""), ERR_IO, "0 bytes");
}

static void memory_file_systems_are_told_from_disks(void **state)
{
    (void)state;
    enum fs_kind kind;
    const char *name;
    check_fails(fs_kind(in_dir("nowhere"), &kind, &name), ERR_IO, "nowhere");
    if (access("/dev/shm", W_OK) == 0) {
        check_ok(fs_kind("/dev/shm", &kind, &name));
        assert_int_equal(kind, FS_MEMORY);
        assert_string_equal(name, "tmpfs");
    }
}

static void too_small_a_disk_is_named_with_bytes_needed_and_free(void **state)
{
    (void)state;
    int64_t room;
    check_ok(fs_free(dir, &room));
    assert_true(room > 0);
    check_ok(fs_need(dir, 1));
    check_fails(fs_need(dir, INT64_MAX), ERR_IO, "9223372036854775807 bytes needed");
    int fd = open_file("a");
    check_fails(fs_reserve(fd, "a", INT64_C(1) << 50, true), ERR_IO, "cannot reserve 1125899906842624 bytes");
    check_ok(fs_reserve(fd, "a", 1 << 20, true));
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    if (st.st_blocks * 512 < 1 << 20) fail_msg("%lld bytes on disk, %d were reserved", (long long)st.st_blocks * 512, 1 << 20);
    close(fd);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(jobs_run_in_the_order_of_submission),
    cmocka_unit_test(an_error_comes_back_at_its_own_ticket),
    cmocka_unit_test(tickets_that_nobody_waits_for_fill_the_queue_and_are_refused),
    cmocka_unit_test(a_flipped_byte_is_found_by_the_hash_with_the_buckets_name),
    cmocka_unit_test(folders_of_dead_runs_are_removed_and_those_of_live_runs_and_others_stay),
    cmocka_unit_test(a_dead_folder_with_foreign_files_loses_only_ours),
    cmocka_unit_test(names_that_leave_the_folder_are_refused),
    cmocka_unit_test(a_spill_root_that_is_a_link_is_refused),
    cmocka_unit_test(sixteen_processes_may_create_one_folder_at_once),
    cmocka_unit_test(a_file_in_the_way_of_a_folder_is_named),
    cmocka_unit_test(memory_file_systems_are_told_from_disks),
    cmocka_unit_test(too_small_a_disk_is_named_with_bytes_needed_and_free),
};

int main(void)
{
    int failed = cmocka_run_group_tests(cases, make_dir, remove_dir), n = (int)(sizeof cases / sizeof *cases);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
