# SPDX-License-Identifier: Apache-2.0
"""Removes the ledgers of containers that are gone.

A ledger is needed for as long as the kubelet may start its container again. Two sources know that, and a
ledger stays if either names it:

* The kubelet's checkpoint has the allocations of all containers, with their mounts. It is not an API: the
  kubelets 1.20 to 1.37 have this format (devicemanager/checkpoint), and with another no ledger is removed.
* PodResources is an API. It lists no init containers but sidecars, and a kubelet that has just started lists
  no pods until it has them from the API server.

The kubelet drops a container that is gone from its checkpoint at the next Allocate.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path

from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.units import MEMORY_IDS
from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.kubelet.boot import CHECKPOINT
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.memory_limit import LEDGERS
from tegra_device_plugin.system.directorywatch import Identity
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

_DEADLINE = 2.0  # seconds, for the files and for the kubelet
# Of the device plugin's ledgers. The DRA driver has others in the same directory.
_NAME = re.compile(rf"{MEMORY_IDS}[0-9]+")

Ledgers = Mapping[Path, tuple[int, int]]
"""Files of ledgers, with inode and time of the last change: each start of a container writes its ledger."""


class UnusedLedgers:
    """Acts once for each checkpoint that the kubelet writes."""

    def __init__(self) -> None:
        self._done: Identity | None = None
        self._blocking = BlockingCalls(_DEADLINE)
        self._problem_log = ProblemLog()

    async def remove(self, settings: PluginSettings, _found: Detection, _health: Health) -> None:
        """Remove the ledgers that no container needs, or log why that cannot be known."""
        if settings.units is None:
            return
        checkpoint = settings.device_plugin_dir / CHECKPOINT
        identity = Identity.of(checkpoint)
        if identity in (None, self._done):
            return
        directory = settings.gpu_limit_dir / LEDGERS
        try:
            if unused := await self._blocking.run(lambda: _unmounted(directory, checkpoint)):
                socket = pod_resources.beside(settings.device_plugin_dir)
                answer = await pod_resources.list_allocations(socket, _DEADLINE)
                # Without a wait: so none is removed between PreStartContainer and the mount.
                remove(unused, {one.device for one in pod_resources.found(answer)})
        except (OSError, ValueError, TimeoutError) as error:
            reason = describe_error(error, "reading the ledgers hangs")
            self._problem_log.warn(f"ledgers of containers that are gone stay: {reason}")
        else:
            self._done = identity
            self._problem_log.resolved("ledgers of containers that are gone are removed again")


def remove(unused: Ledgers, allocated: Set[str]) -> None:
    """Remove the ledgers of which no container has the device, unless they have changed. Raises OSError."""
    for file, state in unused.items():
        if ledger.name_of(file) not in allocated and _states([file]) == {file: state}:
            link = file.with_name(ledger.name_of(file))
            with suppress(OSError):  # no link: of a start that was killed, or of an older version
                if ledger.mounted(link) == file:
                    link.unlink()
            file.unlink()


def mounted(checkpoint: bytes) -> frozenset[str]:
    """Give the names of all files that containers of this checkpoint mount. Raises ValueError."""
    try:
        entries = json.loads(checkpoint)["Data"]["PodDeviceEntries"] or ()
        responses = [base64.b64decode(one["AllocResp"] or "", validate=True) for one in entries]
        return frozenset(
            Path(mount.host_path).name
            for response in map(api.ContainerAllocateResponse.FromString, responses)
            for mount in response.mounts
        )
    except Exception as error:  # protobuf's error has no common base with the others
        raise ValueError(f"the kubelet's checkpoint has an unknown format: {error!r}") from error


def _unmounted(directory: Path, checkpoint: Path) -> Ledgers:
    """Give the ledgers that the checkpoint does not name. Raises OSError, ValueError."""
    with suppress(FileNotFoundError):
        # The ledgers first: a ledger that is made now has changed when it is compared.
        found = _states(path for path in directory.iterdir() if _NAME.fullmatch(ledger.name_of(path)))
        needed = mounted(checkpoint.read_bytes()) if found else ()
        return {path: state for path, state in found.items() if path.name not in needed}
    return {}


def _states(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not path.is_symlink():
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found
