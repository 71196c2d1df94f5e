/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock for the threads of one process that inherits priority: a thread with a real-time priority that waits
 * lends its priority to the owner of the lock. After a fork the child's lock is free. So is the lock of a thread that
 * has ended: a program may cancel a thread in the driver.
 */
#ifndef LOCK_H
#define LOCK_H

#include <stdint.h>

/* All zeros: it is free. */
union lock {
    struct {
        uint32_t thread;  /* thread id of the holder, with the kernel's flags; the futex, so it comes first */
        uint32_t process; /* process_number() that `thread` belongs to */
    };
    uint64_t both;
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "`thread` is the low half of `both`");

/* Wait for the lock and take it. `process`: process_number(). Not recursive. */
void lock_acquire(union lock *lock, uint32_t process);

void lock_release(union lock *lock);

#endif
