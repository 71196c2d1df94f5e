# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims, one call at a time: checkpoint, memory limits, CDI specs.

The checkpoint comes first: whatever is made by it is made again from it, after a reboot or a kill. A claim
that is prepared again is made again as well, with the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import checkpoint, claims, specs
from tegra_device_plugin.dra.checkpoint import Prepared
from tegra_device_plugin.dra.claims import Asked, ClaimError
from tegra_device_plugin.sharing import limitfiles
from tegra_device_plugin.sharing.memorylimit import Limit
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import describe_error
from tegra_device_plugin.system.sensor import Sensor

# For one claim's files; a kubelet gives a call 45 s.
_WRITE_SECONDS = 10.0
# To hear of a claim that is prepared already: without an answer the checkpoint's word counts.
_KNOWN_SECONDS = 3.0

# A uid is part of file names.
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}")

# Of ledgers, in a directory that the device plugin has as well.
_LEDGER_PREFIX = "claim-"

logger = logging.getLogger(__name__)

T = TypeVar("T")

GetClaim = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""By namespace and name; raises OSError."""


@dataclass
class Calls:
    """Totals since the start of the process."""

    prepared: int = 0
    prepare_failed: int = 0
    prepare_seconds: float = 0.0
    unprepared: int = 0
    unprepare_failed: int = 0
    unprepare_seconds: float = 0.0


@dataclass
class Place:
    """Where things are, and the GPU as it is now."""

    root: Path
    pool: str
    checkpoint: Path
    limit_dir: Path
    limit_library: Path
    overhead: int = 0
    cdi_version: str = cdi.OLDEST
    device_nodes: Sequence[str] = ()
    verdict: Health | None = None
    """None: not looked at yet."""


class Preparer:
    """The claims of this node. Raises CheckpointError when it is made."""

    def __init__(self, place: Place, get_claim: GetClaim, calls: Calls) -> None:
        self._place = place
        self._get_claim = get_claim
        self._calls = calls
        self._claims = checkpoint.load(place.checkpoint)
        self._lock = asyncio.Lock()
        self._files = Sensor(_WRITE_SECONDS)

    @property
    def in_use(self) -> int:
        """How many claims are prepared."""
        return len(self._claims)

    async def prepare(self, asked: Sequence[Asked]) -> dict[str, Prepared | str]:
        """Give by uid what was prepared, or why it could not be."""
        began = time.monotonic()
        answer: dict[str, Prepared | str] = {}
        async with self._lock:
            for claim in asked:
                answer[claim.uid] = await self._guarded(self._prepare(claim), f"prepare {_name(claim)}")
        failed = sum(isinstance(one, str) for one in answer.values())
        self._calls.prepare_failed += failed
        self._calls.prepared += len(answer) - failed
        self._calls.prepare_seconds += time.monotonic() - began
        return answer

    async def unprepare(self, asked: Sequence[Asked]) -> dict[str, str]:
        """Give by uid why a claim could not be unprepared; empty: it is. Unknown ones are already."""
        began = time.monotonic()
        answer: dict[str, str] = {}
        async with self._lock:
            for claim in asked:
                done = await self._guarded(self._unprepare(claim), f"unprepare {_name(claim)}")
                answer[claim.uid] = done if isinstance(done, str) else ""
        failed = sum(map(bool, answer.values()))
        self._calls.unprepare_failed += failed
        self._calls.unprepared += len(answer) - failed
        self._calls.unprepare_seconds += time.monotonic() - began
        return answer

    async def restore(self) -> None:
        """Make what prepared claims need where it is missing, and remove what is left over.

        Raises OSError, and TimeoutError where a write hangs.
        """
        async with self._lock:
            known = dict(self._claims)
            await self._files.read(lambda: self._restore(known))

    async def _guarded(self, work: Awaitable[T], what: str) -> T | str:
        try:
            return await work
        except (ClaimError, OSError, TimeoutError) as error:
            reason = str(error) or "a write of files hangs"
        except Exception as error:
            logger.exception("cannot %s", what)
            reason = f"a fault of the driver: {error!r}"
        logger.warning("cannot %s: %s", what, reason)
        return reason

    async def _prepare(self, claim: Asked) -> Prepared:
        if not _UID.fullmatch(claim.uid):
            raise ClaimError(f"{claim.uid!r} is no uid of a claim")
        prepared = await self._wanted(claim)
        known = self._claims.get(claim.uid)
        if prepared != known:
            await self._check(prepared, new=known is None)
            claims_then = self._claims | {claim.uid: prepared}
            await self._files.read(lambda: checkpoint.save(self._place.checkpoint, claims_then))
            self._claims = claims_then
        await self._files.read(lambda: self._make(prepared, anew=prepared != known))
        logger.info("prepared %s: %s", _name(claim), ", ".join(one.key for one in prepared.devices))
        return prepared

    async def _wanted(self, claim: Asked) -> Prepared:
        """Give what the claim has been given. For one that is prepared, the API server may be away."""
        known = self._claims.get(claim.uid)
        try:
            async with asyncio.timeout(_KNOWN_SECONDS if known else None):
                found = await self._get_claim(claim.namespace, claim.name)
        except (OSError, TimeoutError) as error:
            if known is None:
                raise
            logger.info(
                "%s is prepared already; not asked for again: %s",
                _name(claim),
                describe_error(error, "no answer"),
            )
            return known
        return Prepared(claim, claims.devices(found, claim, self._place.pool))

    async def _check(self, prepared: Prepared, *, new: bool) -> None:
        """Raise ClaimError if a claim cannot have its devices now."""
        uid = prepared.claim.uid
        for other_uid, other in self._claims.items():
            if other_uid == uid:
                continue
            if held := claims.conflict(prepared.devices, other.devices):
                raise ClaimError(
                    f"{held.key} is still prepared for the claim {_name(other.claim)}, mode {held.mode}; "
                    "it is free when the kubelet has ended that claim's last pod"
                )
        verdict = self._place.verdict
        if verdict is None:
            raise ClaimError("the board was not looked at yet")
        if new and not verdict.healthy and not all(one.tolerates_unhealthy for one in prepared.devices):
            raise ClaimError(f"the GPU is unhealthy: {verdict.reason}: {verdict.detail}")

    async def _unprepare(self, claim: Asked) -> None:
        prepared = self._claims.get(claim.uid)
        if prepared is None:
            return
        await self._files.read(lambda: self._unmake(prepared))
        claims_then = {uid: one for uid, one in self._claims.items() if uid != claim.uid}
        await self._files.read(lambda: checkpoint.save(self._place.checkpoint, claims_then))
        self._claims = claims_then
        logger.info("unprepared %s", _name(claim))

    def _make(self, prepared: Prepared, *, anew: bool) -> None:
        """Make a claim's files. A ledger that is there is left alone, unless the claim is a new one."""
        place = self._place
        if HostTree(place.root).link(cdi.SPEC_FILE) is None:
            cdi.write(place.root, place.device_nodes, place.cdi_version)
        limits = self._limits(prepared)
        for limit in limits.values():
            if anew or not limit.ledger.exists():
                limitfiles.provide(place.limit_dir, place.limit_library)
                limit.prepare()
        specs.write(place.root, prepared, limits)

    def _unmake(self, prepared: Prepared) -> None:
        specs.remove(self._place.root, prepared.claim.uid)
        for limit in self._limits(prepared).values():
            with suppress(FileNotFoundError):
                limit.ledger.unlink()

    def _restore(self, known: Mapping[str, Prepared]) -> None:
        specs.sweep(self._place.root, known)
        for prepared in known.values():
            try:
                self._make(prepared, anew=False)
            except OSError as error:
                logger.warning("%s lacks files: %s", _name(prepared.claim), error)
        self._sweep_ledgers(known.values())

    def _sweep_ledgers(self, known: Iterable[Prepared]) -> None:
        kept = {limit.name for prepared in known for limit in self._limits(prepared).values()}
        with suppress(FileNotFoundError):
            for path in (self._place.limit_dir / limitfiles.LEDGERS).iterdir():
                if path.name.startswith(_LEDGER_PREFIX) and path.name not in kept:
                    path.unlink(missing_ok=True)

    def _limits(self, prepared: Prepared) -> dict[str, Limit]:
        place = self._place
        return {
            one.key: Limit(
                place.limit_dir,
                f"{_LEDGER_PREFIX}{prepared.claim.uid}-{one.key}",
                one.memory,
                place.overhead,
            )
            for one in prepared.devices
            if one.share is not None and one.memory is not None and not one.admin
        }


def _name(claim: Asked) -> str:
    return f"{claim.namespace}/{claim.name}"
