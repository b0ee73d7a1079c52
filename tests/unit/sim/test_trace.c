/* Readers of request logs: what they read, and what they refuse with its row. */
#include "sim/trace.h"
#include "test.h"

static ds_rc read(ds_sim_form form, const char *text, ds_sim_row *rows, uint64_t first_id[], size_t *n, ds_err *err)
{
    ds_sim_trace *t;
    bool more = true;
    ds_rc rc = ds_sim_trace_text(&t, text, strlen(text), "log", form, err);

    *n = 0;
    while (rc == DS_OK && more) {
        rc = ds_sim_trace_next(t, &rows[*n], &more, err);
        if (rc == DS_OK && more) {
            first_id[*n] = rows[*n].n_ids ? rows[*n].ids[0] : 0;
            ++*n;
        }
    }
    ds_sim_trace_close(t);
    return rc;
}

static void reads(void **state)
{
    ds_sim_row r[8];
    uint64_t id[8];
    ds_err err = { 0 };
    size_t n;

    (void)state;
    assert_int_equal(read(DS_SIM_MOONCAKE,
                          "{\"timestamp\": 0, \"input_length\": 900, \"output_length\": 5, \"hash_ids\": [46, 47]}\n\n"
                          "{\"timestamp\": 3000, \"input_length\": 10, \"output_length\": 0, \"hash_ids\": []}\r\n"
                          "{\"timestamp\": 6000, \"input_length\": 10, \"output_length\": 2, \"hash_ids\": [9], \"more\": 1}",
                          r, id, &n, &err),
                     DS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(r[0].n_ids, 2);
    assert_int_equal(id[0], 46);
    assert_int_equal(r[1].at_ns, 3000000000);
    assert_int_equal(r[1].output, 1); /* an answer has its end at least */
    assert_int_equal(r[2].at_ns, 6000000000);
    assert_int_equal(
        read(DS_SIM_AZURE,
             "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n", r, id,
             &n, &err),
        DS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(r[0].input, 4808);
    assert_int_equal(r[1].at_ns, 52000000);
    /* Written when they end: the second one began first. */
    assert_int_equal(
        read(DS_SIM_ACCESS,
             "{\"time\":\"2026-12-01T10:00:05.000Z\",\"ms\":1000.0,\"prompt_tokens\":7,\"cached_tokens\":0,\"output_tokens\":3}\n"
             "{\"time\":\"2026-12-01T10:00:05.500Z\",\"status\":404,\"ms\":1}\n"
             "{\"time\":\"2026-12-01T10:00:06.250Z\",\"ms\":3000,\"prompt_tokens\":300,\"cached_tokens\":128,\"output_tokens\":9}\n",
             r, id, &n, &err),
        DS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(r[0].cached, 128);
    assert_int_equal(r[0].at_ns, 0);
    assert_int_equal(r[1].at_ns, 750000000);
    assert_int_equal(read(DS_SIM_MOONCAKE, "", r, id, &n, &err), DS_OK);
    assert_int_equal(n, 0);
}

static void refuses(void **state)
{
    static const struct {
        ds_sim_form form;
        const char *text, *says;
    } cases[] = {
        { DS_SIM_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n{", "log: row 2: line 1" },
        { DS_SIM_MOONCAKE, "[]", "log: row 1: no JSON object" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}", "log: row 1: timestamp" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}", "log: row 1: input_length" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": 1, \"input_length\": 1e3, \"output_length\": 1, \"hash_ids\": []}",
          "log: row 1: input_length" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": 1, \"input_length\": 999999999999, \"output_length\": 1, \"hash_ids\": []}",
          "log: row 1: input_length" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
          "log: row 1: an element" },
        { DS_SIM_MOONCAKE, "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}", "log: row 1: hash_ids" },
        { DS_SIM_MOONCAKE,
          "{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}\n"
          "{\"timestamp\": 8, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
          "log: row 2: its time" },
        { DS_SIM_AZURE, "a,b,c\n", "log: row 1: no line TIMESTAMP" },
        { DS_SIM_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,1,1\n", "log: row 2: TIMESTAMP" },
        { DS_SIM_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n", "log: row 2: ContextTokens" },
        { DS_SIM_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1,1\n", "log: row 2: GeneratedTokens" },
        { DS_SIM_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-11-16 18:17:03,-1,1\n", "log: row 3: ContextTokens" },
        { DS_SIM_ACCESS, "{\"prompt_tokens\":1}", "log: row 1: time" },
        { DS_SIM_ACCESS, "{\"time\":\"2026-12-01T10:00:05.000Z\",\"ms\":1,\"prompt_tokens\":7,\"cached_tokens\":8,\"output_tokens\":3}",
          "log: row 1: cached_tokens" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_sim_row r[8];
        uint64_t id[8];
        ds_err err = { 0 };
        size_t n;
        assert_int_equal(read(cases[i].form, cases[i].text, r, id, &n, &err), DS_E_FORMAT);
        if (strncmp(err.msg, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("case %zu says: %s", i, err.msg);
    }
}

static void no_file(void **state)
{
    ds_sim_trace *t;
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_sim_trace_open(&t, "/nowhere/log", DS_SIM_AZURE, &err), DS_E_IO);
    assert_null(t);
    ds_sim_trace_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(reads), cmocka_unit_test(refuses), cmocka_unit_test(no_file) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
