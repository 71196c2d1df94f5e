# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's ResourceSlice as it should be, whoever alters or deletes it: kubelets do at each start.

It lists once, writes what is to be written, then watches. Every event is a reason to compare again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tegra_device_plugin.config.dra import Dra
from tegra_device_plugin.dra import devices as made
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.devices import Gpu
from tegra_device_plugin.dra.slices import Create, Delete, Step
from tegra_device_plugin.kubelet.registration import Backoff
from tegra_device_plugin.system.log import ProblemLog

if TYPE_CHECKING:
    from tegra_device_plugin.dra.api import Object, Server

# Between attempts, in seconds, while the API server is away or refuses. A connection that lasted for longer
# than the cap begins with the first again.
RETRY = Backoff(first=0.5, cap=60.0)
# After writes, so that a fight with somebody who alters the slice each time costs little.
CALM = Backoff(first=0.1, cap=10.0)
# Longer than a server keeps a watch (api.py: WATCH_SECONDS).
FOLLOW_SECONDS = 330.0
# More steps than that in a row lead nowhere.
_MAX_STEPS = 10

logger = logging.getLogger(__name__)


class NotPublishableError(OSError):
    """The server does not keep what the mode needs."""


@dataclass
class Written:
    """Totals since the start of the process."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    failures: int = 0


class Publisher:
    """One node's slice. `why_not` says why it is not `published`."""

    def __init__(self, server: Server, dra: Dra, written: Written) -> None:
        self.published = False
        self.why_not = "the board was not looked at yet"
        self._server = server
        self._dra = dra
        self._written = written
        self._gpu: Gpu | None = None
        self._looked = False
        self._taints = True
        self._keeps_capacity = dra.mode != "capacity"
        self._generation = 0
        self._known: dict[str, Object] = {}
        self._gone: set[str] = set()
        """Names that a watch has told of: the answer to a write may come later."""
        self._wake = asyncio.Event()
        self._retry = RETRY
        self._calm = CALM
        self._wrote_at = 0.0
        self._problem_log = ProblemLog()

    def offer(self, gpu: Gpu | None) -> None:
        """Publish this GPU from now on; None: there is none."""
        self._gpu, self._looked = gpu, True
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while not self._looked:
            self._wake.clear()
            await self._wake.wait()
        while True:
            began = _now()
            try:
                await self._session()
            except OSError as error:
                self._note_failure(error)
            if _now() - began > self._retry.cap:
                self._retry = self._retry.reset()
            await asyncio.sleep(self._retry.seconds)
            self._retry = self._retry.longer()

    async def _session(self) -> None:
        """List, write what is to be written, follow what happens until the server ends it. Raises OSError."""
        found, version = await self._server.slices()
        self._known = {one["metadata"]["name"]: one for one in found}
        self._gone.clear()
        following = asyncio.ensure_future(self._follow(version))
        following.add_done_callback(lambda _: self._wake.set())
        # A server that has vanished without a word keeps a watch open for ever, so it is given up, too.
        giving_up = asyncio.get_running_loop().call_later(FOLLOW_SECONDS, following.cancel)
        try:
            while not following.done():
                self._wake.clear()
                if await self._settle():
                    await self._calm_down()
                self._problem_log.resolved("the ResourceSlice is published again")
                await self._wake.wait()
            if not following.cancelled():
                following.result()
        finally:
            giving_up.cancel()
            following.cancel()
            await asyncio.wait((following,))

    async def _follow(self, version: str) -> None:
        async for event, found in self._server.changes(version):
            name = found["metadata"]["name"]
            self._generation = max(self._generation, slices.generation_of(found))
            if event == "DELETED":
                self._known.pop(name, None)
                self._gone.add(name)
            elif not _is_older(found, self._known.get(name)):
                self._known[name] = found
            self._wake.set()

    async def _settle(self) -> bool:
        """Do what is to be done until nothing is; tell whether that was anything. Raises OSError."""
        last: Step | None = None
        for _ in range(_MAX_STEPS):
            known = list(self._known.values())
            self._generation = max((self._generation, *map(slices.generation_of, known)))
            devices = self._devices()
            step = slices.step(known, devices, self._server.node, self._generation)
            if step is None:
                self.published, self.why_not = devices is not None, "there is no GPU"
                return last is not None
            if last is not None and not isinstance(last, Delete) and not isinstance(step, Delete):
                # Undone already, before the answer was here: a fight, so not at once.
                self._wake.set()
                return True
            await self._do(step, devices or [])
            last = step
        raise NotPublishableError("the server has it otherwise each time that it is written")

    def _devices(self) -> list[dict[str, Any]] | None:
        return made.published(self._gpu, self._dra, taints=self._taints) if self._gpu else None

    async def _do(self, step: Step, devices: list[dict[str, Any]]) -> None:
        if isinstance(step, Delete):
            await self._delete(step.old, step.reason)
            return
        if not await self._are_kept(devices):
            return
        node = self._server.node
        if isinstance(step, Create):
            uid = await self._server.node_uid()
            answer = await self._server.create(slices.content(node, uid, devices, step.generation))
            self._written.created += 1
        else:
            answer = await self._server.replace(slices.replaced(step.old, node, devices, step.generation))
            self._written.updated += 1
        self._generation = step.generation
        name = answer["metadata"]["name"]
        # What the watch has told of may be newer than the answer to a write.
        if name not in self._gone and not _is_older(answer, self._known.get(name)):
            self._known[name] = answer
        logger.info("published %s (%s)", made.brief(devices), step.reason)
        await self._note_dropped(slices.dropped(devices, answer))

    async def _are_kept(self, devices: list[dict[str, Any]]) -> bool:
        """Ask the server, without writing, whether it keeps what it may drop: gates can be off there."""
        tainted = any("taints" in one for one in devices)
        if self._keeps_capacity and not tainted:
            return True
        node = self._server.node
        trial = slices.content(node, await self._server.node_uid(), devices, self._generation + 1)
        dropped = slices.dropped(devices, await self._server.create(trial, dry_run=True))
        await self._note_dropped(dropped)
        self._keeps_capacity = True
        return not dropped

    async def _note_dropped(self, fields: list[str]) -> None:
        """Do without taints; raises NotPublishableError where the server drops anything else."""
        others = [one for one in fields if one != "taints"]
        if others:
            self._keeps_capacity = False
            for one in list(self._known.values()):
                await self._delete(one, "the server does not keep all of it")
            raise NotPublishableError(
                f"this server drops {', '.join(others)}: mode {self._dra.mode} needs the feature gate "
                "DRAConsumableCapacity on the API server, the scheduler and the kubelet (on from "
                "Kubernetes 1.36 on); or choose mode shares or exclusive"
            )
        if fields:
            self._taints = False
            logger.info("this server has no device taints: an unhealthy GPU leaves the ResourceSlice instead")

    async def _delete(self, old: Object, reason: str) -> None:
        await self._server.delete(old)
        self._known.pop(old["metadata"]["name"], None)
        self._written.deleted += 1
        logger.info("deleted the ResourceSlice %s (%s)", old["metadata"]["name"], reason)

    async def _calm_down(self) -> None:
        self._calm = (
            self._calm.reset() if _now() - self._wrote_at > 3 * self._calm.cap else self._calm.longer()
        )
        self._wrote_at = _now()
        await asyncio.sleep(self._calm.seconds)

    def _note_failure(self, error: OSError) -> None:
        if getattr(error, "outdated", False):  # somebody was faster: look again
            self._retry = self._retry.reset()
            return
        self.published, self.why_not = False, str(error)
        self._written.failures += 1
        self._problem_log.warn(f"the ResourceSlice is not published: {error}")


def _is_older(one: Object, other: Object | None) -> bool:
    """Whether `one` is what was there before `other`; versions are numbers (Kubernetes 1.35, KEP-5504)."""
    if other is None:
        return False
    before, after = (str(each["metadata"].get("resourceVersion", "")) for each in (one, other))
    return before.isdecimal() and after.isdecimal() and int(before) < int(after)


def _now() -> float:
    return asyncio.get_running_loop().time()
