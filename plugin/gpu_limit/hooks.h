/* SPDX-License-Identifier: Apache-2.0
 *
 * The wrappers, which are exported under the driver's own names: programs that are linked to the driver find
 * them first, and all others get them from dlsym and cuGetProcAddress (entry.c).
 */
#ifndef HOOKS_H
#define HOOKS_H

#include "driver.h"

/* The function that is exported. It calls an interposer that was preloaded after this library, if there is one. */
void *hooks_export(enum function hook);

/* The function in place of the driver's: it calls no interposer. The export, where there is none. */
void *hooks_wrapper(enum function hook);

#endif
