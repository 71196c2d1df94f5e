# SPDX-License-Identifier: Apache-2.0
"""From what is seen of the board to what is offered."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from tegra_device_plugin.board import health
from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import DeviceListStrategy, PluginSettings, Sharing, load_plugin
from tegra_device_plugin.daemon import ResourcePublisher
from tegra_device_plugin.kubelet.advertised import AdvertisedResources
from tegra_device_plugin.sharing.allocation import Resource
from tegra_device_plugin.system.sensor import Sensor

from tests import boards

BOARDS = boards.load()


class Watched:
    """A board that is looked at by hand."""

    def __init__(self, root: Path, settings: PluginSettings | None = None) -> None:
        self.advertised = AdvertisedResources()
        settings = settings or PluginSettings(host_root=root)
        self.watch = BoardWatch(settings, ResourcePublisher(self.advertised))

    @property
    def offer(self) -> Resource:
        """What is offered; there is something."""
        (offer,) = self.advertised.resources.values()
        return offer

    async def looks(self, count: int = 1) -> str:
        """Look so many times; say what is offered then."""
        for _ in range(count):
            await self.watch.observe()
        found = [f"{len(offer.ids)} {offer.health.reason}" for offer in self.advertised.resources.values()]
        return ", ".join(found) or "nothing"


@pytest.mark.parametrize("board", BOARDS)
async def test_every_ready_board_is_offered_at_the_first_look(board: str, tmp_path: Path) -> None:
    boards.build(BOARDS[board], tmp_path)
    watched = Watched(tmp_path)
    assert await watched.looks() == "1 ok"
    nodes = watched.offer.allocation.device_nodes
    assert nodes and all(tmp_path.joinpath(node[1:]).exists() for node in nodes)


async def test_another_machine_offers_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert await watched.looks(3) == "nothing"
    assert not watched.watch.has_gpu


async def test_a_gpu_that_vanishes_stays_in_the_list_and_comes_back(tmp_path: Path) -> None:
    root, away = tmp_path / "host", tmp_path / "away"
    boards.build(BOARDS["orinnano-jp6"], root)
    watched = Watched(root)
    assert await watched.looks() == "1 ok"
    assert watched.watch.has_gpu
    root.rename(away)
    root.mkdir()
    assert await watched.looks() == "1 ok"  # one bad look is no verdict
    assert await watched.looks() == "1 device-gone"
    shutil.rmtree(root)
    away.rename(root)
    assert await watched.looks(3) == "1 ok"


async def test_a_look_that_hangs_or_fails_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards.build(BOARDS["orinnano-jp6"], tmp_path)
    watched = Watched(tmp_path)
    assert await watched.looks() == "1 ok"
    monkeypatch.setattr(
        watched.watch, "_sensor", Sensor(deadline=2)
    )  # enough for a good look on a busy machine
    hanging, original = threading.Event(), health.sample

    def hang(*_arguments: object) -> None:
        hanging.wait()

    with monkeypatch.context() as patch:
        patch.setattr(health, "sample", hang)
        assert await watched.looks(2) == "1 unknown"
    assert health.sample is original
    assert await watched.looks() == "1 unknown"  # the first read still hangs
    hanging.set()
    for thread in threading.enumerate():
        if thread.name == "sensor":
            thread.join(5)
    assert await watched.looks(3) == "1 ok"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("state", ["ready", "dead"])
async def test_a_process_without_descriptors_or_memory_keeps_the_gpus_last_health(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    state: boards.State,
    number: int,
) -> None:
    boards.build(BOARDS["orinnano-jp6"], tmp_path, state=state)
    watched = Watched(tmp_path)
    before = await watched.looks()

    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        patch.setattr(os, "listdir", refuse)
        assert await watched.looks(3) == before
    assert caplog.text.count(f"cannot observe the board: [Errno {number}]") == 1
    (tmp_path / "dev/nvmap").unlink(missing_ok=True)
    assert await watched.looks(2) != "1 ok"


async def test_memory_that_cannot_be_limited_stays_unhealthy_while_nobody_can_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "host"
    boards.build(BOARDS["orinnano-jp6"], root)
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {units: {memoryTotal: 6Gi}}\n")
    places = {"HOST_ROOT": str(root), "GPU_LIMIT_DIR": str(tmp_path), "GPU_LIMIT_LIBRARY": f"{tmp_path}/none"}
    watched = Watched(root, load_plugin(file, places, {}))
    assert await watched.looks(2) == "100 ok, 24 limit-missing"
    assert caplog.text.count("no memory of the GPU is allocated: limit-missing") == 1

    async def fail(_look: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(Sensor, "read", lambda _self, look: fail(look))
        assert await watched.looks() == "100 ok, 24 limit-missing"
        assert await watched.looks() == "100 unknown, 24 unknown"
    assert await watched.looks(3) == "100 ok, 24 limit-missing"
    watched.watch.use(PluginSettings(host_root=root))
    assert await watched.looks() == "1 ok"


def unreadable(*_arguments: object) -> None:
    """Stand for an observation that fails."""
    raise PermissionError


BY_CDI: tuple[DeviceListStrategy, ...] = ("cdi-cri",)


async def test_a_board_without_csv_files_is_unhealthy_for_that_reason_until_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, lists = tmp_path / "host", tmp_path / "lists"
    boards.build(BOARDS["orinnano-jp6"], root)
    boards.write_run(root)
    (root / "etc/nvidia-container-runtime").rename(lists)
    watched = Watched(root, PluginSettings(host_root=root, device_list_strategy=BY_CDI))
    assert await watched.looks(4) == "1 cdi-missing"
    assert caplog.text.count("host-files-for-container.d") == 1
    assert "cannot observe" not in caplog.text
    assert watched.watch.sample is not None
    with monkeypatch.context() as patch:
        patch.setattr(health, "sample", unreadable)
        assert await watched.looks() == "1 cdi-missing"
    lists.rename(root / "etc/nvidia-container-runtime")
    assert await watched.looks(2) == "1 cdi-missing"
    assert await watched.looks() == "1 ok"


async def test_a_nul_in_a_csv_list_is_a_line_without_sense(tmp_path: Path) -> None:
    boards.build(BOARDS["orinnano-jp6"], tmp_path)
    boards.write_run(tmp_path)
    lists = tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d"
    (lists / "drivers.csv").write_bytes(b"lib, /usr/lib/" + bytes(4096))  # a power cut
    watched = Watched(tmp_path, PluginSettings(host_root=tmp_path, device_list_strategy=BY_CDI))
    assert await watched.looks() == "1 ok"


async def test_cdi_switched_on_later_is_offered_only_with_its_spec(tmp_path: Path) -> None:
    boards.build(BOARDS["orinnano-jp6"], tmp_path)
    boards.write_run(tmp_path)
    watched = Watched(tmp_path)
    assert await watched.looks() == "1 ok"
    offered: list[bool] = []

    def published() -> None:
        if watched.offer.allocation.cdi_devices:
            offered.append((tmp_path / "run/cdi/tegra-device-plugin.json").is_file())

    watched.advertised.on_change = published
    watched.watch.use(PluginSettings(host_root=tmp_path, device_list_strategy=BY_CDI))
    assert offered == []
    assert await watched.looks() == "1 ok"
    assert offered == [True]


async def test_other_settings_take_effect_at_once(tmp_path: Path) -> None:
    boards.build(BOARDS["orinnano-jp6"], tmp_path)
    watched = Watched(tmp_path)
    offers: asyncio.Queue[int] = asyncio.Queue()
    watched.advertised.on_change = lambda: offers.put_nowait(len(watched.offer.ids))
    running = asyncio.ensure_future(watched.watch.run())
    assert await offers.get() == 1
    watched.watch.use(PluginSettings(host_root=tmp_path, sharing=Sharing(replicas=3)))
    async with asyncio.timeout(health.POLL_SECONDS / 2):
        assert await offers.get() == 3
    running.cancel()


@pytest.mark.parametrize("late", ["dev/nvhost-ctrl-gpu", "dev/nvgpu/igpu0/prof"])
async def test_device_nodes_that_come_late_are_found_within_a_minute(tmp_path: Path, late: str) -> None:
    root, away = tmp_path / "host", tmp_path / "away"
    boards.build(BOARDS["orinnano-jp6"], root)
    (root / late).rename(away)
    watched = Watched(root)
    assert await watched.looks() == "1 ok"
    assert f"/{late}" not in watched.offer.allocation.device_nodes
    away.rename(root / late)
    assert await watched.looks(60 // int(health.POLL_SECONDS)) == "1 ok"
    assert f"/{late}" in watched.offer.allocation.device_nodes
