/* st_same A B: two release folders hold the same tensors, bit for bit, under the release's names (the alias of dense MLPs
 * undone). */
#include "check.h"
#include "release.h"

int main(int argc, char **argv)
{
    struct release *a = NULL, *b = NULL;
    int passed = 0, failed = 0;
    if (argc != 3) return 2;
    check_ok(release_open(&a, argv[1]));
    check_ok(release_open(&b, argv[2]));
    if (a->count != b->count) {
        printf("%lld tensors, %lld\n", (long long)a->count, (long long)b->count);
        failed++;
    }
    for (int64_t i = 0; i < a->count; i++) {
        const struct release_tensor *x = &a->tensors[i], *y = release_find(b, x->name);
        uint64_t n = st_bytes(x->data->t);
        char *p = malloc(n + 1), *q = malloc(n + 1);
        bool same = y && y->data->t->dtype == x->data->t->dtype && st_bytes(y->data->t) == n;
        if (same) {
            check_ok(release_read_raw(a, x->data, 0, n, p));
            check_ok(release_read_raw(b, y->data, 0, n, q));
            same = memcmp(p, q, n) == 0;
        }
        if (same) passed++;
        else failed++;
        if (!same) printf("%s: %s\n", x->name, y ? "differs" : "missing");
        free(p);
        free(q);
    }
    release_close(&a);
    release_close(&b);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
