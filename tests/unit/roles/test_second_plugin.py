# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device plugin beside this project's: nodes with both, in either order, and what to change."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_plugins
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_nodes
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_status,
    preflight,
    preflight_fleet,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    preflight_second_plugin as second_plugin,
)

from tests.unit.roles.places import Data
from tests.unit.roles.test_gpu_status import GPU, NODE, NOTHING, pod
from tests.unit.roles.test_preflight_plan import AGENT, NOW, SERVER, TABLES, board
from tests.unit.roles.test_preflight_plan import NODE as SERVERS_NODE

OURS = "jetson-k3s.github.io/device-plugin"
OPERANDS = "nvidia.com/gpu.deploy.operands"
PCI, CPU = "feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/cpu-model.vendor_id"
IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.4"


def terms(*alternatives: dict[str, str]) -> Data:
    """A required node affinity, of labels with their values."""
    expressions = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]} for key, value in one.items()
            ]
        }
        for one in alternatives
    ]
    required = {"nodeSelectorTerms": expressions}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


# As NVIDIA's chart has it by default.
DEFAULT = terms({PCI: "true"}, {CPU: "NVIDIA"}, {"nvidia.com/gpu.present": "true"})
CHART = {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"}


def spec(path: str = gpu_plugins.SOCKETS, **changes: Any) -> Data:
    container = {"name": "nvidia-device-plugin-ctr", "image": IMAGE, **changes.pop("container", {})}
    volumes = [{"name": "config", "emptyDir": {}}, {"name": "sockets", "hostPath": {"path": path}}]
    return {"containers": [container], "volumes": volumes, **changes}


def daemonset(of: Data, labels: Data = CHART, name: str = "nvdp") -> Data:
    template = {"metadata": {"labels": labels}, "spec": of}
    return {"metadata": {"namespace": "gpus", "name": name}, "spec": {"template": template}}


def its_pod(of: Data, node: str, owner: str = "nvdp", **changes: Any) -> Data:
    metadata = {"namespace": "gpus", "name": f"{owner}-x7f", "labels": CHART}
    metadata |= {"ownerReferences": [{"kind": "DaemonSet", "name": owner}]} | changes
    return {"metadata": metadata, "spec": of | {"nodeName": node}, "status": {"phase": "Running"}}


def plugin(*nodes: str, of: Data | None = None, labels: Data = CHART) -> Data:
    """A DaemonSet of NVIDIA's plugin as module k3s_nodes returns it."""
    (found,) = gpu_plugins.plugin_daemonsets([daemonset(of or spec(affinity=DEFAULT), labels)])
    return {**found, "nodes": list(nodes)}


MIRRORED = {"image": "registry.site/gpu:1", "name": "main"}


@pytest.mark.parametrize(
    ("of", "known"),
    [
        (spec(), True),
        (spec(f"{gpu_plugins.SOCKETS}/"), True),
        (spec(container={"name": "main"}), True),
        (spec(container=MIRRORED | {"command": ["/usr/bin/nvidia-device-plugin"]}), True),
        (spec(container=MIRRORED | {"name": "nvidia-device-plugin-ctr"}), True),
        (spec(container=MIRRORED), False),
        # gpu-feature-discovery has the image and not the directory.
        (spec("/sys"), False),
        (spec(container={"name": "main", "image": "rocm/k8s-device-plugin"}), False),
        (spec(container={"name": "plugin", "image": "tegra-device-plugin:0.1.0"}), False),
    ],
)
def test_nvidias_plugin_is_known_by_its_directory_and_its_program(of: Data, known: bool) -> None:
    assert bool(gpu_plugins.plugin_daemonsets([daemonset(of)])) is known
    assert bool(gpu_plugins.plugin_pods([its_pod(of, "a")])) is known


def test_pods_that_have_left_their_node_are_not_counted() -> None:
    left = its_pod(spec(), "a", deletionTimestamp="now")
    ended = its_pod(spec(), "a") | {"status": {"phase": "Failed"}}
    waits: Data = its_pod(spec(), "a")
    del waits["spec"]["nodeName"]
    assert gpu_plugins.plugin_pods([left, ended, waits]) == []


def test_cluster_is_asked_for_pods_only_where_there_is_such_a_daemonset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = [its_pod(spec(), "b"), its_pod(spec(), "a"), its_pod(spec(), "c", owner="other")]
    asked: list[tuple[str, ...]] = []

    def listed(*argv: str) -> list[Data]:
        asked.append(argv)
        return pods

    monkeypatch.setattr(k3s_nodes, "listed", listed)
    assert k3s_nodes.gpu_plugins([daemonset(spec(container=MIRRORED))]) == []
    assert asked == []
    (found,) = k3s_nodes.gpu_plugins([daemonset(spec(affinity=DEFAULT))])
    assert (found["nodes"], found["release"], found["operator"]) == (["a", "b"], "nvdp", False)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ({"operator": "In", "values": ["arm64"]}, True),
        ({"operator": "In", "values": ["amd64"]}, False),
        ({"operator": "NotIn", "values": ["amd64"]}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
        ({"key": "none", "operator": "In", "values": ["arm64"]}, False),
        ({"key": "none", "operator": "NotIn", "values": ["arm64"]}, True),
        ({"key": "none", "operator": "DoesNotExist"}, True),
        ({"key": "memory", "operator": "Gt", "values": ["8000"]}, True),
        ({"key": "memory", "operator": "Lt", "values": ["8000"]}, False),
        ({"key": "none", "operator": "Lt", "values": ["8000"]}, False),
    ],
)
def test_expression_of_an_affinity_is_judged_as_the_scheduler_does(expression: Data, met: bool) -> None:
    labels = {"arch": "arm64", "memory": "30697"}
    assert second_plugin.matches({"key": "arch", **expression}, labels) is met


def findings(
    name: str, *plugins: Data, labels: Data | None = None, given: Data | None = None, **of_board: Any
) -> list[Data]:
    """Findings of preflight about a second plugin. `labels` has the board's node, `given` the inventory."""
    own = [{**SERVERS_NODE, "name": name, "board": name, "labels": labels}] if labels is not None else []
    answer = {"item": SERVER, "installed": True, "version": "", "ranges": {}, "nodes": own}
    answer |= {"gpu_plugins": list(plugins)}
    planned = board(name, found={"nodes": [answer]}, labels=given or {}, **of_board)
    # As in a run: of other boards, a board knows what it is compared with.
    fleet = json.dumps(preflight_fleet.fleet_of(planned.run, planned.hostvars, [answer]))
    run: Any = {**planned.run, "fleet": fleet}
    found = preflight.findings(dataclasses.replace(planned, run=run), TABLES, NOW)
    return [one for one in found if one["id"].startswith("second-device-plugin")]


XAVIER, THOR = {"soc": "tegra194"}, {"soc": "tegra264"}
OF_X86 = spec(nodeSelector={"kubernetes.io/arch": "amd64"}, affinity=DEFAULT)


@pytest.mark.parametrize(
    ("facts", "labels", "of", "ids"),
    [
        # NVIDIA's chart first: the board is no node yet, so Node Feature Discovery has not seen it.
        (XAVIER, None, None, ["second-device-plugin-selects"]),
        (THOR, None, None, ["second-device-plugin-selects"]),
        ({}, None, None, []),
        (XAVIER, None, OF_X86, []),
        # The plain manifest, without any selector, comes to each node.
        ({}, None, spec(), ["second-device-plugin-selects"]),
        # The board first: its node says which labels it has.
        (XAVIER, {OURS: "true"}, None, []),
        ({}, {OURS: "true", CPU: "NVIDIA"}, None, ["second-device-plugin-selects"]),
        ({}, {OURS: "true", "nvidia.com/gpu.present": "true"}, None, ["second-device-plugin-selects"]),
        ({}, {OURS: "true", "nvidia.com/gpu.present": "true"}, OF_X86, []),
    ],
)
def test_chart_that_selects_a_board_is_a_warning_in_either_order(
    facts: Data, labels: Data | None, of: Data | None, ids: list[str]
) -> None:
    found = findings(AGENT, plugin(of=of), labels=labels, facts={AGENT: facts})
    assert [one["id"] for one in found] == ids
    assert all(one["level"] == "warning" for one in found)


def test_label_of_the_inventory_counts_before_the_node_has_it() -> None:
    found = findings(AGENT, plugin(), given={"nvidia.com/gpu.present": "true"})
    assert [one["id"] for one in found] == ["second-device-plugin-selects"]


@pytest.mark.parametrize(
    ("labels", "fix"),
    [
        (CHART, "helm upgrade nvdp nvdp/nvidia-device-plugin --namespace gpus --version VERSION "
         f"--reuse-values --values {second_plugin.VALUES}"),
        ({}, "--namespace gpus edit daemonset nvdp"),
    ],
)  # fmt: skip
def test_second_plugin_on_a_board_is_an_error_that_names_the_line(labels: Data, fix: str) -> None:
    (found,) = findings(AGENT, plugin("x86", AGENT, labels=labels), labels={OURS: "true"})
    assert (found["id"], found["level"]) == ("second-device-plugin", "error")
    assert fix in found["fix"]
    assert "kubernetes.io/arch: amd64" in found["fix"]
    assert findings(SERVER, plugin("x86", AGENT, labels=labels), labels={OURS: "true"}) == []


def test_gpu_operator_needs_no_change_because_site_yml_labels_the_board() -> None:
    operated = spec(nodeSelector={"nvidia.com/gpu.deploy.device-plugin": "true"})
    assert findings(AGENT, plugin(AGENT, of=operated, labels={}), labels={OURS: "true"}) == []


@pytest.mark.parametrize(
    ("labels", "given", "ids"),
    [
        ({}, {}, []),
        ({OURS: "true"}, {}, ["second-device-plugin"]),
        ({}, {"jetson-k3s.github.io/dra": "true"}, ["second-device-plugin"]),
        ({OURS: "false"}, {}, []),
    ],
)
def test_plain_host_with_a_label_of_boards_has_the_label_to_remove(
    labels: Data, given: Data, ids: list[str]
) -> None:
    plain = {"host_kind": "plain", "container_runtime": "containerd"}
    found = findings(AGENT, plugin(AGENT), labels=labels, given=given, **plain)
    assert [one["id"] for one in found] == ids
    for one in found:
        assert f"label node {AGENT} {OURS}- jetson-k3s.github.io/dra-" in one["fix"]


def shown(kind: str | None, of: Data, **labels: str) -> tuple[Data, str]:
    """A node with two GPUs and a pod of NVIDIA's plugin: its status, and its lines of the table."""
    node = NODE | {"labels": labels, "capacity": {GPU: 2}, "allocatable": {GPU: 2}}
    found = gpu_status.status(
        {"nodes": [node], "pods": [pod("p")], "answers": {"a": {"stdout": '{"containers": []}'}}}
        | NOTHING
        | {"gpu_plugins": gpu_plugins.plugin_pods([its_pod(of, "a"), its_pod(of, "b")])},
        {"a": kind} if kind else {},
    )
    return found["nodes"][0], "\n".join(gpu_status.table(found).splitlines()[1:])


@pytest.mark.parametrize("kind", ["plain", None])
def test_status_shows_whose_plugin_serves_an_x86_node(kind: str | None) -> None:
    node, text = shown(kind, spec())
    assert (node["other_plugins"], node["two_plugins"], node["problem"]) == (["gpus/nvdp"], [], None)
    # Two GPUs of a server are not one that is shared.
    assert text.split(maxsplit=5)[5] == f"{GPU}: 1 of 2 used, by gpus/nvdp"


@pytest.mark.parametrize(
    ("kind", "of", "line"),
    [
        ("board", spec(), "kubernetes.io/arch: amd64"),
        ("board", spec(nodeSelector={gpu_plugins.OPERATED: "true"}), f"label node a {OPERANDS}=false"),
        ("plain", spec(), f"label node a {OURS}-"),
    ],
)
def test_status_names_the_line_to_change_on_a_node_with_two_plugins(kind: str, of: Data, line: str) -> None:
    node, text = shown(kind, of, **{OURS: "true"})
    assert len(node["two_plugins"]) == 1
    (said,) = [one for one in text.splitlines() if "two device plugins" in one]
    assert "DaemonSet nvdp in namespace gpus" in said
    assert line in said
