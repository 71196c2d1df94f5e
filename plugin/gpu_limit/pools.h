/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the driver takes from the system in advance: pools, and the memory of graphs. The driver's
 * memory counts, not the program's requests.
 */
#ifndef POOLS_H
#define POOLS_H

#include <stdbool.h>

#include "driver_api.h"

/* As account_reserve; if necessary, after the pools have released unused memory, as the driver does. */
bool pools_reserve(uint64_t bytes);

/* An allocation from `pool`, by the driver's function. `pool` NULL: the current device's current one. */
CUresult pools_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream,
                        CUresult (*allocate)(CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                        CUresult (*free)(CUdeviceptr, CUstream));

/* A graph of this process has memory of its own: the current device's graphs are queried from now on. */
void pools_graphs_have_memory(void);

/* Charge the present memory of pools and graphs. Costs nothing while there are none. */
void pools_settle(void);

/* A pool is gone. */
void pools_forget(CUmemoryPool pool);

#endif
