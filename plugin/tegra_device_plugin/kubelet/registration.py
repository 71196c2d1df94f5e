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
# Without a listener on kubelet.sock. An attempt is cheap, and no event reports a listener.
NO_KUBELET_SECONDS = 0.25


class Facts(NamedTuple):
    """An observation of the socket directory and of the current endpoint."""

    kubelet: Identity | None
    own_socket: Identity | None = None
    streams: int = 0
    """Open ListAndWatch streams of the current endpoint."""
    dialled: bool = False
    """Whether the current endpoint ever had one."""
    rivals: frozenset[str] = frozenset()
    """Sockets of other instances of this plugin that serve."""
    superseded: bool = False
    """One of them is of a newer instance."""


class Registered(NamedTuple):
    """Facts at the kubelet's acceptance of the last registration."""

    kubelet: Identity
    own_socket: Identity | None
    stream_until: float
    """When the kubelet should have opened its stream; seconds, the loop's clock."""


class State(NamedTuple):
    """State between observations. Times are seconds of the loop's clock."""

    registered: Registered | None = None
    was_registered: bool = False
    """Ever since the process started."""
    rivals: frozenset[str] = frozenset()
    """All that have served since the last registration; the kubelet may still use one."""
    kubelet: Identity | None = None
    """The kubelet of the last observation."""
    connected_since: float | None = None
    """Start of the kubelet's stream; None: there is no stream."""
    not_before: float = 0.0
    retry: Backoff = RETRY
    patience: Backoff = PATIENCE


class Wait(NamedTuple):
    """Wait for at most `seconds`; None: until an event."""

    seconds: float | None = None


class Register(NamedTuple):
    """Register with the present kubelet; `reason` is for the log."""

    reason: str
    kubelet: Identity


class StandBy(NamedTuple):
    """End all endpoints: a newer instance of this plugin serves here.

    Two instances overlap while a DaemonSet is updated. Without an order each would register again
    whenever the other registers. Only the first registration of a process ignores newer instances.
    """


def observe(facts: Facts, state: State, now: float) -> State:
    """Give the state after an observation. A new kubelet, or a stream of long standing, resets the delays."""
    connected_since = None
    if facts.streams:
        connected_since = now if state.connected_since is None else state.connected_since
    state = state._replace(rivals=state.rivals | facts.rivals, connected_since=connected_since)
    if facts.kubelet != state.kubelet:
        state = state._replace(kubelet=facts.kubelet, patience=state.patience.reset())
    elif connected_since is None or now - connected_since < state.retry.cap:
        return state
    return state._replace(retry=state.retry.reset(), not_before=now)


def step(facts: Facts, state: State, now: float) -> Wait | Register | StandBy:
    """Decide on the action after `observe`."""
    if facts.kubelet is None:
        return Wait()
    reason = _reason(facts, state, now)
    if reason is None:
        registered = state.registered
        undialled = registered is not None and not facts.dialled
        return Wait(registered.stream_until - now if registered and undialled else None)
    if state.was_registered and facts.superseded:
        return StandBy() if state.registered else Wait()
    if now < state.not_before:
        return Wait(state.not_before - now)
    return Register(reason, facts.kubelet)


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
    registered = Registered(register.kubelet, own_socket, now + patience.seconds)
    state = state._replace(registered=registered, was_registered=True, rivals=rivals, patience=patience)
    return failed(state, now)


def failed(state: State, now: float) -> State:
    """Give the state after an attempt that the kubelet did not accept."""
    return state._replace(not_before=now + state.retry.seconds, retry=state.retry.longer())


def no_kubelet(state: State, now: float) -> State:
    """Give the state after an attempt without a listener."""
    return failed(state, now)._replace(not_before=now + min(state.retry.seconds, NO_KUBELET_SECONDS))


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
    if not facts.streams and facts.dialled:
        yield "the kubelet's stream ended"
    if not facts.dialled and now >= registered.stream_until:
        yield "the kubelet opened no stream"
