# SPDX-License-Identifier: Apache-2.0
"""deviceQuery's output as every L4T line prints it."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import Load

OUTPUTS = Path(__file__).parent / "device_query"
MIB = 1 << 20


@pytest.fixture
def query(load: Load) -> ModuleType:
    return load("gpu_verify/module_utils/gpu_verify_device_query.py")


def text(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text()


# File: device, compute capability, multiprocessors, cores of each, bytes.
PASSED: dict[str, tuple[Any, ...]] = {
    "l4t32-nano": ("NVIDIA Tegra X1", "5.3", 1, 128, 4148391936),
    "l4t32-nano-driver-api": ("NVIDIA Tegra X1", "5.3", 1, 128, 4148391936),
    "l4t35-xavier-nx": ("Xavier", "7.2", 6, 64, 7764 * MIB),
    "l4t36-orin-nano": ("Orin", "8.7", 8, 128, 7618 * MIB),
    "l4t36-orin-nano-4sm": ("Orin", "8.7", 4, 128, 7618 * MIB),
    "l4t38-thor": ("NVIDIA Thor", "11.0", 20, 128, 125517 * MIB),
}


@pytest.mark.parametrize("name", PASSED)
def test_output_of_each_l4t_line_is_read(query: ModuleType, name: str) -> None:
    found = query.parse(text(name))
    keys = ("device", "compute_capability", "multiprocessors", "cores_per_multiprocessor", "memory_bytes")
    assert tuple(found[key] for key in keys) == PASSED[name]
    assert (found["result"], found["detected"], found["integrated"]) == ("PASS", 1, True)
    assert found["simulated"] is False


def test_there_is_no_other_output() -> None:
    failed = {"no-device", "driver-too-old", "driver-api-no-device"}
    assert {path.stem for path in OUTPUTS.glob("*.txt")} == PASSED.keys() | failed


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no-device", "CUDA error 100: no CUDA-capable device is detected"),
        ("driver-too-old", "CUDA error 35: CUDA driver version is insufficient for CUDA runtime version"),
        ("driver-api-no-device", "CUDA error 100: no CUDA-capable device is detected"),
    ],
)
def test_failure_is_told_in_cudas_words(query: ModuleType, name: str, complaint: str) -> None:
    assert query.parse(text(name))["result"] != "PASS"
    assert query.complaint(text(name)) == complaint


def test_other_output_has_its_end_quoted(query: ModuleType) -> None:
    assert query.parse("sh: deviceQuery: not found\n")["result"] is None
    assert (
        query.complaint("sh: deviceQuery: not found\n") == "its output ends with 'sh: deviceQuery: not found'"
    )


def test_simulated_output_is_marked(query: ModuleType) -> None:
    assert query.parse("SIMULATED deviceQuery\n" + text("l4t38-thor"))["simulated"] is True
