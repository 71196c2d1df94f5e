# SPDX-License-Identifier: Apache-2.0
"""`holders`: what the kubelet answers on a real socket, and what is said when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.kubelet import podresources_pb2 as api
from tegra_device_plugin.kubelet.holders import Holder, NoAnswerError, list_holders
from tegra_device_plugin.sharing import ledger

from tests.unit.plugin.podresources import Kubelet, running_kubelet

# Written by hand after the field numbers of kubernetes/kubelet pkg/apis/podresources/v1/api.proto: pod p of
# namespace n, its container c with cpu_ids 3 (which is skipped), devices a and b of r with a NUMA topology.
ANSWER = (
    b"\x0a\x1f\x0a\x01p\x12\x01n\x1a\x17\x0a\x01c\x12\x0f\x0a\x01r\x12\x01b\x12\x01a\x1a\x04\x0a\x02\x08\x01"
    b"\x1a\x01\x03"
)


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    """A kubelet that answers."""
    with running_kubelet() as one:
        yield one


def test_reads_what_a_kubelet_writes(kubelet: Kubelet) -> None:
    kubelet.answer = ANSWER
    assert list_holders(kubelet.socket) == [Holder("n", "p", "c", "r", "a", count=2)]


def test_containers_without_devices_are_left_out(
    kubelet: Kubelet, capsys: pytest.CaptureFixture[str]
) -> None:
    containers = [api.ContainerResources(name="c")]
    kubelet.answer = api.ListPodResourcesResponse(
        pod_resources=[api.PodResources(name="p", namespace="n", containers=containers)]
    ).SerializeToString()
    assert main(["holders", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out == "no container of this node holds a device\n"


def held(*resources: tuple[str, Sequence[str]]) -> bytes:
    """What a kubelet answers when container c of pod n/p holds these."""
    devices = [api.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in resources]
    containers = [api.ContainerResources(name="c", devices=devices)]
    pods = [api.PodResources(name="p", namespace="n", containers=containers)]
    return api.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def test_one_line_or_one_object_for_each_container_and_resource(
    kubelet: Kubelet, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet.answer = held(("q", ["igpu0::3"]), ("r", ["b", "a"]))
    assert main(["holders", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out.splitlines() == ["n/p c q igpu0::3", "n/p c r 2 devices"]
    assert main(["holders", "--pod-resources", str(kubelet.socket), "--output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["holders"][1] == {
        "namespace": "n", "pod": "p", "container": "c", "resource": "r", "device": "a", "count": 2,
        "memory_limit_mib": None,
    }  # fmt: skip


def test_memory_is_shown_as_the_limit_in_force_and_not_as_thousands_of_devices(
    kubelet: Kubelet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {preset: hami, memoryTotal: 6Gi}}\n")
    monkeypatch.setenv("CONFIG_FILE", str(config))
    monkeypatch.setenv("GPU_LIMIT_DIR", str(tmp_path))
    (tmp_path / "ledgers").mkdir()
    ledger.reset(tmp_path / "ledgers/m7", 3000 << 20, 0)
    memory = [f"m{number}" for number in range(3006, 6, -1)]
    kubelet.answer = held(("nvidia.com/gpucores", ["c1", "c0"]), ("nvidia.com/gpumem", memory))
    assert main(["holders", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n/p c nvidia.com/gpucores 2 devices",
        "n/p c nvidia.com/gpumem 3000 devices, 3000 MiB",
    ]
    (tmp_path / "ledgers/m7").unlink()  # a pod that was never started
    assert main(["holders", "--pod-resources", str(kubelet.socket)]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "n/p c nvidia.com/gpumem 3000 devices"


def test_a_node_full_of_pods_fits(kubelet: Kubelet) -> None:
    devices = [api.ContainerDevices(resource_name="r" * 60, device_ids=[f"{n:060}" for n in range(1024)])]
    pod = api.PodResources(name="p", containers=[api.ContainerResources(name="c", devices=devices)])
    kubelet.answer = api.ListPodResourcesResponse(pod_resources=[pod] * 110).SerializeToString()
    assert len(kubelet.answer) > 4 << 20  # gRPC's own limit
    assert sum(holder.count for holder in list_holders(kubelet.socket)) == 110 * 1024


def test_an_absent_socket_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["holders", "--pod-resources", str(tmp_path / "none.sock")]) == 1
    said = capsys.readouterr().err
    assert f"there is no {tmp_path}/none.sock" in said
    assert "--pod-resources" in said


def test_a_kubelet_that_refuses_is_quoted(kubelet: Kubelet) -> None:
    kubelet.refuses = True
    with pytest.raises(NoAnswerError, match="UNIMPLEMENTED: no such feature"):
        list_holders(kubelet.socket)


def test_a_socket_nobody_listens_on_is_an_error_at_once(kubelet: Kubelet) -> None:
    kubelet.server.stop(None).wait()
    kubelet.socket.touch()
    with pytest.raises(NoAnswerError, match="UNAVAILABLE"):
        list_holders(kubelet.socket)
