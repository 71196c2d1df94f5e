/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table with linear probing, in memory of its own: a hook must not call malloc, which may be one that
 * calls CUDA.
 */
#define _GNU_SOURCE
#include "allocation.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

struct table {
    size_t first; /* places; a power of two, as all sizes */
    struct allocation *places;
    size_t count, used;
};

/* Pools and graphs have their own table, because each synchronization of a stream reads all of it. */
static struct table most = {.first = 1024}, pools = {.first = 16};

static struct table *table_of(uint32_t kind)
{
    return kind == ALLOCATION_POOL || kind == ALLOCATION_GRAPHS ? &pools : &most;
}

static size_t home(const struct table *table, uint32_t kind, uint64_t key)
{
    /* Fibonacci hashing: pointers differ in their middle bits. */
    return (size_t)((key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u >> 20) & (table->count - 1);
}

static struct allocation *place_of(const struct table *table, uint32_t kind, uint64_t key)
{
    size_t at = home(table, kind, key);
    while (table->places[at].kind != ALLOCATION_NOTHING &&
           (table->places[at].kind != kind || table->places[at].key != key))
        at = (at + 1) & (table->count - 1);
    return &table->places[at];
}

static bool grow(struct table *table)
{
    struct table more = {.count = table->count ? table->count * 2 : table->first};
    more.places = mmap(NULL, more.count * sizeof *more.places, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more.places == MAP_FAILED)
        return false;
    for (size_t i = 0; i < table->count; i++)
        if (table->places[i].kind != ALLOCATION_NOTHING)
            *place_of(&more, table->places[i].kind, table->places[i].key) = table->places[i];
    struct table old = *table;
    table->places = more.places;
    table->count = more.count;
    if (old.places)
        munmap(old.places, old.count * sizeof *old.places);
    return true;
}

struct allocation *allocation_find(enum allocation_kind kind, uint64_t key)
{
    const struct table *table = table_of(kind);
    if (table->count == 0)
        return NULL;
    struct allocation *place = place_of(table, kind, key);
    return place->kind == ALLOCATION_NOTHING ? NULL : place;
}

bool allocation_put(struct allocation entry)
{
    struct table *table = table_of(entry.kind);
    /* At most three quarters are used, so a search ends soon. */
    if (4 * (table->used + 1) > 3 * table->count && !grow(table) && table->used + 1 >= table->count)
        return false;
    struct allocation *place = place_of(table, entry.kind, entry.key);
    table->used += place->kind == ALLOCATION_NOTHING;
    *place = entry;
    return true;
}

struct allocation allocation_take(enum allocation_kind kind, uint64_t key)
{
    struct allocation *place = allocation_find(kind, key);
    if (place == NULL)
        return (struct allocation){0};
    struct allocation taken = *place;
    struct table *table = table_of(kind);
    struct allocation *places = table->places;
    /* Those behind it move up, or a search for them would end in the gap. */
    size_t gap = (size_t)(place - places), mask = table->count - 1;
    for (size_t at = (gap + 1) & mask; places[at].kind != ALLOCATION_NOTHING; at = (at + 1) & mask) {
        size_t from = home(table, places[at].kind, places[at].key);
        if (((at - from) & mask) >= ((at - gap) & mask)) {
            places[gap] = places[at];
            gap = at;
        }
    }
    places[gap] = (struct allocation){0};
    table->used--;
    return taken;
}

struct allocation *allocation_next_pool(unsigned long *at)
{
    while (*at < pools.count) {
        struct allocation *place = &pools.places[(*at)++];
        if (place->kind != ALLOCATION_NOTHING)
            return place;
    }
    return NULL;
}

static bool goes_with(const struct allocation *entry, uint64_t context)
{
    bool of_a_context = entry->kind >= ALLOCATION_DEVICE && entry->kind <= ALLOCATION_CONTEXT;
    return of_a_context && entry->owner == context;
}

uint64_t allocation_take_context(uint64_t context)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < most.count;) {
        const struct allocation *entry = &most.places[i];
        if (goes_with(entry, context))
            bytes += allocation_take(entry->kind, entry->key).bytes; /* another entry may be here now: check again */
        else
            i++;
    }
    return bytes;
}

static void clear(struct table *table)
{
    if (table->places)
        munmap(table->places, table->count * sizeof *table->places);
    *table = (struct table){.first = table->first};
}

void allocation_clear(void)
{
    clear(&most);
    clear(&pools);
}
