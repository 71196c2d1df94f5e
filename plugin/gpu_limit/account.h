/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU memory of this process, and its limit. Safe for threads, and after a fork: a child starts without
 * memory, as in CUDA.
 */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "allocation.h"

/* True if memory is limited. */
bool account_limited(void);

/* Give the limit in bytes, the use of all processes that share it, and what a CUDA context costs. */
uint64_t account_limit(void);
uint64_t account_used(void);
uint64_t account_overhead(void);

/* Reserve bytes before they are allocated; false: it would be too much, and nothing was reserved. */
bool account_reserve(uint64_t bytes);

/* Release bytes that were reserved, or whose entry was taken. */
void account_release(uint64_t bytes);

/* Store an allocation. Its bytes replace the reserved bytes. False: it is too much. */
bool account_keep(uint64_t reserved, struct allocation entry);

/* Reserve the bytes of an entry and store it, unless it is there. False: they are too much; it is not there. */
bool account_add(struct allocation entry);

/* Remove an entry, whose bytes stay charged until their release; all fields are 0 without an entry. */
struct allocation account_take(enum allocation_kind kind, uint64_t key);

/* Give a copy of an entry; all fields are 0 without an entry. */
struct allocation account_find(enum allocation_kind kind, uint64_t key);

/* Physical memory: add a reference, by a handle or a mapping. */
void account_hold(uint64_t handle);
void account_map(uint64_t address, uint64_t bytes, uint64_t handle);

/* Remove a reference, and all mappings in a range. As account_take for the last reference. */
struct allocation account_drop(uint64_t handle);
void account_unmap(uint64_t address, uint64_t bytes);

/* Set the bytes of each pool and of graphs by `query`. False: it is too much. */
bool account_query(uint64_t (*query)(const struct allocation *entry));

/* Release the memory of a destroyed context. */
void account_context_gone(uint64_t context);

/* Release everything. */
void account_forget(void);

#endif
