/* SPDX-License-Identifier: Apache-2.0
 *
 * Built as libraries that wrap cuMemAlloc_v2, as tracers do (-DNAME), some of which search for the next function when
 * they are loaded (-DEARLY), and as a program that is linked to the driver (-DPROGRAM), with and without such a
 * wrapper. The program allocates 60 MiB and 50 MiB; its argument says how it finds the function. It prints both
 * results; each wrapper prints its calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../plugin/gpu_limit/driver_api.h"

#define MIB ((size_t)1 << 20)

#ifdef NAME
static __typeof__(&cuMemAlloc_v2) next;
static int calls, depth;

#ifdef EARLY
__attribute__((constructor))
#endif
static void find_next(void)
{
    next = (__typeof__(next))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    if (next == NULL)
        find_next();
    if (next == NULL || depth) {
        puts(depth ? NAME " calls itself" : NAME " finds nothing");
        exit(1);
    }
    calls++;
    depth++;
    CUresult result = next(pointer, bytes);
    depth--;
    return result;
}

__attribute__((destructor)) static void print(void)
{
    printf("%s %d\n", NAME, calls);
}
#endif

#ifdef PROGRAM
CUresult cuInit(unsigned flags);
CUresult cuCtxSetCurrent(CUcontext context);

static __typeof__(&cuMemAlloc_v2) find(const char *how)
{
    if (strcmp(how, "default") == 0)
        return (__typeof__(&cuMemAlloc_v2))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    if (strcmp(how, "program") == 0)
        return (__typeof__(&cuMemAlloc_v2))dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2");
    if (strcmp(how, "driver") == 0)
        return (__typeof__(&cuMemAlloc_v2))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    return cuMemAlloc_v2;
}

int main(int argc, char **argv)
{
    CUcontext context;
    if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    CUdeviceptr pointer;
    CUresult first = find(argv[1])(&pointer, 60 * MIB), second = find(argv[1])(&pointer, 50 * MIB);
    printf("results %d %d\n", first, second);
    return 0;
}
#endif
