# SPDX-License-Identifier: Apache-2.0
"""Registration, claims and their files, as a kubelet sees them."""

import asyncio
import itertools
import json
import signal

import pytest

from tests.conformance.awaited import eventually
from tests.conformance.dra_node import DraNode, share
from tests.conformance.fake_api import FakeApi, Fault
from tests.conformance.plugin import DEFAULT_COMMAND, Plugin, running

WHOLE = {"device": "igpu-0"}
CAPACITY_MODE = "dra: {mode: capacity, memoryTotal: 6Gi}"


async def killed(driver: Plugin) -> None:
    driver.signal(signal.SIGKILL)
    await driver.process.wait()


async def test_a_claim_is_prepared_and_unprepared(node: DraNode, api: FakeApi) -> None:
    async with node.start() as driver:
        await node.ready()
        assert node.kubelet.info
        versions = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
        assert list(node.kubelet.info.supported_versions) == versions
        claim = api.allocate("a", WHOLE)
        uid = claim["metadata"]["uid"]
        first = await node.kubelet.prepare(claim)
        (device,) = first[uid].devices
        assert (first[uid].error, device.pool_name, device.device_name) == ("", "jetson-1", "igpu-0")
        assert list(device.request_names) == ["gpu"]
        assert list(device.cdi_device_ids) == [
            "k8s.device-plugin.nvidia.com/gpu=all",
            f"gpu.jetson-k3s.github.io/claim={uid}-igpu-0",
        ]
        assert await node.kubelet.prepare(claim) == first
        (spec,) = node.specs
        (device_spec,) = json.loads((node.root / "run/cdi" / spec).read_text())["devices"]
        assert device_spec["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
        assert await node.kubelet.unprepare(claim) == {uid: ""}
        assert await node.kubelet.unprepare(claim) == {uid: ""}
        assert node.leftovers == []
        driver.signal(signal.SIGTERM)
        assert await driver.ended() == 0
    assert list(node.registry.iterdir()) == []
    assert [path.name for path in node.plugins.iterdir()] == ["checkpoint.json"]


async def test_claims_that_cannot_be_prepared_have_a_reason(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        prepared = api.allocate("prepared", WHOLE)
        await node.kubelet.prepare(prepared)
        waits = api.allocate("waits")
        double = api.allocate("double", WHOLE)
        old = api.allocate("again", WHOLE)
        api.allocate("again", WHOLE)
        gone = api.allocate("gone", WHOLE)
        del api.claims["default", "gone"]
        answer = await node.kubelet.prepare(waits, double, old, gone)
        reasons = [answer[one["metadata"]["uid"]].error for one in (waits, double, old, gone)]
        for reason, message in zip(
            reasons,
            ("not allocated", "still prepared for the claim default/prepared", "got replaced", "not found"),
            strict=True,
        ):
            assert message in reason
        await node.kubelet.unprepare(prepared)
        assert (await node.kubelet.prepare(double))[double["metadata"]["uid"]].error == ""


@pytest.mark.parametrize("other", ["deleted", "replaced", "deallocated", "elsewhere", "exists", "unknown"])
async def test_only_a_claim_that_is_allocated_here_keeps_its_gpu(
    node: DraNode, api: FakeApi, other: str
) -> None:
    """The kubelet may never unprepare a claim, for example after its checkpoint was removed."""
    async with node.start():
        await node.ready()
        old = api.allocate("old", WHOLE)
        await node.kubelet.prepare(old)
        if other == "deleted":
            api.claims.clear()
        elif other == "replaced":
            api.allocate("old", WHOLE)
        elif other == "deallocated":
            del api.claims["default", "old"]["status"]["allocation"]
        elif other == "elsewhere":
            (result,) = api.claims["default", "old"]["status"]["allocation"]["devices"]["results"]
            result["pool"] = "jetson-2"
        elif other == "unknown":
            api.faults.append(Fault(lambda one: one.path.endswith("/old"), status=503, count=100))
        new = api.allocate("new", WHOLE)
        error = (await node.kubelet.prepare(new))[new["metadata"]["uid"]].error
        if other in ("deleted", "replaced", "deallocated", "elsewhere"):
            assert error == ""
            assert node.specs == [f"gpu.jetson-k3s.github.io-claim-{new['metadata']['uid']}.json"]
        elif other == "exists":
            assert "igpu-0 is still prepared for the claim default/old" in error
        else:
            assert "cannot check whether the claim default/old, which has igpu-0, exists" in error


@pytest.mark.parametrize("away", [False, True])
async def test_a_driver_that_was_killed_knows_its_claims(node: DraNode, api: FakeApi, away: bool) -> None:
    async with node.start(sharing=CAPACITY_MODE) as driver:
        await node.ready()
        claim = api.allocate("a", share())
        first = await node.kubelet.prepare(claim)
        await killed(driver)
    # A reboot empties /run.
    for path in (node.root / "run/cdi").iterdir():
        path.unlink()
    (node.root / "run/cdi").rmdir()
    if away:
        await api.stop()
    async with node.start(sharing=CAPACITY_MODE) as driver:
        await node.kubelet.until_registered(2)
        await driver.until_logged("the GPU is healthy")
        assert await node.kubelet.prepare(claim) == first
        assert len(node.specs) == 1
        api.claims.clear()
        assert set((await node.kubelet.unprepare(claim)).values()) == {""}
        assert node.leftovers == []


async def test_files_that_are_wiped_come_back_without_a_call(node: DraNode, api: FakeApi) -> None:
    """A container that starts again is started with what its claim was prepared with."""
    async with node.start():
        await node.ready()
        await node.kubelet.prepare(api.allocate("a", WHOLE))
        (name,) = node.specs
        for path in (node.root / "run/cdi").iterdir():
            path.unlink()
        (node.root / "run/cdi/gpu.jetson-k3s.github.io-claim-unknown.json").write_text("{}")
        await eventually(lambda: node.specs == [name])


async def test_unwritable_checkpoint_is_reported_and_retried(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        claim = api.allocate("a", WHOLE)
        uid = claim["metadata"]["uid"]
        obstacle = node.plugins / "checkpoint.json"
        obstacle.mkdir()  # a file cannot be put in its place
        assert "checkpoint.json" in (await node.kubelet.prepare(claim))[uid].error
        assert node.specs == []
        obstacle.rmdir()
        assert (await node.kubelet.prepare(claim))[uid].error == ""


@pytest.mark.parametrize("content", ['{"version": 2, "claims": {}}', "half a fil"])
async def test_unreadable_checkpoint_is_rejected_and_kept(node: DraNode, content: str) -> None:
    node.plugins.mkdir(parents=True)
    checkpoint = node.plugins / "checkpoint.json"
    checkpoint.write_text(content)
    async with node.start() as driver:
        assert await driver.ended() == 1
    assert "it is not replaced" in driver.log.read_text()
    assert checkpoint.read_text() == content


async def test_two_hundred_claims_leave_nothing(node: DraNode, api: FakeApi) -> None:
    async with node.start(sharing=CAPACITY_MODE) as driver:
        await node.ready()
        sizes, files = [], []
        for count in itertools.count(1):
            claim = api.allocate("a", share(f"s{count}"))
            assert (await node.kubelet.prepare(claim))[claim["metadata"]["uid"]].error == ""
            await node.kubelet.unprepare(claim)
            if count in (50, 200):
                sizes.append(driver.private_kib())
                files.append(driver.descriptors())
            if count == 200:
                break
        assert node.leftovers == []
        assert files[1] <= files[0] + 1
        # Two threads at the same moment take another arena of malloc, which has about 1 MiB.
        assert sizes[1] - sizes[0] < 2048


async def test_a_rejected_driver_registers_again(node: DraNode) -> None:
    node.kubelet.refusal = "ordered to refuse"
    async with node.start() as driver:
        await driver.until_logged("the kubelet rejects the driver: ordered to refuse")
        node.kubelet.refusal = ""
        await node.kubelet.until(lambda: node.kubelet.info is not None, "registration")


async def test_sockets_that_are_removed_are_made_again(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        for count, path in enumerate(
            (node.plugins / "dra.sock", node.registry / "gpu.jetson-k3s.github.io-reg.sock"), start=2
        ):
            path.unlink()
            await node.kubelet.until_registered(count)
            claim = api.allocate("a", WHOLE)
            assert (await node.kubelet.prepare(claim))[claim["metadata"]["uid"]].error == ""
            await node.kubelet.unprepare(claim)


async def test_a_kubelet_that_starts_again_finds_the_driver(node: DraNode, api: FakeApi) -> None:
    async with node.start():
        await node.ready()
        claim = api.allocate("a", WHOLE)
        first = await node.kubelet.prepare(claim)
        await node.kubelet.stop()
        node.kubelet.forget_everything()
        await node.kubelet.start()
        await node.kubelet.until_registered(2)
        assert await node.kubelet.prepare(claim) == first


async def test_a_second_driver_is_rejected(node: DraNode) -> None:
    async with node.start():
        await node.ready()
        async with node.start() as second:
            assert await second.ended() == 1
        assert "another instance of the driver serves" in second.log.read_text()
        assert node.kubelet.info


async def test_never_beside_the_device_plugin(node: DraNode) -> None:
    plugins = node.kubelet.directory / "device-plugins"
    plugins.mkdir()
    async with node.start() as driver:
        await node.ready()
        async with running(DEFAULT_COMMAND, node.root, plugins) as plugin:
            assert await plugin.ended() == 1
        assert "the DRA driver serves this board" in plugin.log.read_text()
        driver.signal(signal.SIGTERM)
        await driver.ended()
    from tests.conformance.fake_kubelet import FakeKubelet  # noqa: PLC0415 - the other API's

    async with FakeKubelet(plugins) as other, running(DEFAULT_COMMAND, node.root, plugins):
        await other.until_allocatable()
        async with node.start() as driver:
            assert await driver.ended() == 1
        assert "the device plugin serves this board" in driver.log.read_text()


@pytest.mark.parametrize("moment", ["at once", "while the API server hangs", "while a claim waits"])
async def test_sigterm_ends_it(node: DraNode, api: FakeApi, moment: str) -> None:
    if moment == "while the API server hangs":
        api.faults.append(Fault(lambda _: True, count=100, seconds=100))
    async with node.start() as driver:
        if moment == "at once":
            await asyncio.sleep(0)
        else:
            await node.kubelet.until_registered()
        if moment == "while a claim waits":
            api.faults.append(Fault(lambda one: "resourceclaims" in one.path, count=100, seconds=100))
            preparing = asyncio.ensure_future(node.kubelet.prepare(api.allocate("a", WHOLE)))
            await api.until(
                lambda: any("resourceclaims" in one.path for one in api.requests), "question for the claim"
            )
        driver.signal(signal.SIGTERM)
        assert await driver.ended() == (0 if moment != "at once" else driver.process.returncode)
        if moment == "while a claim waits":
            await asyncio.wait((preparing,))  # cut off by either end
    assert not node.registry.exists() or list(node.registry.iterdir()) == []
