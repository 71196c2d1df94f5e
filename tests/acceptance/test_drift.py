# SPDX-License-Identifier: Apache-2.0
"""drift.yml on a server and an agent: it names what somebody has changed by hand, and changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, starts
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab.board import Board
from tests.lab.k3s import SERVER_SETTINGS
from tests.lab.vm.machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "drift"
# What the roles write on a board.
PLACES = "/etc/docker /etc/nvidia-container-runtime /etc/rancher /etc/systemd/system /usr/local/bin"
FILES = f"find {PLACES} -type f | sort | xargs sha256sum; ls /run/jetson-k3s; true"
CONFIG = "/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml"
TOKEN = "/etc/rancher/k3s/jetson-k3s.token"
OTHER_RUNTIME = "sed -i /default-runtime/s/nvidia/runc/ /etc/docker/daemon.json"
FEWER_PODS = json.dumps({"k3s_server_config": SERVER_SETTINGS | {"kubelet-arg": ["max-pods=30"]}})
NOT_READY = "node.kubernetes.io/not-ready"
DAEMONSET = ("--namespace=kube-system", "daemonset/tegra-device-plugin")
SETTINGS = "k3s : Write K3s' configuration, unit and links"
RUNTIME = "nvidia_docker : Ensure daemon.json makes nvidia the default runtime"
JOINING = "k3s : Ensure the agent has a token that the server accepts"
LABELS = "k3s : Ensure the node is Ready and has its labels"
PLUGIN = "gpu_device_plugin : Apply the DaemonSet of the device plugin or the DRA driver"


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
    return Cluster(boards)


def drift(directory: Path, *arguments: str) -> tuple[PlaybookRun, dict[str, Any]]:
    file = directory / "drift.json"
    run = run_playbook(LAB, "drift.yml", f"--extra-vars=jetson_k3s_output={file}", *arguments)
    assert file.exists(), run.why
    return run, json.loads(file.read_text())


def state(cluster: Cluster) -> set[str]:
    """What must not change, a line for each: files, when services were started, and the cluster's objects."""
    objects = cluster.kubectl("get", "nodes,daemonsets,pods", "--all-namespaces", "--output=json")
    described = {
        " ".join((item["kind"], item["metadata"]["name"], part, json.dumps(content)))
        for item in json.loads(objects)["items"]
        for part, content in (("labels", item["metadata"].get("labels")), ("spec", spec(item)))
    }
    lines = {f"{board.name} {line}" for board in cluster.boards for line in files(board).splitlines()}
    return lines | starts(cluster.boards) | described


def spec(item: dict[str, Any]) -> dict[str, Any]:
    """What an object is to be. Kubernetes takes the taint not-ready away some 5 s after the node is Ready."""
    taints = [taint for taint in item["spec"].get("taints", []) if taint["key"] != NOT_READY]
    return {**item["spec"], "taints": taints}


def files(board: Board | Machine) -> str:
    return board.exec("sh", "-c", FILES)


def gpu_label(cluster: Cluster, node: str) -> str:
    labels = json.loads(cluster.kubectl("get", "node", node, "--output=json"))["metadata"]["labels"]
    found: str = next(label for label in sorted(labels) if label.startswith("nvidia.com/gpu."))
    return found


def test_boards_as_the_inventory_says(cluster: Cluster, tmp_path: Path) -> None:
    before = state(cluster)
    run, found = drift(tmp_path)
    assert run.returncode == 0, run.why
    assert {recap.changed for recap in run.recap.values()} == {0}, run.output
    assert found == {"changes": [], "compared": ["jetson-1", "jetson-2"], "not_compared": {}}
    assert "Boards compared: 2 of 2." in run.output
    assert state(cluster) ^ before == set()


def test_what_somebody_has_changed_is_named_and_stays(cluster: Cluster, tmp_path: Path) -> None:
    server, agent = cluster.boards
    label = gpu_label(cluster, agent.name)
    server.exec("sh", "-c", OTHER_RUNTIME)
    agent.exec("sh", "-c", f"echo 'debug: true' >> {CONFIG}; echo another > {TOKEN}")
    cluster.kubectl("label", "node", agent.name, f"{label}-")
    rolling = json.dumps({"spec": {"updateStrategy": {"type": "RollingUpdate"}}})
    cluster.kubectl("patch", *DAEMONSET, f"--patch={rolling}")
    before = state(cluster)

    run, found = drift(tmp_path, f"--extra-vars={FEWER_PODS}")
    assert run.returncode == 1, run.why
    assert state(cluster) ^ before == set()
    diffs = {(change["board"], change["task"]): json.dumps(change["diff"]) for change in found["changes"]}
    assert "/etc/docker/daemon.json" in diffs[server.name, RUNTIME]
    assert "max-pods=30" in diffs[server.name, SETTINGS]
    assert "debug: true" in diffs[agent.name, SETTINGS]
    assert label in diffs[agent.name, LABELS]
    assert "OnDelete" in diffs["(cluster)", PLUGIN]
    assert (agent.name, JOINING) in diffs
    assert (server.name, LABELS) not in diffs
    _, _, told = run.output.partition("WHAT DIFFERS")
    for board, task in diffs:
        assert any(line.startswith(board) and task in line for line in told.splitlines()), told
    password = server.exec("cat", "/var/lib/rancher/k3s/server/node-token").strip().rpartition(":")[2]
    assert password not in run.output + json.dumps(found)


def test_site_yml_changes_what_was_named(cluster: Cluster, tmp_path: Path) -> None:
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
    run, found = drift(tmp_path)
    assert (run.returncode, found["changes"]) == (0, []), run.why
