# SPDX-License-Identifier: Apache-2.0
"""Every function that gives a program memory is wrapped, or there is a reason; by NVIDIA's own cuda.h."""

import re

import pytest

from images.arm64 import gpu_limit
from tests.gpu_limit.archives import known
from tests.gpu_limit.headers import functions

# What memory is handed out as, and how a function is called that makes some.
HANDED_OUT = re.compile(
    r"(?<!const )(CUdeviceptr(_v\d)?|CUarray|CUmipmappedArray|CUmemGenericAllocationHandle|CUmemoryPool) ?\*|"
    r"void \*\*pp\b"
)
VARIANT = re.compile(r"(_v\d)?(_pt[ds][sz])?$")

LEFT_OUT = {
    "of CUDA before 3.2, which no arm64 had: no compiled program on a Jetson calls it": {
        "cuArray3DCreate", "cuArrayCreate", "cuMemAlloc", "cuMemAllocHost", "cuMemAllocPitch",
    },
    "charged to who made it: this is another way to it": {
        "cuArrayGetPlane", "cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray",
        "cuGraphicsResourceGetMappedMipmappedArray", "cuGraphicsResourceGetMappedPointer",
        "cuGraphicsSubResourceGetMappedArray", "cuIpcOpenMemHandle", "cuMemGetAddressRange",
        "cuMemHostGetDevicePointer", "cuMemImportFromShareableHandle", "cuMemPoolImportFromShareableHandle",
        "cuMemPoolImportPointer", "cuMipmappedArrayGetLevel", "cuSurfRefGetArray", "cuTexRefGetAddress",
        "cuTexRefGetArray", "cuTexRefGetMipmappedArray",
    },
    "of a module's code, which contextOverhead stands for": {
        "cuLibraryGetGlobal", "cuLibraryGetManaged", "cuModuleGetGlobal",
    },
    "a pool is empty until something is allocated from it": {
        "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuMemGetDefaultMemPool", "cuMemGetMemPool",
        "cuMemPoolCreate",
    },
    "addresses or a view, and no memory": {"cuMemAddressReserve", "cuMulticastCreate"},
    "takes or describes memory that is there": {
        "cuGraphMemAllocNodeGetParams", "cuGraphMemFreeNodeGetParams", "cuMemDiscardAndPrefetchBatchAsync",
        "cuMemDiscardBatchAsync", "cuMemGetAllocationGranularity",
        "cuMemGetAllocationPropertiesFromHandle", "cuMemPrefetchBatchAsync", "cuMemcpyBatchAsync",
    },
}  # fmt: skip
REASONED = frozenset().union(*LEFT_OUT.values())


def giving(release: str) -> set[str]:
    """Return the functions that give memory and are not wrapped, as programs call them."""
    declared = functions(release)
    found = {name for name, takes in declared.items() if HANDED_OUT.search(takes) or "Alloc" in name}
    assert found > {
        "cuMemAlloc_v2",
        "cuMemAllocAsync_ptsz",
        "cuMemCreate",
        "cuMemHostAlloc",
        "cuArrayCreate_v2",
    }
    return {VARIANT.sub("", name) for name in found - gpu_limit.hooks()}


@pytest.mark.parametrize("release", known("runtime"))
def test_a_function_that_gives_memory_is_wrapped_unless_there_is_a_reason(release: str) -> None:
    assert giving(release) - REASONED == set()


def test_nothing_else_has_a_reason_and_nothing_is_wrapped_that_nvidia_does_not_have() -> None:
    assert set().union(*map(giving, known("runtime"))) == REASONED
    assert functions(known("runtime")[-1]).keys() >= gpu_limit.hooks()
