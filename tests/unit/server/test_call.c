/* A call in the server against a generator that is made up: what clients hear when it refuses at once, refuses late,
 * fails, or is lost. */
#include "served.h"

static void set(ds_rc add_rc, bool starts, uint32_t tokens, ds_end_reason reason, ds_rc rc)
{
    served_set((served_fate){ .add = add_rc, .starts = starts, .tokens = tokens, .reason = reason, .rc = rc });
}

static void an_answer(void **state)
{
    const char *a;

    (void)state;
    set(DS_OK, true, 3, DS_ENDED_LENGTH, DS_OK);
    a = served_ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 200");
    has(a, "\"completion_tokens\":3");
    a = served_ask(CHAT, BODY ",\"stream\":true}");
    has(a, "\"finish_reason\":\"length\"");
    has(a, "[DONE]");
}

static void refused_at_once_or_late(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        static const struct {
            ds_rc rc;
            const char *chat, *messages;
        } cases[] = { { DS_E_AGAIN, "HTTP/1.1 429", "HTTP/1.1 529" },
                      { DS_E_ARG, "HTTP/1.1 400", "HTTP/1.1 400" },
                      { DS_E_NOMEM, "HTTP/1.1 503", "HTTP/1.1 503" } };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            set(late ? DS_OK : cases[i].rc, false, 0, DS_ENDED_FAILED, cases[i].rc);
            const char *a = served_ask(CHAT, BODY "}");
            has(a, cases[i].chat);
            if (cases[i].rc != DS_E_ARG)
                has(a, "Retry-After: 1");
            has(served_ask("/v1/messages", BODY "}"), cases[i].messages);
        }
    }
    set(DS_OK, false, 0, DS_ENDED_FAILED, DS_E_AGAIN);
    const char *a = served_ask(CHAT, BODY ",\"stream\":true}");
    has(a, "the queue is full");
    lacks(a, "[DONE]");
}

static void lost_and_failed(void **state)
{
    const char *a;

    (void)state;
    set(DS_E_IO, false, 0, DS_ENDED_LENGTH, DS_OK); /* all engines are gone already */
    a = served_ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 503");
    has(a, "Retry-After: 1");
    has(a, "no engine");
    set(DS_OK, true, 2, DS_ENDED_LOST, DS_E_IO);
    a = served_ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 503");
    has(a, "Retry-After: 1");
    has(a, "is gone");
    lacks(a, "completion_tokens");
    a = served_ask(CHAT, BODY ",\"stream\":true}");
    has(a, "HTTP/1.1 200");
    has(a, "is gone");
    lacks(a, "[DONE]");
    lacks(a, "finish_reason\":\"");
    set(DS_OK, true, 2, DS_ENDED_FAILED, DS_E_FORMAT);
    has(served_ask(CHAT, BODY "}"), "HTTP/1.1 500");
    set(DS_OK, true, 2, DS_ENDED_DEADLINE, DS_OK);
    has(served_ask(CHAT, BODY "}"), "HTTP/1.1 504");
}

/* One answer for all prompts: what is lost of one is lost for all, and when one finds no room those that found some
 * are canceled. */
static void many_prompts(void **state)
{
    const char *a;

    (void)state;
    set(DS_OK, true, 1, DS_ENDED_LENGTH, DS_OK);
    a = served_ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}");
    has(a, "HTTP/1.1 200");
    has(a, "\"completion_tokens\":3");
    served_set((served_fate){ .starts = true, .tokens = 1, .reason = DS_ENDED_CANCELED, .full_at = 3 });
    has(served_ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}"), "HTTP/1.1 429");
    served_until(served_canceled, 2);
    set(DS_OK, true, 1, DS_ENDED_LOST, DS_E_IO);
    has(served_ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}"), "HTTP/1.1 503");
}

static int set_up(void **state)
{
    (void)state;
    return served_up(NULL);
}

static int tear_down(void **state)
{
    (void)state;
    return served_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(an_answer), cmocka_unit_test(refused_at_once_or_late),
                                        cmocka_unit_test(lost_and_failed), cmocka_unit_test(many_prompts) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
