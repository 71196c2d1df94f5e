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

enum { FIRST_PLACES = 1024 }; /* a power of two, as all sizes */

static struct allocation *places;
static size_t place_count, used;

static size_t home(uint32_t kind, uint64_t key)
{
    /* Fibonacci hashing: pointers differ in their middle bits. */
    return (size_t)((key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u >> 20) & (place_count - 1);
}

static struct allocation *place_of(uint32_t kind, uint64_t key)
{
    size_t at = home(kind, key);
    while (places[at].kind != ALLOCATION_NOTHING && (places[at].kind != kind || places[at].key != key))
        at = (at + 1) & (place_count - 1);
    return &places[at];
}

static bool grow(void)
{
    struct allocation *old = places;
    size_t old_count = place_count, count = old_count ? old_count * 2 : FIRST_PLACES;
    void *more = mmap(NULL, count * sizeof *places, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED)
        return false;
    places = more;
    place_count = count;
    for (size_t i = 0; i < old_count; i++)
        if (old[i].kind != ALLOCATION_NOTHING)
            *place_of(old[i].kind, old[i].key) = old[i];
    if (old)
        munmap(old, old_count * sizeof *old);
    return true;
}

struct allocation *allocation_find(enum allocation_kind kind, uint64_t key)
{
    if (place_count == 0)
        return NULL;
    struct allocation *place = place_of(kind, key);
    return place->kind == ALLOCATION_NOTHING ? NULL : place;
}

bool allocation_put(struct allocation entry)
{
    /* At most three quarters are used, so a search ends soon. */
    if (4 * (used + 1) > 3 * place_count && !grow() && used + 1 >= place_count)
        return false;
    struct allocation *place = place_of(entry.kind, entry.key);
    used += place->kind == ALLOCATION_NOTHING;
    *place = entry;
    return true;
}

struct allocation allocation_take(enum allocation_kind kind, uint64_t key)
{
    struct allocation *place = allocation_find(kind, key);
    if (place == NULL)
        return (struct allocation){0};
    struct allocation taken = *place;
    /* Those behind it move up, or a search for them would end in the gap. */
    size_t gap = (size_t)(place - places), mask = place_count - 1;
    for (size_t at = (gap + 1) & mask; places[at].kind != ALLOCATION_NOTHING; at = (at + 1) & mask) {
        size_t from = home(places[at].kind, places[at].key);
        if (((at - from) & mask) >= ((at - gap) & mask)) {
            places[gap] = places[at];
            gap = at;
        }
    }
    places[gap] = (struct allocation){0};
    used--;
    return taken;
}

struct allocation *allocation_at(unsigned long *at)
{
    while (*at < place_count) {
        struct allocation *place = &places[(*at)++];
        if (place->kind != ALLOCATION_NOTHING)
            return place;
    }
    return NULL;
}

static bool goes_with(const struct allocation *entry, uint64_t context)
{
    bool of_a_context = entry->kind >= ALLOCATION_DEVICE && entry->kind <= ALLOCATION_MIPMAP;
    return of_a_context && entry->owner == context;
}

uint64_t allocation_take_context(uint64_t context)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < place_count;) {
        if (goes_with(&places[i], context))
            bytes += allocation_take(places[i].kind, places[i].key).bytes; /* another entry may be here now: check again */
        else
            i++;
    }
    return bytes;
}

void allocation_clear(void)
{
    if (places)
        munmap(places, place_count * sizeof *places);
    places = NULL;
    place_count = used = 0;
}
