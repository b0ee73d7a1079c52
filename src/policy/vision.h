/* Which vision instance encodes a picture, and which picture an instance takes next.
 *
 * Work is counted in patches. An instance has a queue for each class of size and serves them in turns of equal work, so
 * that a small picture waits for no more than its own class and as much of the others. What is ahead of a picture is
 * therefore not all that lies there; it goes where that, and itself, take the least time.
 *
 * Threads: any; pure functions but for the turns, which have one owner. No allocation. The order of rows doesn't
 * matter; ties go to the lower id. */
#ifndef DS_POLICY_VISION_H
#define DS_POLICY_VISION_H

#include <stdbool.h>
#include <stdint.h>

enum { DS_VISION_CLASSES = 3 }; /* up to 1,024 patches, up to 4,096, and more */

uint32_t ds_vision_class(uint64_t patches);

typedef struct {
    uint64_t id;                       /* differs between rows */
    bool ready;                        /* takes new work */
    uint64_t ahead[DS_VISION_CLASSES]; /* patches of live pictures */
    uint64_t max_patches;              /* of them together, never more; an idle one takes any picture */
    uint64_t patches_s;                /* > 0: what it encodes in a second */
} ds_vision_instance;

/* The row, or DS_NONE: all are full. O(n). */
uint32_t ds_vision_choose(const ds_vision_instance *rows, uint32_t n, uint64_t patches);

/* Of one instance; zeros begin. */
typedef struct {
    uint64_t served[DS_VISION_CLASSES]; /* patches, as far as they count against a class */
    uint32_t waiting;                   /* bit c: class c was waiting at the last turn */
} ds_vision_turns;

/* The class whose first picture is next, of those in `waiting` (bit c: class c has one), or DS_NONE. `first` are the
 * patches of that picture of each class; the chosen one's count as served. A class that was empty begins level with the
 * others: what it didn't use isn't saved up. */
uint32_t ds_vision_turn(ds_vision_turns *t, uint32_t waiting, const uint64_t first[DS_VISION_CLASSES]);

#endif
