/* SPDX-License-Identifier: Apache-2.0
 *
 * A page that the kernel empties in a forked child: madvise(2), MADV_WIPEONFORK, of Linux 4.14. An earlier kernel
 * (JetPack 4 has 4.9) does not have it: there, the process id alone tells a child from its parent.
 */
#define _GNU_SOURCE
#include "process.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { PAGE = 4096 };

union mark {
    struct {
        uint32_t number; /* 0: the page is new, or was emptied */
        uint32_t id;     /* getpid() */
    };
    uint64_t both;
};

static union mark unwiped, *page;
/* The last number that was used. A child has its parent's. */
static uint32_t last;

static union mark *find_page(void)
{
    union mark *found = __atomic_load_n(&page, __ATOMIC_ACQUIRE);
    if (found)
        return found;
    union mark *made = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        made = &unwiped;
    else
        madvise(made, PAGE, MADV_WIPEONFORK);
    if (__atomic_compare_exchange_n(&page, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return made;
    if (made != &unwiped)
        munmap(made, PAGE);
    return found; /* another thread's */
}

uint32_t process_number(void)
{
    union mark *mark = find_page();
    uint32_t id = (uint32_t)getpid();
    union mark seen = {.both = __atomic_load_n(&mark->both, __ATOMIC_ACQUIRE)};
    while (seen.number == 0 || seen.id != id) {
        /* Counted before it is used: a child of this moment must not use it, too. */
        union mark own = {.number = __atomic_add_fetch(&last, 1, __ATOMIC_ACQ_REL), .id = id};
        if (__atomic_compare_exchange_n(&mark->both, &seen.both, own.both, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return own.number;
    }
    return seen.number;
}
