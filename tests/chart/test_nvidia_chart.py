# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own chart, with the values of plugin/deploy/nvidia, comes to x86 nodes and to no board.

The chart is a real release: that of the Go module of NVIDIA's plugin, which the lab compiles. The tree has no
copy. The chart has no values.schema.json, so the keys of the values are compared with its values.yaml. Helm
validates by the schema if a later version has one.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_plugins
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    preflight_second_plugin as second_plugin,
)
from tegra_device_plugin.board import detection, labels

from tests import boards
from tests.chart.conftest import Helm, Object, Values
from tests.docs import commands, markdown
from tests.lab import gomodules
from tools.cache import CHECKOUT
from tools.process import run

pytestmark = pytest.mark.lab

MODULE = "github.com/NVIDIA/k8s-device-plugin"
PAGE = markdown.read(CHECKOUT / "docs/mixed-clusters.md")
REPOSITORY = "https://nvidia.github.io/k8s-device-plugin"
# All labels that select a node by the chart's defaults, as Node Feature Discovery or a person sets them.
SELECTED = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/mps.capable": "true",
}
OURS = ("jetson-k3s.github.io/device-plugin", "jetson-k3s.github.io/dra")


@pytest.fixture(scope="module")
def sources(helm: Helm) -> Path:
    """The sources of NVIDIA's plugin. Where there is no Go, `helm` has skipped the tests."""
    return gomodules.sources("nvidia-plugin", MODULE)


@pytest.fixture(scope="module")
def chart(helm: Helm, sources: Path) -> Helm:
    return replace(helm, chart=sources / "deployments/helm/nvidia-device-plugin", release="nvdp")


@pytest.fixture(scope="module")
def values() -> Values:
    found: Values = yaml.safe_load((CHECKOUT / second_plugin.VALUES).read_text())
    return found


def daemonsets(documents: list[Object]) -> dict[str, Object]:
    """DaemonSets of the GPU, without those of Node Feature Discovery."""
    found = {one["metadata"]["name"]: one for one in documents if one["kind"] == "DaemonSet"}
    return {name: one for name, one in found.items() if "node-feature-discovery" not in name}


def selects(daemonset: Object, node: dict[str, str]) -> bool:
    """Does a DaemonSet select a node with these labels? By the function that preflight uses."""
    spec = daemonset["spec"]["template"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = {"selector": spec.get("nodeSelector") or {}, "terms": affinity["nodeSelectorTerms"]}
    return second_plugin.selects(found, node)


def node(arch: str, *served: str) -> dict[str, str]:
    return {"kubernetes.io/arch": arch, **SELECTED, **dict.fromkeys(served, "true")}


def test_values_bring_nvidias_pods_to_x86_nodes_and_to_no_board(chart: Helm, values: Values) -> None:
    found = daemonsets(chart.template(values, "nvidia-device-plugin"))
    assert set(found) == {
        f"nvdp-nvidia-device-plugin{name}" for name in ("", "-gpu-feature-discovery", "-mps-control-daemon")
    }
    for daemonset in found.values():
        assert selects(daemonset, node("amd64"))
        # Before the board has any label of this project, and after.
        assert not selects(daemonset, node("arm64"))
        assert not any(selects(daemonset, node("arm64", label)) for label in OURS)
    by_hand = daemonsets(chart.template(values | {"nodeSelector": None}, "nvidia-device-plugin"))
    for daemonset in by_hand.values():
        # As the file says of arm64 servers with a GPU.
        assert selects(daemonset, node("arm64"))
        assert not any(selects(daemonset, node("arm64", label)) for label in OURS)


def test_discovery_of_nodes_does_not_run_on_boards(chart: Helm, values: Values) -> None:
    (worker,) = (
        one
        for one in chart.template(values, "nvidia-device-plugin")
        if one["kind"] == "DaemonSet" and one["metadata"]["name"].endswith("worker")
    )
    assert worker["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}


def keys(given: Any, path: str = "") -> Iterator[str]:
    """Paths of the keys of values, without Kubernetes' own below a nodeSelector or an affinity."""
    for key, value in given.items():
        yield f"{path}{key}"
        if isinstance(value, dict) and key not in ("nodeSelector", "affinity"):
            yield from keys(value, f"{path}{key}.")


def test_each_key_is_one_of_the_chart(chart: Helm, values: Values) -> None:
    def defaults(of: Path) -> Values:
        found: Values = yaml.safe_load(chart("show", "values", of).stdout)
        return found

    known = set(keys(defaults(chart.chart)))
    (discovery,) = (chart.chart / "charts").glob("node-feature-discovery-*.tgz")
    known |= set(keys(defaults(discovery), "nfd."))
    assert set(keys(values)) <= known


def test_default_chart_is_found_and_would_select_a_xavier(chart: Helm) -> None:
    documents = chart.template({"gfd": {"enabled": True}}, "nvidia-device-plugin")
    (plugin,) = gpu_plugins.plugin_daemonsets(list(daemonsets(documents).values()))
    assert (plugin["release"], plugin["operator"]) == ("nvdp", False)
    node = second_plugin.board_labels({"arch": "aarch64", "soc": "tegra194"}, "device-plugin", {}, {})
    (found,) = second_plugin.findings_of_board("xavier", node, [{**plugin, "nodes": []}])
    assert found["id"] == "second-device-plugin-selects"


def test_finding_is_gone_with_the_values_that_it_names(chart: Helm, values: Values) -> None:
    documents = chart.template(values, "nvidia-device-plugin")
    (plugin,) = gpu_plugins.plugin_daemonsets(list(daemonsets(documents).values()))
    for soc in second_plugin.DISCOVERED:
        node = second_plugin.board_labels({"arch": "aarch64", "soc": soc}, "device-plugin", {}, {})
        assert second_plugin.findings_of_board("board", node, [{**plugin, "nodes": []}]) == []


def test_plain_manifest_of_nvidia_is_found(sources: Path) -> None:
    text = (sources / "deployments/static/nvidia-device-plugin.yml").read_text()
    (plugin,) = gpu_plugins.plugin_daemonsets([yaml.safe_load(text)])
    assert (plugin["namespace"], plugin["name"], plugin["release"], plugin["terms"]) == (
        "kube-system",
        "nvidia-device-plugin-daemonset",
        "",
        None,
    )


@pytest.fixture
def repository(chart: Helm, tmp_path: Path) -> Iterator[str]:
    """The chart in a repository on this computer, in the place of NVIDIA's."""
    for arguments in (("package", chart.chart, f"--destination={tmp_path}"), ("repo", "index", tmp_path)):
        done = chart(*arguments)
        assert done.returncode == 0, done.stderr
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_commands_of_the_page_name_a_chart_that_exists(chart: Helm, repository: str, tmp_path: Path) -> None:
    add, install, *_ = (text for text in commands.of(PAGE) if text.startswith("helm "))
    assert REPOSITORY in add
    # `template` in the place of `upgrade --install`: no cluster is needed to find the chart and its values.
    render = install.replace("helm upgrade --install ", "helm template ").replace(" --create-namespace", "")
    places = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {"PATH": f"{chart.program.parent}:/usr/bin:/bin", "HOME": str(tmp_path), **places}
    for command in (add.replace(REPOSITORY, repository), render):
        done = run(["bash", "-c", command], env=environment, cwd=CHECKOUT, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert {one["metadata"]["namespace"] for one in daemonsets(documents).values()} == {
        "nvidia-device-plugin"
    }


def test_labels_for_pods_are_those_of_both(sources: Path, tmp_path: Path) -> None:
    """The table of the page has labels that the plugin gives a board and gpu-feature-discovery a server."""
    guide = (sources / "docs/gpu-feature-discovery/README.md").read_text()
    (section,) = (one for one in PAGE.sections if one.title == "Pods choose by labels")
    named = set(re.findall(r"^\| `(nvidia\.com/[^`]+)`", section.text, re.MULTILINE))
    assert len(named) > 3, "the page has them"
    assert all(f"| {name} " in guide for name in named)
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    assert named <= labels.node_labels(detection.detect(tmp_path)).keys()
