# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own cuda.h of several releases: which functions the driver of each has, and a driver of those."""

import re
from functools import cache
from pathlib import Path

from images.arm64 import compiler
from tests.gpu_limit.archives import unpacked
from tools.process import run

# The names that a program gets: as a rule; those of old programs; those of a default stream for each thread.
VIEWS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
FUNCTION = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\(([^;{]*)\)\s*;")

# A driver that has every function, finds each by name as NVIDIA's does, and can do nothing else.
STUB = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
enum {{ INVALID_VALUE = 1, NOT_INITIALIZED = 3, NOT_FOUND = 500 }};
{functions}
static int find(const char *name, void **found, uint64_t flags)
{{
    static const char *const versions[] = {{"_v3", "_v2", ""}}, *const streams[] = {{"_ptsz", "_ptds", ""}};
    Dl_info self;
    char full[256];
    if (!name || !found || !dladdr((void *)find, &self))
        return INVALID_VALUE;
    void *driver = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int stream = flags == 2 ? 0 : 2; stream < 3; stream++)
        for (int version = 0; version < 3; version++) {{
            snprintf(full, sizeof full, "%s%s%s", name, versions[version], streams[stream]);
            if ((*found = dlsym(driver, full)))
                return 0;
        }}
    return NOT_FOUND;
}}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{{
    return find(name, found, flags);
}}
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{{
    return find(name, found, flags);
}}
"""


@cache
def functions(release: str) -> dict[str, str]:
    """Return the exported functions of a CUDA release's driver with their parameters, as cuda.h has them."""
    (header,) = unpacked("runtime", release).rglob("cuda.h")
    found: dict[str, str] = {}
    for view in VIEWS:
        text = run([compiler.tool("gcc", "amd64"), "-E", "-P", *view, header]).stdout
        found |= {name: " ".join(parameters.split()) for name, parameters in FUNCTION.findall(text)}
    return found


def stub(release: str, directory: Path) -> Path:
    """Make a SIMULATED libcuda.so.1 with every function of a release, none of which does anything."""
    names = sorted(functions(release).keys() - {"cuGetProcAddress", "cuGetProcAddress_v2"})
    source, library = directory / "stub.c", directory / "libcuda.so.1"
    bodies = "\n".join(f"int {name}(void) {{ return NOT_INITIALIZED; }}" for name in names)
    source.write_text(STUB.format(functions=bodies))
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-ldl")
    run([compiler.tool("gcc", "amd64"), "-w", "-o", library, source, *shared])
    return library
