# SPDX-License-Identifier: Apache-2.0
"""An agent of the K3s stand-in reaches whichever server answers, and remembers them."""

import asyncio
from pathlib import Path

import pytest

from tests.lab.k3s_standin import agent, balancer
from tests.lab.k3s_standin.balancer import Balancer

# Nobody listens there.
DOWN = "127.0.0.9"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of servers that answer with their address and what they were sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = writer.get_extra_info("sockname")[0]
        writer.write(here.encode() + b" " + await reader.readline())
        writer.close()

    first = await asyncio.start_server(serve, "127.0.0.2", 0)
    found: int = first.sockets[0].getsockname()[1]
    await asyncio.start_server(serve, "127.0.0.3", found)
    monkeypatch.setattr(balancer, "API_PORT", found)
    return found


async def answer(port: int) -> bytes:
    """What a client of the balancer gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_server_that_is_down_is_passed_over_from_then_on(port: int, tmp_path: Path) -> None:
    one = Balancer(DOWN, tmp_path)
    one.learn(["127.0.0.3"])
    await one.listen()
    assert await answer(port) == b"127.0.0.3 hello\n"
    assert one.servers == ["127.0.0.3", DOWN]


async def test_no_server_at_all_ends_the_connection(port: int, tmp_path: Path) -> None:
    await Balancer(DOWN, tmp_path).listen()
    assert await answer(port) == b""


def test_servers_are_remembered_and_gone_ones_forgotten(tmp_path: Path) -> None:
    Balancer("10.0.0.1", tmp_path).learn(["10.0.0.2", "10.0.0.3"])
    again = Balancer("10.0.0.1", tmp_path)
    assert sorted(again.servers) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    again.learn(["10.0.0.3"])
    assert sorted(again.servers) == ["10.0.0.1", "10.0.0.3"], "the configured one stays"


@pytest.mark.parametrize(
    ("configured", "server", "url"),
    [
        ("https://10.0.0.1:6443", "10.0.0.2", "https://10.0.0.2:6443"),
        ("https://[fd00::1]:6443", "fd00::1", "https://[fd00::1]:6443"),
    ],
)
def test_another_server_is_asked_at_the_same_port(configured: str, server: str, url: str) -> None:
    assert agent.supervisor_url(configured, server) == url
