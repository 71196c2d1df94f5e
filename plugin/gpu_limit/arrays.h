/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of an array, before it is made.
 */
#ifndef ARRAYS_H
#define ARRAYS_H

#include <stdint.h>

#include "driver_api.h"

/* Give the bytes of an array; 0 if it gets its memory later. UINT64_MAX: more than there can be. */
uint64_t arrays_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what);

/* The same for an array of `levels`, each half as wide, high and deep as the one before. */
uint64_t arrays_mipmapped_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels);

#endif
