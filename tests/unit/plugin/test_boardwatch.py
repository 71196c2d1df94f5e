# SPDX-License-Identifier: Apache-2.0
"""From the observations of a board to the advertised resources."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from tegra_device_plugin import boardwatch
from tegra_device_plugin.board import health
from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.file import Sharing
from tegra_device_plugin.config.options import DeviceListStrategy
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.units import Memory, Units
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources
from tegra_device_plugin.plugin import ResourcePublisher, prerequisites
from tegra_device_plugin.sharing.allocation import Resource
from tegra_device_plugin.system.waiting import BlockingCalls

from tests import boards

BOARDS = boards.load()


class WatchedBoard:
    def __init__(self, root: Path, settings: PluginSettings | None = None) -> None:
        self.advertised = AdvertisedResources()
        settings = settings or PluginSettings(host_root=root)
        self.watch = BoardWatch(settings, prerequisites(settings), ResourcePublisher(self.advertised))

    def use(self, settings: PluginSettings) -> None:
        self.watch.use(settings, prerequisites(settings))

    @property
    def resource(self) -> Resource:
        (resource,) = self.advertised.resources.values()
        return resource

    async def observe(self, count: int = 1) -> str:
        for _ in range(count):
            await self.watch.observe()
        found = [
            f"{len(resource.ids)} {resource.health.reason}" for resource in self.advertised.resources.values()
        ]
        return ", ".join(found) or "nothing"


async def test_an_observation_that_hangs_or_fails_is_not_healthy(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedBoard(orin)
    assert await watched.observe() == "1 ok"
    monkeypatch.setattr(
        watched.watch, "_blocking", BlockingCalls(deadline=2)
    )  # enough for an observation on a busy machine
    hanging, original = threading.Event(), health.sample

    def hang(*_arguments: object) -> None:
        hanging.wait()

    with monkeypatch.context() as patch:
        patch.setattr(health, "sample", hang)
        assert await watched.observe(2) == "1 unknown"
    assert health.sample is original
    assert await watched.observe() == "1 unknown"  # the first read still hangs
    hanging.set()
    for thread in threading.enumerate():
        if thread.name == "blocking-call":
            thread.join(5)
    assert await watched.observe(3) == "1 ok"


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
    watched = WatchedBoard(tmp_path)
    before = await watched.observe()

    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        patch.setattr(os, "listdir", refuse)
        assert await watched.observe(3) == before
    assert caplog.text.count(f"cannot observe the board: [Errno {number}]") == 1
    (tmp_path / "dev/nvmap").unlink(missing_ok=True)
    assert await watched.observe(2) != "1 ok"


def unreadable(*_arguments: object) -> None:
    raise PermissionError


BY_CDI: tuple[DeviceListStrategy, ...] = ("cdi-cri",)


async def test_a_board_without_csv_files_is_unhealthy_for_that_reason_until_they_come(
    orin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lists = tmp_path / "lists"
    boards.write_run(orin)
    (orin / "etc/nvidia-container-runtime").rename(lists)
    watched = WatchedBoard(orin, PluginSettings(host_root=orin, device_list_strategy=BY_CDI))
    assert await watched.observe(4) == "1 cdi-missing"
    assert caplog.text.count("host-files-for-container.d") == 1
    assert "cannot observe" not in caplog.text
    assert watched.watch.sample is not None
    with monkeypatch.context() as patch:
        patch.setattr(health, "sample", unreadable)
        assert await watched.observe() == "1 cdi-missing"
    lists.rename(orin / "etc/nvidia-container-runtime")
    assert await watched.observe() == "1 ok"


async def test_cdi_devices_are_advertised_only_with_their_spec(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards.write_run(orin)
    watched = WatchedBoard(orin)
    assert await watched.observe() == "1 ok"
    advertised_with_spec: list[bool] = []
    advertise = watched.advertised.advertise

    def advertised(resources: Iterable[Resource]) -> None:
        advertise(resources)
        if watched.resource.allocation.cdi_devices:
            advertised_with_spec.append((orin / "run/cdi/tegra-device-plugin.json").is_file())

    monkeypatch.setattr(watched.advertised, "advertise", advertised)
    watched.use(PluginSettings(host_root=orin, device_list_strategy=BY_CDI))
    assert advertised_with_spec == []
    assert await watched.observe() == "1 ok"
    assert advertised_with_spec == [True]


async def test_an_instance_that_stands_by_writes_nothing_but_needs_the_files(
    orin: Path, tmp_path: Path
) -> None:
    """Another one serves, perhaps of another release, and has written them."""
    boards.write_run(orin)
    spec, library = orin / "run/cdi/tegra-device-plugin.json", tmp_path / "limit/libtegra-gpu-limit.so"
    (tmp_path / "library.so").write_bytes(b"ours")
    settings = PluginSettings(
        host_root=orin,
        device_list_strategy=BY_CDI,
        gpu_limit_dir=tmp_path / "limit",
        gpu_limit_library=tmp_path / "library.so",
        units=Units("none", Memory("example.com/memory"), memory_total=1 << 30, memory_ids=4),
    )
    reported: list[bool] = []

    async def report(_settings: PluginSettings, _found: Detection, found: health.Health) -> None:
        reported.append(found.healthy)

    standby = True
    advertised = AdvertisedResources()
    watch = BoardWatch(
        settings,
        prerequisites(settings),
        ResourcePublisher(advertised),
        [report],
        is_standby=lambda: standby,
    )

    async def observe() -> str:
        await watch.observe()
        (memory,) = advertised.resources.values()
        return memory.health.reason

    assert await observe() == "cdi-missing"
    assert not spec.exists() and not library.exists()
    standby = False
    assert await observe() == "ok"
    standby = True
    spec.write_text("{}")
    library.write_bytes(b"theirs")
    for _ in range(12):
        assert await observe() == "ok"
    assert (spec.read_text(), library.read_bytes()) == ("{}", b"theirs")
    assert reported == [True]
    standby = False
    for _ in range(12):
        await observe()
    assert (len(spec.read_text()) > 100, library.read_bytes()) == (True, b"ours")


@pytest.mark.parametrize("late", ["dev/nvhost-ctrl-gpu", "dev/nvgpu/igpu0/prof"])
async def test_device_nodes_that_come_late_are_found_within_a_minute(
    orin: Path, tmp_path: Path, late: str
) -> None:
    away = tmp_path / "away"
    (orin / late).rename(away)
    watched = WatchedBoard(orin)
    assert await watched.observe() == "1 ok"
    assert f"/{late}" not in watched.resource.allocation.device_nodes
    away.rename(orin / late)
    assert await watched.observe(60 // int(health.POLL_SECONDS) - 1) == "1 ok"
    assert f"/{late}" not in watched.resource.allocation.device_nodes  # the board is not detected each time
    assert await watched.observe() == "1 ok"
    assert f"/{late}" in watched.resource.allocation.device_nodes


@pytest.mark.parametrize("starting", [True, False])
async def test_a_gpu_that_is_switched_on_while_the_board_boots_is_found_without_delay(
    orin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: bool
) -> None:
    node, away = orin / "dev/nvmap", tmp_path / "away"
    node.rename(away)
    monkeypatch.setattr(boardwatch, "STARTING_SECONDS", 60.0 if starting else 0.0)
    monkeypatch.setattr(health, "RECHECK_SECONDS", 0.01)
    watched = WatchedBoard(orin)
    changed = watched.advertised.changed
    running = asyncio.ensure_future(watched.watch.run())
    await changed.wait()
    assert watched.resource.health.reason == "nodes-missing"
    changed = watched.advertised.changed
    away.rename(node)
    try:
        async with asyncio.timeout(health.POLL_SECONDS / 2):
            await changed.wait()
        assert watched.resource.health.reason == "ok"
    except TimeoutError:
        assert not starting
    else:
        assert starting
    finally:
        running.cancel()


async def test_other_settings_take_effect_before_the_next_poll(orin: Path) -> None:
    watched = WatchedBoard(orin)
    changed = watched.advertised.changed
    running = asyncio.ensure_future(watched.watch.run())
    await changed.wait()
    assert len(watched.resource.ids) == 1
    changed = watched.advertised.changed
    watched.use(PluginSettings(host_root=orin, sharing=Sharing(replicas=3)))
    async with asyncio.timeout(health.POLL_SECONDS / 2):
        await changed.wait()
    assert len(watched.resource.ids) == 3
    running.cancel()


async def test_other_settings_do_not_make_one_failed_observation_count(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settings that are read again, nor new ones with other things to check."""
    boards.write_run(orin)
    watched = WatchedBoard(orin)
    assert await watched.observe() == "1 ok"
    for settings in (
        PluginSettings(host_root=orin),
        PluginSettings(host_root=orin, device_list_strategy=BY_CDI),
    ):
        watched.use(settings)
        with monkeypatch.context() as patch:
            patch.setattr(health, "sample", unreadable)
            assert await watched.observe() == "1 ok"
        assert await watched.observe() == "1 ok"


async def test_new_settings_whose_prerequisites_fail_count_at_the_first_observation(orin: Path) -> None:
    watched = WatchedBoard(orin)
    assert await watched.observe() == "1 ok"
    (orin / "etc/nvidia-container-runtime").rename(orin / "away")
    watched.use(PluginSettings(host_root=orin, device_list_strategy=BY_CDI))
    assert await watched.observe() == "1 cdi-missing"


async def test_a_cdi_spec_that_is_removed_comes_back_at_the_next_observation(orin: Path) -> None:
    boards.write_run(orin)
    spec = orin / "run/cdi/tegra-device-plugin.json"
    watched = WatchedBoard(orin, PluginSettings(host_root=orin, device_list_strategy=BY_CDI))
    assert await watched.observe() == "1 ok"
    made = spec.read_text()
    spec.unlink()
    assert await watched.observe() == "1 ok"
    assert spec.read_text() == made


@pytest.mark.parametrize("damage", [b"{}", b"\xff\xfe not text"])
async def test_a_damaged_cdi_spec_is_repaired_within_a_minute(orin: Path, damage: bytes) -> None:
    boards.write_run(orin)
    spec = orin / "run/cdi/tegra-device-plugin.json"
    watched = WatchedBoard(orin, PluginSettings(host_root=orin, device_list_strategy=BY_CDI))
    assert await watched.observe() == "1 ok"
    made = spec.read_bytes()
    spec.write_bytes(damage)
    await watched.observe(60 // int(health.POLL_SECONDS))
    assert spec.read_bytes() == made
