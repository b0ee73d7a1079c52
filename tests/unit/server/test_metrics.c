#include "test.h"

#include "server/metrics.h"

static ds_buf page(const char *prefix, const char *model, const ds_gen_stats *engine, const ds_gen_plan *plan)
{
    ds_metrics m = { .prompt_tokens = 7, .refused[DS_REFUSED_QUOTA] = 3, .preparing = 2 };
    ds_buf b = { 0 };

    ds_histogram_seconds(&m.ttft, 0.001); /* a bound belongs to its bucket */
    ds_histogram_seconds(&m.ttft, 5000);
    ds_metrics_write(&b, &m, prefix, model, engine, plan, 4, 5);
    assert_false(b.oom);
    return b;
}

static void has(const ds_buf *b, const char *line)
{
    if (!strstr(ds_buf_str(b), line))
        fail_msg("%s isn't there:\n%s", line, ds_buf_str(b));
}

/* Every line is a comment or `name{model_name="…"[,label="value"]} number`, after a HELP and a TYPE of its name, which come once. */
static void lines_are_well_formed(void **state)
{
    ds_gen_stats e = { .waiting = 5, .parked = 1, .prefilling = 1, .running = 2 };
    ds_gen_plan plan = { .total = 10, .kv = 4 };
    ds_buf b = page("vllm:", "m", &e, &plan);
    char *save, family[100] = "", *copy = strdup(ds_buf_str(&b));
    size_t n = 0;

    (void)state;
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        size_t at = strcspn(line, "{");
        char *end;
        if (strncmp(line, "# HELP ", 7) == 0) {
            snprintf(family, sizeof family, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            continue;
        }
        if (strncmp(line, "# TYPE ", 7) == 0) {
            assert_int_equal(strncmp(line + 7, family, strlen(family)), 0);
            continue;
        }
        assert_int_equal(strncmp(line, family, strlen(family)), 0);
        assert_int_equal(strncmp(line + at, "{model_name=\"m\"", 15), 0);
        end = strstr(line, "} ");
        assert_non_null(end);
        strtod(end + 2, &end);
        assert_int_equal(*end, '\0');
    }
    assert_true(n > 200);
    free(copy);
    has(&b, "vllm:prompt_tokens_total{model_name=\"m\"} 7\n");
    has(&b, "vllm:request_refused_total{model_name=\"m\",reason=\"quota\"} 3\n");
    has(&b, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.001\"} 1\n");
    has(&b, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"1800\"} 1\n");
    has(&b, "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 2\n");
    has(&b, "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 2\n");
    has(&b, "vllm:num_requests_running{model_name=\"m\"} 3\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"prepare\"} 2\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 5\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"preempted\"} 1\n");
    ds_buf_free(&b);
}

static void names_are_escaped(void **state)
{
    char name[400];
    ds_buf b = page("d_", "a\"b\\c\nd", NULL, NULL);

    (void)state;
    has(&b, "d_stored_responses{model_name=\"a\\\"b\\\\c\\nd\"} 4\n");
    assert_null(strstr(ds_buf_str(&b), "num_requests_running"));
    ds_buf_free(&b);
    for (size_t i = 0; i < 398; i += 2) /* cut between characters */
        memcpy(name + i, "\xc3\xa9", 3);
    memmove(name + 1, name, 399);
    name[0] = 'x';
    b = page("d_", name, NULL, NULL);
    name[255] = '\0';
    has(&b, name);
    assert_non_null(strstr(strstr(ds_buf_str(&b), name) + 255, "\"} "));
    assert_int_equal(strncmp(strstr(ds_buf_str(&b), name) + 255, "\"", 1), 0);
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(lines_are_well_formed), cmocka_unit_test(names_are_escaped) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
