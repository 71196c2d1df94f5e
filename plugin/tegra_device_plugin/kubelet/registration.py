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
PATIENCE = Backoff(first=2.0, cap=32.0)
# Without a listener on kubelet.sock. An attempt is cheap, and no event reports a listener. That of a kubelet
# that starts comes within microseconds, and the kubelet soon admits pods.
LISTENER = Backoff(first=0.001, cap=0.25)
# From the start of a kubelet, which removes all sockets, until an instance that stands by takes the others
# for gone. They register in milliseconds, where inotify is exhausted after 0.25 s (registrar.py), and after
# seconds on a busy board.
STAND_BY_SECONDS = 5.0


class Facts(NamedTuple):
    """An observation of the socket directory and of the current endpoint."""

    kubelet: Identity | None
    own_socket: Identity | None = None
    streams: int = 0
    """Open ListAndWatch streams of the current endpoint."""
    dialled: bool = False
    """Whether the current endpoint ever had one."""
    rivals: frozenset[str] = frozenset()
    """Sockets of other instances of this plugin that serve, or are about to."""
    superseded: bool = False
    """One of them goes first: it is of a newer instance, or this one stands by."""


class Registered(NamedTuple):
    """Facts at the kubelet's acceptance of the last registration."""

    kubelet: Identity
    own_socket: Identity | None
    stream_until: float
    """When the kubelet should have opened its stream; seconds, the loop's clock."""
    contested: bool = False
    """This one stands by, and another instance served already: the kubelet may have taken either."""


class State(NamedTuple):
    """State between observations. Times are seconds of the loop's clock."""

    registered: Registered | None = None
    was_registered: bool = False
    """Ever since the process started."""
    stands_by: bool = False
    """This instance serves only while no other does."""
    rivals: frozenset[str] = frozenset()
    """All that have served since the last registration; the kubelet may still use one."""
    kubelet: Identity | None = None
    """The kubelet of the last observation."""
    connected_since: float | None = None
    """Start of the kubelet's stream; None: there is no stream."""
    not_before: float = 0.0
    retry: Backoff = RETRY
    listener: Backoff = LISTENER
    patience: Backoff = PATIENCE


class Wait(NamedTuple):
    """Wait for at most `seconds`; None: until an event."""

    seconds: float | None = None


class Register(NamedTuple):
    """Register with the present kubelet; `reason` is for the log."""

    reason: str
    kubelet: Identity


class StandBy(NamedTuple):
    """End all endpoints: another instance of this plugin serves here, and goes first.

    Two instances overlap while a DaemonSet is updated, and where one starts with the board's Docker. Without
    an order each would register again whenever the other registers. Only the first registration of a process
    ignores newer instances, unless it stands by.
    """


def observe(facts: Facts, state: State, now: float) -> State:
    """Give the state after an observation. A new kubelet, or a stream of long standing, resets the delays.

    With a new kubelet, an instance that stands by lets the others register first.
    """
    connected_since = None
    if facts.streams:
        connected_since = now if state.connected_since is None else state.connected_since
    others = state.rivals
    state = state._replace(rivals=others | facts.rivals, connected_since=connected_since)
    not_before = now
    if facts.kubelet != state.kubelet:
        state = state._replace(
            kubelet=facts.kubelet, patience=state.patience.reset(), listener=state.listener.reset()
        )
        if state.stands_by and others:
            not_before += STAND_BY_SECONDS
    elif connected_since is None or now - connected_since < state.retry.cap:
        return state
    return state._replace(retry=state.retry.reset(), not_before=not_before)


def step(facts: Facts, state: State, now: float) -> Wait | Register | StandBy:
    """Decide on the action after `observe`."""
    if facts.kubelet is None:
        return Wait()
    reason = _reason(facts, state, now)
    if reason is None:
        registered = state.registered
        undialled = registered is not None and not facts.dialled
        return Wait(registered.stream_until - now if registered and undialled else None)
    if yields(facts, state):
        return StandBy()
    if now < state.not_before:
        return Wait(state.not_before - now)
    return Register(reason, facts.kubelet)


def yields(facts: Facts, state: State) -> bool:
    """True while this instance does not register, because another one goes first."""
    return facts.superseded and (state.was_registered or state.stands_by)


def accepted(
    register: Register,
    facts: Facts,
    state: State,
    now: float,
    *,
    own_socket: Identity | None,
    rivals: frozenset[str],
) -> State:
    """Give the state after the kubelet has accepted a registration; `facts` are those it was decided on."""
    patience = state.patience
    if state.registered and state.registered.kubelet == register.kubelet:
        patience = patience.reset() if facts.dialled else patience.longer()
    contested = state.stands_by and bool(rivals)
    registered = Registered(register.kubelet, own_socket, now + patience.seconds, contested)
    state = state._replace(registered=registered, was_registered=True, rivals=rivals, patience=patience)
    return failed(state, now)


def failed(state: State, now: float) -> State:
    """Give the state after an attempt that the kubelet did not accept."""
    return state._replace(not_before=now + state.retry.seconds, retry=state.retry.longer())


def no_kubelet(state: State, now: float) -> State:
    """Give the state after an attempt without a listener."""
    return state._replace(not_before=now + state.listener.seconds, listener=state.listener.longer())


def standing_by(state: State) -> State:
    """Give the state of an instance that stands by."""
    return state._replace(registered=None)


def _reason(facts: Facts, state: State, now: float) -> str | None:
    if state.registered is None:
        return "not registered yet"
    return next(_differences(facts, state, state.registered, now), None)


def _differences(facts: Facts, state: State, registered: Registered, now: float) -> Iterator[str]:
    if facts.kubelet != registered.kubelet:
        yield "the kubelet restarted"
    if facts.rivals != state.rivals:
        yield "another instance of the plugin has ended"
    if facts.own_socket != registered.own_socket:
        yield "the plugin's own socket is gone"
    if registered.contested:
        yield "another instance of the plugin has registered as well"
    if not facts.streams and facts.dialled:
        yield "the kubelet's stream ended"
    if not facts.dialled and now >= registered.stream_until:
        yield "the kubelet opened no stream"
