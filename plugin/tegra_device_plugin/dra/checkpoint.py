# SPDX-License-Identifier: Apache-2.0
"""The file with the prepared claims of this node. Release 0.1.0 has the first version of it.

A release reads its own version and the version of the release before, and writes a file that the release
before can read. It keeps keys that it does not know. So an update can be undone while claims are prepared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from tegra_device_plugin.dra.claims import ClaimReference, Device, Prepared
from tegra_device_plugin.system.atomicfile import replace_file

NAME = "checkpoint.json"
VERSION = 1
_MODE = 0o600


class CheckpointError(OSError):
    """The checkpoint cannot be used. The driver leaves the file as it is."""


class _Content(NamedTuple):
    claims: dict[str, Prepared]
    document: dict[str, Any]
    """The same as the file has it, with the keys of other releases."""


def load(path: Path) -> dict[str, Prepared]:
    """Give the claims by uid, none if there is no file. Raises CheckpointError."""
    return _read(path).claims


def save(path: Path, claims: Mapping[str, Prepared]) -> None:
    """Replace the file in one step, durably. Raises OSError."""
    try:
        before = _read(path).document
    except CheckpointError:  # damaged under a driver that has the claims in memory
        before = {}
    entries = before.get("claims", {})
    document = {
        "version": VERSION,
        "claims": {uid: _entry(one, entries.get(uid, {})) for uid, one in claims.items()},
    }
    replace_file(path, json.dumps(before | document, indent=1) + "\n", _MODE)


def _entry(prepared: Prepared, before: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the claim as the file has it, with the unknown keys that it had `before`."""
    devices = {_identity(one): one for one in before.get("devices", ())}
    entry = {
        "namespace": prepared.claim.namespace,
        "name": prepared.claim.name,
        "devices": [devices.get(_identity(one), {}) | one for one in map(asdict, prepared.devices)],
    }
    return {**before, **entry}


def _identity(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(device.get(key) for key in ("request", "name", "share"))


def _read(path: Path) -> _Content:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return _Content({}, {})
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    try:
        document = _object(json.loads(content), "the file")
        version = document.get("version")
        if type(version) is not int or version != VERSION:
            raise _unusable(path, f"it is of version {version!r}, this driver reads {VERSION}")
        entries = _object(document.get("claims"), "claims")
        return _Content({uid: _prepared(uid, entry) for uid, entry in entries.items()}, document)
    except ValueError as error:  # also of JSON
        raise _unusable(path, f"it is damaged: {error}") from error


# These raise ValueError.


def _prepared(uid: str, entry: object) -> Prepared:
    claim = _object(entry, f"the claim {uid}")
    namespace, name = (
        _checked(claim.get(key), str, f"{key} of the claim {uid}") for key in ("namespace", "name")
    )
    devices = _checked(claim.get("devices"), list, f"devices of the claim {uid}")
    return Prepared(ClaimReference(namespace, name, uid), tuple(_device(uid, one) for one in devices))


def _device(uid: str, entry: object) -> Device:
    description = f"a device of the claim {uid}"
    device, kinds = _object(entry, description), get_type_hints(Device)
    required = {field.name for field in fields(Device) if field.default is MISSING}
    return Device(
        **{
            name: _checked(device.get(name), kind, f"{name} of {description}")
            for name, kind in kinds.items()
            if name in device or name in required
        }
    )


def _object(value: object, description: str) -> dict[str, Any]:
    found: dict[str, Any] = _checked(value, dict, description)
    return found


def _checked(value: object, kind: Any, description: str) -> Any:
    # For Python, True and False are numbers.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{description} is {value!r}")
    return value


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {reason}. It lists the prepared claims, so it is not replaced. Run the version of the "
        "driver that wrote it; or, if no pod of this node has a claim for the GPU, remove the file"
    )
