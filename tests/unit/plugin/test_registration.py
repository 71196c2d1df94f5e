# SPDX-License-Identifier: Apache-2.0
"""When to register: the decision by itself. What follows from it is in tests/conformance."""

from __future__ import annotations

import socket
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet import api_pb2 as api
from tegra_device_plugin.kubelet.registration import (
    LONGEST_NAME,
    MAX_SOCKET_PATH,
    Facts,
    Pace,
    Registered,
    StaleMountError,
    accepts,
    check_length,
    check_mount,
    reason_to_register,
    retry_delays,
    sweep,
)
from tegra_device_plugin.system.directorywatch import Identity

KUBELET = Identity(1, 10, 100)
OWN = Identity(1, 11, 101)
WELL = Facts(resource="nvidia.com/gpu", kubelet=KUBELET, own_socket=OWN, streams=1)
DONE = Registered("nvidia.com/gpu", KUBELET, OWN, stream_until=2.0)


def test_nothing_to_do_while_all_is_as_registered() -> None:
    assert reason_to_register(WELL, DONE, True, now=100.0) is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(WELL, kubelet=Identity(1, 12, 100)), "the kubelet started anew"),
        (
            replace(WELL, kubelet=Identity(1, 10, 105)),
            "the kubelet started anew",
        ),  # the same inode, used again
        (replace(WELL, resource="nvidia.com/gpu.shared"), "the resource was nvidia.com/gpu before"),
        (replace(WELL, own_socket=None), "the plugin's own socket is gone"),
        (replace(WELL, rival_ended=True), "another instance of the plugin has ended"),
        (replace(WELL, streams=0), "the kubelet's stream ended"),
    ],
)
def test_any_difference_is_a_reason(facts: Facts, why: str) -> None:
    assert reason_to_register(facts, DONE, True, now=1.0) == why


@pytest.mark.parametrize("facts", [replace(WELL, kubelet=None), replace(WELL, resource=None)])
def test_without_kubelet_or_gpu_there_is_nothing_to_register(facts: Facts) -> None:
    assert reason_to_register(facts, DONE, True, now=1.0) is None
    assert reason_to_register(facts, None, False, now=1.0) is None


def test_a_kubelet_may_take_its_time_to_dial_but_not_for_ever() -> None:
    silent = replace(WELL, streams=0)
    assert reason_to_register(silent, DONE, False, now=1.9) is None
    assert reason_to_register(silent, DONE, False, now=2.0) == "the kubelet opened no stream"


def test_retries_slow_down_to_a_limit() -> None:
    assert list(islice(retry_delays(Pace(first_retry=1, last_retry=5)), 5)) == [1, 2, 4, 5, 5]


def test_sweep_removes_the_dead_and_leaves_the_living(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths: pytest's own are too long for a socket's address
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        living.bind("tegra-gpu-2-0.sock")
        living.listen()
        dead.bind("tegra-gpu-1-0.sock")
        Path("other.sock").touch()
        sweep(Path())
        assert sorted(path.name for path in Path().iterdir()) == ["other.sock", "tegra-gpu-2-0.sock"]


def test_a_directory_whose_name_is_too_long_for_sockets_is_refused() -> None:
    check_length(Path("/var/lib/kubelet/device-plugins"))
    fits = Path("/" + "a" * (MAX_SOCKET_PATH - LONGEST_NAME - 1))
    check_length(fits)
    with pytest.raises(OSError, match="by 1 bytes"):
        check_length(Path(f"{fits}a"))


def test_a_directory_deleted_under_its_mount_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mount(tmp_path)
    check_mount(tmp_path / "absent")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.chdir(mounted)  # like a mount, a working directory outlives its name
    mounted.rmdir()
    with pytest.raises(StaleMountError, match="deleted on the host"):
        check_mount(Path())


def test_a_full_queue_is_not_a_dead_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind("busy")
        busy.listen(0)
        first.connect("busy")
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            assert second.connect_ex("busy") != 0  # the queue is full indeed
        assert accepts(Path("busy"))


def test_messages_on_the_wire_are_those_of_kubernetes() -> None:
    """Bytes written by hand after the field numbers of pkg/apis/deviceplugin/v1beta1/api.proto."""
    register = b"\x0a\x07v1beta1\x12\x01s\x1a\x01r\x22\x02\x10\x01"
    assert api.RegisterRequest.FromString(register) == api.RegisterRequest(
        version="v1beta1",
        endpoint="s",
        resource_name="r",
        options=api.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    devices = b"\x0a\x0e\x0a\x01g\x12\x02OK\x1a\x05\x0a\x03\x08\x90\x03"
    node = api.TopologyInfo(nodes=[api.NUMANode(ID=400)])
    assert api.ListAndWatchResponse(devices=[api.Device(ID="g", health="OK", topology=node)]) == (
        api.ListAndWatchResponse.FromString(devices)
    )
    container = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01"
    container += b"\x1a\x09\x0a\x01c\x12\x01h\x1a\x01r\x2a\x03\x0a\x01n"
    answer = b"\x0a" + bytes([len(container)]) + container
    assert api.AllocateResponse.FromString(answer).container_responses[0] == api.ContainerAllocateResponse(
        envs={"k": "v"},
        mounts=[api.Mount(container_path="c", host_path="h", read_only=True)],
        devices=[api.DeviceSpec(container_path="c", host_path="h", permissions="r")],
        cdi_devices=[api.CDIDevice(name="n")],
    )
    preferred = b"\x0a\x08\x0a\x01a\x12\x01b\x18\x02"
    assert api.PreferredAllocationRequest.FromString(preferred).container_requests[0] == (
        api.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=2
        )
    )
    assert api.AllocateRequest.FromString(b"\x0a\x03\x0a\x01a").container_requests[0].devices_ids == ["a"]
