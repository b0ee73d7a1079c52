/* What a load test asks for and when: arrivals drawn at random or read from a trace, and prompts that share prefixes.
 *
 * Nothing here depends on how fast a server answers: the same options give the same requests at the same times.
 * Prompts are plain English words, about one token each for a vocabulary of natural language; what a server counted
 * is in its usage. Threads: one owner.   Memory: a trace is held whole (8 bytes a block and 32 a request). */
#ifndef DS_LOADGEN_PLAN_H
#define DS_LOADGEN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

typedef struct ds_plan ds_plan;

enum { DS_PLAN_TRACE_BLOCK = 512 }; /* words that a hash id of a trace stands for */

typedef struct {
    /* Poisson arrivals: until `requests` or `duration_ns`, whichever comes first; 0 = no such end, one of them is set */
    double rate; /* requests (conversations) a second, > 0 */
    uint64_t requests, duration_ns;
    uint32_t input_tokens, output_tokens; /* >= 1 */
    double spread;                        /* 0..1: lengths lie evenly within this part of the above */
    uint32_t prefix_tokens, prefixes;     /* the first words of a prompt are one of so many shared texts; 0 = none shared */
    /* A trace instead: JSON lines {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}; equal ids are equal text. requests and duration_ns cut it. */
    const char *trace;
    double speed; /* 2 = twice as fast; 0 = 1 */
    uint64_t seed;
} ds_plan_opts;

typedef struct {
    uint64_t index, at_ns; /* number of the request, time from the start */
    uint32_t input_tokens, output_tokens;
    const uint64_t *ids; /* trace: borrowed from the plan */
    size_t n_ids;
} ds_plan_item;

/* DS_E_IO, DS_E_FORMAT: the trace, with line number. DS_E_NOMEM. Options are not checked (the command line does). */
ds_rc ds_plan_create(ds_plan **out, const ds_plan_opts *o, ds_err *err);
void ds_plan_destroy(ds_plan *p);
/* Requests in the order of their times; false at the end. */
bool ds_plan_next(ds_plan *p, ds_plan_item *out);
/* Appends the prompt's words: letters and spaces only. Check out->oom. O(words). */
void ds_plan_prompt(const ds_plan *p, const ds_plan_item *item, ds_buf *out);
/* What the user says in turn 1, 2, … of the conversation that `item` began. */
void ds_plan_turn(const ds_plan *p, const ds_plan_item *item, uint32_t turn, ds_buf *out);
/* A time to think, exponentially distributed. */
uint64_t ds_plan_think_ns(const ds_plan *p, uint64_t index, uint32_t turn, uint64_t mean_ns);

#endif
