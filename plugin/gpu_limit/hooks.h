/* SPDX-License-Identifier: Apache-2.0
 *
 * The wrappers, which are exported under the driver's own names: programs that are linked to the driver find
 * them first, and all others get them from dlsym and cuGetProcAddress (entry.c).
 */
#ifndef HOOKS_H
#define HOOKS_H

#include "driver.h"

/* The wrapper in place of a driver's function. */
void *hooks_wrapper(enum function hook);

#endif
