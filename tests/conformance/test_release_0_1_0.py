# SPDX-License-Identifier: Apache-2.0
"""Release 0.1.0 of the plugin, from its own sources, before, beside and after this one on the same node."""

import shlex
import signal
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from tegra_device_plugin.sharing import ledger

from tests.conformance.conftest import Start
from tests.conformance.dra_node import DraNode, share
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Node, Plugin, running
from tests.conformance.test_dra_claims import CAPACITY_MODE
from tests.conformance.test_stand_by import STAND_BY, of_stand_by, serves
from tests.conformance.test_units import CORE, MEMORY, MIB, UNITS, one_generation, until_offered
from tests.worktree import RELEASE_0_1_0, archive_of, skip_without


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the package of 0.1.0."""
    skip_without(RELEASE_0_1_0)
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(archive_of(RELEASE_0_1_0, "plugin/tegra_device_plugin"))) as tar:
        tar.extractall(directory, filter="data")
    return directory / "plugin"


def from_sources(sources: Path) -> str:
    """Return the start of a command line that runs the program of 0.1.0."""
    return f"env PYTHONPATH={shlex.quote(str(sources))}"


@pytest.fixture
def start_release(sources: Path, board: Path, directory: Path) -> Start:
    """Start 0.1.0."""
    command = f"{from_sources(sources)} {DEFAULT_COMMAND}"
    return lambda *more: running(command, board, directory, *more)


async def end(plugin: Plugin) -> None:
    plugin.signal(signal.SIGTERM)
    assert await plugin.ended() == 0


async def test_release_is_the_release(start_release: Start, kubelet: FakeKubelet) -> None:
    async with start_release():
        await kubelet.until_allocatable()
    with pytest.raises(AssertionError, match="exit code 2"):
        async with start_release(STAND_BY) as plugin:
            await plugin.until_logged("never")


@pytest.mark.parametrize("back", [False, True])
async def test_newer_instance_serves_while_two_releases_overlap(
    kubelet: FakeKubelet, start: Start, start_release: Start, *, back: bool
) -> None:
    first, second = (start, start_release) if back else (start_release, start)
    async with first() as before:
        await kubelet.until_allocatable()
        endpoint = kubelet.client.path
        async with second():
            await kubelet.until(
                lambda: kubelet.client.live and kubelet.client.path != endpoint, "GPU from the second"
            )
            assert kubelet.allocatable() == 1
            await end(before)
            await kubelet.until(lambda: kubelet.allocatable() == 1, "GPU from the second alone")
            assert (await kubelet.allocate(["igpu0"])).container_responses


async def test_standing_by_goes_after_the_release(
    kubelet: FakeKubelet, start: Start, start_release: Start
) -> None:
    """After a rollback to 0.1.0, the container of a later release is still there."""
    async with start(STAND_BY):
        await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU without the pod")
        async with start_release() as pod:
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod")
            await end(pod)
            await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU after the pod")
        async with start_release():
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the next pod")
            known = len(kubelet.requests)
            await kubelet.restart()
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU after a start of the kubelet")
            assert not of_stand_by(kubelet.requests[known:][-1].endpoint)


@one_generation
@pytest.mark.parametrize("back", [False, True])
async def test_container_keeps_devices_and_ledger_from_release_to_release(
    kubelet: FakeKubelet, start: Start, start_release: Start, tmp_path: Path, *, back: bool
) -> None:
    """A container that starts again gets them from the kubelet; a new one from Allocate."""
    node = Node(tmp_path)
    node.share(UNITS)

    async def allocated() -> tuple[dict[str, str], Path]:
        await until_offered(kubelet, core=100, memory=24)
        (core,) = (await kubelet.allocate(["c0"], resource=CORE)).container_responses
        (memory,) = (await kubelet.allocate(["m3", "m11"], resource=MEMORY)).container_responses
        (mounted,) = (one.host_path for one in memory.mounts if "/ledgers/" in one.host_path)
        assert [one.host_path for one in core.devices] == [one.host_path for one in memory.devices]
        assert ledger.read(Path(mounted)) == ledger.Ledger(512 * MIB, 10 * MIB)
        return dict(memory.envs), Path(mounted)

    for one in (start, start_release) if back else (start_release, start):
        async with one(*node.arguments) as plugin:
            found = await allocated()
            if one is (start if back else start_release):
                before = found
            await end(plugin)
    assert found == before


@pytest.mark.parametrize("back", [False, True])
async def test_claim_stays_prepared_from_driver_to_driver(
    node: DraNode, api: FakeApi, sources: Path, *, back: bool
) -> None:
    claim = api.allocate("a", share("s1", "1Gi"), share("s2", "2Gi"))
    drivers = ["", from_sources(sources)] if back else [from_sources(sources), ""]
    answers, specs = [], []
    for before in drivers:
        async with node.start(sharing=CAPACITY_MODE, before=before) as driver:
            await node.ready()
            if before == drivers[1]:
                specs.append([(node.root / "run/cdi" / name).read_text() for name in node.specs])
            answers.append(await node.kubelet.prepare(claim))
            specs.append([(node.root / "run/cdi" / name).read_text() for name in node.specs])
            if before == drivers[1]:
                await node.kubelet.unprepare(claim)
                assert node.leftovers == []
            await end(driver)
    assert answers[0] == answers[1]
    assert [one.error for one in answers[0].values()] == [""]
    assert specs == [specs[0]] * 3
    assert specs[0]
