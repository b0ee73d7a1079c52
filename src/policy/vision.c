#include "policy/vision.h"

#include "base/none.h"

uint32_t ds_vision_class(uint64_t patches)
{
    return patches <= 1024 ? 0 : patches <= 4096 ? 1 : 2;
}

static uint64_t all(const ds_vision_instance *v)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < DS_VISION_CLASSES; c++)
        sum += v->ahead[c];
    return sum;
}

static bool has_room(const ds_vision_instance *v, uint64_t patches)
{
    uint64_t there = all(v);

    return v->ready && (there == 0 || (there <= v->max_patches && patches <= v->max_patches - there));
}

/* Until the picture is done: its own class before it, itself, and of each other class as much at most. */
static double seconds(const ds_vision_instance *v, uint32_t class, uint64_t patches)
{
    uint64_t own = v->ahead[class] + patches, sum = own;

    for (uint32_t c = 0; c < DS_VISION_CLASSES; c++)
        if (c != class)
            sum += v->ahead[c] < own ? v->ahead[c] : own;
    return (double)sum / (double)v->patches_s;
}

uint32_t ds_vision_choose(const ds_vision_instance *rows, uint32_t n, uint64_t patches)
{
    uint32_t best = DS_NONE, class = ds_vision_class(patches);
    double least = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        double s;
        if (!has_room(&rows[i], patches))
            continue;
        s = seconds(&rows[i], class, patches);
        if (best == DS_NONE || s < least || (s == least && rows[i].id < rows[best].id)) {
            best = i;
            least = s;
        }
    }
    return best;
}

uint32_t ds_vision_turn(ds_vision_turns *t, uint32_t waiting, const uint64_t first[DS_VISION_CLASSES])
{
    uint32_t next = DS_NONE;
    uint64_t level = UINT64_MAX;

    for (uint32_t c = 0; c < DS_VISION_CLASSES; c++)
        if (waiting & t->waiting & 1u << c && t->served[c] < level)
            level = t->served[c];
    for (uint32_t c = 0; c < DS_VISION_CLASSES; c++)
        if (waiting & ~t->waiting & 1u << c && (level == UINT64_MAX || t->served[c] < level))
            t->served[c] = level == UINT64_MAX ? 0 : level;
    for (uint32_t c = 0; c < DS_VISION_CLASSES; c++)
        if (waiting >> c & 1 && (next == DS_NONE || t->served[c] < t->served[next]))
            next = c;
    t->waiting = waiting;
    if (next != DS_NONE)
        t->served[next] += first[next];
    return next;
}
