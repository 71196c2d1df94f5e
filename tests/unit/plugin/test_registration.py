# SPDX-License-Identifier: Apache-2.0
"""When to register: the decision by itself. What follows from it is in tests/conformance."""

import pytest
from tegra_device_plugin.kubelet.registration import (
    LISTENER,
    PATIENCE,
    RETRY,
    STAND_BY_SECONDS,
    Facts,
    Register,
    Registered,
    StandBy,
    State,
    Wait,
    accepted,
    failed,
    no_kubelet,
    observe,
    standing_by,
    step,
)
from tegra_device_plugin.system.directorywatch import Identity

KUBELET = Identity(1, 10, 100)
OWN = Identity(1, 11, 101)
WELL = Facts(kubelet=KUBELET, own_socket=OWN, streams=1, dialled=True)
FRESH = Facts(kubelet=KUBELET)
DONE = State(registered=Registered(KUBELET, OWN, stream_until=2.0), was_registered=True, kubelet=KUBELET)


def decide(facts: Facts, state: State, now: float) -> Wait | Register | StandBy:
    return step(facts, observe(facts, state, now), now)


def reason(facts: Facts, state: State, now: float = 1.0) -> str:
    action = decide(facts, state, now)
    assert isinstance(action, Register)
    return action.reason


def register(state: State, facts: Facts, now: float, own_socket: Identity = OWN) -> State:
    seen = observe(facts, state, now)
    action = step(facts, seen, now)
    assert isinstance(action, Register)
    return accepted(action, facts, seen, now, own_socket=own_socket, rivals=frozenset())


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (WELL._replace(kubelet=Identity(1, 12, 100)), "the kubelet restarted"),
        # The same inode, used again.
        (WELL._replace(kubelet=Identity(1, 10, 105)), "the kubelet restarted"),
        (WELL._replace(own_socket=None), "the plugin's own socket is gone"),
        (WELL._replace(streams=0), "the kubelet's stream ended"),
    ],
)
def test_any_difference_is_a_reason(facts: Facts, why: str) -> None:
    assert decide(WELL, DONE, 1.0) == Wait()
    assert reason(facts, DONE) == why


def test_only_a_registered_instance_stands_by_for_a_newer_one() -> None:
    newer = frozenset({"tegra-gpu-ffffffffffffffff-0.sock"})
    cut = WELL._replace(streams=0, rivals=newer, superseded=True)
    assert decide(WELL._replace(rivals=newer, superseded=True), DONE, 1.0) == Wait()
    assert decide(cut, DONE, 1.0) == StandBy()
    waiting = standing_by(DONE)
    alone = FRESH._replace(rivals=newer, superseded=True)
    assert decide(alone, waiting, 2.0) == StandBy()
    assert reason(FRESH, waiting, 3.0) == "not registered yet"
    assert reason(alone, State(), 1.0) == "not registered yet"


def test_an_instance_that_stands_by_registers_only_while_no_other_serves() -> None:
    rivals, anew = frozenset({"tegra-gpu-1-0.sock"}), Identity(1, 20, 200)
    state = State(stands_by=True)
    assert reason(FRESH, state, 1.0) == "not registered yet"  # no other was ever there
    state = observe(FRESH._replace(rivals=rivals, superseded=True), state, 1.0)
    assert decide(FRESH._replace(rivals=rivals, superseded=True), state, 2.0) == StandBy()
    assert reason(FRESH, state, 2.5) == "not registered yet"
    # Both have registered at the same time, and the kubelet may have taken either.
    beside = accepted(Register("", KUBELET), FRESH, State(stands_by=True), 2.6, own_socket=OWN, rivals=rivals)
    assert decide(WELL._replace(rivals=rivals, superseded=True), beside, 2.7) == StandBy()
    # A new kubelet removes the others' sockets as well: they register first.
    restarted = FRESH._replace(kubelet=anew)
    assert decide(restarted, state, 3.0) == Wait(STAND_BY_SECONDS)
    assert reason(restarted, observe(restarted, state, 3.0), 3.0 + STAND_BY_SECONDS) == "not registered yet"


def test_a_back_off_stays_at_its_cap() -> None:
    delay = RETRY
    for _ in range(10_000):
        delay = delay.longer()
    assert delay.seconds == RETRY.cap


def test_a_kubelet_may_take_its_time_to_dial_but_not_for_ever() -> None:
    silent = WELL._replace(streams=0, dialled=False)
    assert decide(silent, DONE, 0.5) == Wait(1.5)
    assert reason(silent, DONE, now=2.0) == "the kubelet opened no stream"


def test_attempts_that_fail_come_ever_later() -> None:
    state, now, pauses = State(), 0.0, []
    for _ in range(12):
        state = failed(observe(FRESH, state, now), now)
        waiting = decide(FRESH, state, now)
        assert isinstance(waiting, Wait) and waiting.seconds is not None
        pauses.append(waiting.seconds)
        now += waiting.seconds
        assert isinstance(decide(FRESH, state, now), Register)
    assert pauses[0] == pytest.approx(RETRY.first)
    assert pauses[1] == pytest.approx(2 * RETRY.first)
    assert pauses[-1] == pytest.approx(RETRY.cap)


def test_a_socket_without_a_listener_is_tried_often_and_a_new_one_very_soon() -> None:
    state = observe(FRESH, State(), 0.0)
    for _ in range(12):
        state = no_kubelet(state, 10.0)
    assert decide(FRESH, state, 10.0) == Wait(0.25)
    anew = FRESH._replace(kubelet=Identity(1, 20, 200))
    state = no_kubelet(observe(anew, state, 11.0), 11.0)
    waiting = decide(anew, state, 11.0)
    assert isinstance(waiting, Wait)
    assert waiting.seconds == pytest.approx(LISTENER.first)


def test_a_new_kubelet_resets_the_back_off() -> None:
    state = observe(FRESH, State(), 0.0)
    for _ in range(12):
        state = failed(state, 0.0)
    anew = FRESH._replace(kubelet=Identity(1, 20, 200))
    assert reason(anew, state, 0.1) == "not registered yet"
    assert failed(observe(anew, state, 0.1), 0.1).not_before == pytest.approx(0.1 + RETRY.first)


def test_a_long_stream_resets_the_back_off() -> None:
    state = observe(FRESH, State(), 0.0)
    for _ in range(12):
        state = failed(state, 0.0)
    state = register(state, FRESH, 5.0)
    state = observe(WELL, state, 6.0)
    cut = WELL._replace(streams=0)
    assert decide(cut, state, 6.5) == Wait(3.5)
    state = observe(WELL, state, 11.0)
    assert reason(cut, state, 11.5) == "the kubelet's stream ended"


def test_a_kubelet_that_never_dials_is_waited_for_longer_but_not_without_end() -> None:
    undialled = WELL._replace(streams=0, dialled=False)
    state, now, patience = register(State(), FRESH, 0.0), 0.0, []
    for _ in range(8):
        assert state.registered
        patience.append(state.registered.stream_until - now)
        now = state.registered.stream_until
        state = register(state, undialled, now)
    assert patience[:3] == [2.0, 4.0, 8.0]
    assert patience[-1] == PATIENCE.cap
    dialled = WELL._replace(streams=0)
    state = register(state, dialled, now + 100)
    assert state.registered and state.registered.stream_until == now + 100 + PATIENCE.first


def test_a_new_kubelet_is_met_with_new_patience() -> None:
    undialled = WELL._replace(streams=0, dialled=False)
    state = register(State(), FRESH, 0.0)
    for now in (2.0, 6.0, 14.0):
        state = register(state, undialled, now)
    anew = undialled._replace(kubelet=Identity(1, 20, 200))
    state = register(state, anew, 15.0)
    assert state.registered and state.registered.stream_until == 15.0 + PATIENCE.first
