# SPDX-License-Identifier: Apache-2.0
"""C19: after any faults, in any order, the resource comes back, from exactly one open endpoint."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.fake_kubelet import GENERATIONS, FakeKubelet, Fault, Generation, refusing_socket
from tests.conformance.plugin import running
from tests.conformance.test_registration import until_endpoints

Event = Callable[[FakeKubelet], Awaitable[None] | None]


def delete_own_socket(kubelet: FakeKubelet) -> None:
    for path in kubelet.directory.glob("*.sock"):
        if path != kubelet.socket:
            path.unlink()


def empty(kubelet: FakeKubelet) -> None:
    for path in kubelet.directory.iterdir():
        path.unlink()


async def cut(kubelet: FakeKubelet) -> None:
    if kubelet.clients:
        await kubelet.cut()


def order(fault: Fault) -> Event:
    """Give an event after which registrations have this fault."""
    return lambda kubelet: setattr(kubelet, "fault", fault)


EVENTS: dict[str, Event] = {
    "kubelet restarts": FakeKubelet.restart,
    "kubelet ends": FakeKubelet.stop,
    "kubelet.sock is deleted": lambda kubelet: kubelet.socket.unlink(missing_ok=True),
    "kubelet.sock refuses": lambda kubelet: refusing_socket(kubelet.socket).close(),
    "own socket is deleted": delete_own_socket,
    "stream is cut": cut,
    "directory is emptied": empty,
    "registrations are refused": order("refuse"),
    "registrations hang": order("hang"),
    "registrations are never dialled": order("never dial"),
    "registrations are accepted": order("none"),
    "a moment passes": lambda _kubelet: asyncio.sleep(0.05),
}


async def play(command: str, board: Path, generation: Generation, events: list[str]) -> None:
    """Run a plugin through the events. After a start of the kubelet without a fault the GPU is back."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        directory = Path(parent, "device-plugins")
        async with FakeKubelet(directory, generation) as kubelet, running(command, board, directory):
            await kubelet.until_allocatable()
            for event in events:
                happening = EVENTS[event](kubelet)
                if happening is not None:
                    await happening
            kubelet.fault = "none"
            await kubelet.restart()
            await kubelet.until_allocatable()
            await until_endpoints(directory)


@settings(max_examples=15)
@given(
    generation=st.sampled_from(GENERATIONS),
    events=st.lists(st.sampled_from(list(EVENTS)), min_size=2, max_size=10),
)
def test_the_resource_comes_back_after_any_sequence_of_faults(
    pytestconfig: pytest.Config, board: Path, generation: Generation, events: list[str]
) -> None:
    asyncio.run(play(pytestconfig.getoption("--plugin-command"), board, generation, events))
