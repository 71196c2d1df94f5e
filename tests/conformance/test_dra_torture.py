# SPDX-License-Identifier: Apache-2.0
"""Random calls, kills, cancellations and failures: checkpoint, memory and CDI directory stay the same.

The driver is a real process and its calls are real gRPC. The seed is printed with a failure. To repeat a run:
TORTURE_SEED=N python -m pytest tests/conformance/test_dra_torture.py. TORTURE_STEPS makes it longer.
"""

import asyncio
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.config.names import DRIVER

from tests.conformance.dra_node import DraNode, share
from tests.conformance.fake_api import FakeApi, Fault, Request
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.conformance.plugin import Plugin, free_address

SEED = int(os.environ.get("TORTURE_SEED") or random.SystemRandom().randrange(1 << 32))
STEPS = int(os.environ.get("TORTURE_STEPS") or 2000)
SHARES = ("s1", "s2")
# Of a call that is cancelled, or cut off by a kill. A call takes 5 ms.
LATEST_SECONDS = 0.012
# A start of the driver takes as long as a hundred calls.
STEP_WEIGHTS = {
    "prepare": 30,
    "prepare_again": 6,
    "unprepare": 28,
    "cancel": 22,
    "delete_claim": 8,
    "fill_disk": 4,
    "stall_api": 1.5,
    "kill": 1,
}

Object = dict[str, Any]


def fetches_claim(request: Request) -> bool:
    return "resourceclaims" in request.path


class Torture:
    """A node and the steps that are done to it."""

    def __init__(self, node: DraNode, generator: random.Random) -> None:
        self.node = node
        self.random = generator
        self.done: Counter[str] = Counter()
        self.claims: dict[str, Object] = {}
        """Every claim that was ever made, by uid."""
        self._run = AsyncExitStack()
        self._driver: Plugin | None = None
        self._address = free_address()

    # What is there.

    @property
    def checkpoint(self) -> dict[str, str]:
        """The share of each prepared claim, by uid, as the checkpoint has it."""
        try:
            document = json.loads((self.node.plugins / "checkpoint.json").read_text())
        except FileNotFoundError:
            return {}
        return {uid: one["devices"][0]["share"] for uid, one in document["claims"].items()}

    @property
    def files(self) -> list[str]:
        """The CDI specs and ledgers of claims, and everything that a killed process may leave."""
        return sorted(self.node.leftovers)

    @property
    def expected_files(self) -> list[str]:
        """The files of the claims that the checkpoint has."""
        return sorted(
            name
            for uid, share_id in self.checkpoint.items()
            for name in (f"{DRIVER}-claim-{uid}.json", *[f"claim-{uid}-igpu-0-{share_id}"] * 2)
        )

    @property
    def free(self) -> list[str]:
        """The shares that no claim has which exists in the API server."""
        held = {one for uid, one in self.checkpoint.items() if self._exists(uid)}
        return [one for one in SHARES if one not in held]

    def _exists(self, uid: str) -> bool:
        metadata = self.claims[uid]["metadata"]
        return (metadata["namespace"], metadata["name"]) in self.node.api.claims

    @property
    def log(self) -> str:
        return self._driver.log.read_text()[-4000:] if self._driver else ""

    async def in_use(self) -> int:
        """The number of prepared claims in the driver's memory."""
        reader, writer = await asyncio.open_connection(*self._address.split(":"))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        found = re.search(r"resource_claims_in_use (\d+)", text)
        assert found, text
        return int(found[1])

    async def check(self) -> None:
        free = self.free
        claim = self._new_claim(self.random.choice(free or SHARES))
        if free:
            await self._prepared(claim)
        assert self.files == self.expected_files
        assert await self.in_use() == len(self.checkpoint)
        if free:
            await self._unprepared(claim)

    # The steps.

    async def step(self) -> None:
        (name,) = self.random.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))
        self.done[name] += 1
        await getattr(self, name)()

    async def prepare(self) -> None:
        share_id = self.random.choice(SHARES)
        claim = self._new_claim(share_id)
        if share_id in self.free:
            await self._prepared(claim)
        else:
            assert "is still prepared for the claim" in await self._prepare_error(claim)

    async def prepare_again(self) -> None:
        """What a kubelet does after its start."""
        for uid in self.checkpoint:
            if self._exists(uid):
                await self._prepared(self.claims[uid])

    async def unprepare(self) -> None:
        await self._unprepared(self._any_claim())

    async def cancel(self) -> None:
        """What a kubelet does when its own deadline is over, or when it ends."""
        await self._cut_off(self._any_call())

    async def delete_claim(self) -> None:
        """The API server deletes claims that the kubelet does not unprepare."""
        for uid in self.checkpoint:
            metadata = self.claims[uid]["metadata"]
            self.node.api.claims.pop((metadata["namespace"], metadata["name"]), None)

    async def fill_disk(self) -> None:
        """Let each write fail that makes a file longer than so many bytes."""
        assert self._driver
        before = resource.prlimit(self._driver.process.pid, resource.RLIMIT_FSIZE)
        size = self.random.choice((0, 100, 400, 1000))
        resource.prlimit(self._driver.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            await self._any_call()
        finally:
            resource.prlimit(self._driver.process.pid, resource.RLIMIT_FSIZE, before)

    async def stall_api(self) -> None:
        """Unprepare and a second prepare while the API server does not answer."""
        api, kubelet = self.node.api, self.node.kubelet
        stalled = self._new_claim(self.random.choice(SHARES))
        path = f"/{stalled['metadata']['name']}"
        api.faults.append(Fault(lambda one: one.path.endswith(path), seconds=100))
        preparing = asyncio.ensure_future(kubelet.prepare(stalled))
        await api.until(lambda: any(one.path.endswith(path) for one in api.requests[-5:]), "request")
        async with asyncio.timeout(5):
            await self.unprepare()
            await self.prepare()
        await self._give_up(preparing)
        api.faults.clear()

    async def kill(self) -> None:
        """A power cut at any moment; often /run is empty afterwards."""
        assert self._driver
        call = asyncio.ensure_future(self._any_call())
        await asyncio.sleep(self.random.uniform(0, LATEST_SECONDS))
        self._driver.signal(signal.SIGKILL)
        await self._driver.process.wait()
        await asyncio.wait((call,))
        call.exception()
        await self.stop()
        if self.random.random() < 0.5:
            for path in (self.node.root / "run/cdi").iterdir():
                path.unlink()
        await self.start()

    # The driver.

    async def start(self) -> None:
        kubelet, before = self.node.kubelet, self.node.kubelet.registrations
        run = self.node.start(
            f"--metrics-address={self._address}", sharing="dra: {mode: capacity, memoryTotal: 6Gi}"
        )
        self._driver = await self._run.enter_async_context(run)
        await kubelet.until_registered(before + 1)
        await self._driver.says("the GPU is healthy")
        async with asyncio.timeout(10):
            while self.files != self.expected_files:  # noqa: ASYNC110 - another process: nothing to await
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self._run.aclose()

    # Calls.

    def _new_claim(self, share_id: str) -> Object:
        claim = self.node.api.allocate(uuid.UUID(int=self.random.getrandbits(128)).hex, share(share_id))
        self.claims[claim["metadata"]["uid"]] = claim
        return claim

    def _any_claim(self) -> Object:
        """One that is prepared if there is one, or an earlier one."""
        known = list(self.checkpoint) or list(self.claims)
        return self.claims[self.random.choice(known)] if known else self._new_claim(SHARES[0])

    def _any_call(self) -> Awaitable[Any]:
        kubelet = self.node.kubelet
        if self.random.random() < 0.5:
            return kubelet.prepare(self._new_claim(self.random.choice(SHARES)))
        return kubelet.unprepare(self._any_claim())

    async def _cut_off(self, call: Awaitable[Any]) -> None:
        running = asyncio.ensure_future(call)
        await asyncio.wait((running,), timeout=self.random.uniform(0, LATEST_SECONDS))
        await self._give_up(running)

    async def _give_up(self, running: asyncio.Future[Any]) -> None:
        """Cancel a call, and wait until its commit has ended if it had begun."""
        running.cancel()
        await asyncio.wait((running,))
        await self._unprepared(self._new_claim("none"))

    async def _prepare_error(self, claim: Object) -> str:
        (answer,) = (await self.node.kubelet.prepare(claim)).values()
        return answer.error

    async def _prepared(self, claim: Object) -> None:
        assert await self._prepare_error(claim) == ""
        assert claim["metadata"]["uid"] in self.checkpoint

    async def _unprepared(self, claim: Object) -> None:
        assert list((await self.node.kubelet.unprepare(claim)).values()) == [""]
        assert claim["metadata"]["uid"] not in self.checkpoint


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, if there is one: each commit syncs. Its path is short, as sockets need it."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dra-", dir=in_memory if in_memory.is_dir() else "/tmp") as made:
        yield Path(made)


@pytest.fixture
async def torture(place: Path) -> AsyncIterator[Torture]:
    async with FakeApi() as api, FakeDraKubelet(place / "kubelet", "v1") as kubelet:
        made = Torture(DraNode(place, api, kubelet), random.Random(SEED))  # noqa: S311 - repeatable
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


@pytest.mark.timeout(600)
async def test_checkpoint_memory_and_cdi_directory_stay_the_same(torture: Torture) -> None:
    sys.stderr.write(f"TORTURE_SEED={SEED} TORTURE_STEPS={STEPS}\n")
    for number in range(STEPS):
        await torture.step()
        try:
            await torture.check()
        except BaseException:
            sys.stderr.write(f"after step {number} of {dict(torture.done)}\n{torture.log}")
            raise
        torture.node.api.requests.clear()
    assert set(torture.done) == set(STEP_WEIGHTS)
