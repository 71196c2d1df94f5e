/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA contexts, each of which costs the ledger's overhead from the moment it is made.
 *
 * CUDA's runtime makes the primary context by a private function of the driver. Such a context is seen when it is
 * made current or used, and is charged then.
 */
#ifndef CONTEXTS_H
#define CONTEXTS_H

#include <stdbool.h>

#include "driver_api.h"

/* Reserve the memory of a new context; then store it, or release it if the driver's `result` is an error. */
bool contexts_reserve(void);
void contexts_made(CUresult result, CUcontext context);

/* The same for the primary context of a device, if it is not charged already. `context` NULL: it is not known. */
bool contexts_reserve_primary(CUdevice device);
void contexts_primary_made(CUresult result, CUdevice device, CUcontext context);

/* Charge the current context if it was not charged. False: it is too much. */
bool contexts_see_current(void);

/* A green context uses its primary context's memory. */
void contexts_green_made(CUgreenCtx green, CUdevice device);
void contexts_green_current(CUcontext context);

/* A context has ended, with all that it had. */
void contexts_ended(CUcontext context);
void contexts_primary_reset(CUdevice device);
void contexts_primary_released(CUdevice device);
void contexts_green_ended(CUgreenCtx green);

#endif
