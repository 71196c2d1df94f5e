# SPDX-License-Identifier: Apache-2.0
"""`allocations`: what the kubelet answers on a real socket, and what is said when it does not."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet.pod_resources import (
    ContainerAllocation,
    NoAnswerError,
    container_counts,
    found,
    list_allocatable,
    list_allocations,
)
from tegra_device_plugin.sharing import ledger

from tests import ledgers
from tests.conformance.pod_resources import Kubelet

# Written by hand after the field numbers of kubernetes/kubelet pkg/apis/podresources/v1/api.proto: pod p of
# namespace n, its container c with cpu_ids 3 (which is skipped), devices a and b of r with a NUMA topology.
ANSWER = (
    b"\x0a\x1f\x0a\x01p\x12\x01n\x1a\x17\x0a\x01c\x12\x0f\x0a\x01r\x12\x01b\x12\x01a\x1a\x04\x0a\x02\x08\x01"
    b"\x1a\x01\x03"
)


async def test_reads_a_kubelets_answer(kubelet: Kubelet) -> None:
    kubelet.answer = ANSWER
    answer = await list_allocations(kubelet.socket)
    assert found(answer) == [ContainerAllocation("n", "p", "c", "r", "a", count=2)]
    assert container_counts(answer) == {"r": {"a": 1, "b": 1}}


def test_a_process_out_of_descriptors_reports_it(kubelet: Kubelet) -> None:
    # Python and its event loop have 6 open; gRPC aborts the process if it cannot open 7 more.
    plugin = [sys.executable, "-m", "tegra_device_plugin", "allocations", f"--pod-resources={kubelet.socket}"]
    limited = ["sh", "-c", 'ulimit -n 10; exec "$@"', "-", *plugin]
    ended = subprocess.run(limited, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "tegra-device-plugin: [Errno 24] Too many open files\n")


async def test_reads_allocatable_resources(kubelet: Kubelet) -> None:
    # The same by hand: devices a of r, b of r on another NUMA node, and cpu_ids 3.
    kubelet.allocatable = b"\x0a\x0a\x0a\x01r\x12\x01a\x1a\x02\x0a\x00\x0a\x06\x0a\x01r\x12\x01b\x12\x01\x03"
    assert await list_allocatable(kubelet.socket) == {"r": {"a", "b"}}


@pytest.mark.parametrize("says", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN])
def test_allocations_are_shown_without_allocatable_resources(
    kubelet: Kubelet, capsys: pytest.CaptureFixture[str], says: grpc.StatusCode
) -> None:
    kubelet.answer, kubelet.allocatable = ANSWER, says
    assert main(["allocations", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out == "n/p c: 2 r\n"


def test_containers_without_devices_are_left_out(
    kubelet: Kubelet, capsys: pytest.CaptureFixture[str]
) -> None:
    containers = [api.ContainerResources(name="c")]
    kubelet.answer = api.ListPodResourcesResponse(
        pod_resources=[api.PodResources(name="p", namespace="n", containers=containers)]
    ).SerializeToString()
    assert main(["allocations", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out == "no container of this node has a device\n"


def answering(*resources: tuple[str, Sequence[str]]) -> bytes:
    devices = [api.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in resources]
    containers = [api.ContainerResources(name="c", devices=devices)]
    pods = [api.PodResources(name="p", namespace="n", containers=containers)]
    return api.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def allocatable(**devices: Sequence[str]) -> bytes:
    listed = [api.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in devices.items()]
    return api.AllocatableResourcesResponse(devices=listed).SerializeToString()


def test_one_line_for_each_container_and_each_resource(
    kubelet: Kubelet, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet.answer = answering(("q", ["igpu0::3"]), ("r", ["b", "a"]))
    kubelet.allocatable = allocatable(q=[f"igpu0::{number}" for number in range(4)])
    assert main(["allocations", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n/p c: 1 q, 2 r",
        "q: 1 allocated, 3 free of 4 allocatable",
        "r: 2 allocated, 0 free of 0 allocatable, 2 allocated and not allocatable any more",
    ]


async def test_a_node_full_of_pods_fits(kubelet: Kubelet) -> None:
    devices = [api.ContainerDevices(resource_name="r" * 60, device_ids=[f"{n:060}" for n in range(1024)])]
    pod = api.PodResources(name="p", containers=[api.ContainerResources(name="c", devices=devices)])
    kubelet.answer = api.ListPodResourcesResponse(pod_resources=[pod] * 110).SerializeToString()
    assert len(kubelet.answer) > 4 << 20  # gRPC's own limit
    assert sum(one.count for one in found(await list_allocations(kubelet.socket))) == 110 * 1024


def test_an_absent_socket_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["allocations", "--pod-resources", str(tmp_path / "none.sock")]) == 1
    output = capsys.readouterr().err
    assert f"{tmp_path}/none.sock does not exist" in output
    assert "--pod-resources" in output


async def test_a_socket_without_a_listener_is_an_error(kubelet: Kubelet) -> None:
    kubelet.server.stop(None).wait()
    kubelet.socket.touch()
    with pytest.raises(NoAnswerError, match="UNAVAILABLE"):
        await list_allocations(kubelet.socket)


def test_shares_have_the_limit_in_force_and_the_memory_that_counts_against_it(
    kubelet: Kubelet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {preset: hami, memoryTotal: 6Gi}}\n")
    monkeypatch.setenv("CONFIG_FILE", str(config))
    monkeypatch.setenv("GPU_LIMIT_DIR", str(tmp_path))
    (tmp_path / "ledgers").mkdir()
    ledger.provide(tmp_path / "ledgers/m7", 3000 << 20, 10 << 20, lambda: b"k")
    memory = [f"m{number}" for number in range(3006, 6, -1)]
    kubelet.answer = answering(("nvidia.com/gpucores", ["c1", "c0"]), ("nvidia.com/gpumem", memory))
    share = "n/p c: 2 nvidia.com/gpucores, 3000 nvidia.com/gpumem, weight 2 %"
    with ledgers.used_by(tmp_path / "ledgers/m7", 100 << 20, 1):
        assert main(["allocations", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out == f"{share}, limit 3000 MiB, used 121 MiB\n"
    (tmp_path / "ledgers/m7").unlink()  # of a pod that was never started
    assert main(["allocations", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out == f"{share}\n"
