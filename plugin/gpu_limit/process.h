/* SPDX-License-Identifier: Apache-2.0
 *
 * Which process this is. A process id is no answer: in a new namespace, a child may have the id of its parent.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdint.h>

/* Give a number above 0 that no process has had of which this one is a forked copy. Safe for threads. */
uint32_t process_number(void);

#endif
