/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the nanoseconds of one cuMemAlloc with its cuMemFree, found as CUDA's runtime finds them.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

#include "../../plugin/gpu_limit/driver_api.h"

enum { PAIRS = 100000 };

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (void *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(CUcontext) = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
    __typeof__(&cuMemAlloc_v2) allocate = (void *)dlsym(driver, "cuMemAlloc_v2");
    __typeof__(&cuMemFree_v2) release = (void *)dlsym(driver, "cuMemFree_v2");
    CUcontext context;
    if (init(0) || retain(&context, 0) || set(context))
        return 1;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < PAIRS; i++) {
        CUdeviceptr pointer;
        if (allocate(&pointer, 1 << 20) || release(pointer))
            return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.0f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / PAIRS);
    return 0;
}
