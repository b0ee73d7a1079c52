#include "test.h"

#include "server/metrics.h"

static ds_buf page(const char *prefix, const char *model, const ds_metrics_engine *engines, uint32_t n)
{
    ds_metrics m = { .prompt_tokens = 7, .refused[DS_REFUSED_QUOTA] = 3, .preparing = 2 };
    ds_buf b = { 0 };

    ds_histogram_seconds(&m.ttft, 0.001); /* a bound belongs to its bucket */
    ds_histogram_seconds(&m.ttft, 5000);
    ds_metrics_write(&b, &m, prefix, model, engines, n, &(ds_metrics_beside){ 4, 5, { .grammars = 6, .compiled = 7 } });
    assert_false(b.oom);
    return b;
}

static void has(const ds_buf *b, const char *line)
{
    if (!strstr(ds_buf_str(b), line))
        fail_msg("%s isn't there:\n%s", line, ds_buf_str(b));
}

/* Every line is a comment or `name{model_name="…"[,label="value"]} number`, after a HELP and a TYPE of its name,
 * which come once. */
static void lines_are_well_formed(void **state)
{
    ds_metrics_engine e = { .has_stats = true,
                            .has_plan = true,
                            .stats = { .waiting = 5, .parked = 1, .prefilling = 1, .running = 2 },
                            .plan = { .total = 10, .kv = 4 } };
    ds_buf b = page("vllm:", "m", &e, 1);
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
    has(&b, "vllm:num_requests_running{model_name=\"m\"} 2\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"prepare\"} 2\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 4\n");
    has(&b, "vllm:num_requests_waiting_by_reason{model_name=\"m\",reason=\"preempted\"} 1\n");
    ds_buf_free(&b);
}

/* Each engine's own with its number, totals as sums; one that says nothing is left out. */
static void several_engines(void **state)
{
    ds_metrics_engine e[3] = {
        { .has_stats = true,
          .has_plan = true,
          .stats = { .running = 2,
                     .waiting = 1,
                     .kv_blocks = 8,
                     .kv_used = 4,
                     .steps = 7,
                     .prompt_tokens = 100,
                     .ended[DS_ENDED_LOST] = 1 },
          .plan = { .total = 10 } },
        { .has_plan = true, .plan = { .total = 5 } },
        { .has_stats = true,
          .stats = { .running = 3,
                     .waiting = 2,
                     .kv_blocks = 8,
                     .kv_used = 2,
                     .steps = 9,
                     .prompt_tokens = 11,
                     .step_decode = { .n = 1, .bucket[0] = 1 } } },
    };
    ds_buf b = page("d_", "m", e, 3);

    (void)state;
    has(&b, "d_num_requests_running{model_name=\"m\",engine=\"0\"} 2\n");
    has(&b, "d_num_requests_running{model_name=\"m\",engine=\"2\"} 3\n");
    has(&b, "d_kv_cache_usage_perc{model_name=\"m\",engine=\"2\"} 0.25\n");
    has(&b, "d_engine_steps_total{model_name=\"m\",engine=\"0\"} 7\n");
    has(&b, "d_num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 3\n");
    has(&b, "d_prefix_cache_queries_total{model_name=\"m\"} 111\n");
    has(&b, "d_engine_ended_total{model_name=\"m\",reason=\"lost\"} 1\n");
    has(&b, "d_engine_step_decode_seconds_count{model_name=\"m\"} 1\n");
    has(&b, "d_memory_plan_bytes{model_name=\"m\"} 15\n");
    assert_null(strstr(ds_buf_str(&b), "engine=\"1\""));
    ds_buf_free(&b);
}

static void names_are_escaped(void **state)
{
    char name[400];
    ds_buf b = page("d_", "a\"b\\c\nd", NULL, 0);

    (void)state;
    has(&b, "d_stored_responses{model_name=\"a\\\"b\\\\c\\nd\"} 4\n");
    assert_null(strstr(ds_buf_str(&b), "num_requests_running"));
    ds_buf_free(&b);
    for (size_t i = 0; i < 398; i += 2) /* cut between characters */
        memcpy(name + i, "\xc3\xa9", 3);
    memmove(name + 1, name, 399);
    name[0] = 'x';
    b = page("d_", name, NULL, 0);
    name[255] = '\0';
    has(&b, name);
    assert_non_null(strstr(strstr(ds_buf_str(&b), name) + 255, "\"} "));
    assert_int_equal(strncmp(strstr(ds_buf_str(&b), name) + 255, "\"", 1), 0);
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(lines_are_well_formed), cmocka_unit_test(several_engines),
                                        cmocka_unit_test(names_are_escaped) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
