/* The web page that is built into the program (web/index.html). Constant data; the server sends it as it is.
 *
 * Send ds_page_html as `text/html; charset=utf-8` with ds_page_csp as Content-Security-Policy: the policy lets the
 * page's own script and style run and the page talk with the server it came from, nothing else. The page asks for
 * v1/models, v1/chat/completions and metrics, relative to its own address. */
#ifndef DS_SERVER_PAGE_H
#define DS_SERVER_PAGE_H

#include <stddef.h>

extern const char ds_page_html[];       /* NUL-terminated */
extern const size_t ds_page_html_bytes; /* without the NUL */
extern const char ds_page_csp[];

#endif
