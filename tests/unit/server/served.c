#include "served.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *small = DS_TEST_ROOT "/tests/golden/tokenizer/small.json";
static char folder[] = "/tmp/ds-served-XXXXXX", path[64];
static ds_server *server;
static ds_tokenizer *tokenizer;
static pthread_t thread;

/* ---- the generator ---- */

enum { QUEUE = 256, LIVE = 64 };

typedef struct {
    uint64_t id, cookie;
    ds_token token;
    uint32_t index;
} open_request;

static struct {
    pthread_mutex_t mu;
    served_fate f;
    ds_event queue[QUEUE];
    size_t n;
    open_request live[LIVE];
    size_t n_live;
    uint64_t next_id;
    uint32_t canceled;
    void (*wake)(void *ctx);
    void *wake_ctx;
} g = { .mu = PTHREAD_MUTEX_INITIALIZER };

void served_set(served_fate f)
{
    pthread_mutex_lock(&g.mu);
    g.f = f;
    pthread_mutex_unlock(&g.mu);
}

uint32_t served_canceled(void)
{
    pthread_mutex_lock(&g.mu);
    uint32_t n = g.canceled;
    pthread_mutex_unlock(&g.mu);
    return n;
}

uint32_t served_live(void)
{
    pthread_mutex_lock(&g.mu);
    uint32_t n = (uint32_t)g.n_live;
    pthread_mutex_unlock(&g.mu);
    return n;
}

void served_until(uint32_t (*count)(void), uint32_t n)
{
    for (int i = 0; count() != n; i++) {
        if (i == 10000)
            fail_msg("it is %u, not %u", count(), n);
        usleep(1000);
    }
}

static void say(uint64_t id, uint64_t cookie, ds_event ev)
{
    assert_true(g.n < QUEUE);
    ev.request = id;
    ev.cookie = cookie;
    g.queue[g.n++] = ev;
}

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_token last = q->prompt[q->n_prompt - 1];

    (void)h;
    pthread_mutex_lock(&g.mu);
    ds_rc rc = g.f.full_at && --g.f.full_at == 0 ? DS_E_AGAIN : g.f.add;
    if (rc == DS_OK) {
        *id = ++g.next_id;
        if (g.f.starts)
            say(*id, q->cookie, (ds_event){ .kind = DS_EV_START, .start = { .n_prompt = q->n_prompt } });
        for (uint32_t i = 0; i < g.f.tokens; i++)
            say(*id, q->cookie, (ds_event){ .kind = DS_EV_TOKEN, .token = { .index = i, .id = last } });
        if (g.f.open) {
            assert_true(g.n_live < LIVE);
            g.live[g.n_live++] = (open_request){ *id, q->cookie, last, g.f.tokens };
        } else {
            say(*id, q->cookie,
                (ds_event){ .kind = DS_EV_END, .end = { .reason = g.f.reason, .rc = g.f.rc, .n_tokens = g.f.tokens, .last = true } });
        }
    }
    pthread_mutex_unlock(&g.mu);
    if (rc == DS_OK)
        g.wake(g.wake_ctx);
    return rc == DS_OK ? rc : ds_fail(err, rc, "the value is out of range");
}

static void cancel(void *h, uint64_t id)
{
    (void)h;
    pthread_mutex_lock(&g.mu);
    g.canceled++;
    for (size_t i = 0; i < g.n_live; i++)
        if (g.live[i].id == id) {
            say(id, g.live[i].cookie, (ds_event){ .kind = DS_EV_END, .end = { .reason = DS_ENDED_CANCELED, .last = true } });
            g.live[i] = g.live[--g.n_live];
            break;
        }
    pthread_mutex_unlock(&g.mu);
    g.wake(g.wake_ctx);
}

static void finish_sample(void *h, uint64_t id, uint32_t sample)
{
    (void)sample;
    cancel(h, id);
}

void served_give(uint32_t n)
{
    pthread_mutex_lock(&g.mu);
    for (uint32_t k = 0; k < n; k++)
        for (size_t i = 0; i < g.n_live; i++)
            say(g.live[i].id, g.live[i].cookie,
                (ds_event){ .kind = DS_EV_TOKEN, .token = { .index = g.live[i].index++, .id = g.live[i].token } });
    pthread_mutex_unlock(&g.mu);
    g.wake(g.wake_ctx);
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    size_t n;

    (void)h;
    pthread_mutex_lock(&g.mu);
    n = g.n < cap ? g.n : cap;
    memcpy(ev, g.queue, n * sizeof *ev);
    memmove(g.queue, g.queue + n, (g.n - n) * sizeof *ev);
    g.n -= n;
    pthread_mutex_unlock(&g.mu);
    return n;
}

static bool wait_events(void *h, uint32_t ms)
{
    (void)h;
    (void)ms;
    return true;
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    (void)h;
    g.wake = wake;
    g.wake_ctx = ctx;
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
    ds_err err;

    return ds_server_run(server, &(ds_server_hooks){ .load = load, .ready = ready }, &err) == DS_OK ? arg : NULL;
}

int served_up(const ds_server_opts *opts)
{
    static const char *const names[] = { "m" };
    ds_server_opts o = opts ? *opts : (ds_server_opts){ 0 };
    ds_recipe_opts recipe;
    ds_err err;

    ds_recipe_opts_init(&recipe);
    recipe.encoding = DS_ENC_V4; /* the small tokenizer has its markers alone */
    if (!mkdtemp(folder) || ds_tokenizer_open(&tokenizer, small, &err) != DS_OK)
        return 1;
    snprintf(path, sizeof path, "%s/s", folder);
    o.no_tcp = o.check = true;
    o.unix_path = path;
    o.names = names;
    o.n_names = 1;
    o.access_fd = -1;
    o.recipe = &recipe;
    if (ds_server_create(&server, &o, &err) != DS_OK || pthread_create(&thread, NULL, serve, &server) != 0)
        return 1;
    while (!atomic_load(&is_ready))
        usleep(1000);
    return 0;
}

int served_down(void)
{
    void *ok;

    ds_server_ask(server, DS_SERVER_DRAIN);
    pthread_join(thread, &ok);
    ds_server_destroy(server);
    ds_tokenizer_destroy(tokenizer);
    unlink(path);
    rmdir(folder);
    return ok ? 0 : 1;
}

/* ---- a client ---- */

int served_connect(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    strcpy(a.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

void served_send(int fd, const char *text)
{
    for (size_t n = strlen(text); n;) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        assert_true(k > 0);
        text += k;
        n -= (size_t)k;
    }
}

const char *served_rest(int fd, size_t *n_out)
{
    static char answer[1 << 18];
    size_t n = 0;
    ssize_t got;

    while (n < sizeof answer - 1 && (got = read(fd, answer + n, sizeof answer - 1 - n)) > 0)
        n += (size_t)got;
    answer[n] = '\0';
    close(fd);
    if (n_out)
        *n_out = n;
    return answer;
}

const char *served_ask(const char *target, const char *body)
{
    int fd = served_connect();

    dprintf(fd, "POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
            target, strlen(body), body);
    return served_rest(fd, NULL);
}

void has(const char *answer, const char *part)
{
    if (!strstr(answer, part))
        fail_msg("%s isn't in:\n%s", part, answer);
}

void lacks(const char *answer, const char *part)
{
    if (strstr(answer, part))
        fail_msg("%s is in:\n%s", part, answer);
}
