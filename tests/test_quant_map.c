/* Tensors against the quantisation map: agreement loads, every disagreement stops and names the module. */
#include "release.h"
#include "safetensors_write.h"
#include "st_fixture.h"

#define MIXED "tests/data/golden/narrow_nvfp4_mixed/checkpoint"
#define MXFP8 "tests/data/golden/narrow_mxfp8/checkpoint"
#define CT "tests/data/golden/narrow_nvfp4_ct/checkpoint"
#define L "language_model.model.layers."

static char dir[FIXTURE_PATH], sub[FIXTURE_PATH];
static struct release *r;

static int make_dir(void **state)
{
    (void)state;
    fixture_dir(dir);
    fixture_join(sub, dir, "ckpt");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    release_close(&r);
    fixture_remove(dir);
    return 0;
}

/* An edit of one file of a golden release, and the words of the refusal (NULL: still opens). */
static const struct edit {
    const char *golden, *file, *from, *to, *words;
} edits[] = {
    /* P08: a key that does not match its module */
    {MIXED, "hf_quant_config.json", L "2.block_sparse_moe.experts.3.w1\"", L "2.mlp.experts.3.w1\"",
     "module " L "2.block_sparse_moe.experts.3.w1: its weight is U8 [32, 32] (NVFP4), but "},
    {MIXED, "hf_quant_config.json", L "0.self_attn.q_proj\"", "model.layers.0.self_attn.q_proj\"",
     "module " L "0.self_attn.q_proj: its weight is F8_E4M3 [128, 64] (MXFP8), but "},
    {MIXED, "hf_quant_config.json", "\"quantized_layers\": {", "\"quantized_layers\": {\"" L "9.mlp.up_proj\": {\"quant_algo\": \"MXFP8\"},",
     "quantized_layers names module " L "9.mlp.up_proj, of which the release holds no tensor"},
    {MIXED, "hf_quant_config.json", "\"quantized_layers\": {", "\"quantized_layers\": {\"language_model.lm_head\": {\"quant_algo\": \"MXFP8\"},",
     "module language_model.lm_head: "},
    {MIXED, "hf_quant_config.json", "\"quantized_layers\": {", "\"quantized_layers\": {\"vision_tower.x\": {\"quant_algo\": \"FP8\"},", NULL},
    {MIXED, "hf_quant_config.json", "\"MIXED_PRECISION\"", "\"NVFP4\"", "quant_algo \"MIXED_PRECISION\" but "},
    {MIXED, "hf_quant_config.json", "\"quant_algo\": \"MXFP8\"", "\"quant_algo\": \"NVFP4\"", "only 16 is supported"},
    {MIXED, "hf_quant_config.json", "\"quant_algo\": \"MXFP8\"", "\"quant_algo\": \"FP8\"", "quant_algo \"FP8\" is not supported"},
    {MIXED, "hf_quant_config.json", "\"quant_algo\": \"MXFP8\",", "", "\"quant_algo\" is missing"},
    {MIXED, "hf_quant_config.json", "\"group_size\": 32", "\"group_size\": 64", "group_size 64, only 32"},
    {MIXED, "hf_quant_config.json", "\"quantized_layers\"", "\"other\"", "\"quantized_layers\" is missing"},
    {MIXED, "hf_quant_config.json", "\"quantization\"", "\"other\"", "\"quantization\" is missing"},
    {MIXED, "config.json", "\"MIXED_PRECISION\"", "\"NVFP4\"", "quant_algo \"NVFP4\" but "},
    {MIXED, "config.json", "\"modelopt\"", "\"mxfp8\"", "two maps"},
    {MIXED, "config.json", "\"quantization_config\"", "\"other\"", NULL}, /* older ModelOpt: only its own file */
    /* P10: the config declares one width, the tensors hold another */
    {MXFP8, "config.json", "\"quant_method\": \"mxfp8\"", "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"",
     "conflict: "},
    {MXFP8, "config.json", "\"quant_method\": \"mxfp8\"", "\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"",
     NULL}, /* ModelOpt's own name of the same form */
    {CT, "config.json", "\"quant_method\": \"compressed-tensors\"", "\"quant_method\": \"mxfp8\"", "its weight is BF16"},
    {CT, "config.json", "\"num_bits\": 4", "\"num_bits\": 8", "weights of 8 bits"},
    {CT, "config.json", "\"type\": \"float\"", "\"type\": \"int\"", "type \"int\""},
    {CT, "config.json", "\"group_size\": 16", "\"group_size\": 32", "group_size 32, only 16"},
    {CT, "config.json", "nvfp4-pack-quantized", "pack-quantized", "format \"pack-quantized\" is not supported"},
    {CT, "config.json", "re:.*experts\\\\..*", "re:.*experts\\\\.0\\\\..*", "experts.1.w1: its weight is U8"},
    {CT, "config.json", "re:.*experts\\\\..*", "Linear", NULL},
    {CT, "config.json", "re:.*self_attn.*", "re:.*nothing.*", NULL}, /* only experts are targets */
    {CT, "config.json", "re:.*self_attn.*", "re:(", "pattern \"re:(\""},
    {CT, "config.json", "re:.*shared_experts.*", "re:.*nothing.*", "shared_experts.down_proj: "},
    /* methods and blocks */
    {MXFP8, "config.json", "\"quantization_config\"", "\"other\"", "does not say that it is quantised"},
    {MXFP8, "config.json", "\"quant_method\": \"mxfp8\"", "\"quant_method\": \"awq\"", "quant_method \"awq\" is not supported"},
    {MXFP8, "config.json", "\"quant_method\": \"mxfp8\",", "", "\"quant_method\" is missing"},
    {MXFP8, "config.json", "\"gate\",", "\"gate\", \"q_proj\",", "q_proj: its weight is F8_E4M3"},
};

static void each_edit_of_a_map_is_refused_by_module(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const struct edit *e = &edits[i];
        fixture_copy(e->golden, sub);
        fixture_edit(sub, e->file, e->from, e->to, false);
        enum status s = release_open(&r, sub);
        if (!e->words && s) fail_msg("%s -> %s: refused: %s", e->from, e->to, status_message());
        if (e->words && (s != ERR_FORMAT || !strstr(status_message(), e->words)))
            fail_msg("%s -> %s: %d \"%s\", expected \"%s\"", e->from, e->to, (int)s, s ? status_message() : "", e->words);
        release_close(&r);
        fixture_remove(sub);
    }
}

static void deepseek_blocks_are_refused_by_that_name(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    float scale[2] = {1, 1};
    uint8_t w[200 * 64] = {0};
    for (int by_tensor = 0; by_tensor < 2; by_tensor++) {
        const char *config = by_tensor ? "{\"quantization_config\": {\"quant_method\": \"mxfp8\"}}"
            : "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}";
        struct st_item items[] = {{L "0.mlp.up_proj.weight", DT_F8_E4M3, 2, {200, 64}, w},
                                  {L "0.mlp.up_proj.weight_scale_inv", DT_F32, 2, {2, 1}, scale}};
        fixture_write(fixture_join(path, dir, "config.json"), config, strlen(config));
        check_ok(st_write_file(fixture_join(path, dir, "model.safetensors"), items, 2));
        check_fails(release_open(&r, dir), ERR_FORMAT, "DeepSeek-style fp8");
    }
    static const char other[] = "{\"quantization_config\": {\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 64]}}";
    fixture_write(fixture_join(path, dir, "config.json"), other, strlen(other));
    check_fails(release_open(&r, dir), ERR_FORMAT, "weight_block_size [1, 64]");
}

/* A module's tensors, and the words of the refusal under the map that fits the first of them. */
static const struct module_case {
    const char *map;
    struct { const char *suffix; enum dtype dtype; int rank; int64_t dim[2]; } t[4];
    const char *words;
} module_cases[] = {
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 2}}}, NULL},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}}, "weight is F8_E4M3 [8, 40], but its scale (weight_scale_inv or weight_scale) is missing"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 1}}}, "is U8 [8, 1], MXFP8 needs U8 [8, 2]"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {2, 8}}}, "is U8 [2, 8], MXFP8 needs U8 [8, 2]"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 1, {16}}}, "is U8 [16], MXFP8 needs U8 [8, 2]"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_F32, 2, {8, 2}}}, "is F32 [8, 2], MXFP8 needs U8 [8, 2]"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 2}}, {"weight_scale_inv", DT_U8, 2, {8, 2}}},
     "both weight_scale and weight_scale_inv"},
    {"mxfp8", {{"weight", DT_F8_E4M3, 1, {8}}}, "expected a matrix"},
    {"mxfp8", {{"weight", DT_BF16, 2, {8, 40}}}, "says MXFP8, but its weight is BF16 [8, 40]"},
    {"mxfp8", {{"weight", DT_BF16, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 2}}}, "weight_scale beside a weight that is BF16"},
    {"mxfp8", {{"weight_scale", DT_U8, 2, {8, 2}}}, "weight_scale has no weight beside it"},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_scale_2", DT_F32, 0, {0}},
               {"input_scale", DT_F32, 0, {0}}}, NULL},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_scale_2", DT_F32, 1, {1}}}, NULL},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}}, "without " L "0.mlp.up_proj.weight_scale_2"},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_scale_2", DT_F32, 1, {8}}},
     "weight_scale_2 is F32 [8], expected F32 [] or [1]"},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale_2", DT_F32, 0, {0}}}, "its scale (weight_scale) is missing"},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 2}}, {"weight_scale_2", DT_F32, 0, {0}}},
     "NVFP4 needs F8_E4M3 [8, 3]"},
    {"nvfp4", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_U8, 2, {8, 3}}, {"weight_scale_2", DT_F32, 0, {0}}},
     "is U8 [8, 3], NVFP4 needs F8_E4M3 [8, 3]"},
    {"nvfp4", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 2}}},
     "says NVFP4, but its weight is F8_E4M3 [8, 40] (MXFP8)"},
    {"mxfp8", {{"weight", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_scale_2", DT_F32, 0, {0}}},
     "says MXFP8, but its weight is U8 [8, 20] (NVFP4)"},
    {"ct", {{"weight_packed", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_global_scale", DT_F32, 1, {1}},
            {"input_global_scale", DT_F32, 1, {1}}}, NULL},
    {"ct", {{"weight_packed", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}}, "weight_global_scale"},
    {"ct", {{"weight_packed", DT_I8, 2, {8, 20}}}, "expected a matrix of U8"},
    {"ct", {{"weight_packed", DT_U8, 2, {8, 20}}, {"weight", DT_BF16, 2, {8, 40}}}, "both weight and weight_packed"},
    {"nvfp4", {{"weight_packed", DT_U8, 2, {8, 20}}, {"weight_scale", DT_F8_E4M3, 2, {8, 3}}, {"weight_global_scale", DT_F32, 1, {1}}},
     "conflict"},
    {"none", {{"weight", DT_F8_E4M3, 2, {8, 40}}, {"weight_scale", DT_U8, 2, {8, 2}}}, "does not say that it is quantised"},
    {"none", {{"weight", DT_F16, 2, {8, 40}}}, NULL},
};

static const char *map_text(const char *name)
{
    if (!strcmp(name, "none")) return "{}";
    if (!strcmp(name, "mxfp8")) return "{\"quantization_config\": {\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 32]}}";
    if (!strcmp(name, "nvfp4")) return "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}}";
    return "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", \"config_groups\": "
           "{\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16}}}}}";
}

static void each_module_is_measured_against_its_scales(void **state)
{
    (void)state;
    static const char zeros[2048];
    for (size_t i = 0; i < sizeof module_cases / sizeof *module_cases; i++) {
        const struct module_case *c = &module_cases[i];
        char path[FIXTURE_PATH], names[4][96];
        struct st_item items[4];
        int n = 0;
        for (; n < 4 && c->t[n].suffix; n++) {
            snprintf(names[n], sizeof names[n], L "0.mlp.up_proj.%s", c->t[n].suffix);
            items[n] = (struct st_item){names[n], c->t[n].dtype, c->t[n].rank, {c->t[n].dim[0], c->t[n].dim[1]}, zeros};
        }
        const char *config = map_text(c->map);
        fixture_write(fixture_join(path, dir, "config.json"), config, strlen(config));
        check_ok(st_write_file(fixture_join(path, dir, "model.safetensors"), items, n));
        enum status s = release_open(&r, dir);
        if (!c->words && s) fail_msg("case %zu: refused: %s", i, status_message());
        if (c->words && (s != ERR_FORMAT || !strstr(status_message(), c->words) || !strstr(status_message(), L "0.mlp.up_proj")))
            fail_msg("case %zu: %d \"%s\", expected \"%s\"", i, (int)s, s ? status_message() : "", c->words);
        if (!s) assert_int_equal(release_find(r, L "0.mlp.up_proj.weight")->cols, 40);
        release_close(&r);
    }
}

static void patterns_name_whole_components(void **state)
{
    (void)state;
    static const struct { const char *pattern, *module; bool yes; } p[] = {
        {"gate", "a.block_sparse_moe.gate", true},      {"gate", "a.gate.b", true},
        {"gate", "a.gate_proj", false},                 {"gate", "a.my_gate", false},
        {"lm_head", "language_model.lm_head", true},    {"model.layers.1", "language_model.model.layers.1.mlp.up_proj", true},
        {"model.layers.1", "language_model.model.layers.11.mlp.up_proj", false},
        {"*self_attn*", "model.layers.0.self_attn.q_proj", true}, {"model.layers.*.mlp.*", "language_model.model.layers.3.mlp.up_proj", true},
        {"layers.?.mlp*", "layers.33.mlp", false},      {"", "a", false},
        {"re:.*gate", "x.gate_proj", true},             {"re:gate", "x.gate", false},
        {"re:x\\.(a|b)$", "x.b", true},                 {"re:x\\.(a|b)$", "x.bc", false},
        /* a hostile expression ends without an answer */
        {"re:(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", false}};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        struct quant_patterns *list;
        json_t *json = json_pack("[s]", p[i].pattern);
        check_ok(quant_patterns_create(&list, json, "c.json"));
        if (quant_patterns_match(list, p[i].module) != p[i].yes) fail_msg("\"%s\" on %s: %d expected", p[i].pattern, p[i].module, p[i].yes);
        quant_patterns_destroy(&list);
        json_decref(json);
    }
}

static void modelopt_rules_for_everything_obey_their_exclusions(void **state)
{
    (void)state;
    char path[FIXTURE_PATH];
    static const char hf[] = "{\"quantization\": {\"quant_algo\": \"MXFP8\", \"exclude_modules\": [\"lm_head\", \"*embed_tokens\", \"*.gate\", "
                             "\"*index_*\"]}}";
    fixture_copy(MXFP8, sub);
    fixture_edit(sub, "config.json", "\"quantization_config\"", "\"other\"", false);
    fixture_write(fixture_join(path, sub, "hf_quant_config.json"), hf, strlen(hf));
    check_ok(release_open(&r, sub));
    release_close(&r);
    fixture_edit(sub, "hf_quant_config.json", "\"*index_*\"", "\"*index_*\", \"*layers.0*\"", false);
    check_fails(release_open(&r, sub), ERR_FORMAT, "module " L "0.mlp.down_proj: its weight is F8_E4M3 [64, 96] (MXFP8), but ");
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(each_edit_of_a_map_is_refused_by_module, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(deepseek_blocks_are_refused_by_that_name, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(each_module_is_measured_against_its_scales, make_dir, remove_dir),
    cmocka_unit_test(patterns_name_whole_components),
    cmocka_unit_test_setup_teardown(modelopt_rules_for_everything_obey_their_exclusions, make_dir, remove_dir),
};

CHECK_MAIN(cases)
