# SPDX-License-Identifier: Apache-2.0
"""Cameras and other devices beside the GPU: registered, unplugged, plugged in again, allocated."""

import asyncio
import os
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests import boards
from tests.conformance.conftest import BOARD, Start
from tests.conformance.fake_kubelet import FakeKubelet, call, refusal
from tests.conformance.plugin import free_address, page, save

GPU, CAMERA, ARM = "nvidia.com/gpu", "jetson-k3s.github.io/camera", "robot.example.com/arm"
FRONT, REAR = "/dev/v4l/by-path/front-video-index0", "/dev/v4l/by-path/rear-video-index0"
SECONDS = 5.0
"""From a device's end to the kubelet's list without it, and from its return."""

DEVICES = f"""
version: v1
devices:
  - name: camera
    groups:
      - paths: [{{path: "/dev/v4l/by-path/*-video-index0"}}]
  - name: {ARM}
    groups:
      - count: 2
        paths: [{{path: /dev/ttyACM0, mountPath: /dev/arm, permissions: r}}]
"""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    boards.build(boards.load()[BOARD], root)
    plug(root, "/dev/video0", FRONT)
    plug(root, "/dev/video2", REAR)
    plug(root, "/dev/ttyACM0")
    return root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    save(file, DEVICES)
    return file


def plug(root: Path, node: str, link: str | None = None) -> None:
    """Let udev make a node, SIMULATED by a file, and then its link."""
    (root / node.lstrip("/")).touch()
    if link:
        path = root / link.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(node, os.path.dirname(link)))  # noqa: PTH120 - host paths


def unplug(root: Path, *paths: str) -> None:
    """Remove them, and as udev does the directories that are empty then."""
    for path in paths:
        (root / path.lstrip("/")).unlink()
        parent = (root / path.lstrip("/")).parent
        while parent != root / "dev" and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent


async def until_cameras(kubelet: FakeKubelet, count: int, seconds: float = SECONDS) -> None:
    await kubelet.until(lambda: kubelet.allocatable(CAMERA) == count, f"{count} cameras", seconds)


async def until_all(kubelet: FakeKubelet) -> None:
    await kubelet.until(lambda: kubelet.allocatable() == 5, "the GPU, two cameras, two shares of an arm")


async def test_a_camera_that_is_unplugged_is_unhealthy_and_comes_back_under_its_name(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    async with start(f"--config={config}") as plugin:
        await until_all(kubelet)
        names = set(kubelet.devices[CAMERA])
        unplug(board, FRONT, "/dev/video0")
        await until_cameras(kubelet, 1)
        assert set(kubelet.devices[CAMERA]) == names  # still part of the capacity
        unplug(board, REAR, "/dev/video2")
        await until_cameras(kubelet, 0)
        plug(board, "/dev/video4", FRONT)  # another number, in a directory that was made again
        await until_cameras(kubelet, 1)
        plug(board, "/dev/video0", REAR)
        await until_cameras(kubelet, 2)
        assert set(kubelet.devices[CAMERA]) == names
        assert len(kubelet.requests) == 3  # no resource was registered again
        assert "front-video-index0 is unplugged: there is no" in plugin.log.read_text()
        assert kubelet.allocatable(GPU) == 1


@pytest.mark.parametrize("generation", ["1.26"])
async def test_a_replug_is_known_without_events(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    """A network interface has none, nor has any node where inotify is exhausted."""
    save(config, "devices: [{name: can, groups: [{paths: [{path: /sys/class/net/can0, type: Interface}]}]}]")
    can = board / "sys/class/net/can0"
    async with start(f"--config={config}"):
        name = "jetson-k3s.github.io/can"
        await kubelet.until(lambda: name in kubelet.devices and GPU in kubelet.devices, "both resources")
        assert kubelet.allocatable(name) == 0
        can.mkdir(parents=True)
        await kubelet.until(lambda: kubelet.allocatable(name) == 1, "interface", SECONDS)
        can.rmdir()
        await kubelet.until(lambda: kubelet.allocatable(name) == 0, "end of the interface", SECONDS)


@pytest.mark.parametrize("generation", ["1.20"])
@pytest.mark.usefixtures("board")
async def test_a_container_gets_the_nodes_of_its_devices_and_no_others(
    kubelet: FakeKubelet, start: Start, config: Path
) -> None:
    async with start(f"--config={config}"):
        await until_all(kubelet)
        front = "front-video-index0"
        (answer,) = (await kubelet.allocate([front], resource=CAMERA)).container_responses
        # The link: a container that starts again gets the node of that time.
        assert [(one.host_path, one.container_path, one.permissions) for one in answer.devices] == [
            (FRONT, FRONT, "rw")
        ]
        assert not answer.envs
        assert not answer.mounts
        both = await kubelet.allocate(list(kubelet.devices[CAMERA]), resource=CAMERA)
        assert {one.host_path for one in both.container_responses[0].devices} == {FRONT, REAR}
        (gpu,) = (await kubelet.allocate(list(kubelet.devices[GPU]), resource=GPU)).container_responses
        assert not {one.host_path for one in gpu.devices} & {FRONT, REAR, "/dev/video0", "/dev/ttyACM0"}
        (arm,) = (await kubelet.allocate(["ttyACM0::1"], resource=ARM)).container_responses
        assert [(one.host_path, one.container_path, one.permissions) for one in arm.devices] == [
            ("/dev/ttyACM0", "/dev/arm", "r")
        ]


@pytest.mark.parametrize("generation", ["1.37"])
async def test_an_unplugged_camera_is_not_allocated_and_the_other_is(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    async with start(f"--config={config}"):
        await until_all(kubelet)
        front, rear = sorted(kubelet.devices[CAMERA])
        unplug(board, FRONT)
        await until_cameras(kubelet, 1)
        reason = await refusal(kubelet.allocate([front], resource=CAMERA))
        assert reason == f"{CAMERA}: unhealthy: unplugged: there is no {FRONT}"
        assert await kubelet.allocate([rear], resource=CAMERA)


@pytest.mark.parametrize("generation", ["1.37"])
@pytest.mark.usefixtures("board")
async def test_shares_are_preferred_of_different_devices(
    kubelet: FakeKubelet, start: Start, config: Path
) -> None:
    save(config, DEVICES.replace("- paths", "- count: 2\n        paths"))
    async with start(f"--config={config}"):
        await kubelet.until(
            lambda: kubelet.allocatable(CAMERA) == 4 and GPU in kubelet.clients,
            "two shares of each camera, and the GPU, which registers by itself",
        )
        client = kubelet.clients[CAMERA]
        assert client.options.get_preferred_allocation_available
        assert not kubelet.clients[GPU].options.get_preferred_allocation_available
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=sorted(kubelet.devices[CAMERA]), allocation_size=2
        )
        request = api.PreferredAllocationRequest(
            container_requests=[one, api.ContainerPreferredAllocationRequest()]
        )
        answer = await call(
            client.channel, "GetPreferredAllocation", request, api.PreferredAllocationResponse
        )
        chosen = [list(one.deviceIDs) for one in answer.container_responses]
        assert [len({id_.partition("::")[0] for id_ in ids}) for ids in chosen] == [2, 0]


@pytest.mark.parametrize("generation", ["1.26"])
@pytest.mark.usefixtures("board")
async def test_devices_come_and_go_with_the_configuration(
    kubelet: FakeKubelet, start: Start, config: Path
) -> None:
    save(config, "version: v1\n")
    address = free_address()
    async with start(f"--config={config}", f"--metrics-address={address}") as plugin:
        await kubelet.until_allocatable()
        save(config, DEVICES)
        await until_all(kubelet)
        save(config, DEVICES.replace("count: 2", "count: 3"))
        await kubelet.until(lambda: kubelet.allocatable(ARM) == 3, "three shares")
        save(config, DEVICES.replace("/dev/ttyACM0", "/dev/sda"))
        await plugin.until_logged("no container gets /dev/sda: a disk")
        await plugin.until_logged("the old configuration stays in force")
        shown = await asyncio.to_thread(page, address)
        labels = f'resource="{ARM}",health="healthy",reason="ok"'
        assert f"tegra_device_plugin_other_devices{{{labels}}} 3" in shown
        save(config, "version: v1\n")
        await kubelet.until(lambda: kubelet.allocatable() == 1, "only the GPU")


@pytest.mark.parametrize("generation", ["1.20"])
async def test_a_board_without_a_gpu_has_its_devices(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    for path in ("sys/devices", "etc"):
        (board / path).rename(board / f"{path}.gone")
    async with start(f"--config={config}"):
        await kubelet.until(lambda: kubelet.allocatable() == 4, "devices without a GPU")
        assert GPU not in kubelet.devices


@pytest.mark.parametrize("generation", ["1.26"])
async def test_an_engine_is_advertised_when_the_board_has_it(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    save(config, "devices: [{preset: encoder, count: 2}]")
    encoder = "jetson-k3s.github.io/encoder"
    async with start(f"--config={config}"):
        await kubelet.until(lambda: encoder in kubelet.devices and GPU in kubelet.devices, "both resources")
        assert kubelet.devices[encoder] == {}
        plug(board, "/dev/v4l2-nvenc")
        await kubelet.until(lambda: kubelet.allocatable(encoder) == 2, "two shares of the encoder", SECONDS)


@pytest.mark.parametrize("generation", ["1.20"])
async def test_a_container_with_the_socket_of_argus_starts_only_while_its_daemon_listens(
    kubelet: FakeKubelet, start: Start, board: Path, config: Path
) -> None:
    """A container engine makes a directory in the place of a socket that is missing."""
    sockets = board / "proc/1/net/unix"
    sockets.parent.mkdir(parents=True)
    heading = "Num RefCount Protocol Flags Type St Inode Path\n"
    save(sockets, f"{heading}0: 00000002 00000000 00010000 0001 01 17055 /tmp/argus_socket\n")
    save(config, "devices: [{preset: argus}]")
    argus = "jetson-k3s.github.io/argus"
    async with start(f"--config={config}"):
        await kubelet.until(lambda: kubelet.allocatable(argus) == 1, "argus")
        (id_,) = kubelet.devices[argus]
        (answer,) = (await kubelet.allocate([id_], resource=argus)).container_responses
        assert [(one.host_path, one.container_path) for one in answer.mounts] == [
            ("/tmp/argus_socket", "/tmp/argus_socket")
        ]
        await kubelet.start_container(argus, [id_])
        save(sockets, heading)
        await kubelet.until(lambda: kubelet.allocatable(argus) == 0, "end of the daemon", SECONDS)
        reason = await refusal(kubelet.start_container(argus, [id_]))
        assert reason == f"{argus}: unhealthy: unplugged: there is no /tmp/argus_socket"
