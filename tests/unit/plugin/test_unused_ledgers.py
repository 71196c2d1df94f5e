# SPDX-License-Identifier: Apache-2.0
"""Which ledgers are removed, by the kubelet's checkpoint and its PodResources."""

import base64
import json
from pathlib import Path

import pytest
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.health import HEALTHY
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.units import Memory, Units
from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet.unused_ledgers import UnusedLedgers, remove
from tegra_device_plugin.sharing.memory_limit import Limit, provide_files

from tests.conformance.pod_resources import Kubelet

MEMORY = "example.com/memory"
UNITS = Units("none", Memory(MEMORY), memory_total=1 << 30, memory_ids=64)


class Board:
    """A board with ledgers, and the kubelet that may need them."""

    def __init__(self, place: Path, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.plugins = kubelet.socket.with_name("device-plugins")
        self.plugins.mkdir()
        kubelet.socket.with_name("pod-resources").symlink_to(".")
        self.limit = place / "limit"
        (place / "library.so").write_bytes(b"library")
        provide_files(self.limit, place / "library.so")
        self.settings = PluginSettings(device_plugin_dir=self.plugins, gpu_limit_dir=self.limit, units=UNITS)
        self.detection: Detection = detect(place)
        self.unused = UnusedLedgers()

    def make(self, *names: str) -> None:
        for name in names:
            Limit(self.limit, name, 1 << 24).prepare()

    def allocated(self, *names: str) -> None:
        """Let the kubelet write a checkpoint with containers that have these ledgers."""
        entries = []
        for name in names:
            mounts = [
                api.Mount(host_path=one.host, container_path=one.container)
                for one in Limit(self.limit, name, 1 << 24).mounts
            ]
            response = api.ContainerAllocateResponse(mounts=mounts).SerializeToString()
            ids = {"-1": [name]}
            entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": MEMORY, "DeviceIDs": ids}
            entries.append({**entry, "AllocResp": base64.b64encode(response).decode()})
        self.write(json.dumps({"Data": {"PodDeviceEntries": entries or None}, "Checksum": 1}))

    def write(self, checkpoint: str) -> None:
        new = self.plugins / "new"
        new.write_text(checkpoint)
        new.replace(self.plugins / "kubelet_internal_checkpoint")

    def lists(self, *devices: str) -> None:
        """Let PodResources list a container with each of these devices."""
        pods = [
            api.PodResources(name=one, containers=[api.ContainerResources(name="c", devices=[allocated])])
            for one in devices
            for allocated in [api.ContainerDevices(resource_name=MEMORY, device_ids=[one])]
        ]
        self.kubelet.answer = api.ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    async def observe(self) -> list[str]:
        """Give the names that are left, each of which has a link and a file."""
        await self.unused.remove(self.settings, self.detection, HEALTHY)
        found = sorted(path.name.partition(".")[0] for path in (self.limit / "ledgers").iterdir())
        assert found[::2] == found[1::2]
        return found[::2]


@pytest.fixture
def board(tmp_path: Path, kubelet: Kubelet) -> Board:
    return Board(tmp_path, kubelet)


async def test_a_ledger_stays_that_the_checkpoint_or_pod_resources_names(board: Board) -> None:
    board.make("m0", "m1", "m2", "m30", "claim-u1-igpu-0-s1")
    board.allocated("m1")  # an init container, or any before the kubelet has its pods
    board.lists("m2")
    assert await board.observe() == ["claim-u1-igpu-0-s1", "m1", "m2"]
    board.lists()
    assert await board.observe() == ["claim-u1-igpu-0-s1", "m1", "m2"]  # until there is another checkpoint
    board.allocated()
    assert await board.observe() == ["claim-u1-igpu-0-s1"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"Data": {}}',
        '{"Data": {"PodDeviceEntries": [{}]}}',
        '{"Data": {"PodDeviceEntries": {"a": 1}}}',
    ]
    + [f'{{"Data": {{"PodDeviceEntries": [{{"AllocResp": "{text}"}}]}}}}' for text in ("!", "AAAA")],
)
async def test_none_is_removed_by_a_checkpoint_of_another_format(
    content: str, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    board.make("m0")
    board.write(content)
    for _ in range(3):
        assert await board.observe() == ["m0"]
    assert caplog.text.count("the kubelet's checkpoint has an unknown format") == 1


async def test_none_is_removed_without_checkpoint_or_answer(board: Board) -> None:
    board.make("m0")
    assert await board.observe() == ["m0"]
    board.allocated()
    board.kubelet.refuses = True
    assert await board.observe() == ["m0"]
    board.kubelet.refuses = False
    assert await board.observe() == []


async def test_a_ledger_that_was_used_meanwhile_stays(board: Board) -> None:
    board.make("m0", "m1")
    files = {path: path.stat() for path in (board.limit / "ledgers").iterdir() if not path.is_symlink()}
    seen = {
        path: (status.st_ino, status.st_mtime_ns - 1) for path, status in files.items() if "m0" in path.name
    }
    seen |= {path: (status.st_ino, status.st_mtime_ns) for path, status in files.items() if "m1" in path.name}
    remove(seen, set())
    assert await board.observe() == ["m0"]


async def test_a_file_without_a_link_is_removed(board: Board) -> None:
    """Release 0.1.0 could leave one at each attempt on a full disk."""
    board.make("m0")
    (board.limit / "ledgers" / f"m0.{'a' * 32}").touch()
    (board.limit / "ledgers" / f"m7.{'b' * 32}").touch()
    board.allocated("m0")
    assert await board.observe() == ["m0"]
