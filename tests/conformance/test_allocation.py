# SPDX-License-Identifier: Apache-2.0
"""C11 to C13 and C16 to C18: what a container gets, and that no request breaks the plugin."""

import json
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests import boards
from tests.conformance.conftest import BOARD, Start
from tests.conformance.fake_kubelet import FakeKubelet, call, dial, refusal, watch
from tests.conformance.plugin import Node, running

pytestmark = pytest.mark.parametrize("generation", ["1.20"])  # allocation is the same for all


@pytest.fixture
def shared(tmp_path: Path) -> str:
    node = Node(tmp_path)
    node.share("timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}")
    return f"--config={node.config}"


async def test_a_container_gets_the_gpus_nodes_and_an_id_the_toolkit_knows(
    kubelet: FakeKubelet, start: Start, board: Path
) -> None:
    nodes = set(board.joinpath("dev").rglob("*"))
    async with start():
        await kubelet.until_allocatable()
        (device,) = [device for device, _ in kubelet.client.lists[0]]
        (answer,) = (await kubelet.allocate([device])).container_responses
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] in ("0", "all")
        assert answer.devices
        for spec in answer.devices:
            assert spec.container_path == spec.host_path
            assert board.joinpath(spec.host_path.lstrip("/")) in nodes
            assert spec.permissions == "rw"  # no container may make device nodes (m)
        assert "/dev/nvmap" in [spec.host_path for spec in answer.devices]


async def test_a_cdi_device_comes_with_its_spec_and_alone_without_the_environment(
    kubelet: FakeKubelet, pytestconfig: pytest.Config, directory: Path, tmp_path: Path
) -> None:
    boards.build(boards.load()[BOARD], tmp_path)
    boards.write_run(tmp_path)
    command = pytestconfig.getoption("--plugin-command")
    async with running(command, tmp_path, directory, "--device-list-strategy=cdi-cri"):
        await kubelet.until_allocatable()
        (device,) = [device for device, _ in kubelet.client.lists[0]]
        (answer,) = (await kubelet.allocate([device])).container_responses
        assert "NVIDIA_VISIBLE_DEVICES" not in answer.envs
        (cdi_device,) = answer.cdi_devices
        (spec,) = (tmp_path / "run/cdi").glob("*.json")
        found = json.loads(spec.read_text())
        assert cdi_device.name in [f"{found['kind']}={one['name']}" for one in found["devices"]]


async def test_one_answer_per_container_in_order_and_the_same_each_time(
    kubelet: FakeKubelet, start: Start, shared: str
) -> None:
    async with start(shared):
        await kubelet.until_allocatable(4)
        ids = [device for device, _ in kubelet.client.lists[0]]
        assert len({device.partition("::")[0] for device in ids}) == 1
        first = await kubelet.allocate(*([device] for device in ids))
        assert len(first.container_responses) == 4
        assert await kubelet.allocate(*([device] for device in reversed(ids))) == first
        assert not (await kubelet.allocate()).container_responses


async def test_invalid_requests_are_rejected_with_a_reason(
    kubelet: FakeKubelet, start: Start, shared: str
) -> None:
    async with start(shared):
        await kubelet.until_allocatable(4)
        first, second = [device for device, _ in kubelet.client.lists[0]][:2]
        assert "nonsense" in await refusal(kubelet.allocate(["nonsense"]))
        assert "nonsense" in await refusal(kubelet.allocate([first], ["nonsense"]))
        assert await refusal(kubelet.allocate([]))
        assert "twice" in await refusal(kubelet.allocate([first, first]))
        assert "failRequestsGreaterThanOne" in await refusal(kubelet.allocate([first, second]))
        assert await kubelet.allocate([first])


@pytest.mark.parametrize(
    ("method", "announced"),
    [
        ("GetPreferredAllocation", "get_preferred_allocation_available"),
        ("PreStartContainer", "pre_start_required"),
    ],
)
async def test_announced_options_are_implemented(
    kubelet: FakeKubelet, start: Start, method: str, announced: str
) -> None:
    async with start():
        await kubelet.until_allocatable()
        try:
            await call(kubelet.client.channel, method, api.Empty(), api.Empty)
            implemented = True
        except grpc.aio.AioRpcError as error:
            implemented = error.code() is not grpc.StatusCode.UNIMPLEMENTED
        assert getattr(kubelet.client.options, announced) == implemented


@pytest.mark.parametrize("authority", ["{path}", "localhost", "%2Fvar%2Flib%2Fkubelet.sock", "a.b:1"])
async def test_any_authority_is_served(kubelet: FakeKubelet, start: Start, authority: str) -> None:
    async with start():
        await kubelet.until_allocatable()
        path = kubelet.client.path
        async with dial(path, authority.format(path=path)) as channel:
            assert (await anext(watch(channel))).devices


METHODS = (
    "GetDevicePluginOptions",
    "ListAndWatch",
    "GetPreferredAllocation",
    "Allocate",
    "PreStartContainer",
    "None",
)


async def test_no_bytes_break_the_plugin(kubelet: FakeKubelet, start: Start) -> None:
    async with start() as plugin:
        await kubelet.until_allocatable()
        channel = kubelet.client.channel

        async def throw(method: str, payload: bytes) -> None:
            try:
                rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                    f"/v1beta1.DevicePlugin/{method}"
                )
                await rpc(payload, timeout=5)
            except grpc.aio.AioRpcError as error:
                assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED

        examples: list[tuple[str, bytes]] = []

        @settings(max_examples=150, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from([name for name in METHODS if name != "ListAndWatch"]), st.binary(max_size=200))
        def collect(method: str, payload: bytes) -> None:
            examples.append((method, payload))

        collect()
        for method, payload in (*examples, ("Allocate", bytes(5 << 20)), ("Allocate", b"\x7a\x02hi")):
            await throw(method, payload)
        (device,) = [device for device, _ in kubelet.client.lists[0]]
        assert (await kubelet.allocate([device])).container_responses
        assert plugin.process.returncode is None
        assert len(kubelet.requests) == 1
