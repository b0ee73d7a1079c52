/* The roof of streaming: 2,000 TCP connections on loopback that get 300 bytes each 33.3 ms, by nothing but send() in
 * one thread, with a reader in another one; all at once as after one step of an engine, and in eight groups spread
 * over that time. What a server adds to a token is to be compared with it.
 *
 * `cpu_us` is the sender's CPU time for one send; latency counts from the begin of the burst to the bytes with the
 * reader. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench.h"

enum { STREAMS = 2000, ROUNDS = 150, PERIOD_NS = 33300000, BYTES = 300 };

static int senders[STREAMS], readers[STREAMS];
static uint64_t latency[(size_t)STREAMS * ROUNDS];
static size_t n_read;

static void *read_all(void *arg)
{
    int epoll = epoll_create1(0);
    struct epoll_event ev[256];
    char buf[2 * BYTES];

    (void)arg;
    for (uint32_t i = 0; i < STREAMS; i++)
        epoll_ctl(epoll, EPOLL_CTL_ADD, readers[i], &(struct epoll_event){ .events = EPOLLIN, .data.u32 = i });
    while (n_read < (size_t)STREAMS * ROUNDS) {
        int n = epoll_wait(epoll, ev, 256, 1000);
        for (int i = 0; i < n; i++) {
            uint64_t begin, now;
            if (recv(readers[ev[i].data.u32], buf, BYTES, MSG_DONTWAIT) != BYTES)
                continue;
            memcpy(&begin, buf, sizeof begin);
            now = ds_now_ns();
            latency[n_read++] = now - begin;
        }
    }
    close(epoll);
    return NULL;
}

static int connect_all(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);

    if (l < 0 || bind(l, (struct sockaddr *)&a, n) != 0 || listen(l, 128) != 0 || getsockname(l, (struct sockaddr *)&a, &n) != 0)
        return -1;
    for (int i = 0; i < STREAMS; i++) {
        readers[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (readers[i] < 0 || connect(readers[i], (struct sockaddr *)&a, n) != 0 || (senders[i] = accept(l, NULL, NULL)) < 0)
            return -1;
        setsockopt(senders[i], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    }
    return close(l);
}

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* NULL, or what failed. */
static const char *run(uint64_t groups)
{
    uint64_t due = ds_now_ns(), cpu;
    char bytes[BYTES] = { 0 };
    pthread_t reader;

    n_read = 0;
    if (pthread_create(&reader, NULL, read_all, NULL) != 0)
        return "a thread";
    cpu = thread_ns();
    for (uint64_t k = 0; k < ROUNDS * groups; k++) {
        uint64_t begin;
        while ((begin = ds_now_ns()) < due)
            nanosleep(&(struct timespec){ .tv_nsec = (long)(due - begin) }, NULL);
        memcpy(bytes, &begin, sizeof begin);
        for (uint64_t i = k % groups; i < STREAMS; i += groups)
            if (send(senders[i], bytes, BYTES, MSG_NOSIGNAL) != BYTES)
                return "send";
        due += PERIOD_NS / groups;
    }
    cpu = thread_ns() - cpu;
    pthread_join(reader, NULL);
    qsort(latency, n_read, sizeof *latency, bench_compare);
    printf("op=stream_send case=%s streams=%d bytes=%d reps=%d cpu_us=%.2f latency_ms_p50=%.2f p90=%.2f p99=%.2f max=%.2f\n",
           groups == 1 ? "burst" : "spread", STREAMS, BYTES, ROUNDS, (double)cpu / 1e3 / STREAMS / ROUNDS,
           (double)latency[n_read / 2] / 1e6, (double)latency[n_read * 9 / 10] / 1e6, (double)latency[n_read * 99 / 100] / 1e6,
           (double)latency[n_read - 1] / 1e6);
    return NULL;
}

int main(void)
{
    struct rlimit l;
    const char *failed = NULL;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
    if (connect_all() != 0)
        failed = "connections";
    for (uint64_t groups = 1; groups <= 8 && !failed; groups += 7)
        failed = run(groups);
    if (failed)
        fprintf(stderr, "%s: %s\n", failed, strerror(errno));
    return failed ? 1 : 0;
}
