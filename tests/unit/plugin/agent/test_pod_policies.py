# SPDX-License-Identifier: Apache-2.0
"""`--qos-policy per-pod` with a simulated container runtime: which pods have a weight, what is reported."""

import logging
import tempfile
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from tegra_device_plugin.agent import cri_pb2 as cri
from tegra_device_plugin.agent import pod_policies
from tegra_device_plugin.agent.pod_policies import ANNOTATION, NoRuntimeError, PodPolicies, sockets
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.agent.weights import Weights
from tegra_device_plugin.cli import main
from tegra_device_plugin.system.hosttree import HostTree

from tests.unit.plugin.agent.node import Node, Pod, uid
from tests.unit.plugin.agent.nvgpu import SimulatedNvgpu

WEIGHT_OF_40, OWN_TURN = 8000, 1024


class Runtime:
    """A SIMULATED container runtime, with the sandboxes of pods."""

    def __init__(self, socket: Path, version: str = "v1") -> None:
        self.socket = socket
        self.answer = cri.ListPodSandboxResponse()
        self.queries = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(1))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "ListPodSandbox": grpc.unary_unary_rpc_method_handler(self._list)
        }
        services = grpc.method_handlers_generic_handler(f"runtime.{version}.RuntimeService", handlers)
        self.server.add_generic_rpc_handlers((services,))
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()

    def _list(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.queries += 1
        return self.answer.SerializeToString()

    def creates(self, pod: int, policy: str | None = None, created_at: int = 1) -> None:
        sandbox = self.answer.items.add(id=f"{pod:064x}", created_at=created_at)
        sandbox.metadata.uid = uid(pod)
        if policy is not None:
            sandbox.annotations[ANNOTATION] = policy


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with tempfile.TemporaryDirectory(prefix="cri-", dir="/tmp") as directory:  # as in running_kubelet
        one = Runtime(Path(directory, "containerd.sock"))
        yield one
        one.server.stop(None).wait()


@pytest.fixture
def weights(node: Node, pods: Pods, driver: SimulatedNvgpu, runtime: Runtime) -> Weights:
    """Five pods with 40 percent each; process and pod have the same number."""
    for number in range(1, 6):
        node.admits(Pod(number, f"pod-{number}", percent=40))
        node.process(number, number)
        driver.runs(number, number)
    policies = PodPolicies(lambda: [runtime.socket], pods)
    return Weights(HostTree(node.root), pods, driver, policies)


def turns(driver: SimulatedNvgpu) -> list[int]:
    return [context.timeslice for _, context in sorted(driver.contexts.items())]


async def test_the_annotation_chooses_which_pods_have_a_weight(
    weights: Weights, driver: SimulatedNvgpu, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    policies = {1: "best-effort", 2: "burst-share", 3: "fixed-share", 4: "fastest", 5: None}
    for number, policy in policies.items():
        runtime.creates(number, policy)
    with caplog.at_level(logging.WARNING):
        await weights.observe()
        await weights.observe()
    assert turns(driver) == [OWN_TURN, *[WEIGHT_OF_40] * 4]
    assert runtime.queries == 1
    assert caplog.messages == [
        "pod default/pod-3 has the policy fixed-share: its percents are a weight, and no limit",
        "pod default/pod-4 has the policy 'fastest', which is not known: its percents are a weight",
    ]


async def test_a_pod_whose_sandbox_was_created_again_has_the_policy_of_the_newest(
    weights: Weights, driver: SimulatedNvgpu, runtime: Runtime
) -> None:
    runtime.creates(1, "best-effort", created_at=2)
    runtime.creates(1, "burst-share", created_at=1)
    for number in range(2, 6):
        runtime.creates(number)
    await weights.observe()
    assert turns(driver)[0] == OWN_TURN


async def test_without_an_answer_no_pod_has_a_weight(
    weights: Weights, driver: SimulatedNvgpu, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.server.stop(None).wait()
    await weights.observe()
    assert weights.state == "failing"
    assert turns(driver) == [OWN_TURN] * 5
    assert "GPU time is not divided by weights: the container runtime does not list its pods" in caplog.text


async def test_known_pods_keep_their_policy_and_new_ones_wait(
    weights: Weights, driver: SimulatedNvgpu, node: Node, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 6):
        runtime.creates(number)
    await weights.observe()
    runtime.server.stop(None).wait()
    node.admits(Pod(6, "new", percent=40))
    node.process(6, 6)
    driver.runs(6, 6)
    await weights.observe()
    assert turns(driver) == [*[WEIGHT_OF_40] * 5, OWN_TURN]
    assert "new pods have no weight: the container runtime does not list its pods" in caplog.text


async def test_each_socket_is_tried_and_named(runtime: Runtime, tmp_path: Path) -> None:
    runtime.creates(1, "best-effort")
    missing = tmp_path / "missing.sock"
    assert await pod_policies.read([missing, runtime.socket]) == {uid(1): "best-effort"}
    with pytest.raises(NoRuntimeError, match=r"missing\.sock does not exist"):
        await pod_policies.read([missing])


@pytest.mark.parametrize("version", ["v1", "v1alpha2", "v2"])
async def test_runtimes_with_an_older_cri_answer_too(version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="cri-", dir="/tmp") as directory:
        runtime = Runtime(Path(directory, "cri-dockerd.sock"), version)
        runtime.creates(1, "best-effort")
        try:
            if version in pod_policies.VERSIONS:
                assert await pod_policies.read([runtime.socket]) == {uid(1): "best-effort"}
            else:
                with pytest.raises(NoRuntimeError, match="it has no RuntimeService of CRI v1 or v1alpha2"):
                    await pod_policies.read([runtime.socket])
        finally:
            runtime.server.stop(None).wait()


def test_the_sockets_are_those_of_k3s(tmp_path: Path) -> None:
    (tmp_path / "run/k3s").mkdir(parents=True)
    found = [str(path.relative_to(tmp_path)) for path in sockets(HostTree(tmp_path))]
    assert found == ["run/k3s/containerd/containerd.sock", "run/k3s/cri-dockerd/cri-dockerd.sock"]


def test_per_pod_needs_percents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--qos-policy=per-pod"]) == 2
    assert "--qos-policy per-pod: this configuration has no percents" in capsys.readouterr().err
