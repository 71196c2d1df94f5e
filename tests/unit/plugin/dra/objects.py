# SPDX-License-Identifier: Apache-2.0
"""What the tests of the DRA driver begin with."""

from pathlib import Path
from typing import Any

from tegra_device_plugin.board.detection import Detection, detect, read_power
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import checkpoint
from tegra_device_plugin.dra.claims import ClaimReference
from tegra_device_plugin.dra.claimstore import NodeState
from tegra_device_plugin.dra.devices import Gpu
from tegra_device_plugin.system.kubernetes import DRIVER, MIB

from tests import boards
from tests.conformance.plugin import Node as LimitFiles

NODE = "jetson-1"
HEALTHY = Health(True, "ok", "runtime_status active")
UNHEALTHY = Health(False, "nodes-missing", "no /dev/nvmap")
CLAIM = ClaimReference("default", "a", "1111-a")


def result(device: str = "igpu-0", **more: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "pool": NODE, "device": device, "request": "gpu"} | more


def claim(*results: dict[str, Any], uid: str = CLAIM.uid, **devices: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": CLAIM.name, "namespace": CLAIM.namespace, "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)} | devices}},
    }


def gpu(root: Path, board: str = "orinnano-jp6", health: Health = HEALTHY) -> Gpu:
    boards.build(boards.load()[board], root)
    found = detect(root)
    return Gpu(Detection(found.board, found.gpu, read_power(root, found.gpu)), health)


def place(tmp_path: Path) -> NodeState:
    root = tmp_path / "host"
    boards.build(boards.load()["orinnano-jp6"], root)
    boards.write_run(root)
    limits = LimitFiles(tmp_path)
    return NodeState(
        root=root,
        pool=NODE,
        checkpoint=tmp_path / checkpoint.NAME,
        limit_dir=limits.limit,
        limit_library=limits.library,
        overhead=MIB,
        device_nodes=("/dev/nvmap",),
        health=HEALTHY,
    )
