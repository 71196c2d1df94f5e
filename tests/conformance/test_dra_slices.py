# SPDX-License-Identifier: Apache-2.0
"""The node's ResourceSlice stays right beside every fault of the API server, kubelets and people."""

import asyncio
import signal
from urllib.error import HTTPError

import pytest

from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import CAPACITY, TAINTS, FakeApi, Fault, Request
from tests.conformance.plugin import free_address, page

CAPACITY_MODE = "dra: {mode: capacity, memoryTotal: 6Gi}"


def creates(request: Request) -> bool:
    return request.method == "POST" and request.is_write


def watches_of(api: FakeApi) -> int:
    return len([one for one in api.requests if one.is_watch])


async def until_watched_again(api: FakeApi, before: int) -> None:
    await api.until(lambda: watches_of(api) > before, "watch again")


async def test_a_slice_takes_one_write_and_then_none(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        await api.until(lambda: bool(api.watches), "watch")
        owner = api.slice["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", api.node_uid, True)
        assert api.slice["spec"]["pool"] == {"name": "jetson-1", "generation": 1, "resourceSliceCount": 1}
        await node.kubelet.until(lambda: len(node.kubelet.health) > 1, "second observation of the board")
        assert len(api.writes) == 1


async def test_a_slice_that_a_kubelet_deletes_is_created_again(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        for generation in (2, 3):
            api.delete_slices()
            await api.until(lambda: bool(api.devices), "slice again")
            assert api.slice["spec"]["pool"]["generation"] == generation


async def test_an_existing_slice_is_kept_without_a_write(node: DraNode, api: FakeApi) -> None:
    async with node.start() as driver:
        await node.ready()
        await api.until(lambda: bool(api.watches), "watch")
        driver.signal(signal.SIGKILL)
        await driver.process.wait()
    api.requests = [one for one in api.requests if one.is_write]
    async with node.start():
        await node.kubelet.until_registered(2)
        await api.until(lambda: any(one.is_watch for one in api.requests), "watch of the second driver")
        assert len(api.writes) == 1


@pytest.mark.parametrize("forget", [False, True])
async def test_a_watch_that_ends_is_started_again(node: DraNode, api: FakeApi, forget: bool) -> None:
    async with node.start():
        await node.ready()
        for _ in range(2):
            await api.until(lambda: bool(api.watches) and len(api.slices) == 1, "watch")
            watches = watches_of(api)
            if forget:  # 410 to each continued watch
                api.add_slice(api.slice["spec"])
                api.forget_history()
            api.end_watches()
            await until_watched_again(api, watches)
        api.delete_slices()
        await api.until(lambda: len(api.slices) == 1 and bool(api.devices), "slice again")


async def test_watches_that_end_immediately_are_limited(node: DraNode, api: FakeApi) -> None:
    api.ends_watches_immediately = True
    async with node.start():
        await node.ready()
        watches, since = watches_of(api), asyncio.get_running_loop().time()
        await api.until(lambda: watches_of(api) >= watches + 5, "five more watches")
        assert asyncio.get_running_loop().time() - since > 3


@pytest.mark.parametrize("status", [403, 409, 429, 500, 503])
async def test_a_rejected_write_is_retried(node: DraNode, api: FakeApi, status: int) -> None:
    api.faults.append(Fault(creates, status=status, count=2))
    async with node.start():
        await node.ready()
        assert len([one for one in api.requests if creates(one)]) == 3


async def test_invalid_answers_are_survived(node: DraNode, api: FakeApi) -> None:
    def lists(request: Request) -> bool:
        return request.method == "GET" and request.path.endswith("resourceslices") and not request.is_watch

    api.faults += [
        Fault(lists, status=200, body=b"<html>a proxy</html>"),
        Fault(lists, status=502, body=b"<html>a proxy</html>"),
        Fault(lists, status=200, body=b'{"items": 1}'),
    ]
    async with node.start():
        await node.ready()


async def test_a_server_without_this_api_is_reported_and_awaited(node: DraNode, api: FakeApi) -> None:
    api.serves_dra = False
    async with node.start() as driver:
        await driver.until_logged("Kubernetes 1.34")
        api.serves_dra = True
        await node.ready()


async def test_an_absent_server_is_awaited(node: DraNode, api: FakeApi) -> None:
    address = free_address()
    await api.stop()
    async with node.start(f"--metrics-address={address}") as driver:
        await node.kubelet.until_registered()
        await driver.until_logged("the ResourceSlice is not published: no API server")
        with pytest.raises(HTTPError, match="503"):
            await asyncio.to_thread(page, address, "/readyz")
        await api.start()
        await node.ready()
        await driver.until_logged("the ResourceSlice is published again")
        assert await asyncio.to_thread(page, address, "/readyz") == "ok\n"
        # A watch that begins after the loss would not show it, and no server restarts before a watch begins.
        await api.until(lambda: bool(api.watches), "watch")
        await api.stop()
        api.slices.clear()
        await api.start()
        await node.ready()


async def test_slow_answers_are_waited_for(node: DraNode, api: FakeApi) -> None:
    api.faults.append(Fault(lambda _: True, count=3, seconds=1, then_go_on=True))
    async with node.start():
        await node.ready()


async def test_a_renewed_token_is_read_again(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        api.token = "token-of-the-next-hour"
        node.token.write_text(api.token)
        api.delete_slices()
        await api.until(lambda: bool(api.devices), "slice, by the new token")


async def test_a_failed_gpu_is_tainted_until_it_recovers(node: DraNode, api: FakeApi) -> None:
    address = free_address()
    async with node.start(f"--metrics-address={address}"):
        await node.ready()
        hidden = node.hide("/dev/nvmap")
        await api.until(lambda: "taints" in api.devices[0], "taint")
        assert api.devices[0]["taints"][0]["value"] == "nodes-missing"
        await node.kubelet.until(lambda: node.kubelet.health[-1]["igpu-0"][0] == 2, "word of it")
        assert node.kubelet.health[-1]["igpu-0"][1].startswith("nodes-missing: no /dev/nvmap")
        hidden.rename(hidden.with_name("nvmap"))
        await api.until(lambda: "taints" not in api.devices[0], "device without a taint")
        await node.kubelet.until(lambda: node.kubelet.health[-1]["igpu-0"] == (1, ""), "word of it")
        updates = 'tegra_dra_driver_slice_writes_total{result="updated"} 2\n'
        async with asyncio.timeout(10):
            while updates not in await asyncio.to_thread(page, address):
                pass  # it counts a write once the server has answered


async def test_where_taints_are_dropped_a_failed_gpu_leaves(node: DraNode, api: FakeApi) -> None:
    api.gates -= {TAINTS}
    async with node.start():
        await node.ready()
        hidden = node.hide("/dev/nvmap")
        await api.until(lambda: len(api.slices) == 1 and not api.devices, "slice without a device")
        hidden.rename(hidden.with_name("nvmap"))
        await api.until(lambda: bool(api.devices), "device again")
        # The unhealthy device was never published as a healthy one.
        sent = [one.body["spec"]["devices"] for one in api.writes if one.body]
        assert [len(one) for one in sent] == [1, 0, 1]


async def test_capacity_without_its_gate_is_rejected_until_the_gate_is_on(
    node: DraNode, api: FakeApi
) -> None:
    api.gates -= {CAPACITY}
    async with node.start(sharing=CAPACITY_MODE) as driver:
        await driver.until_logged("needs the feature gate DRAConsumableCapacity")
        await node.kubelet.until_registered()
        assert api.writes == []  # a dry run: no claim can get the device as a full GPU
        api.gates |= {CAPACITY}
        await node.ready()
        assert api.devices[0]["allowMultipleAllocations"] is True


async def test_a_new_mode_replaces_the_devices(node: DraNode, api: FakeApi) -> None:
    async with node.start(sharing="dra: {mode: exclusive}") as driver:
        await node.ready()
        node.files.share("dra: {mode: shares, shares: 3}")
        await api.until(lambda: len(api.devices) == 3, "three shares")
        await node.kubelet.until_registered(2)
        node.files.share("units: {memoryTotal: 6Gi}")
        await driver.until_logged("configuration rejected, the old configuration stays in force")
        assert len(api.devices) == 3


async def test_a_conflict_over_the_slice_costs_few_writes(node: DraNode, api: FakeApi) -> None:
    """A client deletes the slice at each write, as fast as the driver."""

    async def fight() -> None:
        while True:
            await api.until(lambda: bool(api.devices), "slice")
            api.delete_slices()

    async with node.start():
        await node.ready()
        fighting = asyncio.ensure_future(fight())
        await node.kubelet.until(lambda: len(node.kubelet.health) > 2, "two observations of the board")
        fighting.cancel()
        await asyncio.wait((fighting,))
        assert len(api.writes) < 12
