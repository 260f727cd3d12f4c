/* config.json in both dialects, and what is refused with which words. */
#include "arch.h"
#include "json.h"
#include "st_fixture.h"

#define NARROW "tests/data/golden/narrow/checkpoint/config.json"
#define FLAT "tests/data/arch/narrow_flat.json"

static void the_release_dialect_is_read(void **state)
{
    (void)state;
    struct arch a;
    check_ok(arch_load(&a, "tests/data/golden/wide/checkpoint"));
    assert_int_equal(a.hidden, 96);
    assert_int_equal(a.layers, 5);
    assert_int_equal(a.heads, 8);
    assert_int_equal(a.kv_heads, 2);
    assert_int_equal(a.head_dim, 32);
    assert_int_equal(a.rotary_dim, 16);
    assert_true(a.rope_theta == 5e6f && a.rms_eps == 1e-6f && a.routed_scale == 2.f && a.swiglu_alpha == 1.702f);
    assert_true(a.swiglu_limit == 7.f);
    assert_int_equal(a.vocab, 320);
    assert_int_equal(a.max_positions, 4096);
    assert_int_equal(a.dense_ffn, 160);
    assert_int_equal(a.expert_ffn, 48);
    assert_int_equal(a.shared_ffn, 48);
    assert_int_equal(a.experts, 16);
    assert_int_equal(a.experts_per_token, 4);
    assert_int_equal(a.index_heads, 2);
    assert_int_equal(a.index_dim, 32);
    assert_int_equal(a.block_size, 16);
    assert_int_equal(a.topk_blocks, 4);
    assert_int_equal(a.init_blocks, 0);
    assert_int_equal(a.local_blocks, 1);
    assert_int_equal(a.bos_id, 317);
    assert_int_equal(a.eos_id, 318);
    assert_int_equal(a.pad_id, 319);
    for (int i = 0; i < 5; i++) assert_true(a.moe[i] == (i > 2) && a.sparse[i] == (i > 2));
}

static enum status parse_file(struct arch *a, const char *path)
{
    size_t n;
    char *text = fixture_read(path, &n);
    enum status s = arch_parse(a, text, n, path);
    free(text);
    return s;
}

static void both_dialects_give_the_same_struct(void **state) /* P12 */
{
    (void)state;
    struct arch a, b;
    check_ok(parse_file(&a, NARROW));
    check_ok(parse_file(&b, FLAT));
    assert_memory_equal(&a, &b, sizeof a);
}

/* One change to a config: the key's path ("text_config.head_dim"), the new value as JSON (NULL: the key goes), and the
 * words of the refusal (NULL: accepted). */
static const struct change {
    const char *file, *key, *value, *words;
} changes[] = {
    {NARROW, "text_config.rotary_dim", NULL, NULL}, /* from partial_rotary_factor */
    {NARROW, "text_config.partial_rotary_factor", NULL, NULL},
    {NARROW, "text_config.tie_word_embeddings", NULL, NULL},
    {NARROW, "text_config.eos_token_id", "[258, 3]", NULL},
    {NARROW, "text_config.eos_token_id", "null", NULL},
    {NARROW, "text_config.moe_layer_freq", "[true, false, false, true]", NULL},
    {FLAT, "text_config.hidden_act", "\"silu\"", NULL}, /* the re-save's unused default */
    {FLAT, "text_config.index_init_blocks", "1", NULL},
    {NARROW, "text_config.sparse_attention_config.use_sparse_attention", "false", NULL},
    {NARROW, "text_config.sparse_attention_config.sparse_disable_index_value", NULL, NULL},
    {NARROW, "text_config", NULL, "hidden_size"},
    {NARROW, "text_config", "[]", "\"text_config\" is an array"},
    {NARROW, "text_config.hidden_size", NULL, "\"hidden_size\" is missing"},
    {NARROW, "text_config.hidden_size", "\"64\"", "\"hidden_size\" is a string"},
    {NARROW, "text_config.hidden_size", "64.0", "\"hidden_size\" is a real number"},
    {NARROW, "text_config.hidden_size", "0", "hidden_size = 0 is outside"},
    {NARROW, "text_config.hidden_size", "-64", "hidden_size = -64"},
    {NARROW, "text_config.hidden_size", "4294967360", "hidden_size = 4294967360"},
    {NARROW, "text_config.num_hidden_layers", "5", "moe_layer_freq has 4 entries, num_hidden_layers = 5"},
    {NARROW, "text_config.num_hidden_layers", "2000", "num_hidden_layers = 2000, the limit is 1024"},
    {NARROW, "text_config.num_key_value_heads", "3", "num_key_value_heads = 3 does not divide num_attention_heads = 8"},
    {NARROW, "text_config.num_key_value_heads", "2", "sparse_num_index_heads = 4 must equal num_key_value_heads = 2"},
    {NARROW, "text_config.sparse_attention_config.sparse_num_index_heads", "2", "sparse_num_index_heads = 2 must equal"},
    {NARROW, "text_config.index_n_heads", "5", "sparse_num_index_heads = 4 but index_n_heads = 5"},
    {NARROW, "text_config.rotary_dim", "7", "rotary_dim = 7 but partial_rotary_factor = 0.5"},
    {NARROW, "text_config.partial_rotary_factor", "0.25", "rotary_dim = 8 but partial_rotary_factor = 0.25"},
    {NARROW, "text_config.sparse_attention_config.sparse_index_dim", "4", "rotary_dim = 8 exceeds sparse_index_dim = 4"},
    {NARROW, "text_config.tie_word_embeddings", "true", "tie_word_embeddings = true"},
    {NARROW, "tie_word_embeddings", "true", "tie_word_embeddings = true"},
    {NARROW, "text_config.hidden_act", "\"silu\"", "hidden_act = \"silu\" is not supported"},
    {FLAT, "text_config.hidden_act", "\"gelu\"", "hidden_act = \"gelu\" is not supported"},
    {NARROW, "text_config.use_gemma_norm", "false", "use_gemma_norm = false"},
    {NARROW, "text_config.use_qk_norm", "false", "use_qk_norm = false"},
    {NARROW, "text_config.qk_norm_type", "\"full\"", "qk_norm_type = \"full\""},
    {NARROW, "text_config.attention_output_gate", "true", "attention_output_gate = true"},
    {NARROW, "text_config.scoring_func", "\"softmax\"", "scoring_func = \"softmax\""},
    {NARROW, "text_config.use_routing_bias", "false", "use_routing_bias = false"},
    {NARROW, "text_config.num_experts_per_tok", "9", "num_experts_per_tok = 9 of num_local_experts = 8"},
    {NARROW, "text_config.moe_layer_freq", "[0, 0, 1]", "moe_layer_freq has 3 entries"},
    {NARROW, "text_config.moe_layer_freq", "[0, 0, 1, 2]", "moe_layer_freq[3]"},
    {NARROW, "text_config.moe_layer_freq", "1", "moe_layer_freq is an integer"},
    {NARROW, "text_config.moe_layer_freq", NULL, "neither moe_layer_freq nor mlp_layer_types"},
    {NARROW, "text_config.mlp_layer_types", "[\"dense\", \"dense\", \"dense\", \"sparse\"]", "layer 2: moe_layer_freq = 1"},
    {FLAT, "text_config.mlp_layer_types", "[\"dense\", \"dense\", \"dense\", \"moe\"]", "mlp_layer_types[3] = \"moe\""},
    {FLAT, "text_config.layer_types", "[\"sliding\", \"full_attention\", \"full_attention\", \"full_attention\"]",
     "layer_types[0] = \"sliding\""},
    {FLAT, "text_config.layer_types", NULL, "neither sparse_attention_config.sparse_attention_freq nor layer_types"},
    {FLAT, "text_config.index_block_size", NULL, "neither sparse_attention_config.sparse_block_size nor index_block_size"},
    {NARROW, "text_config.sparse_attention_config.sparse_score_type", "\"mean\"", "sparse_score_type = \"mean\""},
    {NARROW, "text_config.sparse_attention_config.sparse_disable_index_value", "[0, 0, 1, 0]", "layer 3: sparse_disable_index_value"},
    {NARROW, "text_config.sparse_attention_config.sparse_attention_freq", "[0, 1]", "sparse_attention_freq has 2 entries"},
    {NARROW, "text_config.sparse_attention_config.sparse_init_block", "3", "do not fit sparse_topk_blocks = 3"},
    {NARROW, "text_config.rope_theta", NULL, "neither rope_theta"},
    {NARROW, "text_config.rope_theta", "0.5", "rope_theta = 0.5 is outside"},
    {FLAT, "text_config.rope_theta", "7.0", "rope_theta = 7 but rope_parameters.rope_theta = 10000"},
    {FLAT, "text_config.rope_parameters.rope_type", "\"yarn\"", "rope_type = \"yarn\""},
    {NARROW, "text_config.rope_scaling", "{\"type\": \"linear\"}", "type = \"linear\""},
    {NARROW, "text_config.bos_token_id", "260", "bos_token_id = 260, vocab_size = 260"},
    {NARROW, "text_config.eos_token_id", "\"x\"", "eos_token_id is a string"},
    {NARROW, "text_config.swiglu_limit", NULL, "\"swiglu_limit\" is missing"},
    {NARROW, "text_config.num_attention_heads", "536870912", "too many"},
    {NARROW, "text_config.n_shared_experts", "65", "n_shared_experts = 65"},
};

/* Sets or deletes a dotted key. */
static void change_key(json_t *root, const char *key, const char *value)
{
    const char *dot;
    for (; (dot = strchr(key, '.')); key = dot + 1) {
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)(dot - key), key);
        root = json_object_get(root, part);
        assert_non_null(root);
    }
    if (!value) assert_int_equal(json_object_del(root, key), 0);
    else assert_int_equal(json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
}

static void each_change_is_accepted_or_refused_with_both_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        struct arch a;
        json_t *root;
        check_ok(json_read_file(&root, c->file, 1 << 20));
        change_key(root, c->key, c->value);
        char *text = json_dumps(root, 0);
        enum status s = arch_parse(&a, text, strlen(text), "c.json");
        const char *m = status_message();
        if (!c->words && s) fail_msg("%s = %s: refused: %s", c->key, c->value ? c->value : "(gone)", m);
        if (c->words && (s != ERR_FORMAT || !strstr(m, c->words) || strncmp(m, "c.json: ", 8)))
            fail_msg("%s = %s: %d \"%s\", expected \"%s\"", c->key, c->value ? c->value : "(gone)", (int)s, s ? m : "", c->words);
        free(text);
        json_decref(root);
    }
}

static void a_switched_off_sparse_attention_is_dense_everywhere(void **state)
{
    (void)state;
    struct arch a;
    json_t *root;
    check_ok(json_read_file(&root, NARROW, 1 << 20));
    change_key(root, "text_config.sparse_attention_config.use_sparse_attention", "false");
    char *text = json_dumps(root, 0);
    check_ok(arch_parse(&a, text, strlen(text), "c.json"));
    for (int i = 0; i < a.layers; i++) assert_false(a.sparse[i]);
    assert_true(a.moe[2] && a.moe[3]);
    free(text);
    json_decref(root);
}

static void broken_json_names_file_and_line(void **state)
{
    (void)state;
    struct arch a;
    char dir[FIXTURE_PATH], path[FIXTURE_PATH];
    static const char broken[] = "{\n \"text_config\": {\n  \"hidden_size\": 64,\n }\n}";
    check_fails(arch_parse(&a, broken, strlen(broken), "c.json"), ERR_FORMAT, "c.json: line 4");
    check_fails(arch_parse(&a, "{\"a\": 1, \"a\": 2}", 16, "c.json"), ERR_FORMAT, "duplicate");
    check_fails(arch_parse(&a, "[]", 2, "c.json"), ERR_FORMAT, "the file is an array");
    check_fails(arch_load(&a, "no/such/folder"), ERR_IO, "no/such/folder/config.json");
    fixture_dir(dir);
    fixture_write(fixture_join(path, dir, "config.json"), "{}", 2);
    assert_int_equal(truncate(path, (16 << 20) + 1), 0);
    check_fails(arch_load(&a, dir), ERR_FORMAT, "16777217 bytes, the limit is 16777216");
    fixture_remove(dir);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(the_release_dialect_is_read),
    cmocka_unit_test(both_dialects_give_the_same_struct),
    cmocka_unit_test(each_change_is_accepted_or_refused_with_both_values),
    cmocka_unit_test(a_switched_off_sparse_attention_is_dense_everywhere),
    cmocka_unit_test(broken_json_names_file_and_line),
};

CHECK_MAIN(cases)
