# SPDX-License-Identifier: Apache-2.0
"""The agent's pages: /metrics in the names that users of other systems know, and /healthz.

Sums: what the pods hold, what processes outside of pods hold and what the kernel holds make up what this
board's source of figures knows of. A pod's figure is the sum of its processes'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal

from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.agent.shares import PodName
from tegra_device_plugin.agent.weights import State, Weights
from tegra_device_plugin.sharing.allocation import GPU_ID
from tegra_device_plugin.telemetry import httpd
from tegra_device_plugin.telemetry.exposition import CONTENT_TYPE, Metric, exposition, gauge
from tegra_device_plugin.telemetry.httpd import Page
from tegra_device_plugin.version import package_version

# Three times the longest turn of a loop: its pause, and the kubelet's deadline (holders.DEADLINE).
STUCK_SECONDS = 45.0

_MIB = 2**20
_STATES: tuple[State, ...] = ("weighted", "busy", "unsupported", "failing")
_NOBODY = PodName("", "")
_Samples = Iterable[tuple[Mapping[str, str], float]]


class Pages:
    """What is said about the agent. `weights` is None where the policy is `best-effort`."""

    def __init__(self, pods: Pods, guard: Guard, weights: Weights | None, **chosen: str) -> None:
        self._pods = pods
        self._guard = guard
        self._weights = weights
        self._chosen = chosen
        self._since = asyncio.get_running_loop().time()

    def by_path(self) -> httpd.Pages:
        """Give the pages for httpd.serving."""
        return {"/metrics": self.metrics, "/healthz": self.healthz}

    async def metrics(self) -> Page:
        """Everything, for Prometheus."""
        return Page(exposition(self._metrics()), content_type=CONTENT_TYPE)

    async def healthz(self) -> Page:
        """Fail when a loop has stopped turning."""
        turned = {"guard": self._guard.observed_at}
        if self._weights:
            turned["weights"] = self._weights.observed_at
        return httpd.liveness_page(self._since, turned, STUCK_SECONDS)

    def _metrics(self) -> Iterable[Metric]:
        yield gauge(
            "tegra_gpu_agent_info",
            "The agent's version, mode and policy, always 1.",
            1,
            version=package_version(),
            **self._chosen,
        )
        yield from self._memory()
        yield from self._shares()
        yield from self._time()

    def _memory(self) -> Iterable[Metric]:
        used = self._guard.used
        if used is None or self._guard.outside is None or self._guard.kernel is None:
            return
        total = sum(used.values())
        yield _gauges(
            "tegra_gpu_agent_memory_used_bytes",
            "GPU memory in use, by whom.",
            (
                ({"owner": "pods"}, total),
                ({"owner": "outside"}, self._guard.outside),
                ({"owner": "kernel"}, self._guard.kernel),
            ),
        )
        yield gauge(
            "DCGM_FI_DEV_FB_USED",
            "GPU memory in use by processes, in MiB.",
            (total + self._guard.outside) / _MIB,
            gpu="0",
            UUID=GPU_ID,
        )
        names = self._pods.names
        yield _gauges(
            "gpu_fractioning_gpu_memory_used_bytes",
            "GPU memory that the pod's processes hold.",
            (
                ({**_pod(names.get(uid, _NOBODY)), "pod_uuid": uid, "gpu_uuid": GPU_ID, "gpu": "0"}, held)
                for uid, held in used.items()
            ),
        )
        yield _gauges(
            "tegra_gpu_agent_container_memory_used_bytes",
            "GPU memory that the container's processes hold.",
            (
                ({**_pod(names.get(uid, _NOBODY)), "pod_uuid": uid, "container": container}, held)
                for (uid, container), held in (self._guard.in_container or {}).items()
            ),
        )

    def _shares(self) -> Iterable[Metric]:
        shares = self._pods.shares
        yield _gauges(
            "tegra_gpu_agent_weight_percent",
            "The pod's weight for the GPU's time.",
            ((_pod(pod), share.percent) for pod, share in shares.items() if share.percent),
        )
        yield _counters(
            "tegra_gpu_agent_over_limit_total",
            "Times that the pod was found to hold more than its share.",
            self._guard.over_limit,
        )
        yield _counters(
            "tegra_gpu_agent_ended_processes_total",
            "Processes of the pod that were ended for that.",
            self._guard.ended,
        )

    def _time(self) -> Iterable[Metric]:
        if self._weights is None:
            return
        state = self._weights.state
        yield _gauges(
            "tegra_gpu_agent_weights",
            "Whether GPU time is divided by weights: 1 for the state that holds.",
            (({"state": name}, name == state) for name in _STATES),
        )
        names = self._pods.names
        yield _gauges(
            "tegra_gpu_agent_timeslice_seconds",
            "Length of a turn of the pod's GPU context.",
            (
                (
                    {
                        **_pod(names.get(one.uid, _NOBODY)),
                        "tsg": str(one.tsg.id),
                        "compute_preemption": one.tsg.compute_preemption,
                    },
                    one.wanted_us / 1e6,
                )
                for one in self._weights.slices
            ),
        )


def _gauges(name: str, text: str, samples: _Samples, kind: Literal["gauge", "counter"] = "gauge") -> Metric:
    return Metric(name, kind, text, tuple(samples))


def _counters(name: str, text: str, counted: Mapping[PodName, int]) -> Metric:
    return _gauges(name, text, ((_pod(pod), count) for pod, count in counted.items()), "counter")


def _pod(pod: PodName) -> dict[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}
