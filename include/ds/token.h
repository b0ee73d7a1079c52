/* The id of a token: 0 .. vocabulary - 1, everywhere the same type. */
#ifndef DS_TOKEN_H
#define DS_TOKEN_H

#include <stdint.h>

typedef int32_t ds_token;

#define DS_TOKEN_NONE ((ds_token)-1) /* no such token */

#endif
