/* The option table from every side: what a file and a command line may say, what is refused and how, and that the used
 * configuration, the reference and the table are one thing. */
#include "check.h"
#include "config.h"
#include "options.h"
#include "settings.h"
#include "value.h"

#include <sys/stat.h>
#include <unistd.h>

/* Loads a text; the caller frees *c when it is OK. */
static enum status load(struct config *c, const char *text)
{
    return config_from_text(c, text, strlen(text), "x.yaml");
}

static enum status load_with(struct config *c, int n, ...)
{
    char *override[8];
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++) override[i] = va_arg(ap, char *);
    va_end(ap);
    return config_load(c, NULL, n, override);
}

static char *text_of(const struct config *c)
{
    char *text;
    check_ok(config_to_text(c, &text));
    return text;
}

static void numbers_are_read_in_every_usual_spelling(void **state)
{
    (void)state;
    static const struct { const char *text; double want; } ok[] = {
        {"2e-5", 2e-5}, {"2.0e-5", 2e-5}, {"1E-6", 1e-6}, {".5", 0.5}, {"0.5", 0.5}, {"5.", 5}, {"0x10", 16},
        {"-3", -3}, {"+4", 4}, {"1e+3", 1000}, {"0", 0}, {"0.0", 0}, {"1e-400", 0}, 
        {"123456789012345678", 123456789012345678.0},
    };
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        double x = -1;
        const char *why = value_float(ok[i].text, &x);
        if (why || x != ok[i].want)
            fail_msg("%s: %s, %.17g, expected %.17g", ok[i].text, why ? why : "read", x, ok[i].want);
    }
    static const char *const bad[] = {"",    "abc", "1e",   "e5", ".",  "-",   "0x",  "0xg",   "1_000", "5k",    "inf",
                                      "nan", ".inf", "1 ", " 1", "--1", "010", "1e400", "0x1p3", "1e5.5", "1,5",
                                      "1.2.3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double x;
        if (!value_float(bad[i], &x)) fail_msg("'%s' was read as %g, expected a refusal", bad[i], x);
    }
}

static void integers_may_have_an_exponent_but_no_fraction(void **state)
{
    (void)state;
    static const struct { const char *text; int64_t want; } ok[] = {
        {"1e4", 10000}, {"0x10", 16}, {"-0x10", -16}, {"7.0", 7}, {"9223372036854775807", INT64_MAX}, {"2.5e1", 25}};
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        int64_t x = -1;
        const char *why = value_int(ok[i].text, &x);
        if (why || x != ok[i].want)
            fail_msg("%s: %s, %lld, expected %lld", ok[i].text, why ? why : "read", (long long)x,
                     (long long)ok[i].want);
    }
    static const char *const bad[] = {"1.5", "9223372036854775808", "1e300", "07",
                                      "ten", "", "1e-1", "0x1ffffffffffffffff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t x;
        if (!value_int(bad[i], &x)) fail_msg("'%s' was read as %lld, expected a refusal", bad[i], (long long)x);
    }
}

static void a_float_is_written_so_that_it_reads_back_exactly(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        union { uint64_t u; double d; } v = {check_hash(i)};
        if (!isfinite(v.d)) continue;
        char text[VALUE_FLOAT_CHARS];
        double back = -1;
        const char *why = value_float(value_float_text(text, v.d), &back);
        if (why || back != v.d)
            fail_msg("%.17g was written as %s and read as %.17g (%s)", v.d, text, back, why ? why : "");
    }
    char text[VALUE_FLOAT_CHARS];
    assert_string_equal(value_float_text(text, 1e-6), "1e-6");
    assert_string_equal(value_float_text(text, 0.1), "0.1");
    assert_string_equal(value_float_text(text, 1e7), "1e7");
    assert_string_equal(value_float_text(text, 100000), "100000");
}

static void a_file_sets_what_it_names_and_leaves_the_defaults(void **state)
{
    (void)state;
    struct config c;
    check_ok(load(&c, "train:\n  lr: 2e-5 # peak\n  steps: 0x10\n  recompute: layer\n"
                      "mesh: {pp: 2, layers_per_stage: [3, 1]}\n"
                      "data: {shuffle: no, chat: yes, prompt_field: question}\nrl:\nrun.dir: runs/a b\n"));
    check_equal_f(c.train.lr, 2e-5, 0);
    assert_int_equal(c.train.steps, 16);
    assert_int_equal(c.train.recompute, RECOMPUTE_LAYER);
    assert_int_equal(c.mesh.layers_per_stage.n, 2);
    assert_int_equal(c.mesh.layers_per_stage.v[0], 3);
    assert_int_equal(c.mesh.layers_per_stage.v[1], 1);
    assert_false(c.data.shuffle);
    assert_int_equal(c.data.chat, TRI_TRUE);
    assert_string_equal(c.data.prompt_field, "question");
    assert_string_equal(c.run.dir, "runs/a b");
    assert_int_equal(c.train.grad_dtype, DTYPE_FP32);
    assert_int_equal(c.adam.moments, DTYPE_FP32);
    check_equal_f(c.train.beta2, 0.95, 0);
    assert_false(config_is_set(c.gates.ppo_kl));
    assert_int_equal(config_source_of(&c, "train.lr"), FROM_FILE);
    assert_int_equal(config_source_of(&c, "train.beta2"), FROM_DEFAULT);
    config_free(&c);
}

static void an_empty_file_is_all_defaults(void **state)
{
    (void)state;
    static const char *const empty[] = {"", "\n", "# nothing\n", "---\n", "{}\n", "train: {}\n"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        struct config c;
        check_ok(load(&c, empty[i]));
        assert_int_equal(c.train.steps, 100);
        config_free(&c);
    }
}

static void what_is_wrong_is_refused_with_file_line_and_reason(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } bad[] = {
        {"train:\n  steps: 5\n  lrr: 1\n", "x.yaml:3: unknown key 'train.lrr'; did you mean train.lr?"},
        {"optim:\n  lr: 1\n", "x.yaml:2: unknown key 'optim.lr'; did you mean train.lr?"},
        {"rollouts: {temperature: 1}\n", "did you mean rollout.temperature?"},
        {"completely: different\n", "x.yaml:1: unknown key 'completely'"},
        {"train:\n  lr: 1e-5\n\n  lr: 1e-6\n", "x.yaml:4: train.lr is given twice, first on line 2"},
        {"train: {lr: 1}\ntrain.lr: 2\n", "x.yaml:2: train.lr is given twice, first on line 1"},
        {"train: {steps: 1}\ntrain: {lr: 2}\n", "x.yaml:2: train is given twice, first on line 1"},
        {"train:\n  lr: \"1e-6\"\n", "x.yaml:2: train.lr: '1e-6' is a quoted string where a number belongs"},
        {"train: {steps: '5'}\n", "is a quoted string where an integer belongs"},
        {"data: {shuffle: \"yes\"}\n", "is a quoted string where true or false belongs"},
        {"train:\n  lr: yes\n", "x.yaml:2: train.lr: 'yes' is not a number"},
        {"train:\n  lr: null\n", "x.yaml:2: train.lr: 'null' is not a number"},
        {"train:\n  lr:\n", "x.yaml:2: train.lr: '' is not a number"},
        {"train: {lr: -1}\n", "x.yaml:1: train.lr: -1 is outside [0, 10]"},
        {"train: {beta1: 1}\n", "train.beta1: 1 is outside [0, 1)"},
        {"train: {eps: 0}\n", "train.eps: 0 is outside (0, 1]"},
        {"train: {lr: [1, 2]}\n", "x.yaml:1: train.lr: a list where one value belongs"},
        {"train: {lr: {peak: 1}}\n", "train.lr is a value and has no keys below it"},
        {"train: 5\n", "x.yaml:1: train is a section"},
        {"train: {objective: sfd}\n", "'sfd' is none of sft | rl; did you mean sft?"},
        {"train: {recompute: null}\n", "'null' is none of none | attention | layer"},
        {"train: {grad_dtype: auto}\n", "'auto' is none of fp32 | bf16"},
        {"data: {shuffle: 1}\n", "data.shuffle: '1' is neither true nor false"},
        {"mesh: {pp: 2, layers_per_stage: [1, x]}\n", "mesh.layers_per_stage: 'x' is not an integer"},
        {"mesh: {layers_per_stage: [[1]]}\n", "a list may only hold plain values"},
        {"- 1\n- 2\n", "x.yaml:1: expected `key: value` lines"},
        {"just text\n", "x.yaml:1: expected `key: value` lines"},
        {"train: &a {lr: 1}\n", "anchors are not supported: &a"},
        {"train: *a\n", "aliases are not supported: *a"},
        {"train: {lr: !!float 1}\n", "tags are not supported: tag:yaml.org,2002:float"},
        {"train: {lr: 1}\n---\ntrain: {lr: 2}\n", "a second document is not supported"},
        {"? [a, b]\n: 1\n", "a key must be a plain name"},
        {"\"\": 1\n", "an empty key"},
        {"train: {lr: 1\n", "x.yaml:2: did not find expected ',' or '}'"},
        {"train:\n\tlr: 1\n", "x.yaml:2: found character that cannot start any token"},
        {"run: {dir: \"a\\0b\"}\n", "x.yaml:1: a text holds a zero byte"},
        {"run: {dir: \"\xff\"}\n", "x.yaml: byte 12: "},
        {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "x.yaml:1: nested too deep below a.b.c.d.e.f.g.h"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        enum status s = load(&c, bad[i].text);
        if (s != ERR_CONFIG || !strstr(status_message(), bad[i].message))
            fail_msg("%s-> %d \"%s\", expected %d with \"%s\"", bad[i].text, s, s ? status_message() : "", ERR_CONFIG,
                     bad[i].message);
    }
}

static void keys_that_contradict_each_other_are_refused_with_both_values(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } bad[] = {
        {"train: {steps: 5, warmup_steps: 6}", "train.warmup_steps=6 is more than train.steps=5"},
        {"train: {lr: 1e-6, min_lr: 1e-5, lr_schedule: cosine}", "train.min_lr=1e-05 is above train.lr=1e-06"},
        {"eval: {every: 5}", "eval.every=5 needs held-out data"},
        {"train: {replay: r.jsonl}", "train.replay=r.jsonl needs train.objective=rl"},
        {"rollout: {only: true}", "rollout.only=true needs train.objective=rl"},
        {"mesh: {pp: 2, layers_per_stage: [1, 2, 3]}", "has 3 numbers for mesh.pp=2"},
        {"mesh: {tp: 2, dp: 3, ep: 4}", "mesh.ep=4 does not divide mesh.tp=2 x mesh.dp=3"},
        {"train: {objective: rl}\nrl: {clip_dual: 0.5}", "rl.clip_dual=0.5 must be above 1"},
        {"train: {objective: rl}\nrl: {tis: true, old_logprobs: rollout}", "rl.tis=true"},
        {"train: {objective: rl}\nrl: {overlong_buffer: 256}", "rl.overlong_buffer=256 must be below rollout.max_new"},
        {"train: {objective: rl}\nrl: {updates_per_batch: 7}", "rl.updates_per_batch=7 does not divide a step's 8 x 8"},
        {"train: {objective: rl}\nrl: {dynamic_sampling: true}\nrollout: {samples_per_prompt: 1}", "needs groups"},
        {"train: {objective: rl}\nreward: {kind: command}", "needs reward.command"},
        {"train: {objective: rl}\nreward: {kind: length}", "needs reward.target_length"},
        {"train: {objective: rl}\nreward: {kind: pseudo_random, negative: true}", "reward.kind=math only"},
        {"gates: {grad_norm_rel: 0.03}", "gates.grad_norm_file is not set"},
        {"gates: {grad_norm_file: m.jsonl}", "gates.grad_norm_rel is not set"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        enum status s = load(&c, bad[i].text);
        if (s != ERR_CONFIG || !strstr(status_message(), bad[i].message))
            fail_msg("%s -> %d \"%s\", expected \"%s\"", bad[i].text, s, s ? status_message() : "", bad[i].message);
    }
}

static void overrides_win_over_the_file_and_the_last_one_counts(void **state)
{
    (void)state;
    char path[] = "/tmp/m3_config_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "train: {lr: 1e-3, steps: 7}\n", 28), 28);
    close(fd);
    char *override[] = {"train.lr=2e-5", "train.lr=3e-5", "mesh.layers_per_stage=[4]", "run.dir=a=b",
                        "gates.ref_kl=1e-8", "data.tokenizer=null"};
    struct config c;
    check_ok(config_load(&c, path, 6, override));
    unlink(path);
    check_equal_f(c.train.lr, 3e-5, 0);
    assert_int_equal(c.train.steps, 7);
    assert_int_equal(c.mesh.layers_per_stage.n, 1);
    assert_int_equal(c.mesh.layers_per_stage.v[0], 4);
    assert_string_equal(c.run.dir, "a=b");
    assert_string_equal(c.data.tokenizer, "");
    check_equal_f(c.gates.ref_kl, 1e-8, 0);
    assert_int_equal(config_source_of(&c, "train.lr"), FROM_OVERRIDE);
    config_free(&c);
}

static void a_wrong_override_is_refused_by_name(void **state)
{
    (void)state;
    struct config c;
    check_fails(load_with(&c, 1, "train.lr"), ERR_USAGE, "expected KEY=VALUE, got 'train.lr'");
    check_fails(load_with(&c, 1, "=5"), ERR_USAGE, "expected KEY=VALUE");
    check_fails(load_with(&c, 1, "lr=5"), ERR_CONFIG, "command line: unknown key 'lr'; did you mean train.lr?");
    check_fails(load_with(&c, 1, "train.lr=fast"), ERR_CONFIG, "command line: train.lr: 'fast' is not a number");
    check_fails(load_with(&c, 1, "run.dir=\xc0\x80"), ERR_CONFIG, "not UTF-8");
    check_fails(load_with(&c, 2, "train.steps=1", "train.warmup_steps=2"), ERR_CONFIG, "train.warmup_steps=2");
    check_fails(load_with(&c, 1, "rl=1"), ERR_CONFIG, "rl is a section");
}

static void a_missing_file_is_a_configuration_error(void **state)
{
    (void)state;
    struct config c;
    check_fails(config_load(&c, "/nonexistent/x.yaml", 0, NULL), ERR_CONFIG, "/nonexistent/x.yaml: cannot open");
    check_fails(config_load(&c, "/tmp", 0, NULL), ERR_CONFIG, "not a regular file");
}

static void a_needed_key_that_is_not_set_is_named(void **state)
{
    (void)state;
    struct config c;
    check_ok(load(&c, "run: {dir: r}"));
    check_ok(config_need(&c, "run.dir", "train"));
    check_fails(config_need(&c, "data.train", "train"), ERR_CONFIG, "train needs data.train: set it in the file or as");
    check_fails(config_need(&c, "gates.ref_kl", "train"), ERR_CONFIG, "train needs gates.ref_kl");
    config_free(&c);
}

/* Some value for option o other than its default, drawn with `seed`. */
static char *some_value(const struct option *o, uint64_t seed)
{
    char *text = malloc(64);
    uint64_t h = check_hash(seed);
    int n = 0;
    switch (o->type) {
    case OPT_BOOL: strcpy(text, h & 1 ? "true" : "false"); break;
    case OPT_INT:
        snprintf(text, 64, "%lld", (long long)(o->lo + (double)(h % 1000) / 1000 * (fmin(o->hi, 1e15) - o->lo)));
        break;
    case OPT_FLOAT: snprintf(text, 64, "%.17g", o->lo + ((double)(h % 100000) + 1) / 100002 * (o->hi - o->lo)); break;
    case OPT_ENUM:
        while (o->choices[n]) n++;
        snprintf(text, 64, "%s", o->choices[h % (uint64_t)n]);
        break;
    case OPT_INTS: snprintf(text, 64, "[%d, %d]", (int)(h % 50) + 1, (int)(h % 77) + 1); break;
    default: snprintf(text, 64, "p \"%llx\" \\ # ' \n\x01\xc3\xa9: {", (unsigned long long)h); break;
    }
    return text;
}

static void the_used_configuration_reads_back_to_the_same_values(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 50; round++) {
        struct config c, d;
        check_ok(config_load(&c, NULL, 0, NULL));
        for (int i = 0; i < n_options; i++) {
            bool plain = false;
            char *text = some_value(&options[i], round * 1000 + (uint64_t)i), *part = text;
            if (options[i].type == OPT_INTS) {
                char two[2][8] = {"3", "5"}, *list[2] = {two[0], two[1]};
                bool no[2] = {false};
                check_ok(option_set(&options[i], &c, list, no, 2, true, "test"));
            } else {
                check_ok(option_set(&options[i], &c, &part, &plain, 1, false, "test"));
            }
            free(text);
        }
        /* Random values contradict each other; what may not is put right. */
        c.train.warmup_steps = c.train.steps, c.train.min_lr = 0, c.train.objective = OBJECTIVE_RL;
        c.mesh.pp = 2, c.mesh.dp = 0, c.rl.clip_dual = 3, c.rl.tis = false, c.rl.overlong_buffer = 0;
        c.rl.updates_per_batch = 1, c.rl.dynamic_sampling = false, c.rollout.only = false;
        c.reward.target_length = 5, c.reward.negative = false;
        char *text = text_of(&c);
        check_ok(config_from_text(&d, text, strlen(text), "config.used.yaml"));
        bool may;
        int n = config_diff(&c, &d, stderr, &may);
        if (n) fail_msg("%d keys differ after writing and reading, expected 0", n);
        assert_true(may);
        free(text);
        config_free(&c);
        config_free(&d);
    }
}

static void the_used_configuration_marks_what_nobody_set(void **state)
{
    (void)state;
    struct config c;
    check_ok(load_with(&c, 1, "train.beta1=0.9"));
    char *text = text_of(&c);
    assert_non_null(strstr(text, "\n  beta1: 0.9\n"));
    assert_non_null(strstr(text, "\n  beta2: 0.95  # default\n"));
    free(text);
    config_free(&c);
}

static void the_used_configuration_is_written_whole_and_private(void **state)
{
    (void)state;
    char dir[] = "/tmp/m3_config_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.used.yaml", dir);
    struct config c, d;
    check_ok(load_with(&c, 1, "train.lr=0.125"));
    check_ok(config_write(&c, path));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    check_ok(config_load(&d, path, 0, NULL));
    check_equal_f(d.train.lr, 0.125, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left there */
    check_fails(config_write(&c, path), ERR_IO, "cannot create");
    config_free(&c);
    config_free(&d);
}

static void a_diff_names_old_and_new_and_whether_a_run_may_go_on(void **state)
{
    (void)state;
    struct config a, b, d;
    check_ok(load_with(&a, 0));
    check_ok(load_with(&b, 2, "train.lr=2e-5", "mesh.tp=2"));
    check_ok(load_with(&d, 2, "train.lr=2e-5", "run.seed=9"));
    bool may = false;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_int_equal(config_diff(&a, &b, f, &may), 2);
    assert_true(may);
    assert_int_equal(config_diff(&a, &d, f, &may), 2);
    assert_false(may);
    fclose(f);
    assert_non_null(strstr(text, "train.lr: 1e-6 -> 2e-5\n"));
    assert_non_null(strstr(text, "mesh.tp: 1 -> 2\n"));
    assert_non_null(strstr(text, "run.seed: 1 -> 9   (may not change"));
    free(text);
    config_free(&a);
    config_free(&b);
    config_free(&d);
}

static void the_reference_file_equals_the_table(void **state)
{
    (void)state;
    char *want = NULL, *got = calloc(1, 1 << 20);
    size_t len;
    FILE *f = open_memstream(&want, &len);
    config_print_reference(f);
    fclose(f);
    f = fopen("configs/reference.yaml", "r");
    assert_non_null(f);
    size_t n = fread(got, 1, (1 << 20) - 1, f);
    fclose(f);
    size_t i = 0;
    while (i < n && i < len && got[i] == want[i]) i++;
    if (n != len || i != len)
        fail_msg("configs/reference.yaml differs at byte %zu: \"%.60s\", the table says \"%.60s\"", i, got + i,
                 want + i);
    free(want);
    free(got);
}

static void the_reference_file_loads_to_the_defaults_and_names_every_key(void **state)
{
    (void)state;
    struct config a, b;
    check_ok(config_load(&a, "configs/reference.yaml", 0, NULL));
    check_ok(config_load(&b, NULL, 0, NULL));
    bool may;
    assert_int_equal(config_diff(&a, &b, stderr, &may), 0);
    for (int i = 0; i < n_options; i++)
        if (a.source[i] != FROM_FILE) fail_msg("%s is not in configs/reference.yaml", options[i].name);
    config_free(&a);
    config_free(&b);
}

static void every_row_of_the_table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; i < n_options; i++) {
        const struct option *o = &options[i];
        bool section = false;
        for (int s = 0; s < n_option_sections; s++) {
            size_t n = strlen(option_sections[s].name);
            section |= !strncmp(o->name, option_sections[s].name, n) && o->name[n] == '.';
        }
        if (!section) fail_msg("%s belongs to no section", o->name);
        if (option_find(o->name) != o) fail_msg("%s stands twice in the table", o->name);
        if (strlen(o->help) < 10 || o->help[strlen(o->help) - 1] != '.') fail_msg("%s: help '%s'", o->name, o->help);
        for (int j = i + 1; j < n_options; j++)
            if (options[j].offset == o->offset) fail_msg("%s and %s share a field", o->name, options[j].name);
    }
}

static void help_shows_a_section_and_refuses_an_unknown_one(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    check_ok(config_help(f, "gates"));
    check_fails(config_help(f, "gate"), ERR_USAGE, "no section 'gate'");
    fclose(f);
    assert_non_null(strstr(text, "gates.ppo_kl=unset"));
    assert_null(strstr(text, "train.lr"));
    free(text);
}

/* Every prefix and thousands of byte changes of a file: an error or a configuration, never a crash. */
static void broken_files_never_crash(void **state)
{
    (void)state;
    static const char good[] = "run: {dir: \"a\\x41\", seed: 3}\ntrain:\n  lr: 2e-5\n  steps: 10\nmesh:\n  pp: 2\n"
                               "  layers_per_stage: [1, 2]\ndata: {chat: yes, train: 'x'}\ngates: {ref_kl: unset}\n";
    enum { N = sizeof good - 1 };
    char text[N + 1];
    int fine = 0, refused = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        memcpy(text, good, sizeof text);
        size_t n = i < N ? (size_t)i : N;
        for (uint64_t k = 0; i >= N && k <= i % 3; k++) {
            uint64_t h = check_hash(i * 4 + k);
            static const char marks[] = "{}[]:,-&*!|>'\"%@`#?\n\t \\\x00\xff\xc3" "0e.~";
            text[h % N] = h >> 40 & 1 ? (char)(h >> 32) : marks[(h >> 32) % (sizeof marks - 1)];
        }
        struct config c;
        enum status s = config_from_text(&c, text, n, "x.yaml");
        if (s && s != ERR_CONFIG) fail_msg("mutation %d -> %d %s", (int)i, s, status_message());
        if (s)
            refused++;
        else
            fine++, config_free(&c);
    }
    if (!fine || !refused) fail_msg("%d loaded and %d refused, expected some of each", fine, refused);
}

static void a_file_beyond_the_limits_is_refused_quickly(void **state)
{
    (void)state;
    enum { SIZE = 3 << 19 };
    char *text = malloc(SIZE);
    struct config c;
    memset(text, 'a', SIZE);
    check_fails(config_from_text(&c, text, SIZE, "x.yaml"), ERR_CONFIG, "1572864 bytes, the limit is 1048576");
    memset(text, '[', SIZE);
    check_fails(config_from_text(&c, text, 1 << 20, "x.yaml"), ERR_CONFIG, "x.yaml:1: ");
    size_t n = 0;
    for (int i = 0; i < 50000; i++) n += (size_t)sprintf(text + n, "k%d: 1\n", i);
    check_fails(config_from_text(&c, text, n, "x.yaml"), ERR_CONFIG, "too many keys");
    n = (size_t)sprintf(text, "mesh: {layers_per_stage: [");
    for (int i = 0; i < 50000; i++) n += (size_t)sprintf(text + n, "1, ");
    check_fails(config_from_text(&c, text, n, "x.yaml"), ERR_CONFIG, "too many values");
    free(text);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(numbers_are_read_in_every_usual_spelling),
    cmocka_unit_test(integers_may_have_an_exponent_but_no_fraction),
    cmocka_unit_test(a_float_is_written_so_that_it_reads_back_exactly),
    cmocka_unit_test(a_file_sets_what_it_names_and_leaves_the_defaults),
    cmocka_unit_test(an_empty_file_is_all_defaults),
    cmocka_unit_test(what_is_wrong_is_refused_with_file_line_and_reason),
    cmocka_unit_test(keys_that_contradict_each_other_are_refused_with_both_values),
    cmocka_unit_test(overrides_win_over_the_file_and_the_last_one_counts),
    cmocka_unit_test(a_wrong_override_is_refused_by_name),
    cmocka_unit_test(a_missing_file_is_a_configuration_error),
    cmocka_unit_test(a_needed_key_that_is_not_set_is_named),
    cmocka_unit_test(the_used_configuration_reads_back_to_the_same_values),
    cmocka_unit_test(the_used_configuration_marks_what_nobody_set),
    cmocka_unit_test(the_used_configuration_is_written_whole_and_private),
    cmocka_unit_test(a_diff_names_old_and_new_and_whether_a_run_may_go_on),
    cmocka_unit_test(the_reference_file_equals_the_table),
    cmocka_unit_test(the_reference_file_loads_to_the_defaults_and_names_every_key),
    cmocka_unit_test(every_row_of_the_table_is_sound),
    cmocka_unit_test(help_shows_a_section_and_refuses_an_unknown_one),
    cmocka_unit_test(broken_files_never_crash),
    cmocka_unit_test(a_file_beyond_the_limits_is_refused_quickly),
};
CHECK_MAIN(cases)
