/* Every collective against plain arithmetic, whole and split into many calls; ranks: 4. Uneven and zero counts, several
 * dtypes, operations under way; agreement when one rank has failed. */
#include "../src/comm.h"
#include "check.h"

enum { N = 1000, MAX_RANKS = 8 };
static int passed, failed;
static struct group world;

/* The same number everywhere for (rank, index). */
static float value(int rank, int64_t i) { return (float)((int64_t)(check_hash((uint64_t)(rank * 100003 + i)) % 2001) - 1000) / 8; }

static struct tensor floats(float *x, int64_t n) { return tensor_view(x, DT_F32, PLACE_HOST, 1, n, 1, 1, 1); }
static struct tensor matrix(float *x, int64_t n, int64_t c) { return tensor_view(x, DT_F32, PLACE_HOST, 2, n, c, 1, 1); }

static void verdict(bool ok, const char *what)
{
    int64_t bad = !ok;
    if (comm_max_int(&world, &bad, 1)) bad = 1;
    if (world.rank == 0) *(bad ? &failed : &passed) += 1;
    if (!ok) printf("rank %d: %s\n", world.rank, what);
}

static enum status reduce(void)
{
    static float x[N];
    bool ok = true;
    for (int64_t n = 0; n <= N; n += 250) {
        for (int64_t i = 0; i < n; i++) x[i] = value(world.rank, i);
        TRY(comm_all_reduce(&world, floats(x, n), REDUCE_SUM));
        for (int64_t i = 0; i < n; i++) {
            float sum = 0;
            for (int r = 0; r < world.size; r++) sum += value(r, i);
            ok = ok && x[i] == sum; /* eighths: exact in any order */
        }
        for (int64_t i = 0; i < n; i++) x[i] = value(world.rank, i);
        TRY(comm_all_reduce(&world, floats(x, n), REDUCE_MAX));
        for (int64_t i = 0; i < n; i++) {
            float most = value(0, i);
            for (int r = 1; r < world.size; r++) most = fmaxf(most, value(r, i));
            ok = ok && x[i] == most;
        }
    }
    verdict(ok, "all-reduce");
    return OK;
}

/* Rows of each rank: 0, 7, 14, 21, ... of 3 columns. */
static int64_t rows_of(int rank) { return 7 * rank; }

static enum status gather_and_scatter(bool pending)
{
    static float whole[N], part[N], sum[N];
    int64_t rows[MAX_RANKS], total = 0, first = 0;
    struct pending p = {0};
    bool ok = true;
    for (int r = 0; r < world.size; r++) {
        rows[r] = rows_of(r);
        if (r < world.rank) first += rows[r];
        total += rows[r];
    }
    int64_t mine = rows[world.rank];
    for (int64_t i = 0; i < 3 * mine; i++) part[i] = value(world.rank, i);
    TRY(comm_all_gather(&world, matrix(whole, total, 3), matrix(part, mine, 3), rows, pending ? &p : NULL));
    if (pending) TRY(comm_wait(&p));
    for (int64_t r = 0, at = 0; r < world.size; r++)
        for (int64_t i = 0; i < 3 * rows[r]; i++, at++) ok = ok && whole[at] == value((int)r, i);
    verdict(ok, "all-gather of uneven parts");
    for (int64_t i = 0; i < 3 * total; i++) whole[i] = value(world.rank, i);
    TRY(comm_reduce_scatter(&world, matrix(sum, mine, 3), matrix(whole, total, 3), rows, pending ? &p : NULL));
    if (pending) TRY(comm_wait(&p));
    for (int64_t i = 0; i < 3 * mine; i++) {
        float want = 0;
        for (int r = 0; r < world.size; r++) want += value(r, 3 * first + i);
        ok = ok && sum[i] == want;
    }
    verdict(ok, "reduce-scatter of uneven parts");
    return OK;
}

/* Rank r sends (r + 2 d) mod 5 rows of 2 to rank d: some pairs have none. */
static int64_t sent(int from, int to) { return (from + 2 * to) % 5; }

static enum status exchange(bool pending)
{
    static float in[N], out[N];
    int64_t send[MAX_RANKS], recv[MAX_RANKS], n_in = 0, n_out = 0, at = 0;
    struct pending p = {0};
    bool ok = true;
    for (int d = 0; d < world.size; d++) {
        send[d] = sent(world.rank, d);
        recv[d] = sent(d, world.rank);
        for (int64_t i = 0; i < 2 * send[d]; i++) in[2 * n_in + i] = value(world.rank * 10 + d, i);
        n_in += send[d];
        n_out += recv[d];
    }
    TRY(comm_all_to_all(&world, matrix(out, n_out, 2), matrix(in, n_in, 2), send, recv, pending ? &p : NULL));
    if (pending) TRY(comm_wait(&p));
    for (int s = 0; s < world.size; s++)
        for (int64_t i = 0; i < 2 * recv[s]; i++) ok = ok && out[at++] == value(s * 10 + world.rank, i);
    verdict(ok, "all-to-all of uneven rows");
    recv[0]++;
    verdict(world.size < 2 || comm_all_to_all(&world, matrix(out, n_out, 2), matrix(in, n_in, 2), send, recv, NULL) != OK,
            "counts that do not fit the tensor are refused");
    return OK;
}

static enum status point_to_point(void)
{
    static float x[N], y[N];
    struct pending p = {0};
    int next = (world.rank + 1) % world.size, before = (world.rank + world.size - 1) % world.size;
    bool ok = true;
    for (int64_t i = 0; i < N; i++) x[i] = value(world.rank, i);
    TRY(comm_send(&world, floats(x, N), next, &p));
    TRY(comm_recv(&world, floats(y, N), before, NULL));
    TRY(comm_wait(&p));
    for (int64_t i = 0; i < N; i++) ok = ok && y[i] == value(before, i);
    verdict(ok, "send and receive around a ring");
    for (int root = 0; root < world.size; root++) {
        for (int64_t i = 0; i < N; i++) x[i] = value(world.rank, i);
        TRY(comm_broadcast(&world, floats(x, N), root));
        for (int64_t i = 0; i < N; i++) ok = ok && x[i] == value(root, i);
    }
    verdict(ok, "broadcast from every root");
    char *text = world.rank == 1 % world.size ? strdup("some bytes") : NULL;
    size_t size = text ? 11 : 0;
    TRY(comm_broadcast_bytes(&world, (void **)&text, &size, 1 % world.size));
    verdict(size == 11 && strcmp(text, "some bytes") == 0, "broadcast of bytes");
    free(text);
    return OK;
}

static enum status other_dtypes(void)
{
    static uint16_t half[N];
    static int32_t whole[N];
    static int64_t wide[N];
    static double fine[N];
    bool ok = true;
    for (int64_t i = 0; i < N; i++) {
        half[i] = bf16_from_float((float)(world.rank + 1));
        whole[i] = world.rank;
        wide[i] = (int64_t)world.rank << 40;
        fine[i] = 0.5 * world.rank;
    }
    TRY(comm_all_reduce(&world, tensor_view(half, DT_BF16, PLACE_HOST, 1, N, 1, 1, 1), REDUCE_SUM));
    TRY(comm_all_reduce(&world, tensor_view(whole, DT_I32, PLACE_HOST, 1, N, 1, 1, 1), REDUCE_MAX));
    TRY(comm_all_reduce(&world, tensor_view(wide, DT_I64, PLACE_HOST, 1, N, 1, 1, 1), REDUCE_SUM));
    TRY(comm_sum_double(&world, fine, N));
    int n = world.size;
    for (int64_t i = 0; i < N; i++)
        ok = ok && float_from_bf16(half[i]) == (float)(n * (n + 1) / 2) && whole[i] == n - 1 &&
             wide[i] == (int64_t)(n * (n - 1) / 2) << 40 && fine[i] == 0.5 * (n * (n - 1) / 2);
    verdict(ok, "bf16, i32, i64 and double");
    return OK;
}

static enum status agreement(void)
{
    for (int bad = 0; bad < world.size; bad++) {
        enum status s = comm_agree(&world, world.rank == bad ? FAIL(ERR_IO, "rank %d cannot read", bad) : OK);
        char who[32];
        snprintf(who, sizeof who, "%d", bad);
        verdict(s == (world.rank == bad ? ERR_IO : ERR_PEER) && strstr(status_message(), who), "one rank's failure is everybody's");
    }
    verdict(comm_agree(&world, OK) == OK, "agreement");
    return OK;
}

static enum status run(void)
{
    static const int64_t limit[] = {INT32_MAX, 13, 3};
    TRY(group_world(&world));
    for (int i = 0; i < 3; i++) {
        comm_set_limit(limit[i]);
        TRY(reduce());
        for (int pending = 0; pending < 2; pending++) {
            TRY(gather_and_scatter(pending));
            TRY(exchange(pending));
        }
        TRY(point_to_point());
        TRY(other_dtypes());
    }
    comm_set_limit(INT32_MAX);
    verdict(world.bytes > 0 && world.calls > 0, "bytes and calls are counted");
    return agreement();
}

int main(int argc, char **argv)
{
    enum status s = comm_open(&argc, &argv);
    comm_configure(60, NULL);
    if (!s) s = run();
    if (s) printf("rank %d: %s (%s)\n", comm_world_rank(), status_message(), status_where());
    if (comm_world_rank() == 0) printf("%d passed, %d failed\n", passed, failed + (s != OK));
    comm_close(s != OK, 1);
    return failed || s;
}
