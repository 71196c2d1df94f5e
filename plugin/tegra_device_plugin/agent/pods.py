# SPDX-License-Identifier: Apache-2.0
"""The node's pods by uid, with their names and shares, as far as they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from tegra_device_plugin.agent.shares import PodName, Share, Units, pod_names, shares
from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog

# A pod's devices never change while it lives. Pods that do not use the GPU yet are heard of this often.
REFRESH_SECONDS = 30.0


class Pods:
    """What the kubelet last said. A pod that came since has no name here, no share, and so no limit."""

    def __init__(self, socket: Path, host: HostTree, units: Units) -> None:
        self.names: Mapping[str, PodName] = {}
        self.shares: Mapping[PodName, Share] = {}
        self._socket = socket
        self._host = host
        self._units = units
        self._asked_about: set[str] = set()
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()
        self._problem_log = ProblemLog()

    def share(self, uid: str) -> Share:
        """What a pod was given: nothing, if that is not known."""
        name = self.names.get(uid)
        return self.shares.get(name, Share()) if name else Share()

    async def refresh(self, uids: Collection[str]) -> None:
        """Know the pods `uids`: ask the kubelet if one of them is new, or its last answer is old.

        While the kubelet does not answer, what is known stays: the devices of a living pod do not change.
        """
        async with self._asking:
            now = asyncio.get_running_loop().time()
            fresh = self._asked_at is not None and now - self._asked_at < REFRESH_SECONDS
            if fresh and self._asked_about.issuperset(uids):
                return
            # Before the question, so that the answer is newer: a name can get a new pod at any moment.
            names = pod_names(self._host)
            try:
                found = pod_resources.found(await pod_resources.ask(self._socket))
            except pod_resources.NoAnswerError as error:
                self._problem_log.warn(f"who holds which share is not known: {error}")
                return
            self._problem_log.resolved("the kubelet says again who holds which share")
            self.names, self.shares = names, shares(found, self._units)
            self._asked_about = {*names, *uids}
            self._asked_at = now
