/* Placement of experts.
 *
 * Loads of an expert in all records are a vector of fixed length, so that a change is judged by a few additions and
 * maxima over it. Exchanges are looked for where they can help: on a rank that is the slowest in some record. What the
 * others' largest load is without two ranks is known from the three slowest ranks of each record. */
#include "parallel/balance.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { B = DS_BALANCE_RECORDS, TOP = 3, TRIES = 9000 /* exchanges looked at in a plan */, PARTNERS = 16 };
/* Of what the cost is more than with equal ranks, an exchange has to save so much: first, and at last. */
#define FIRST_STEP 0.0625f
#define LAST_STEP 0.0005f

typedef struct {
    float v[B];
} vec;

typedef struct {
    const ds_balance_shape *s;
    uint32_t rank0, ranks; /* those that are worked on */
    vec *load;             /* [experts] */
    vec *share;            /* [experts] of a copy */
    float *sum;            /* [experts] of a copy, over all records */
    vec *rank;             /* [ranks] */
    uint16_t *copies;      /* [experts] */
    uint8_t *on;           /* [ranks][experts] */
    uint16_t *place;
    uint16_t *list, *order; /* [most of experts, ranks * slots] */
    struct {
        float v;
        uint32_t rank;
    } top[B][TOP];
} work;

static uint32_t nodes_of(const ds_balance_shape *s)
{
    return s->nodes ? s->nodes : 1;
}

static uint32_t groups_of(const ds_balance_shape *s)
{
    return s->groups ? s->groups : nodes_of(s);
}

const char *ds_balance_bad_shape(const ds_balance_shape *s)
{
    if (s->experts == 0 || s->experts > DS_BALANCE_MAX_EXPERTS || s->ranks == 0 || s->ranks > DS_BALANCE_MAX_RANKS)
        return "experts or ranks are none or too many";
    if (s->records == 0 || s->records > DS_BALANCE_RECORDS)
        return "records are none or too many";
    if (s->ranks % nodes_of(s) || groups_of(s) % nodes_of(s) || s->experts % groups_of(s))
        return "nodes don't divide ranks and groups, or groups don't divide experts";
    if ((uint64_t)s->slots * s->ranks < s->experts)
        return "there are fewer slots than experts";
    return s->slots > s->experts / nodes_of(s) ? "a rank has more slots than there are experts for it" : NULL;
}

static size_t up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Lays the tables out in scratch, NULL: only adds up. */
static size_t lay_out(work *w, const ds_balance_shape *s, void *scratch)
{
    size_t E = s->experts, R = s->ranks, n = larger(E, R * s->slots), at = 0;
    uint8_t *p = scratch;
    size_t size[] = { E * sizeof(vec), E * sizeof(vec), E * sizeof(float), R * sizeof(vec), E * 2, R * E, n * 2, n * 2 };
    void *to[sizeof size / sizeof *size];

    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        to[i] = p ? p + at : NULL;
        at += up(size[i]);
    }
    *w = (work){ .s = s,
                 .ranks = s->ranks,
                 .load = to[0],
                 .share = to[1],
                 .sum = to[2],
                 .rank = to[3],
                 .copies = to[4],
                 .on = to[5],
                 .list = to[6],
                 .order = to[7] };
    return at;
}

size_t ds_balance_scratch_bytes(const ds_balance_shape *s)
{
    work w;

    return lay_out(&w, s, NULL);
}

static void begin(work *w, const ds_balance_shape *s, const float *load, uint16_t *place, void *scratch)
{
    lay_out(w, s, scratch);
    w->place = place;
    memset(w->load, 0, s->experts * sizeof *w->load);
    for (uint32_t b = 0; b < s->records; b++)
        for (uint32_t e = 0; e < s->experts; e++)
            w->load[e].v[b] = load[(size_t)b * s->experts + e];
}

static void set_copies(work *w, uint32_t e, uint32_t copies)
{
    w->copies[e] = (uint16_t)copies;
    w->sum[e] = 0.0f;
    for (uint32_t b = 0; b < B; b++) {
        w->share[e].v[b] = w->load[e].v[b] / (float)copies;
        w->sum[e] += w->share[e].v[b];
    }
}

static bool is_on(const work *w, uint32_t rank, uint32_t e)
{
    return w->on[(size_t)rank * w->s->experts + e];
}

static void put(work *w, uint32_t rank, uint32_t slot, uint32_t e, float sign)
{
    w->on[(size_t)rank * w->s->experts + e] = sign > 0.0f;
    w->place[(size_t)rank * w->s->slots + slot] = (uint16_t)e;
    for (uint32_t b = 0; b < B; b++)
        w->rank[rank].v[b] += sign * w->share[e].v[b];
}

/* ---- copies and packing ------------------------------------------------------------------------------------------ */

/* list: heavy experts first, ties to the lower one. */
static void sort_list(work *w, uint32_t n)
{
    uint32_t gap = 1;
    uint16_t *a = w->list;

    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            uint16_t e = a[i];
            uint32_t j = i;
            for (; j >= gap && (w->sum[a[j - gap]] < w->sum[e] || (w->sum[a[j - gap]] == w->sum[e] && a[j - gap] > e)); j -= gap)
                a[j] = a[j - gap];
            a[j] = e;
        }
}

/* Copies for so many slots: the next one to the expert whose copies have the most. An expert that has one yet isn't
 * looked at before those in front of it in the sorted list have more. */
static void replicate(work *w, uint32_t n_list, uint32_t slots)
{
    uint32_t several = 0;

    for (uint32_t i = 0; i < n_list; i++)
        set_copies(w, w->list[i], 1);
    sort_list(w, n_list);
    for (uint32_t n = n_list; n < slots; n++) {
        uint32_t most = UINT32_MAX;
        for (uint32_t i = 0; i <= several && i < n_list; i++) {
            uint32_t e = w->list[i];
            if (w->copies[e] < w->ranks && (most == UINT32_MAX || w->sum[e] > w->sum[most]))
                most = e;
        }
        several += several < n_list && most == w->list[several];
        set_copies(w, most, w->copies[most] + 1u);
    }
}

/* order: all copies, those of heavy experts first. Copies of one expert stand together. */
static uint32_t sort_copies(work *w, uint32_t n_list)
{
    uint32_t n = 0;

    sort_list(w, n_list);
    for (uint32_t i = 0; i < n_list; i++)
        for (uint32_t c = 0; c < w->copies[w->list[i]]; c++)
            w->order[n++] = w->list[i];
    return n;
}

/* The rank with room that has the least and no copy of e; else, one with room and a slot to give away. */
static uint32_t least_rank(const work *w, const uint16_t *used, const float *total, uint32_t e)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t r = w->rank0; r < w->rank0 + w->ranks; r++)
        if (used[r] < w->s->slots && !is_on(w, r, e) && (best == UINT32_MAX || total[r] < total[best]))
            best = r;
    return best;
}

/* Every rank with room has a copy of e: one of them takes an expert of a full rank without one, which takes e. */
static void trade(work *w, uint16_t *used, float *total, uint32_t e)
{
    for (uint32_t r = w->rank0; r < w->rank0 + w->ranks; r++) {
        if (used[r] == w->s->slots)
            continue;
        for (uint32_t q = w->rank0; q < w->rank0 + w->ranks; q++)
            for (uint32_t i = 0; i < used[q] && !is_on(w, q, e); i++) {
                uint32_t f = w->place[(size_t)q * w->s->slots + i];
                if (is_on(w, r, f))
                    continue;
                put(w, q, i, f, -1.0f);
                put(w, q, i, e, 1.0f);
                put(w, r, used[r]++, f, 1.0f);
                total[q] += w->sum[e] - w->sum[f];
                total[r] += w->sum[f];
                return;
            }
    }
}

/* Each copy, heavy ones first, to the rank that has the least. */
static void pack(work *w, uint32_t n_list)
{
    uint16_t used[DS_BALANCE_MAX_RANKS] = { 0 };
    float total[DS_BALANCE_MAX_RANKS] = { 0 };
    uint32_t n = sort_copies(w, n_list);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = w->order[i], r = least_rank(w, used, total, e);
        if (r == UINT32_MAX) {
            trade(w, used, total, e);
            continue;
        }
        put(w, r, used[r]++, e, 1.0f);
        total[r] += w->sum[e];
    }
}

/* Groups of experts to nodes, the same number each, heavy ones first; then each node by itself. */
static void each_node(work *w, void (*fn)(work *w, uint32_t n_list))
{
    const ds_balance_shape *s = w->s;
    uint32_t nodes = nodes_of(s), groups = groups_of(s), per_group = s->experts / groups, node_of[DS_BALANCE_MAX_EXPERTS],
             used[DS_BALANCE_MAX_RANKS] = { 0 };
    float group[DS_BALANCE_MAX_EXPERTS] = { 0 }, total[DS_BALANCE_MAX_RANKS] = { 0 };

    for (uint32_t e = 0; e < s->experts; e++)
        for (uint32_t b = 0; b < B; b++)
            group[e / per_group] += w->load[e].v[b];
    for (uint32_t n = 0; n < groups; n++) {
        uint32_t heavy = UINT32_MAX, to = UINT32_MAX;
        for (uint32_t g = 0; g < groups; g++)
            if (group[g] >= 0.0f && (heavy == UINT32_MAX || group[g] > group[heavy]))
                heavy = g;
        for (uint32_t k = 0; k < nodes; k++)
            if (used[k] < groups / nodes && (to == UINT32_MAX || total[k] < total[to]))
                to = k;
        node_of[heavy] = to;
        used[to]++;
        total[to] += group[heavy];
        group[heavy] = -1.0f;
    }
    memset(w->rank, 0, s->ranks * sizeof *w->rank);
    memset(w->on, 0, (size_t)s->ranks * s->experts);
    w->ranks = s->ranks / nodes;
    for (uint32_t k = 0; k < nodes; k++) {
        uint32_t n_list = 0;
        for (uint32_t e = 0; e < s->experts; e++)
            if (node_of[e / per_group] == k)
                w->list[n_list++] = (uint16_t)e;
        w->rank0 = k * w->ranks;
        replicate(w, n_list, w->ranks * s->slots);
        fn(w, n_list);
    }
    w->rank0 = 0;
    w->ranks = s->ranks;
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/* The slowest ranks of each record. */
static void find_top(work *w)
{
    for (uint32_t b = 0; b < B; b++) {
        for (uint32_t t = 0; t < TOP; t++) {
            w->top[b][t].v = 0.0f;
            w->top[b][t].rank = UINT32_MAX;
        }
        for (uint32_t r = 0; r < w->s->ranks; r++) {
            float v = w->rank[r].v[b];
            uint32_t t = TOP;
            while (t > 0 && (w->top[b][t - 1].rank == UINT32_MAX || v > w->top[b][t - 1].v))
                t--;
            for (uint32_t k = TOP - 1; k > t; k--)
                w->top[b][k] = w->top[b][k - 1];
            if (t < TOP) {
                w->top[b][t].v = v;
                w->top[b][t].rank = r;
            }
        }
    }
}

/* The largest load in each record of ranks other than h and r. */
static void others(const work *w, uint32_t h, uint32_t r, vec *out)
{
    for (uint32_t b = 0; b < B; b++) {
        uint32_t t = 0;
        while (t < TOP - 1 && (w->top[b][t].rank == h || w->top[b][t].rank == r))
            t++;
        out->v[b] = w->top[b][t].v;
    }
}

static float cost_now(const work *w)
{
    float sum = 0.0f;

    for (uint32_t b = 0; b < B; b++)
        sum += w->top[b][0].v;
    return sum;
}

/* The cost when rank h gives e away for f, and rank r the other way round. */
static float cost_of(const work *w, const vec *rest, uint32_t h, uint32_t r, uint32_t e, uint32_t f)
{
    float sum = 0.0f;

    for (uint32_t b = 0; b < B; b++) {
        float d = w->share[e].v[b] - w->share[f].v[b], vh = w->rank[h].v[b] - d, vr = w->rank[r].v[b] + d, m = vh > vr ? vh : vr;
        sum += m > rest->v[b] ? m : rest->v[b];
    }
    return sum;
}

static uint32_t node_of_rank(const work *w, uint32_t r)
{
    return r / (w->s->ranks / nodes_of(w->s));
}

/* An exchange between rank h and another that makes the cost less than `below`, the first there is. Exchanges that
 * give the other rank more are looked at first where they start: there is no need for all of them. */
static bool exchange(work *w, uint32_t h, float below, uint32_t *tries)
{
    const ds_balance_shape *s = w->s;
    const uint16_t *mine = w->place + (size_t)h * s->slots;

    for (uint32_t k = 1; k < s->ranks; k++) {
        uint32_t r = (h + k) % s->ranks;
        const uint16_t *theirs = w->place + (size_t)r * s->slots;
        vec rest;
        if (node_of_rank(w, r) != node_of_rank(w, h))
            continue;
        others(w, h, r, &rest);
        for (uint32_t i = 0; i < s->slots; i++) {
            uint32_t e = mine[i];
            if (is_on(w, r, e))
                continue;
            for (uint32_t j = 0; j < s->slots; j++) {
                uint32_t f = theirs[j];
                if (w->sum[f] >= w->sum[e] || is_on(w, h, f))
                    continue;
                if (*tries == 0)
                    return false;
                --*tries;
                if (cost_of(w, &rest, h, r, e, f) >= below)
                    continue;
                put(w, h, i, e, -1.0f);
                put(w, r, j, f, -1.0f);
                put(w, h, i, f, 1.0f);
                put(w, r, j, e, 1.0f);
                find_top(w);
                return true;
            }
        }
    }
    return false;
}

/* One on a rank that is the slowest in some record. */
static bool exchange_somewhere(work *w, float below, uint32_t *tries)
{
    for (uint32_t b = 0; b < w->s->records; b++) {
        bool before = false;
        for (uint32_t a = 0; a < b; a++)
            before = before || w->top[a][0].rank == w->top[b][0].rank;
        if (!before && exchange(w, w->top[b][0].rank, below, tries))
            return true;
    }
    return false;
}

/* Exchanges as long as they help, large steps first; most_moves slots at most. Returns how many were changed. */
static uint32_t improve(work *w, uint32_t most_moves, uint32_t tries)
{
    float mean = 0.0f, step = FIRST_STEP;
    uint32_t moves = 0;

    find_top(w);
    for (uint32_t r = 0; r < w->s->ranks; r++)
        for (uint32_t b = 0; b < B; b++)
            mean += w->rank[r].v[b] / (float)w->s->ranks;
    while (tries > 0 && moves + 2 <= most_moves && step > LAST_STEP) {
        float now = cost_now(w), gain = (now - mean) * step;
        if (gain > now * 1e-6f && exchange_somewhere(w, now - gain, &tries))
            moves += 2;
        else
            step /= 4.0f;
    }
    return moves;
}

void ds_balance_greedy(const ds_balance_shape *s, const float *load, uint16_t *place, void *scratch)
{
    work w;

    begin(&w, s, load, place, scratch);
    each_node(&w, pack);
}

void ds_balance_plan(const ds_balance_shape *s, const float *load, uint16_t *place, void *scratch)
{
    work w;

    begin(&w, s, load, place, scratch);
    each_node(&w, pack);
    improve(&w, UINT32_MAX, TRIES);
}

/* ---- from one placement to the next ------------------------------------------------------------------------------ */

static void read_place(work *w)
{
    const ds_balance_shape *s = w->s;

    memset(w->rank, 0, s->ranks * sizeof *w->rank);
    memset(w->on, 0, (size_t)s->ranks * s->experts);
    memset(w->copies, 0, s->experts * sizeof *w->copies);
    for (uint32_t i = 0; i < s->ranks * s->slots; i++)
        w->copies[w->place[i]]++;
    for (uint32_t e = 0; e < s->experts; e++)
        set_copies(w, e, w->copies[e] ? w->copies[e] : 1);
    for (uint32_t r = 0; r < s->ranks; r++)
        for (uint32_t i = 0; i < s->slots; i++)
            put(w, r, i, w->place[(size_t)r * s->slots + i], 1.0f);
}

static void recount(work *w, uint32_t e, uint32_t copies)
{
    for (uint32_t r = 0; r < w->s->ranks; r++)
        for (uint32_t b = 0; b < B && is_on(w, r, e); b++)
            w->rank[r].v[b] += w->load[e].v[b] / (float)copies - w->share[e].v[b];
    set_copies(w, e, copies);
}

/* The slot of rank r whose expert misses one of its copies least; UINT32_MAX: none has several. */
static uint32_t least_missed(const work *w, uint32_t r)
{
    uint32_t best = UINT32_MAX;
    float least = 0.0f;

    for (uint32_t i = 0; i < w->s->slots; i++) {
        uint32_t f = w->place[(size_t)r * w->s->slots + i], c = w->copies[f];
        float left = c > 1 ? w->sum[f] * (float)c / (float)(c - 1) : 0.0f;
        if (c > 1 && (best == UINT32_MAX || left < least)) {
            best = i;
            least = left;
        }
    }
    return best;
}

static void replace(work *w, uint32_t r, uint32_t i, uint32_t by)
{
    uint32_t f = w->place[(size_t)r * w->s->slots + i];

    put(w, r, i, f, -1.0f);
    recount(w, f, w->copies[f] - 1u);
    recount(w, by, w->copies[by] + 1u);
    put(w, r, i, by, 1.0f);
    find_top(w);
}

/* One copy more for the expert whose copies have the most, in place of one that is missed little, where the cost falls
 * most. False: it falls nowhere. */
static bool shift_copy(work *w)
{
    const ds_balance_shape *s = w->s;
    float best = cost_now(w) * (1.0f - 1e-4f);
    uint32_t hot = 0, rank = UINT32_MAX, home = UINT32_MAX;

    for (uint32_t e = 1; e < s->experts; e++)
        if (w->sum[e] > w->sum[hot])
            hot = e;
    for (uint32_t r = 0; r < s->ranks && home == UINT32_MAX; r++)
        if (is_on(w, r, hot))
            home = node_of_rank(w, r);
    for (uint32_t r = 0; r < s->ranks; r++) {
        uint32_t i = least_missed(w, r), f;
        if (i == UINT32_MAX || is_on(w, r, hot) || node_of_rank(w, r) != home)
            continue;
        f = w->place[(size_t)r * s->slots + i];
        replace(w, r, i, hot);
        if (cost_now(w) < best) {
            best = cost_now(w);
            rank = r;
        }
        replace(w, r, i, f);
    }
    if (rank != UINT32_MAX)
        replace(w, rank, least_missed(w, rank), hot);
    return rank != UINT32_MAX;
}

static float total_of(const work *w, uint32_t r)
{
    float sum = 0.0f;

    for (uint32_t b = 0; b < B; b++)
        sum += w->rank[r].v[b];
    return sum;
}

/* The rank with the most (or, sign -1, the least) that isn't marked. UINT32_MAX: none is left. */
static uint32_t outermost(const work *w, const uint8_t *marked, float sign)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t r = 0; r < w->s->ranks; r++)
        if (!marked[r] && (best == UINT32_MAX || sign * total_of(w, r) > sign * total_of(w, best)))
            best = r;
    return best;
}

/* The best exchange of a rank that has much with one that has little: what both have at most, in all records, falls
 * most. False: it doesn't fall by a thousandth of what one has. */
static bool relieve(work *w, uint32_t h, uint32_t r)
{
    const ds_balance_shape *s = w->s;
    const uint16_t *mine = w->place + (size_t)h * s->slots, *theirs = w->place + (size_t)r * s->slots;
    const vec none = { { 0.0f } };
    uint32_t bi = UINT32_MAX, bj = 0, e, f;
    float best = 0.0f;

    for (uint32_t b = 0; b < B; b++)
        best += w->rank[h].v[b] > w->rank[r].v[b] ? w->rank[h].v[b] : w->rank[r].v[b];
    best *= 0.999f;
    for (uint32_t i = 0; i < s->slots; i++)
        for (uint32_t j = 0; j < s->slots && !is_on(w, r, mine[i]); j++) {
            float cost;
            if (w->sum[theirs[j]] >= w->sum[mine[i]] || is_on(w, h, theirs[j]))
                continue;
            cost = cost_of(w, &none, h, r, mine[i], theirs[j]);
            if (cost < best) {
                best = cost;
                bi = i;
                bj = j;
            }
        }
    if (bi == UINT32_MAX)
        return false;
    e = mine[bi];
    f = theirs[bj];
    put(w, h, bi, e, -1.0f);
    put(w, r, bj, f, -1.0f);
    put(w, h, bi, f, 1.0f);
    put(w, r, bj, e, 1.0f);
    return true;
}

/* Ranks that have much, the most first, each with the one that has least. Returns slots that were changed. */
static uint32_t level(work *w, uint32_t most_moves)
{
    uint8_t high[DS_BALANCE_MAX_RANKS] = { 0 };
    uint32_t moves = 0, h, r;

    while (moves + 2 <= most_moves && (h = outermost(w, high, 1.0f)) != UINT32_MAX) {
        uint8_t low[DS_BALANCE_MAX_RANKS] = { 0 };
        bool done = false;
        low[h] = 1;
        for (uint32_t n = 0; n < PARTNERS && !done && (r = outermost(w, low, -1.0f)) != UINT32_MAX; n++) {
            done = node_of_rank(w, r) == node_of_rank(w, h) && relieve(w, h, r);
            low[r] = 1;
        }
        moves += done ? 2 : 0;
        high[h] = !done;
    }
    return moves;
}

uint32_t ds_balance_move(const ds_balance_shape *s, const float *load, uint16_t *place, uint32_t max_moves, void *scratch)
{
    size_t slots = (size_t)s->ranks * s->slots;
    uint32_t moves = 0;
    float before;
    work w;

    begin(&w, s, load, place, scratch);
    memcpy(w.order, place, slots * sizeof *place);
    read_place(&w);
    find_top(&w);
    before = cost_now(&w);
    while (moves < max_moves / 4 && shift_copy(&w))
        moves++;
    moves += level(&w, max_moves - moves);
    moves += improve(&w, max_moves - moves, TRIES);
    if (cost_now(&w) <= before)
        return moves;
    memcpy(place, w.order, slots * sizeof *place);
    return 0;
}

/* ---- looking at a placement -------------------------------------------------------------------------------------- */

double ds_balance_cost(const ds_balance_shape *s, const float *load, const uint16_t *place, double *mean, void *scratch)
{
    work w;
    double cost = 0.0, all = 0.0;

    begin(&w, s, load, (uint16_t *)(uintptr_t)place, scratch);
    read_place(&w);
    for (uint32_t b = 0; b < s->records; b++) {
        float most = 0.0f;
        for (uint32_t r = 0; r < s->ranks; r++) {
            most = fmaxf(most, w.rank[r].v[b]);
            all += w.rank[r].v[b];
        }
        cost += most;
    }
    if (mean)
        *mean = all / s->ranks;
    return cost;
}

const char *ds_balance_bad_place(const ds_balance_shape *s, const uint16_t *place, void *scratch)
{
    work w;
    uint32_t per_node = s->ranks / nodes_of(s), per_group = s->experts / groups_of(s), node[DS_BALANCE_MAX_EXPERTS];

    lay_out(&w, s, scratch);
    memset(w.on, 0, (size_t)s->ranks * s->experts);
    memset(w.copies, 0, s->experts * sizeof *w.copies);
    for (uint32_t g = 0; g < groups_of(s); g++)
        node[g] = UINT32_MAX;
    for (uint32_t i = 0; i < s->ranks * s->slots; i++) {
        uint32_t e = place[i], r = i / s->slots, *home;
        if (e >= s->experts)
            return "a slot holds no expert";
        if (is_on(&w, r, e))
            return "a rank has two copies of an expert";
        w.on[(size_t)r * s->experts + e] = 1;
        w.copies[e]++;
        home = &node[e / per_group];
        if (*home != UINT32_MAX && *home != r / per_node)
            return "a group of experts is in two nodes";
        *home = r / per_node;
    }
    for (uint32_t e = 0; e < s->experts; e++)
        if (w.copies[e] == 0)
            return "an expert has no place";
    return NULL;
}
