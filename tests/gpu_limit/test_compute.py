# SPDX-License-Identifier: Apache-2.0
"""`tegra-device-plugin compute`: a CUDA kernel that a pod runs, and what comes out of it.

What its PTX says is done here, and NVIDIA's real assembler makes code of it for each GPU.
The SIMULATED driver knows by itself what the kernel does.
"""

import json
import operator
import re
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from tegra_device_plugin.cuda import program

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
    status, output, error = compute(each)
    assert (status, error) == (0, "SIMULATED libcuda: no GPU computes, the CPU does\n")
    assert re.search(
        r"^computed 65536 numbers on SIMULATED GPU in [\d.]+ ms, all are right$", output, re.MULTILINE
    )


# What is wrong in which file, and words of the complaint.
FAULTS = [
    ("program.py", "1664525", "1664526", "65536 of 65536 numbers came back wrong from the GPU"),
    ("program.py", "c_uint32(COUNT)", "c_uint32(COUNT - 1)", "1 of 65536 numbers came back wrong"),
    ("program.py", "c_uint32(COUNT)", "c_uint32(COUNT + 1)", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
    ("step.ptx", " step(", " leap(", "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)"),
    ("step.ptx", ".entry", ".enter", "cuModuleLoadData: CUDA_ERROR_INVALID_PTX (218)"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: tuple[str, ...], rig: Rig, tmp_path: Path) -> None:
    file, right, wrong, words = fault
    package = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = package / "cuda" / file
    text = source.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    status, output, error = compute(rig, package)
    assert (status, "computed" in output) == (1, False)
    assert words in error


# By NVIDIA's "PTX ISA".
INSTRUCTIONS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("ld.param.u32", "ld.param.u64", "mov.u32", "cvta.to.global.u64"), int),
    "add.u64": operator.add,
    "sub.u32": lambda a, b: (a - b) % 2**32,
    "mul.wide.u32": operator.mul,
    "mad.lo.u32": lambda a, b, c: (a * b + c) % 2**32,
    "setp.ge.u32": operator.ge,
    "setp.eq.u32": operator.eq,
}


def run_thread(names: dict[str, int], memory: dict[int, int]) -> None:
    """Do what the PTX says to the memory, by address; `names` are those of parameters and registers."""
    lines = [line.strip() for line in PTX.read_text().partition("{")[2].splitlines()]
    at = 0
    while lines[at] != "ret;":
        words = re.findall(r"[^][,; ]+", lines[at])
        at += 1
        if words and words[0].startswith("@") and not names[words.pop(0).removeprefix("@")]:
            continue
        match words:
            case [] | [_] | [".reg", *_]:
                pass
            case ["bra", label]:
                at = lines.index(f"{label}:")
            case ["ld.global.u32", register, place]:
                names[register] = memory[names[place]]
            case ["st.global.u32", place, register]:
                memory[names[place]] = names[register]
            case [name, register, *given]:
                values = (int(one) if one.isdigit() else names[one] for one in given)
                names[register] = INSTRUCTIONS[name](*values)


def test_the_kernel_computes_the_same_numbers_as_the_cpu() -> None:
    numbers, start = array("I", [0, 1, 12345, 2**32 - 1]), 2**33
    memory = {start + 4 * place: number for place, number in enumerate(numbers)}
    # More threads than numbers.
    for thread in range(6):
        given = {"numbers": start, "count": len(numbers), "rounds": program.ROUNDS}
        own = {"%ctaid.x": thread // 3, "%ntid.x": 3, "%tid.x": thread % 3}
        run_thread({**given, **own}, memory)
    assert list(memory.values()) == list(program.expected(numbers))


@pytest.mark.parametrize("capability", sorted({chip["compute_capability"] for chip in CHIPS}))
def test_nvidias_assembler_makes_code_of_it_for_every_gpu(capability: str, tmp_path: Path) -> None:
    (assembler,) = unpacked("assembler", ASSEMBLERS[capability]).rglob("ptxas")
    assembler.chmod(0o755)
    code = tmp_path / "code.cubin"
    run([assembler, f"--gpu-name=sm_{capability.replace('.', '')}", f"--output-file={code}", PTX])
    assert code.read_bytes().startswith(b"\x7fELF")


def test_a_share_that_is_too_small_is_reported(rig: Rig) -> None:
    status, _, error = compute(rig.but(device_mib=0))
    assert status == 1
    assert "cuMemAlloc_v2: " in error
