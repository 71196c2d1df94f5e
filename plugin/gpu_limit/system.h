/* SPDX-License-Identifier: Apache-2.0
 *
 * System calls. glibc's own functions for them are cancellation points (pthreads(7)): a thread that is cancelled
 * in one would leave the library's locks locked. fstat is a symbol of glibc only since 2.33.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static inline int system_open(const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int system_stat(int file, struct stat *found)
{
    return (int)syscall(SYS_fstat, file, found);
}

static inline ssize_t system_read(int file, void *to, size_t size)
{
    return syscall(SYS_pread64, file, to, size, (off_t)0);
}

static inline ssize_t system_write(int file, const void *from, size_t size)
{
    return syscall(SYS_write, file, from, size);
}

static inline void system_close(int file)
{
    syscall(SYS_close, file);
}

static inline int system_lock(int file, int command, struct flock *region)
{
    return (int)syscall(SYS_fcntl, file, command, region);
}

static inline void system_pause(const struct timespec *time)
{
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, time, NULL);
}

#endif
