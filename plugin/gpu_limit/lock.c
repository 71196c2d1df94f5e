/* SPDX-License-Identifier: Apache-2.0
 *
 * futex(2), "Priority-inheritance futexes". pthread_mutex_lock would need symbols that old versions of glibc
 * have in libpthread only.
 */
#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>

#include "system.h"

/* Between two attempts where the kernel has no such futex: QEMU before 7.1, a seccomp filter. */
static const struct timespec RETRY = {.tv_nsec = 50 * 1000};

static bool replace(uint32_t *word, uint32_t before, uint32_t after)
{
    return __atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool has_ended(uint32_t thread)
{
    return thread && syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

void lock_acquire(union lock *lock, uint32_t process)
{
    /* In a forked child, the holder may be a thread of the parent. The first thread that gets here frees the lock. */
    uint64_t seen = __atomic_load_n(&lock->both, __ATOMIC_RELAXED);
    while (seen >> 32 != process &&
           !__atomic_compare_exchange_n(&lock->both, &seen, (uint64_t)process << 32, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        continue;
    /* Not remembered: a forked child's thread has another id than the thread it was copied from. */
    uint32_t self = (uint32_t)syscall(SYS_gettid);
    while (!replace(&lock->thread, 0, self)) {
        uint32_t holder = __atomic_load_n(&lock->thread, __ATOMIC_RELAXED) & FUTEX_TID_MASK;
        if (syscall(SYS_futex, &lock->thread, FUTEX_LOCK_PI_PRIVATE, 0, NULL) == 0)
            return;
        /* EAGAIN: the holder is about to end. */
        bool soon = errno == EAGAIN;
        if (has_ended(holder) &&
            (replace(&lock->thread, holder, self) || replace(&lock->thread, holder | FUTEX_WAITERS, self)))
            return;
        if (!soon)
            system_pause(&RETRY);
    }
}

void lock_release(union lock *lock)
{
    uint32_t self = __atomic_load_n(&lock->thread, __ATOMIC_RELAXED);
    if ((self & FUTEX_WAITERS) || !replace(&lock->thread, self, 0))
        syscall(SYS_futex, &lock->thread, FUTEX_UNLOCK_PI_PRIVATE);
}
