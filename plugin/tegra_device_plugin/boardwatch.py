# SPDX-License-Identifier: Apache-2.0
"""Observes the board periodically, and publishes its GPU."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from tegra_device_plugin.board import health
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.health import HEALTHY, UNKNOWN, Health, Hysteresis, Sample
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.hosttree import is_own_shortage
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.mounts import check_mounts
from tegra_device_plugin.system.waiting import BlockingCalls

READ_DEADLINE_SECONDS = 3.0
# From the start, in which a GPU that is not ready yet is observed more often. A board that boots loads its
# driver, and from L4T R34 on nvpmodel's service switches it on. Until then the kubelet refuses pods.
STARTING_SECONDS = 60.0
# A healthy GPU is detected again about once a minute, because device nodes can appear late.
OBSERVATIONS_PER_DETECTION = 12

logger = logging.getLogger(__name__)


class Settings(Protocol):
    @property
    def host_root(self) -> Path: ...


S = TypeVar("S", bound=Settings)
S_contra = TypeVar("S_contra", bound=Settings, contravariant=True)


class Prerequisite(Protocol):
    """Something that containers need besides a healthy GPU, such as a file that they mount.

    Both methods give HEALTHY or the problem. They raise OSError for a shortage of descriptors or memory.
    """

    def provide(self, found: Detection, *, renew: bool) -> Health:
        """Make what is missing. With `renew`, about once a minute, also repair what is damaged."""

    def check(self, found: Detection) -> Health:
        """Check without writing a file."""


class Prerequisites(NamedTuple):
    """Of containers with the GPU, and of containers with a share of its memory; each in order."""

    gpu: tuple[Prerequisite, ...] = ()
    memory: tuple[Prerequisite, ...] = ()


class Observation(NamedTuple):
    detection: Detection
    sample: Sample | None = None
    conflict: str | None = None
    """Why this process must not advertise the GPU."""
    gpu: Health = UNKNOWN
    """Whether containers can have the GPU, by this observation alone."""
    memory: Health = UNKNOWN
    """Whether containers can have a share of the GPU's memory."""


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

    def add(self, observation: Observation | None) -> Health:
        """Add an observation, None for one that failed or hung. Gives the GPU's health."""
        before, limit_problem = self.health, self.limit_problem
        self.health = now = self._gpu.observe(observation.gpu if observation else UNKNOWN)
        memory = self._memory.observe(observation.memory if observation else UNKNOWN)
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
        prerequisites: Prerequisites,
        publisher: Publisher[S],
        subscribers: Sequence[Subscriber[S]] = (),
        *,
        find_conflict: Callable[[], str | None] = lambda: None,
        complete: Callable[[Path, Detection], Detection] = lambda _, found: found,
        directories: Callable[[S], Iterable[Path]] = lambda _: (),
        is_standby: Callable[[], bool] = lambda: False,
    ) -> None:
        """`find_conflict` gives the reason why this process must not advertise the GPU. It may raise OSError.

        `complete` adds facts to each detection, below the host root. `directories` are those of the host that
        this process needs, by its present settings. While this instance `is_standby`, it writes no file: the
        instance that serves does, and can be of another release.
        """
        self.detection: Detection | None = None
        self.sample: Sample | None = None
        self.conflict: str | None = None
        self.observed_at = 0.0
        self._settings = settings
        self._prerequisites = prerequisites
        self._publisher = publisher
        self._subscribers = subscribers
        self._find_conflict = find_conflict
        self._complete = complete
        self._directories = directories
        self._is_standby = is_standby
        self._assessment = Assessment()
        self._blocking = BlockingCalls(READ_DEADLINE_SECONDS)
        self._observations = 0
        self._wake = asyncio.Event()
        self._failure_log, self._conflict_log = ProblemLog(), ProblemLog()

    @property
    def health(self) -> Health | None:
        return self._assessment.health

    @property
    def has_gpu(self) -> bool:
        return self.health is not None

    def use(self, settings: S, prerequisites: Prerequisites) -> None:
        """Observe the board now, and publish by other settings from then on."""
        self._settings = settings
        if prerequisites != self._prerequisites:
            self._prerequisites = prerequisites
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
            starting = not (self.health and self.health.healthy) and loop.time() < starting_until
            await waiting.happens(
                self._wake, health.RECHECK_SECONDS if unsettled or starting else health.POLL_SECONDS
            )

    async def observe(self) -> None:
        """Observe the board once, and publish its GPU."""
        # The settings of the start of an observation: new ones can come before its end.
        settings = self._settings
        # An instance that starts serves from its first registration on, so it writes before that: a device
        # whose files are missing must never be advertised.
        standby = self._is_standby()
        observation: Observation | None = None
        shortage = False
        try:
            observation = await self._read(settings.host_root, standby)
        except OSError as error:
            # An unobserved GPU is unhealthy: a pod on a broken GPU is worse than a pod that waits.
            self._failure_log.warn(f"cannot observe the board: {describe_error(error, 'the read hangs')}")
            shortage = is_own_shortage(error)
        else:
            self._failure_log.resolved("the board can be observed again")
            if observation.detection != self.detection:
                _log_detection(observation.detection)
            self.detection, self.conflict = observation.detection, observation.conflict
        self.sample = observation.sample if observation else None
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
        gpu_health = self._assessment.add(observation)
        limit_problem = self._assessment.limit_problem
        self._publisher.publish(settings, self.detection, gpu_health, limit_problem)
        for subscriber in () if standby else self._subscribers:
            await subscriber(settings, self.detection, (gpu_health.healthy and limit_problem) or gpu_health)

    async def _read(self, root: Path, standby: bool) -> Observation:
        """Read the board in a thread. Raises OSError."""
        known, prerequisites = self.detection, self._prerequisites
        stable = self.health is not None and self.health.healthy and self._assessment.settled
        search = not stable or self._observations % OBSERVATIONS_PER_DETECTION == 0
        self._observations += 1
        return await self._blocking.run(
            lambda: self._read_now(root, known, prerequisites, search=search, standby=standby)
        )

    def _read_now(
        self,
        root: Path,
        known: Detection | None,
        prerequisites: Prerequisites,
        *,
        search: bool,
        standby: bool,
    ) -> Observation:
        """Read the board. A vanished GPU keeps its last detection; its sample shows the missing part."""
        found = detect(root) if known is None or search else known
        if known and known.gpu.state != "absent" and found.gpu.state == "absent":
            found = known
        if found.gpu.state == "absent":
            return Observation(found)
        if conflict := self._find_conflict():
            return Observation(found, conflict=conflict)
        found = self._complete(root, found)
        sample = health.sample(root, found.gpu)

        def fulfil(one: Prerequisite) -> Health:
            return one.check(found) if standby else one.provide(found, renew=search)

        return Observation(
            found,
            sample,
            gpu=_first_problem(health.assess(sample), map(fulfil, prerequisites.gpu)),
            memory=_first_problem(HEALTHY, map(fulfil, prerequisites.memory)),
        )


def _first_problem(first: Health, others: Iterable[Health]) -> Health:
    """Give the first health that is not healthy, and `first` if all are. The others are read up to it."""
    return first if not first.healthy else next((one for one in others if not one.healthy), first)


def _log_detection(found: Detection) -> None:
    board, gpu = found.board, found.gpu
    if gpu.state == "absent":
        places = "; ".join(f"{one.source}: {one.detail}" for one in found.evidence)
        logger.warning("no Tegra GPU here, so nothing is advertised; searched: %s", places)
    else:
        name = board.module or board.model or board.soc
        nodes = len(gpu.device_nodes)
        logger.info("GPU %s of %s, L4T %s: %s, %d device nodes", gpu.chip, name, board.l4t, gpu.state, nodes)
