# SPDX-License-Identifier: Apache-2.0
"""Observes the board periodically, and publishes its GPU."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from tegra_device_plugin.board import cdi, health
from tegra_device_plugin.board.detection import Detection, detect, read_power
from tegra_device_plugin.board.health import HEALTHY, UNKNOWN, Health, Hysteresis, Sample
from tegra_device_plugin.config.settings import DraSettings, PluginSettings
from tegra_device_plugin.kubelet.driver_conflict import BothApisError
from tegra_device_plugin.sharing.allocation import brief
from tegra_device_plugin.sharing.memory_limit import check_files, provide_files
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.hosttree import HostTree, is_own_shortage, raise_own_shortage
from tegra_device_plugin.system.kubernetes import MIB, render_quantity
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.mounts import check_mounts
from tegra_device_plugin.system.waiting import Sensor

READ_DEADLINE_SECONDS = 3.0
# From the start, in which a GPU that is not ready yet is observed more often. A board that boots loads its
# driver, and from L4T R34 on nvpmodel's service switches it on. Until then the kubelet refuses pods.
STARTING_SECONDS = 60.0
# A healthy GPU is detected again about once a minute, because device nodes can appear late.
OBSERVATIONS_PER_DETECTION = 12

logger = logging.getLogger(__name__)


S = TypeVar("S", bound=PluginSettings | DraSettings)
S_contra = TypeVar("S_contra", bound=PluginSettings | DraSettings, contravariant=True)


class Observation(NamedTuple):
    detection: Detection
    sample: Sample | None = None
    conflict: str | None = None
    """Why this process must not advertise the GPU."""
    gpu: Health = UNKNOWN
    """Whether containers can have the GPU, by this observation alone."""
    memory: Health = UNKNOWN
    """Whether containers can have a share of the GPU's memory."""
    unseen: Sequence[str] = ()
    """Entries of NVIDIA's lists that are missing in the CDI spec, as far as they were read."""


class Publisher(Protocol[S_contra]):
    def publish(
        self, settings: S_contra, found: Detection, health: Health, limit_problem: Health | None
    ) -> None:
        """Advertise the GPU; `limit_problem` is why its memory cannot be limited."""

    def withdraw(self) -> None:
        """Advertise nothing: there never was a GPU, or the other API's process has it."""


Subscriber = Callable[[S, Detection, Health], Awaitable[None]]
"""Is called after each observation of an instance that serves, or that could: with the GPU's health, or the
reason why memory cannot be limited."""


class Assessment:
    """Health of the GPU and of its memory, after all observations so far."""

    def __init__(self) -> None:
        self.health: Health | None = None
        self.limit_problem: Health | None = None
        self._gpu = Hysteresis()
        self._memory = Hysteresis()

    def reconsider(self) -> None:
        """Other things than before are checked: the next observation of them decides."""
        self._gpu.reconsider()
        self._memory.reconsider()

    @property
    def settled(self) -> bool:
        """True if the last observation agrees with the earlier observations."""
        return self._gpu.settled and self._memory.settled

    def add(self, seen: Observation | None) -> Health:
        """Add an observation, None for one that failed or hung. Gives the GPU's health."""
        before, limit_problem = self.health, self.limit_problem
        self.health = now = self._gpu.observe(seen.gpu if seen else UNKNOWN)
        memory = self._memory.observe(seen.memory if seen else UNKNOWN)
        # A failed observation is a problem of the GPU, not of the memory limit.
        self.limit_problem = None if memory.healthy or memory == UNKNOWN else memory
        if before is None or (before.healthy, before.reason) != (now.healthy, now.reason):
            level = logging.INFO if now.healthy else logging.WARNING
            state = "healthy" if now.healthy else "unhealthy"
            logger.log(level, "the GPU is %s: %s: %s", state, now.reason, now.detail)
        if self.limit_problem and self.limit_problem != limit_problem:
            logger.warning("no memory of the GPU is allocated: %s: %s", memory.reason, memory.detail)
        return now


class BoardWatch(Generic[S]):
    """The board as it is now: `detection`, the last `sample` of its GPU and the GPU's `health`.

    Nothing is advertised before a GPU was found. A GPU that vanishes stays in the list as unhealthy. So the
    node keeps its capacity, and the missing GPU is visible.
    """

    def __init__(
        self,
        settings: S,
        publisher: Publisher[S],
        reserve: Callable[[], None] = lambda: None,
        subscribers: Sequence[Subscriber[S]] = (),
        *,
        directories: Callable[[S], Iterable[Path]] = lambda _: (),
        stands_by: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reserve` raises BothApisError while the GPU is the other API's (kubelet/driver_conflict.py).

        `directories` are those of the host that this process needs, by its present settings. While this
        instance `stands_by`, it writes no file: the one that serves does, and can be of another release.
        """
        self.detection: Detection | None = None
        self.sample: Sample | None = None
        self.conflict: str | None = None
        self.observed_at = 0.0
        self._settings = settings
        self._publisher = publisher
        self._subscribers = subscribers
        self._reserve = reserve
        self._directories = directories
        self._stands_by = stands_by
        self._assessment = Assessment()
        self._sensor = Sensor(READ_DEADLINE_SECONDS)
        self._observations = 0
        self._wake = asyncio.Event()
        self._failure_log, self._conflict_log, self._lists_log = ProblemLog(), ProblemLog(), ProblemLog()

    @property
    def health(self) -> Health | None:
        return self._assessment.health

    @property
    def has_gpu(self) -> bool:
        return self.health is not None

    def use(self, settings: S) -> None:
        """Observe the board now, and publish by other settings from then on."""
        before, self._settings = self._settings, settings
        if _checked(settings) != _checked(before):
            self._assessment.reconsider()
        self._wake.set()

    def check_mounts(self) -> None:
        """Raise StaleMountError if a directory of the host was deleted under its mount."""
        check_mounts(self._directories(self._settings))

    async def run(self) -> None:
        """Observe until cancelled. Raises StaleMountError: the next container mounts the new directory."""
        loop = asyncio.get_running_loop()
        starting_until = loop.time() + STARTING_SECONDS
        while True:
            self._wake.clear()
            self.check_mounts()
            await self.observe()
            unsettled = self.has_gpu and not self._assessment.settled
            late = not (self.health and self.health.healthy) and loop.time() < starting_until
            await waiting.happens(
                self._wake, health.RECHECK_SECONDS if unsettled or late else health.POLL_SECONDS
            )

    async def observe(self) -> None:
        settings, known, assessment = self._settings, self.detection, self._assessment
        all_well = self.health is not None and self.health.healthy and assessment.settled
        search = not all_well or self._observations % OBSERVATIONS_PER_DETECTION == 0
        self._observations += 1
        # A newcomer serves from its first registration on, so it writes before that: a device whose files
        # are missing must never be advertised.
        writes = not self._stands_by()
        seen: Observation | None = None
        shortage = False
        try:
            seen = await self._sensor.read(lambda: self._observe(settings, known, search, writes))
        except OSError as error:
            # An unobserved GPU is unhealthy: a pod on a broken GPU is worse than a pod that waits.
            self._failure_log.warn(f"cannot observe the board: {describe_error(error, 'the read hangs')}")
            shortage = is_own_shortage(error)
        else:
            self._failure_log.resolved("the board can be observed again")
            if seen.detection != known:
                _log_detection(seen.detection)
            self.detection, self.conflict = seen.detection, seen.conflict
            if seen.unseen:
                self._lists_log.warn(
                    "the CDI spec lacks entries of NVIDIA's lists that are not mounted here: "
                    f"{brief(seen.unseen)}: mount their directories below {settings.host_root}, read-only"
                )
        self.sample = seen.sample if seen else None
        self.observed_at = asyncio.get_running_loop().time()
        if shortage or self.detection is None:
            return  # this process lacks files or memory: the GPU keeps its health
        if self.conflict:
            self._conflict_log.warn(f"the GPU is not advertised: {self.conflict}")
        else:
            self._conflict_log.resolved("no other driver serves this board any more")
        if self.conflict or self.detection.gpu.state == "absent":
            self._publisher.withdraw()
            return
        now = assessment.add(seen)
        limit_problem = assessment.limit_problem
        self._publisher.publish(settings, self.detection, now, limit_problem)
        for subscriber in self._subscribers if writes else ():
            await subscriber(settings, self.detection, (now.healthy and limit_problem) or now)

    def _observe(self, settings: S, known: Detection | None, search: bool, writes: bool) -> Observation:
        """Read the board. A vanished GPU keeps its last detection; its sample shows the missing part."""
        root = settings.host_root
        found = detect(root) if known is None or search else known
        if known and known.gpu.state != "absent" and found.gpu.state == "absent":
            found = known
        if found.gpu.state == "absent":
            return Observation(found)
        try:
            self._reserve()
        except BothApisError as error:
            return Observation(found, conflict=str(error))
        if settings.reads_power:
            found = found._replace(power=read_power(root, found.gpu))
        sample = health.sample(root, found.gpu)
        return Observation(
            found,
            sample,
            gpu=_first_problem(_gpu_prerequisites(settings, found, sample, search, writes)),
            memory=_first_problem(_memory_prerequisites(settings, found, writes)),
            unseen=_unseen(root) if settings.cdi and search else (),
        )


def _unseen(root: Path) -> Sequence[str]:
    try:
        return cdi.unseen(root)
    except OSError as error:  # then there is no spec, either
        raise_own_shortage(error)
        return ()


def _checked(settings: PluginSettings | DraSettings) -> tuple[object, ...]:
    """Give the settings that decide which prerequisites there are, below."""
    return (
        *(settings.host_root, settings.cdi, settings.cdi_version),
        *(settings.configured_memory, settings.gpu_limit_dir, settings.gpu_limit_library),
    )


def _gpu_prerequisites(
    settings: PluginSettings | DraSettings, found: Detection, sample: Sample, search: bool, writes: bool
) -> Iterator[Health]:
    """Check everything without which no container can have the GPU."""
    yield health.assess(sample)
    if settings.cdi and (search or not HostTree(settings.host_root).link(cdi.SPEC_FILE)):
        # The spec comes before the devices that name it: a runtime rejects a container without it.
        yield _provided(
            (lambda: cdi.write(settings.host_root, found.gpu.device_nodes, settings.cdi_version))
            if writes
            else (lambda: cdi.check(settings.host_root)),
            Health(False, "cdi-missing", "no CDI spec, so no container can have it"),
        )


def _memory_prerequisites(
    settings: PluginSettings | DraSettings, found: Detection, writes: bool
) -> Iterator[Health]:
    """Check everything without which no container's memory can be limited, where memory is divided."""
    yield HEALTHY
    total, there = settings.configured_memory, found.gpu.memory_bytes
    if not total:
        return
    if there is not None and total > there:
        configured, has = render_quantity(total), render_quantity(there // MIB * MIB)
        yield Health(
            False, "memory-total", f"memoryTotal is {configured}, but the board has {has}: configure less"
        )
    yield _provided(
        (lambda: provide_files(settings.gpu_limit_dir, settings.gpu_limit_library))
        if writes
        else (lambda: check_files(settings.gpu_limit_dir)),
        Health(False, "limit-missing", "no container's memory could be limited"),
    )


def _first_problem(found: Iterator[Health]) -> Health:
    """Give the first health that is not healthy, and the first one if all are."""
    first = next(found)
    return first if not first.healthy else next((one for one in found if not one.healthy), first)


def _provided(provide: Callable[[], object], otherwise: Health) -> Health:
    """Write or check the files of a prerequisite; gives the health `otherwise` if that is not possible."""
    try:
        provide()
    except OSError as error:
        raise_own_shortage(error)
        return otherwise._replace(detail=f"{otherwise.detail}: {error}")
    return HEALTHY


def _log_detection(found: Detection) -> None:
    board, gpu = found.board, found.gpu
    if gpu.state == "absent":
        places = "; ".join(f"{one.source}: {one.detail}" for one in found.evidence)
        logger.warning("no Tegra GPU here, so nothing is advertised; searched: %s", places)
    else:
        name = board.module or board.model or board.soc
        nodes = len(gpu.device_nodes)
        logger.info("GPU %s of %s, L4T %s: %s, %d device nodes", gpu.chip, name, board.l4t, gpu.state, nodes)
