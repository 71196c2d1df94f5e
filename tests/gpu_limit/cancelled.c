/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that is cancelled while it waits for the ledger, and one that is cancelled in the driver. Arguments: the
 * path of the ledger; `pi`, or `no-pi` for a kernel without futexes that inherit priority. Needs a limit of 100 MiB.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../plugin/gpu_limit/driver_api.h"
#include "check.h"
#include "no_pi.h"

static const off_t MUTEX = 1ll << 62;
static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemAllocAsync) allocate_async;
static CUcontext context;
static pid_t waiting;

static void use_context(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*use)(CUcontext) = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
    CHECK(use(context) == CUDA_SUCCESS);
}

static void *work(void *unused)
{
    CUdeviceptr pointer;
    use_context();
    __atomic_store_n(&waiting, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    allocate(&pointer, 60 * MIB);
    pthread_testcancel();
    return unused;
}

static void *end_in_the_driver(void *unused)
{
    CUdeviceptr pointer;
    use_context();
    pthread_cancel(pthread_self());
    allocate_async(&pointer, MIB, NULL);
    return unused;
}

/* True if the thread sleeps: the number of its system call comes first. */
static int is_pausing(void)
{
    char path[64];
    long number = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", __atomic_load_n(&waiting, __ATOMIC_ACQUIRE));
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%ld", &number) != 1)
            number = -1;
        fclose(file);
    }
    return number == SYS_clock_nanosleep || number == SYS_nanosleep;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    if (strcmp(argv[2], "no-pi") == 0)
        forbid_priority_inheritance();
    alarm(20);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    allocate = (void *)dlsym(driver, "cuMemAlloc_v2");
    allocate_async = (void *)dlsym(driver, "cuMemAllocAsync");
    CHECK(init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS);
    use_context();

    int ledger = open(argv[1], O_RDONLY | O_CLOEXEC);
    struct flock mutex = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = MUTEX, .l_len = 1};
    CHECK(ledger >= 0 && fcntl(ledger, F_OFD_SETLK, &mutex) == 0);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    while (!is_pausing())
        continue;
    CHECK(pthread_cancel(thread) == 0);
    mutex.l_type = F_UNLCK;
    CHECK(fcntl(ledger, F_OFD_SETLK, &mutex) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(pthread_create(&thread, NULL, end_in_the_driver, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);

    CUdeviceptr pointer;
    CHECK(allocate(&pointer, 50 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(allocate(&pointer, 40 * MIB) == CUDA_SUCCESS);
    puts("all well");
    return 0;
}
