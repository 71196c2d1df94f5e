# SPDX-License-Identifier: Apache-2.0
"""When to register: the decision by itself. What follows from it is in tests/conformance."""

import pytest
from tegra_device_plugin.kubelet.registration import (
    CONTESTED_SECONDS,
    DIAL_TIMEOUT,
    FOREIGN_DELAY,
    LISTENER_RETRY,
    RETRY,
    STAND_BY_SECONDS,
    Facts,
    Register,
    Registered,
    Standby,
    State,
    Wait,
    after_acceptance,
    after_failure,
    after_listed,
    after_no_listener,
    after_observation,
    after_standby,
    step,
)
from tegra_device_plugin.system.directorywatch import Identity

KUBELET = Identity(1, 10, 100)
OWN = Identity(1, 11, 101)
CONNECTED = Facts(kubelet=KUBELET, own_socket=OWN, streams=1, dialled=True)
UNREGISTERED = Facts(kubelet=KUBELET)
REGISTERED = State(
    registered=Registered(KUBELET, OWN, stream_until=2.0), was_registered=True, kubelet=KUBELET
)


def decide(facts: Facts, state: State, now: float) -> Wait | Register | Standby:
    return step(facts, after_observation(facts, state, now), now)


def reason(facts: Facts, state: State, now: float = 1.0) -> str:
    action = decide(facts, state, now)
    assert isinstance(action, Register)
    return action.reason


def register(state: State, facts: Facts, now: float, own_socket: Identity = OWN) -> State:
    observed = after_observation(facts, state, now)
    action = step(facts, observed, now)
    assert isinstance(action, Register)
    return after_acceptance(action, facts, observed, now, own_socket=own_socket, other_sockets=frozenset())


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CONNECTED._replace(kubelet=Identity(1, 12, 100)), "the kubelet restarted"),
        # The same inode, used again.
        (CONNECTED._replace(kubelet=Identity(1, 10, 105)), "the kubelet restarted"),
        (CONNECTED._replace(own_socket=None), "the plugin's own socket is gone"),
        (CONNECTED._replace(streams=0), "the kubelet's stream ended"),
    ],
)
def test_any_difference_is_a_reason(facts: Facts, expected: str) -> None:
    assert decide(CONNECTED, REGISTERED, 1.0) == Wait()
    assert reason(facts, REGISTERED) == expected


def test_only_a_registered_instance_stands_by_for_a_newer_one() -> None:
    newer = frozenset({"tegra-gpu-ffffffffffffffff-0.sock"})
    cut = CONNECTED._replace(streams=0, other_sockets=newer, superseded=True)
    assert decide(CONNECTED._replace(other_sockets=newer, superseded=True), REGISTERED, 1.0) == Wait()
    assert decide(cut, REGISTERED, 1.0) == Standby()
    waiting = after_standby(REGISTERED)
    only_other = UNREGISTERED._replace(other_sockets=newer, superseded=True)
    assert decide(only_other, waiting, 2.0) == Standby()
    assert reason(UNREGISTERED, waiting, 3.0) == "not registered yet"
    assert reason(only_other, State(), 1.0) == "not registered yet"


def test_an_instance_that_stands_by_registers_only_while_no_other_serves() -> None:
    other_sockets, new_kubelet = frozenset({"tegra-gpu-1-0.sock"}), Identity(1, 20, 200)
    state = State(standby=True)
    assert reason(UNREGISTERED, state, 1.0) == "not registered yet"  # no other was ever there
    state = after_observation(UNREGISTERED._replace(other_sockets=other_sockets, superseded=True), state, 1.0)
    assert (
        decide(UNREGISTERED._replace(other_sockets=other_sockets, superseded=True), state, 2.0) == Standby()
    )
    assert reason(UNREGISTERED, state, 2.5) == "not registered yet"
    # Both have registered at the same time, and the kubelet may have taken either. The other one registers
    # again after it has seen that this one ends.
    contested = after_acceptance(
        Register("", KUBELET),
        UNREGISTERED,
        State(standby=True, kubelet=KUBELET),
        2.6,
        own_socket=OWN,
        other_sockets=other_sockets,
    )
    both = CONNECTED._replace(other_sockets=other_sockets, superseded=True)
    assert decide(both, contested, 2.6) == Wait(CONTESTED_SECONDS)
    assert decide(both, contested, 2.6 + CONTESTED_SECONDS) == Standby()
    assert reason(CONNECTED, contested, 2.7) == "another instance of the plugin has ended"
    # A new kubelet removes the others' sockets as well: they register first.
    restarted = UNREGISTERED._replace(kubelet=new_kubelet)
    assert decide(restarted, state, 3.0) == Wait(STAND_BY_SECONDS)
    assert (
        reason(restarted, after_observation(restarted, state, 3.0), 3.0 + STAND_BY_SECONDS)
        == "not registered yet"
    )


def test_a_plugin_that_ends_and_comes_back_is_no_reason() -> None:
    both = CONNECTED._replace(foreign_sockets=frozenset({"nvidia-gpu.sock"}))
    state = after_observation(both, REGISTERED, 1.0)
    assert decide(both, state, 1.0) == Wait()
    state = after_observation(CONNECTED, state, 2.0)
    assert decide(CONNECTED, state, 2.0) == Wait(FOREIGN_DELAY.first)
    assert decide(both, state, 2.5) == Wait()
    # It has ended for good. The kubelet is asked first: the resource may be another one.
    action = decide(CONNECTED, state, 2.0 + FOREIGN_DELAY.first)
    assert action == Register("another device plugin has ended", KUBELET, unless_listed=True)
    assert decide(CONNECTED, after_listed(CONNECTED, state), 60.0) == Wait()


def test_two_plugins_that_replace_each_other_register_seldom_and_the_alert_fires() -> None:
    both = CONNECTED._replace(foreign_sockets=frozenset({"other.sock"}))
    state, now, registered = after_observation(both, REGISTERED, 0.0), 0.0, []
    while now < 4 * 3600:
        waiting = decide(CONNECTED, state, now)  # the other one makes a new socket each time
        assert isinstance(waiting, Wait) and waiting.seconds is not None
        state, now = after_observation(CONNECTED, state, now), now + waiting.seconds
        state = after_observation(both, register(state, CONNECTED, now), now + 0.5)
        registered.append(now)
        now += 1.0
    in_hour = [sum(hour * 3600 <= at < (hour + 1) * 3600 for at in registered) for hour in range(4)]
    assert in_hour[0] < 40 and in_hour[1:] == [28, 28, 28]
    # TegraDevicePluginRegistersAgainAndAgain: more than 5 in 15 minutes.
    assert all(sum(at < one <= at + 900 for one in registered) > 5 for at in (0, 4000, 8000, 12000))
    # After quiet minutes, an end is a single one.
    quiet = after_observation(CONNECTED, state, now + 2 * FOREIGN_DELAY.cap)
    assert quiet.foreign_delay == FOREIGN_DELAY


def test_a_back_off_stays_at_its_cap() -> None:
    delay = RETRY
    for _ in range(10_000):
        delay = delay.longer()
    assert delay.seconds == RETRY.cap


def test_a_kubelet_that_does_not_dial_is_registered_with_again_after_the_timeout() -> None:
    not_dialled = CONNECTED._replace(streams=0, dialled=False)
    assert decide(not_dialled, REGISTERED, 0.5) == Wait(1.5)
    assert reason(not_dialled, REGISTERED, now=2.0) == "the kubelet opened no stream"


def test_failed_attempts_back_off() -> None:
    state, now, pauses = State(), 0.0, []
    for _ in range(12):
        state = after_failure(after_observation(UNREGISTERED, state, now), now)
        waiting = decide(UNREGISTERED, state, now)
        assert isinstance(waiting, Wait) and waiting.seconds is not None
        pauses.append(waiting.seconds)
        now += waiting.seconds
        assert isinstance(decide(UNREGISTERED, state, now), Register)
    assert pauses[0] == pytest.approx(RETRY.first)
    assert pauses[1] == pytest.approx(2 * RETRY.first)
    assert pauses[-1] == pytest.approx(RETRY.cap)


def test_a_socket_without_a_listener_is_tried_often_and_a_new_one_very_soon() -> None:
    state = after_observation(UNREGISTERED, State(), 0.0)
    for _ in range(12):
        state = after_no_listener(state, 10.0)
    assert decide(UNREGISTERED, state, 10.0) == Wait(0.25)
    restarted = UNREGISTERED._replace(kubelet=Identity(1, 20, 200))
    state = after_no_listener(after_observation(restarted, state, 11.0), 11.0)
    waiting = decide(restarted, state, 11.0)
    assert isinstance(waiting, Wait)
    assert waiting.seconds == pytest.approx(LISTENER_RETRY.first)


def test_a_new_kubelet_resets_the_back_off() -> None:
    state = after_observation(UNREGISTERED, State(), 0.0)
    for _ in range(12):
        state = after_failure(state, 0.0)
    restarted = UNREGISTERED._replace(kubelet=Identity(1, 20, 200))
    assert reason(restarted, state, 0.1) == "not registered yet"
    assert after_failure(after_observation(restarted, state, 0.1), 0.1).not_before == pytest.approx(
        0.1 + RETRY.first
    )


def test_a_long_stream_resets_the_back_off() -> None:
    state = after_observation(UNREGISTERED, State(), 0.0)
    for _ in range(12):
        state = after_failure(state, 0.0)
    state = register(state, UNREGISTERED, 5.0)
    state = after_observation(CONNECTED, state, 6.0)
    cut = CONNECTED._replace(streams=0)
    assert decide(cut, state, 6.5) == Wait(3.5)
    state = after_observation(CONNECTED, state, 11.0)
    assert reason(cut, state, 11.5) == "the kubelet's stream ended"


def test_the_dial_timeout_doubles_up_to_its_cap() -> None:
    not_dialled = CONNECTED._replace(streams=0, dialled=False)
    state, now, dial_timeout = register(State(), UNREGISTERED, 0.0), 0.0, []
    for _ in range(8):
        assert state.registered
        dial_timeout.append(state.registered.stream_until - now)
        now = state.registered.stream_until
        state = register(state, not_dialled, now)
    assert dial_timeout[:3] == [2.0, 4.0, 8.0]
    assert dial_timeout[-1] == DIAL_TIMEOUT.cap
    dialled = CONNECTED._replace(streams=0)
    state = register(state, dialled, now + 100)
    assert state.registered and state.registered.stream_until == now + 100 + DIAL_TIMEOUT.first


def test_a_new_kubelet_resets_the_dial_timeout() -> None:
    not_dialled = CONNECTED._replace(streams=0, dialled=False)
    state = register(State(), UNREGISTERED, 0.0)
    for now in (2.0, 6.0, 14.0):
        state = register(state, not_dialled, now)
    restarted = not_dialled._replace(kubelet=Identity(1, 20, 200))
    state = register(state, restarted, 15.0)
    assert state.registered and state.registered.stream_until == 15.0 + DIAL_TIMEOUT.first
