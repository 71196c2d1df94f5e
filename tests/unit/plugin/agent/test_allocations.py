# SPDX-License-Identifier: Apache-2.0
"""`allocations` in the agent's pod, which sees the GPU memory of the containers' processes."""

import json

import pytest
from tegra_device_plugin.cli import main

from tests.unit.plugin.agent.node import Node, Pod


@pytest.fixture
def arguments(node: Node) -> list[str]:
    config = node.root / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {memoryTotal: 4Gi}}\n")
    places = [f"--host-root={node.root}", f"--pod-resources={node.kubelet.socket}"]
    return ["allocations", f"--config={config}", *places]


def test_memory_of_processes_is_shown_by_container(
    node: Node, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in (Pod(1, "vision", percent=30), Pod(2, "idle", percent=5), Pod(3, "speech", percent=1)):
        node.admits(pod)
    for pid, number in {1: None, 10: 1, 11: 1, 30: 3, 40: None}.items():
        node.process(pid, number)
    node.use_memory(p10=100, p11=20, p30=7, p40=9, p0=3)
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "default/idle c: 5 jetson-k3s.github.io/gpu-core, weight 5 %, resident 0 MiB",
        "default/speech c: 1 jetson-k3s.github.io/gpu-core, weight 1 %, resident 7 MiB",
        "default/vision c: 30 jetson-k3s.github.io/gpu-core, weight 30 %, resident 120 MiB",
    ]


def test_an_unnamed_container_has_no_memory_figure(
    node: Node, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    node.admits(Pod(1, "vision", percent=30))
    for pid, number in {1: None, 10: 1}.items():
        node.process(pid, number)
    for link in (node.root / "var/log/containers").iterdir():
        link.unlink()
    node.use_memory(p10=100)
    assert main(arguments) == 0
    assert capsys.readouterr().out.endswith("weight 30 %\n")


def test_without_visible_processes_the_rest_is_shown(
    node: Node, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    node.admits(Pod(1, "vision", percent=30))
    assert main([*arguments, "--output=json"]) == 0
    output = capsys.readouterr()
    assert f"{node.root} does not show the host's processes: run this in the node agent's pod" in output.err
    (row,) = json.loads(output.out)["containers"]
    assert (row["percent"], row["memory_resident_mib"]) == (30, None)
