# SPDX-License-Identifier: Apache-2.0
"""Nodes on which NVIDIA's device plugin and this project's would offer one GPU, and the line to change.

Pure functions behind the roles preflight and gpu_status. `plugin` is a DaemonSet or a pod of NVIDIA's plugin,
as module_utils/gpu_plugins.py describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, host_kinds
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as configurations,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_board import Board
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_fleet import nodes_of

Finding = dict[str, str]
Facts = dict[str, Any]
Labels = Mapping[str, Any]

SERVING = manifests.API_LABELS
OPERANDS = manifests.OPERANDS_LABEL
VALUES = "plugin/deploy/nvidia/device-plugin-values.yaml"
GUIDE = "docs/mixed-clusters.md"
# Labels that Node Feature Discovery gives such boards, if it is installed: Denver and Carmel are CPUs of
# NVIDIA, and Thor's GPU is a PCI device (facts of these chips, not seen on such boards).
DISCOVERED = {
    "tegra186": {"feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA"},
    "tegra194": {"feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA"},
    "tegra264": {"feature.node.kubernetes.io/pci-10de.present": "true"},
}
EXPECTED = (
    "one device plugin for nvidia.com/gpu on a node: the kubelet uses the one that has registered last, and "
    "neither knows the pods of the other"
)


def title(plugin: Facts) -> str:
    """NVIDIA's plugin, as a finding names it."""
    return f"NVIDIA's device plugin (DaemonSet {plugin['name']} in namespace {plugin['namespace']})"


def remedy(plugin: Facts, node: str, kind: str | None) -> str:
    """The line to change, so that one of both plugins leaves the node."""
    guide = f"See {page(GUIDE)}."
    if kind == host_kinds.PLAIN:
        labels = " ".join(f"{label}-" for label in SERVING.values())
        return (
            f"Remove {' and '.join(SERVING.values())} from k3s_node_labels of this host, and on a server: "
            f"sudo k3s kubectl label node {node} {labels}"
        )
    if plugin["operator"]:
        return f"On a server: sudo k3s kubectl label node {node} {OPERANDS}=false --overwrite. {guide}"
    if plugin["release"]:
        return (
            f"Keep NVIDIA's chart off the boards: helm upgrade {plugin['release']} nvdp/nvidia-device-plugin "
            f"--namespace {plugin['namespace']} --version VERSION --reuse-values --values {VALUES}, with the "
            "version that helm list shows. The line kubernetes.io/arch: amd64 in nodeSelector does it. "
            f"{guide}"
        )
    return (
        f"Add the line kubernetes.io/arch: amd64 to nodeSelector of DaemonSet {plugin['name']}: sudo k3s "
        f"kubectl --namespace {plugin['namespace']} edit daemonset {plugin['name']}. {guide}"
    )


def matches(expression: Mapping[str, Any], labels: Labels) -> bool:
    """Do the labels meet an expression of a node affinity (apimachinery, pkg/labels/selector.go)?"""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (
            (str(labels.get(key)) in values) is (operator == "In") if key in labels else operator == "NotIn"
        )
    try:
        value, limit = int(labels[key]), int(values[0])
    except (KeyError, ValueError, IndexError):
        return False
    return value > limit if operator == "Gt" else value < limit


def selects(plugin: Facts, labels: Labels) -> bool:
    """Does the DaemonSet have a pod on a node with these labels? Taints are not regarded."""
    if any(labels.get(key) != value for key, value in plugin["selector"].items()):
        return False
    terms = plugin["terms"]
    if terms is None:
        return True
    # A term without expressions selects nothing.
    expressions = [term.get("matchExpressions") or [] for term in terms]
    return any(term and all(matches(one, labels) for one in term) for term in expressions)


def board_labels(facts: Facts, api: str, given: Labels, node: Labels) -> dict[str, Any]:
    """Labels that the node of a board has after site.yml, and may get from Node Feature Discovery.

    `given` are k3s_node_labels, `node` the labels of the board's node, {} before the board is one.
    """
    architecture = board_release.architecture(facts["arch"])
    own = {SERVING[api]: "true", OPERANDS: "false"}
    discovered = {} if node else DISCOVERED.get(str(facts["soc"]), {})
    return {
        "kubernetes.io/arch": architecture,
        "kubernetes.io/os": "linux",
        **discovered,
        **node,
        **given,
        **own,
    }


def serves(labels: Labels) -> bool:
    """Do the labels of a node give its GPU to this project's plugin or driver?"""
    return any(configurations.name_of_label(labels.get(label)) is not None for label in SERVING.values())


def findings_of_board(name: str, labels: Labels, plugins: Iterable[Facts]) -> list[Finding]:
    """Findings about NVIDIA's plugin on the node `name` of a board, which has the labels of board_labels.

    None about the GPU operator: it removes its pods, because site.yml gives the node the label OPERANDS.
    """
    findings = []
    for plugin in plugins:
        runs = name in plugin["nodes"]
        if plugin["operator"] or not (runs or selects(plugin, labels)):
            continue
        state = "runs on node {}" if runs else "selects nodes with the labels that node {} has or can get"
        findings.append(
            {
                "id": "second-device-plugin" if runs else "second-device-plugin-selects",
                "found": f"{title(plugin)} {state.format(name)}, whose GPU is for the plugin of this project",
                "expected": EXPECTED,
                "fix": remedy(plugin, name, host_kinds.BOARD),
            }
        )
    return findings


def findings_of_plain(name: str, labels: Labels, plugins: Iterable[Facts]) -> list[Finding]:
    """Findings about NVIDIA's plugin on the node `name` of a plain host, whose labels may select ours."""
    return [
        {
            "id": "second-device-plugin",
            "found": f"{title(plugin)} runs on node {name}, and the labels of the node select the plugin of "
            "this project, too",
            "expected": EXPECTED,
            "fix": remedy(plugin, name, host_kinds.PLAIN),
        }
        for plugin in plugins
        if serves(labels) and name in plugin["nodes"]
    ]


def findings(board: Board) -> list[Finding]:
    """NVIDIA's device plugin on the node of a board, where this project's is to offer the GPU."""
    answers = [answer for answer in board.answers.values() if answer]
    plugins: list[Facts] = next((found for answer in answers if (found := answer.get("gpu_plugins"))), [])
    if not plugins:
        return []
    # Not board.nodes, which have only what boards are compared by.
    everywhere = nodes_of(board.answers)
    nodes = (node.get("labels", {}) for node in everywhere if node["name"] == board.name)
    own: Facts = next(nodes, {})
    given = board.settings["labels"]
    if not board.is_board:
        return findings_of_plain(board.name, {**own, **given}, plugins)
    labels = board_labels(board.facts, board.settings["api"], given, own)
    return findings_of_board(board.name, labels, plugins)
