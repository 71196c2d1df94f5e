# SPDX-License-Identifier: Apache-2.0
"""Looks at the board again and again, and publishes what it can offer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tegra_device_plugin.board import cdi, health, power
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.health import Health, Hysteresis, Sample
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.log import describe_error
from tegra_device_plugin.system.sensor import Sensor

if TYPE_CHECKING:
    from pathlib import Path

    from tegra_device_plugin.config.units import Units
    from tegra_device_plugin.sharing.koordinator import Koordlet

READ_DEADLINE_SECONDS = 3.0
# A healthy GPU is searched anew now and then, for device nodes that came late. About a minute.
LOOKS_PER_DETECTION = 12

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What one look shows. A flaw is why no container can have the GPU, or memory of it, as was asked for."""

    detection: Detection
    sample: Sample | None = None
    flaw: Health | None = None
    limit_problem: Health | None = None


class Settings(Protocol):
    """What the observation of a board needs of a command's settings."""

    @property
    def host_root(self) -> Path:
        """Give the directory where the host's files are seen."""

    @property
    def cdi(self) -> bool:
        """Tell whether containers get the GPU by a CDI spec."""

    @property
    def units(self) -> Units | None:
        """Give the units that the GPU is divided into."""

    @property
    def configured_memory(self) -> int | None:
        """Give the bytes of GPU memory that are divided, None where memory is not divided."""

    @property
    def gpu_limit_dir(self) -> Path:
        """Give the directory of the files that limit memory."""

    @property
    def gpu_limit_library(self) -> Path:
        """Give the library that limits memory."""

    @property
    def reads_power(self) -> bool:
        """Tell whether the GPU's power is published."""


S = TypeVar("S", bound=Settings)
S_contra = TypeVar("S_contra", bound=Settings, contravariant=True)


class Publisher(Protocol[S_contra]):
    """Publishes the GPU at each observation."""

    def publish(
        self, settings: S_contra, found: Detection, verdict: Health, limit_problem: Health | None
    ) -> None:
        """Resource the GPU; `limit_problem` is why its memory cannot be limited here."""

    def withdraw(self) -> None:
        """There is no GPU, and never was."""


class BoardWatch(Generic[S]):
    """The board as it is now: `detection`, the last `sample` of its GPU and the `verdict` on it.

    Nothing is offered before a GPU was seen. A GPU that was seen once stays in the list and is unhealthy
    when it is gone: the node keeps its capacity, so everybody can see that a GPU is missing.
    """

    def __init__(self, settings: S, publisher: Publisher[S]) -> None:
        self.detection: Detection | None = None
        self.sample: Sample | None = None
        self.verdict: Health | None = None
        self.observed_at = 0.0
        self._settings = settings
        self._publisher = publisher
        self._hysteresis = Hysteresis()
        self._sensor = Sensor(READ_DEADLINE_SECONDS)
        self._looks = 0
        self._limit_problem: Health | None = None
        self._wake = asyncio.Event()
        self._koordlet: Koordlet | None = None

    @property
    def has_gpu(self) -> bool:
        """Tell whether a GPU was ever seen."""
        return self.verdict is not None

    def use(self, settings: S) -> None:
        """Look at once, and offer by other settings from then on."""
        self._settings = settings
        self._wake.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._wake.clear()
            await self.look()
            unsettled = self.has_gpu and not self._hysteresis.settled
            await waiting.happens(self._wake, health.RECHECK_SECONDS if unsettled else health.POLL_SECONDS)

    async def look(self) -> None:
        """Look once, and publish what changed."""
        settings, known = self._settings, self.detection
        all_well = self.verdict is not None and self.verdict.healthy and self._hysteresis.settled
        search = not all_well or self._looks % LOOKS_PER_DETECTION == 0
        self._looks += 1
        seen: Look | None = None
        try:
            seen = await self._sensor.read(lambda: _look(settings, known, search))
        except (OSError, TimeoutError) as error:
            # Not seen is not healthy: a pod on a dead GPU is worse than a pod that waits.
            logger.warning("cannot look at the board: %s", describe_error(error, "the read hangs"))
        else:
            if seen.detection != known:
                _tell(seen.detection)
            self.detection = seen.detection
        self.sample = seen.sample if seen else None
        self.observed_at = asyncio.get_running_loop().time()
        if self.detection and self.detection.gpu.state != "absent":
            verdict = self._judge(seen.flaw if seen else None)
            if seen:
                self._note_limit(seen.limit_problem)
            self._publisher.publish(settings, self.detection, verdict, self._limit_problem)
            if settings.units and settings.units.preset == "koordinator":
                await self._tell_koordlet(settings.host_root, settings.units, self.detection, verdict)
        elif self.detection:
            self._publisher.withdraw()

    async def _tell_koordlet(self, root: Path, units: Units, found: Detection, verdict: Health) -> None:
        """Report the GPU as Koordinator wants it: its names are used."""
        from tegra_device_plugin.sharing.koordinator import Koordlet  # noqa: PLC0415 - only with this preset

        self._koordlet = self._koordlet or Koordlet(root, self._sensor)
        flaw = self._limit_problem if verdict.healthy else None
        await self._koordlet.tell(found, units, flaw or verdict)

    def _judge(self, flaw: Health | None) -> Health:
        """Give the verdict: first on the GPU, then on what else a container would lack."""
        before, now = self.verdict, self._hysteresis.observe(self.sample)
        if now.healthy and flaw:
            now = flaw
        self.verdict = now
        if before is None or (before.healthy, before.reason) != (now.healthy, now.reason):
            level = logging.INFO if now.healthy else logging.WARNING
            state = "healthy" if now.healthy else "unhealthy"
            logger.log(level, "the GPU is %s: %s: %s", state, now.reason, now.detail)
        return now

    def _note_limit(self, flaw: Health | None) -> None:
        if flaw and flaw != self._limit_problem:
            logger.warning("memory of the GPU is not given out: %s: %s", flaw.reason, flaw.detail)
        self._limit_problem = flaw


def _look(settings: Settings, known: Detection | None, search: bool) -> Look:
    """Read the board. Of a vanished GPU the last detection is kept: its sample tells what is missing."""
    root = settings.host_root
    found = detect(root) if known is None or search else known
    if known and known.gpu.state != "absent" and found.gpu.state == "absent":
        found = known
    if found.gpu.state == "absent":
        return Look(found)
    if settings.reads_power:
        found = replace(found, power=power.read(root, found.gpu))
    return Look(
        found,
        health.sample(root, found.gpu),
        _provide_cdi(settings, found),
        _provide_limit(settings, settings.configured_memory, found) if settings.configured_memory else None,
    )


def _provide_cdi(settings: Settings, found: Detection) -> Health | None:
    """Write the CDI spec before the offer that names it: a runtime refuses a container without it.

    Gives why no container can have the GPU in the way that was asked for, None if all is well.
    """
    if not settings.cdi:
        return None
    try:
        cdi.write(settings.host_root, found.gpu.device_nodes)
    except OSError as error:
        return Health(False, "cdi-missing", f"no CDI spec, so no container can have it: {error}")
    return None


def _provide_limit(settings: Settings, total: int, found: Detection) -> Health | None:
    """Put the files of the memory limit in their place before the offer that mounts them.

    Gives why no container's memory can be limited here, None if all is well.
    """
    from tegra_device_plugin.sharing import limitfiles  # noqa: PLC0415 - only where memory is sold
    from tegra_device_plugin.system.quantity import MIB, render  # noqa: PLC0415 - the same

    there = found.gpu.memory_bytes
    if there is not None and total > there:
        sold, has = render(total), render(there // MIB * MIB)
        return Health(False, "memory-total", f"memoryTotal is {sold}, but the board has {has}: sell less")
    try:
        limitfiles.provide(settings.gpu_limit_dir, settings.gpu_limit_library)
    except OSError as error:
        return Health(False, "limit-missing", f"no container's memory could be limited: {error}")
    return None


def _tell(found: Detection) -> None:
    board, gpu = found.board, found.gpu
    if gpu.state == "absent":
        observed_at = "; ".join(f"{one.source}: {one.detail}" for one in found.evidence)
        logger.warning("no Tegra GPU here, so nothing is advertised; looked at %s", observed_at)
    else:
        name = board.module or board.model or board.soc
        nodes = len(gpu.device_nodes)
        logger.info("GPU %s of %s, L4T %s: %s, %d device nodes", gpu.chip, name, board.l4t, gpu.state, nodes)
