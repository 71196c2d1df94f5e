# SPDX-License-Identifier: Apache-2.0
"""A GPU in units: several resources, limited containers, and changes under running pods."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tegra_device_plugin.sharing import ledger

from tests.conformance.awaited import SECONDS, eventually
from tests.conformance.conftest import Start
from tests.conformance.fake_kubelet import FakeKubelet, refusal
from tests.conformance.plugin import Node, Plugin, free_address, page
from tests.conformance.pod_resources import pod_resources
from tests.conformance.test_registration import until_endpoints

CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
GPU = "nvidia.com/gpu"
MIB = 1 << 20
NAME = ("n", "p", "c")

REPLICAS = "timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}"
UNITS = "units: {memoryTotal: 6Gi, contextOverhead: 10Mi}"

one_generation = pytest.mark.parametrize("generation", ["1.37"])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that advertises 6 GiB in units of 256 MiB."""
    found = Node(tmp_path)
    found.share(UNITS)
    return found


StartUnits = Callable[[], AbstractAsyncContextManager[Plugin]]


@pytest.fixture
def start_units(start: Start, node: Node) -> StartUnits:
    return lambda: start(*node.arguments)


async def until_offered(kubelet: FakeKubelet, **counts: int) -> None:
    """Wait until the node shows so many of CORE, MEMORY and GPU, and nothing else."""
    names = {"core": CORE, "memory": MEMORY, "gpu": GPU}
    expected = {names[key]: count for key, count in counts.items() if count}

    def there() -> bool:
        found = {name: kubelet.allocatable(name) for name in kubelet.devices}
        return {name: count for name, count in found.items() if count} == expected

    await kubelet.until(there, f"node with {expected}")


async def test_each_resource_has_its_own_endpoint_and_options(
    kubelet: FakeKubelet, start_units: StartUnits, directory: Path
) -> None:
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        assert len(kubelet.requests) == 2
        assert kubelet.clients[CORE].path != kubelet.clients[MEMORY].path
        required = {name: client.options.pre_start_required for name, client in kubelet.clients.items()}
        assert required == {CORE: False, MEMORY: True}
        assert [id_ for id_, _ in kubelet.clients[MEMORY].lists[0]] == [f"m{n}" for n in range(24)]
        await until_endpoints(directory, 2)


async def test_a_container_with_core_and_memory_gets_one_gpu_and_a_limit(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        core = (await kubelet.allocate(["c0", "c7"], resource=CORE)).container_responses[0]
        memory = (await kubelet.allocate(["m11", "m3"], resource=MEMORY)).container_responses[0]
        assert list(core.devices) == list(memory.devices)
        # A name with two values is logged as a conflict, and either wins.
        assert core.envs.items() <= memory.envs.items()
        assert not core.mounts
        assert memory.envs["NVIDIA_GPU_MEMORY_LIMIT"] == "512"
        assert all(mount.read_only for mount in memory.mounts)
        mounts = {mount.container_path: mount.host_path for mount in memory.mounts}
        assert mounts == {
            "/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so": f"{node.limit}/libtegra-gpu-limit.so",
            "/etc/ld.so.preload": f"{node.limit}/ld.so.preload",
            memory.envs["TEGRA_GPU_LIMIT_LEDGER"]: str((node.limit / "ledgers/m3").resolve()),
        }
        files = {str(path) for path in node.limit.rglob("*") if path.is_file() and not path.is_symlink()}
        assert files == {*mounts.values(), f"{node.limit}/ledger-key"}
        preloaded = (node.limit / "ld.so.preload").read_text().split()
        assert set(preloaded) < mounts.keys()


@one_generation
async def test_each_start_of_a_container_has_its_ledger_in_the_same_file(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        for ids in (["m0", "m1"], ["m2", "m9", "m10"]):
            await kubelet.allocate(ids, resource=MEMORY)
        used, other = node.limit / "ledgers/m0", node.limit / "ledgers/m2"
        mounted = used.resolve()
        mounted.write_bytes(b"\xff" * 5000)
        other.write_bytes(b"in use")
        await kubelet.start_container(MEMORY, ["m1", "m0"])
        assert ledger.read(mounted) == ledger.Ledger(512 * MIB, 10 * MIB)
        assert mounted == used.resolve()
        assert other.read_bytes() == b"in use"
        assert mounted.stat().st_mode & 0o777 == 0o644
        assert (node.limit / "ledgers").stat().st_mode & 0o777 == 0o700


@one_generation
async def test_a_start_makes_the_file_again_that_the_kubelet_mounts(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        memory = (await kubelet.allocate(["m3", "m4"], resource=MEMORY)).container_responses[0]
        mounted = Path(memory.mounts[2].host_path)
    for path in (node.limit / "ledgers").iterdir():
        path.unlink()
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        await kubelet.start_container(MEMORY, ["m3", "m4"])  # by the kubelet's checkpoint, without Allocate
        assert ledger.read(mounted) == ledger.Ledger(512 * MIB, 10 * MIB)


async def test_ledgers_of_containers_that_are_gone_are_removed(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    async with pod_resources(kubelet) as pods, start_units():
        await until_offered(kubelet, core=100, memory=24)
        await kubelet.allocate(
            ["m20"], resource=MEMORY
        )  # an init container, which PodResources does not list
        for number in range(12):
            await kubelet.allocate([f"m{number}"], resource=MEMORY)
            kubelet.forget(MEMORY, [f"m{number}"])
        await pods.admits(NAME, {MEMORY: 3})
        assert pods.devices[NAME][MEMORY] == ["m0", "m1", "m2"]
        await eventually(
            lambda: {ledger.name_of(path) for path in (node.limit / "ledgers").iterdir()} == {"m0", "m20"},
            SECONDS,
        )


@one_generation
@pytest.mark.parametrize("lost", ["libtegra-gpu-limit.so", "ld.so.preload", "ledgers"])
async def test_a_container_whose_limit_could_not_be_enforced_does_not_start(
    lost: str, kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    async with start_units():
        await until_offered(kubelet, core=100, memory=24)
        await kubelet.allocate(["m0"], resource=MEMORY)
        node.library.unlink()  # or it would be mended
        (node.limit / lost).rename(node.limit / "away")
        text = await refusal(kubelet.start_container(MEMORY, ["m0"]))
        assert f"{node.limit}/{lost}" in text
        assert "no memory limit is possible" in text
        await kubelet.start_container(CORE, ["c0"])


@one_generation
async def test_without_a_library_that_works_memory_is_unhealthy_for_that_reason_until_there_is_one(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    good = node.library.read_bytes()
    node.library.write_bytes(b"")
    async with start_units() as plugin:
        await until_offered(kubelet, core=100)
        await kubelet.until(lambda: len(kubelet.devices.get(MEMORY, ())) == 24, "capacity of memory")
        text = await refusal(kubelet.allocate(["m0"], resource=MEMORY))
        assert f"limit-missing: no container's memory could be limited: {node.library} is empty" in text
        assert not node.limit.exists()
        assert plugin.log.read_text().count("is empty") == 2  # the state, and the refusal
        node.library.write_bytes(good)
        await until_offered(kubelet, core=100, memory=24)
        assert await kubelet.allocate(["m0"], resource=MEMORY)


@one_generation
async def test_more_memory_than_the_board_has_is_not_allocated(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    node.share("units: {memoryTotal: 96Gi}")
    async with start_units():
        await until_offered(kubelet, core=100)
        await kubelet.until(lambda: len(kubelet.devices.get(MEMORY, ())) == 384, "capacity of memory")
        text = await refusal(kubelet.allocate(["m0"], resource=MEMORY))
        assert "memory-total: memoryTotal is 96Gi, but the board has" in text


async def test_replicas_become_units_and_replicas_again_under_running_pods(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node, directory: Path
) -> None:
    node.share(REPLICAS)
    async with start_units() as plugin:
        await until_offered(kubelet, gpu=4)
        await kubelet.allocate(["igpu0::2"], resource=GPU)
        node.share(UNITS)
        await until_offered(kubelet, core=100, memory=24)
        await until_endpoints(directory, 2)
        await kubelet.allocate(["m5", "m6"], resource=MEMORY)
        node.share(REPLICAS)
        await until_offered(kubelet, gpu=4)
        await until_endpoints(directory)
        node.share(UNITS)
        await until_offered(kubelet, core=100, memory=24)
        await kubelet.start_container(MEMORY, ["m5", "m6"])  # it starts again, with its old devices
        node.share("units: {memoryTotal: 0}")
        await plugin.until_logged("the old configuration stays in force")
        assert kubelet.allocatable(MEMORY) == 24
        assert plugin.process.returncode is None


async def test_pre_start_required_changes_with_the_settings(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    node.share(REPLICAS)
    async with start_units():
        await until_offered(kubelet, gpu=4)
        assert not kubelet.clients[GPU].options.pre_start_required
        node.share("units: {preset: hami, memoryTotal: 1Gi}")
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 10, "HAMi's ten")
        assert kubelet.clients[GPU].options.pre_start_required


@one_generation
async def test_a_fault_of_one_resource_does_not_affect_others(
    kubelet: FakeKubelet, start: Start, node: Node
) -> None:
    address = free_address()
    async with start(*node.arguments, f"--metrics-address={address}"):
        await until_offered(kubelet, core=100, memory=24)
        core = kubelet.clients[CORE].path
        while "tegra_device_plugin_streams 2\n" not in await asyncio.to_thread(page, address):
            pass
        # The opening of a stream causes an observation. The plugin ends it before it answers again.
        await asyncio.to_thread(page, address)
        kubelet.clients[MEMORY].path.unlink()
        await kubelet.until(lambda: len(kubelet.requests) == 3, "second registration of memory")
        await until_offered(kubelet, core=100, memory=24)
        assert kubelet.requests[2].resource_name == MEMORY
        assert kubelet.clients[CORE].path == core
        assert kubelet.clients[CORE].live


@one_generation
async def test_invalid_requests_are_rejected_with_a_reason(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    node.share("units: {preset: qgpu, memoryTotal: 6Gi}")
    core, memory = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
    async with start_units():
        await kubelet.until(lambda: kubelet.allocatable() == 106, "units")
        odd = [f"c{number}" for number in range(7)]
        assert "steps of 5: request 5 or 10" in await refusal(kubelet.allocate(odd, resource=core))
        assert "unknown device 'm6'" in await refusal(kubelet.allocate(["m6"], resource=memory))
        assert "unknown device 'm6'" in await refusal(kubelet.start_container(memory, ["m6"]))
        many = [f"x{number}" for number in range(100_000)]
        assert "and 99996 more" in await refusal(kubelet.allocate(many, resource=memory))


@one_generation
async def test_a_gpu_without_memory_would_be_all_of_it_and_does_not_start(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    node.share("units: {preset: hami, memoryTotal: 1Gi}")
    async with pod_resources(kubelet) as pods, start_units():
        await kubelet.until(lambda: kubelet.allocatable() == 100 + 1024 + 10, "units")
        assert "request 1" in await refusal(kubelet.allocate(["g0", "g1"], resource=GPU))
        await kubelet.allocate(["g3"], resource=GPU)
        pods.devices = {NAME: {GPU: ["g3"]}}
        text = await refusal(kubelet.start_container(GPU, ["g3"]))
        assert "request nvidia.com/gpumem as well" in text
        pods.devices = {NAME: {GPU: ["g4"], "nvidia.com/gpumem": ["m0"]}}
        assert "nvidia.com/gpumem" in await refusal(kubelet.start_container(GPU, ["g3"]))
        pods.devices = {NAME: {GPU: ["g3"], "nvidia.com/gpumem": ["m0"]}}
        await kubelet.start_container(GPU, ["g3"])


@one_generation
async def test_no_start_without_an_answer_from_pod_resources(
    kubelet: FakeKubelet, start_units: StartUnits, node: Node
) -> None:
    node.share("units: {preset: hami, memoryTotal: 1Gi}")
    async with start_units():
        await kubelet.until(lambda: kubelet.allocatable() == 100 + 1024 + 10, "units")
        text = await refusal(kubelet.start_container(GPU, ["g3"]))
        assert f"{kubelet.directory.parent}/pod-resources/kubelet.sock" in text
