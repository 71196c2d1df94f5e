# SPDX-License-Identifier: Apache-2.0
"""From what the server has to the one next write."""

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.api_server import Server
from tegra_device_plugin.dra.slices import Delete, SlicePublisher, SliceWrites, Update

from tests.conformance.awaited import eventually
from tests.unit.plugin.dra.objects import HEALTHY, NODE, UNHEALTHY, gpu

Object = dict[str, Any]

DEVICE: Object = {
    "name": "igpu-0",
    "attributes": {"type": {"string": "gpu"}},
    "capacity": {"memory": {"value": "6Gi"}},
}
TAINTED = DEVICE | {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}


def there(devices: list[Object], generation: int = 1, name: str = "s") -> Object:
    made = copy.deepcopy(slices.content(NODE, "node-uid", devices, generation))
    made["metadata"] |= {"name": name, "resourceVersion": "7"}
    for device in made["spec"]["devices"]:
        for taint in device.get("taints", ()):
            taint["timeAdded"] = "2026-11-23T05:00:00Z"
    if not made["spec"]["devices"]:
        del made["spec"]["devices"]
    return made


def change(slice_: Any, path: str, value: Any) -> None:
    *way, last = path.split("/")
    for key in way:
        slice_ = slice_[int(key) if key.isdecimal() else key]
    slice_[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/devices/0/attributes/type", {"string": "toaster"}),
        ("spec/devices/0/attributes/more", {"int": 1}),
        ("spec/devices/0/capacity/memory/value", "7Gi"),
        ("spec/devices/0/taints", [{"key": "x"}]),
        ("spec/devices", []),
        ("spec/devices", [DEVICE, {"name": "igpu-1"}]),
        ("spec/pool/resourceSliceCount", 2),
    ],
)
def test_any_change_of_the_slice_is_corrected(path: str, value: object) -> None:
    found = there([DEVICE], generation=3)
    change(found, path, value)
    step = slices.step([found], [DEVICE], NODE, 0)
    assert isinstance(step, Update) and step.generation == 4
    mended = slices.replaced(step.old, NODE, [DEVICE], step.generation)
    assert slices.step([mended], [DEVICE], NODE, 4) is None
    assert mended["metadata"] == found["metadata"]


def test_of_several_slices_the_right_one_is_kept() -> None:
    wrong, right = there([TAINTED], name="wrong"), there([DEVICE], name="right")
    step = slices.step([wrong, right], [DEVICE], NODE, 0)
    assert isinstance(step, Delete) and step.old is wrong


def test_a_slice_of_another_pool_goes_first() -> None:
    other = there([DEVICE])
    other["spec"]["pool"]["name"] = "old-name"
    assert isinstance(slices.step([other], [DEVICE], NODE, 0), Delete)


def test_without_a_gpu_nothing_stays() -> None:
    assert isinstance(slices.step([there([DEVICE])], None, NODE, 0), Delete)
    assert slices.step([], None, NODE, 0) is None


class Memory:
    """SIMULATED: an API server that keeps slices; nobody else changes them, or all fails."""

    node = NODE

    def __init__(self) -> None:
        self.slices_: list[Object] = []
        self.down = False

    async def node_uid(self) -> str:
        return "node-uid"

    async def slices(self) -> tuple[list[Object], str]:
        if self.down:
            raise ConnectionRefusedError
        return copy.deepcopy(self.slices_), "1"

    async def changed(self, _version: str) -> None:
        await asyncio.Event().wait()

    async def create(self, slice_: Object, *, dry_run: bool = False) -> Object:
        if not dry_run:
            self.slices_ = [copy.deepcopy(slice_) | {"metadata": {"name": "s"}}]
        return slice_

    async def replace(self, slice_: Object) -> Object:
        self.slices_ = [copy.deepcopy(slice_)]
        return slice_

    @property
    def tainted(self) -> bool:
        return "taints" in self.slices_[0]["spec"]["devices"][0]


async def test_news_of_the_gpu_does_not_wait_for_what_came_before(tmp_path: Path) -> None:
    """Neither for earlier news nor for failures: a dead GPU is tainted in any case."""
    healthy, server = gpu(tmp_path), Memory()
    unhealthy = replace(healthy, health=UNHEALTHY)
    written = SliceWrites()
    publisher = SlicePublisher(Dra(), written)
    publisher.publish(healthy)
    task = asyncio.ensure_future(publisher.run(cast("Server", server)))
    await eventually(lambda: publisher.published)
    try:
        async with asyncio.timeout(10):
            for _ in range(20):
                publisher.publish(unhealthy)
                await eventually(lambda: server.tainted)
                publisher.publish(replace(healthy, health=HEALTHY))
                await eventually(lambda: not server.tainted)
            server.down = True
            for one in (unhealthy, healthy) * 10:
                written.failures = 0
                publisher.publish(one)
                await eventually(lambda: written.failures)
            server.down = False
            publisher.publish(unhealthy)
            await eventually(lambda: server.tainted)
    finally:
        task.cancel()
        await asyncio.wait((task,))
