/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver API that is hooked or called, written from its documentation. Never linked: a
 * prototype here gives a wrapper its signature and a found address its type.
 *
 * Since when: CUDA 10.2 (JetPack 4) unless a line has another version.
 */
#ifndef DRIVER_API_H
#define DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_FOUND = 500 };

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;
typedef struct context *CUcontext;
typedef struct green_context *CUgreenCtx;
typedef struct stream *CUstream;
typedef struct array *CUarray;
typedef struct mipmapped_array *CUmipmappedArray;
typedef struct pool *CUmemoryPool;
typedef struct graph *CUgraph;
typedef struct graph_node *CUgraphNode;
typedef struct graph_exec *CUgraphExec;

enum { CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5, CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7 };
enum { CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2 };
enum { CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 };
enum { CUDA_ARRAY3D_LAYERED = 0x01, CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80 };

typedef struct {
    size_t Width, Height;
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned NumChannels;
    unsigned Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

/* What comes first in CUgraphNodeParams. */
typedef struct {
    int type;
} CUgraphNodeParams;

/* Allocations. */
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemFreeHost(void *pointer);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
/* Since 11.6. */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUarray array, CUdevice device);
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUmipmappedArray array,
                                               CUdevice device);

/* Physical memory that is mapped by the program itself. cuMemRetainAllocationHandle: since 11.0. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const void *what, uint64_t flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, uint64_t flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);

/* Pools, since 11.2. `_ptsz`: of programs built with a default stream for each thread. */
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);

/* Memory of graphs, since 11.4; cuGraphAddNode since 12.2, its `_v2` since 12.3. */
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *what);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *what);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *what);
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);

/* Waiting releases freed pool memory to the system. cuCtxSynchronize_v2: since 13.0. */
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);

/* Contexts. The `_v2` of the primary context's: since 11.0. cuCtxCreate_v3: since 11.4, `_v4`: since 12.5. */
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);

/* Green contexts, since 12.4: a part of the processors, with the primary context's memory, which they retain. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);

/* Reports. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

/* How CUDA's runtime finds all of the above: since 11.3, and since 12.0. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

#endif
