# SPDX-License-Identifier: Apache-2.0
"""The prepared claims of this node: in memory, in the checkpoint, and as files that containers use.

`commit` changes all three. The rename of the checkpoint commits: the files of a claim are made before the
rename and removed after it. After a kill, `restore` makes or removes the files that differ from the
checkpoint. The checkpoint survives a reboot, the CDI specs do not. Claims are kept by uid, because the
kubelet unprepares claims that the API server has deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra.checkpoint import NAME, CheckpointError, load, save
from tegra_device_plugin.dra.claims import Device, Prepared
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.allocation import VISIBLE_DEVICES
from tegra_device_plugin.sharing.memory_limit import LEDGERS, Limit, provide_files
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.kubernetes import DRIVER

# Prefix of the ledgers of claims. The device plugin has ledgers in the same directory.
_LEDGER_PREFIX = "claim-"

# The board's CDI spec (board/cdi.py) gives a container the GPU. The spec of a claim adds the limits, under a
# name that is never used again: a runtime may cache specs by name.
_CDI_KIND = f"{DRIVER}/claim"
_CDI_PREFIX = f"{DRIVER}-claim-"

logger = logging.getLogger(__name__)


@dataclass
class NodeState:
    """Directories of the driver, and the last observation of the GPU."""

    root: Path
    pool: str
    checkpoint: Path
    limit_dir: Path
    limit_library: Path
    overhead: int = 0
    cdi_version: str = cdi.OLDEST
    device_nodes: Sequence[str] = ()
    health: Health | None = None
    """None before the first observation of the GPU."""


class ClaimStore:
    """The prepared claims by uid. Not safe for two threads at the same time."""

    def __init__(self, node_state: NodeState) -> None:
        """Read the checkpoint. Raises CheckpointError."""
        self.claims: Mapping[str, Prepared] = load(node_state.checkpoint)
        self._node_state = node_state
        self._saved = True

    def commit(self, claims: Mapping[str, Prepared]) -> None:
        """Replace the prepared claims. After an OSError they are as before, and the kubelet tries again.

        The files of a claim that stays must stay the same.

        A commit that only unprepares succeeds without the checkpoint, for example on a full disk: the kubelet
        keeps a pod in Terminating until its claim is unprepared. `restore` saves it later. If the driver ends
        before that, the claim is prepared again at the next start. No pod uses it, and it keeps the GPU from
        no other claim, because the allocation at the API server decides.
        """
        before = self.claims
        added = [one for uid, one in claims.items() if uid not in before]
        try:
            for one in added:
                self.make_files(one, new=True)
            save(self._node_state.checkpoint, claims)
            self._saved = True
        except OSError as error:
            path = self._node_state.checkpoint
            if self._is_saved(claims):
                self._saved = True
                # A step after the rename has failed, such as the sync of the directory.
                logger.warning("%s may be lost at a power cut: %s", path, error)
            elif added:
                for one in added:
                    self._remove_files(one)
                raise
            else:
                self._saved = False
                logger.warning("%s still has claims that are unprepared, it cannot be saved: %s", path, error)
        self.claims = claims
        for uid, one in before.items():
            if uid not in claims:
                self._remove_files(one)

    def restore(self) -> None:
        """Make missing files of prepared claims, and remove files of other claims. Raises OSError.

        Saves the checkpoint, if that has failed.
        """
        for prepared in self.claims.values():
            try:
                self.make_files(prepared, new=False)
            except OSError as error:
                logger.warning("the claim %s lacks files: %s", prepared.claim, error)
        for path in self._leftovers():
            path.unlink(missing_ok=True)
        if not self._saved:
            save(self._node_state.checkpoint, self.claims)
            self._saved = True

    def make_files(self, prepared: Prepared, *, new: bool) -> None:
        """Make the files of a claim. The ledger of a claim that is not `new` stays. Raises OSError."""
        node_state = self._node_state
        if HostTree(node_state.root).link(cdi.SPEC_FILE) is None:
            cdi.write(node_state.root, node_state.device_nodes, node_state.cdi_version)
        limits = self._limits(prepared)
        for limit in limits.values():
            if new or not _is_complete(limit.ledger):
                provide_files(node_state.limit_dir, node_state.limit_library)
                limit.prepare()
        directory = _cdi_directory(node_state.root)
        directory.mkdir(exist_ok=True)
        text = json.dumps(spec(prepared, limits), indent=2) + "\n"
        update_file(directory / _cdi_file(prepared.claim.uid), text)

    def _is_saved(self, claims: Mapping[str, Prepared]) -> bool:
        """True if the checkpoint on the disk has these claims."""
        with suppress(CheckpointError):
            return load(self._node_state.checkpoint) == claims
        return False

    def _remove_files(self, prepared: Prepared) -> None:
        """Remove the files of a claim; `restore` removes later the files that cannot be removed now."""
        try:
            file = _cdi_directory(self._node_state.root) / _cdi_file(prepared.claim.uid)
            file.unlink(missing_ok=True)
            for limit in self._limits(prepared).values():
                ledger.remove(limit.ledger)
        except OSError as error:
            logger.warning("cannot remove the files of the claim %s yet: %s", prepared.claim, error)

    def _leftovers(self) -> Iterator[Path]:
        """Give files of other claims, and partial files that a killed process has left."""
        specs = {_cdi_file(uid) for uid in self.claims}
        with suppress(FileNotFoundError):
            for path in _cdi_directory(self._node_state.root).iterdir():
                if path.name.lstrip(".").startswith(_CDI_PREFIX) and path.name not in specs:
                    yield path
        kept = set[Path]()
        for one in self.claims.values():
            for limit in self._limits(one).values():
                with suppress(OSError):
                    kept |= {limit.ledger, ledger.mounted(limit.ledger)}
        with suppress(FileNotFoundError):
            for path in (self._node_state.limit_dir / LEDGERS).iterdir():
                if path.name.startswith(_LEDGER_PREFIX) and path not in kept:
                    yield path
        yield from self._node_state.checkpoint.parent.glob(f".{NAME}.*")

    def _limits(self, prepared: Prepared) -> dict[str, Limit]:
        node_state = self._node_state
        return {
            one.key: Limit(
                node_state.limit_dir,
                f"{_LEDGER_PREFIX}{prepared.claim.uid}-{one.key}",
                one.memory,
                node_state.overhead,
            )
            for one in prepared.devices
            if one.share is not None and one.memory is not None and not one.admin
        }


def _is_complete(path: Path) -> bool:
    """True if a ledger is complete: a kill can leave it empty."""
    with suppress(OSError):
        return ledger.mounted(path).stat().st_size >= ledger.SIZE
    return False


def cdi_names(uid: str, device: Device) -> tuple[str, str]:
    """Give the full names of the CDI devices that a container with this device of a claim gets."""
    return cdi.device("all"), f"{_CDI_KIND}={_cdi_name(uid, device)}"


def spec(prepared: Prepared, limits: Mapping[str, Limit]) -> dict[str, Any]:
    """Give a claim's CDI spec; `limits` are the limits of its devices' memory, by key."""
    return {
        "cdiVersion": cdi.OLDEST,
        "kind": _CDI_KIND,
        "devices": [
            {"name": _cdi_name(prepared.claim.uid, one), "containerEdits": _edits(limits.get(one.key))}
            for one in prepared.devices
        ],
    }


def _edits(limit: Limit | None) -> dict[str, Any]:
    # The access comes by CDI only: NVIDIA's own runtime, if it is the default, adds nothing.
    env = [f"{VISIBLE_DEVICES}=void"]
    if limit is None:
        return {"env": env}
    return {
        "env": env + [f"{name}={value}" for name, value in limit.envs],
        "mounts": [
            {"hostPath": mount.host, "containerPath": mount.container, "options": cdi.MOUNT_OPTIONS}
            for mount in limit.mounts
        ],
    }


def _cdi_name(uid: str, device: Device) -> str:
    return f"{uid}-{device.key}"


def _cdi_directory(root: Path) -> Path:
    return Path(HostTree(root).real(cdi.DIRECTORY))


def _cdi_file(uid: str) -> str:
    return f"{_CDI_PREFIX}{uid}.json"
