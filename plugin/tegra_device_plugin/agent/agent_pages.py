# SPDX-License-Identifier: Apache-2.0
"""The agent's pages: /metrics and /healthz.

The sums of pods, of processes outside of pods and of the kernel add up to the list of nvmap or NVML.
A pod's value is the sum of its processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.pods import PodName, Pods
from tegra_device_plugin.agent.weights import State, Weights
from tegra_device_plugin.sharing.allocation import GPU_ID
from tegra_device_plugin.system.mounts import check_mounts
from tegra_device_plugin.telemetry.exposition import UNUSED, Metric, counters, gauge, gauges
from tegra_device_plugin.telemetry.httpd import StatusPages
from tegra_device_plugin.version import VERSION

if TYPE_CHECKING:
    from tegra_device_plugin.agent.unused import Unused

_MIB = 2**20
_STATES: tuple[State, ...] = ("weighted", "busy", "unsupported", "failing")
_UNKNOWN = PodName("", "")


class Pages(StatusPages):
    """The agent's pages. `weights` is None where the policy is `best-effort`, `unused` if that is off.

    `directories` are those of the host that can be deleted under the container's mount.
    """

    # Three times a loop's pause of 5 s and the kubelet's deadline (pod_resources.DEADLINE).
    stuck_seconds = 45.0

    def __init__(
        self,
        pods: Pods,
        guard: Guard,
        weights: Weights | None,
        directories: Callable[[], Iterable[Path]],
        foreign_metrics: Collection[str] = (),
        *,
        unused: Unused | None = None,
        **chosen: str,
    ) -> None:
        super().__init__()
        self._pods = pods
        self._guard = guard
        self._weights = weights
        self._unused = unused
        self._directories = directories
        self._foreign_metrics = foreign_metrics
        self._chosen = chosen

    def _check_mounts(self) -> None:
        check_mounts(self._directories())

    def _observed_at(self) -> Mapping[str, float]:
        weights = {"weights": self._weights.observed_at} if self._weights else {}
        return {"guard": self._guard.observed_at, **weights}

    async def _metrics(self) -> Iterable[Metric]:
        info = gauge("tegra_gpu_agent_info", 1, version=VERSION, **self._chosen)
        return [info, *self._memory(), *self._shares(), *self._time(), *self._without_use()]

    def _memory(self) -> Iterable[Metric]:
        used = self._guard.used
        if used is None or self._guard.outside is None or self._guard.kernel is None:
            return
        total = sum(used.values())
        yield gauges(
            "tegra_gpu_agent_memory_used_bytes",
            (
                ({"owner": "pods"}, total),
                ({"owner": "outside"}, self._guard.outside),
                ({"owner": "kernel"}, self._guard.kernel),
            ),
        )
        names = self._pods.names
        if "dcgm" in self._foreign_metrics:
            yield gauge("DCGM_FI_DEV_FB_USED", (total + self._guard.outside) / _MIB, gpu="0", UUID=GPU_ID)
        if "gpu-fractioning" in self._foreign_metrics:
            gpu = {"gpu_uuid": GPU_ID, "gpu": "0"}
            yield gauges(
                "gpu_fractioning_gpu_memory_used_bytes",
                (
                    ({**_pod(names.get(uid, _UNKNOWN)), "pod_uuid": uid, **gpu}, size)
                    for uid, size in used.items()
                ),
            )
        yield gauges(
            "tegra_gpu_agent_container_memory_used_bytes",
            (
                ({**_pod(names.get(uid, _UNKNOWN)), "pod_uuid": uid, "container": container}, size)
                for (uid, container), size in (self._guard.in_container or {}).items()
            ),
        )

    def _shares(self) -> Iterable[Metric]:
        shares = self._pods.shares
        yield gauges(
            "tegra_gpu_agent_weight_percent",
            ((_pod(pod), share.percent) for pod, share in shares.items() if share.percent),
        )
        yield counters(
            "tegra_gpu_agent_over_limit_total",
            ((_pod(pod), count) for pod, count in self._guard.over_limit.items()),
        )
        yield counters(
            "tegra_gpu_agent_ended_processes_total",
            ((_pod(pod), count) for pod, count in self._guard.ended.items()),
        )

    def _time(self) -> Iterable[Metric]:
        if self._weights is None:
            return
        state = self._weights.state
        yield gauges("tegra_gpu_agent_weights", (({"state": name}, name == state) for name in _STATES))
        # By pod: a program makes as many contexts as it likes.
        contexts: Counter[tuple[PodName, str]] = Counter()
        microseconds: Counter[tuple[PodName, str]] = Counter()
        for one in self._weights.slices:
            key = self._pods.names.get(one.uid, _UNKNOWN), one.tsg.compute_preemption
            contexts[key] += 1
            microseconds[key] += one.timeslice_us
        for name, values, scale in (
            ("tegra_gpu_agent_contexts", contexts, 1),
            ("tegra_gpu_agent_timeslice_seconds", microseconds, 1e6),
        ):
            yield gauges(
                name,
                (
                    ({**_pod(pod), "compute_preemption": preemption}, value / scale)
                    for (pod, preemption), value in values.items()
                ),
            )

    def _without_use(self) -> Iterable[Metric]:
        if self._unused is None:
            return
        yield gauges(
            UNUSED,
            (
                ({**_pod(one.pod), "container": one.name}, round(seconds))
                for one, seconds in self._unused.seconds.items()
            ),
        )


def _pod(pod: PodName) -> dict[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}
