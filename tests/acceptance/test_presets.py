# SPDX-License-Identifier: Apache-2.0
"""Pods written for another system of sharing run as they are.

The real kubelet, plugin and limit library; the GPU's driver is simulated. One board is provisioned once; each
preset is then given to the plugin through its ConfigMap.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.sharing import POD_SECONDS, ask, configure, said, sell_units
from tests.lab import lab

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "presets"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with lab.fresh(LAB, ["agxorin-jp6"]) as (board,):
        sell_units(LAB, board).checked()
        yield Cluster([board])


@dataclass(frozen=True)
class System:
    """Another system's names, as its own examples use them: what two pods ask for that just fit together.

    `limit` is the first one's, in MiB; `env` what it finds in its environment.
    """

    preset: str
    first: dict[str, int]
    second: dict[str, int]
    limit: int
    env: dict[str, str]


TOTAL_MIB = 6144
# Units of MiB and percents. What the others sell is in tests/unit/plugin/test_units.py.
SYSTEMS = (
    System(
        "hami",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 60},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 40},
        3000,
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "NVIDIA_GPU_MEMORY_LIMIT": "3000"},
    ),
    System(
        "koordinator",
        {"koordinator.sh/gpu-core": 60, "koordinator.sh/gpu-memory-ratio": 60},
        {"koordinator.sh/gpu-core": 40, "koordinator.sh/gpu-memory-ratio": 40},
        3686,
        {},
    ),
)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: str(system.preset))
def test_pods_of_another_system_run_as_they_are(cluster: Cluster, system: System) -> None:
    units = {"preset": system.preset, "memoryTotal": f"{TOTAL_MIB}Mi"}
    configure(cluster, {"version": "v1", "sharing": {"units": units}})
    name = cluster.boards[0].name
    for resource in system.first:
        wait_until(lambda each=resource: cluster.allocatable(each)[name] > 0, resource, POD_SECONDS)  # type: ignore[misc]
    ask(cluster, "first", TOTAL_MIB, system.first)
    ask(cluster, "second", 64, system.second)
    line = said(cluster, "first")
    assert f"allocated {system.limit // 16 * 16} of {TOTAL_MIB} MiB, then CUDA was out of memory" in line
    assert f"of {system.limit} MiB are free" in line
    assert said(cluster, "second").startswith("allocated 64 of 64 MiB;")
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    env = json.loads(cluster.kubectl("exec", "first", "--", "python3.11", "-c", show))
    assert env.items() >= system.env.items()
    # Nothing is left for a third one.
    ask(cluster, "third", 64, system.second)
    wait_until(lambda: "Insufficient" in cluster.unschedulable("third"), "the third waits", POD_SECONDS)
    cluster.kubectl("delete", "pod", "first", "second", "third")
