# SPDX-License-Identifier: Apache-2.0
"""C5, C14, C15: health, configuration and hardware change while the plugin runs."""

import asyncio
import shutil
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet.driver_conflict import dra_socket

from tests import boards
from tests.conformance.conftest import BOARD, Start
from tests.conformance.fake_kubelet import FakeKubelet, dial, refusing_socket, watch
from tests.conformance.plugin import EVENT_DRIVEN_COMMAND, free_address, page, running, save

pytestmark = pytest.mark.parametrize(
    "generation", ["1.26"]
)  # what a kubelet does with health is the same for all

SHARED = """
version: v1
sharing:
  timeSlicing:
    renameByDefault: {rename}
    resources:
      - name: nvidia.com/gpu
        replicas: {replicas}
"""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    boards.build(boards.load()[BOARD], root)
    return root


async def test_a_gpu_failure_and_its_recovery_reach_every_stream(
    kubelet: FakeKubelet, start: Start, board: Path
) -> None:
    async with start():
        await kubelet.until_allocatable()
        async with dial(kubelet.client.path) as second:
            messages = watch(second)
            await anext(messages)
            (board / "dev/nvmap").rename(board / "nvmap")
            await kubelet.until_allocatable(0, seconds=10)
            assert [device.health for device in (await anext(messages)).devices] == ["Unhealthy"]
            assert len(kubelet.client.lists[-1]) == 1  # still part of the capacity
            (board / "nvmap").rename(board / "dev/nvmap")
            await kubelet.until_allocatable(1, seconds=10)
            assert [device.health for device in (await anext(messages)).devices] == ["Healthy"]
        assert len(kubelet.requests) == 1


async def test_a_gpu_that_is_switched_on_later(kubelet: FakeKubelet, start: Start, board: Path) -> None:
    shutil.rmtree(board)
    boards.build(boards.load()[BOARD], board, state="unpowered")
    async with start():
        await kubelet.until(lambda: bool(kubelet.devices), "device")
        assert kubelet.allocatable() == 0
        shutil.rmtree(board)
        boards.build(boards.load()[BOARD], board)
        await kubelet.until_allocatable(1, seconds=15)


async def test_no_gpu_no_resource(kubelet: FakeKubelet, start: Start, board: Path) -> None:
    shutil.rmtree(board / "sys")
    shutil.rmtree(board / "etc")
    async with start() as plugin:
        await plugin.until_logged("WARNING no Tegra GPU")
        await plugin.until_logged("relay.sock: the relay does not run")
        assert not kubelet.requests
        plugin.signal(signal.SIGTERM)
        assert await plugin.ended() == 0


async def test_a_changed_file_is_applied_and_an_invalid_one_is_not(
    kubelet: FakeKubelet, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    save(file, SHARED.format(rename="false", replicas=2))
    flags = SHARED.format(rename="false", replicas=5) + "flags: {{plugin: {{{}}}}}\n"
    async with start(f"--config={file}") as plugin:
        await kubelet.until_allocatable(2)
        save(file, SHARED.format(rename="false", replicas=5))
        await kubelet.until_allocatable(5)
        assert len(kubelet.requests) == 1
        save(file, "version: v1\nsharing: {timeslicing: {}}\n")
        await plugin.until_logged("config.yaml:2: sharing.timeslicing")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            save(file, flags.format(f"metricsAddress: '{address}'"))
            await plugin.until_logged(f"metricsAddress {address}: Address already in use")
        assert plugin.log.read_text().count("the old configuration stays in force") == 2
        assert kubelet.allocatable() == 5
        save(file, SHARED.format(rename="false", replicas=5))
        plugin.signal(signal.SIGHUP)
        await plugin.until_logged("configuration read again: nothing has changed")
        save(file, flags.format("logFormat: json"))
        await plugin.until_logged('"message": "configuration read again"')
        save(file, SHARED.format(rename="true", replicas=3))
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu.shared") == 3, "renamed resource")
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu") == 0, "end of the old resource")
        assert len(kubelet.requests) == 2
        address = free_address()
        save(file, flags.format(f"metricsAddress: '{address}'"))
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu") == 5, "resource after a restart")
        assert "tegra_device_plugin_info" in await asyncio.to_thread(page, address)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("metricsAddress: '192.0.2.1:{port}'", "Cannot assign requested address"),
        ("metricsAddress: 'x..y:{port}'", "x..y is no address and no host's name"),
        ("devicePluginDir: '{long}'", "too long for the sockets in it"),
        ("devicePluginDir: '{dra}/device-plugins'", "the DRA driver serves this board"),
    ],
)
@pytest.mark.usefixtures("board")
async def test_new_settings_that_no_start_could_use_end_nothing(
    kubelet: FakeKubelet, directory: Path, tmp_path: Path, flag: str, message: str
) -> None:
    """The running plugin goes on with the old ones, at the same port."""
    file, address = tmp_path / "config.yaml", free_address()
    port = address.rpartition(":")[2]
    command = EVENT_DRIVEN_COMMAND.replace("--device-plugin-dir={dir}", "")
    old = {"metricsAddress": f"'{address}'", "devicePluginDir": f"'{directory}'"}
    dra, long = directory.parent / "k", directory.parent / ("x" * 100)
    for one in (dra / "device-plugins", dra_socket(dra).parent, long):
        one.mkdir(parents=True)
    key, value = flag.format(port=port, long=long, dra=dra).split(": ", 1)

    def write(flags: dict[str, str]) -> None:
        text = ", ".join(f"{name}: {one}" for name, one in flags.items())
        save(file, f"version: v1\nflags: {{plugin: {{{text}}}}}\n")

    write(old)
    with closing(refusing_socket(dra_socket(dra))) as driver:
        driver.listen()
        async with running(command, tmp_path / "host", directory, f"--config={file}") as plugin:
            await kubelet.until_allocatable()
            write(old | {key: value})
            await plugin.until_logged(message)
            await plugin.until_logged("the old configuration stays in force")
            await kubelet.until_allocatable()
            assert "tegra_device_plugin_info" in await asyncio.to_thread(page, address)


async def test_a_config_map_is_swapped(kubelet: FakeKubelet, start: Start, tmp_path: Path) -> None:
    def publish(replicas: int) -> None:
        # As the kubelet does it: a new directory, and a link to it that is replaced.
        data = tmp_path / f"..{replicas}"
        data.mkdir()
        (data / "config.yaml").write_text(SHARED.format(rename="false", replicas=replicas))
        (tmp_path / "..data_tmp").symlink_to(data.name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    publish(2)
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    async with start(f"--config={tmp_path}/config.yaml"):
        await kubelet.until_allocatable(2)
        publish(3)
        await kubelet.until_allocatable(3)
