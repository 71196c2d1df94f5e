# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's real libcuda, as Debian has it: what it answers, with the library preloaded and without.

No GPU is needed for that: cuInit fails, but functions are found before it. Nothing is allocated here.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from images.arm64 import gpu_limit
from tests.gpu_limit.abi import hooks
from tests.gpu_limit.archives import known, unpacked
from tests.lab import compiler
from tools.process import run

# When a function got another variant, as cuda.h writes versions.
VERSIONS = (
    *(2000, 3020, 4000, 6050, 9000, 10020),
    *(11000, 11020, 11030, 11040, 12000, 12020, 12030, 12040, 13000),
)
# 0: legacy by default; 1: legacy; 2: a default stream for each thread.
FLAGS = (0, 1, 2)

ASK = """
import ctypes, json, sys
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p

class Info(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("at", c_void_p)]

def whose(address):
    info = Info()
    if not address: return None
    assert ctypes.CDLL(None).dladdr(c_void_p(address), byref(info)) and info.at == address, "not an export"
    return [info.name.decode(), info.file.decode().rpartition("/")[2].partition(".")[0]]

driver = ctypes.CDLL(sys.argv[1])
given = json.load(sys.stdin)
answer = {"init": driver.cuInit(0), "dlsym": {}, "found": {}}
for name in given["exports"]:
    answer["dlsym"][name] = whose(ctypes.cast(getattr(driver, name), c_void_p).value)
ask = getattr(driver, "cuGetProcAddress_v2", None) or getattr(driver, "cuGetProcAddress", None)
for name in given["bases"] if ask else ():
    for version in given["versions"]:
        for flags in given["flags"]:
            found = c_void_p()
            result = ask(name.encode(), byref(found), version, c_uint64(flags), byref(c_int()))
            answer["found"][f"{name} {version} {flags}"] = [result, whose(found.value)]
answer["alloc"] = driver.cuMemAlloc_v2(byref(c_uint64()), ctypes.c_size_t(1 << 20))
json.dump(answer, sys.stdout)
"""


def answers(libcuda: Path, exports: list[str], **environment: str) -> Any:
    bases = sorted({re.sub(r"(_v\d)?(_pt[ds][sz])?$", "", name) for name in exports})
    given = {"exports": exports, "bases": bases, "versions": VERSIONS, "flags": FLAGS}
    ran = subprocess.run(
        [sys.executable, "-c", ASK, libcuda],
        input=json.dumps(given), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return json.loads(ran.stdout)


@pytest.mark.parametrize("release", known("driver"))
def test_only_the_wrapped_functions_are_others(release: str) -> None:
    (libcuda,) = unpacked("driver", release).rglob("libcuda.so.*.*.*")
    listed = run([compiler.tool("readelf", "amd64"), "--wide", "--dyn-syms", libcuda]).stdout
    exports = re.findall(r" (?!UND)\w+ (cu[A-Z]\w+)$", listed, re.MULTILINE)
    assert len(exports) > 400
    before = answers(libcuda, exports)
    after = answers(libcuda, exports, LD_PRELOAD=str(gpu_limit.build("amd64")), NVIDIA_GPU_MEMORY_LIMIT="100")

    def expected(found: list[str] | None) -> list[str] | None:
        return [found[0], "libtegra-gpu-limit"] if found and found[0] in hooks() else found

    assert after["dlsym"] == {name: expected(found) for name, found in before["dlsym"].items()}
    wrapped = {found[0] for found in after["dlsym"].values() if found[1] == "libtegra-gpu-limit"}
    assert wrapped == hooks() & set(exports)
    assert after["found"] == {
        question: [result, expected(found)] for question, (result, found) in before["found"].items()
    }
    # Without a GPU, the library writes nothing.
    assert (after["init"], after["alloc"]) == (before["init"], before["alloc"])


RUNTIME = """
import ctypes, json, sys
runtime = ctypes.CDLL(sys.argv[1])
count, free, total, pointer = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
print(json.dumps([
    runtime.cudaGetDeviceCount(ctypes.byref(count)),
    runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
    runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)),
    runtime.cudaDeviceReset(),
]))
"""
NO_DEVICE = 100


@pytest.mark.parametrize("release", ["11.7", "12.6"])
def test_nvidias_runtime_finds_its_driver_under_a_limit(release: str) -> None:
    (driver,) = unpacked("driver", known("driver")[-1]).rglob("libcuda.so.1")
    (runtime,) = unpacked("runtime", release).rglob("libcudart.so.*")
    limit = {"LD_PRELOAD": str(gpu_limit.build("amd64")), "NVIDIA_GPU_MEMORY_LIMIT": "100"}
    for variables in ({}, limit):
        environment = {"LD_LIBRARY_PATH": str(driver.parent), **variables}
        ran = run([sys.executable, "-c", RUNTIME, runtime], env=environment)
        assert ran.stderr == ""
        # Which the driver says.
        assert json.loads(ran.stdout)[:2] == [NO_DEVICE, NO_DEVICE]
