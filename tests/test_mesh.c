/* Meshes: what cannot be is refused with both numbers and what would fit; coordinates, layers and KV heads of every rank. */
#include "../src/mesh.h"
#include "check.h"

static struct arch arch(void)
{
    struct arch a = {.hidden = 64, .layers = 6, .heads = 16, .kv_heads = 4, .head_dim = 16, .vocab = 100, .dense_ffn = 96,
                     .expert_ffn = 32, .shared_ffn = 32, .experts = 12, .experts_per_token = 2, .index_heads = 4};
    for (int l = 2; l < 6; l++) a.moe[l] = true;
    return a;
}

static void what_cannot_be_is_refused_with_both_numbers(void **state)
{
    (void)state;
    static const int three[] = {2, 2, 2}, zero[] = {6, 0};
    static const struct {
        struct mesh_shape s;
        int world;
        const char *says[2];
    } bad[] = {
        {{.tp = 3, .pp = 1, .ep = 1}, 4, {"3", "4 ranks"}},      {{.tp = 8, .pp = 1, .ep = 1}, 4, {"8", "4 ranks"}},
        {{.tp = 2, .pp = 2, .ep = 1, .dp = 3}, 8, {"dp=3", "8"}}, {{.tp = 0, .pp = 1, .ep = 1}, 4, {"tp=0", "1"}},
        {{.tp = 2, .pp = 1, .ep = 3}, 4, {"ep=3", "4"}},          {{.tp = 1, .pp = 1, .ep = 8}, 8, {"ep=8", "12"}},
        {{.tp = 32, .pp = 1, .ep = 1}, 32, {"32", "16"}},         {{.tp = 1, .pp = 7, .ep = 1}, 7, {"7", "6"}},
        {{.tp = 1, .pp = 2, .ep = 1, .layers_per_stage = zero}, 2, {"0", ""}},
    };
    struct arch a = arch();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mesh_shape s = bad[i].s;
        enum status st = mesh_check(&s, &a, bad[i].world);
        if (st != ERR_CONFIG || !strstr(status_message(), bad[i].says[0]) || !strstr(status_message(), bad[i].says[1]))
            fail_msg("mesh %zu of %d ranks: status %d \"%s\", expected %d with \"%s\" and \"%s\"", i, bad[i].world, (int)st,
                     st ? status_message() : "", (int)ERR_CONFIG, bad[i].says[0], bad[i].says[1]);
    }
    struct mesh_shape good = {.tp = 1, .pp = 3, .ep = 1, .layers_per_stage = three};
    check_ok(mesh_check(&good, &a, 6));
    assert_int_equal(good.dp, 2);
}

static void every_rank_has_one_place(void **state)
{
    (void)state;
    struct arch a = arch();
    struct mesh_shape s = {.tp = 4, .pp = 2, .ep = 4};
    bool seen[2][2][4] = {0};
    for (int rank = 0; rank < 16; rank++) {
        struct mesh m;
        check_ok(mesh_plan(&m, s, &a, 16, rank));
        assert_int_equal((m.pp_rank * m.dp + m.dp_rank) * m.tp + m.tp_rank, rank);
        assert_false(seen[m.pp_rank][m.dp_rank][m.tp_rank]);
        seen[m.pp_rank][m.dp_rank][m.tp_rank] = true;
        assert_int_equal(m.ep_rank, (m.dp_rank * m.tp + m.tp_rank) % 4);
        assert_int_equal(m.kv_heads, 1);
        assert_int_equal(m.kv_first, m.tp_rank);
    }
}

static void kv_heads_are_replicated_where_tp_is_larger(void **state)
{
    (void)state;
    struct arch a = arch();
    for (int rank = 0; rank < 16; rank++) {
        struct mesh m;
        check_ok(mesh_plan(&m, (struct mesh_shape){.tp = 16, .pp = 1, .ep = 1}, &a, 16, rank));
        assert_int_equal(m.kv_heads, 1);
        assert_int_equal(m.kv_first, rank / 4);
        assert_int_equal(m.kv_group.size, 4);
    }
}

static void layers_are_dealt_out_to_stages(void **state)
{
    (void)state;
    struct arch a = arch();
    static const int uneven[] = {1, 3, 2};
    for (int given = 0; given < 2; given++)
        for (int stages = 1; stages <= 6; stages++) {
            struct mesh_shape s = {.tp = 1, .pp = given ? 3 : stages, .ep = 1, .layers_per_stage = given ? uneven : NULL};
            int next = 0;
            for (int i = 0; i < s.pp; i++) {
                int first, count;
                mesh_stage(&s, a.layers, i, &first, &count);
                assert_int_equal(first, next);
                assert_true(count >= 1);
                if (given) assert_int_equal(count, uneven[i]);
                next += count;
            }
            assert_int_equal(next, a.layers);
        }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(what_cannot_be_is_refused_with_both_numbers), cmocka_unit_test(every_rank_has_one_place),
    cmocka_unit_test(kv_heads_are_replicated_where_tp_is_larger), cmocka_unit_test(layers_are_dealt_out_to_stages)};
CHECK_MAIN(cases)
