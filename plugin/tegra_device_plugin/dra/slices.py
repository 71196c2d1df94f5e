# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's ResourceSlice up to date. Kubelets delete it at each start, and people can change it.

`step` is pure: it decides on the next write. SlicePublisher lists the slices, writes, and lists again.
Without a difference, it waits for a change of the slices or of the GPU.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import devices as gpu_devices
from tegra_device_plugin.dra.api_server import Server
from tegra_device_plugin.dra.devices import Gpu
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.api_server import Object
from tegra_device_plugin.system.kubernetes import DRIVER
from tegra_device_plugin.system.log import ProblemLog
from tegra_device_plugin.system.waiting import Backoff

# After a failure, and after a change of the slices by another client, in seconds. It resets after
# QUIET_SECONDS without one. A change of the GPU does not wait for it.
RETRY = Backoff(first=0.25, cap=60.0)
QUIET_SECONDS = 30.0
# A watch never ends if the server vanishes without closing it.
RESYNC_SECONDS = 330.0

logger = logging.getLogger(__name__)

API_VERSION = "resource.k8s.io/v1"
KIND = "ResourceSlice"


@dataclass(frozen=True)
class Create:
    generation: int
    reason: str


@dataclass(frozen=True)
class Update:
    old: Object
    generation: int
    reason: str = "another slice was there"


@dataclass(frozen=True)
class Delete:
    old: Object
    reason: str


Step = Create | Update | Delete


def step(
    found: Sequence[Object], devices: Sequence[Object] | None, node: str, last_generation: int
) -> Step | None:
    """Give the next step towards one slice with these devices (None: no slice), None if there is no
    difference.

    `found` are this driver's slices of the node. `last_generation` is the highest one ever seen: a pool's
    generation only grows.
    """
    generation = max((last_generation, *map(generation_of, found)))
    own = [one for one in found if one.get("spec", {}).get("pool", {}).get("name") == node]
    if devices is None:
        return Delete(found[0], "there is no GPU") if found else None
    keep = next((one for one in own if _has_devices(one, devices)), own[0] if own else None)
    for one in found:
        if one is not keep:
            return Delete(one, "the node has another slice")
    if keep is None:
        return Create(generation + 1, "there was no slice" if last_generation == 0 else "it was deleted")
    return None if _has_devices(keep, devices) else Update(keep, generation + 1)


def content(node: str, uid: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    """Give the slice of a node, for its creation; `uid` is the Node's."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": f"{node}-{DRIVER}-", "ownerReferences": [owner]},
        "spec": spec(node, devices, generation),
    }


def replaced(old: Object, node: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    """Give `old` with other devices; the server rejects it unless `old` is the last version."""
    return {**old, "spec": spec(node, devices, generation)}


def spec(node: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": list(devices),
    }


def generation_of(slice_: Object) -> int:
    """Give the pool's generation that a slice is of."""
    return int(slice_.get("spec", {}).get("pool", {}).get("generation", 0))


def dropped(devices: Sequence[Object], answer: Object) -> list[str]:
    """Give the fields of the devices that are missing in a server's answer: their feature gate is off."""
    kept = answer.get("spec", {}).get("devices") or []
    return [
        field
        for field in ("taints", "allowMultipleAllocations")
        if any(field in one for one in devices) and not any(field in one for one in kept)
    ]


def _has_devices(slice_: Object, devices: Sequence[Object]) -> bool:
    """True if the slice has these devices, and is the only slice of its pool."""
    inside = copy.deepcopy(slice_["spec"])
    found = inside.get("devices") or []
    for device in found:
        for taint in device.get("taints", ()):
            taint.pop("timeAdded", None)  # the server's addition
    return bool(found == list(devices)) and inside.get("pool", {}).get("resourceSliceCount") == 1


class NotPublishableError(OSError):
    """The API server drops fields that the mode needs."""


@dataclass
class SliceWrites:
    created: int = 0
    updated: int = 0
    deleted: int = 0
    failures: int = 0


class SlicePublisher:
    """Publishes the ResourceSlice of one node. `not_ready_reason` says why it is not `published`."""

    def __init__(self, dra: Dra, writes: SliceWrites) -> None:
        self.published = False
        self.not_ready_reason = "the board was not observed yet"
        self._dra = dra
        self._writes = writes
        self._devices: list[dict[str, Any]] | None = None
        self._gpu: Gpu | None = None
        self._taints = True
        self._generation = 0
        self._last_written: list[dict[str, Any]] | None = None
        self._observed = asyncio.Event()
        self._gpu_changed = asyncio.Event()
        self._problem_log = ProblemLog()

    def publish(self, gpu: Gpu | None) -> None:
        """Publish this GPU; None: there is no GPU."""
        before, self._gpu = self._devices, gpu
        self._devices = gpu_devices.published(gpu, self._dra, taints=self._taints) if gpu else None
        if self._devices != before:
            self._gpu_changed.set()
        self._observed.set()

    async def run(self, server: Server) -> None:
        await self._observed.wait()
        retry, clock = RETRY, asyncio.get_running_loop().time
        last = clock()
        while True:
            self._gpu_changed.clear()
            try:
                back_off = await self._reconcile(server)
            except OSError as error:
                self._log_failure(error)
                back_off = True
            if back_off:
                if clock() - last > QUIET_SECONDS:
                    retry = retry.reset()
                await waiting.happens(self._gpu_changed, retry.seconds)
                retry, last = retry.longer(), clock()

    async def _reconcile(self, server: Server) -> bool:
        """List, then write the difference, or wait for a change. Raises OSError.

        True: another client has changed the slices.
        """
        found, version = await server.slices()
        self._generation = max((self._generation, *map(generation_of, found)))
        devices = self._devices
        while isinstance(next_step := step(found, devices, server.node, self._generation), Delete):
            await self._delete(server, next_step.old, next_step.reason)
            found.remove(next_step.old)
        if next_step:
            known, self._last_written = self._last_written, devices
            await self._write(server, next_step, devices or [], found)
            return known == devices
        self.published, self.not_ready_reason = devices is not None, "there is no GPU"
        self._problem_log.resolved("the ResourceSlice is published again")
        watching = asyncio.ensure_future(server.changed(version))
        gpu_changed = asyncio.ensure_future(self._gpu_changed.wait())
        try:
            await asyncio.wait(
                (watching, gpu_changed), timeout=RESYNC_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if watching.done():
                watching.result()
            return watching.done()
        finally:
            gpu_changed.cancel()
            watching.cancel()
            await asyncio.wait((watching, gpu_changed))

    async def _write(
        self, server: Server, next_step: Create | Update, devices: list[dict[str, Any]], found: list[Object]
    ) -> None:
        """Create or update the slice, after a dry run: the server drops fields whose feature gate is off."""
        generation = next_step.generation
        slice_ = content(server.node, await server.node_uid(), devices, generation)
        missing = dropped(devices, await server.create(slice_, dry_run=True))
        if missing == ["taints"]:
            self._taints = False
            self.publish(self._gpu)
            logger.info(
                "this server has no device taints: an unhealthy GPU is removed from the ResourceSlice instead"
            )
            return
        if missing:
            for one in found:
                await self._delete(server, one, "the server drops a part of it")
            raise NotPublishableError(
                f"this server drops {', '.join(missing)}: mode {self._dra.mode} needs the feature gate "
                "DRAConsumableCapacity on the API server, the scheduler and the kubelet (on from "
                "Kubernetes 1.36 on); or choose mode shares or exclusive"
            )
        if isinstance(next_step, Create):
            await server.create(slice_)
            self._writes.created += 1
        else:
            await server.replace(replaced(next_step.old, server.node, devices, generation))
            self._writes.updated += 1
        self._generation = generation
        logger.info("published %s (%s)", gpu_devices.brief(devices), next_step.reason)

    async def _delete(self, server: Server, old: Object, reason: str) -> None:
        await server.delete(old)
        self._writes.deleted += 1
        logger.info("deleted the ResourceSlice %s (%s)", old["metadata"]["name"], reason)

    def _log_failure(self, error: OSError) -> None:
        if getattr(error, "outdated", False):  # the slice was changed by another client
            return
        self.published, self.not_ready_reason = False, str(error)
        self._writes.failures += 1
        self._problem_log.warn(f"the ResourceSlice is not published: {error}")
