# SPDX-License-Identifier: Apache-2.0
"""`tegra-device-plugin device-query`: the text of NVIDIA's sample, from the driver alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_device_query

from tests.gpu_limit.rig import Rig

COMMAND = (sys.executable, "-m", "tegra_device_plugin", "device-query")
reader = gpu_verify_device_query


def device_query(rig: Rig) -> "subprocess.CompletedProcess[str]":
    """Run the command as a pod does."""
    return subprocess.run(COMMAND, env=rig.environment, capture_output=True, text=True, check=False)


def test_verification_reads_it_as_it_reads_nvidias_sample(each: Rig) -> None:
    ran = device_query(each)
    assert (ran.returncode, ran.stderr) == (0, "")
    output = reader.parse(ran.stdout)
    assert output.pop("memory_bytes") > 0
    assert output == {
        "result": "PASS",
        "detected": 1,
        "device": "SIMULATED GPU",
        "compute_capability": "8.7",
        "multiprocessors": 16,
        "cores_per_multiprocessor": 128,
        "integrated": True,
        "simulated": True,
    }


@pytest.mark.parametrize(
    "line",
    [
        "  CUDA Driver Version:                           12.6",
        "  (016) Multiprocessors, (128) CUDA Cores/MP:    2048 CUDA Cores",
    ],
)
def test_lines_are_those_of_the_sample(rig: Rig, line: str) -> None:
    assert line in device_query(rig).stdout.splitlines()


def test_no_gpu_is_a_failure_with_cudas_reason(rig: Rig, tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes((rig.driver / driver.name).read_bytes() + b"\nopen=/dev/of-no-board\n")
    ran = device_query(rig.but(driver=tmp_path))
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (1, "Result = FAIL")
    assert "cuInit: CUDA_ERROR_NO_DEVICE (100)" in ran.stderr
