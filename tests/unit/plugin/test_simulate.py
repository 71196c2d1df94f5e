# SPDX-License-Identifier: Apache-2.0
"""`simulate` with a kubectl that keeps one node in a file, as the API server would."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.commands import simulate as simulation

# A status that is not of the version that was read is refused, as an API server does.
KUBECTL = """#!{python}
import json, pathlib, sys
directory = pathlib.Path({directory!r})
node, pods, busy = (directory / name for name in ("node", "pods", "busy"))
parts = [part for part in sys.argv[1:] if not part.startswith("--request-timeout=")]
if parts[:2] == ["get", "--raw"] and parts[2] == "/api/v1/nodes/laptop":
    sys.stdout.write(node.read_text())
elif parts[:3] == ["get", "--raw", "/api/v1/pods?fieldSelector=spec.nodeName%3Dlaptop"]:
    sys.stdout.write(pods.read_text())
elif parts == ["replace", "--raw", "/api/v1/nodes/laptop/status", "--filename=-"]:
    new = json.load(sys.stdin)
    there = json.loads(node.read_text())
    if busy.exists() and (left := int(busy.read_text())):
        busy.write_text(str(left - 1))
        there["metadata"]["resourceVersion"] = str(int(there["metadata"]["resourceVersion"]) + 1)
        there["status"]["images"] = [left]
        node.write_text(json.dumps(there))
    if new["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
        sys.exit("Error from server (Conflict): the object has been modified")
    new["metadata"]["resourceVersion"] = str(int(there["metadata"]["resourceVersion"]) + 1)
    node.write_text(json.dumps(new))
else:
    sys.exit("Error from server (NotFound): the server could not find the requested resource")
"""

NODE = {
    "metadata": {"name": "laptop", "resourceVersion": "7", "annotations": {"someone/else": "kept"}},
    "status": {"capacity": {"cpu": "8", "a.b/c": "1"}, "allocatable": {"cpu": "8", "a.b/c": "1"}},
}
UNITS = "version: v1\nsharing: {units: {memoryTotal: 2Gi}}\n"
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where the API server's node and pods lie; kubectl on the PATH knows them."""
    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL.format(python=sys.executable, directory=str(tmp_path)))
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CONFIG_FILE", raising=False)
    (tmp_path / "node").write_text(json.dumps(NODE))
    (tmp_path / "pods").write_text('{"items": []}')
    return tmp_path


@pytest.fixture
def node(cluster: Path) -> Callable[[], dict[str, Any]]:
    """What the API server has of the node, without the version."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((cluster / "node").read_text())
        found["metadata"].pop("resourceVersion")
        return found

    return read


def units(cluster: Path) -> str:
    file = cluster / "units.yaml"
    file.write_text(UNITS)
    return str(file)


def test_other_settings_take_the_place_of_those_before(
    cluster: Path, node: Callable[[], dict[str, Any]]
) -> None:
    assert main(["simulate", "laptop"]) == 0
    for _ in range(2):  # a second time it is the same
        assert main(["simulate", "laptop", "--config", units(cluster)]) == 0
        assert node()["status"]["allocatable"] == {"cpu": "8", "a.b/c": "1", CORE: "100", MEMORY: "8"}
        assert node()["metadata"]["annotations"][simulation.ANNOTATION] == f"{CORE},{MEMORY}"


@pytest.mark.parametrize(
    "labels",
    [
        {"app.kubernetes.io/name": "tegra-device-plugin"},
        {"app.kubernetes.io/name": "nvidia-device-plugin"},
        {"name": "nvidia-device-plugin-ds"},
    ],
)
def test_rejected_beside_a_real_plugin(
    labels: dict[str, str],
    cluster: Path,
    node: Callable[[], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = node()
    pods = [
        {"metadata": {"name": "x", "namespace": "default"}},
        {"metadata": {"name": "real", "namespace": "kube-system", "labels": labels}},
    ]
    (cluster / "pods").write_text(json.dumps({"items": pods}))
    assert main(["simulate", "laptop"]) == 1
    assert "a real device plugin, pod kube-system/real" in capsys.readouterr().err
    assert node() == before


def test_rejected_beside_another_advertiser(
    cluster: Path, node: Callable[[], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = node()
    config = cluster / "own.yaml"
    renamed = "{resources: [{name: nvidia.com/gpu, rename: a.b/c, replicas: 2}]}"
    config.write_text(f"version: v1\nsharing: {{timeSlicing: {renamed}}}\n")
    assert main(["simulate", "laptop", "--config", str(config)]) == 1
    assert "has 1 a.b/c already, which are not simulated" in capsys.readouterr().err
    assert node() == before


def test_a_status_that_changes_meanwhile_is_read_again(
    cluster: Path, node: Callable[[], dict[str, Any]]
) -> None:
    (cluster / "busy").write_text("2")
    assert main(["simulate", "laptop"]) == 0
    found = node()["status"]
    assert (found["images"], found["capacity"]["nvidia.com/gpu"]) == ([1], "1")


def test_a_status_that_never_rests_ends_the_command(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster / "busy").write_text("99")
    assert main(["simulate", "laptop"]) == 1
    assert "changed its status 5 times" in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_kubectls_error_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "nobody"]) == 1
    assert "kubectl: Error from server (NotFound)" in capsys.readouterr().err


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["simulate", "laptop"]) == 1
    assert "kubectl is needed to simulate" in capsys.readouterr().err
