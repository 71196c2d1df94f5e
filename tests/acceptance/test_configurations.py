# SPDX-License-Identifier: Apache-2.0
"""Three boards with three configurations: a whole GPU, time-slicing, and units. Then one board gets another.

The two others keep their plugin's pods, and pods with a GPU run on everywhere.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.cluster import RESOURCE, Cluster
from tests.acceptance.playbook import cluster_status, reports_dir, run_playbook
from tests.lab import lab_dir
from tests.lab.board import Board, set_toolkit

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "configurations"
TYPES = ("agxorin-jp6", "orinnano-jp6", "agxorin-jp6")
WHOLE, SLICES, UNITS = BOARDS = ("jetson-1", "jetson-2", "jetson-3")
LABEL = "jetson-k3s.github.io/device-plugin"
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
UNIT_BYTES = 256 << 20
SLICED = {
    "gpu_device_plugin_config_name": "slices",
    "gpu_device_plugin_config": {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{"name": RESOURCE, "replicas": 4}]}},
    },
}
# Without a name of its own. JetPack 6's own toolkit ignores strict mode.
DIVIDED = {
    "nvidia_docker_strict": True,
    "gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "25%"}}},
}
PLUGINS = "--selector=app.kubernetes.io/name=tegra-device-plugin"


def configure(board: str, settings: dict[str, Any] | None) -> None:
    """Write a board's own variables, beside the lab's inventory, or remove them."""
    path = lab_dir(LAB) / "host_vars" / f"{board}.yml"
    path.parent.mkdir(exist_ok=True)
    if settings is None:
        path.unlink()
    else:
        path.write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    set_toolkit(boards[2], "1.18.0")
    configure(SLICES, SLICED)
    configure(UNITS, DIVIDED)
    return Cluster(boards)


def labels(cluster: Cluster) -> dict[str, str | None]:
    return {node["metadata"]["name"]: node["metadata"]["labels"].get(LABEL) for node in cluster.nodes()}


def daemonsets(cluster: Cluster) -> set[str]:
    found = cluster.get("daemonsets", "--namespace=kube-system", PLUGINS)
    return {one["metadata"]["name"] for one in found["items"]}


def pods(cluster: Cluster) -> dict[str, str | None]:
    """The plugin's pod on each board."""
    return {name: cluster.plugin_pod(name) for name in BOARDS}


def report(board: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((reports_dir(LAB) / f"{board}.json").read_text())
    return found


def test_each_board_offers_and_proves_what_its_own_settings_say(cluster: Cluster) -> None:
    run_playbook(LAB, "site.yml").checked()
    assert cluster.allocatable() == {WHOLE: 1, SLICES: 4, UNITS: 0}
    meminfo = cluster.boards[2].exec("cat", "/proc/meminfo")
    total = re.search(r"MemTotal: +([0-9]+) kB", meminfo)
    assert total
    quarter = int(total[1]) * 1024 // 4 // UNIT_BYTES
    assert cluster.allocatable(MEMORY) == {WHOLE: 0, SLICES: 0, UNITS: quarter}
    found = labels(cluster)
    derived = found.pop(UNITS)
    assert found == {WHOLE: "true", SLICES: "slices"}
    assert re.fullmatch("units-[0-9a-f]{8}", derived or "")
    assert daemonsets(cluster) == {f"tegra-device-plugin{end}" for end in ("", "-slices", f"-{derived}")}
    gpus = {board: report(board)["gpu"] for board in BOARDS}
    assert {board: (one["resource"], one["replicas"]) for board, one in gpus.items()} == {
        WHOLE: (RESOURCE, 1), SLICES: (RESOURCE, 4), UNITS: (MEMORY, 2),
    }  # fmt: skip


def test_a_second_run_changes_nothing(cluster: Cluster) -> None:
    before = pods(cluster)
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").unchanged()
    assert pods(cluster) == before


def test_status_names_the_configuration_of_each_node(cluster: Cluster, tmp_path: Path) -> None:
    found = cluster_status(LAB, tmp_path)
    named = {node["name"]: node["configuration"] for node in found["nodes"]}
    assert named == {WHOLE: None, SLICES: "slices", UNITS: labels(cluster)[UNITS]}


def test_two_contents_of_one_name_are_refused(cluster: Cluster) -> None:
    configure(UNITS, DIVIDED | {"gpu_device_plugin_config_name": "slices"})
    before = labels(cluster)
    run = run_playbook(LAB, "site.yml")
    configure(UNITS, DIVIDED)
    assert run.returncode == 2, run.why
    assert "configuration-differs" in run.output
    assert labels(cluster) == before


def test_one_board_gets_another_configuration_and_the_others_notice_nothing(cluster: Cluster) -> None:
    cluster.hold_gpu("whole", WHOLE)
    cluster.hold_gpu("sliced", SLICES)
    cluster.create_sleeper("divided", UNITS, {"resources": {"limits": {CORE: 10, MEMORY: 1}}})
    names = ("whole", "sliced", "divided")
    ready = [f"pod/{name}" for name in names]
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=90s", *ready)
    started = {name: cluster.started(name) for name in names}
    before = pods(cluster)

    configure(SLICES, None)
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
    assert labels(cluster)[SLICES] == "true"
    assert cluster.allocatable()[SLICES] == 1
    assert "tegra-device-plugin-slices" not in daemonsets(cluster)
    after = pods(cluster)
    assert {name for name in BOARDS if after[name] != before[name]} == {SLICES}
    assert {name: cluster.started(name) for name in names} == started
    cluster.kubectl("delete", "--grace-period=0", *ready)
    run_playbook(LAB, "verify.yml", f"--limit={SLICES}").checked()
    assert report(SLICES)["gpu"]["replicas"] == 1
