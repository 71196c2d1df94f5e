/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process has of the GPU's memory, and how much it may have. Safe for threads, and after a fork:
 * a child begins with nothing, as CUDA does.
 */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "live.h"

/* Tell whether memory is limited here at all. */
bool account_limited(void);

/* Give the limit in bytes, and what all who share it have together. */
uint64_t account_limit(void);
uint64_t account_used(void);

/* Set bytes aside before they are allocated; false: that would be too much, and nothing was set aside. */
bool account_reserve(uint64_t bytes);

/* Give back bytes that were set aside, or whose entry was taken. */
void account_release(uint64_t bytes);

/* Remember what was allocated. Its bytes take the place of those set aside. False: it is too much. */
bool account_keep(uint64_t reserved, struct live entry);

/* Forget an entry, whose bytes stay charged until they are released; all of it is 0 if there is none. */
struct live account_take(enum live_kind kind, uint64_t key);

/* Give a copy of an entry; all of it is 0 if there is none. */
struct live account_find(enum live_kind kind, uint64_t key);

/* Physical memory: one hold more, by a handle or a mapping. */
void account_hold(uint64_t handle);
void account_map(uint64_t address, uint64_t bytes, uint64_t handle);

/* One hold less, and all that are mapped in a range. As account_take if it was the last. */
struct live account_drop(uint64_t handle);
void account_unmap(uint64_t address, uint64_t bytes);

/* Set the bytes of each pool and of graphs to what `ask` says. False: it is too much. */
bool account_ask(uint64_t (*ask)(const struct live *entry));

/* Give back all that a destroyed context had. */
void account_context_gone(uint64_t context);

/* Give back everything. */
void account_forget(void);

#endif
