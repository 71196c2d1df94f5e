# SPDX-License-Identifier: Apache-2.0
"""Every function that gives memory or a context is wrapped, or there is a reason; by NVIDIA's own cuda.h."""

import re
from functools import cache

import pytest

from tests.gpu_limit.abi import hooks
from tests.gpu_limit.archives import known, unpacked
from tests.lab import compiler
from tools.process import run

# The names that a program gets: as a rule; those of old programs; those of a default stream for each thread.
VIEWS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
FUNCTION = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\(([^;{]*)\)\s*;")

# What memory and contexts are handed out as, and how a function is called that makes some.
HANDED_OUT = re.compile(
    r"(?<!const )(CUdeviceptr(_v\d)?|CUarray|CUmipmappedArray|CUmemGenericAllocationHandle|CUmemoryPool|"
    r"CUcontext|CUgreenCtx) ?\*|void \*\*pp\b"
)
VARIANT = re.compile(r"(_v\d)?(_pt[ds][sz])?$")

LEFT_OUT = {
    "of CUDA before 3.2, which no arm64 had: no compiled program on a Jetson calls it": {
        "cuArray3DCreate", "cuArrayCreate", "cuCtxCreate", "cuMemAlloc", "cuMemAllocHost", "cuMemAllocPitch",
    },
    "a context that is there": {
        "cuCtxAttach", "cuCtxGetCurrent", "cuCtxPopCurrent", "cuStreamGetCtx", "cuStreamGetGreenCtx",
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


@cache
def functions(release: str) -> dict[str, str]:
    """Return the exported functions of a CUDA release's driver with their parameters, as cuda.h has them."""
    (header,) = unpacked("runtime", release).rglob("cuda.h")
    found: dict[str, str] = {}
    for view in VIEWS:
        text = run([compiler.tool("gcc", "amd64"), "-E", "-P", *view, header]).stdout
        found |= {name: " ".join(parameters.split()) for name, parameters in FUNCTION.findall(text)}
    return found


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
    return {VARIANT.sub("", name) for name in found - hooks()}


@pytest.mark.parametrize("release", known("runtime"))
def test_an_allocating_function_is_wrapped_unless_there_is_a_reason(release: str) -> None:
    assert giving(release) - REASONED == set()


def test_nothing_else_has_a_reason_and_nothing_is_wrapped_that_nvidia_does_not_have() -> None:
    assert set().union(*map(giving, known("runtime"))) == REASONED
    assert functions(known("runtime")[-1]).keys() >= hooks()
