/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocations of this process that are not freed. Not safe for threads: see account.c.
 */
#ifndef LIVE_H
#define LIVE_H

#include <stdbool.h>
#include <stdint.h>

enum live_kind {
    LIVE_NOTHING,
    LIVE_DEVICE,   /* by device pointer */
    LIVE_HOST,     /* by pointer */
    LIVE_ARRAY,    /* by handle */
    LIVE_MIPMAP,   /* by handle */
    LIVE_PHYSICAL, /* by handle; of no context */
    LIVE_MAPPING,  /* by address; `owner` is the handle of what is mapped there, `bytes` how much of it */
    LIVE_POOL,     /* by handle; `bytes` at the last query */
    LIVE_GRAPHS,   /* by device; `bytes` at the last query */
    LIVE_PRIMARY,  /* by device; `owner` is its primary context */
};

struct live {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner; /* the context, unless stated otherwise above */
    uint32_t kind;
    uint32_t holds; /* of LIVE_PHYSICAL: handles and mappings; the memory exists as long as there is one */
};

/* Find an entry; NULL if there is none. Valid until the next change. */
struct live *live_find(enum live_kind kind, uint64_t key);

/* Store an entry, instead of an entry with the same kind and key. False: no memory for it. */
bool live_put(struct live entry);

/* Remove an entry; all fields are 0 without an entry. */
struct live live_take(enum live_kind kind, uint64_t key);

/* Give the next entry at or after place `*at`, and move that on; NULL: there are no more. */
struct live *live_at(unsigned long *at);

/* Remove all entries of a context; give the sum of their bytes. */
uint64_t live_take_context(uint64_t context);

/* Forget everything. */
void live_clear(void);

#endif
