# SPDX-License-Identifier: Apache-2.0
"""An instance that stands by: it serves while no other does, and never takes the resource from another."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet.registration import STAND_BY_SECONDS
from tegra_device_plugin.kubelet.sockets import READY_SOCKET, accepts
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE

from tests import boards
from tests.conformance.awaited import SECONDS, eventually
from tests.conformance.conftest import BOARD, Start
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Node, running

STAND_BY = "--stand-by"


def of_stand_by(endpoint: str) -> bool:
    return endpoint.startswith("tegra-gpu--stand-by-")


def serves(kubelet: FakeKubelet, *, stand_by: bool) -> bool:
    """Whether the kubelet has its GPU from the instance that stands by, or from the other one."""
    if kubelet.allocatable() != 1:
        return False
    return kubelet.client.live and of_stand_by(kubelet.client.path.name) is stand_by


async def test_kubelet_has_its_gpu_before_the_pod_has_started_and_after_it_has_ended(
    kubelet: FakeKubelet, start: Start
) -> None:
    async with start(STAND_BY) as before:
        await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU without the pod")
        async with start() as pod:
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod")
            pod.signal(signal.SIGTERM)
            assert await pod.ended() == 0
            await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU after the pod")
        async with start():
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the next pod")
            before.signal(signal.SIGTERM)
            assert await before.ended() == 0
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod alone")


@pytest.mark.parametrize("pod_is_first", [True, False])
async def test_pod_keeps_the_gpu_after_a_start_of_the_kubelet(
    kubelet: FakeKubelet, start: Start, pod_is_first: bool
) -> None:
    first, second = ((), (STAND_BY,)) if pod_is_first else ((STAND_BY,), ())
    async with start(*first) as one:
        await kubelet.until_allocatable()
        async with start(*second) as other:
            await (other if pod_is_first else one).until_logged("another instance of the plugin serves here")
            known = len(kubelet.requests)
            await kubelet.restart()
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod")
            # No event shows that the other one does not register.
            await asyncio.sleep(STAND_BY_SECONDS + 0.5)
            assert not any(of_stand_by(one.endpoint) for one in kubelet.requests[known:])
            assert serves(kubelet, stand_by=False)


@pytest.mark.parametrize("generation", ["1.37"])
async def test_files_that_containers_mount_are_those_of_the_instance_that_serves(
    kubelet: FakeKubelet, start: Start, tmp_path: Path
) -> None:
    """While a DaemonSet is updated, the two are of different releases."""
    node, other = Node(tmp_path), tmp_path / "other.so"
    node.share("units: {memoryTotal: 6Gi}")
    other.write_bytes(b"of another release")
    library = node.limit / "libtegra-gpu-limit.so"
    async with start(*node.arguments) as pod:
        await kubelet.until(lambda: kubelet.allocatable() == 124, "units of the pod")
        async with start(*node.arguments, f"--gpu-limit-library={other}", STAND_BY) as instance:
            await instance.until_logged("another instance of the plugin serves here")
            assert library.read_bytes() == node.library.read_bytes()
            pod.signal(signal.SIGTERM)
            assert await pod.ended() == 0
            await eventually(lambda: library.read_bytes() == other.read_bytes(), SECONDS)


async def before_kubelet(directory: Path) -> int:
    command = (sys.executable, "-m", "tegra_device_plugin", "before-kubelet")
    process = await asyncio.create_subprocess_exec(*command, f"--device-plugin-dir={directory}")
    return await process.wait()


@pytest.mark.parametrize("asked", [True, False])
async def test_kubelet_admits_pods_before_the_plugin_has_registered_if_an_instance_is_ready(
    kubelet: FakeKubelet, start: Start, directory: Path, asked: bool
) -> None:
    async with start(STAND_BY) as instance:
        await kubelet.until_allocatable()
        await kubelet.stop()
        instance.signal(signal.SIGKILL)  # the board's plug is pulled
        await instance.ended()
    async with start(STAND_BY):
        if asked:
            assert await before_kubelet(directory) == 0
        kubelet.fault = "refuse"  # until then it has not registered
        await kubelet.start()
        assert kubelet.admits(DEFAULT_RESOURCE) is asked
        kubelet.fault = "none"
        await kubelet.until_allocatable()
        assert kubelet.admits(DEFAULT_RESOURCE)
        assert (await kubelet.allocate(["igpu0"])).container_responses


async def test_instance_is_ready_while_its_gpu_is_healthy_and_no_kubelet_runs(
    kubelet: FakeKubelet, directory: Path, tmp_path: Path
) -> None:
    ready, root = directory / READY_SOCKET, tmp_path / "host"
    boards.build(boards.load()[BOARD], root)
    (root / "dev/nvmap").rename(root / "nvmap")
    await kubelet.stop()
    async with running(DEFAULT_COMMAND, root, directory, STAND_BY) as instance:
        await instance.until_logged("the GPU is unhealthy")
        assert not accepts(ready)
        (root / "nvmap").rename(root / "dev/nvmap")
        await eventually(lambda: accepts(ready), SECONDS)
        await kubelet.start()
        await kubelet.until_allocatable()
        assert not ready.exists()


async def test_pod_does_not_show_that_it_is_ready(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    await kubelet.stop()
    async with start() as pod:
        await pod.until_logged("waiting for the kubelet")
        assert not (directory / READY_SOCKET).exists()


async def test_killed_pod_is_replaced_at_the_next_look_at_its_socket(
    kubelet: FakeKubelet, board: Path, directory: Path
) -> None:
    """No event tells of its end."""
    async with (
        running(DEFAULT_COMMAND, board, directory, STAND_BY),
        running(DEFAULT_COMMAND, board, directory) as pod,
    ):
        await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod")
        pod.signal(signal.SIGKILL)
        await pod.ended()
        await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU from the instance that stands by")


async def test_pod_that_misses_the_start_of_the_other_one_gets_the_gpu_back(
    kubelet: FakeKubelet, start: Start
) -> None:
    """Both register at the same time, on a board so busy that the pod's process does not run."""
    kubelet.fault = "late"
    async with start(STAND_BY):
        await kubelet.until(lambda: bool(kubelet.requests), "registration of the instance that stands by")
        async with start() as pod:
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod")
            pod.signal(signal.SIGSTOP)
            kubelet.release.set()
            await kubelet.until(lambda: serves(kubelet, stand_by=True), "GPU from the other one")
            await asyncio.sleep(0.5)  # no event shows that it stays
            pod.signal(signal.SIGCONT)
            await kubelet.until(lambda: serves(kubelet, stand_by=False), "GPU from the pod again")
