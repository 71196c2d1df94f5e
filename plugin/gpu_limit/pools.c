/* SPDX-License-Identifier: Apache-2.0 */
#include "pools.h"

#include "account.h"
#include "driver.h"

/* Whether there is a pool or graph. Never reset: most programs have none. */
static bool any;

static uint64_t attribute(CUmemoryPool pool, int number)
{
    uint64_t bytes = 0;
    return DRIVER(cuMemPoolGetAttribute)(pool, number, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

static uint64_t query(const struct allocation *entry)
{
    uint64_t bytes = 0;
    if (entry->kind == ALLOCATION_POOL)
        return attribute((CUmemoryPool)entry->key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    if (DRIVER(cuDeviceGetGraphMemAttribute)((CUdevice)entry->key, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes))
        return 0;
    return bytes;
}

static void follow(struct allocation entry)
{
    if (account_find(entry.kind, entry.key).kind == ALLOCATION_NOTHING)
        account_keep(0, entry);
    __atomic_store_n(&any, true, __ATOMIC_RELAXED);
}

void pools_settle(void)
{
    if (__atomic_load_n(&any, __ATOMIC_RELAXED))
        account_query(query);
}

static uint64_t trim_and_query(const struct allocation *entry)
{
    if (entry->kind == ALLOCATION_POOL)
        DRIVER(cuMemPoolTrimTo)((CUmemoryPool)entry->key, 0);
    return query(entry);
}

bool pools_reserve(uint64_t bytes)
{
    if (account_reserve(bytes))
        return true;
    if (!__atomic_load_n(&any, __ATOMIC_RELAXED))
        return false;
    account_query(trim_and_query);
    return account_reserve(bytes);
}

CUresult pools_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream,
                        CUresult (*allocate)(CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                        CUresult (*free)(CUdeviceptr, CUstream))
{
    CUmemoryPool used = pool;
    CUdevice device;
    if (used == NULL && (DRIVER(cuCtxGetDevice)(&device) || DRIVER(cuDeviceGetMemPool)(&used, device)))
        return allocate(pointer, bytes, pool, stream); /* reports the error */
    follow((struct allocation){.kind = ALLOCATION_POOL, .key = (uint64_t)used});
    account_query(query);
    uint64_t reserved = bytes;
    if (!pools_reserve(bytes)) {
        /* What the pool has and does not use is charged already. */
        uint64_t has = attribute(used, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        if (has - attribute(used, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) < bytes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        reserved = 0;
    }
    CUresult result = allocate(pointer, bytes, pool, stream);
    if (reserved)
        account_release(reserved);
    if (account_query(query) || result != CUDA_SUCCESS)
        return result;
    /* The pool took more than requested. */
    free(*pointer, stream);
    account_query(trim_and_query);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void pools_graphs_have_memory(void)
{
    CUdevice device;
    if (DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
        follow((struct allocation){.kind = ALLOCATION_GRAPHS, .key = (uint64_t)device});
}

void pools_forget(CUmemoryPool pool)
{
    struct allocation gone = account_take(ALLOCATION_POOL, (uint64_t)pool);
    account_release(gone.bytes);
}
