# SPDX-License-Identifier: Apache-2.0
"""How long each GPU context's turn has to be, so that pods get time by their weights. Pure functions.

nvgpu lets busy contexts take turns, each for its own time slice. So a busy context's share of the time is its
slice among the slices of all busy ones, and an idle one costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tegra_device_plugin.agent.nvgpu import LEAST_US, MOST_US, Tsg

# 100 % of the weights make a round of 20 ms. Then 5 % is 1 ms, the shortest slice that nvgpu takes.
US_PER_PERCENT = 200


def weighted(tsgs: Iterable[Tsg], pods: Mapping[int, str], percent: Mapping[str, int]) -> dict[int, int]:
    """Microseconds by context id, for the contexts of pods that have a weight.

    `pods` gives a process' pod, `percent` a pod's weight from 1 to 100. A pod's contexts divide its weight
    evenly, the idle ones too; none gets less than nvgpu's least. Contexts that are not ready wait: they have
    nothing to run yet.
    """
    owned = {tsg.id: pods[tsg.pid] for tsg in tsgs if tsg.ready and percent.get(pods.get(tsg.pid, ""))}
    among = Counter(owned.values())
    return {number: _slice(percent[pod], among[pod]) for number, pod in owned.items()}


def _slice(percent: int, among: int) -> int:
    return min(max(percent * US_PER_PERCENT // among, LEAST_US), MOST_US)
