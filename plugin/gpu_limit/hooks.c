/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks.h"

#include "account.h"
#include "arrays.h"
#include "contexts.h"
#include "pools.h"
#include "report.h"

/* The driver and its tools may call one of their functions by another: only the program's own call counts. */
static __thread bool inside;

/* True if this call counts; then `leave` ends it. */
static bool enter(void)
{
    if (inside || !account_limited())
        return false;
    return inside = true;
}

static CUresult leave(CUresult result)
{
    inside = false;
    return result;
}

static CUresult refuse(void)
{
    report_once(REPORT_REFUSED, "out of memory: of this container's limit of %m MiB %m MiB are used", account_limit(),
                account_used());
    return leave(CUDA_ERROR_OUT_OF_MEMORY);
}

/* Reserve bytes for the current context, which may have been made unseen. */
static bool reserve(uint64_t bytes)
{
    return contexts_see_current() && pools_reserve(bytes);
}

static uint64_t current_context(void)
{
    CUcontext context = NULL;
    DRIVER(cuCtxGetCurrent)(&context);
    return (uint64_t)context;
}

/* End an allocation of `bytes` that were set aside. */
static CUresult allocated(CUresult result, uint64_t bytes, enum allocation_kind kind, uint64_t key)
{
    if (result == CUDA_SUCCESS)
        account_keep(bytes, (struct allocation){.kind = kind, .key = key, .bytes = bytes, .owner = current_context()});
    else
        account_release(bytes);
    return leave(result);
}

/* End the release of a removed entry: another allocation may have the same address already. */
static CUresult freed(CUresult result, struct allocation taken)
{
    if (taken.kind == ALLOCATION_NOTHING)
        return leave(result);
    if (result == CUDA_SUCCESS)
        account_release(taken.bytes);
    else
        account_keep(taken.bytes, taken);
    return leave(result);
}

/* ---- the forms of wrappers ---- */

/* `body` is for a call that counts. */
#define WRAP(name, parameters, arguments, body)                                                              \
    static CUresult wrap_##name parameters                                                                   \
    {                                                                                                        \
        if (!enter())                                                                                        \
            return DRIVER(name) arguments;                                                                   \
        body                                                                                                 \
    }

/* The driver puts an allocation of `size` bytes at `*result_at`. */
#define WRAP_ALLOCATION(name, parameters, arguments, size, kind, result_at)                                  \
    WRAP(name, parameters, arguments, {                                                                      \
        uint64_t requested = size;                                                                           \
        if (!reserve(requested))                                                                             \
            return refuse();                                                                                 \
        CUresult result = DRIVER(name) arguments;                                                            \
        return allocated(result, requested, kind, result ? 0 : (uint64_t)*(result_at));                      \
    })

#define WRAP_RELEASE(name, type, kind)                                                                       \
    WRAP(name, (type object), (object), {                                                                    \
        struct allocation taken = account_take(kind, (uint64_t)object);                                      \
        return freed(DRIVER(name)(object), taken);                                                           \
    })

/* End a call after which pools or graphs may have more memory, or less. */
static CUresult settled(CUresult result)
{
    pools_settle();
    return leave(result);
}

#define WRAP_SETTLED(name, parameters, arguments)                                                            \
    WRAP(name, parameters, arguments, { return settled(DRIVER(name) arguments); })

/* ---- memory of the device and of the host: on Tegra the same chips ---- */

WRAP_ALLOCATION(cuMemAlloc_v2, (CUdeviceptr *pointer, size_t bytes), (pointer, bytes), bytes, ALLOCATION_DEVICE, pointer)
WRAP_ALLOCATION(cuMemAllocManaged, (CUdeviceptr *pointer, size_t bytes, unsigned flags), (pointer, bytes, flags), bytes,
                ALLOCATION_DEVICE, pointer)
WRAP_ALLOCATION(cuMemAllocHost_v2, (void **pointer, size_t bytes), (pointer, bytes), bytes, ALLOCATION_HOST, pointer)
WRAP_ALLOCATION(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags), (pointer, bytes, flags), bytes,
                ALLOCATION_HOST, pointer)
WRAP_RELEASE(cuMemFreeHost, void *, ALLOCATION_HOST)

static CUresult wrap_cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!enter())
        return DRIVER(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t bytes;
    if (__builtin_mul_overflow(width, height, &bytes) || !reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS)
        return allocated(result, bytes, ALLOCATION_DEVICE, 0);
    /* Rows are longer than requested: the size is known only now. */
    struct allocation rows = {
        .kind = ALLOCATION_DEVICE, .key = *pointer, .bytes = (uint64_t)*pitch * height, .owner = current_context()};
    if (account_keep(bytes, rows))
        return leave(CUDA_SUCCESS);
    account_take(ALLOCATION_DEVICE, *pointer);
    DRIVER(cuMemFree_v2)(*pointer);
    account_release(rows.bytes);
    return refuse();
}

WRAP(cuMemFree_v2, (CUdeviceptr pointer), (pointer), {
    struct allocation taken = account_take(ALLOCATION_DEVICE, pointer);
    CUresult result = DRIVER(cuMemFree_v2)(pointer);
    if (taken.kind == ALLOCATION_NOTHING)
        pools_settle(); /* it may be of a pool */
    return freed(result, taken);
})

/* ---- arrays ---- */

static uint64_t flat_array_bytes(const CUDA_ARRAY_DESCRIPTOR *what)
{
    if (what == NULL)
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .Width = what->Width, .Height = what->Height, .Format = what->Format, .NumChannels = what->NumChannels};
    return arrays_bytes(&flat);
}

WRAP_ALLOCATION(cuArrayCreate_v2, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what), (array, what),
                flat_array_bytes(what), ALLOCATION_ARRAY, array)
WRAP_ALLOCATION(cuArray3DCreate_v2, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what), (array, what),
                arrays_bytes(what), ALLOCATION_ARRAY, array)
WRAP_ALLOCATION(cuMipmappedArrayCreate, (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels),
                (array, what, levels), arrays_mipmapped_bytes(what, levels), ALLOCATION_MIPMAP, array)
WRAP_RELEASE(cuArrayDestroy, CUarray, ALLOCATION_ARRAY)
WRAP_RELEASE(cuMipmappedArrayDestroy, CUmipmappedArray, ALLOCATION_MIPMAP)

/* ---- physical memory that the program maps itself: it exists as long as a handle or a mapping ---- */

WRAP(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t bytes, const void *what, uint64_t flags),
     (handle, bytes, what, flags), {
    if (!reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemCreate)(handle, bytes, what, flags);
    if (result == CUDA_SUCCESS)
        account_keep(bytes, (struct allocation){.kind = ALLOCATION_PHYSICAL, .key = *handle, .bytes = bytes, .holds = 1});
    else
        account_release(bytes);
    return leave(result);
})

WRAP(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle), {
    struct allocation taken = account_drop(handle);
    CUresult result = DRIVER(cuMemRelease)(handle);
    if (result != CUDA_SUCCESS && taken.kind == ALLOCATION_NOTHING)
        account_hold(handle);
    return freed(result, taken);
})

WRAP(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *address), (handle, address), {
    CUresult result = DRIVER(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        account_hold(*handle);
    return leave(result);
})

WRAP(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, uint64_t flags),
     (address, bytes, offset, handle, flags), {
    CUresult result = DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS)
        account_map(address, bytes, handle);
    return leave(result);
})

WRAP(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes), {
    CUresult result = DRIVER(cuMemUnmap)(address, bytes);
    if (result == CUDA_SUCCESS)
        account_unmap(address, bytes);
    return leave(result);
})

/* ---- pools, by stream; `_ptsz` where a program has a default stream for each thread ---- */

/* A captured allocation is one of the graph, which gets its memory when it is launched. */
static void note_capture(CUresult (*is_capturing)(CUstream, int *), CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_capturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        pools_graphs_have_memory();
}

static CUresult allocated_from_pool(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY ? refuse() : leave(result);
}

static CUresult free_async(CUresult (*free)(CUdeviceptr, CUstream), CUdeviceptr pointer, CUstream stream)
{
    struct allocation taken = account_take(ALLOCATION_DEVICE, pointer); /* it may belong to no pool */
    CUresult result = free(pointer, stream);
    pools_settle();
    return freed(result, taken);
}

#define WRAP_BY_STREAM(suffix)                                                                               \
    static CUresult from_current_pool##suffix(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) \
    {                                                                                                        \
        (void)pool;                                                                                          \
        return DRIVER(cuMemAllocAsync##suffix)(pointer, bytes, stream);                                      \
    }                                                                                                        \
    WRAP(cuMemAllocAsync##suffix, (CUdeviceptr *pointer, size_t bytes, CUstream stream), (pointer, bytes, stream), { \
        note_capture(DRIVER(cuStreamIsCapturing##suffix), stream);                                           \
        if (!contexts_see_current())                                                                         \
            return refuse();                                                                                 \
        return allocated_from_pool(pools_allocate(pointer, bytes, NULL, stream, from_current_pool##suffix,   \
                                                  DRIVER(cuMemFreeAsync##suffix)));                          \
    })                                                                                                       \
    WRAP(cuMemAllocFromPoolAsync##suffix,                                                                    \
         (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream), (pointer, bytes, pool, stream), { \
        note_capture(DRIVER(cuStreamIsCapturing##suffix), stream);                                           \
        if (!contexts_see_current())                                                                         \
            return refuse();                                                                                 \
        return allocated_from_pool(pools_allocate(pointer, bytes, pool, stream,                              \
                                                  DRIVER(cuMemAllocFromPoolAsync##suffix),                   \
                                                  DRIVER(cuMemFreeAsync##suffix)));                          \
    })                                                                                                       \
    WRAP(cuMemFreeAsync##suffix, (CUdeviceptr pointer, CUstream stream), (pointer, stream),                  \
         { return free_async(DRIVER(cuMemFreeAsync##suffix), pointer, stream); })                            \
    WRAP_SETTLED(cuStreamSynchronize##suffix, (CUstream stream), (stream))                                   \
    WRAP_SETTLED(cuGraphLaunch##suffix, (CUgraphExec graph, CUstream stream), (graph, stream))
WRAP_BY_STREAM()
WRAP_BY_STREAM(_ptsz)

WRAP_SETTLED(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep))
WRAP_SETTLED(cuCtxSynchronize, (void), ())
WRAP_SETTLED(cuCtxSynchronize_v2, (CUcontext context), (context))

WRAP(cuMemPoolDestroy, (CUmemoryPool pool), (pool), {
    CUresult result = DRIVER(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS)
        pools_forget(pool);
    return leave(result);
})

/* ---- graphs: they get their memory at a launch, so it is the next allocation that is refused ---- */

static void note_node(const CUgraphNodeParams *what)
{
    if (what && what->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        pools_graphs_have_memory();
}

WRAP(cuGraphAddMemAllocNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *what),
     (node, graph, after, count, what), {
    pools_graphs_have_memory();
    return leave(DRIVER(cuGraphAddMemAllocNode)(node, graph, after, count, what));
})

WRAP(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *what),
     (node, graph, after, count, what), {
    note_node(what);
    return leave(DRIVER(cuGraphAddNode)(node, graph, after, count, what));
})

WRAP(cuGraphAddNode_v2,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUgraphNodeParams *what),
     (node, graph, after, edges, count, what), {
    note_node(what);
    return leave(DRIVER(cuGraphAddNode_v2)(node, graph, after, edges, count, what));
})

WRAP_SETTLED(cuDeviceGraphMemTrim, (CUdevice device), (device))

/* ---- contexts: each costs memory, and what it has goes with it ---- */

#define WRAP_CONTEXT(name, parameters, arguments)                                                            \
    WRAP(name, parameters, arguments, {                                                                      \
        if (!contexts_reserve())                                                                             \
            return refuse();                                                                                 \
        CUresult result = DRIVER(name) arguments;                                                            \
        contexts_made(result, result ? NULL : *context);                                                     \
        return leave(result);                                                                                \
    })
WRAP_CONTEXT(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
WRAP_CONTEXT(cuCtxCreate_v3, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device),
             (context, affinity, count, flags, device))
WRAP_CONTEXT(cuCtxCreate_v4, (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
             (context, parameters, flags, device))

WRAP(cuCtxDestroy_v2, (CUcontext context), (context), {
    CUresult result = DRIVER(cuCtxDestroy_v2)(context);
    if (result == CUDA_SUCCESS)
        contexts_ended(context);
    return settled(result);
})

WRAP(cuCtxSetCurrent, (CUcontext context), (context), {
    CUcontext before = NULL;
    DRIVER(cuCtxGetCurrent)(&before);
    CUresult result = DRIVER(cuCtxSetCurrent)(context);
    if (result != CUDA_SUCCESS || contexts_see_current())
        return leave(result);
    DRIVER(cuCtxSetCurrent)(before);
    return refuse();
})

WRAP(cuCtxPushCurrent_v2, (CUcontext context), (context), {
    CUresult result = DRIVER(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS || contexts_see_current())
        return leave(result);
    DRIVER(cuCtxPopCurrent_v2)(&context);
    return refuse();
})

WRAP(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device), (context, device), {
    if (!contexts_reserve_primary(device))
        return refuse();
    CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(context, device);
    contexts_primary_made(result, device, result ? NULL : *context);
    return leave(result);
})

#define WRAP_PRIMARY(suffix)                                                                                 \
    WRAP(cuDevicePrimaryCtxRelease##suffix, (CUdevice device), (device), {                                   \
        CUresult result = DRIVER(cuDevicePrimaryCtxRelease##suffix)(device);                                 \
        contexts_primary_released(device);                                                                   \
        return settled(result);                                                                              \
    })                                                                                                       \
    WRAP(cuDevicePrimaryCtxReset##suffix, (CUdevice device), (device), {                                     \
        CUresult result = DRIVER(cuDevicePrimaryCtxReset##suffix)(device);                                   \
        if (result == CUDA_SUCCESS)                                                                          \
            contexts_primary_reset(device);                                                                  \
        return settled(result);                                                                              \
    })
WRAP_PRIMARY()
WRAP_PRIMARY(_v2)

WRAP(cuGreenCtxCreate, (CUgreenCtx *green, void *resources, CUdevice device, unsigned flags),
     (green, resources, device, flags), {
    if (!contexts_reserve_primary(device))
        return refuse();
    CUresult result = DRIVER(cuGreenCtxCreate)(green, resources, device, flags);
    contexts_primary_made(result, device, NULL);
    if (result == CUDA_SUCCESS)
        contexts_green_made(*green, device);
    return leave(result);
})

WRAP(cuGreenCtxDestroy, (CUgreenCtx green), (green), {
    CUresult result = DRIVER(cuGreenCtxDestroy)(green);
    if (result == CUDA_SUCCESS)
        contexts_green_ended(green);
    return settled(result);
})

WRAP(cuCtxFromGreenCtx, (CUcontext *context, CUgreenCtx green), (context, green), {
    CUresult result = DRIVER(cuCtxFromGreenCtx)(context, green);
    if (result == CUDA_SUCCESS)
        contexts_green_current(*context);
    return leave(result);
})

/* ---- reports about memory to the program ---- */

static size_t smaller(size_t a, uint64_t b)
{
    return b < a ? b : a;
}

static CUresult wrap_cuMemGetInfo_v2(size_t *free, size_t *total)
{
    if (!enter())
        return DRIVER(cuMemGetInfo_v2)(free, total);
    CUresult result = DRIVER(cuMemGetInfo_v2)(free, total);
    if (result != CUDA_SUCCESS)
        return leave(result);
    contexts_see_current();
    pools_settle();
    uint64_t limit = account_limit(), used = account_used();
    *total = smaller(*total, limit);
    *free = smaller(*free, limit > used ? limit - used : 0);
    return leave(CUDA_SUCCESS);
}

WRAP(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), (bytes, device), {
    CUresult result = DRIVER(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = smaller(*bytes, account_limit());
    return leave(result);
})

/* ---- how CUDA's runtime finds functions ---- */

/*
 * By the address that the driver answers with, never by name and version: it knows best which of its variants
 * is meant. (In drivers 470, 535 and 550 every answer is the address of an export.)
 */
static CUresult wrapped(CUresult result, void **function)
{
    enum function hook = HOOK_COUNT;
    if (result == CUDA_SUCCESS && function && account_limited())
        hook = driver_hook_at(*function);
    if (hook != HOOK_COUNT)
        *function = hooks_export(hook);
    return result;
}

static CUresult wrap_cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return wrapped(DRIVER(cuGetProcAddress)(symbol, function, version, flags), function);
}

static CUresult wrap_cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    return wrapped(DRIVER(cuGetProcAddress_v2)(symbol, function, version, flags, status), function);
}

/* ---- the exports: other names of static functions, whose addresses are never those of an interposer ---- */

#define EXPORT(name)                                                                                         \
    __attribute__((visibility("default"), alias("wrap_" #name))) __typeof__(name) export_##name __asm__(#name);
HOOKS(EXPORT)
#undef EXPORT

void *hooks_export(enum function hook)
{
    static void *const wrappers[HOOK_COUNT] = {
#define WRAPPER(name) [NUMBER_##name] = (void *)wrap_##name,
        HOOKS(WRAPPER)
#undef WRAPPER
    };
    return wrappers[hook];
}
