/* Taking and giving back the engine's tables. */
#ifndef DS_ENGINE_CREATE_INTERNAL_H
#define DS_ENGINE_CREATE_INTERNAL_H

#include "engine/engine.h"

/* Everything but requests and the thread; half-built engines too. */
void ds_eng_free_tables(ds_engine *e);

#endif
