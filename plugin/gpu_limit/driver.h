/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver of this process: where its functions are, and which of them are wrapped.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>

#include "driver_api.h"

/* Wrapped: exported by this library under the same name. */
#define HOOKS(DO)                                                                                            \
    DO(cuMemAlloc_v2)                                                                                        \
    DO(cuMemAllocPitch_v2)                                                                                   \
    DO(cuMemAllocManaged)                                                                                    \
    DO(cuMemAllocHost_v2)                                                                                    \
    DO(cuMemHostAlloc)                                                                                       \
    DO(cuMemFree_v2)                                                                                         \
    DO(cuMemFreeHost)                                                                                        \
    DO(cuArrayCreate_v2)                                                                                     \
    DO(cuArray3DCreate_v2)                                                                                   \
    DO(cuArrayDestroy)                                                                                       \
    DO(cuMipmappedArrayCreate)                                                                               \
    DO(cuMipmappedArrayDestroy)                                                                              \
    DO(cuMemCreate)                                                                                          \
    DO(cuMemRelease)                                                                                         \
    DO(cuMemRetainAllocationHandle)                                                                          \
    DO(cuMemMap)                                                                                             \
    DO(cuMemUnmap)                                                                                           \
    DO(cuMemAllocAsync)                                                                                      \
    DO(cuMemAllocAsync_ptsz)                                                                                 \
    DO(cuMemAllocFromPoolAsync)                                                                              \
    DO(cuMemAllocFromPoolAsync_ptsz)                                                                         \
    DO(cuMemFreeAsync)                                                                                       \
    DO(cuMemFreeAsync_ptsz)                                                                                  \
    DO(cuMemPoolTrimTo)                                                                                      \
    DO(cuMemPoolDestroy)                                                                                     \
    DO(cuGraphAddMemAllocNode)                                                                               \
    DO(cuGraphAddNode)                                                                                       \
    DO(cuGraphAddNode_v2)                                                                                    \
    DO(cuGraphLaunch)                                                                                        \
    DO(cuGraphLaunch_ptsz)                                                                                   \
    DO(cuDeviceGraphMemTrim)                                                                                 \
    DO(cuStreamSynchronize)                                                                                  \
    DO(cuStreamSynchronize_ptsz)                                                                             \
    DO(cuCtxSynchronize)                                                                                     \
    DO(cuCtxSynchronize_v2)                                                                                  \
    DO(cuCtxSetCurrent)                                                                                      \
    DO(cuCtxPushCurrent_v2)                                                                                  \
    DO(cuCtxCreate_v2)                                                                                       \
    DO(cuCtxCreate_v3)                                                                                       \
    DO(cuCtxCreate_v4)                                                                                       \
    DO(cuCtxDestroy_v2)                                                                                      \
    DO(cuGreenCtxCreate)                                                                                     \
    DO(cuGreenCtxDestroy)                                                                                    \
    DO(cuCtxFromGreenCtx)                                                                                    \
    DO(cuDevicePrimaryCtxRetain)                                                                             \
    DO(cuDevicePrimaryCtxRelease)                                                                            \
    DO(cuDevicePrimaryCtxRelease_v2)                                                                         \
    DO(cuDevicePrimaryCtxReset)                                                                              \
    DO(cuDevicePrimaryCtxReset_v2)                                                                           \
    DO(cuMemGetInfo_v2)                                                                                      \
    DO(cuDeviceTotalMem_v2)                                                                                  \
    DO(cuGetProcAddress)                                                                                     \
    DO(cuGetProcAddress_v2)

/* Called, not wrapped. */
#define QUESTIONS(DO)                                                                                        \
    DO(cuMemPoolGetAttribute)                                                                                \
    DO(cuDeviceGetMemPool)                                                                                   \
    DO(cuDeviceGetGraphMemAttribute)                                                                         \
    DO(cuStreamIsCapturing)                                                                                  \
    DO(cuStreamIsCapturing_ptsz)                                                                             \
    DO(cuArrayGetMemoryRequirements)                                                                         \
    DO(cuMipmappedArrayGetMemoryRequirements)                                                                \
    DO(cuCtxGetCurrent)                                                                                      \
    DO(cuCtxPopCurrent_v2)                                                                                   \
    DO(cuCtxGetDevice)                                                                                       \
    DO(cuDevicePrimaryCtxGetState)

enum function {
#define NUMBER(name) NUMBER_##name,
#define PLUS_ONE(name) +1
    HOOKS(NUMBER) QUESTIONS(NUMBER) FUNCTION_COUNT,
    HOOK_COUNT = HOOKS(PLUS_ONE) /* they come first */
#undef NUMBER
#undef PLUS_ONE
};

/* The driver's own function. One that this driver lacks answers CUDA_ERROR_NOT_FOUND. */
#define DRIVER(name) ((__typeof__(&name))driver_function(NUMBER_##name))

void *driver_function(enum function number);

typedef void *dlsym_function(void *handle, const char *name);

/* glibc's dlsym, NULL if this process has none. */
dlsym_function *driver_dlsym(void);

/* The wrapped function of that name, HOOK_COUNT if there is none. */
enum function driver_hook_named(const char *name);

/* The wrapped function that `address` is in the driver, HOOK_COUNT if it is none of them. */
enum function driver_hook_at(const void *address);

/* The driver's own function of that name, NULL if it has none or is not loaded. */
void *driver_own(enum function hook);

/* True if `address` is code of the driver, where driver_own or a call of the driver last found it. */
bool driver_contains(const void *address);

/* The function of that name in the first file that was loaded after the file of `address`; NULL: there is none. */
void *driver_next(const void *address, enum function hook);

#endif
