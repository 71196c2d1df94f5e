/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program for the SIMULATED driver: finds functions in every way that programs do, and says which way
 * went wrong. Needs a limit of 100 MiB. Without the usual start files, so that it can be linked to any glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../plugin/gpu_limit/driver_api.h"
#include "check.h"

typedef CUresult allocate(CUdeviceptr *, size_t);
typedef CUresult allocate_async(CUdeviceptr *, size_t, CUstream);
typedef CUresult release(CUdeviceptr);
typedef CUresult get_address(const char *, void **, int, uint64_t);
typedef CUresult get_address_v2(const char *, void **, int, uint64_t, int *);

CUresult cuInit(unsigned flags);
CUresult cuCtxSetCurrent(CUcontext context);

/* cuDNN, cuBLAS and others have names that begin as the driver's do. */
__attribute__((visibility("default"))) int cudnnCreate(void)
{
    return 7;
}

static void is_limited(allocate *alloc, release *give_back)
{
    CUdeviceptr first, second;
    CHECK(alloc(&first, 60 * MIB) == CUDA_SUCCESS);
    CHECK(alloc(&second, 50 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(give_back(first) == CUDA_SUCCESS);
}

#ifdef LINKED
/* As a program that is linked with -lcuda. */
static void run(void)
{
    CUcontext context;
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
    is_limited(cuMemAlloc_v2, cuMemFree_v2);
    is_limited((allocate *)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), cuMemFree_v2);
    void *program = dlopen(NULL, RTLD_NOW);
    is_limited((allocate *)dlsym(program, "cuMemAlloc_v2"), cuMemFree_v2);
    /* A function that this driver lacks, but the library has. */
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAllocAsync") == NULL || dlsym(RTLD_DEFAULT, "cuMemPoolCreate") != NULL);
}
#else
static void ask_the_driver(void *driver, allocate *alloc, release *give_back)
{
    get_address *ask = (get_address *)dlsym(driver, "cuGetProcAddress");
    get_address_v2 *ask_v2 = (get_address_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    if (ask == NULL)
        return;
    void *found;
    CHECK(ask("cuMemAlloc", &found, 11030, 0) == CUDA_SUCCESS && found == (void *)alloc);
    CHECK(ask("cuMemFree", &found, 11030, 0) == CUDA_SUCCESS && found == (void *)give_back);
    CHECK(ask("cuMemAllocAsync", &found, 11030, 0) == CUDA_SUCCESS && found == dlsym(driver, "cuMemAllocAsync"));
    /* A default stream for each thread: another function. */
    CHECK(ask("cuMemAllocAsync", &found, 11030, 2) == CUDA_SUCCESS);
    CHECK(found == dlsym(driver, "cuMemAllocAsync_ptsz") && found != dlsym(driver, "cuMemAllocAsync"));
    CHECK(ask("cuInit", &found, 11030, 0) == CUDA_SUCCESS && found == dlsym(driver, "cuInit"));
    CHECK(ask("cuNothing", &found, 11030, 0) != CUDA_SUCCESS && found == NULL);
    if (ask_v2 == NULL)
        return;
    int status = -1;
    CHECK(ask_v2("cuMemAlloc", &found, 12000, 0, &status) == CUDA_SUCCESS && found == (void *)alloc && status == 0);
    CHECK(ask_v2("cuMemAlloc", &found, 12000, 0, NULL) == CUDA_SUCCESS && found == (void *)alloc);
    /* A runtime also finds cuGetProcAddress itself. */
    CHECK(ask_v2("cuGetProcAddress", &found, 12000, 0, &status) == CUDA_SUCCESS);
    CHECK(found == (void *)ask_v2);
}

/* As CUDA's runtime does. */
static void run(void)
{
    /* Without a driver nothing is found, and the reason is there. */
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
    const char *error = dlerror();
    CHECK(error && strstr(error, "cuMemAlloc_v2"));

    /* A symbol of another library stays as it is, at each call. */
    void *of_libc = dlsym(RTLD_NEXT, "malloc");
    CHECK(of_libc);
    for (int i = 0; i < 300; i++)
        CHECK(dlsym(RTLD_NEXT, "malloc") == of_libc && dlsym(RTLD_DEFAULT, "cudnnCreate") == (void *)cudnnCreate);

    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CHECK(init && init(0) == CUDA_SUCCESS);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL); /* it is not in the global scope */
    CUresult (*retain)(CUcontext *, CUdevice) = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(CUcontext) = (void *)dlsym(driver, "cuCtxSetCurrent");
    CUcontext context;
    CHECK(retain(&context, 0) == CUDA_SUCCESS && set(context) == CUDA_SUCCESS);
    allocate *alloc = (allocate *)dlsym(driver, "cuMemAlloc_v2");
    release *give_back = (release *)dlsym(driver, "cuMemFree_v2");
    is_limited(alloc, give_back);
    ask_the_driver(driver, alloc, give_back);

    allocate_async *async = (allocate_async *)dlsym(driver, "cuMemAllocAsync");
    CUdeviceptr pointer;
    CHECK(async == NULL || async(&pointer, 200 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY);

    /* The driver may be unloaded, and loaded again elsewhere. */
    CHECK(dlclose(driver) == 0);
    void *room = malloc(64 * MIB);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver);
    init = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    retain = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    set = (void *)dlsym(driver, "cuCtxSetCurrent");
    CHECK(init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS && set(context) == CUDA_SUCCESS);
    is_limited((allocate *)dlsym(driver, "cuMemAlloc_v2"), (release *)dlsym(driver, "cuMemFree_v2"));
    is_limited((allocate *)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), (release *)dlsym(driver, "cuMemFree_v2"));
    free(room);
}
#endif

#ifdef __x86_64__
__attribute__((force_align_arg_pointer)) /* the kernel leaves no return address */
#endif
void _start(void)
{
    run();
    puts("all well");
    exit(0);
}
