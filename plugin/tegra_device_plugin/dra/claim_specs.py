# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of prepared claims: one file per claim, beside the board's own spec (board/cdi.py).

The board's spec gives a container the GPU. The spec of a claim adds the limits, under a name that no other
claim ever has: a runtime may cache specs by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tegra_device_plugin.board import cdi
from tegra_device_plugin.dra.claims import Device, Prepared
from tegra_device_plugin.sharing.allocation import VISIBLE_DEVICES
from tegra_device_plugin.sharing.memory_limit import Limit
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.kubernetes import DRIVER

KIND = f"{DRIVER}/claim"
_PREFIX, _SUFFIX = f"{DRIVER}-claim-", ".json"
_VERSION = "0.5.0"  # as of the board's
_BIND = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def names(uid: str, device: Device) -> tuple[str, str]:
    """Give the full names of the CDI devices that a container with this device of a claim gets."""
    return cdi.device("all"), f"{KIND}={_name(uid, device)}"


def spec(prepared: Prepared, limits: dict[str, Limit]) -> dict[str, Any]:
    """Give a claim's spec; `limits` are those of its devices' memory, by key."""
    uid = prepared.claim.uid
    by_name = {_name(uid, one): _edits(limits.get(one.key)) for one in prepared.devices}
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in by_name.items()],
    }


def write(root: Path, prepared: Prepared, limits: dict[str, Limit]) -> None:
    """Make or renew a claim's file on the host seen at `root`; the same again stays. Raises OSError."""
    directory = _directory(root)
    directory.mkdir(exist_ok=True)
    update_file(directory / _file(prepared.claim.uid), json.dumps(spec(prepared, limits), indent=2) + "\n")


def remove(root: Path, uid: str) -> None:
    """Remove a claim's file, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        (_directory(root) / _file(uid)).unlink()


def sweep(root: Path, uids: Collection[str]) -> None:
    """Remove the files of all claims but these. Raises OSError."""
    kept = {_file(uid) for uid in uids}
    for file in _files(root):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _files(root: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        for file in _directory(root).iterdir():
            # Also partial files of a killed process (system/atomicfile.py).
            if file.name.lstrip(".").startswith(_PREFIX):
                yield file


def _directory(root: Path) -> Path:
    return Path(HostTree(root).real(cdi.DIRECTORY))


def _file(uid: str) -> str:
    return f"{_PREFIX}{uid}{_SUFFIX}"


def _name(uid: str, device: Device) -> str:
    return f"{uid}-{device.key}"


def _edits(limit: Limit | None) -> dict[str, Any]:
    # The whole access comes by CDI: NVIDIA's own runtime, where it is the default, adds nothing of its own.
    env = [f"{VISIBLE_DEVICES}=void"]
    if limit is None:
        return {"env": env}
    return {
        "env": env + [f"{name}={value}" for name, value in limit.envs],
        "mounts": [
            {"hostPath": mount.host, "containerPath": mount.container, "options": _BIND}
            for mount in limit.mounts
        ],
    }
