/* A server on a Unix socket in a thread of its own, in front of a generator that is made up: every request has the
 * same fate. Each turn of its loop ends with ds_server_check. */
#ifndef DS_TEST_SERVED_H
#define DS_TEST_SERVED_H

#include "test.h"

#include <stdatomic.h>

#include "server/server.h"

/* What becomes of requests from now on. */
typedef struct {
    ds_rc add;        /* what the generator answers */
    uint32_t full_at; /* that add from now on finds no room; 0: none */
    bool starts;
    uint32_t tokens; /* events of a request that it takes, each the prompt's last token */
    bool open;       /* it has no end: more tokens come with served_give, until it is canceled; then it ends with CANCELED */
    ds_end_reason reason;
    ds_rc rc;
} served_fate;

void served_set(served_fate f);
uint32_t served_canceled(void);                         /* requests that the server has canceled so far */
uint32_t served_live(void);                             /* open requests that weren't canceled */
void served_give(uint32_t n);                           /* that many tokens to each of these */
void served_until(uint32_t (*count)(void), uint32_t n); /* waits until it is n, for at most ten seconds */

/* opts: NULL, or what differs from the defaults; sockets, names and recipe are set here. Group fixtures. */
int served_up(const ds_server_opts *opts);
int served_down(void);

int served_connect(void);                   /* a connection */
void served_send(int fd, const char *text); /* all of it */
const char *served_rest(int fd, size_t *n); /* all that comes until the server closes; closes too. n may be NULL */
/* A POST on a connection of its own, and all that comes back. */
const char *served_ask(const char *target, const char *body);

void has(const char *answer, const char *part);
void lacks(const char *answer, const char *part);

#define CHAT "/v1/chat/completions"
#define BODY "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

#endif
