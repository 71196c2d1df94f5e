/* SPDX-License-Identifier: Apache-2.0 */
#include "contexts.h"

#include <stddef.h>

#include "account.h"
#include "driver.h"

static struct allocation context_of(CUcontext context, uint64_t bytes)
{
    uint64_t handle = (uint64_t)context;
    return (struct allocation){.kind = ALLOCATION_CONTEXT, .key = handle, .bytes = bytes, .owner = handle};
}

static struct allocation primary_of(CUdevice device, CUcontext context)
{
    struct allocation primary = {.kind = ALLOCATION_PRIMARY, .bytes = account_overhead(), .owner = (uint64_t)context};
    primary.key = (uint64_t)device;
    return primary;
}

static bool is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

bool contexts_reserve(void)
{
    return account_reserve(account_overhead());
}

void contexts_made(CUresult result, CUcontext context)
{
    uint64_t overhead = account_overhead();
    if (result == CUDA_SUCCESS)
        account_keep(overhead, context_of(context, overhead));
    else
        account_release(overhead);
}

/* Store the primary context of a device with its handle. False: it was not charged, and is too much. */
static bool keep_primary(CUdevice device, CUcontext context)
{
    account_keep(0, context_of(context, 0));
    return account_keep(0, primary_of(device, context));
}

/* Release the primary context of a device, and what it had. */
static void drop_primary(CUdevice device)
{
    struct allocation primary = account_take(ALLOCATION_PRIMARY, (uint64_t)device);
    account_release(primary.bytes);
    if (primary.owner)
        account_context_gone(primary.owner);
}

/* By the device, so that threads which retain it at the same time reserve it once. */
bool contexts_reserve_primary(CUdevice device)
{
    return account_add(primary_of(device, NULL));
}

void contexts_primary_made(CUresult result, CUdevice device, CUcontext context)
{
    if (result != CUDA_SUCCESS)
        contexts_primary_released(device);
    else if (context)
        keep_primary(device, context);
}

bool contexts_see_current(void)
{
    CUcontext current = NULL;
    CUdevice device;
    DRIVER(cuCtxGetCurrent)(&current);
    if (current == NULL || account_find(ALLOCATION_CONTEXT, (uint64_t)current).kind == ALLOCATION_CONTEXT)
        return true;
    /* All others are made by functions that are wrapped: this must be the primary one, unless that is known. */
    if (DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS && is_active(device)) {
        uint64_t primary = account_find(ALLOCATION_PRIMARY, (uint64_t)device).owner;
        if (primary == 0 || primary == (uint64_t)current)
            return keep_primary(device, current);
    }
    return account_keep(0, context_of(current, account_overhead()));
}

void contexts_green_made(CUgreenCtx green, CUdevice device)
{
    struct allocation entry = {.kind = ALLOCATION_GREEN, .key = (uint64_t)green};
    entry.owner = (uint64_t)device;
    account_keep(0, entry);
}

void contexts_green_current(CUcontext context)
{
    account_keep(0, context_of(context, 0));
}

void contexts_ended(CUcontext context)
{
    account_context_gone((uint64_t)context);
}

void contexts_primary_reset(CUdevice device)
{
    drop_primary(device);
}

void contexts_primary_released(CUdevice device)
{
    if (!is_active(device))
        drop_primary(device);
}

void contexts_green_ended(CUgreenCtx green)
{
    struct allocation entry = account_take(ALLOCATION_GREEN, (uint64_t)green);
    if (entry.kind == ALLOCATION_GREEN)
        contexts_primary_released((CUdevice)entry.owner);
}
