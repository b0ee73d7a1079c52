/* Log lines: `level module req=… key=value`, one event a line, to a sink that the program gives. Libraries never print.
 * Threads: any; a line is written with one write(). */
#ifndef DS_BASE_LOG_H
#define DS_BASE_LOG_H

typedef enum { DS_LOG_ERROR, DS_LOG_WARN, DS_LOG_INFO, DS_LOG_DEBUG } ds_log_level;

typedef struct {
    ds_log_level level; /* lines above it are dropped */
    int fd;             /* where lines go; -1 drops all */
} ds_log;

/* log may be NULL. fmt: "module key=value …", without a line end. */
void ds_logf(const ds_log *log, ds_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
