/* Small helpers around ds_str, for everything that reads outside text. */
#ifndef DS_BASE_STR_H
#define DS_BASE_STR_H

#include <stdbool.h>

#include <ds/str.h>

#include "base/json.h"

ds_str ds_lit(const char *s); /* of a static string */
bool ds_str_is(ds_str s, const char *word);
bool ds_str_starts(ds_str s, const char *prefix);
/* Text of a JSON string; absent for anything else, NULL too. Valid as long as the document. */
ds_str ds_json_str_of(const ds_json *v);
/* For a message: the text quoted, control characters escaped, cut after 40 bytes. Returns buf, which has cap >= 80
 * bytes. */
const char *ds_str_word(char *buf, size_t cap, ds_str s);

#endif
