# SPDX-License-Identifier: Apache-2.0
"""Prepare and unprepare: what is on disk then, and what is said when it cannot be."""

import asyncio
import errno
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.dra import checkpoint, claimstore, preparing
from tegra_device_plugin.dra.claims import ClaimReference, Prepared
from tegra_device_plugin.dra.preparing import CallCounts, Preparer
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.system.kubernetes import GIB, MIB

from tests import ledgers
from tests.unit.plugin.dra.objects import CLAIM, UNHEALTHY, claim, place, result

OTHER = ClaimReference("default", "b", "2222-b")


class Claims:
    """The node's claims, some files, and an API server that can be away."""

    def __init__(self, tmp_path: Path) -> None:
        self.place = place(tmp_path)
        self.cdi = self.place.root / "run/cdi"
        self.ledgers = self.place.limit_dir / "ledgers"
        self.known: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.away = False
        self.queries = 0
        self.calls = CallCounts()
        self.preparer = self.restarted()

    def restarted(self) -> Preparer:
        self.preparer = Preparer(self.place, self._get, self.calls)
        return self.preparer

    def allocate(self, reference: ClaimReference, *results: dict[str, Any]) -> None:
        self.known[reference.namespace, reference.name] = claim(*results, uid=reference.uid)

    async def _get(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        self.queries += 1
        if self.away:
            raise OSError("no API server: connection refused")
        return self.known.get((namespace, name))

    async def prepare(self, reference: ClaimReference) -> Prepared | str:
        return (await self.preparer.prepare([reference]))[reference.uid]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.glob("*claim*"))

    def edits(self, reference: ClaimReference) -> dict[str, Any]:
        spec = json.loads((self.cdi / f"gpu.jetson-k3s.github.io-claim-{reference.uid}.json").read_text())
        (device,) = spec["devices"]
        assert device["name"].startswith(reference.uid)
        edits: dict[str, Any] = device["containerEdits"]
        return edits


async def hang(_namespace: str, _name: str) -> Mapping[str, Any]:
    """Ask an API server that does not answer."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    return Claims(tmp_path)


async def test_a_share_is_limited_and_its_ledger_lives_as_long_as_the_claim(claims: Claims) -> None:
    claims.allocate(CLAIM, result(shareID="s1", consumedCapacity={"memory": "3Gi", "cores": "0"}))
    assert isinstance(await claims.prepare(CLAIM), Prepared)
    edits = claims.edits(CLAIM)
    assert "NVIDIA_GPU_MEMORY_LIMIT=3072" in edits["env"]
    file = claims.ledgers / f"claim-{CLAIM.uid}-igpu-0-s1"
    assert [one["options"][0] for one in edits["mounts"]] == ["ro", "ro", "ro"]
    assert edits["mounts"][2]["hostPath"] == str(file.resolve())
    assert ledger.read(file) == ledger.Ledger(3 * GIB, MIB)
    with ledgers.used_by(file, 7):  # by a running container
        assert isinstance(await claims.prepare(CLAIM), Prepared)
        assert ledger.read(file) == ledger.Ledger(3 * GIB, MIB, (7,))
    await claims.preparer.unprepare([CLAIM])
    assert not list(claims.ledgers.iterdir())


async def test_prepare_again_gives_the_same_without_the_api_server(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims.allocate(CLAIM, result())
    first = await claims.prepare(CLAIM)
    assert await claims.prepare(CLAIM) == first
    claims.restarted()
    claims.away = True
    assert await claims.prepare(CLAIM) == first
    monkeypatch.setattr(preparing, "_PREPARED_REQUEST_SECONDS", 0.01)
    monkeypatch.setattr(claims.preparer, "_get_claim", hang)
    assert await claims.prepare(CLAIM) == first


async def test_a_new_claim_needs_the_api_server(claims: Claims) -> None:
    claims.away = True
    assert await claims.prepare(CLAIM) == "cannot read the claim default/a: no API server: connection refused"
    assert claims.preparer.in_use == 0 and claims.files == []


async def test_a_claim_that_waits_for_the_api_server_delays_no_other(claims: Claims) -> None:
    get, queried = claims._get, asyncio.Event()

    async def hang_for_the_first(namespace: str, name: str) -> Mapping[str, Any] | None:
        if name == OTHER.name:
            return await get(namespace, name)
        queried.set()
        return await hang(namespace, name)

    claims.allocate(OTHER, result())
    preparer = Preparer(claims.place, hang_for_the_first, claims.calls)
    waiting = asyncio.ensure_future(preparer.prepare([CLAIM]))
    await queried.wait()
    async with asyncio.timeout(20):
        assert isinstance((await preparer.prepare([OTHER]))[OTHER.uid], Prepared)
        await preparer.unprepare([OTHER])
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert preparer.in_use == 0


async def test_prepare_times_out_before_the_kubelet(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * (preparing._REQUEST_SECONDS + preparing._COMMIT_SECONDS) < 40  # the kubelet waits for 45 s
    monkeypatch.setattr(preparing, "_REQUEST_SECONDS", 0.01)
    monkeypatch.setattr(claims.preparer, "_get_claim", hang)
    reason = str(await claims.prepare(CLAIM))
    assert reason.startswith(
        "cannot read the claim default/a: the API server has not answered within 0.01 s: check that"
    )


async def test_a_disk_that_hangs_is_named_and_the_commit_ends_when_it_goes_on(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, writes, goes_on = checkpoint.save, threading.Event(), threading.Event()

    def hang_then_save(path: Path, content: Mapping[str, Prepared]) -> None:
        writes.set()
        goes_on.wait(20)
        save(path, content)

    claims.allocate(CLAIM, result())
    monkeypatch.setattr(claimstore, "save", hang_then_save)
    cancelled = asyncio.ensure_future(claims.prepare(CLAIM))
    await asyncio.to_thread(writes.wait, 20)
    cancelled.cancel()
    await asyncio.wait((cancelled,))
    monkeypatch.setattr(preparing, "_COMMIT_SECONDS", 0.01)
    reason = str(await claims.prepare(CLAIM))
    assert reason.startswith("the files of claims were not written within 0.01 s: check the disk of")
    with pytest.raises(OSError, match="were not written within 0 s"):
        monkeypatch.setattr(preparing, "_FINISH_SECONDS", 0)
        await claims.preparer.finish()
    monkeypatch.undo()
    goes_on.set()
    await claims.preparer.finish()
    assert claims.preparer.in_use == 1
    assert list(checkpoint.load(claims.place.checkpoint)) == [CLAIM.uid]


async def test_a_full_disk_keeps_no_pod_in_terminating_and_no_gpu(
    claims: Claims, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    claims.allocate(CLAIM, result(shareID="s1", consumedCapacity={"memory": "3Gi", "cores": "0"}))
    await claims.prepare(CLAIM)
    monkeypatch.setattr(claimstore, "save", fail)
    assert await claims.preparer.unprepare([CLAIM]) == {CLAIM.uid: ""}
    assert (claims.preparer.in_use, claims.files, list(claims.ledgers.iterdir())) == (0, [], [])
    assert f"{claims.place.checkpoint} still has claims that are unprepared" in caplog.text
    claims.allocate(OTHER, result())
    assert "No space left" in str(await claims.prepare(OTHER))
    assert claims.files == []
    with pytest.raises(OSError, match="No space left"):
        await claims.preparer.restore()
    monkeypatch.undo()
    before = claims.place.checkpoint.read_bytes()
    await claims.preparer.restore()
    assert checkpoint.load(claims.place.checkpoint) == {}
    # The driver ended before it could save: the kubelet does not unprepare the claim again.
    claims.place.checkpoint.write_bytes(before)
    claims.allocate(CLAIM)
    claims.restarted()
    assert claims.preparer.in_use == 1
    assert isinstance(await claims.prepare(OTHER), Prepared)
    assert claims.preparer.in_use == 1


async def test_a_claim_with_another_allocation_is_prepared_again(claims: Claims) -> None:
    claims.allocate(CLAIM, result("igpu-0-share-0"))
    await claims.prepare(CLAIM)
    claims.allocate(CLAIM, result("igpu-0-share-1"))
    found = await claims.prepare(CLAIM)
    assert isinstance(found, Prepared) and found.devices[0].name == "igpu-0-share-1"


async def test_a_second_pod_keeps_the_files_of_the_first_when_the_checkpoint_knows_less(
    claims: Claims,
) -> None:
    """As after an update, by whose release more is known of a device."""
    share: dict[str, Any] = {"shareID": "s1", "consumedCapacity": {"memory": "3Gi", "cores": "0"}}
    claims.allocate(CLAIM, result(**share))
    await claims.prepare(CLAIM)
    file = claims.ledgers / f"claim-{CLAIM.uid}-igpu-0-s1"
    claims.allocate(CLAIM, result(**share, tolerations=[{"operator": "Exists"}]))
    claims.place.health = UNHEALTHY
    with ledgers.used_by(file, 7):  # by the first pod
        found = await claims.prepare(CLAIM)
        assert isinstance(found, Prepared) and found.devices[0].tolerates_unhealthy
        assert ledger.read(file) == ledger.Ledger(3 * GIB, MIB, (7,))


@pytest.mark.parametrize("present", [None, "igpu-0-share-1", "igpu-0-share-0"])
async def test_a_claim_has_the_devices_of_its_present_allocation(claims: Claims, present: str | None) -> None:
    claims.allocate(CLAIM, result("igpu-0-share-0"))
    await claims.prepare(CLAIM)
    claims.allocate(CLAIM, *([result(present)] if present else [result(pool="jetson-2")]))
    claims.allocate(OTHER, result("igpu-0-share-0"))
    answer = await claims.prepare(OTHER)
    if present == "igpu-0-share-0":
        assert str(answer).startswith("igpu-0-share-0 is still prepared for the claim default/a")
    else:
        assert isinstance(answer, Prepared)
        assert list(checkpoint.load(claims.place.checkpoint)) == [OTHER.uid]


async def test_a_claim_that_is_prepared_anew_while_it_is_checked_keeps_its_gpu(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims.allocate(CLAIM, result("igpu-0-share-0"))
    await claims.prepare(CLAIM)
    claims.allocate(OTHER, result("igpu-0-share-0"))
    get = claims._get

    async def allocated_meanwhile(namespace: str, name: str) -> Mapping[str, Any] | None:
        monkeypatch.setattr(claims.preparer, "_get_claim", get)
        claims.allocate(CLAIM, result("igpu-0"))
        await claims.prepare(CLAIM)
        return claim(uid=CLAIM.uid)

    async def first(namespace: str, name: str) -> Mapping[str, Any] | None:
        monkeypatch.setattr(claims.preparer, "_get_claim", allocated_meanwhile)
        return await get(namespace, name)

    monkeypatch.setattr(claims.preparer, "_get_claim", first)
    assert str(await claims.prepare(OTHER)).startswith("igpu-0 is still prepared for the claim default/a")


async def test_an_error_of_one_claim_does_not_affect_others(claims: Claims) -> None:
    claims.allocate(OTHER, result())
    answer = await claims.preparer.prepare([CLAIM, OTHER, ClaimReference("x", "y", "../../etc/passwd")])
    assert "not found" in str(answer[CLAIM.uid])
    assert isinstance(answer[OTHER.uid], Prepared)
    assert "not the uid" in str(answer["../../etc/passwd"])
    assert (claims.calls.prepared, claims.calls.prepare_failed) == (1, 2)


async def test_an_unhealthy_gpu_is_prepared_only_with_a_toleration(claims: Claims) -> None:
    claims.allocate(CLAIM, result())
    claims.place.health = None
    assert await claims.prepare(CLAIM) == "the board was not observed yet; the kubelet tries again"
    claims.place.health = UNHEALTHY
    assert await claims.prepare(CLAIM) == "the GPU is unhealthy: nodes-missing: no /dev/nvmap"
    claims.allocate(CLAIM, result(tolerations=[{"operator": "Exists"}]))
    assert isinstance(await claims.prepare(CLAIM), Prepared)
    assert isinstance(await claims.prepare(CLAIM), Prepared)


async def test_only_files_of_the_driver_are_left_over(claims: Claims) -> None:
    claims.ledgers.mkdir(parents=True)
    claims.cdi.mkdir(exist_ok=True)
    others = [claims.ledgers / "m17", claims.cdi / "nvidia.json"]  # the device plugin's, NVIDIA's
    leftovers = [claims.ledgers / "claim-gone", claims.cdi / "gpu.jetson-k3s.github.io-claim-gone.json"]
    for path in (*others, *leftovers):
        path.write_bytes(b"")
    await claims.preparer.restore()
    assert [path.exists() for path in (*others, *leftovers)] == [True, True, False, False]
