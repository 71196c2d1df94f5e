# SPDX-License-Identifier: Apache-2.0
"""What a conformance test starts from: a simulated board, a socket directory, a plugin's command line."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests import boards
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.conformance.fake_kubelet import GENERATIONS, FakeKubelet, Generation
from tests.conformance.plugin import EVENT_DRIVEN_COMMAND, Plugin, running

BOARD = "orinnano-jp6"

Start = Callable[..., AbstractAsyncContextManager[Plugin]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the suite run against any plugin."""
    parser.addoption(
        "--plugin-command",
        default=EVENT_DRIVEN_COMMAND,
        help="command line of the plugin under test; {root} is the host tree, {dir} the socket directory",
    )


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Host tree of a simulated Jetson with a ready GPU; no test changes it."""
    root = tmp_path_factory.mktemp("board") / "host"
    boards.build(boards.load()[BOARD], root)
    return root


@pytest.fixture
def directory() -> Iterator[Path]:
    """A socket directory with a short path: pytest's own are too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        path = Path(parent, "device-plugins")
        path.mkdir()
        yield path


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> Generation:
    found: Generation = request.param
    return found


@pytest.fixture
async def kubelet(directory: Path, generation: Generation) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(directory, generation) as fake:
        yield fake


@pytest.fixture
def start(request: pytest.FixtureRequest, board: Path, directory: Path) -> Start:
    command: str = request.config.getoption("--plugin-command")
    return lambda *more: running(command, board, directory, *more)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


@pytest.fixture
async def node(api: FakeApi) -> AsyncIterator[DraNode]:
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as place:
        async with FakeDraKubelet(Path(place, "kubelet")) as kubelet:
            yield DraNode(Path(place), api, kubelet)
