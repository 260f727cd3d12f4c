/* JSONL data: the four formats with their masks, what is rejected or cut, lines that are refused with file and line, and
 * mutated files. */
#include "data.h"
#include "mutate.h"
#include "tokenizer_fixture.h"

enum { EOS = 257, VOCAB = 300 };

static char dir[FIXTURE_PATH], path[FIXTURE_PATH];
static struct tokenizer *plain, *chat;

static int set_up(void **state)
{
    static const char *const words[] = {"a b", NULL}, *const marks[] = {"[e~[", NULL};
    static const char *const all[] = {"]~!b[", "]~b]", "[e~[", "<think>", "</think>", NULL};
    (void)state;
    fixture_dir(dir);
    fixture_join(path, dir, "data.jsonl");
    check_ok(small_open(&plain, small_json(words, marks)));
    check_ok(small_open(&chat, small_json(words, all)));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_close(&plain);
    tokenizer_close(&chat);
    fixture_remove(dir);
    return 0;
}

static struct data_options options(void)
{
    return (struct data_options){.format = DATA_AUTO, .max_tokens = 64, .vocab = VOCAB, .eos_id = EOS, .append_eos = true,
                                 .prompt_field = "prompt", .response_field = "response", .text_field = "text",
                                 .messages_field = "messages"};
}

static enum status load_bytes(struct dataset *d, const char *text, size_t n, const struct tokenizer *tok,
                              const struct data_options *o)
{
    static int self[1];
    struct group one = {.size = 1, .members = self, .name = "self"};
    fixture_write(path, text, n);
    return dataset_load(d, &one, path, tok, o);
}

static enum status load(struct dataset *d, const char *text, const struct tokenizer *tok, const struct data_options *o)
{
    return load_bytes(d, text, strlen(text), tok, o);
}

/* Sample i is `want`: ids, targets marked by a star. */
static void check_sample(const struct dataset *d, int64_t i, const char *want)
{
    char text[1024] = "";
    struct sample s = dataset_sample(d, i);
    for (int32_t t = 0, n = 0; t < s.n; t++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d%s", t ? " " : "", s.ids[t], s.mask[t] ? "*" : "");
    if (strcmp(text, want)) fail_msg("sample %d is %s, expected %s", (int)i, text, want);
}

static void check_one(const char *line, const struct tokenizer *tok, const struct data_options *o, const char *want)
{
    struct dataset d;
    check_ok(load(&d, line, tok, o));
    assert_int_equal(d.n, 1);
    check_sample(&d, 0, want);
    dataset_free(&d);
}

static void tokens_come_with_their_mask_or_are_all_targets_but_the_first(void **state)
{
    (void)state;
    struct data_options o = options();
    check_one("{\"input_ids\": [5, 6, 7]}", NULL, &o, "5 6* 7*");
    check_one("{\"input_ids\": [5, 6, 7], \"loss_mask\": [1, 0, 1]}\r\n\n", NULL, &o, "5 6 7*");
    check_one("{\"input_ids\": [5, 6, 7], \"loss_mask\": [true, true, false]}", NULL, &o, "5 6* 7");
}

static void text_is_encoded_as_it_is_plus_the_end_token(void **state)
{
    (void)state;
    struct data_options o = options();
    check_one("{\"text\": \"abc\"}", plain, &o, "256 99* 257*");
    check_one("{\"text\": \"c[e~[\"}", plain, &o, "99 91* 101* 126* 91* 257*"); /* no special token from user text */
    o.append_eos = false;
    check_one("{\"text\": \"abc\"}", plain, &o, "256 99*");
    o.text_field = "body";
    o.format = DATA_TEXT;
    check_one("{\"text\": \"x\", \"body\": \"abc\"}", plain, &o, "256 99*");
}

static void of_prompt_and_response_the_response_and_its_end_are_targets(void **state)
{
    (void)state;
    struct data_options o = options();
    check_one("{\"prompt\": \"ab\", \"response\": \"abc\"}", plain, &o, "256 256* 99* 257*");
    o.prompt_field = "question", o.response_field = "answer";
    check_one("{\"question\": \"c\", \"answer\": \"c\"}", plain, &o, "99 99* 257*");
    o.instruction = "!";
    check_one("{\"question\": \"c\", \"answer\": \"c\"}", plain, &o, "99 10 33 99* 257*");
}

static void the_chat_layout_is_used_where_the_tokenizer_has_it(void **state)
{
    (void)state;
    struct data_options o = options();
    o.max_tokens = 4096;
    struct dataset a, b, c;
    check_ok(load(&a, "{\"prompt\": \"q\", \"response\": \"abc\"}", chat, &o));
    check_ok(load(&b, "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"abc\"}]}",
                  chat, &o));
    struct sample x = dataset_sample(&a, 0), y = dataset_sample(&b, 0);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.ids, y.ids, (size_t)x.n * sizeof *x.ids);
    assert_memory_equal(x.mask, y.mask, (size_t)x.n);
    int32_t targets = 0;
    for (int32_t t = 0; t < x.n; t++) targets += x.mask[t];
    if (targets < 3 || targets > 8) fail_msg("%d targets of %d tokens", targets, x.n);
    o.chat = TRI_FALSE;
    check_ok(load(&c, "{\"prompt\": \"q\", \"response\": \"abc\"}", chat, &o));
    check_sample(&c, 0, "113 256* 99* 257*");
    dataset_free(&a);
    dataset_free(&b);
    dataset_free(&c);
}

static void samples_beyond_the_limit_are_counted_and_rejected_or_cut(void **state)
{
    (void)state;
    static const char text[] = "{\"input_ids\": [1, 2, 3, 4, 5, 6]}\n{\"input_ids\": [1, 2]}\n{\"input_ids\": [9]}\n"
                               "{\"input_ids\": [1, 2, 3], \"loss_mask\": [1, 0, 0]}\n{\"input_ids\": [7, 8, 9, 10]}\n";
    struct data_options o = options();
    struct dataset d;
    o.max_tokens = 4;
    check_ok(load(&d, text, NULL, &o));
    assert_int_equal(d.n, 2);
    assert_int_equal(d.too_long, 1);
    assert_int_equal(d.unsupervised, 2);
    assert_int_equal(d.longest, 4);
    check_sample(&d, 0, "1 2*");
    check_sample(&d, 1, "7 8* 9* 10*");
    check_equal_f(dataset_target_share(&d), 4.0 / 6, 1e-12);
    dataset_free(&d);
    o.overlong = OVERLONG_TRUNCATE;
    check_ok(load(&d, text, NULL, &o));
    assert_int_equal(d.truncated, 1);
    check_sample(&d, 0, "1 2* 3* 4*");
    dataset_free(&d);
    o.limit = 1;
    check_ok(load(&d, text, NULL, &o));
    assert_int_equal(d.n, 1);
    dataset_free(&d);
}

static void bad_lines_are_refused_with_file_line_and_reason(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } bad[] = {
        {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 300]}\n", ":2: input_ids[1] is 300, not a token id below the vocabulary's 300"},
        {"{\"input_ids\": [1, -1]}", ":1: input_ids[1] is -1"},
        {"{\"input_ids\": [1, \"2\"]}", ":1: input_ids[1]"},
        {"{\"input_ids\": 5}", ":1: \"input_ids\" is missing or not an array"},
        {"{\"input_ids\": [1, 2], \"loss_mask\": [1]}", ":1: \"loss_mask\" has 1 entries, \"input_ids\" 2"},
        {"{\"input_ids\": [1, 2], \"loss_mask\": [1, \"x\"]}", ":1: loss_mask[1] is not 0 or 1"},
        {"\n\n[1]\n", ":3: not a JSON object"},
        {"{\"text\": \"a\"} x\n", ":1: line"},
        {"{\"text\": 5}\n", ":1: \"text\" is an integer, not a string"},
        {"{\"tekst\": \"a\"}\n", ":1: no field \"text\""},
        {"{\"prompt\": \"a\"}\n", ":1: no field \"response\""},
        {"{\"messages\": {}}\n", ":1: \"messages\" is missing or not an array"},
        {"{\"messages\": [{\"role\": \"user\"}]}\n", ":1: message 0: no field \"content\""},
        {"{\"messages\": [{\"role\": \"wizard\", \"content\": \"\"}]}\n", ":1: "},
        {"", ": no usable sample in 0 lines"},
        {"\n \n", ": no usable sample in 2 lines"},
    };
    struct data_options o = options();
    struct dataset d;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum status s = load(&d, bad[i].text, chat, &o);
        if (s != ERR_FORMAT || !strstr(status_message(), bad[i].reason) || !strstr(status_message(), path))
            fail_msg("%s -> %d %s, expected \"%s\"", bad[i].text, (int)s, s ? status_message() : "", bad[i].reason);
        dataset_free(&d);
    }
    check_fails(load(&d, "{\"text\": \"a\"}", NULL, &o), ERR_CONFIG, ":1: text needs a tokenizer");
    o.eos_id = -1;
    check_fails(load(&d, "{\"text\": \"a\"}", plain, &o), ERR_CONFIG, ":1: no end token");
    o.every_line = true;
    check_fails(load(&d, "{\"input_ids\": []}", NULL, &o), ERR_FORMAT, ":1: no tokens");
    o.max_tokens = 1;
    check_fails(load(&d, "{\"input_ids\": [1, 2]}", NULL, &o), ERR_FORMAT, ":1: 2 tokens, the limit is 1");
}

static void mutated_files_give_samples_within_the_vocabulary_or_words(void **state)
{
    (void)state;
    static const char good[] = "{\"input_ids\": [1, 2, 299], \"loss_mask\": [0, 1, 1]}\n{\"text\": \"a\\u00e9\\ud83d\\ude00[e~[\"}\n"
                               "{\"prompt\": \"ab\", \"response\": \"c\"}\n{\"messages\": [{\"role\": \"user\", "
                               "\"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\"}]}\n";
    char text[sizeof good];
    struct data_options o = options();
    int fine = 0;
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        struct dataset d;
        memcpy(text, good, sizeof good);
        size_t n = mutate_text(text, sizeof good - 1, seed);
        o.every_line = seed % 4 == 0;
        enum status s = load_bytes(&d, text, n, chat, &o);
        if (s && !strstr(status_message(), path)) fail_msg("seed %d: no file name: %s", (int)seed, status_message());
        if (s && s != ERR_FORMAT && s != ERR_CONFIG) fail_msg("seed %d: status %d: %s", (int)seed, (int)s, status_message());
        for (int64_t i = 0; !s && i < d.offset[d.n]; i++)
            if (d.ids[i] < 0 || d.ids[i] >= VOCAB) fail_msg("seed %d: token %d", (int)seed, d.ids[i]);
        fine += !s;
        dataset_free(&d);
    }
    if (fine < 100 || fine > 3900) fail_msg("%d of 4000 mutants are accepted: not a test", fine);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test_setup_teardown(tokens_come_with_their_mask_or_are_all_targets_but_the_first, set_up, tear_down),
    cmocka_unit_test_setup_teardown(text_is_encoded_as_it_is_plus_the_end_token, set_up, tear_down),
    cmocka_unit_test_setup_teardown(of_prompt_and_response_the_response_and_its_end_are_targets, set_up, tear_down),
    cmocka_unit_test_setup_teardown(the_chat_layout_is_used_where_the_tokenizer_has_it, set_up, tear_down),
    cmocka_unit_test_setup_teardown(samples_beyond_the_limit_are_counted_and_rejected_or_cut, set_up, tear_down),
    cmocka_unit_test_setup_teardown(bad_lines_are_refused_with_file_line_and_reason, set_up, tear_down),
    cmocka_unit_test_setup_teardown(mutated_files_give_samples_within_the_vocabulary_or_words, set_up, tear_down),
};
CHECK_MAIN(cases)
