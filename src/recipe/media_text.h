/* Bytes that travel as text: base64 and percent-encoding. Threads: any. */
#ifndef DS_RECIPE_MEDIA_TEXT_H
#define DS_RECIPE_MEDIA_TEXT_H

#include <ds/request.h>

/* Both alphabets; line breaks are skipped, padding may be missing, but nothing may follow it. out: text.n / 4 * 3 + 3 bytes. */
bool ds_base64_decode(ds_str text, char *out, size_t *n);
/* A '%' without two hex digits is refused. out: text.n bytes. */
bool ds_percent_decode(ds_str text, char *out, size_t *n);

#endif
