# SPDX-License-Identifier: Apache-2.0
"""The policy of each pod, from its annotation: MetaX' `metax-tech.com/sgpu-qos-policy`.

The kubelet does not pass annotations to device plugins or in PodResources. The container runtime has them:
the kubelet creates each pod's sandbox with them, and CRI's ListPodSandbox returns them. No credentials of the
API server are needed. A process that connects to the runtime's socket can do everything that root can do on
the node. The weights need a privileged container, which can do the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import grpc
from grpc import aio

from tegra_device_plugin.agent import cri_pb2 as cri
from tegra_device_plugin.agent.pods import REFRESH_SECONDS, Pods
from tegra_device_plugin.kubelet.sockets import check_descriptors
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog

ANNOTATION = "metax-tech.com/sgpu-qos-policy"
DIRECTORY = "/run/k3s"
# K3s has one of them: its own containerd, or its adapter for Docker.
SOCKETS = (f"{DIRECTORY}/containerd/containerd.sock", f"{DIRECTORY}/cri-dockerd/cri-dockerd.sock")
# Both have the same messages here. K3s' adapter for Docker has no v1 in K3s 1.25.4 (cri-dockerd 0.2).
VERSIONS = ("v1", "v1alpha2")
BEST_EFFORT, BURST_SHARE, FIXED_SHARE = "best-effort", "burst-share", "fixed-share"
# Limit of the answer, which has the annotations of all pods.
_MAX_BYTES = 16 * 1024 * 1024
_DEADLINE_SECONDS = 3.0

logger = logging.getLogger(__name__)


class NoRuntimeError(OSError):
    """No container runtime has answered."""


class PodPolicies:
    """Which pods' percents are a weight, by the runtime's last answer.

    A pod without the annotation has burst-share. A pod that the runtime has not named yet has no weight.
    """

    def __init__(self, find: Callable[[], Sequence[Path]], pods: Pods) -> None:
        """`find` gives the sockets of container runtimes."""
        self._find = find
        self._pods = pods
        self._policies: Mapping[str, str] = {}
        self._refreshed_at: float | None = None
        self._reported: set[str] = set()
        self._problem_log = ProblemLog()

    def weighted(self, uid: str) -> bool:
        return self._policies.get(uid, BEST_EFFORT) != BEST_EFFORT

    async def refresh(self, uids: Collection[str]) -> None:
        """Query the runtime if one of the pods `uids` is new, or its last answer is old.

        While the runtime does not answer, policies stay: annotations of a sandbox never change. Raises
        NoRuntimeError if the runtime has never answered.
        """
        now = asyncio.get_running_loop().time()
        fresh = self._refreshed_at is not None and now - self._refreshed_at < REFRESH_SECONDS
        if fresh and self._policies.keys() >= set(uids):
            return
        try:
            self._policies = await read(self._find())
        except NoRuntimeError as error:
            if self._refreshed_at is None:
                raise
            self._problem_log.warn(f"new pods have no weight: {error}")
            return
        self._problem_log.resolved("the pods' policies are known again")
        self._refreshed_at = now
        self._report(uids)

    def _report(self, uids: Collection[str]) -> None:
        """Name each pod on the GPU once whose policy is not kept."""
        self._reported &= self._policies.keys()
        for uid in sorted(set(uids) & self._policies.keys() - self._reported):
            policy, name = self._policies[uid], self._pods.names.get(uid, uid)
            if policy == FIXED_SHARE:
                text = "pod %s has the policy %s: its percents are a weight, and no limit"
            elif policy not in (BEST_EFFORT, BURST_SHARE):
                text = "pod %s has the policy %r, which is not known: its percents are a weight"
            else:
                continue
            logger.warning(text, name, policy)
            self._reported.add(uid)


def sockets(host: HostTree) -> list[Path]:
    """Give the sockets where a container runtime of K3s can be on this host."""
    return [Path(f"{host.real(DIRECTORY)}{name.removeprefix(DIRECTORY)}") for name in SOCKETS]


async def read(found: Sequence[Path]) -> Mapping[str, str]:
    """Give the policies of the node's pods by uid, from the first runtime that answers.

    Raises NoRuntimeError.
    """
    reasons = []
    for socket in found:
        if not socket.exists():
            reasons.append(f"{socket} does not exist")
            continue
        try:
            answer = await _list(socket)
        except aio.AioRpcError as error:
            reasons.append(f"{socket}: {error.code().name}: {error.details()}")
        except OSError as error:
            reasons.append(f"{socket}: {error}")
        else:
            newest_last = sorted(answer.items, key=lambda one: one.created_at)
            return {one.metadata.uid: one.annotations.get(ANNOTATION, BURST_SHARE) for one in newest_last}
    raise NoRuntimeError(f"the container runtime does not list its pods: {', '.join(reasons)}")


async def _list(socket: Path) -> cri.ListPodSandboxResponse:
    check_descriptors()
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    async with aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        for version in VERSIONS:
            call: grpc.aio.UnaryUnaryMultiCallable[cri.ListPodSandboxRequest, cri.ListPodSandboxResponse]
            call = channel.unary_unary(
                f"/runtime.{version}.RuntimeService/ListPodSandbox",
                cri.ListPodSandboxRequest.SerializeToString,
                cri.ListPodSandboxResponse.FromString,
            )
            try:
                return await call(cri.ListPodSandboxRequest(), timeout=_DEADLINE_SECONDS)
            except aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    raise
    raise NoRuntimeError(f"it has no RuntimeService of CRI {' or '.join(VERSIONS)}")
