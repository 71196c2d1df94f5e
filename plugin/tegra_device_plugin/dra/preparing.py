# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims for the kubelet.

Requests to the API server come before a commit (claimstore.py), never during a commit. Commits run in a
thread, one after the other. A canceled call does not stop its commit.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tegra_device_plugin.dra import claims
from tegra_device_plugin.dra.claims import ClaimError, ClaimReference, Prepared
from tegra_device_plugin.dra.claimstore import ClaimStore, NodeState
from tegra_device_plugin.system.durations import Durations
from tegra_device_plugin.system.log import describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

# A kubelet waits 45 s for all claims of a call (kubernetes, pkg/kubelet/cm/dra/plugin/dra_plugin.go). The
# claims are prepared at the same time. A claim takes two requests and two commits at most: 32 s.
_REQUEST_SECONDS = 8.0
_COMMIT_SECONDS = 8.0
# For a prepared claim, the checkpoint decides if the API server does not answer.
_PREPARED_REQUEST_SECONDS = 3.0
# For a running commit when the driver stops. The manifest's terminationGracePeriodSeconds is 10.
_FINISH_SECONDS = 2.0

# A uid is part of file names.
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}")

logger = logging.getLogger(__name__)

T = TypeVar("T")

GetClaim = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""By namespace and name; None: the API server has no such claim. Raises OSError."""


@dataclass
class CallCounts:
    prepared: int = 0
    prepare_failed: int = 0
    prepare_durations: Durations = field(default_factory=Durations)
    unprepared: int = 0
    unprepare_failed: int = 0
    unprepare_durations: Durations = field(default_factory=Durations)


class Preparer:
    """Prepares the claims of this node. The constructor raises CheckpointError."""

    def __init__(self, node_state: NodeState, get_claim: GetClaim, calls: CallCounts) -> None:
        self._node_state = node_state
        self._get_claim = get_claim
        self._calls = calls
        self._store = ClaimStore(node_state)
        self._commit_lock = asyncio.Lock()
        self._files = BlockingCalls(None)

    @property
    def in_use(self) -> int:
        return len(self._store.claims)

    async def prepare(self, references: Sequence[ClaimReference]) -> dict[str, Prepared | str]:
        """Give by uid the prepared claim, or the reason why it cannot be prepared."""
        with self._calls.prepare_durations.measure():
            answers = await asyncio.gather(
                *(self._result_or_reason(self._prepare(one), f"prepare {one}") for one in references)
            )
        failed = sum(isinstance(one, str) for one in answers)
        self._calls.prepare_failed += failed
        self._calls.prepared += len(answers) - failed
        return {one.uid: answer for one, answer in zip(references, answers, strict=True)}

    async def unprepare(self, references: Sequence[ClaimReference]) -> dict[str, str]:
        """Give by uid the reason why a claim cannot be unprepared; empty: it is, or it is unknown."""
        with self._calls.unprepare_durations.measure():
            answers = await asyncio.gather(
                *(self._result_or_reason(self._unprepare(one), f"unprepare {one}") for one in references)
            )
        failed = sum(map(bool, answers))
        self._calls.unprepare_failed += failed
        self._calls.unprepared += len(answers) - failed
        return {one.uid: answer or "" for one, answer in zip(references, answers, strict=True)}

    async def restore(self) -> None:
        """Restore the files of the claims in the checkpoint. Raises OSError."""
        await self._in_thread(self._store.restore, _COMMIT_SECONDS)

    async def finish(self) -> None:
        """Wait for a running commit, because the next instance reads the checkpoint. Raises OSError."""
        await self._in_thread(lambda: None, _FINISH_SECONDS)

    async def _result_or_reason(self, work: Awaitable[T], action: str) -> T | str:
        try:
            return await work
        except (ClaimError, OSError) as error:
            reason = describe_error(error, type(error).__name__)
        except Exception as error:
            logger.exception("cannot %s", action)
            reason = f"a fault of the driver: {error!r}"
        logger.warning("cannot %s: %s", action, reason)
        return reason

    async def _prepare(self, reference: ClaimReference) -> Prepared:
        if not _UID.fullmatch(reference.uid):
            raise ClaimError(f"{reference.uid!r} is not the uid of a claim")
        prepared = await self._allocated(reference)
        if conflicting := await self._in_thread(lambda: self._commit(prepared), _COMMIT_SECONDS):
            await asyncio.gather(*(self._check_released(one, prepared) for one in conflicting))
            if others := await self._in_thread(lambda: self._commit(prepared, conflicting), _COMMIT_SECONDS):
                raise _still_prepared(others[0])
        logger.info("prepared %s: %s", reference, _keys(prepared))
        return prepared

    async def _allocated(self, reference: ClaimReference) -> Prepared:
        """Give the claim as the API server has it, or as prepared if the API server does not answer."""
        known = self._store.claims.get(reference.uid)
        try:
            found = await self._fetch(reference, _PREPARED_REQUEST_SECONDS if known else _REQUEST_SECONDS)
        except OSError as error:
            if known is None:
                raise ClaimError(f"cannot read the claim {reference}: {error}") from error
            logger.info("%s is prepared already and was not compared: %s", reference, error)
            return known
        if found is None:
            raise ClaimError(f"claim {reference} not found: the API server has deleted it")
        return Prepared(reference, claims.devices(found, reference, self._node_state.pool))

    async def _fetch(self, reference: ClaimReference, seconds: float) -> Mapping[str, Any] | None:
        """Give the claim at the API server. Raises OSError."""
        try:
            async with asyncio.timeout(seconds):
                return await self._get_claim(reference.namespace, reference.name)
        except TimeoutError as error:
            raise OSError(
                f"the API server has not answered within {seconds:g} s: check that it runs and that this "
                "node reaches it; the kubelet tries again"
            ) from error

    async def _check_released(self, other: Prepared, prepared: Prepared) -> None:
        """Raise ClaimError if a device that the claim of `other` has now excludes those of `prepared`.

        The kubelet may never unprepare a claim, for example after its own checkpoint was removed.
        """
        reference = other.claim
        try:
            found = await self._fetch(reference, _REQUEST_SECONDS)
        except OSError as error:
            raise ClaimError(
                f"cannot check whether the claim {reference}, which has {_keys(other)}, exists: {error}"
            ) from error
        if claims.conflict(prepared.devices, claims.present(found, reference, self._node_state.pool)):
            raise _still_prepared(other)
        logger.warning("%s is no longer allocated to the claim %s: unpreparing it", _keys(other), reference)

    async def _unprepare(self, reference: ClaimReference) -> None:
        if await self._in_thread(lambda: self._release(reference.uid), _COMMIT_SECONDS):
            logger.info("unprepared %s", reference)

    async def _in_thread(self, work: Callable[[], T], seconds: float) -> T:
        """Run `work` in a thread, after earlier work. Raises OSError.

        Work that has started runs to its end, also if this call is cancelled or times out.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._commit_lock.acquire()
                running = asyncio.ensure_future(self._files.run(work))
                running.add_done_callback(self._release_lock)
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise OSError(
                f"the files of claims were not written within {seconds:g} s: check the disk of "
                f"{self._node_state.checkpoint.parent} (dmesg, df); the kubelet tries again"
            ) from error

    def _release_lock(self, running: asyncio.Future[Any]) -> None:
        self._commit_lock.release()
        if not running.cancelled():
            running.exception()  # the caller may have been cancelled

    # In the thread.

    def _commit(self, prepared: Prepared, released: Sequence[Prepared] = ()) -> list[Prepared]:
        """Prepare a claim, and unprepare those of `released` that are as they were.

        Without effect if other claims conflict: gives these claims. Raises ClaimError, OSError.
        """
        uid = prepared.claim.uid
        known = self._store.claims.get(uid)
        if known and known.has_files_of(prepared):  # which a pod of the claim may use
            self._store.make_files(prepared, new=False)
            return []
        others = {
            one: other for one, other in self._store.claims.items() if one != uid and other not in released
        }
        conflicting = [one for one in others.values() if claims.conflict(prepared.devices, one.devices)]
        if conflicting:
            return conflicting
        health = self._node_state.health
        if health is None:
            raise ClaimError("the board was not observed yet; the kubelet tries again")
        if (
            known is None
            and not health.healthy
            and not all(one.tolerates_unhealthy for one in prepared.devices)
        ):
            raise ClaimError(f"the GPU is unhealthy: {health.reason}: {health.detail}")
        if known:  # other devices than before
            self._release(uid)
        self._store.commit(others | {uid: prepared})
        return []

    def _release(self, uid: str) -> bool:
        """Unprepare a claim; True if it was prepared. Raises OSError."""
        before = self._store.claims
        if uid in before:
            self._store.commit({one: prepared for one, prepared in before.items() if one != uid})
        return uid in before


def _still_prepared(other: Prepared) -> ClaimError:
    return ClaimError(
        f"{_keys(other)} is still prepared for the claim {other.claim}, mode {other.devices[0].mode}; "
        "wait until the kubelet has ended the last pod of that claim"
    )


def _keys(prepared: Prepared) -> str:
    return ", ".join(one.key for one in prepared.devices)
