/* SPDX-License-Identifier: Apache-2.0
 *
 * Two threads, or two processes, allocate and free on one core: the first without a pause, the second each
 * millisecond, for 1 to 2 s. Arguments: `threads` or `processes`; the scheduling policy of the second, `other` or
 * `fifo`; `pi`, or `no-pi` for a kernel without futexes that inherit priority. Prints the calls of both. Ends with 77
 * where SCHED_FIFO is not permitted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../plugin/gpu_limit/driver_api.h"
#include "no_pi.h"

enum { PRIORITY = 50, NOT_PERMITTED = 77 };

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;

static struct shared {
    bool over;
    long first_calls;
} *shared;

static void begin(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CUresult (*use)(CUcontext) = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    allocate = (void *)dlsym(driver, "cuMemAlloc_v2");
    release = (void *)dlsym(driver, "cuMemFree_v2");
    CUcontext context;
    if (init(0) || retain(&context, 0) || use(context))
        exit(1);
}

static void call(void)
{
    CUdeviceptr pointer;
    if (allocate(&pointer, 1 << 20) || release(pointer))
        exit(1);
}

static void *without_pause(void *unused)
{
    begin();
    while (!__atomic_load_n(&shared->over, __ATOMIC_RELAXED)) {
        call();
        shared->first_calls++;
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 1;
    bool threads = strcmp(argv[1], "threads") == 0;
    if (strcmp(argv[3], "no-pi") == 0)
        forbid_priority_inheritance();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || sched_setaffinity(0, sizeof one, &one))
        return 1;
    pthread_t first;
    if (threads) {
        if (pthread_create(&first, NULL, without_pause, NULL))
            return 1;
    } else if (fork() == 0) {
        without_pause(NULL);
        return 0;
    }
    begin();
    struct sched_param priority = {.sched_priority = PRIORITY};
    if (strcmp(argv[2], "fifo") == 0 && sched_setscheduler(0, SCHED_FIFO, &priority)) {
        shared->over = true;
        return errno == EPERM ? NOT_PERMITTED : 1;
    }
    long calls = 0;
    for (time_t end = time(NULL) + 2; time(NULL) < end; calls++) {
        call();
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    __atomic_store_n(&shared->over, true, __ATOMIC_RELAXED);
    int status = 0;
    if (threads)
        pthread_join(first, NULL);
    else if (wait(&status) < 0 || status)
        return 1;
    printf("%ld %ld\n", calls, shared->first_calls);
    return 0;
}
