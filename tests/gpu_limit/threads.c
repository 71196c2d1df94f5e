/* SPDX-License-Identifier: Apache-2.0
 *
 * Two threads on one core allocate and free: one without a pause, one each millisecond. Arguments: seconds, and
 * the scheduling policy of the second thread, `other` or `fifo`. Prints the calls of the second thread, the longest
 * of them in microseconds, and the calls of the first. Ends with 77 where SCHED_FIFO is not permitted.
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
#include <time.h>

#include "../../plugin/gpu_limit/driver_api.h"

enum { PRIORITY = 50, NOT_PERMITTED = 77 };

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;
static CUresult (*use)(CUcontext);
static CUcontext context;
static bool over;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static double call(void)
{
    double begin = now();
    CUdeviceptr pointer;
    if (allocate(&pointer, 1 << 20) || release(pointer))
        exit(1);
    return now() - begin;
}

static void *without_pause(void *calls)
{
    use(context);
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        call();
        ++*(long *)calls;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    use = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
    allocate = (void *)dlsym(driver, "cuMemAlloc_v2");
    release = (void *)dlsym(driver, "cuMemFree_v2");
    if (argc != 3 || init(0) || retain(&context, 0) || use(context))
        return 1;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    pthread_t first;
    long first_calls = 0, calls = 0;
    double longest = 0, end = now() + atof(argv[1]) * 1e6;
    if (sched_setaffinity(0, sizeof one, &one) || pthread_create(&first, NULL, without_pause, &first_calls))
        return 1;
    struct sched_param priority = {.sched_priority = PRIORITY};
    if (strcmp(argv[2], "fifo") == 0 && sched_setscheduler(0, SCHED_FIFO, &priority))
        return errno == EPERM ? NOT_PERMITTED : 1;
    for (; now() < end; calls++) {
        double taken = call();
        longest = taken > longest ? taken : longest;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    __atomic_store_n(&over, true, __ATOMIC_RELAXED);
    pthread_join(first, NULL);
    printf("%ld %.0f %ld\n", calls, longest, first_calls);
    return 0;
}
