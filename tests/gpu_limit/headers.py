# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own cuda.h of several releases: which functions the driver of each has."""

import re
from functools import cache

from images.arm64 import compiler
from tests.gpu_limit.archives import unpacked
from tools.process import run

# The names that a program gets: as a rule; those of old programs; those of a default stream for each thread.
VIEWS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
FUNCTION = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\(([^;{]*)\)\s*;")


@cache
def functions(release: str) -> dict[str, str]:
    """Return the exported functions of a CUDA release's driver with their parameters, as cuda.h has them."""
    (header,) = unpacked("runtime", release).rglob("cuda.h")
    found: dict[str, str] = {}
    for view in VIEWS:
        text = run([compiler.tool("gcc", "amd64"), "-E", "-P", *view, header]).stdout
        found |= {name: " ".join(parameters.split()) for name, parameters in FUNCTION.findall(text)}
    return found
