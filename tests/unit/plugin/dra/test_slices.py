# SPDX-License-Identifier: Apache-2.0
"""From what the server has to the one next write."""

import copy
from typing import Any

import pytest
from tegra_device_plugin.dra import slices
from tegra_device_plugin.dra.slices import Delete, Update

from tests.unit.plugin.dra.objects import NODE

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
