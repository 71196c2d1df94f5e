# SPDX-License-Identifier: Apache-2.0
"""The node labels of every board, their rules and their forms."""

import re
from pathlib import Path

import pytest
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.labels import node_labels

from tests.boards import Fixture, build, load

BOARDS = load()

# apimachinery validation.go: IsValidLabelValue, IsQualifiedName.
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
KEY = re.compile(r"([a-z0-9.-]{1,253})/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def test_all_labels_of_one_board(orin: Path) -> None:
    assert node_labels(detect(orin), power_mode="MAXN_SUPER") == {
        "jetson-k3s.github.io/chip": "GA10B",
        "jetson-k3s.github.io/gpu-memory.cgroup-charged": "false",
        "jetson-k3s.github.io/jetpack": "6.2",
        "jetson-k3s.github.io/l4t": "36.4.3",
        "jetson-k3s.github.io/module": "Jetson-Orin-Nano-8GB",
        "jetson-k3s.github.io/power-mode": "MAXN_SUPER",
        "jetson-k3s.github.io/soc": "tegra234",
        "jetson-k3s.github.io/unified-memory": "true",
        "nvidia.com/cuda.runtime-version.full": "12.6",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "6",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "6",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "7",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.family": "ampere",
        # cut to 63 characters
        "nvidia.com/gpu.machine": "NVIDIA-Jetson-Orin-Nano-Engineering-Reference-Developer-Kit-Sup",
        "nvidia.com/gpu.memory": "7618",
        "nvidia.com/gpu.product": "Orin",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mps.capable": "false",
    }


# "false": the limit of a container's memory does not count its GPU memory; the source of the driver says so.
@pytest.mark.parametrize(
    ("release", "expected"),
    [
        *[("32.7.1", "false"), ("35.3.1", "false"), ("36.4.3", "false")],
        *[("35.5.0", "unknown"), ("36.4.7", "unknown"), ("38.2.0", "unknown"), (None, "unknown")],
    ],
)
def test_a_release_with_an_unread_driver_is_unknown(release: str | None, expected: str, orin: Path) -> None:
    detection = detect(orin)
    other = detection._replace(board=detection.board._replace(l4t=release))
    assert node_labels(other)["jetson-k3s.github.io/gpu-memory.cgroup-charged"] == expected


def test_every_boards_labels_are_valid_and_the_same_before_it_is_switched_on(
    board: Fixture, tmp_path: Path
) -> None:
    build(board, tmp_path / "before", state="unpowered")
    build(board, tmp_path / "after")
    before, found = (
        node_labels(detect(tmp_path / moment), power_mode=board.data["nvpmodel"][0])
        for moment in ("before", "after")
    )
    assert before == found
    assert [key for key in found if not KEY.fullmatch(key)] == []
    assert [value for value in found.values() if not VALUE.fullmatch(value)] == []
    assert list(found) == sorted(found)
    major, minor = board.compute_capability.split(".")
    assert (found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.compute.minor"]) == (major, minor)
    assert found["nvidia.com/gpu.product"] == board.data["devicequery_name"].replace(" ", "-")
    assert found["nvidia.com/cuda.runtime-version.full"] == board.cuda
    assert "nvidia.com/mig.capable" not in found  # no file shows whether Thor's is on


@pytest.mark.parametrize(
    ("model", "value"),
    [
        ("quill", "quill"),
        ("Jetson AGX Orin as NX-16GB", "Jetson-AGX-Orin-as-NX-16GB"),
        ("_Carrier (rev. B)_", "Carrier-rev.-B"),
        ("x" * 62 + " y", "x" * 62),
        ("Trägerplatine", "Tr-gerplatine"),
    ],
)
def test_any_text_becomes_a_valid_value(model: str, value: str, tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"].but(dt_model=model), tmp_path)
    assert node_labels(detect(tmp_path))["nvidia.com/gpu.machine"] == value


def test_unknown_facts_have_no_label(orin: Path) -> None:
    (orin / "etc/nv_tegra_release").unlink()
    (orin / "proc/meminfo").unlink()
    found = node_labels(detect(orin), power_mode="  ")
    absent = {"cuda.runtime-version.full", "gpu.memory"}
    assert not {f"nvidia.com/{key}" for key in absent} & found.keys()
    assert not {f"jetson-k3s.github.io/{key}" for key in ("l4t", "jetpack", "power-mode")} & found.keys()
