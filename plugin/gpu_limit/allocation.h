/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocations of this process that are not freed. Not safe for threads: see account.c.
 */
#ifndef ALLOCATION_H
#define ALLOCATION_H

#include <stdbool.h>
#include <stdint.h>

enum allocation_kind {
    ALLOCATION_NOTHING,
    ALLOCATION_DEVICE,   /* by device pointer */
    ALLOCATION_HOST,     /* by pointer */
    ALLOCATION_ARRAY,    /* by handle */
    ALLOCATION_MIPMAP,   /* by handle */
    ALLOCATION_CONTEXT,  /* by handle, which is also the owner */
    ALLOCATION_PHYSICAL, /* by handle; of no context */
    ALLOCATION_MAPPING,  /* by address; `owner` is the handle of what is mapped there, `bytes` how much of it */
    ALLOCATION_POOL,     /* by handle; `bytes` at the last query */
    ALLOCATION_GRAPHS,   /* by device; `bytes` at the last query */
    ALLOCATION_PRIMARY,  /* by device; `owner` is its primary context, 0 as long as the handle is not known */
    ALLOCATION_GREEN,    /* by handle; `owner` is the device */
};

struct allocation {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner; /* the context, unless stated otherwise above */
    uint32_t kind;
    uint32_t holds; /* of ALLOCATION_PHYSICAL: handles and mappings; the memory exists as long as there is one */
};

/* Find an entry; NULL if there is none. Valid until the next change. */
struct allocation *allocation_find(enum allocation_kind kind, uint64_t key);

/* Store an entry, instead of an entry with the same kind and key. False: no memory for it. */
bool allocation_put(struct allocation entry);

/* Remove an entry; all fields are 0 without an entry. */
struct allocation allocation_take(enum allocation_kind kind, uint64_t key);

/* Give the next pool, or graphs of a device, at or after place `*at`, and move that on; NULL: there are no more. */
struct allocation *allocation_next_pool(unsigned long *at);

/* Remove all entries of a context; give the sum of their bytes. */
uint64_t allocation_take_context(uint64_t context);

/* Forget everything. */
void allocation_clear(void);

#endif
