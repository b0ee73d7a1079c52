/* Bytes that travel as text: base64 and percent-encoding. Threads: any. */
#ifndef DS_RECIPE_MEDIA_TEXT_H
#define DS_RECIPE_MEDIA_TEXT_H

#include <ds/request.h>

/* Both alphabets; line breaks are skipped, padding may be missing, but nothing may follow it. out: text.n / 4 * 3 +
 * 3 bytes. */
bool ds_base64_decode(ds_str text, char *out, size_t *n);
/* A '%' without two hex digits is refused. out: text.n bytes. */
bool ds_percent_decode(ds_str text, char *out, size_t *n);

/* The bytes of a DS_IMAGE_DATA source, decoded; *out is freed by the caller. Missing padding is repaired.
 * DS_E_FORMAT: no base64, or a broken percent escape; DS_E_NOMEM; DS_E_ARG: an image of another kind. */
ds_rc ds_image_bytes(const ds_image *image, unsigned char **out, size_t *n, ds_err *err);

#endif
