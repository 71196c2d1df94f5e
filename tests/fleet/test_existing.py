# SPDX-License-Identifier: Apache-2.0
"""The playbooks over boards that join a cluster which exists already: kubectl runs on one other host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ansible_core import NEWEST, OLDEST, core
from tests.fleet.fleet import TIMEOUT_SECONDS
from tests.fleet.scripted import fault, node, said
from tests.hostile.site import Run, make_site

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
HERE = Path(__file__).parent
SERVER, CONTROLLER, BOARDS = "jetson-1", "existing-cluster", ("jetson-2", "jetson-3")
URL = "https://192.0.2.1:6443"
HASH = "b" * 64
TOKEN = f"K10{HASH}::node:agents-secret-of-16"
INVENTORY = """\
{server}
[agent]
jetson-2
jetson-3
[k3s_cluster:children]
agent
[all:vars]
ansible_connection=scripted
ansible_python_interpreter=/usr/bin/python3
jetson_k3s_bundle={{bundle}}
[k3s_cluster:vars]
{settings}
"""
OF_API = {
    "gpu_api_users",
    "gpu_checks",
    "gpu_configurations",
    "k3s_manifest",
    "k3s_node",
    "k3s_node_schedule",
    "k3s_nodes",
}
OBSERVES = {"k3s_observe", "ping", "setup"}
# Modules that change a host.
CHANGES = {
    "docker_daemon_config",
    "file_set",
    "k3s_manifest",
    "k3s_node",
    "k3s_reset",
    "systemd_service",
    "run_lock",
    "replace",
}


class Existing:
    """Two boards, and a cluster that is reached by SSH or by a kubeconfig."""

    def __init__(self, root: Path, way: str, **settings: str) -> None:
        self.api = SERVER if way == "ssh" else CONTROLLER
        kubeconfig = root / "kubeconfig"
        given = {"k3s_server_url": URL, "k3s_agent_token": TOKEN}
        if way == "kubeconfig":
            given["k3s_existing_kubeconfig"] = str(kubeconfig)
        lines = "\n".join(f"{name}={value}" for name, value in (given | settings).items() if value)
        server = f"[existing_server]\n{SERVER}" if way == "ssh" else ""
        self.site = make_site(root, INVENTORY.format(server=server, settings=lines))
        kubeconfig.write_text("apiVersion: v1\n")
        self.nodes = [node(SERVER), *map(node, BOARDS)]

    def play(self, playbook: str, *arguments: str, line: str = NEWEST, **answered: Any) -> Run:
        cluster = {"nodes": self.nodes, "ca": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"}
        answers = [
            fault(self.api, "k3s_nodes", cluster | answered.pop("k3s_nodes", {})),
            *(fault(BOARDS, module, answer) for module, answer in answered.items()),
        ]
        plugins = f"{HERE}/controller_connection:{HERE.parent}/hostile/connection_plugins"
        settings = {
            "SCRIPTED_SERVERS": SERVER,
            "SCRIPTED_ANSWERS": json.dumps(answers),
            "ANSIBLE_CONNECTION_PLUGINS": plugins,
        }
        reports = f"--extra-vars=gpu_verify_reports={self.site.root}/reports"
        return self.site.play(core(line), playbook, {}, reports, *arguments, **settings)


def hosts(run: Run, module: str) -> set[str]:
    return {host for host, name, _ in run.calls if name == module}


@pytest.mark.parametrize("way", ["ssh", "kubeconfig"])
@pytest.mark.parametrize("line", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.acceptance)])
def test_boards_join_and_the_host_of_the_api_runs_kubectl_alone(tmp_path: Path, way: str, line: str) -> None:
    cluster = Existing(tmp_path, way)
    run = cluster.play("site", line=line)
    assert run.code == 0, run.logged or run.said
    assert {module for host, module, _ in run.calls if host == cluster.api} <= OF_API
    for module in ("k3s_manifest", "k3s_node", "gpu_checks"):
        assert hosts(run, module) == {cluster.api}
    kubeconfig = str(tmp_path / "kubeconfig") if way == "kubeconfig" else ""
    assert {one["kubeconfig"] for _, _, one in run.calls if "kubeconfig" in one} == {kubeconfig}
    joined = [one for host, module, one in run.calls if module == "k3s_join_token"]
    assert hosts(run, "k3s_join_token") == set(BOARDS)
    assert all((one["server_url"], one["token"], one["server"]) == (URL, TOKEN, False) for one in joined)
    assert all("BEGIN CERTIFICATE" in one["ca"] for one in joined)
    sent = b"".join(content for board in BOARDS for _, content in run.sent[board])
    assert str(tmp_path / "kubeconfig").encode() not in sent


@pytest.mark.parametrize("way", ["ssh", "kubeconfig"])
@pytest.mark.parametrize("playbook", ["verify", "status", "drift", "upgrade", "reboot", "reset", "forget"])
@pytest.mark.acceptance
def test_playbooks_of_every_day_change_the_boards_and_no_server(
    tmp_path: Path, way: str, playbook: str
) -> None:
    cluster = Existing(tmp_path, way)
    run = cluster.play(playbook, *(["--limit=jetson-3"] if playbook == "forget" else []))
    assert run.code in ((0, 1) if playbook == "drift" else (0,)), run.logged or run.said
    assert {module for host, module, _ in run.calls if host == cluster.api} <= OF_API | OBSERVES
    if playbook in ("reset", "forget"):
        forgotten = [one["name"] for _, module, one in run.calls if one.get("state") == "forgotten"]
        assert forgotten == (["jetson-3"] if playbook == "forget" else [*BOARDS])
    if playbook == "reset":
        (unused,) = [one for _, module, one in run.calls if module == "gpu_configurations"]
        assert unused["kept"] == []


@pytest.mark.parametrize(
    ("playbook", "says"),
    [
        ("backup", "Back up the control plane there"),
        ("restore", "Restore the control plane there"),
        ("rotate_ca", "Rotate the CAs there"),
        ("rotate_token", "Rotate the token there"),
        ("kubeconfig", "Make a kubeconfig there"),
    ],
)
def test_playbook_for_servers_is_refused_before_any_connection(
    tmp_path: Path, playbook: str, says: str
) -> None:
    run = Existing(tmp_path, "ssh").play(playbook)
    assert (run.code, run.calls) == (2, []), run.said
    assert "This inventory joins a cluster that exists already" in said(run)
    assert says in said(run)


RIGHT = {
    "verb": "create",
    "group": "apps",
    "resource": "daemonsets",
    "subresource": "",
    "namespace": "kube-system",
}
REFUSED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "existing-rights": (
        "kubeconfig",
        {"k3s_nodes": {"denied": [RIGHT]}},
        ["create daemonsets.apps in kube-system"],
    ),
    "existing-unreachable": (
        "ssh",
        {"k3s_nodes": {"problem": "x509: unknown", "nodes": []}},
        ["x509: unknown"],
    ),
    "existing-skew": (
        "ssh",
        {"k3s_nodes": {"version": "v1.20.1+k3s1"}},
        ["and the existing cluster has v1.20.1"],
    ),
    "join-token": (
        "ssh",
        {"k3s_join_token": {"failed": True, "reason": "other-ca", "msg": "is for another cluster"}},
        ["is for another cluster", "Set k3s_agent_token to a token of agents of this cluster"],
    ),
    "existing-url-unreachable": (
        "ssh",
        {
            "k3s_join_token": {
                "failed": True,
                "reason": "unreachable",
                "msg": f"no K3s server answers at {URL}",
            }
        },
        ["Correct k3s_server_url"],
    ),
}


@pytest.mark.parametrize("found", REFUSED)
def test_cluster_that_boards_cannot_join_is_refused_before_a_board_is_changed(
    tmp_path: Path, found: str
) -> None:
    way, answers, says = REFUSED[found]
    run = Existing(tmp_path, way).play("site", **answers)
    assert run.code == 2, run.logged or run.said
    assert f"[error] {found}" in said(run), run.said
    assert all(words in said(run) for words in says), run.said
    assert not {module for _, module, _ in run.calls} & CHANGES


def test_inventory_with_two_clusters_is_refused_before_any_connection(tmp_path: Path) -> None:
    cluster = Existing(tmp_path, "ssh")
    inventory = cluster.site.root / "site/inventory"
    inventory.write_text("[server]\njetson-9\n" + inventory.read_text())
    run = cluster.play("site")
    assert (run.code, run.calls) == (2, []), run.said
    assert "existing-and-own" in said(run)
