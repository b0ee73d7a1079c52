/* A call in the server against a generator that is made up: what clients hear when it refuses at once, refuses late,
 * fails, or is lost. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server.h"

static const char *small = DS_TEST_ROOT "/tests/golden/tokenizer/small.json";
static char folder[] = "/tmp/ds-call-XXXXXX", path[64];
static ds_server *server;
static ds_tokenizer *tokenizer;

/* ---- the generator: every request has the same fate ---- */

static struct {
    pthread_mutex_t mu;
    ds_rc add;        /* what it answers */
    uint32_t full_at; /* that add from now on finds no room; 0: none */
    uint32_t tokens;  /* events of a request that it takes */
    bool starts;
    ds_end_reason reason;
    ds_rc rc;
    ds_event queue[64];
    size_t n;
    uint64_t next_id;
    atomic_uint canceled;
    void (*wake)(void *ctx);
    void *wake_ctx;
} fate = { .mu = PTHREAD_MUTEX_INITIALIZER };

static void say(uint64_t id, const ds_gen_request *q, ds_event ev)
{
    ev.request = id;
    ev.cookie = q->cookie;
    fate.queue[fate.n++] = ev;
}

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    (void)h;
    pthread_mutex_lock(&fate.mu);
    ds_rc rc = fate.full_at && --fate.full_at == 0 ? DS_E_AGAIN : fate.add;
    if (rc == DS_OK) {
        *id = ++fate.next_id;
        if (fate.starts)
            say(*id, q, (ds_event){ .kind = DS_EV_START, .start = { .n_prompt = q->n_prompt } });
        for (uint32_t i = 0; i < fate.tokens; i++)
            say(*id, q, (ds_event){ .kind = DS_EV_TOKEN, .token = { .index = i, .id = q->prompt[q->n_prompt - 1] } });
        say(*id, q,
            (ds_event){ .kind = DS_EV_END, .end = { .reason = fate.reason, .rc = fate.rc, .n_tokens = fate.tokens, .last = true } });
    }
    pthread_mutex_unlock(&fate.mu);
    if (rc == DS_OK)
        fate.wake(fate.wake_ctx);
    return rc == DS_OK ? rc : ds_fail(err, rc, "the value is out of range");
}

static void cancel(void *h, uint64_t id)
{
    (void)h;
    (void)id;
    atomic_fetch_add(&fate.canceled, 1);
}

static void finish_sample(void *h, uint64_t id, uint32_t sample)
{
    (void)h;
    (void)id;
    (void)sample;
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    size_t n;

    (void)h;
    pthread_mutex_lock(&fate.mu);
    n = fate.n < cap ? fate.n : cap;
    memcpy(ev, fate.queue, n * sizeof *ev);
    memmove(fate.queue, fate.queue + n, (fate.n - n) * sizeof *ev);
    fate.n -= n;
    pthread_mutex_unlock(&fate.mu);
    return n;
}

static bool wait_events(void *h, uint32_t ms)
{
    (void)h;
    (void)ms;
    return fate.n > 0;
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    (void)h;
    fate.wake = wake;
    fate.wake_ctx = ctx;
}

static bool drain(void *h)
{
    (void)h;
    return true;
}

static uint32_t n_engines(void *h)
{
    (void)h;
    return 2;
}

static bool stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    (void)h;
    *out = (ds_gen_stats){ .running = engine + 1 };
    return true;
}

static bool plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    (void)h;
    (void)engine;
    (void)out;
    return false;
}

/* ---- the server ---- */

static atomic_bool is_ready;

static ds_rc load(void *ctx, ds_server_model *out, ds_err *err)
{
    static const ds_gen_fn fn = { add, cancel, finish_sample, poll_events, wait_events, wake_by, drain, n_engines, stats, plan };

    (void)ctx;
    (void)err;
    *out = (ds_server_model){ .gen = { &fn, NULL }, .tokenizer = tokenizer, .max_context = 4096 };
    return DS_OK;
}

static void ready(void *ctx)
{
    (void)ctx;
    atomic_store(&is_ready, true);
}

static void *serve(void *arg)
{
    static ds_err err;

    return ds_server_run(server, &(ds_server_hooks){ .load = load, .ready = ready }, &err) == DS_OK ? arg : NULL;
}

/* All that comes back until the server closes. */
static const char *ask(const char *target, const char *body)
{
    static char answer[65536];
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    size_t n = 0;
    ssize_t got;

    strcpy(a.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    dprintf(fd, "POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
            target, strlen(body), body);
    while (n < sizeof answer - 1 && (got = read(fd, answer + n, sizeof answer - 1 - n)) > 0)
        n += (size_t)got;
    answer[n] = '\0';
    close(fd);
    return answer;
}

static void has(const char *answer, const char *part)
{
    if (!strstr(answer, part))
        fail_msg("%s isn't in:\n%s", part, answer);
}

static void lacks(const char *answer, const char *part)
{
    if (strstr(answer, part))
        fail_msg("%s is in:\n%s", part, answer);
}

#define CHAT "/v1/chat/completions"
#define BODY "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void set(ds_rc add_rc, bool starts, uint32_t tokens, ds_end_reason reason, ds_rc rc)
{
    fate.add = add_rc;
    fate.starts = starts;
    fate.tokens = tokens;
    fate.reason = reason;
    fate.rc = rc;
}

static void an_answer(void **state)
{
    const char *a;

    (void)state;
    set(DS_OK, true, 3, DS_ENDED_LENGTH, DS_OK);
    a = ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 200");
    has(a, "\"completion_tokens\":3");
    a = ask(CHAT, BODY ",\"stream\":true}");
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
            const char *a = ask(CHAT, BODY "}");
            has(a, cases[i].chat);
            if (cases[i].rc != DS_E_ARG)
                has(a, "Retry-After: 1");
            has(ask("/v1/messages", BODY "}"), cases[i].messages);
        }
    }
    set(DS_OK, false, 0, DS_ENDED_FAILED, DS_E_AGAIN);
    const char *a = ask(CHAT, BODY ",\"stream\":true}");
    has(a, "the queue is full");
    lacks(a, "[DONE]");
}

static void lost_and_failed(void **state)
{
    const char *a;

    (void)state;
    set(DS_E_IO, false, 0, DS_ENDED_LENGTH, DS_OK); /* all engines are gone already */
    a = ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 503");
    has(a, "Retry-After: 1");
    has(a, "no engine");
    set(DS_OK, true, 2, DS_ENDED_LOST, DS_E_IO);
    a = ask(CHAT, BODY "}");
    has(a, "HTTP/1.1 503");
    has(a, "Retry-After: 1");
    has(a, "is gone");
    lacks(a, "completion_tokens");
    a = ask(CHAT, BODY ",\"stream\":true}");
    has(a, "HTTP/1.1 200");
    has(a, "is gone");
    lacks(a, "[DONE]");
    lacks(a, "finish_reason\":\"");
    set(DS_OK, true, 2, DS_ENDED_FAILED, DS_E_FORMAT);
    has(ask(CHAT, BODY "}"), "HTTP/1.1 500");
    set(DS_OK, true, 2, DS_ENDED_DEADLINE, DS_OK);
    has(ask(CHAT, BODY "}"), "HTTP/1.1 504");
}

/* One answer for all prompts: what is lost of one is lost for all, and when one finds no room those that found some
 * are canceled. */
static void many_prompts(void **state)
{
    const char *a;

    (void)state;
    set(DS_OK, true, 1, DS_ENDED_LENGTH, DS_OK);
    a = ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}");
    has(a, "HTTP/1.1 200");
    has(a, "\"completion_tokens\":3");
    set(DS_OK, true, 1, DS_ENDED_CANCELED, DS_OK);
    fate.full_at = 3;
    has(ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}"), "HTTP/1.1 429");
    for (int i = 0; atomic_load(&fate.canceled) < 2; i++) {
        assert_true(i < 10000);
        usleep(1000);
    }
    set(DS_OK, true, 1, DS_ENDED_LOST, DS_E_IO);
    has(ask("/v1/completions", "{\"model\":\"m\",\"max_tokens\":4,\"prompt\":[\"a\",\"b\",\"c\"]}"), "HTTP/1.1 503");
}

static int set_up(void **state)
{
    static pthread_t thread;
    const char *names[] = { "m" };
    ds_server_opts o = { .no_tcp = true, .unix_path = path, .names = names, .n_names = 1, .access_fd = -1 };
    ds_recipe_opts recipe;
    ds_err err;

    ds_recipe_opts_init(&recipe);
    recipe.encoding = DS_ENC_V4; /* the small tokenizer has its markers alone */
    o.recipe = &recipe;
    if (!mkdtemp(folder) || ds_tokenizer_open(&tokenizer, small, &err) != DS_OK)
        return 1;
    snprintf(path, sizeof path, "%s/s", folder);
    if (ds_server_create(&server, &o, &err) != DS_OK || pthread_create(&thread, NULL, serve, server) != 0)
        return 1;
    while (!atomic_load(&is_ready))
        usleep(1000);
    *state = &thread;
    return 0;
}

static int tear_down(void **state)
{
    void *ok;

    ds_server_ask(server, DS_SERVER_DRAIN);
    pthread_join(*(pthread_t *)*state, &ok);
    ds_server_destroy(server);
    ds_tokenizer_destroy(tokenizer);
    unlink(path);
    rmdir(folder);
    return ok ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(an_answer), cmocka_unit_test(refused_at_once_or_late),
                                        cmocka_unit_test(lost_and_failed), cmocka_unit_test(many_prompts) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
