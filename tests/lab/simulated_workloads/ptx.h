/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU in software: reads the PTX of one kernel and does what its instructions say. It knows the instructions of
 * plugin/tegra_device_plugin/cuda/step.ptx; what it does not know it refuses. Their meaning: NVIDIA's "PTX ISA".
 */
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>

typedef struct ptx_kernel *CUmodule, *CUfunction;

/* Return the kernel of a module with one; NULL where something in it is not understood. */
CUmodule ptx_parse(const char *text);

const char *ptx_name(CUmodule kernel);

/* Run all threads. `at` finds so many bytes of the device's memory. Return 0, -1 where that finds none. */
int ptx_run(CUfunction kernel, unsigned blocks, unsigned threads, void **parameters,
            void *(*at)(uint64_t address, size_t bytes));

#endif
