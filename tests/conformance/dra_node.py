# SPDX-License-Identifier: Apache-2.0
"""A node with the DRA driver: simulated board, kubelet and API server, and the driver as a process."""

import shlex
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tegra_device_plugin.sharing.ledger import name_of
from tegra_device_plugin.system.kubernetes import DRIVER

from tests import boards
from tests.conformance.fake_api import NODE, FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.conformance.plugin import Node, Plugin, running

BOARD = "orinnano-jp6"


class DraNode:
    """Everything below `place`, whose path has to be short enough for sockets."""

    def __init__(self, place: Path, api: FakeApi, kubelet: FakeDraKubelet) -> None:
        self.api = api
        self.kubelet = kubelet
        self.root = place / "host"
        boards.build(boards.load()[BOARD], self.root)
        boards.write_run(self.root)
        self.files = Node(place)
        self.kubeconfig, self.token = place / "kubeconfig", place / "token"
        self.kubeconfig.write_text(api.kubeconfig(self.token))
        self.plugins = kubelet.directory / "plugins" / DRIVER
        self.registry = kubelet.directory / "plugins_registry"

    def start(self, *more: str, sharing: str = "", before: str = "") -> AbstractAsyncContextManager[Plugin]:
        if sharing:
            self.files.share(sharing)
            more = (*more, f"--config={self.files.config}")
        command = (
            f"{before} env KUBECONFIG={self.kubeconfig} {shlex.quote(sys.executable)} "
            f"-m tegra_device_plugin dra --host-root={{root}} --kubelet-dir={{dir}} --node-name={NODE} "
            f"--gpu-limit-dir={self.files.limit} --gpu-limit-library={self.files.library}"
        )
        return running(command, self.root, self.kubelet.directory, *more)

    async def ready(self) -> None:
        await self.kubelet.until_registered()
        await self.api.until(lambda: bool(self.api.devices), "device in the slice")

    @property
    def specs(self) -> list[str]:
        return sorted(path.name for path in (self.root / "run/cdi").glob("*claim*"))

    @property
    def leftovers(self) -> list[str]:
        """Files that a driver without claims has no use for. A ledger is two of one name."""
        ledgers = self.files.limit / "ledgers"
        found = [name_of(path) for path in ledgers.iterdir()] if ledgers.is_dir() else []
        others = [
            path.name for path in self.plugins.iterdir() if path.name not in ("checkpoint.json", "dra.sock")
        ]
        return [*self.specs, *found, *others]

    def hide(self, host_path: str) -> Path:
        """Take a file of the board away; give where it lies meanwhile."""
        path = self.root / host_path.lstrip("/")
        hidden = path.with_name(f"{path.name}.hidden")
        path.rename(hidden)
        return hidden


def share(name: str = "s1", memory: str = "3Gi") -> dict[str, Any]:
    """Give a share of the GPU as a claim's allocation has it."""
    return {"device": "igpu-0", "shareID": name, "consumedCapacity": {"memory": memory, "cores": "0"}}
