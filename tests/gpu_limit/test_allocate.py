# SPDX-License-Identifier: Apache-2.0
"""`tegra-device-plugin allocate`: what a pod uses to show how far its share of the GPU's memory goes."""

import signal
import subprocess
import sys

import pytest
from tegra_device_plugin import cli

from tests.gpu_limit.rig import Rig

COMMAND = (sys.executable, "-m", "tegra_device_plugin", "allocate")


def allocate(rig: Rig, *arguments: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        [*COMMAND, *arguments], env=rig.environment, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_within_the_share(each: Rig) -> None:
    assert allocate(each, "90") == (
        0, "allocated 90 of 90 MiB; CUDA says that 10 of 100 MiB are free\n", ""
    )  # fmt: skip


def test_past_the_share(each: Rig) -> None:
    status, output, _ = allocate(each, "200")
    assert status == 1
    assert output == (
        "allocated 96 of 200 MiB, then CUDA was out of memory; CUDA says that 4 of 100 MiB are free\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_keeps_the_memory_until_a_signal(rig: Rig, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "50", "--hold"], env=rig.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("allocated 50 of 50 MiB")
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait() == 0


def test_a_container_without_the_driver_gets_an_error(rig: Rig) -> None:
    status, _, error = allocate(rig.but(driver=rig.driver / "none"), "1")
    assert status == 1
    assert "tegra-device-plugin: no CUDA driver in this container: libcuda.so.1" in error


@pytest.mark.parametrize("mib", ["0", "-1", "1.5", "many"])
def test_an_invalid_size_is_rejected(mib: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["allocate", "--", mib])
    assert f"an integer above 0 is needed, not {mib!r}" in capsys.readouterr().err
