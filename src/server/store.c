#include "server/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/err.h"
#include "base/file.h"

#define APPLICATION_ID 0x64737265 /* "dsre": what `file` and a wrong path are recognised by */
enum { VERSION = 1 };

enum { Q_PUT, Q_GET_BODY, Q_GET_ITEMS, Q_GET_INPUT, Q_REMOVE, Q_EXPIRE, Q_OLDEST, Q_DROP, Q_SUM, N_QUERIES };
static const char *const queries[N_QUERIES] = {
    "INSERT OR REPLACE INTO response (tenant, id, expires, bytes, body, items, input_bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    "SELECT body FROM response WHERE tenant = ?1 AND id = ?2 AND expires > ?3",
    "SELECT items FROM response WHERE tenant = ?1 AND id = ?2 AND expires > ?3",
    "SELECT substr(items, 11, input_bytes) FROM response WHERE tenant = ?1 AND id = ?2 AND expires > ?3", /* after {"items":[ */
    "DELETE FROM response WHERE tenant = ?1 AND id = ?2 AND expires > ?3",
    "DELETE FROM response WHERE expires <= ?1",
    "SELECT rowid, bytes FROM response ORDER BY rowid LIMIT 1",
    "DELETE FROM response WHERE rowid = ?1",
    "SELECT count(*), coalesce(sum(bytes), 0) FROM response",
};

struct ds_store {
    /* [const] */
    uint64_t ttl_s, max_bytes;
    char name[256]; /* for messages */
    /* [mu] */
    pthread_mutex_t mu;
    sqlite3 *db;
    sqlite3_stmt *q[N_QUERIES];
    uint64_t records, bytes;
};

static ds_rc failed(ds_store *s, int code, ds_err *err)
{
    return ds_fail(err, code == SQLITE_NOMEM ? DS_E_NOMEM : DS_E_IO, "%s: %s", s->name,
                   s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code));
}

static int64_t pragma(ds_store *s, const char *name)
{
    char sql[64];
    sqlite3_stmt *q;
    int64_t v = -1;

    sqlite3_snprintf(sizeof sql, sql, "PRAGMA %s", name);
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
        v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return v;
}

static void recount(ds_store *s)
{
    sqlite3_stmt *q = s->q[Q_SUM];

    if (sqlite3_step(q) == SQLITE_ROW) {
        s->records = (uint64_t)sqlite3_column_int64(q, 0);
        s->bytes = (uint64_t)sqlite3_column_int64(q, 1);
    }
    sqlite3_reset(q);
}

/* The file is for its owner only, since it holds what users wrote; SQLite's files beside it take over its mode. */
static ds_rc make_file(const ds_store *s, const char *path, ds_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0)
        return ds_fail(err, DS_E_IO, "%s: %s", s->name, strerror(errno));
    close(fd);
    return DS_OK;
}

static ds_rc set_up(ds_store *s, const char *path, ds_err *err)
{
    static const char schema[] =
        "PRAGMA application_id = 1685287525; PRAGMA user_version = 1;"
        "CREATE TABLE IF NOT EXISTS response (tenant TEXT NOT NULL, id TEXT NOT NULL, expires INTEGER NOT NULL, bytes INTEGER NOT NULL,"
        " body BLOB NOT NULL, items BLOB NOT NULL, input_bytes INTEGER NOT NULL, UNIQUE (tenant, id));"
        "CREATE INDEX IF NOT EXISTS response_expires ON response (expires);";
    int rc = sqlite3_open_v2(path ? path : ":memory:", &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);

    if (rc != SQLITE_OK)
        return failed(s, rc, err);
    sqlite3_busy_timeout(s->db, 2000);
    int64_t id = pragma(s, "application_id"), tables = pragma(s, "schema_version");
    if (tables < 0)
        return ds_fail(err, DS_E_FORMAT, "%s: %s", s->name, sqlite3_errmsg(s->db));
    if (tables > 0 && (id != APPLICATION_ID || pragma(s, "user_version") != VERSION))
        return ds_fail(err, DS_E_FORMAT, "%s: is a database of another program or version", s->name);
    rc = sqlite3_exec(
        s->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA auto_vacuum = INCREMENTAL;",
        NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->db, schema, NULL, NULL, NULL);
    for (int i = 0; i < N_QUERIES && rc == SQLITE_OK; i++)
        rc = sqlite3_prepare_v3(s->db, queries[i], -1, SQLITE_PREPARE_PERSISTENT, &s->q[i], NULL);
    if (rc != SQLITE_OK)
        return failed(s, rc, err);
    recount(s);
    return DS_OK;
}

ds_rc ds_store_open(ds_store **out, const char *path, uint64_t ttl_s, uint64_t max_bytes, ds_err *err)
{
    ds_store *s = calloc(1, sizeof *s);
    char label[220];
    ds_rc rc;

    *out = NULL;
    if (!s || pthread_mutex_init(&s->mu, NULL) != 0) {
        free(s);
        return ds_fail(err, DS_E_NOMEM, "stored responses: out of memory");
    }
    s->ttl_s = ttl_s;
    s->max_bytes = max_bytes;
    if (path)
        snprintf(s->name, sizeof s->name, "stored responses in %s", ds_file_label(label, sizeof label, path));
    else
        strcpy(s->name, "stored responses");
    rc = path ? make_file(s, path, err) : DS_OK;
    if (rc == DS_OK)
        rc = set_up(s, path, err);
    if (rc != DS_OK) {
        ds_store_close(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

void ds_store_close(ds_store *s)
{
    if (!s)
        return;
    for (int i = 0; i < N_QUERIES; i++)
        sqlite3_finalize(s->q[i]);
    sqlite3_close(s->db);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* ---- under the lock ---- */

static void bind_key(sqlite3_stmt *q, const char *tenant, const char *id, int64_t now_s)
{
    sqlite3_bind_text(q, 1, tenant, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 3, now_s);
}

static int finish(sqlite3_stmt *q)
{
    int rc = sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return rc;
}

/* Drops the oldest until `more` bytes have room. */
static int make_room(ds_store *s, uint64_t more)
{
    int rc = SQLITE_OK;

    while (rc == SQLITE_OK && s->records && s->bytes + more > s->max_bytes) {
        int64_t row = 0, bytes = 0;
        if (sqlite3_step(s->q[Q_OLDEST]) == SQLITE_ROW) {
            row = sqlite3_column_int64(s->q[Q_OLDEST], 0);
            bytes = sqlite3_column_int64(s->q[Q_OLDEST], 1);
        }
        rc = finish(s->q[Q_OLDEST]);
        if (rc != SQLITE_OK)
            break;
        sqlite3_bind_int64(s->q[Q_DROP], 1, row);
        sqlite3_step(s->q[Q_DROP]);
        rc = finish(s->q[Q_DROP]);
        s->records--;
        s->bytes -= (uint64_t)bytes;
    }
    return rc;
}

ds_rc ds_store_put(ds_store *s, const ds_store_record *r, ds_err *err)
{
    uint64_t bytes = r->body_n + r->items_n + 200;
    sqlite3_stmt *q = s->q[Q_PUT];
    ds_rc out = DS_OK;
    int rc;

    if (bytes > s->max_bytes || bytes > INT32_MAX)
        return ds_fail(err, DS_E_AGAIN, "stored responses: a record of %llu bytes is above the bound", (unsigned long long)bytes);
    pthread_mutex_lock(&s->mu);
    rc = make_room(s, bytes);
    if (rc == SQLITE_OK) {
        bind_key(q, r->tenant, r->id, r->now_s + (int64_t)s->ttl_s);
        sqlite3_bind_int64(q, 4, (int64_t)bytes);
        sqlite3_bind_blob(q, 5, r->body, (int)r->body_n, SQLITE_STATIC);
        sqlite3_bind_blob(q, 6, r->items, (int)r->items_n, SQLITE_STATIC);
        sqlite3_bind_int64(q, 7, (int64_t)r->n_input_bytes);
        sqlite3_step(q);
        rc = finish(q);
    }
    if (rc == SQLITE_OK) {
        s->records++;
        s->bytes += bytes;
    } else {
        out = failed(s, rc, err);
    }
    pthread_mutex_unlock(&s->mu);
    return out;
}

bool ds_store_remove(ds_store *s, const char *tenant, const char *id, int64_t now_s)
{
    bool gone;

    pthread_mutex_lock(&s->mu);
    bind_key(s->q[Q_REMOVE], tenant, id, now_s);
    sqlite3_step(s->q[Q_REMOVE]);
    gone = finish(s->q[Q_REMOVE]) == SQLITE_OK && sqlite3_changes(s->db) > 0;
    if (gone)
        recount(s);
    pthread_mutex_unlock(&s->mu);
    return gone;
}

ds_rc ds_store_get(ds_store *s, const char *tenant, const char *id, ds_store_part part, int64_t now_s, char **text, size_t *n, ds_err *err)
{
    sqlite3_stmt *q = s->q[Q_GET_BODY + (int)part];
    ds_rc out = DS_OK;
    int rc;

    *text = NULL;
    *n = 0;
    pthread_mutex_lock(&s->mu);
    bind_key(q, tenant, id, now_s);
    if (sqlite3_step(q) == SQLITE_ROW) {
        *n = (size_t)sqlite3_column_bytes(q, 0);
        *text = malloc(*n + 1);
        if (*text) {
            if (*n)
                memcpy(*text, sqlite3_column_blob(q, 0), *n);
            (*text)[*n] = '\0';
        } else {
            out = ds_fail(err, DS_E_NOMEM, "out of memory");
        }
    }
    rc = finish(q);
    if (rc != SQLITE_OK && out == DS_OK)
        out = failed(s, rc, err);
    pthread_mutex_unlock(&s->mu);
    return out;
}

void ds_store_sweep(ds_store *s, int64_t now_s)
{
    pthread_mutex_lock(&s->mu);
    sqlite3_bind_int64(s->q[Q_EXPIRE], 1, now_s);
    sqlite3_step(s->q[Q_EXPIRE]);
    if (finish(s->q[Q_EXPIRE]) == SQLITE_OK && sqlite3_changes(s->db) > 0)
        recount(s);
    sqlite3_exec(s->db, "PRAGMA incremental_vacuum(200)", NULL, NULL, NULL);
    sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    pthread_mutex_unlock(&s->mu);
}

void ds_store_usage(ds_store *s, uint64_t *records, uint64_t *bytes)
{
    pthread_mutex_lock(&s->mu);
    *records = s->records;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->mu);
}
