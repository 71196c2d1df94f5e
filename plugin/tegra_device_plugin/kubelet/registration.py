# SPDX-License-Identifier: Apache-2.0
"""When to register with the kubelet: a pure step from facts and state to an action.

The step compares facts and trusts no event: the identity of kubelet.sock, the plugin's own socket, the
kubelet's stream. Any difference from the last registration is a reason to register. registrar.py observes and
acts.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tegra_device_plugin.system.directorywatch import Identity
from tegra_device_plugin.system.waiting import Backoff

# Between attempts to register. The back-off resets once a stream has stayed open for `RETRY.cap` seconds.
RETRY = Backoff(first=0.02, cap=5.0)
# From a Register to the kubelet's ListAndWatch. It takes milliseconds, but a kubelet before 1.26 answers
# Register before it dials, and a busy one may dial late.
DIAL_TIMEOUT = Backoff(first=2.0, cap=32.0)
# Without a listener on kubelet.sock. An attempt is cheap, and no event reports a listener. That of a kubelet
# that starts comes within microseconds, and the kubelet soon admits pods.
LISTENER_RETRY = Backoff(first=0.001, cap=0.25)
# From the start of a kubelet, which removes all sockets, until a standby instance takes the others for
# gone. They register in milliseconds, where inotify is exhausted after 0.25 s (registrar.py), and after
# seconds on a busy board.
STAND_BY_SECONDS = 5.0
# How long a standby instance keeps a registration that another one had at the same time. The kubelet may have
# taken the standby's, and the other one registers again only if it has seen this one before it ended. It
# observes the directory at least this often (registrar.py).
CONTESTED_SECONDS = 6.0
# From the end of another project's plugin until this one checks whether the kubelet still has its devices. A
# plugin that restarts is back by then. It doubles with each registration for that reason: if two plugins
# replace each other, the alert TegraDevicePluginRegistersAgainAndAgain fires, and goes on firing (more than 5
# in 15 minutes).
FOREIGN_DELAY = Backoff(first=1.0, cap=128.0)

_FOREIGN_ENDED = "another device plugin has ended"


class Facts(NamedTuple):
    """An observation of the socket directory and of the current endpoint."""

    kubelet: Identity | None
    own_socket: Identity | None = None
    streams: int = 0
    """Open ListAndWatch streams of the current endpoint."""
    dialled: bool = False
    """Whether the current endpoint ever had one."""
    other_sockets: frozenset[str] = frozenset()
    """Sockets of other instances of this plugin that serve, or are about to."""
    superseded: bool = False
    """One of them goes first: it is of a newer instance, or this is a standby."""
    foreign_sockets: frozenset[str] = frozenset()
    """Sockets of other projects' device plugins that serve."""


class Registered(NamedTuple):
    """Facts at the kubelet's acceptance of the last registration."""

    kubelet: Identity
    own_socket: Identity | None
    stream_until: float
    """When the kubelet should have opened its stream; seconds, the loop's clock."""
    contested_until: float | None = None
    """This is a standby, and another instance served already: it must see this one before it ends."""


class State(NamedTuple):
    """State between observations. Times are seconds of the loop's clock."""

    registered: Registered | None = None
    was_registered: bool = False
    """Ever since the process started."""
    standby: bool = False
    """This instance serves only while no other does."""
    other_sockets: frozenset[str] = frozenset()
    """All that have served since the last registration; the kubelet may still use one."""
    foreign_sockets: frozenset[str] = frozenset()
    """All that have served since the last registration; the resource may be that of one of them."""
    foreign_ended_at: float | None = None
    """When one of them was first found to have ended."""
    foreign_registered_at: float | None = None
    """Last registration for that reason."""
    foreign_delay: Backoff = FOREIGN_DELAY
    kubelet: Identity | None = None
    """The kubelet of the last observation."""
    connected_since: float | None = None
    """Start of the kubelet's stream; None: there is no stream."""
    not_before: float = 0.0
    retry: Backoff = RETRY
    listener_retry: Backoff = LISTENER_RETRY
    dial_timeout: Backoff = DIAL_TIMEOUT


class Wait(NamedTuple):
    """Wait for at most `seconds`; None: until an event."""

    seconds: float | None = None


class Register(NamedTuple):
    """Register with the present kubelet; `reason` is for the log."""

    reason: str
    kubelet: Identity
    unless_listed: bool = False
    """Only if the kubelet no longer has the plugin's devices."""


class Standby(NamedTuple):
    """End all endpoints: another instance of this plugin serves here, and goes first.

    Two instances overlap while a DaemonSet is updated, and where one starts with the board's Docker. Without
    an order each would register again whenever the other registers. Only the first registration of a process
    ignores newer instances, unless it is a standby.
    """


def after_observation(facts: Facts, state: State, now: float) -> State:
    """Give the state after an observation. A new kubelet, or a stream of long standing, resets the delays.

    With a new kubelet, a standby instance lets the others register first.
    """
    connected_since = None
    if facts.streams:
        connected_since = now if state.connected_since is None else state.connected_since
    others = state.other_sockets
    state = state._replace(other_sockets=others | facts.other_sockets, connected_since=connected_since)
    state = _after_foreign_sockets(facts, state, now)
    not_before = now
    if facts.kubelet != state.kubelet:
        state = state._replace(
            kubelet=facts.kubelet,
            dial_timeout=state.dial_timeout.reset(),
            listener_retry=state.listener_retry.reset(),
            foreign_delay=state.foreign_delay.reset(),
        )
        if state.standby and others:
            not_before += STAND_BY_SECONDS
    elif connected_since is None or now - connected_since < state.retry.cap:
        return state
    return state._replace(retry=state.retry.reset(), not_before=not_before)


def step(facts: Facts, state: State, now: float) -> Wait | Register | Standby:
    """Decide on the action after `after_observation`."""
    if facts.kubelet is None:
        return Wait()
    reason = _reason(facts, state, now)
    if reason is None:
        return Wait(min((at - now for at in _deadlines(facts, state)), default=None))
    if yields(facts, state):
        return Standby()
    if now < state.not_before:
        return Wait(state.not_before - now)
    return Register(reason, facts.kubelet, unless_listed=reason == _FOREIGN_ENDED)


def yields(facts: Facts, state: State) -> bool:
    """True while this instance does not register, because another one goes first."""
    return facts.superseded and (state.was_registered or state.standby)


def after_acceptance(
    register: Register,
    facts: Facts,
    state: State,
    now: float,
    *,
    own_socket: Identity | None,
    other_sockets: frozenset[str],
    foreign_sockets: frozenset[str] = frozenset(),
) -> State:
    """Give the state after the kubelet has accepted a registration; `facts` are those it was decided on."""
    dial_timeout = state.dial_timeout
    if state.registered and state.registered.kubelet == register.kubelet:
        dial_timeout = dial_timeout.reset() if facts.dialled else dial_timeout.longer()
    contested_until = now + CONTESTED_SECONDS if state.standby and other_sockets else None
    registered = Registered(register.kubelet, own_socket, now + dial_timeout.seconds, contested_until)
    if register.unless_listed:
        state = state._replace(foreign_registered_at=now, foreign_delay=state.foreign_delay.longer())
    state = state._replace(
        registered=registered,
        was_registered=True,
        other_sockets=other_sockets,
        foreign_sockets=foreign_sockets,
        foreign_ended_at=None,
        dial_timeout=dial_timeout,
    )
    return after_failure(state, now)


def after_listed(facts: Facts, state: State) -> State:
    """Give the state after the kubelet has answered that it still has the plugin's devices."""
    return state._replace(foreign_sockets=facts.foreign_sockets, foreign_ended_at=None)


def after_failure(state: State, now: float) -> State:
    """Give the state after an attempt that the kubelet did not accept."""
    return state._replace(not_before=now + state.retry.seconds, retry=state.retry.longer())


def after_no_listener(state: State, now: float) -> State:
    """Give the state after an attempt without a listener."""
    return state._replace(
        not_before=now + state.listener_retry.seconds, listener_retry=state.listener_retry.longer()
    )


def after_standby(state: State) -> State:
    """Give the state of a standby instance."""
    return state._replace(registered=None)


def _after_foreign_sockets(facts: Facts, state: State, now: float) -> State:
    """Give the state after an observation of other projects' plugins.

    A kubelet uses the plugin that has registered last, and keeps the streams of the others. When that plugin
    ends, the kubelet returns to none of them, and none of their streams ends (devicemanager, 1.20 to 1.37).
    """
    last = state.foreign_registered_at
    if last is not None and now - last >= 2 * state.foreign_delay.cap:
        state = state._replace(foreign_delay=state.foreign_delay.reset(), foreign_registered_at=None)
    seen = state.foreign_sockets | facts.foreign_sockets
    ended_at = None
    if seen != facts.foreign_sockets:
        ended_at = now if state.foreign_ended_at is None else state.foreign_ended_at
    return state._replace(foreign_sockets=seen, foreign_ended_at=ended_at)


def _deadlines(facts: Facts, state: State) -> Iterator[float]:
    """Give the times at which there may be a reason, without an event."""
    registered = state.registered
    if registered and state.foreign_ended_at is not None:
        yield state.foreign_ended_at + state.foreign_delay.seconds
    if registered and not facts.dialled:
        yield registered.stream_until
    if registered and registered.contested_until is not None:
        yield registered.contested_until


def _reason(facts: Facts, state: State, now: float) -> str | None:
    if state.registered is None:
        return "not registered yet"
    return next(_differences(facts, state, state.registered, now), None)


def _differences(facts: Facts, state: State, registered: Registered, now: float) -> Iterator[str]:
    if facts.kubelet != registered.kubelet:
        yield "the kubelet restarted"
    if facts.other_sockets != state.other_sockets:
        yield "another instance of the plugin has ended"
    if facts.own_socket != registered.own_socket:
        yield "the plugin's own socket is gone"
    if registered.contested_until is not None and now >= registered.contested_until:
        yield "another instance of the plugin has registered as well"
    if not facts.streams and facts.dialled:
        yield "the kubelet's stream ended"
    if not facts.dialled and now >= registered.stream_until:
        yield "the kubelet opened no stream"
    if state.foreign_ended_at is not None and now >= state.foreign_ended_at + state.foreign_delay.seconds:
        yield _FOREIGN_ENDED
