/* The size of a picture from its first bytes, without decoding it: JPEG, PNG, GIF, WebP. Threads: any. */
#ifndef DS_RECIPE_IMAGE_SIZE_H
#define DS_RECIPE_IMAGE_SIZE_H

#include <ds/request.h>

/* Width and height in pixels, as stored. DS_E_FORMAT: none of the four formats, or cut off before its size. O(n) at most, no allocation. */
ds_rc ds_image_size(const unsigned char *bytes, size_t n, uint32_t *width, uint32_t *height, ds_err *err);

/* The bytes of a DS_IMAGE_DATA source, decoded; *out is freed by the caller. Missing padding is repaired. DS_E_FORMAT: no base64, or a broken
 * percent escape; DS_E_NOMEM; DS_E_ARG: an image of another kind. */
ds_rc ds_image_bytes(const ds_image *image, unsigned char **out, size_t *n, ds_err *err);

#endif
