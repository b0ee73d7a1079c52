/* Resizing for any processor. */
#define NAME ds_resize_base
#include "image/resize_body.h"
