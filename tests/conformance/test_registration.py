# SPDX-License-Identifier: Apache-2.0
"""C1 to C10: the resource is there whenever the kubelet can have it, with exactly one open endpoint."""

import asyncio
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests.conformance.awaited import SECONDS, eventually
from tests.conformance.conftest import Start
from tests.conformance.fake_kubelet import FakeKubelet, Generation, call, refusing_socket
from tests.conformance.foreign_plugin import foreign_plugin
from tests.conformance.plugin import DEFAULT_COMMAND, Plugin, running
from tests.conformance.pod_resources import pod_resources

RESOURCE = "nvidia.com/gpu"
# gRPC's pool of threads by this name begins with one for each core, 4 at least and 16 at most. It takes one
# more when all are busy, which other work on the machine makes likelier (seen once in 80 to 4,000 restarts at
# a load of 8 on two cores), and keeps it while there is any work (grpc: work_stealing_thread_pool.cc).
POOL = "event_engine"
MOST_IN_POOL = 2 * min(max(os.cpu_count() or 1, 4), 16)


def alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


def plugin_sockets(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*.sock") if path.name != "kubelet.sock"]


async def until_endpoints(directory: Path, number: int = 1) -> None:
    def live() -> bool:
        sockets = plugin_sockets(directory)
        return len(sockets) == number and all(map(alive, sockets))

    await eventually(live, 10)


def outside_pool(threads: Mapping[str, int]) -> int:
    return sum(number for name, number in threads.items() if name != POOL)


async def until_no_more_than(plugin: Plugin, threads: int, descriptors: int) -> None:
    """Wait until what a moment takes has gone: a retired endpoint, the thread that reads the board."""
    await eventually(
        lambda: outside_pool(plugin.threads()) <= threads and plugin.descriptors() <= descriptors, 10
    )


async def test_registers_with_a_name_a_version_and_options_the_kubelet_accepts(
    kubelet: FakeKubelet, start: Start
) -> None:
    async with start():
        await kubelet.until_allocatable()
        (request,) = kubelet.requests
        assert request.version == "v1beta1"
        assert request.resource_name == RESOURCE
        assert "/" not in request.endpoint
        assert len(os.fsencode(Path("/var/lib/kubelet/device-plugins", request.endpoint))) <= 107
        answered = await call(
            kubelet.client.channel, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions
        )
        assert answered == request.options == kubelet.client.options
        assert request.HasField("options")


async def test_registers_again_after_each_kubelet_restart(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start():
        for _ in range(5):
            await kubelet.until_allocatable()
            await kubelet.restart()
        await kubelet.until_allocatable()
        await until_endpoints(directory)


@pytest.mark.parametrize("generation", ["1.37"])
async def test_a_thousand_restarts_cost_no_thread_no_descriptor_and_no_memory(
    kubelet: FakeKubelet, start: Start
) -> None:
    async with start() as plugin:
        threads, descriptors = [], []
        for number in range(1000):
            await kubelet.until_allocatable()
            if number < 200:
                threads.append(outside_pool(plugin.threads()))
                descriptors.append(plugin.descriptors())
            elif number == 200:
                private = plugin.private_kib()
            await kubelet.restart()
        await kubelet.until_allocatable()
        # Less than 4 KiB for each restart. The allocator's own growth ends: it was 0.6 MiB in 800 restarts,
        # 0.1 MiB in the next 1,400, and 2.1 MiB where a busy machine delayed the threads.
        assert plugin.private_kib() <= private + 3072
        assert plugin.threads()[POOL] <= MOST_IN_POOL
        # The fewest there were is what one registration takes.
        await until_no_more_than(plugin, min(threads), min(descriptors))


async def test_kubelet_socket_that_appears_after_the_plugin(
    directory: Path, generation: Generation, start: Start
) -> None:
    shutil.rmtree(directory)
    async with start() as plugin:
        await plugin.until_logged("waiting for the kubelet")
        async with FakeKubelet(directory, generation) as kubelet:
            await kubelet.until_allocatable()


async def test_kubelet_socket_that_refuses_at_first(directory: Path, board: Path, start: Start) -> None:
    refusing = refusing_socket(directory / "kubelet.sock")
    async with start() as plugin:
        await plugin.until_logged("waiting for the kubelet")
        # The same file begins to answer: there is no event.
        refusing.listen()
        refusing.setblocking(False)
        async with asyncio.timeout(SECONDS):
            accepted, _ = await asyncio.get_running_loop().sock_accept(refusing)
        accepted.close()
        refusing.close()
        plugin.signal(signal.SIGTERM)
        assert await plugin.ended() == 0


async def test_own_socket_deleted(kubelet: FakeKubelet, start: Start, directory: Path) -> None:
    async with start():
        await kubelet.until_allocatable()
        first = kubelet.requests[0].endpoint
        (directory / first).unlink()
        await kubelet.until(lambda: len(kubelet.requests) > 1, "second registration")
        await kubelet.until_allocatable()
        await until_endpoints(directory)


async def test_directory_wiped_while_the_kubelet_restarts(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        await kubelet.stop(leave_socket=False)
        shutil.rmtree(directory)
        await plugin.until_logged("waiting for the kubelet: there is no")
        await kubelet.start()
        await kubelet.until_allocatable()
        await until_endpoints(directory)


async def test_ends_when_its_directory_is_deleted_under_the_mount(
    kubelet: FakeKubelet, pytestconfig: pytest.Config, board: Path, directory: Path
) -> None:
    # As in a container: the kubelet's directory is mounted elsewhere, and a new one would never be seen.
    mounted = directory.with_name("mounted with a blank")
    mounted.mkdir()
    mount = f'mount --bind {directory} "{mounted}" && exec "$@"'
    namespace = f"unshare --user --map-root-user --mount sh -c {shlex.quote(mount)} sh"
    command = pytestconfig.getoption("--plugin-command")
    async with running(f"{namespace} {command}", board, mounted) as plugin:
        await kubelet.until_allocatable()
        shutil.rmtree(directory)
        assert await plugin.ended() == 1
        assert b"restart the container" in plugin.log.read_bytes()


async def test_registers_again_where_inotify_is_exhausted(
    kubelet: FakeKubelet, pytestconfig: pytest.Config, board: Path, directory: Path
) -> None:
    # A user namespace has limits of its own, which its root may set.
    used_up = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    namespace = f"unshare --user --map-root-user sh -c {shlex.quote(used_up)} sh"
    command = pytestconfig.getoption("--plugin-command")
    async with running(f"{namespace} {command}", board, directory) as plugin:
        await kubelet.until_allocatable()
        for _ in range(3):
            await kubelet.restart()
            await kubelet.until_allocatable()
        assert "anon_inode:inotify" not in plugin.open_files()


async def test_an_unrelated_file_is_no_reason_to_register(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        (directory / "DEPRECATION").touch()
        (directory / "kubelet_internal_checkpoint").write_text("{}")
        # The events of a directory come in their order: after this one's effect, those had none.
        (directory / kubelet.requests[0].endpoint).unlink()
        await kubelet.until(lambda: len(kubelet.requests) > 1, "registration for its socket")
        await kubelet.until_allocatable()
        assert len(kubelet.requests) == 2
        await plugin.until_logged("(the plugin's own socket is gone)")


async def test_rejected_registrations_leave_no_connection(kubelet: FakeKubelet, start: Start) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        threads, descriptors = outside_pool(plugin.threads()), plugin.descriptors()
        await kubelet.stop()
        kubelet.fault = "refuse"
        await kubelet.start()
        await kubelet.until(lambda: len(kubelet.requests) >= 6, "fifth refusal")
        kubelet.fault = "none"
        await kubelet.until_allocatable()
        await until_no_more_than(plugin, threads, descriptors)


async def test_a_kubelet_that_hangs_in_register_delays_neither_its_successor_nor_the_end(
    kubelet: FakeKubelet, start: Start
) -> None:
    kubelet.fault = "hang"
    async with start() as plugin:
        await kubelet.until(lambda: bool(kubelet.requests), "registration")
        await kubelet.stop()
        kubelet.fault = "none"
        await kubelet.start()
        await kubelet.until_allocatable()
        kubelet.fault = "hang"
        await kubelet.restart()
        await kubelet.until(lambda: len(kubelet.requests) > 2, "registration with the third kubelet")
        plugin.signal(signal.SIGTERM)
        assert await plugin.ended() == 0


@pytest.mark.parametrize("generation", ["1.20"])  # later ones dial before they answer
async def test_registers_again_if_the_kubelet_never_dials(kubelet: FakeKubelet, start: Start) -> None:
    kubelet.fault = "never dial"
    async with start():
        await kubelet.until(lambda: bool(kubelet.requests), "registration")
        kubelet.fault = "none"
        await kubelet.until_allocatable()


async def test_a_stream_cut_without_a_restart(kubelet: FakeKubelet, start: Start, directory: Path) -> None:
    async with start() as plugin:
        for cuts in range(1, 4):
            await kubelet.until_allocatable()
            await kubelet.cut()
            await kubelet.until(lambda: len(kubelet.requests) > cuts, "registration after the cut")  # noqa: B023 - awaited in the next line
        await kubelet.until_allocatable()
        await until_endpoints(directory)
        await plugin.until_logged("the kubelet's stream ended")


async def test_a_new_instance_takes_over_from_an_old_one(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start() as old:
        await kubelet.until_allocatable()
        async with start():
            await kubelet.until(
                lambda: (
                    len(kubelet.requests) > 1
                    and kubelet.client.live
                    and kubelet.client.path.name == kubelet.requests[1].endpoint
                ),
                "stream of the new instance",
            )
            old.signal(signal.SIGTERM)
            assert await old.ended() == 0
            await kubelet.until_allocatable()
            await until_endpoints(directory)
            # 1.26 to 1.36 drop the newcomer when the old stream ends: once, and the plugin comes back.
            assert kubelet.history.count(0) <= (1 if kubelet.generation == "1.26" else 0)


async def test_two_instances_do_not_compete_for_the_resource(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    def instance(endpoint: str) -> str:
        return endpoint.rpartition("-")[0]

    def settled(newer: str) -> bool:
        # 1.37 keeps both, and calls the newest as long as it exists.
        return kubelet.generation == "1.37" or instance(kubelet.client.path.name) == newer

    async with start():
        await kubelet.until_allocatable()
        async with start():
            await kubelet.until(lambda: len(kubelet.requests) > 1, "registration of the new instance")
            newer = instance(kubelet.requests[1].endpoint)
            await kubelet.restart()
            await kubelet.until_allocatable()
            await kubelet.cut()
            await kubelet.until(
                lambda: kubelet.allocatable() == 1 and settled(newer), "GPU from the newer instance"
            )
            # No event shows that no fight begins, which would go through hundreds of registrations.
            await asyncio.sleep(1)
            await kubelet.until_allocatable()
            assert settled(newer)
            # Each starts (2), each sees the kubelet start (2), one sees its stream end (1). The newer one
            # makes sure of the resource when the older one stands by: after the restart and the cut (2).
            assert len(kubelet.requests) <= 7
            if kubelet.generation != "1.37":
                await until_endpoints(directory)  # the older one has none while it stands by


@pytest.mark.parametrize("killed", [False, True])
async def test_gpu_comes_back_when_another_plugin_of_its_name_has_ended(
    kubelet: FakeKubelet, board: Path, directory: Path, killed: bool
) -> None:
    # No event reports a killed process, so the plugin observes as often as it does on a board.
    async with running(DEFAULT_COMMAND, board, directory, "--log-level=debug") as plugin:
        await kubelet.until_allocatable()
        (ours,) = kubelet.devices[RESOURCE]
        async with foreign_plugin(kubelet, RESOURCE) as other:
            await plugin.until_logged("sockets of other device plugins: nvidia-gpu.sock")
            assert ours not in kubelet.devices[RESOURCE]
            await other.stop(killed=killed)
            await kubelet.until(
                # 1.26 to 1.36 drop the newest client when the older stream ends.
                lambda: kubelet.devices[RESOURCE] == {ours: "Healthy"} and kubelet.live == [kubelet.client],
                "the GPU from this plugin",
            )
            await kubelet.allocate([ours])
        await plugin.until_logged("another device plugin has ended")


async def test_end_of_a_plugin_of_another_name_registers_nothing(kubelet: FakeKubelet, start: Start) -> None:
    async with pod_resources(kubelet), start("--log-level=debug") as plugin:
        await kubelet.until_allocatable()
        async with foreign_plugin(kubelet, "example.com/camera"):
            await plugin.until_logged("sockets of other device plugins: nvidia-gpu.sock")
        await plugin.until_logged("another device plugin has ended; the kubelet still has nvidia.com/gpu")
        assert [one.resource_name for one in kubelet.requests] == [RESOURCE, "example.com/camera"]


async def test_sigterm_removes_the_socket_and_exits_with_0(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        plugin.signal(signal.SIGTERM)
        assert await plugin.ended() == 0
        assert not plugin_sockets(directory)
        await kubelet.until_allocatable(0)


async def test_leftovers_of_a_killed_instance_are_removed(
    kubelet: FakeKubelet, start: Start, directory: Path
) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        plugin.signal(signal.SIGKILL)
        await plugin.ended()
        await kubelet.until_allocatable(0)
    async with start():
        await kubelet.until_allocatable()
        await until_endpoints(directory)
