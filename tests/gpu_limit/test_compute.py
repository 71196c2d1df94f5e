# SPDX-License-Identifier: Apache-2.0
"""`tegra-device-plugin compute`: a CUDA kernel that a pod runs, and what comes out of it.

The SIMULATED driver does what the kernel's PTX says; NVIDIA's real assembler makes code of it for each GPU.
"""

import json
import re
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from tegra_device_plugin.cuda import kernel

from tests.gpu_limit.archives import unpacked
from tests.gpu_limit.rig import Rig
from tools.cache import CHECKOUT
from tools.process import run

PACKAGE = CHECKOUT / "plugin/tegra_device_plugin"
PTX = PACKAGE / "cuda/step.ptx"
CHIPS = json.loads((PACKAGE / "board/catalogue.json").read_text())["chips"].values()
# What the oldest assembler knows, and the rest.
ASSEMBLERS = {"5.3": "11.8", "6.2": "11.8", "7.2": "11.8", "8.7": "11.8", "11.0": "13.5"}
COMMAND = (sys.executable, "-m", "tegra_device_plugin", "compute")


def compute(rig: Rig, package: Path = PACKAGE) -> tuple[int, str, str]:
    environment = {**rig.environment, "PYTHONPATH": str(package.parent)}
    ran = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def test_numbers_come_back_right(each: Rig) -> None:
    status, said, error = compute(each)
    assert (status, error) == (0, "SIMULATED libcuda: no GPU computes, the CPU does\n")
    assert re.search(
        r"^computed 65536 numbers on SIMULATED GPU in [\d.]+ ms, all are right$", said, re.MULTILINE
    )


# A fault of the kernel, and words of the complaint.
FAULTS = [
    ("1664525", "1664526", "65536 of 65536 numbers came back wrong from the GPU"),
    ("setp.ge.u32 %done, %index, %count", "setp.ge.u32 %done, %index, 65535", "1 of 65536 numbers came back"),
    (".visible .entry step(", ".visible .entry leap(", "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)"),
    ("mad.lo.u32 %index", "mad.low.u32 %index", "cuModuleLoadData: CUDA_ERROR_INVALID_PTX (218)"),
    (
        "mul.wide.u32 %offset, %index, 4",
        "mul.wide.u32 %offset, %index, 8",
        "CUDA_ERROR_ILLEGAL_ADDRESS (700)",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "words"), FAULTS)
def test_a_fault_is_noticed(right: str, wrong: str, words: str, rig: Rig, tmp_path: Path) -> None:
    text = PTX.read_text()
    assert text.count(right) == 1
    package = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / PTX.relative_to(PACKAGE)).write_text(text.replace(right, wrong))
    status, said, error = compute(rig, package)
    assert (status, "computed" in said) == (1, False)
    assert words in error


def test_numbers_are_those_of_the_generator() -> None:
    def rounds(number: int) -> int:
        for _ in range(kernel.ROUNDS):
            number = (number * kernel.FACTOR + kernel.SUMMAND) % kernel.MODULUS
        return number

    numbers = array("I", [0, 1, 12345, 2**32 - 1])
    assert kernel.expected(numbers) == array("I", map(rounds, numbers))


@pytest.mark.parametrize("capability", sorted({chip["compute_capability"] for chip in CHIPS}))
def test_nvidias_assembler_makes_code_of_it_for_every_gpu(capability: str, tmp_path: Path) -> None:
    (assembler,) = unpacked("assembler", ASSEMBLERS[capability]).rglob("ptxas")
    assembler.chmod(0o755)
    code = tmp_path / "code.cubin"
    run([assembler, f"--gpu-name=sm_{capability.replace('.', '')}", f"--output-file={code}", PTX])
    assert code.read_bytes().startswith(b"\x7fELF")


def test_a_share_that_is_too_small_for_it_is_told(rig: Rig) -> None:
    status, _, error = compute(rig.but(device_mib=0))
    assert status == 1
    assert "cuMemAlloc_v2: " in error
