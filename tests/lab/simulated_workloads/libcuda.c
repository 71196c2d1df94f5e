/* SPDX-License-Identifier: Apache-2.0
 *
 * SIMULATED libcuda.so.1: the bookkeeping of CUDA's driver without a GPU. Built once for each CUDA release
 * (-DCUDA=10020, 11040, 12060, 13000), with the functions that release has. What it does on purpose:
 * its own functions call each other through the loader, it asks dlsym for its own cuInit, pools take memory in
 * steps of 32 MiB and give it back at a synchronisation, graphs take theirs at the first launch, a thread can be
 * cancelled in a question about a pool.
 *
 * On a virtual board the facts of tests/boards/userland.py stand behind it in the same file: cuInit opens the
 * device nodes that they name, and there is no GPU without them. The GPU's properties are those facts, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../plugin/gpu_limit/driver_api.h"

#define EXPORT __attribute__((visibility("default")))
#define MIB ((size_t)1 << 20)
#define POOL_STEP (32 * MIB)
#define PITCH 512

enum { INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400 };
enum { ILLEGAL_ADDRESS = 700 };

struct context {
    int users;
};
struct green_context {
    struct context context;
};
struct pool {
    size_t reserved, used;
};
struct graph {
    size_t bytes;
};
struct graph_exec {
    size_t bytes;
    int launched;
};
struct stream {
    int capturing;
    struct graph *graph;
};

/* Everything that was allocated. `kind` is the function's name that made it. */
struct block {
    struct block *next;
    const char *kind;
    uint64_t key;
    size_t bytes;
    CUcontext context;
    int references;
    char *data; /* once something was copied there */
    size_t mapped_later; /* bytes of an array whose memory is mapped later */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static size_t used;
static uint64_t next_pointer = (uint64_t)1 << 40;
static struct context primary;
static __thread CUcontext current;
static struct pool default_pool;
static size_t graph_reserved;

static FILE *own_file(void)
{
    Dl_info here;
    return dladdr(&blocks, &here) ? fopen(here.dli_fname, "r") : NULL;
}

/* The number of one of this file's own facts, such as `multiprocessors`; `text` gets all of its value. */
static int fact(const char *key, int otherwise, char *text, size_t size)
{
    char line[256];
    size_t length = strlen(key);
    FILE *file = own_file();
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            otherwise = atoi(line + length + 1);
            if (text)
                snprintf(text, size, "%s", line + length + 1);
        }
    if (file)
        fclose(file);
    return otherwise;
}

/* The GPU has the board's memory; without a board, this machine's. */
static size_t total(void)
{
    const char *mib = getenv("SIMULATED_GPU_MIB");
    char bytes[32] = "";
    if (mib)
        return (size_t)atol(mib) * MIB;
    fact("memory_bytes", 0, bytes, sizeof bytes);
    if (*bytes)
        return (size_t)strtoull(bytes, NULL, 10);
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Open the nodes that this file's own facts name. */
static CUresult open_nodes(void)
{
    char line[256];
    CUresult result = CUDA_SUCCESS;
    FILE *file = own_file();
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        int node = strncmp(line, "open=/", 6) == 0 ? open(line + 5, O_RDWR | O_CLOEXEC) : -2;
        if (node == -1)
            result = NO_DEVICE;
        else if (node >= 0)
            close(node);
    }
    if (file)
        fclose(file);
    return result;
}

/* What the driver really has given, for tests: all of the device, in bytes. */
EXPORT size_t simulated_used(void)
{
    return used;
}

static int take(size_t bytes)
{
    if (bytes > total() - used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    used += bytes;
    return CUDA_SUCCESS;
}

static CUresult make(const char *kind, size_t bytes, CUcontext context, uint64_t *key)
{
    pthread_mutex_lock(&lock);
    CUresult result = bytes ? take(bytes) : INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct block *block = malloc(sizeof *block);
        if (*key == 0) {
            *key = next_pointer;
            next_pointer += (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        }
        *block = (struct block){blocks, kind, *key, bytes, context, 1, NULL, 0};
        blocks = block;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static struct block **place(const char *kind, uint64_t key)
{
    struct block **at = &blocks;
    while (*at && ((*at)->key != key || strcmp((*at)->kind, kind) != 0))
        at = &(*at)->next;
    return at;
}

static void destroy(struct block **at)
{
    struct block *block = *at;
    used -= block->bytes;
    *at = block->next;
    free(block->data);
    free(block);
}

static CUresult drop(const char *kind, uint64_t key)
{
    pthread_mutex_lock(&lock);
    struct block **at = place(kind, key);
    CUresult result = *at ? CUDA_SUCCESS : INVALID_VALUE;
    if (*at && --(*at)->references == 0)
        destroy(at);
    pthread_mutex_unlock(&lock);
    return result;
}

static void drop_context(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct block **at = &blocks; *at;)
        if ((*at)->context == context)
            destroy(at);
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuInit(unsigned flags)
{
    static int asked;
    /* Drivers do so: an interposer that answers with a wrapper would make this endless. */
    if (!asked++) {
        CUresult (*self)(unsigned) = (CUresult(*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
        if (self == NULL)
            self = cuInit;
        return self(0);
    }
    return open_nodes();
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_PTX: *name = "CUDA_ERROR_INVALID_PTX"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    default: *name = "CUDA_ERROR_UNKNOWN";
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    char own[64] = "GPU";
    fact("device_name", 0, own, sizeof own);
    snprintf(name, (size_t)size, "SIMULATED %s", own);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

/* What all of Tegra's GPUs have in common, by the numbers of cuda.h; the rest is 1. */
static const int attributes[][2] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
    {10, 32}, {11, 0x7fffffff}, {12, 65536}, {14, 512}, {17, 0}, {20, 0}, {32, 0}, {34, 0}, {50, 0},
};

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    char capability[16] = "8.7";
    *value = 1;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i][0] == attribute)
            *value = attributes[i][1];
    fact("compute_capability", 0, capability, sizeof capability);
    switch (attribute) {
    case 16: *value = fact("multiprocessors", 16, NULL, 0); break;
    case 18: *value = fact("integrated", 1, NULL, 0); break;
    case 33: *value = fact("pci_bus_id", 0, NULL, 0); break;
    case 75: *value = atoi(capability); break;
    case 76: *value = atoi(strchr(capability, '.') + 1); break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : INVALID_VALUE;
}

/* ---- contexts ---- */

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    current = *context = calloc(1, sizeof **context);
    return CUDA_SUCCESS;
}

#if CUDA >= 11040
EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}
#endif

#if CUDA >= 12050
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}
#endif

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

/* A stack of one, and what is below it. */
static __thread CUcontext below;

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    below = current;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    *context = current;
    current = below;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return current ? CUDA_SUCCESS : INVALID_CONTEXT;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    drop_context(context);
    if (current == context)
        current = NULL;
    free(context);
    return CUDA_SUCCESS;
}

/* CUDA's runtime retains the primary context by a private table, whose functions have no names. */
EXPORT CUresult simulated_private_retain(CUcontext *context, CUdevice device)
{
    __atomic_add_fetch(&primary.users, 1, __ATOMIC_RELAXED);
    *context = &primary;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return simulated_private_retain(context, device);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = primary.users > 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    if (__atomic_sub_fetch(&primary.users, 1, __ATOMIC_RELAXED) == 0)
        drop_context(&primary);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    drop_context(&primary);
    return CUDA_SUCCESS;
}

#if CUDA >= 11000
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return cuDevicePrimaryCtxRelease(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return cuDevicePrimaryCtxReset(device);
}
#endif

#if CUDA >= 12040
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags)
{
    *green = calloc(1, sizeof **green);
    __atomic_add_fetch(&primary.users, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    *context = &green->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    if (current == &green->context)
        current = NULL;
    free(green);
    return cuDevicePrimaryCtxRelease(0);
}
#endif

/* ---- memory ---- */

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    *pointer = 0;
    return current ? make("device", bytes, current, pointer) : INVALID_CONTEXT;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return cuMemAlloc_v2(pointer, *pitch * height); /* through the loader, as it is exported */
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    return cuMemAlloc_v2(pointer, bytes);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    if (pointer == 0)
        return CUDA_SUCCESS;
#if CUDA >= 11020
    return cuMemFreeAsync(pointer, NULL);
#else
    return drop("device", pointer);
#endif
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    if (current == NULL)
        return INVALID_CONTEXT;
    uint64_t key = 0;
    CUresult result = make("host", bytes, current, &key);
    *pointer = (void *)key;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
    return drop("host", (uint64_t)pointer);
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *all)
{
    *all = total();
    *free = total() - used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = total();
    return CUDA_SUCCESS;
}

/* ---- kernels: the CPU does what the plugin's own does, by tests/gpu_limit/test_compute.py ---- */

/* What is at an address of the device, NULL where so much was never allocated. */
static void *data(CUdeviceptr pointer, size_t bytes)
{
    for (struct block *block = blocks; block; block = block->next)
        if (pointer >= block->key && pointer + bytes <= block->key + block->bytes && strcmp(block->kind, "device") == 0) {
            if (block->data == NULL)
                block->data = calloc(1, block->bytes);
            return block->data + (pointer - block->key);
        }
    return NULL;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    void *place = data(to, bytes);
    return place ? (memcpy(place, from, bytes), CUDA_SUCCESS) : INVALID_VALUE;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    const void *place = data(from, bytes);
    return place ? (memcpy(to, place, bytes), CUDA_SUCCESS) : INVALID_VALUE;
}

/* A module is its text, a kernel is its name in it. */
EXPORT CUresult cuModuleLoadData(const char **module, const char *image)
{
    *module = image;
    return current == NULL ? INVALID_CONTEXT : strstr(image, ".entry ") ? CUDA_SUCCESS : INVALID_PTX;
}

EXPORT CUresult cuModuleGetFunction(const char **function, const char *module, const char *name)
{
    size_t length = strlen(name);
    *function = strstr(module, ".entry ") + strlen(".entry ");
    return strncmp(*function, name, length) == 0 && (*function)[length] == '(' ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult failed;

EXPORT CUresult cuLaunchKernel(const char *function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **parameters, void **extra)
{
    if (y != 1 || z != 1 || block_y != 1 || block_z != 1)
        return INVALID_VALUE;
    fprintf(stderr, "SIMULATED libcuda: no GPU computes, the CPU does\n");
    uint32_t count = *(uint32_t *)parameters[1], rounds = *(uint32_t *)parameters[2];
    uint32_t *numbers = data(*(CUdeviceptr *)parameters[0], count * sizeof *numbers);
    if (numbers == NULL) { /* As on a GPU: the error is returned later. */
        failed = ILLEGAL_ADDRESS;
        return CUDA_SUCCESS;
    }
    for (uint32_t i = 0; i < count && i < blocks * threads; i++)
        for (uint32_t round = 0; round < rounds; round++)
            numbers[i] = numbers[i] * 1664525 + 1013904223;
    return CUDA_SUCCESS;
}

/* ---- arrays: in tiles of 64 KiB; each channel has one byte, four if it is a float ---- */

enum { FORMAT_FLOAT = 0x20, TILE = 1 << 16 };

static size_t one(size_t number)
{
    return number ? number : 1;
}

static size_t tiles(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    size_t bytes = 0, element = one(what->NumChannels) * (what->Format == FORMAT_FLOAT ? 4 : 1);
    for (unsigned level = 0; level < levels; level++)
        bytes += one(what->Width >> level) * one(what->Height >> level) * one(what->Depth >> level) * element;
    return (bytes + TILE - 1) / TILE * TILE;
}

/* Without memory of its own: an array that gets it later. */
static CUresult make_array(const char *kind, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels, uint64_t *key)
{
    int later = what->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    *key = 0;
    CUresult result = make(kind, later ? 1 : tiles(what, levels), current, key);
    if (result == CUDA_SUCCESS && what->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)
        (*place(kind, *key))->mapped_later = tiles(what, levels);
    return result;
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    return make_array("array", what, 1, (uint64_t *)array);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what)
{
    CUDA_ARRAY3D_DESCRIPTOR flat = {what->Width, what->Height, 0, what->Format, what->NumChannels, 0};
    return cuArray3DCreate_v2(array, &flat);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    return drop("array", (uint64_t)array);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    return make_array("mipmap", what, levels, (uint64_t *)array);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return drop("mipmap", (uint64_t)array);
}

#if CUDA >= 11060
static CUresult requirements(const char *kind, CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, uint64_t key)
{
    struct block *block = *place(kind, key);
    if (block == NULL || block->mapped_later == 0)
        return INVALID_VALUE;
    needed->size = block->mapped_later;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUarray array, CUdevice device)
{
    return requirements("array", needed, (uint64_t)array);
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUmipmappedArray array,
                                                      CUdevice device)
{
    return requirements("mipmap", needed, (uint64_t)array);
}
#endif

/* ---- physical memory; a mapping keeps it ---- */

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const void *what, uint64_t flags)
{
    *handle = 0;
    return make("physical", bytes, NULL, handle);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return drop("physical", handle);
}

static CUresult refer(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct block *block = *place("physical", handle);
    if (block)
        block->references++;
    pthread_mutex_unlock(&lock);
    return block ? CUDA_SUCCESS : INVALID_HANDLE;
}

struct mapping {
    struct mapping *next;
    uint64_t address, bytes, handle;
};
static struct mapping *mappings;

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         uint64_t flags)
{
    if (refer(handle))
        return INVALID_HANDLE;
    struct mapping *mapping = malloc(sizeof *mapping);
    *mapping = (struct mapping){mappings, address, bytes, handle};
    mappings = mapping;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    int any = 0;
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *mapping = *at;
        if (mapping->address < address || mapping->address >= address + bytes) {
            at = &mapping->next;
            continue;
        }
        drop("physical", mapping->handle);
        *at = mapping->next;
        free(mapping);
        any = 1;
    }
    return any ? CUDA_SUCCESS : INVALID_VALUE;
}

#if CUDA >= 11000
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if ((uint64_t)address - mapping->address < mapping->bytes) {
            *handle = mapping->handle;
            return refer(*handle);
        }
    return INVALID_VALUE;
}
#endif

/* ---- pools ---- */

#if CUDA >= 11020
static void settle(struct pool *pool, size_t keep)
{
    size_t wanted = (pool->used + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
    if (wanted < keep)
        wanted = keep;
    if (wanted < pool->reserved) {
        used -= pool->reserved - wanted;
        pool->reserved = wanted;
    }
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = &default_pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *what)
{
    *pool = calloc(1, sizeof **pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    used -= pool->reserved;
    free(pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    settle(pool, keep);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    pthread_testcancel();
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    }
    return INVALID_VALUE;
}

static struct pooled {
    struct pooled *next;
    uint64_t key;
    size_t bytes;
    struct pool *pool;
} *pooled;

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (stream && stream->capturing) {
        stream->graph->bytes += bytes;
        *pointer = next_pointer += MIB;
        return CUDA_SUCCESS;
    }
    if (pool->used + bytes > pool->reserved) {
        size_t wanted = (pool->used + bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
        if (take(wanted - pool->reserved))
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved = wanted;
    }
    pool->used += bytes;
    struct pooled *block = malloc(sizeof *block);
    *block = (struct pooled){pooled, next_pointer += MIB, bytes, pool};
    pooled = block;
    *pointer = block->key;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, &default_pool, stream);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    for (struct pooled **at = &pooled; *at; at = &(*at)->next)
        if ((*at)->key == pointer) {
            struct pooled *block = *at;
            block->pool->used -= block->bytes;
            *at = block->next;
            free(block);
            return CUDA_SUCCESS;
        }
    return drop("device", pointer);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return cuMemFreeAsync(pointer, stream);
}
#else
static void settle(struct pool *pool, size_t keep)
{
}
#endif

/* ---- streams and graphs ---- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    *stream = calloc(1, sizeof **stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    settle(&default_pool, 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    CUresult result = cuStreamSynchronize(NULL);
    return failed ? failed : result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    *status = stream && stream->capturing;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream, status);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    stream->capturing = 1;
    stream->graph = calloc(1, sizeof *stream->graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    stream->capturing = 0;
    *graph = stream->graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph)
{
    *exec = calloc(1, sizeof **exec);
    (*exec)->bytes = graph->bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    if (!exec->launched && take(exec->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!exec->launched++)
        graph_reserved += exec->bytes;
    return CUDA_SUCCESS;
}

#if CUDA >= 11040
/* CUDA_MEM_ALLOC_NODE_PARAMS is reduced to its bytes. */
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       void *what)
{
    graph->bytes += *(size_t *)what;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    *(uint64_t *)value = graph_reserved;
    return attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? CUDA_SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    used -= graph_reserved;
    graph_reserved = 0;
    return CUDA_SUCCESS;
}
#endif

#if CUDA >= 12020
/* As above: type, then bytes. */
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUgraphNodeParams *what)
{
    graph->bytes += ((size_t *)what)[1];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                  size_t count, CUgraphNodeParams *what)
{
    return cuGraphAddNode(node, graph, after, count, what);
}
#endif

#if CUDA >= 13000
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return cuCtxSynchronize();
}
#endif

/* ---- how runtimes find functions ---- */

#if CUDA >= 11030
enum { PER_THREAD = 2 };

static CUresult find(const char *symbol, void **function, uint64_t flags)
{
    char name[128];
    static const char *const suffixes[] = {"_v2", ""};
    *function = NULL;
    Dl_info here;
    dladdr((void *)find, &here);
    void *self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (flags & PER_THREAD) {
        strcat(strcpy(name, symbol), "_ptsz");
        *function = dlsym(self, name);
    }
    for (int i = 0; i < 2 && *function == NULL; i++) {
        strcat(strcpy(name, symbol), suffixes[i]);
        *function = dlsym(self, name); /* the driver itself calls dlsym: its own, not a wrapper */
    }
    dlclose(self);
    Dl_info found;
    int is_own = *function && dladdr(*function, &found) && found.dli_fbase == here.dli_fbase;
    return is_own ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* a wrapper in place of its own would confuse a driver */
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return find(symbol, function, flags);
}
#endif

#if CUDA >= 12000
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    if (status)
        *status = 0;
    return find(symbol, function, flags);
}
#endif
