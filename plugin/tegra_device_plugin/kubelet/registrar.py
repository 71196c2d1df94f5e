# SPDX-License-Identifier: Apache-2.0
"""Observes the kubelet's socket directory, and executes the decisions of registration.py for one resource.

Events only cause an earlier observation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set
from contextlib import closing
from pathlib import Path

from grpc import aio

from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet import registration as steps
from tegra_device_plugin.kubelet import sockets
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters, Endpoint
from tegra_device_plugin.kubelet.registration import Facts, Register, Standby, State, Wait
from tegra_device_plugin.kubelet.sockets import Instance
from tegra_device_plugin.sharing.allocation import Registration
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity

API_VERSION = "v1beta1"

# Seconds between observations, with and without events of the directory.
OBSERVE_SECONDS = 5.0
OBSERVE_WITHOUT_EVENTS_SECONDS = 0.25
# How long a new socket of another plugin counts without a listener: bind(2) is an event, listen(2) is none.
LISTEN_SECONDS = 0.05
# Deadline of Register: newer kubelets dial the plugin during the call, for up to 10 s.
REGISTER_SECONDS = 12.0
# Deadline for the kubelet's list of devices: it answers from memory.
LIST_SECONDS = 2.0

logger = logging.getLogger(__name__)


class NewKubeletError(Exception):
    """The kubelet was replaced during the call, so its answer is void."""


class Registrar:
    """Keeps one resource registered with the current kubelet."""

    def __init__(
        self,
        registration: Registration,
        directory: Path,
        watch: DirectoryWatch,
        advertised: AdvertisedResources,
        counted: Counters,
        *,
        instance: Instance,
        was_registered: bool,
    ) -> None:
        """Start inside a running event loop. The owner of `watch` calls `wake` at its events.

        `was_registered`: this process has registered before, possibly another resource.
        """
        self._instance = instance
        self.observed_at = _now()
        self.yields = False
        self._directory = directory
        self._watch = watch
        self._registration = registration
        self._resource = registration.resource
        self._kubelet_socket = directory / sockets.KUBELET_SOCKET
        self._advertised = advertised
        self._counted = counted
        self._state = State(was_registered=was_registered, standby=instance.standby)
        self._endpoint: Endpoint | None = None
        self._retiring: list[Endpoint] = []
        self._logged: str | None = None
        # Sockets of other plugins on which nobody listened, and those of them that are new.
        self._without_listener: Set[str] = frozenset()
        self._starting: Set[str] = frozenset()
        self._wake = asyncio.Event()

    @property
    def connected(self) -> bool:
        """True while the kubelet has a stream of the current registration."""
        return self._endpoint is not None and self._endpoint.streams > 0

    @property
    def was_registered(self) -> bool:
        """True from the first registration on."""
        return self._state.was_registered

    @property
    def streams(self) -> int:
        return sum(endpoint.streams for endpoint in self._endpoints)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Keep registered until cancelled; then end the streams and remove the sockets."""
        try:
            while True:
                self._wake.clear()
                pause = OBSERVE_SECONDS if self._watch.rearm() else OBSERVE_WITHOUT_EVENTS_SECONDS
                await waiting.happens(self._wake, await self._reconcile(pause))
        finally:
            await self._stop_all()

    async def _reconcile(self, pause: float) -> float:
        """Observe once and act; give the seconds until the next observation, at most `pause`."""
        facts = self._observe()
        self.observed_at = now = _now()
        self._state = steps.after_observation(facts, self._state, now)
        self.yields = steps.yields(facts, self._state)
        if self.yields:
            self._log_once("another instance of the plugin serves here: standing by")
        match steps.step(facts, self._state, now):
            case Register() as register:
                if register.unless_listed and await self._is_listed():
                    logger.info("%s; the kubelet still has %s", register.reason, self._resource)
                    self._state = steps.after_listed(facts, self._state)
                else:
                    await self._register(register, facts, pause)
                return 0.0
            case Standby():
                await self._stop_all()
                self._state = steps.after_standby(self._state)
            case Wait(seconds) if seconds is not None:
                pause = min(pause, seconds)
        if not facts.kubelet:
            self._log_once(f"waiting for the kubelet: there is no {self._kubelet_socket}")
            # The kernel does not report a removed directory while a socket of this process is bound in it.
            pause = min(pause, OBSERVE_WITHOUT_EVENTS_SECONDS)
        if self._starting:
            pause = min(pause, LISTEN_SECONDS)
        await self._retire()
        return pause

    @property
    def _endpoints(self) -> tuple[Endpoint, ...]:
        return (*self._retiring, self._endpoint) if self._endpoint else tuple(self._retiring)

    def _observe(self) -> Facts:
        endpoint, others = self._endpoint, self._instance.others(self._directory)
        foreign = sockets.foreign(self._directory)
        serving = _serving(others | foreign)
        without_listener = (others.keys() | foreign.keys()) - serving
        self._starting, self._without_listener = without_listener - self._without_listener, without_listener
        present = serving | self._starting
        other_sockets = present & others.keys()
        foreign_sockets = present & foreign.keys()
        if new := foreign_sockets - self._state.foreign_sockets:
            logger.debug("sockets of other device plugins: %s", ", ".join(sorted(new)))
        return Facts(
            kubelet=Identity.of(self._kubelet_socket),
            own_socket=Identity.of(endpoint.path) if endpoint else None,
            streams=endpoint.streams if endpoint else 0,
            dialled=endpoint is not None and endpoint.dialled,
            other_sockets=other_sockets,
            superseded=any(map(self._instance.yields_to, other_sockets)),
            foreign_sockets=foreign_sockets,
        )

    async def _is_listed(self) -> bool:
        """True if the kubelet reports that it has the plugin's healthy devices.

        Each registration drops the resource to 0 for milliseconds with the kubelets 1.26 to 1.36, so the end
        of a plugin with other resources is no reason for it.
        """
        from tegra_device_plugin.kubelet import pod_resources  # noqa: PLC0415 - few plugins need it

        resource = self._advertised.resources.get(self._resource)
        healthy = set(resource.ids) - set(resource.unhealthy_ids) if resource else set()
        try:
            listed = await pod_resources.list_allocatable(pod_resources.beside(self._directory), LIST_SECONDS)
        except OSError:
            return False
        return bool(healthy) and healthy <= (listed or {}).get(self._resource, set())

    async def _register(self, register: Register, facts: Facts, pause: float) -> None:
        """Register on a new socket; check every `pause` seconds that the kubelet is the same."""
        if not sockets.accepts(self._kubelet_socket):
            self._log_once(f"waiting for the kubelet: no process listens on {self._kubelet_socket}")
            self._state = steps.after_no_listener(self._state, _now())
            return
        path = self._directory / self._instance.new_socket()
        endpoint = Endpoint(path, self._registration, self._advertised, self._counted, self.wake)
        started = _now()
        try:
            await endpoint.start()
            await self._call(endpoint, register.kubelet, pause)
        except (OSError, aio.AioRpcError, NewKubeletError) as error:
            await endpoint.stop()
            self._state = steps.after_failure(self._state, _now())
            if not isinstance(error, NewKubeletError):
                self._counted.failed_registrations += 1
                self._counted.registration_durations.observe(_now() - started)
                logger.warning(
                    "cannot register %s (%s): %s", self._resource, register.reason, _describe(error)
                )
            return
        except BaseException:
            await endpoint.stop()
            raise
        self._logged = None
        self._counted.registrations += 1
        self._counted.registration_durations.observe(_now() - started)
        logger.info("registered %s as %s (%s)", self._resource, endpoint.name, register.reason)
        if self._endpoint:
            self._retiring.append(self._endpoint)
        self._endpoint = endpoint
        self._state = steps.after_acceptance(
            register,
            facts,
            self._state,
            _now(),
            own_socket=endpoint.identity,
            other_sockets=_serving(self._instance.others(self._directory)),
            foreign_sockets=_serving(sockets.foreign(self._directory)),
        )

    async def _call(self, endpoint: Endpoint, kubelet: Identity, pause: float) -> None:
        """Call Register. Raises NewKubeletError as soon as the kubelet is replaced."""
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=endpoint.name,
            resource_name=endpoint.resource,
            options=endpoint.options,
        )
        # A subchannel shared with an earlier attempt would keep the back-off of that attempt.
        options = [("grpc.use_local_subchannel_pool", 1)]
        sockets.check_descriptors()
        async with aio.insecure_channel(f"unix:{self._kubelet_socket}", options=options) as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register", api.RegisterRequest.SerializeToString, api.Empty.FromString
            )
            call = asyncio.ensure_future(register(request, timeout=REGISTER_SECONDS))
            call.add_done_callback(lambda _: self._wake.set())
            try:
                while not call.done():
                    self._wake.clear()
                    if Identity.of(self._kubelet_socket) != kubelet:
                        raise NewKubeletError
                    await waiting.happens(self._wake, pause)
                await call
            finally:
                call.cancel()
                # A failed call's exception refers to this frame. If that referred to the call, the channel
                # would stay connected until the garbage collector runs.
                del call

    async def _retire(self) -> None:
        """Stop the endpoints of earlier registrations that have no stream or were replaced."""
        done = [endpoint for endpoint in self._retiring if self.connected or not endpoint.streams]
        self._retiring = [endpoint for endpoint in self._retiring if endpoint not in done]
        for endpoint in done:
            await endpoint.stop()

    async def _stop_all(self) -> None:
        endpoints, self._endpoint, self._retiring = self._endpoints, None, []
        await asyncio.gather(*(endpoint.stop() for endpoint in endpoints))

    def _log_once(self, why_not_registered: str) -> None:
        if why_not_registered != self._logged:
            logger.info(why_not_registered)
            self._logged = why_not_registered


class Registrars:
    """Keeps all advertised resources registered with the current kubelet."""

    def __init__(
        self, instance: Instance, directory: Path, advertised: AdvertisedResources, counted: Counters
    ) -> None:
        self.directory = directory
        self._instance = instance
        self._advertised = advertised
        self._counted = counted
        self._running: dict[Registration, tuple[Registrar, asyncio.Task[None]]] = {}
        self._was_registered = False

    @property
    def observed_at(self) -> float:
        """The oldest observation of the registrars, or now without any. Seconds of the loop's clock."""
        return min((one.observed_at for one in self._all), default=asyncio.get_running_loop().time())

    @property
    def connected(self) -> bool:
        """True while the kubelet has a stream of every advertised resource."""
        return bool(self._running) and all(one.connected for one in self._all)

    @property
    def streams(self) -> int:
        return sum(one.streams for one in self._all)

    @property
    def yields(self) -> bool:
        """True while another instance serves and goes first."""
        if self._running:
            return any(one.yields for one in self._all)
        return self._instance.standby and any(
            serves and self._instance.yields_to(name)
            for name, serves in self._instance.others(self.directory).items()
        )

    async def run(self) -> None:
        """Keep all registered until cancelled; then end the streams and remove the sockets.

        Raises OSError when no socket in the directory can ever work.
        """
        sockets.check_length(self.directory)
        sockets.sweep(self.directory)
        with (
            DirectoryWatch(self.directory, on_change=self._wake_all) as watch,
            closing(sockets.Readiness(self.directory)) as readiness,
        ):
            async with asyncio.TaskGroup() as tasks:
                while True:
                    changed = self._advertised.changed
                    await self._follow(tasks, watch)
                    readiness.show(self._waits_for_the_kubelet())
                    await changed.wait()

    async def _follow(self, tasks: asyncio.TaskGroup, watch: DirectoryWatch) -> None:
        """Stop registrars of withdrawn resources, then start registrars of new resources."""
        advertised = {one.registration for one in self._advertised.resources.values()}
        self._was_registered |= any(one.was_registered for one in self._all)
        gone = [self._running.pop(one)[1] for one in self._running.keys() - advertised]
        for task in gone:
            task.cancel()
        if gone:
            await asyncio.wait(gone)
        for registration in sorted(advertised - self._running.keys()):
            registrar = Registrar(
                registration,
                self.directory,
                watch,
                self._advertised,
                self._counted,
                instance=self._instance,
                was_registered=self._was_registered,
            )
            self._running[registration] = registrar, tasks.create_task(registrar.run())

    def _waits_for_the_kubelet(self) -> bool:
        """True if a kubelet that starts now has all resources from this instance, with healthy devices."""
        return (
            self._instance.standby
            and self._advertised.complete
            and not sockets.accepts(self.directory / sockets.KUBELET_SOCKET)
        )

    @property
    def _all(self) -> list[Registrar]:
        return [registrar for registrar, _ in self._running.values()]

    def _wake_all(self) -> None:
        for one in self._all:
            one.wake()


def _serving(others: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(name for name, serves in others.items() if serves)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _describe(error: Exception) -> str:
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
