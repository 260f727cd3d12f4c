/* ranks: 3 — ranks split the shards of a conversion; one rank's failure ends it on all of them. */
#include "comm.h"
#include "convert.h"
#include "release.h"
#include "st_fixture.h"

#define SRC "tests/data/golden/narrow_nvfp4_mixed/checkpoint"
#define EXPECTED "tests/data/golden/narrow_nvfp4_mixed/expected_bf16.safetensors"

static struct group world;
static char dir[FIXTURE_PATH], dst[FIXTURE_PATH];

/* One folder for all ranks, made by rank 0. */
static int make_dir(void **state)
{
    (void)state;
    if (world.rank == 0) fixture_dir(dir);
    MPI_Bcast(dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    fixture_join(dst, dir, "dst");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    MPI_Barrier(MPI_COMM_WORLD);
    if (world.rank == 0) fixture_remove(dir);
    return 0;
}

static void count_shards(void *ctx, int shard, int n)
{
    int *count = ctx;
    if (shard % world.size == world.rank && n >= 2 * world.size) ++*count;
}

static void three_ranks_write_the_golden_release(void **state)
{
    (void)state;
    struct release *r;
    struct st_file f;
    int mine = 0;
    struct convert_args a = {.src = SRC, .dst = dst, .shard_bytes = 40000, .verify = true, .world = &world,
                             .each_shard = count_shards, .ctx = &mine};
    check_ok(convert_release(&a));
    assert_true(mine >= 2); /* every rank had its share */
    check_ok(release_open(&r, dst));
    check_ok(st_open(&f, EXPECTED));
    assert_int_equal(r->n_raw, f.count);
    for (int64_t i = 0; i < f.count; i++) {
        const struct st_tensor *t = &f.tensors[i];
        const struct release_raw *raw = release_find_raw(r, t->name);
        if (!raw || raw->t->dtype != t->dtype || st_bytes(raw->t) != st_bytes(t)) fail_msg("%s is missing or changed", t->name);
        char *x = malloc((size_t)st_bytes(t)), *y = malloc((size_t)st_bytes(t));
        check_ok(release_read_raw(r, raw, 0, (size_t)st_bytes(t), x));
        check_ok(st_read(&f, t, 0, (size_t)st_bytes(t), y));
        if (memcmp(x, y, (size_t)st_bytes(t))) fail_msg("%s differs", t->name);
        free(x);
        free(y);
    }
    st_close(&f);
    release_close(&r);
}

static void a_failure_of_one_rank_ends_all_and_the_next_run_goes_on(void **state)
{
    (void)state;
    char other[FIXTURE_PATH];
    fixture_join(other, dir, "elsewhere");
    /* only this rank cannot see the source */
    struct convert_args a = {.src = world.rank == 1 ? other : SRC, .dst = dst, .shard_bytes = 40000, .world = &world};
    check_fails(convert_release(&a), world.rank == 1 ? ERR_IO : ERR_PEER, world.rank == 1 ? "elsewhere" : "rank 1 failed");
    MPI_Barrier(MPI_COMM_WORLD);
    assert_false(fixture_exists(dir, "dst"));
    a.src = SRC;
    check_ok(convert_release(&a));
    assert_true(fixture_exists(dst, "model.safetensors.index.json"));
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(three_ranks_write_the_golden_release, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_failure_of_one_rank_ends_all_and_the_next_run_goes_on, make_dir, remove_dir),
};

int main(int argc, char **argv)
{
    if (comm_open(&argc, &argv) || group_world(&world)) return fprintf(stderr, "%s\n", status_message()), 1;
    int failed = cmocka_run_group_tests(cases, NULL, NULL), worst = 0, n = (int)(sizeof cases / sizeof *cases);
    MPI_Allreduce(&failed, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (world.rank == 0) printf("%d passed, %d failed\n", n - worst, worst);
    group_destroy(&world);
    comm_close(false, 0);
    return worst != 0;
}
