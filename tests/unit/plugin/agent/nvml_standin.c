/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libnvidia-ml.so.1 on a Thor, with the two lists of processes that the agent reads. Compute: pids 100, 101, ...
 * as many as STANDIN_PROCESSES says, of 1 MiB each, but that of pid 101 is not available. Graphics: pid 100 with 2 MiB. */
#include <stdlib.h>

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process;

enum { SUCCESS = 0, INVALID = 2, INSUFFICIENT_SIZE = 7 };

static int device;

int nvmlInit_v2(void) { return getenv("STANDIN_FAILS") ? 9 : SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = &device;
    return index ? INVALID : SUCCESS;
}

static int fill(void *handle, unsigned *count, process *list, unsigned have, unsigned long long mib)
{
    unsigned room = *count;

    if (handle != &device)
        return INVALID;
    *count = have;
    if (room < have)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++)
        list[i] = (process){100 + i, i == 1 ? ~0ULL : mib << 20, ~0U, ~0U};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process *list)
{
    const char *have = getenv("STANDIN_PROCESSES");
    return fill(handle, count, list, have ? (unsigned)atoi(have) : 0, 1);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process *list)
{
    return fill(handle, count, list, 1, 2);
}
