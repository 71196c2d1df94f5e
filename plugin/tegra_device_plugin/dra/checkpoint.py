# SPDX-License-Identifier: Apache-2.0
"""Which claims are prepared, in a file that outlives the process and the board's reboot.

Kept by uid: the kubelet unprepares claims that the API server does not know any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tegra_device_plugin.dra.claims import Asked, Device
from tegra_device_plugin.system.atomicfile import replace_file

NAME = "checkpoint.json"
VERSION = 1
_MODE = 0o600


class CheckpointError(OSError):
    """A checkpoint that cannot be used; it is left as it is."""


@dataclass(frozen=True)
class Prepared:
    """A claim and its devices."""

    claim: Asked
    devices: tuple[Device, ...]


def load(path: Path) -> dict[str, Prepared]:
    """Give the claims by uid, none if there is no file. Raises CheckpointError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    try:
        document = json.loads(content)
        version = document["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(path, "it is damaged") from error
    if version != VERSION:
        raise _unusable(path, f"it is of version {version!r}, this driver reads {VERSION}")
    try:
        return {uid: _prepared(uid, entry) for uid, entry in document["claims"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, "it is damaged") from error


def save(path: Path, claims: Mapping[str, Prepared]) -> None:
    """Replace the file in one step, durably. Raises OSError."""
    document = {
        "version": VERSION,
        "claims": {
            uid: {
                "namespace": one.claim.namespace,
                "name": one.claim.name,
                "devices": [asdict(device) for device in one.devices],
            }
            for uid, one in claims.items()
        },
    }
    replace_file(path, json.dumps(document, indent=1) + "\n", _MODE)


def _prepared(uid: str, entry: Mapping[str, Any]) -> Prepared:
    claim = Asked(entry["namespace"], entry["name"], uid)
    return Prepared(claim, tuple(Device(**device) for device in entry["devices"]))


def _unusable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {why}. It says which claims are prepared, so it is not replaced. Run the version of the "
        "driver that wrote it; or, when no pod of this node has a claim for the GPU, remove the file"
    )
