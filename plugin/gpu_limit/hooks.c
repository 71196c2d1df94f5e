/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks.h"

#include "account.h"
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

/* ---- memory of the device and of the host: on Tegra the same chips ---- */

static CUresult wrap_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    if (!enter())
        return DRIVER(cuMemAlloc_v2)(pointer, bytes);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemAlloc_v2)(pointer, bytes);
    return allocated(result, bytes, ALLOCATION_DEVICE, result ? 0 : *pointer);
}

static CUresult wrap_cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!enter())
        return DRIVER(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t bytes;
    if (__builtin_mul_overflow(width, height, &bytes) || !pools_reserve(bytes))
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

static CUresult wrap_cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    if (!enter())
        return DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
    return allocated(result, bytes, ALLOCATION_DEVICE, result ? 0 : *pointer);
}

static CUresult wrap_cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    if (!enter())
        return DRIVER(cuMemAllocHost_v2)(pointer, bytes);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemAllocHost_v2)(pointer, bytes);
    return allocated(result, bytes, ALLOCATION_HOST, result ? 0 : (uint64_t)*pointer);
}

static CUresult wrap_cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    if (!enter())
        return DRIVER(cuMemHostAlloc)(pointer, bytes, flags);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemHostAlloc)(pointer, bytes, flags);
    return allocated(result, bytes, ALLOCATION_HOST, result ? 0 : (uint64_t)*pointer);
}

static CUresult wrap_cuMemFree_v2(CUdeviceptr pointer)
{
    if (!enter())
        return DRIVER(cuMemFree_v2)(pointer);
    struct allocation taken = account_take(ALLOCATION_DEVICE, pointer);
    CUresult result = DRIVER(cuMemFree_v2)(pointer);
    if (taken.kind == ALLOCATION_NOTHING)
        pools_settle(); /* it may be of a pool */
    return freed(result, taken);
}

static CUresult wrap_cuMemFreeHost(void *pointer)
{
    if (!enter())
        return DRIVER(cuMemFreeHost)(pointer);
    struct allocation taken = account_take(ALLOCATION_HOST, (uint64_t)pointer);
    return freed(DRIVER(cuMemFreeHost)(pointer), taken);
}

/* ---- arrays ---- */

/* Bytes of one channel, by CUarray_format; 4 for formats of many channels or of blocks, which are packed. */
static uint64_t channel_bytes(int format)
{
    switch (format) {
    case 0x01: /* UNSIGNED_INT8 */
    case 0x08: /* SIGNED_INT8 */
        return 1;
    case 0x02: /* UNSIGNED_INT16 */
    case 0x09: /* SIGNED_INT16 */
    case 0x10: /* HALF */
        return 2;
    default:
        return 4;
    }
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static uint64_t at_least_one(uint64_t number)
{
    return number ? number : 1;
}

/* Bytes of an array with so many levels, each half as wide, high and deep as the one before. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    /* These get their memory later, by cuMemMapArrayAsync: that of cuMemCreate. */
    if (what == NULL || what->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    uint64_t texel = channel_bytes(what->Format) * at_least_one(what->NumChannels), sum = 0;
    for (unsigned level = 0; level < at_least_one(levels) && level < 64; level++) {
        unsigned depth_level = what->Flags & CUDA_ARRAY3D_LAYERED ? 0 : level;
        uint64_t rows = product(at_least_one(what->Height >> level), at_least_one(what->Depth >> depth_level));
        uint64_t bytes = product(product(at_least_one(what->Width >> level), texel), rows);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

static CUresult wrap_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what)
{
    if (!enter())
        return DRIVER(cuArrayCreate_v2)(array, what);
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (what)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){
            .Width = what->Width, .Height = what->Height, .Format = what->Format, .NumChannels = what->NumChannels};
    uint64_t bytes = what ? array_bytes(&flat, 1) : 0;
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuArrayCreate_v2)(array, what);
    return allocated(result, bytes, ALLOCATION_ARRAY, result ? 0 : (uint64_t)*array);
}

static CUresult wrap_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    if (!enter())
        return DRIVER(cuArray3DCreate_v2)(array, what);
    uint64_t bytes = array_bytes(what, 1);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuArray3DCreate_v2)(array, what);
    return allocated(result, bytes, ALLOCATION_ARRAY, result ? 0 : (uint64_t)*array);
}

static CUresult wrap_cuArrayDestroy(CUarray array)
{
    if (!enter())
        return DRIVER(cuArrayDestroy)(array);
    struct allocation taken = account_take(ALLOCATION_ARRAY, (uint64_t)array);
    return freed(DRIVER(cuArrayDestroy)(array), taken);
}

static CUresult wrap_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    if (!enter())
        return DRIVER(cuMipmappedArrayCreate)(array, what, levels);
    uint64_t bytes = array_bytes(what, levels);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMipmappedArrayCreate)(array, what, levels);
    return allocated(result, bytes, ALLOCATION_MIPMAP, result ? 0 : (uint64_t)*array);
}

static CUresult wrap_cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    if (!enter())
        return DRIVER(cuMipmappedArrayDestroy)(array);
    struct allocation taken = account_take(ALLOCATION_MIPMAP, (uint64_t)array);
    return freed(DRIVER(cuMipmappedArrayDestroy)(array), taken);
}

/* ---- physical memory that the program maps itself: it exists as long as a handle or a mapping ---- */

static CUresult wrap_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const void *what, uint64_t flags)
{
    if (!enter())
        return DRIVER(cuMemCreate)(handle, bytes, what, flags);
    if (!pools_reserve(bytes))
        return refuse();
    CUresult result = DRIVER(cuMemCreate)(handle, bytes, what, flags);
    if (result == CUDA_SUCCESS)
        account_keep(bytes, (struct allocation){.kind = ALLOCATION_PHYSICAL, .key = *handle, .bytes = bytes, .holds = 1});
    else
        account_release(bytes);
    return leave(result);
}

static CUresult wrap_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!enter())
        return DRIVER(cuMemRelease)(handle);
    struct allocation taken = account_drop(handle);
    CUresult result = DRIVER(cuMemRelease)(handle);
    if (result != CUDA_SUCCESS && taken.kind == ALLOCATION_NOTHING)
        account_hold(handle);
    return freed(result, taken);
}

static CUresult wrap_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (!enter())
        return DRIVER(cuMemRetainAllocationHandle)(handle, address);
    CUresult result = DRIVER(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        account_hold(*handle);
    return leave(result);
}

static CUresult wrap_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         uint64_t flags)
{
    if (!enter())
        return DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
    CUresult result = DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS)
        account_map(address, bytes, handle);
    return leave(result);
}

static CUresult wrap_cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    if (!enter())
        return DRIVER(cuMemUnmap)(address, bytes);
    CUresult result = DRIVER(cuMemUnmap)(address, bytes);
    if (result == CUDA_SUCCESS)
        account_unmap(address, bytes);
    return leave(result);
}

/* ---- pools, by stream; `_ptsz` where a program has a default stream for each thread ---- */

static CUresult from_current_pool(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    return DRIVER(cuMemAllocAsync)(pointer, bytes, stream);
}

static CUresult from_current_pool_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    return DRIVER(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
}

/* A captured allocation is one of the graph, which gets its memory when it is launched. */
static void look_for_capture(CUresult (*is_capturing)(CUstream, int *), CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_capturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        pools_graphs_have_memory();
}

static CUresult allocated_from_pool(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY ? refuse() : leave(result);
}

static CUresult wrap_cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemAllocAsync)(pointer, bytes, stream);
    look_for_capture(DRIVER(cuStreamIsCapturing), stream);
    return allocated_from_pool(
        pools_allocate(pointer, bytes, NULL, stream, from_current_pool, DRIVER(cuMemFreeAsync)));
}

static CUresult wrap_cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
    look_for_capture(DRIVER(cuStreamIsCapturing_ptsz), stream);
    return allocated_from_pool(
        pools_allocate(pointer, bytes, NULL, stream, from_current_pool_ptsz, DRIVER(cuMemFreeAsync_ptsz)));
}

static CUresult wrap_cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
    look_for_capture(DRIVER(cuStreamIsCapturing), stream);
    return allocated_from_pool(
        pools_allocate(pointer, bytes, pool, stream, DRIVER(cuMemAllocFromPoolAsync), DRIVER(cuMemFreeAsync)));
}

static CUresult wrap_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
    look_for_capture(DRIVER(cuStreamIsCapturing_ptsz), stream);
    return allocated_from_pool(pools_allocate(pointer, bytes, pool, stream, DRIVER(cuMemAllocFromPoolAsync_ptsz),
                                              DRIVER(cuMemFreeAsync_ptsz)));
}

static CUresult free_async(CUresult (*free)(CUdeviceptr, CUstream), CUdeviceptr pointer, CUstream stream)
{
    struct allocation taken = account_take(ALLOCATION_DEVICE, pointer); /* it may belong to no pool */
    CUresult result = free(pointer, stream);
    pools_settle();
    return freed(result, taken);
}

static CUresult wrap_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemFreeAsync)(pointer, stream);
    return free_async(DRIVER(cuMemFreeAsync), pointer, stream);
}

static CUresult wrap_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    if (!enter())
        return DRIVER(cuMemFreeAsync_ptsz)(pointer, stream);
    return free_async(DRIVER(cuMemFreeAsync_ptsz), pointer, stream);
}

/* End a call after which pools or graphs may have more memory, or less. */
static CUresult settled(CUresult result)
{
    pools_settle();
    return leave(result);
}

static CUresult wrap_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    if (!enter())
        return DRIVER(cuMemPoolTrimTo)(pool, keep);
    return settled(DRIVER(cuMemPoolTrimTo)(pool, keep));
}

static CUresult wrap_cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!enter())
        return DRIVER(cuMemPoolDestroy)(pool);
    CUresult result = DRIVER(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS)
        pools_forget(pool);
    return leave(result);
}

static CUresult wrap_cuStreamSynchronize(CUstream stream)
{
    if (!enter())
        return DRIVER(cuStreamSynchronize)(stream);
    return settled(DRIVER(cuStreamSynchronize)(stream));
}

static CUresult wrap_cuStreamSynchronize_ptsz(CUstream stream)
{
    if (!enter())
        return DRIVER(cuStreamSynchronize_ptsz)(stream);
    return settled(DRIVER(cuStreamSynchronize_ptsz)(stream));
}

static CUresult wrap_cuCtxSynchronize(void)
{
    if (!enter())
        return DRIVER(cuCtxSynchronize)();
    return settled(DRIVER(cuCtxSynchronize)());
}

static CUresult wrap_cuCtxSynchronize_v2(CUcontext context)
{
    if (!enter())
        return DRIVER(cuCtxSynchronize_v2)(context);
    return settled(DRIVER(cuCtxSynchronize_v2)(context));
}

/* ---- graphs: they get their memory at a launch, so it is the next allocation that is refused ---- */

static CUresult wrap_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       void *what)
{
    if (!enter())
        return DRIVER(cuGraphAddMemAllocNode)(node, graph, after, count, what);
    pools_graphs_have_memory();
    return leave(DRIVER(cuGraphAddMemAllocNode)(node, graph, after, count, what));
}

static CUresult wrap_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUgraphNodeParams *what)
{
    if (!enter())
        return DRIVER(cuGraphAddNode)(node, graph, after, count, what);
    if (what && what->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        pools_graphs_have_memory();
    return leave(DRIVER(cuGraphAddNode)(node, graph, after, count, what));
}

static CUresult wrap_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                  size_t count, CUgraphNodeParams *what)
{
    if (!enter())
        return DRIVER(cuGraphAddNode_v2)(node, graph, after, edges, count, what);
    if (what && what->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        pools_graphs_have_memory();
    return leave(DRIVER(cuGraphAddNode_v2)(node, graph, after, edges, count, what));
}

static CUresult wrap_cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    if (!enter())
        return DRIVER(cuGraphLaunch)(graph, stream);
    return settled(DRIVER(cuGraphLaunch)(graph, stream));
}

static CUresult wrap_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
    if (!enter())
        return DRIVER(cuGraphLaunch_ptsz)(graph, stream);
    return settled(DRIVER(cuGraphLaunch_ptsz)(graph, stream));
}

static CUresult wrap_cuDeviceGraphMemTrim(CUdevice device)
{
    if (!enter())
        return DRIVER(cuDeviceGraphMemTrim)(device);
    return settled(DRIVER(cuDeviceGraphMemTrim)(device));
}

/* ---- contexts: what they have goes with them ---- */

static CUresult context_gone(CUresult result, uint64_t context)
{
    if (result == CUDA_SUCCESS && context)
        account_context_gone(context);
    return settled(result);
}

static CUresult wrap_cuCtxDestroy_v2(CUcontext context)
{
    if (!enter())
        return DRIVER(cuCtxDestroy_v2)(context);
    return context_gone(DRIVER(cuCtxDestroy_v2)(context), (uint64_t)context);
}

static CUresult wrap_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!enter())
        return DRIVER(cuDevicePrimaryCtxRetain)(context, device);
    CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS)
        account_keep(0, (struct allocation){.kind = ALLOCATION_PRIMARY, .key = (uint64_t)device, .owner = (uint64_t)*context});
    return leave(result);
}

static CUresult primary_released(CUresult result, CUdevice device)
{
    unsigned flags;
    int active = 1;
    if (result == CUDA_SUCCESS)
        DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    return context_gone(result, active ? 0 : account_find(ALLOCATION_PRIMARY, (uint64_t)device).owner);
}

static CUresult wrap_cuDevicePrimaryCtxRelease(CUdevice device)
{
    if (!enter())
        return DRIVER(cuDevicePrimaryCtxRelease)(device);
    return primary_released(DRIVER(cuDevicePrimaryCtxRelease)(device), device);
}

static CUresult wrap_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    if (!enter())
        return DRIVER(cuDevicePrimaryCtxRelease_v2)(device);
    return primary_released(DRIVER(cuDevicePrimaryCtxRelease_v2)(device), device);
}

static CUresult wrap_cuDevicePrimaryCtxReset(CUdevice device)
{
    if (!enter())
        return DRIVER(cuDevicePrimaryCtxReset)(device);
    return context_gone(DRIVER(cuDevicePrimaryCtxReset)(device), account_find(ALLOCATION_PRIMARY, (uint64_t)device).owner);
}

static CUresult wrap_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    if (!enter())
        return DRIVER(cuDevicePrimaryCtxReset_v2)(device);
    return context_gone(DRIVER(cuDevicePrimaryCtxReset_v2)(device),
                        account_find(ALLOCATION_PRIMARY, (uint64_t)device).owner);
}

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
    pools_settle();
    uint64_t limit = account_limit(), used = account_used();
    *total = smaller(*total, limit);
    *free = smaller(*free, limit > used ? limit - used : 0);
    return leave(CUDA_SUCCESS);
}

static CUresult wrap_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    if (!enter())
        return DRIVER(cuDeviceTotalMem_v2)(bytes, device);
    CUresult result = DRIVER(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = smaller(*bytes, account_limit());
    return leave(result);
}

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
        *function = hooks_wrapper(hook);
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

/* ---- the exports ---- */

static void *const wrappers[HOOK_COUNT] = {
#define WRAPPER(name) [NUMBER_##name] = (void *)wrap_##name,
    HOOKS(WRAPPER)
#undef WRAPPER
};

/* Return the function that an export calls: an interposer that was preloaded after this library, or the wrapper. */
static void *target(enum function hook)
{
    static void *targets[HOOK_COUNT];
    void *found = __atomic_load_n(&targets[hook], __ATOMIC_RELAXED);
    if (found == NULL) {
        found = driver_interposer(hook);
        found = found ? found : wrappers[hook];
        __atomic_store_n(&targets[hook], found, __ATOMIC_RELAXED);
    }
    return found;
}

/*
 * Each of these functions has at most 6 arguments, all integers or pointers. Both architectures pass those in
 * registers, so one type serves all exports. An export is another name of a static function: its address, in
 * hooks_export, is never that of an interposer.
 */
typedef uintptr_t any_function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

#define EXPORT(name)                                                                                         \
    static uintptr_t own_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) \
    {                                                                                                        \
        return ((any_function *)target(NUMBER_##name))(a, b, c, d, e, f);                                    \
    }                                                                                                        \
    __attribute__((visibility("default"), alias("own_" #name))) any_function export_##name __asm__(#name);
HOOKS(EXPORT)
#undef EXPORT

void *hooks_export(enum function hook)
{
    static void *const exports[HOOK_COUNT] = {
#define ADDRESS(name) [NUMBER_##name] = (void *)own_##name,
        HOOKS(ADDRESS)
#undef ADDRESS
    };
    return exports[hook];
}

void *hooks_wrapper(enum function hook)
{
    return target(hook) == wrappers[hook] ? hooks_export(hook) : wrappers[hook];
}
