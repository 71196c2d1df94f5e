# SPDX-License-Identifier: Apache-2.0
"""When to register with the kubelet, again and again.

A loop compares facts instead of trusting single events: which kubelet.sock is there now, is the plugin's own
socket still there, is the kubelet listening on a stream. Any difference from what was registered is a reason
to register, and the reason is in the log. Events only make the loop look sooner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from tegra_device_plugin.kubelet import api_pb2 as api
from tegra_device_plugin.kubelet.server import (
    OPTIONS,
    SOCKET_PREFIX,
    SOCKET_SUFFIX,
    Advertised,
    Endpoint,
    instance_prefix,
)
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity
from tegra_device_plugin.telemetry.exposition import Counters

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
MAX_SOCKET_PATH = 107  # bytes; sockaddr_un.sun_path without its NUL
LONGEST_NAME = len(f"/{instance_prefix()}-{10**9}{SOCKET_SUFFIX}")

logger = logging.getLogger(__name__)


class StaleMountError(OSError):
    """The directory that this container has mounted does not exist any more."""


@dataclass(frozen=True)
class Pace:
    """How often and how long, in seconds."""

    look: float = 5.0
    """Between looks when changes are heard by events: the safety net."""
    look_without_events: float = 0.25
    register: float = 12.0
    """For one Register: newer kubelets dial the plugin inside it and allow themselves 10 s."""
    stream: float = 2.0
    """From a Register to the kubelet's ListAndWatch, doubled each time that was too short: it takes
    milliseconds, but an older kubelet answers Register before it dials, and a busy one may dial late."""
    first_retry: float = 0.02
    last_retry: float = 5.0


@dataclass(frozen=True)
class Facts:
    """What one look at the socket directory and at the current endpoint shows."""

    resource: str | None
    """To be advertised; None: nothing."""
    kubelet: Identity | None
    own_socket: Identity | None = None
    streams: int = 0
    rivals: frozenset[str] = frozenset()
    """Sockets of other instances of this plugin that serve."""
    rival_ended: bool = False
    """One has ended since the last registration; the kubelet may have held on to it."""


@dataclass(frozen=True)
class Registered:
    """What was true when the kubelet accepted the last registration."""

    resource: str
    kubelet: Identity
    own_socket: Identity | None
    stream_until: float
    """When the kubelet should have opened its stream; seconds, the loop's clock."""


def reason_to_register(facts: Facts, registered: Registered | None, dialled: bool, now: float) -> str | None:
    """Say why the plugin has to register now; None if all is well or there is nothing to register with."""
    if facts.resource is None or facts.kubelet is None:
        return None
    if registered is None:
        return "not registered yet"
    return next(_differences(facts, registered, dialled, now), None)


def _differences(facts: Facts, registered: Registered, dialled: bool, now: float) -> Iterator[str]:
    if facts.kubelet != registered.kubelet:
        yield "the kubelet started anew"
    if facts.resource != registered.resource:
        yield f"the resource was {registered.resource} before"
    if facts.rival_ended:
        yield "another instance of the plugin has ended"
    if facts.own_socket != registered.own_socket:
        yield "the plugin's own socket is gone"
    if not facts.streams and dialled:
        yield "the kubelet's stream ended"
    if not dialled and now >= registered.stream_until:
        yield "the kubelet opened no stream"


def retry_delays(pace: Pace) -> Iterator[float]:
    """Seconds to wait after the first, second, ... registration in a row that did not last."""
    delay = pace.first_retry
    while True:
        yield min(delay, pace.last_retry)
        delay *= 2


class Registrar:
    """Keeps the current offer registered with whatever kubelet is there."""

    def __init__(
        self, directory: Path, advertised: Advertised, counted: Counters, pace: Pace | None = None
    ) -> None:
        self.endpoint: Endpoint | None = None
        self.looked_at = 0.0
        self._directory = directory
        self._advertised = advertised
        self._counted = counted
        self._pace = pace or Pace()
        self._patience = self._pace.stream
        self._was_registered = False
        self._rivals: frozenset[str] = frozenset()
        self._registered: Registered | None = None
        self._waiting_for: str | None = None
        self._wake = asyncio.Event()
        self._retiring: list[Endpoint] = []
        advertised.on_publish = self._wake.set

    @property
    def connected(self) -> bool:
        """True while the kubelet is listening to the current registration."""
        return self.endpoint is not None and self.endpoint.streams > 0

    @property
    def streams(self) -> int:
        """Open streams, of all registrations."""
        return sum(endpoint.streams for endpoint in self._endpoints)

    async def run(self) -> None:
        """Keep registered until cancelled; then end the streams and remove the sockets.

        Raises OSError when no socket in the directory can ever work.
        """
        check_length(self._directory)
        with DirectoryWatch(self._directory, self._wake.set) as watch:
            try:
                await self._keep_registered(watch)
            finally:
                await self._stop(self._endpoints)

    async def _keep_registered(self, watch: DirectoryWatch) -> None:
        clock = asyncio.get_running_loop().time
        kubelet: Identity | None = None
        delays = retry_delays(self._pace)
        not_before = connected_since = clock()
        while True:
            self._wake.clear()
            pause = self._pace.look if watch.rearm() else self._pace.look_without_events
            facts = self._look()
            self.looked_at = now = clock()
            if not self.connected:
                connected_since = now
            if facts.kubelet != kubelet or now - connected_since >= self._pace.last_retry:
                kubelet = facts.kubelet
                delays = retry_delays(self._pace)
                not_before = now
            reason = reason_to_register(facts, self._registered, self._dialled, now)
            if reason and self._must_give_way(facts):
                await self._give_way()
            elif reason and now < not_before:
                pause = min(pause, not_before - now)
            elif reason and facts.resource and facts.kubelet:
                listening = await self._register(reason, facts.resource, facts.kubelet, pause)
                # Asking whether anybody listens costs next to nothing, and no event tells when somebody does.
                longest = self._pace.last_retry if listening else self._pace.look_without_events
                not_before = clock() + min(next(delays), longest)
                continue
            elif self._registered and not self._dialled:
                pause = min(pause, max(self._registered.stream_until - now, 0))
            if facts.resource and not facts.kubelet:
                self._say_waiting(f"there is no {self._directory / KUBELET_SOCKET}")
            await self._retire()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    @property
    def _endpoints(self) -> tuple[Endpoint, ...]:
        return (*self._retiring, self.endpoint) if self.endpoint else tuple(self._retiring)

    @property
    def _dialled(self) -> bool:
        return self.endpoint is not None and self.endpoint.dialled

    def _look(self) -> Facts:
        check_mount(self._directory)
        offer = self._advertised.offer
        rivals = self._live_rivals()
        self._rivals |= rivals
        return Facts(
            rivals=rivals,
            rival_ended=rivals != self._rivals,
            resource=offer.resource if offer else None,
            kubelet=Identity.of(self._directory / KUBELET_SOCKET),
            own_socket=Identity.of(self.endpoint.path) if self.endpoint else None,
            streams=self.endpoint.streams if self.endpoint else 0,
        )

    def _live_rivals(self) -> frozenset[str]:
        """Names of the sockets on which other instances of this plugin serve."""
        own = {endpoint.name for endpoint in self._endpoints}
        return frozenset(
            path.name
            for path in self._directory.glob(f"{SOCKET_PREFIX}*{SOCKET_SUFFIX}")
            if path.name not in own and accepts(path)
        )

    def _must_give_way(self, facts: Facts) -> bool:
        """Tell whether a newer instance of this plugin serves here: then it has the resource, not this one.

        Two instances overlap while a DaemonSet is updated. Without an order each would register again
        whenever the other takes the resource over. Only the first registration of a process takes it unasked.
        """
        return self._was_registered and any(name > instance_prefix() for name in facts.rivals)

    async def _give_way(self) -> None:
        """End the own endpoints; the newer instance sees them vanish and makes sure that it is registered."""
        if self._endpoints:
            logger.info("a newer instance of the plugin serves here: standing by")
            await self._stop(self._endpoints)
            self.endpoint = self._registered = None
            self._retiring = []

    async def _stop(self, endpoints: Sequence[Endpoint]) -> None:
        await asyncio.gather(*(endpoint.stop() for endpoint in endpoints))

    async def _register(self, reason: str, resource: str, kubelet: Identity, pause: float) -> bool:
        """Register with the kubelet that is there now; False if nobody listens on its socket."""
        if not accepts(self._directory / KUBELET_SOCKET):
            self._say_waiting(f"nobody listens on {self._directory / KUBELET_SOCKET}")
            return False
        endpoint = Endpoint(self._directory, resource, self._advertised, self._counted, self._wake.set)
        try:
            await endpoint.start()
            await self._call(endpoint, kubelet, pause)
        except ConnectionResetError:
            await endpoint.stop()
            return True
        except (OSError, aio.AioRpcError) as error:
            self._counted.failed_registrations += 1
            detail = (
                f"{error.code().name}: {error.details()}"
                if isinstance(error, aio.AioRpcError)
                else str(error)
            )
            logger.warning("cannot register %s (%s): %s", resource, reason, detail)
            await endpoint.stop()
            return True
        except BaseException:
            await endpoint.stop()
            raise
        self._waiting_for = None
        self._counted.registrations += 1
        logger.info("registered %s as %s (%s)", resource, endpoint.name, reason)
        if self.endpoint:
            self._patience = self._pace.stream if self.endpoint.dialled else self._patience * 2
            self._retiring.append(self.endpoint)
        self.endpoint = endpoint
        stream_until = asyncio.get_running_loop().time() + self._patience
        self._was_registered = True
        self._rivals = self._live_rivals()
        self._registered = Registered(resource, kubelet, endpoint.identity, stream_until)
        return True

    def _say_waiting(self, what: str) -> None:
        if what != self._waiting_for:
            logger.info("waiting for the kubelet: %s", what)
            self._waiting_for = what

    async def _call(self, endpoint: Endpoint, kubelet: Identity, pause: float) -> None:
        """Ask the kubelet; give up as soon as another one is there, for then the answer means nothing."""
        path = self._directory / KUBELET_SOCKET
        request = api.RegisterRequest(
            version=API_VERSION, endpoint=endpoint.name, resource_name=endpoint.resource, options=OPTIONS
        )
        # A subchannel shared with an earlier attempt would bring that one's reconnection back-off along.
        channel = aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
        async with channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register", api.RegisterRequest.SerializeToString, api.Empty.FromString
            )
            call = asyncio.ensure_future(register(request, timeout=self._pace.register))
            try:
                while not call.done():
                    self._wake.clear()
                    if Identity.of(path) != kubelet:
                        raise ConnectionResetError
                    woken = asyncio.ensure_future(self._wake.wait())
                    await asyncio.wait((call, woken), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    woken.cancel()
                await call
            finally:
                call.cancel()
                # A failed call's exception refers to this frame. If that referred to the call, the channel
                # would stay connected until the collector of cyclic garbage comes.
                del call

    async def _retire(self) -> None:
        """Stop the endpoints of earlier registrations that nobody listens to, or that have been replaced."""
        done = [endpoint for endpoint in self._retiring if self.connected or not endpoint.streams]
        self._retiring = [endpoint for endpoint in self._retiring if endpoint not in done]
        for endpoint in done:
            await endpoint.stop()


def check_length(directory: Path) -> None:
    """Raise OSError if the sockets in `directory` would have longer paths than a socket's address takes."""
    spare = MAX_SOCKET_PATH - LONGEST_NAME - len(os.fsencode(directory))
    if spare < 0:
        raise OSError(f"{directory}: too long for the sockets in it, by {-spare} bytes")


def check_mount(directory: Path) -> None:
    """Raise OSError if `directory` was deleted under a mount of it, which then never shows the new one.

    A container that starts again gets the new one; ending is all that can be done about it from inside.
    """
    with suppress(FileNotFoundError):
        if directory.stat().st_nlink == 0:
            raise StaleMountError(
                f"{directory} was deleted on the host, and this container still has the deleted one: "
                "it has to start again"
            )


def accepts(path: Path) -> bool:
    """Tell whether somebody listens on the unix socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # the queue is full: busy, not dead
            return True
        except OSError:
            return False
    return True


def sweep(directory: Path) -> None:
    """Remove the sockets that killed instances left behind; a living one's answer."""
    for path in directory.glob(f"{SOCKET_PREFIX}*{SOCKET_SUFFIX}"):
        if not accepts(path):
            with suppress(OSError):
                path.unlink()
                logger.info("removed the stale socket %s", path.name)
