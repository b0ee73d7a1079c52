/* Resizing with AVX2: this file alone is built with -mavx2. */
#define NAME ds_resize_avx2
#include "image/resize_body.h"
