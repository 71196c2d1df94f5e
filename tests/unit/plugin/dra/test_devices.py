# SPDX-License-Identifier: Apache-2.0
"""The GPU as devices of a ResourceSlice, within what the API takes."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tegra_device_plugin.board.detection import detect, read_power
from tegra_device_plugin.config.dra_modes import MAX_SHARES, Dra
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.devices import brief, published, semver
from tegra_device_plugin.system.kubernetes import GIB, MIB, parse_quantity, render_quantity

from tests import boards
from tests.unit.plugin.dra.objects import NODE, UNHEALTHY, gpu

BOARDS = boards.load()
# semver.org's own, without build metadata.
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
)
CAPACITY = Dra("capacity", memory_total=6 * GIB)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("dra", [Dra(), Dra("shares", shares=MAX_SHARES), CAPACITY])
def test_every_board_gives_valid_devices(tmp_path: Path, board: str, dra: Dra) -> None:
    devices = published(gpu(tmp_path, board, UNHEALTHY), dra, taints=True)
    assert len(devices) == len(dra.devices) == len({one["name"] for one in devices}) <= 64
    for device in devices:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device["capacity"]) <= 32
        for name, value in device["attributes"].items():
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name)
            ((kind, content),) = value.items()
            assert kind in ("string", "int", "version")
            assert isinstance(content, int) if kind == "int" else 0 < len(content) <= 64
            assert kind != "version" or SEMVER.fullmatch(content)
        (taint,) = device["taints"]
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", taint["value"])


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
@pytest.mark.parametrize("dra", [Dra(), Dra("shares", shares=2), CAPACITY])
def test_the_slice_has_kubernetes_schema(tmp_path: Path, version: str, dra: Dra) -> None:
    found = published(gpu(tmp_path, health=UNHEALTHY), dra, taints=True)
    slice_ = slices.content(NODE, "node-uid", found, 1)
    assert kubernetes_validate.validate(slice_, version, strict=True) == version


def test_users_find_the_facts_of_the_board(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir(exist_ok=True)
    found = gpu(tmp_path)
    (device,) = published(found, Dra(), taints=True)
    assert {name: next(iter(value.values())) for name, value in device["attributes"].items()} == {
        "type": "gpu",
        "sharing": "exclusive",
        "soc": "tegra234",
        "chip": "GA10B",
        "module": "Jetson Orin Nano 8GB",
        "productName": "Orin",
        "architecture": "ampere",
        "cudaComputeCapability": "8.7.0",
        "l4t": "36.4.3",
        "jetpack": "6.2.0",
        "multiprocessors": 8,
    }
    assert device["capacity"] == {"memory": {"value": render_quantity(found.found.gpu.memory_bytes or 0)}}


def test_a_plain_claim_takes_all_memory_and_no_cores(tmp_path: Path) -> None:
    (device,) = published(gpu(tmp_path), CAPACITY, taints=True)
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"] == {
        "memory": {
            "value": "6Gi",
            "requestPolicy": {"default": "6Gi", "validRange": {"min": "64Mi", "max": "6Gi", "step": "64Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "5"}},
        },
    }


def test_shares_are_devices_of_their_own(tmp_path: Path) -> None:
    devices = published(gpu(tmp_path), Dra("shares", shares=3), taints=True)
    assert [one["name"] for one in devices] == ["igpu-0-share-0", "igpu-0-share-1", "igpu-0-share-2"]
    assert all(one["attributes"]["sharing"] == {"string": "shares"} for one in devices)
    assert not any("allowMultipleAllocations" in one for one in devices)
    assert brief(devices) == "igpu-0-share-0 to igpu-0-share-2"


@pytest.mark.parametrize(("total", "step"), [(128 * MIB, 64 * MIB), (6 * GIB, 256 * MIB), (3 * MIB, MIB)])
def test_a_request_policy_is_one_that_the_server_takes(tmp_path: Path, total: int, step: int) -> None:
    """Rules of kubernetes' validateRequestPolicyRange."""
    dra = Dra("capacity", memory_total=total, memory_step=step)
    (device,) = published(gpu(tmp_path), dra, taints=True)
    for entry in device["capacity"].values():
        policy: dict[str, Any] = entry["requestPolicy"]
        least, most, by = (parse_quantity(policy["validRange"][key]) for key in ("min", "max", "step"))
        value, default = parse_quantity(entry["value"]), parse_quantity(policy["default"])
        assert least <= default <= most <= value and least + by <= value
        assert (default - least) % by == (most - least) % by == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("36.4.3", "36.4.3"),
        ("6.2", "6.2.0"),
        ("8.7", "8.7.0"),
        ("6", "6.0.0"),
        ("5.0 DP", "5.0.0-dp"),
        ("32.05.1", "32.5.1"),
        ("35.3.1.2", "35.3.1"),
        ("unknown", None),
    ],
)
def test_versions_are_semantic_ones(text: str, version: str | None) -> None:
    assert semver(text) == version


@pytest.mark.parametrize(
    "board", [name for name, one in BOARDS.items() if one.soc in ("tegra194", "tegra234")]
)
def test_multiprocessors_are_those_that_have_power(tmp_path: Path, board: str) -> None:
    boards.build(BOARDS[board], tmp_path)
    found = detect(tmp_path).gpu
    assert read_power(tmp_path, found).multiprocessors == BOARDS[board].data["sm"]
    mask = next(iter(tmp_path.glob("sys/devices/**/tpc_pg_mask")))
    mask.write_text("252\n" if BOARDS[board].soc == "tegra234" else "5\n")
    assert read_power(tmp_path, found).multiprocessors == 4
    mask.unlink()
    assert read_power(tmp_path, found).multiprocessors is None


def test_the_power_mode_is_nvpmodels_number(orin: Path) -> None:
    found = detect(orin).gpu
    assert read_power(orin, found).mode is None
    (orin / "var/lib/nvpmodel").mkdir(parents=True)
    (orin / "var/lib/nvpmodel/status").write_text("pmode:0000 fmode:quiet\n")
    assert read_power(orin, found).mode == 0
    (orin / "var/lib/nvpmodel/status").write_text("pmode:0010\n")
    assert read_power(orin, found).mode == 10
