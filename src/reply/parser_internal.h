/* State of the stream parser, shared by parser.c (text, markers, states) and parser_call.c (tags, parameters, values).
 *
 * Held text. What may not be passed on yet is never stored: it is `nl` newlines or the first `k` bytes of a stop
 * sequence, whichever is longer (both describe the same bytes), followed by the first `cl` bytes of a marker. A
 * marker that has begun is text for stop sequences only once it has turned out to be none.
 *
 * feed() runs on whole characters only; markers and stop sequences begin and end at characters, so every cut is at
 * one too. */
#ifndef DS_REPLY_PARSER_INTERNAL_H
#define DS_REPLY_PARSER_INTERNAL_H

#include "reply/parser.h"

typedef enum {
    M_NONE,
    M_THINK_OPEN,  /* <think> */
    M_THINK_CLOSE, /* </think> */
    M_EOS,         /* counts at the very end of the output only */
    M_BLOCK_OPEN,  /* <｜DSML｜ calls> */
    M_BLOCK_CLOSE,
    M_INVOKE,      /* <｜DSML｜ invoke        attributes follow */
    M_INVOKE_NAME, /* <｜DSML｜ invoke name=" */
    M_INVOKE_CLOSE,
    M_PARAM,      /* <｜DSML｜ parameter     attributes follow */
    M_PARAM_NAME, /* <｜DSML｜ parameter name=" */
    M_PARAM_CLOSE,
    M_STOP, /* a stop sequence */
} marker;

typedef struct {
    uint8_t cls, n;
    char s[46];
} literal;

#define MAX_LITERALS 128
#define MAX_SET 64
typedef struct { /* what one state looks for */
    uint8_t n;
    uint8_t lit[MAX_SET];    /* markers, none of them a prefix of another */
    uint64_t all, lead_only; /* lead_only: valid before the first visible byte only */
    size_t nl_max;           /* newlines that are held because a marker may follow */
    unsigned swallow;        /* classes of markers that drop them */
    bool stops;              /* stop sequences count */
} marker_set;

typedef enum {
    S_REASON,
    S_CONTENT,
    S_JSON_PRE, /* JSON mode: before the value */
    S_JSON,
    S_JSON_AFTER,
    S_BLOCK, /* between calls */
    S_TAG,   /* attributes of an invoke or parameter tag */
    S_BODY,  /* in a call, between parameters */
    S_VALUE,
    S_BAD,    /* in a malformed call, which is content */
    S_ORPHAN, /* in a call without a block, held until it closes */
    S_END,
    S_COUNT,
} state;

typedef enum { V_STRING, V_RAW, V_RAW_STREAM, V_SKIP, V_INPUT, V_WRAP, V_COERCE } value_kind;
typedef enum { A_SPACE, A_NAME, A_AFTER_NAME, A_EQUALS, A_QUOTED, A_BARE } attr_state;
typedef enum { ATTR_OTHER, ATTR_NAME, ATTR_STRING } attr_kind;

typedef struct {
    const uint8_t *s;
    uint32_t n, k;
    uint32_t *fail; /* KMP failure function, n entries */
} stop;

#define HDR_MAX 1024
#define RING 64
#define KEY_SLOTS 8192
#define FEW_KEYS 32

struct ds_parser {
    ds_parser_opts o;
    ds_parser_stats stats;
    state state;
    bool lead; /* nothing visible yet: newlines are dropped */
    bool done;
    bool single; /* done because max_calls closed */
    bool think_dropped;
    bool by_token;    /* ds_parser_token was called */
    uint64_t control; /* position after the last control token */
    uint32_t calls_closed;

    literal lits[MAX_LITERALS];
    unsigned n_lits;
    marker_set sets[S_COUNT];
    stop stops[DS_PARSER_MAX_STOPS];
    unsigned n_stops;
    void *stop_mem;
    bool special[256]; /* '<' and first bytes of stop sequences */
    bool second[256];  /* second bytes of markers */

    /* held text */
    size_t nl, swallowed; /* swallowed: newlines that the last marker dropped */
    unsigned cl;
    uint64_t alive; /* literals of the state's set that still fit */
    const literal *cand;
    uint32_t k;
    const stop *kstop;
    uint64_t stops_from; /* sequences that end up to this position are text */

    uint64_t pos;  /* position of the first byte that the state hasn't consumed */
    uint8_t u8[4]; /* incomplete sequence */
    unsigned u8n;

    /* reasoning tokens: the last pushes, and where the reasoning ended */
    struct {
        uint64_t begin, end;
        uint32_t n;
    } ring[RING];
    unsigned ring_n;
    uint64_t r_end;
    bool r_closed, r_done;

    /* JSON mode */
    unsigned ticks, word;
    uint64_t depth;
    bool in_string, escape;

    /* tag */
    bool tag_param, tag_first, has_name, announced;
    state tag_from;
    const literal *tag_lit;
    attr_state astate;
    attr_kind attr;
    char attr_name[8];
    unsigned attr_n;
    char attr_val[8];
    unsigned attr_val_n;
    char hdr[HDR_MAX]; /* an invoke tag as written, until its name is known to be good */
    size_t hdr_n;
    uint64_t hdr_pos;

    /* call */
    bool open;      /* announced and not ended */
    unsigned flags; /* DS_PARSE_DECLARED, DS_PARSE_CUSTOM */
    char name[DS_PARSER_MAX_NAME];
    size_t name_n, name_end; /* collected; without trailing white space */
    bool name_over;
    uint32_t params, emitted;
    bool custom_text; /* its input is being passed on as text */
    bool custom_json;
    bool body_bad;

    /* parameter */
    char key[DS_PARSER_MAX_KEY];
    size_t key_n;
    bool key_long, skip, wrap;
    int ptype; /* 1 string="true", 0 "false", -1 missing or else */
    value_kind vkind;
    bool wrap_pending; /* a closed value is held: the call's only parameter so far */
    bool wrap_string;
    unsigned types; /* DS_TYPE_ bits of the key's schema, 0 = not known */

    char *vbuf; /* held value, or the body of a call without parameters */
    size_t vn, vcap;
    char *obuf;                    /* held orphan call */
    size_t on, ocap, o_head, o_nl; /* o_head: bytes of the marker; o_nl: newlines before it */
    uint64_t o_pos;
    bool o_checked; /* its name is complete and declared */

    uint64_t few[FEW_KEYS]; /* hashes of the call's keys */
    uint64_t *keys;         /* from FEW_KEYS + 1 on all of them, as a hash set; 0 = empty */
    uint32_t n_keys;
};

/* parser.c */
size_t parser_scan(ds_parser *p, const marker_set *set, const uint8_t *s, size_t n, marker *hit);
void parser_emit(ds_parser *p, ds_parse_kind kind, const char *s, size_t n);
void parser_feed(ds_parser *p, const uint8_t *s, size_t n);
void parser_flush_held(ds_parser *p, uint64_t end);
/* Passes n bytes on as content in which no markup counts (stop sequences do). */
void parser_content_raw(ds_parser *p, const char *s, size_t n, uint64_t pos);

/* parser_call.c */
void parser_tag_open(ds_parser *p, marker m, uint64_t end); /* `end`: position after the marker */
size_t parser_in_tag(ds_parser *p, const uint8_t *s, size_t n);
size_t parser_in_body(ds_parser *p, const uint8_t *s, size_t n);
size_t parser_in_value(ds_parser *p, const uint8_t *s, size_t n);
void parser_value_text(ds_parser *p, const char *s, size_t n);
void parser_body_text(ds_parser *p, const char *s, size_t n);
void parser_call_end(ds_parser *p, bool complete);
void parser_bad_call(ds_parser *p);

#endif
