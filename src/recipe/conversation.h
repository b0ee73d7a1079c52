/* The internal conversation, to which every protocol is reduced, and from which the prompt is rendered. (recipe spec
 * 2.1)
 *
 * Built by the protocol adapters, in order; read by the renderer. Everything lives in the request's region. */
#ifndef DS_RECIPE_CONVERSATION_H
#define DS_RECIPE_CONVERSATION_H

#include <stdbool.h>
#include <stdint.h>

#include <ds/request.h>

#include "base/json.h"
#include "recipe/region.h"

typedef enum { DS_ROLE_SYSTEM, DS_ROLE_USER, DS_ROLE_ASSISTANT, DS_ROLE_TOOL, DS_ROLE_REMINDER } ds_role;

typedef enum {
    DS_TASK_NONE,
    DS_TASK_ACTION,
    DS_TASK_QUERY,
    DS_TASK_AUTHORITY,
    DS_TASK_DOMAIN,
    DS_TASK_TITLE,
    DS_TASK_READ_URL,
} ds_task;

/* A piece of content or reasoning: text, or an image when image >= 0. */
typedef struct ds_part ds_part;
struct ds_part {
    ds_part *next;
    ds_str text;
    const char *joiner; /* static; written before it, unless it is the first */
    int32_t image;      /* -1 = text */
};
typedef struct {
    ds_part *first, *last; /* first NULL = absent, which is not the same as empty */
    size_t bytes;          /* of text; an image counts as one */
} ds_parts;

typedef struct ds_call ds_call;
struct ds_call {
    ds_call *next;
    ds_str id, name;
    const ds_json *args; /* an object, or NULL: `raw` is written as one string parameter named `arguments` */
    ds_str raw;
    bool input_text; /* a custom call: `raw` is its parameter `input` */
};

typedef struct ds_msg ds_msg;
struct ds_msg {
    ds_msg *next;
    ds_role role;
    ds_parts content;
    ds_parts reasoning; /* assistant */
    ds_call *calls, *last_call;
    uint32_t n_calls;
    ds_str call_id; /* tool */
    bool prefix;    /* assistant, last message: to be continued */
    ds_task task;   /* user */
};

typedef struct {
    ds_msg *first, *last;
    bool has_tools_field;           /* the request's tools field is not empty, whatever the choice (recipe 2.11) */
    const ds_json *response_schema; /* json_schema */
    bool json_object;
    bool no_header; /* the prompt ends behind the last message */
} ds_conv;

/* All return NULL when the region is exhausted; it then remembers. */
ds_msg *ds_conv_add(ds_conv *c, ds_region *g, ds_role role);
ds_part *ds_parts_text(ds_parts *p, ds_region *g, ds_str text, const char *joiner);
ds_part *ds_parts_image(ds_parts *p, ds_region *g, uint32_t image);
ds_call *ds_msg_call(ds_msg *m, ds_region *g, ds_str id, ds_str name);

/* Ids of calls: text -> number, first come first. Open addressing; sized for `cap` entries at most. */
typedef struct {
    struct ds_idmap_slot {
        ds_str key; /* absent = free */
        uint32_t value, generation;
    } * slots;
    uint32_t mask, n, cap, generation;
    uint64_t seed;
} ds_idmap;

/* Empties the map and makes room for `cap` keys; false when the region is exhausted. O(1) unless it must grow. */
bool ds_idmap_reset(ds_idmap *m, ds_region *g, uint32_t cap);
/* The slot of a key, or NULL. */
struct ds_idmap_slot *ds_idmap_find(const ds_idmap *m, ds_str key);
/* False when the key is there already. The map must have room. */
bool ds_idmap_put(ds_idmap *m, ds_str key, uint32_t value);

/* Calls of each turn in the order of their ids as strings; equal ids keep their order. False when the region is
 * exhausted. */
bool ds_conv_sort_calls(ds_conv *c, ds_region *g);
/* V4 knows system text at the head only: later system messages become user messages, empty ones vanish. (recipe 2.2) */
void ds_conv_later_systems_to_user(ds_conv *c);
/* Within each run of user and tool messages, the tool messages are put in the order of the calls that they answer.
 * (recipe 2.7) False when the region is exhausted. */
bool ds_conv_order_results(ds_conv *c, ds_region *g);

#endif
