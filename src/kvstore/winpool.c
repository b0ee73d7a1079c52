/* Slots in shared memory beside an index as the directory. */
#include "kvstore/winpool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/none.h"
#include "kvstore/index.h"

enum { MAX_HOST = 1 << 20, SPOKES = 256, PAGE = 4096, SLOT_BITS = 32 };
#define DEFAULT_TTL_NS 180000000000u
#define MAX_SLOT_BYTES ((uint64_t)1 << 30)

static const char magic[8] = "DSKVWIN1";

/* In the first page of the slots' file; then each slot's generation, 0 while nothing whole is in it; then the slots. */
typedef struct {
    char magic[8];
    uint32_t host, slots;
    uint64_t slot_bytes, stride, slots_at, bytes;
} head;

/* What the owner knows of a slot. A free one is in the list of free ones, another in its spoke. */
typedef struct {
    uint32_t record;     /* of the directory */
    uint32_t next, prev; /* in the spoke; of a free one `next` is the next free one */
    uint32_t spoke;
} slot;

struct ds_winpool {
    /* [const] */
    ds_index *dir;
    head h;
    uint8_t *map;
    int fd;
    uint64_t ttl_ns, tick_ns;
    /* [owner] */
    slot *slot;
    uint32_t free_slot;
    uint32_t first[SPOKES], last[SPOKES]; /* of those whose time ends in one tick, in the order in which they came */
    uint64_t tick, generation;            /* tick: the next to be looked at */
    ds_winpool_stats count;
};

/* As in the index: acquiring loads and releasing stores of words are all that readers and the owner do to each other,
 * so that the order of statements is the order that is seen. On the machines that this runs on they cost nothing. */
static uint64_t load(const uint8_t *at)
{
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, memory_order_acquire);
}

static void store(uint8_t *at, uint64_t v)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, v, memory_order_release);
}

static uint8_t *generation_at(const ds_winpool *p, uint32_t i)
{
    return p->map + PAGE + 8 * (size_t)i;
}

static uint8_t *bytes_at(const ds_winpool *p, uint32_t i)
{
    return p->map + p->h.slots_at + i * p->h.stride;
}

static uint64_t page_up(uint64_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

static head head_for(uint32_t host, uint32_t slots, uint64_t slot_bytes)
{
    head h = { .host = host, .slots = slots, .slot_bytes = slot_bytes, .stride = page_up(slot_bytes) };

    memcpy(h.magic, magic, sizeof magic);
    h.slots_at = PAGE + page_up(8 * (uint64_t)slots);
    h.bytes = h.slots_at + slots * h.stride;
    return h;
}

static bool sane(uint32_t host, uint32_t slots, uint64_t slot_bytes)
{
    return host < MAX_HOST && slots >= 1 && slots <= DS_WINPOOL_MAX_SLOTS && slot_bytes >= 8 && slot_bytes % 8 == 0 &&
           slot_bytes <= MAX_SLOT_BYTES;
}

/* ---- coming and going ---- */

static ds_rc map_slots(ds_winpool *p, ds_err *err)
{
    int e;

    p->fd = memfd_create("deepserve-kv-windows", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (p->fd < 0 || ftruncate(p->fd, (off_t)p->h.bytes) != 0)
        goto system;
    p->map = mmap(NULL, p->h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd, 0);
    if (p->map == MAP_FAILED) {
        p->map = NULL;
        goto system;
    }
    if (fcntl(p->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        goto system;
    memcpy(p->map, &p->h, sizeof p->h);
    return DS_OK;
system:
    e = errno;
    return ds_fail(err, DS_E_IO, "shared memory for %u window states: %s", p->h.slots, strerror(e));
}

ds_rc ds_winpool_create(ds_winpool **out, const ds_winpool_opts *o, ds_err *err)
{
    ds_winpool *p;
    ds_rc rc;

    *out = NULL;
    if (!sane(o->host, o->slots, o->slot_bytes))
        return ds_fail(err, DS_E_ARG, "window pool: %u slots of %llu bytes", o->slots, (unsigned long long)o->slot_bytes);
    p = calloc(1, sizeof *p);
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    p->fd = -1;
    p->h = head_for(o->host, o->slots, o->slot_bytes);
    p->ttl_ns = o->ttl_ns ? o->ttl_ns : DEFAULT_TTL_NS;
    p->tick_ns = p->ttl_ns / (SPOKES - 2) + 1; /* whatever is put now ends within one turn of the wheel */
    p->slot = calloc(o->slots, sizeof *p->slot);
    rc = p->slot ? ds_index_create(&p->dir, o->slots, err) : ds_fail(err, DS_E_NOMEM, "out of memory for %u window states", o->slots);
    if (rc == DS_OK)
        rc = map_slots(p, err);
    if (rc != DS_OK) {
        ds_winpool_destroy(p);
        return rc;
    }
    for (uint32_t i = 0; i < o->slots; i++)
        p->slot[i].next = i + 1 < o->slots ? i + 1 : DS_NONE;
    for (uint32_t i = 0; i < SPOKES; i++)
        p->first[i] = p->last[i] = DS_NONE;
    *out = p;
    return DS_OK;
}

ds_rc ds_winpool_attach(ds_winpool **out, const int fd[2], ds_err *err)
{
    ds_winpool *p = calloc(1, sizeof *p);
    struct stat st;
    head want;
    ds_rc rc;

    *out = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    p->fd = -1;
    if (fstat(fd[1], &st) != 0 || pread(fd[1], &p->h, sizeof p->h, 0) != sizeof p->h || memcmp(p->h.magic, magic, sizeof magic) != 0 ||
        !sane(p->h.host, p->h.slots, p->h.slot_bytes)) {
        free(p);
        return ds_fail(err, DS_E_FORMAT, "window pool: it isn't one");
    }
    want = head_for(p->h.host, p->h.slots, p->h.slot_bytes);
    if (memcmp(&want, &p->h, sizeof want) != 0 || (uint64_t)st.st_size != want.bytes) {
        free(p);
        return ds_fail(err, DS_E_FORMAT, "window pool: %lld bytes for %u states", (long long)st.st_size, want.slots);
    }
    rc = ds_index_attach(&p->dir, fd[0], err);
    if (rc == DS_OK && ds_index_max_blocks(p->dir) != want.slots)
        rc = ds_fail(err, DS_E_FORMAT, "window pool: a directory of %u for %u states", ds_index_max_blocks(p->dir), want.slots);
    if (rc == DS_OK) {
        p->map = mmap(NULL, want.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd[1], 0);
        if (p->map == MAP_FAILED) {
            p->map = NULL;
            rc = ds_fail(err, DS_E_IO, "window pool: %s", strerror(errno));
        }
    }
    if (rc != DS_OK) {
        ds_winpool_destroy(p);
        return rc;
    }
    *out = p;
    return DS_OK;
}

void ds_winpool_destroy(ds_winpool *p)
{
    if (!p)
        return;
    ds_index_destroy(p->dir);
    if (p->map)
        munmap(p->map, p->h.bytes);
    if (p->fd >= 0)
        close(p->fd);
    free(p->slot);
    free(p);
}

void ds_winpool_fds(const ds_winpool *p, int fd[2])
{
    fd[0] = ds_index_fd(p->dir);
    fd[1] = p->fd;
}

uint64_t ds_winpool_slot_bytes(const ds_winpool *p)
{
    return p->h.slot_bytes;
}

/* ---- anybody ---- */

/* How a place stands in the directory: the generation as the segment, host and slot as the offset. */
static uint64_t offset_of(uint32_t host, uint32_t i)
{
    return ((uint64_t)host << SLOT_BITS | i) * PAGE;
}

bool ds_winpool_find(const ds_winpool *p, const ds_key *key, bool exact, ds_winpool_place *at)
{
    ds_index_hit hit;
    bool approx;

    if (!ds_index_find(p->dir, key, &hit))
        return false;
    approx = hit.what & DS_INDEX_APPROX;
    if (exact && approx)
        return false;
    *at = (ds_winpool_place){ .host = (uint32_t)(hit.place.offset / PAGE >> SLOT_BITS),
                              .slot = (uint32_t)(hit.place.offset / PAGE),
                              .crc = hit.place.crc,
                              .generation = hit.place.segment,
                              .approx = approx };
    return true;
}

bool ds_winpool_read(const ds_winpool *p, const ds_winpool_place *at, uint8_t *out)
{
    const uint8_t *from;

    if (at->host != p->h.host || at->slot >= p->h.slots || load(generation_at(p, at->slot)) != at->generation)
        return false;
    from = bytes_at(p, at->slot);
    for (uint64_t i = 0; i < p->h.slot_bytes; i += 8) {
        uint64_t v = load(from + i);
        memcpy(out + i, &v, 8);
    }
    return load(generation_at(p, at->slot)) == at->generation && ds_crc32c(out, p->h.slot_bytes) == at->crc;
}

/* ---- the wheel ---- */

static void onto_wheel(ds_winpool *p, uint32_t i, uint64_t now_ns)
{
    uint32_t s;

    ds_winpool_tick(p, now_ns); /* nothing may land in a spoke that is about to be emptied */
    s = (uint32_t)(((now_ns + p->ttl_ns) / p->tick_ns + 1) % SPOKES);
    p->slot[i].spoke = s;
    p->slot[i].prev = p->last[s];
    p->slot[i].next = DS_NONE;
    if (p->last[s] != DS_NONE)
        p->slot[p->last[s]].next = i;
    else
        p->first[s] = i;
    p->last[s] = i;
}

static void off_wheel(ds_winpool *p, uint32_t i)
{
    slot *x = &p->slot[i];

    if (x->prev != DS_NONE)
        p->slot[x->prev].next = x->next;
    else
        p->first[x->spoke] = x->next;
    if (x->next != DS_NONE)
        p->slot[x->next].prev = x->prev;
    else
        p->last[x->spoke] = x->prev;
}

/* The slot can be filled again. Whoever reads it finds out. */
static void empty(ds_winpool *p, uint32_t i)
{
    store(generation_at(p, i), 0);
    off_wheel(p, i);
    p->slot[i].next = p->free_slot;
    p->free_slot = i;
    p->count.used--;
}

static void drop(ds_winpool *p, uint32_t i)
{
    ds_index_remove(p->dir, p->slot[i].record, NULL, NULL);
    empty(p, i);
}

void ds_winpool_tick(ds_winpool *p, uint64_t now_ns)
{
    uint64_t now = now_ns / p->tick_ns;

    for (uint32_t turned = 0; p->tick <= now && turned < SPOKES; turned++, p->tick++)
        for (uint32_t s = (uint32_t)(p->tick % SPOKES); p->first[s] != DS_NONE; p->count.expired++)
            drop(p, p->first[s]);
    if (p->tick <= now)
        p->tick = now + 1;
}

/* ---- the owner ---- */

static uint32_t slot_of(const ds_index_hit *hit)
{
    return (uint32_t)(hit->place.offset / PAGE);
}

/* A free one, if need be that of the state whose time ends first. */
static uint32_t take(ds_winpool *p)
{
    uint32_t i = p->free_slot;

    for (uint64_t t = p->tick; i == DS_NONE; t++)
        if (p->first[t % SPOKES] != DS_NONE) {
            drop(p, p->first[t % SPOKES]);
            p->count.displaced++;
            i = p->free_slot;
        }
    p->free_slot = p->slot[i].next;
    return i;
}

bool ds_winpool_touch(ds_winpool *p, const ds_key *key, uint64_t now_ns)
{
    ds_index_hit hit;

    if (!ds_index_find(p->dir, key, &hit))
        return false;
    off_wheel(p, slot_of(&hit));
    onto_wheel(p, slot_of(&hit), now_ns);
    p->count.hits++;
    return true;
}

void ds_winpool_put(ds_winpool *p, const ds_key *key, const uint8_t *bytes, bool approx, uint64_t now_ns)
{
    ds_index_extent x = { .of = 1, .n = 1, .keys = key, .approx = approx, .parent = DS_NONE };
    ds_index_hit was;
    uint32_t i, crc, record;
    bool there = ds_index_find(p->dir, key, &was);
    ds_rc rc;

    if (there && (approx || !(was.what & DS_INDEX_APPROX))) {
        off_wheel(p, slot_of(&was));
        onto_wheel(p, slot_of(&was), now_ns);
        p->count.known++;
        return;
    }
    if (there)
        drop(p, slot_of(&was));
    i = take(p);
    for (uint64_t at = 0; at < p->h.slot_bytes; at += 8) {
        uint64_t v;
        memcpy(&v, bytes + at, 8);
        store(bytes_at(p, i) + at, v);
    }
    crc = ds_crc32c(bytes_at(p, i), p->h.slot_bytes);
    store(generation_at(p, i), ++p->generation);
    x.segment = p->generation;
    x.offset = offset_of(p->h.host, i);
    x.crc = &crc;
    rc = ds_index_insert(p->dir, &x, &record, NULL);
    assert(rc == DS_OK); /* there are as many entries as slots */
    (void)rc;
    p->slot[i].record = record;
    onto_wheel(p, i, now_ns);
    p->count.used++;
    p->count.put++;
}

void ds_winpool_stat(const ds_winpool *p, ds_winpool_stats *out)
{
    *out = p->count;
    out->slots = p->h.slots;
    out->bytes = p->h.slot_bytes;
}
