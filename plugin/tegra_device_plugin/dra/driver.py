# SPDX-License-Identifier: Apache-2.0
"""`dra`: starts and stops board, kubelet, API server and pages together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import POWER_MODE_DIRECTORY, Detection, with_power
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.boardwatch import BoardWatch, Prerequisites
from tegra_device_plugin.config.dra_modes import describe
from tegra_device_plugin.config.settings import DraSettings
from tegra_device_plugin.dra import checkpoint
from tegra_device_plugin.dra.api_server import Server
from tegra_device_plugin.dra.claimstore import NodeState
from tegra_device_plugin.dra.devices import Gpu
from tegra_device_plugin.dra.driver_sockets import DriverRegistration, HealthFeed, dra_services
from tegra_device_plugin.dra.preparing import CallCounts, Preparer
from tegra_device_plugin.dra.slices import SlicePublisher, SliceWrites
from tegra_device_plugin.kubelet import driver_conflict
from tegra_device_plugin.service import ConfigWatch, Service
from tegra_device_plugin.sharing.memory_limit import LimitFiles, MemoryTotal
from tegra_device_plugin.system import mounts, waiting
from tegra_device_plugin.system.api_server import connected
from tegra_device_plugin.system.directorywatch import DirectoryWatch
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog

# Between checks of the CDI files. Where inotify works, events come first.
_FILES_SECONDS = 30.0
# From a change to the check. The driver's own commits are changes as well.
_FILES_CHANGED_SECONDS = 1.0

logger = logging.getLogger(__name__)


class DevicePublisher:
    """Passes each observation of the board to the slice, the health streams and the claims."""

    def __init__(self, publisher: SlicePublisher, health_feed: HealthFeed, node_state: NodeState) -> None:
        self.observed = asyncio.Event()
        self._publisher = publisher
        self._health_feed = health_feed
        self._node_state = node_state

    def publish(
        self, settings: DraSettings, found: Detection, gpu_health: Health, limit_problem: Health | None
    ) -> None:
        if gpu_health.healthy and limit_problem:
            gpu_health = limit_problem
        self._node_state.device_nodes, self._node_state.health = found.gpu.device_nodes, gpu_health
        self._publisher.publish(Gpu(found, gpu_health))
        self._health_feed.update(gpu_health)
        self.observed.set()

    def withdraw(self) -> None:
        self._publisher.publish(None)


class Driver(Service[DraSettings]):
    """The driver.

    It fails with OSError where the metrics address is taken, the device plugin serves this board or the
    checkpoint cannot be used.
    """

    def __init__(self, configuration: ConfigWatch[DraSettings]) -> None:
        """Read the settings; raises ConfigError."""
        super().__init__(configuration)
        self._calls = CallCounts()
        self._writes = SliceWrites()
        self._gpu_lock = driver_conflict.GpuLock(for_dra=True)

    async def _run_once(self) -> None:
        settings, dra = self._settings, self._settings.dra
        device_plugins = settings.kubelet_dir / "device-plugins"
        driver_conflict.refuse_beside_device_plugin(device_plugins)
        logger.info("mode %s: %s", dra.mode, "; ".join(describe(dra)))
        async with AsyncExitStack() as stack:
            node_state = NodeState(
                root=settings.host_root,
                pool=settings.node_name,
                checkpoint=driver_conflict.dra_directory(settings.kubelet_dir) / checkpoint.NAME,
                limit_dir=settings.gpu_limit_dir,
                limit_library=settings.gpu_limit_library,
                overhead=dra.context_overhead,
                cdi_version=settings.cdi_version,
            )
            connection: asyncio.Future[Server] = asyncio.get_running_loop().create_future()

            async def get_claim(namespace: str, name: str) -> Mapping[str, Any] | None:
                return await (await asyncio.shield(connection)).claim(namespace, name)

            preparer = Preparer(node_state, get_claim, self._calls)
            stack.push_async_callback(preparer.finish)
            health_feed = HealthFeed(settings.node_name, dra.devices)
            publisher = SlicePublisher(dra, self._writes)
            devices = DevicePublisher(publisher, health_feed, node_state)
            board = BoardWatch(
                settings,
                _prerequisites(settings),
                devices,
                find_conflict=lambda: self._gpu_lock.conflict(device_plugins),
                complete=with_power,
                directories=mounted_directories,
            )
            registration = DriverRegistration(
                settings.kubelet_dir, dra_services(preparer, health_feed, settings.node_name)
            )
            if settings.metrics_address:
                from tegra_device_plugin.dra.driver_pages import Pages  # noqa: PLC0415 - most of a start is imports
                from tegra_device_plugin.telemetry import httpd  # noqa: PLC0415 - the same

                pages = Pages(
                    board, registration, publisher, preparer, calls=self._calls, writes=self._writes
                )
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, pages.by_path()))
            await self._run_parts(
                board.run(),
                registration.run(),
                _publish(settings.node_name, publisher, connection),
                _keep_files(settings.host_root, preparer, devices.observed),
                self._follow_configuration(),
            )


def _prerequisites(settings: DraSettings) -> Prerequisites:
    total = settings.dra.configured_memory
    return Prerequisites(
        gpu=(cdi.SpecFile(settings.host_root, settings.cdi_version),),
        memory=(MemoryTotal(total), LimitFiles(settings.gpu_limit_dir, settings.gpu_limit_library))
        if total
        else (),
    )


def mounted_directories(settings: DraSettings) -> Iterator[Path]:
    """Give directories of the host that can be deleted under the container's mount."""
    kubelet = settings.kubelet_dir
    yield from (
        driver_conflict.dra_directory(kubelet),
        kubelet / "plugins_registry",
        kubelet / "device-plugins",
    )
    yield settings.gpu_limit_dir
    yield from mounts.on_host(settings.host_root, cdi.DIRECTORY, cdi.RUNTIME_DIRECTORY, POWER_MODE_DIRECTORY)


async def _publish(node: str, publisher: SlicePublisher, connection: asyncio.Future[Server]) -> None:
    """Connect to the API server and publish. Raises OSError without credentials."""
    async with connected(Server(node)) as server:
        connection.set_result(server)
        await publisher.run(server)


async def _keep_files(root: Path, preparer: Preparer, observed: asyncio.Event) -> None:
    """Keep the files of prepared claims: a reboot or a person can empty the CDI directory."""
    problem_log, wake = ProblemLog(), asyncio.Event()
    await observed.wait()  # the board's own CDI spec was written
    with DirectoryWatch(Path(HostTree(root).real(cdi.DIRECTORY)), on_change=wake.set) as watch:
        while True:
            wake.clear()
            watch.rearm()
            try:
                await preparer.restore()
            except OSError as error:
                problem_log.warn(f"cannot restore the files of prepared claims: {error}")
            else:
                problem_log.resolved("the files of prepared claims are restored again")
            if await waiting.happens(wake, _FILES_SECONDS):
                await asyncio.sleep(_FILES_CHANGED_SECONDS)
