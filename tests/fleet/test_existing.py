# SPDX-License-Identifier: Apache-2.0
"""The playbooks over boards that join a cluster which exists already: kubectl runs on one other host."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ansible_core import NEWEST, OLDEST, core
from tests.fleet.fleet import TIMEOUT_SECONDS
from tests.fleet.scripted import fault, node, said
from tests.hostile.answers import OLD
from tests.hostile.answers import TOKEN as CONTENT
from tests.hostile.site import Run, make_site

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
HERE = Path(__file__).parent
SERVER, BOARDS = "jetson-1", ("jetson-2", "jetson-3")
CA = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
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
    """Two boards, and a cluster that is reached by SSH or by a kubeconfig.

    By SSH, modules for the cluster run on a scripted server. By a kubeconfig they run here, with a kubectl.
    """

    def __init__(self, root: Path, way: str) -> None:
        self.way, self.root = way, root
        kubeconfig = root / "kubeconfig"
        given = {"k3s_server_url": URL, "k3s_agent_token": TOKEN}
        if way == "kubeconfig":
            given["k3s_existing_kubeconfig"] = str(kubeconfig)
        lines = "\n".join(f"{name}={value}" for name, value in given.items())
        server = f"[existing_server]\n{SERVER}" if way == "ssh" else ""
        self.site = make_site(root, INVENTORY.format(server=server, settings=lines))
        kubeconfig.write_text("apiVersion: v1\n")
        program = root / "bin/kubectl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE}/kubectl.py "$@"\n')
        program.chmod(0o755)

    def play(self, playbook: str, *arguments: str, line: str = NEWEST, **answered: Any) -> Run:
        cluster = {"version": OLD, "ca": CA, "denied": []} | answered.pop("k3s_nodes", {})
        nodes = [node(SERVER), *map(node, BOARDS)]
        answers = [
            fault(SERVER, "k3s_nodes", {"nodes": nodes} | cluster),
            *(fault(BOARDS, module, answer) for module, answer in answered.items()),
        ]
        # A scripted board answers with CONTENT for each file.
        boot_id = base64.b64decode(CONTENT).decode()
        fake = {"notes": str(self.root / "notes"), "nodes": [SERVER, *BOARDS], "boot_id": boot_id} | cluster
        settings = {
            "SCRIPTED_SERVERS": SERVER,
            "SCRIPTED_ANSWERS": json.dumps(answers),
            "FAKE_KUBECTL": json.dumps(fake),
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
        }
        reports = f"--extra-vars=gpu_verify_reports={self.site.root}/reports"
        return self.site.play(core(line), playbook, {}, reports, *arguments, **settings)

    def commands(self) -> list[list[str]]:
        """The arguments of each call of kubectl on the controller."""
        notes = self.root / "notes"
        return [json.loads(text) for text in notes.read_text().splitlines()] if notes.exists() else []


def hosts(run: Run, module: str) -> set[str]:
    return {host for host, name, _ in run.calls if name == module}


def joins_by_its_token(run: Run) -> None:
    joined = [one for host, module, one in run.calls if module == "k3s_join_token"]
    assert hosts(run, "k3s_join_token") == set(BOARDS)
    assert all(
        (one["server_url"], one["token"], one.get("server", False)) == (URL, TOKEN, False) for one in joined
    )
    assert all(one["ca"] == CA for one in joined)


@pytest.mark.parametrize("line", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.acceptance)])
def test_boards_join_and_one_server_runs_kubectl_alone(tmp_path: Path, line: str) -> None:
    run = Existing(tmp_path, "ssh").play("site", line=line)
    assert run.code == 0, run.logged or run.said
    assert {module for host, module, _ in run.calls if host == SERVER} <= OF_API
    for module in ("k3s_manifest", "k3s_node", "gpu_checks"):
        assert hosts(run, module) == {SERVER}
    assert {one["kubeconfig"] for _, _, one in run.calls if "kubeconfig" in one} == {""}
    joins_by_its_token(run)


@pytest.mark.parametrize("line", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.acceptance)])
def test_boards_join_and_the_kubeconfig_stays_on_the_controller(tmp_path: Path, line: str) -> None:
    cluster = Existing(tmp_path, "kubeconfig")
    run = cluster.play("site", "--skip-tags=gpu_verify", line=line)
    assert run.code == 0, run.logged or run.said
    commands = cluster.commands()
    assert {command[0] for command in commands} == {f"--kubeconfig={tmp_path}/kubeconfig"}
    assert {"apply", "label"} <= {command[1] for command in commands}
    assert not any("secret" in word for command in commands for word in command)
    assert {host for host, _, _ in run.calls} == set(BOARDS)
    joins_by_its_token(run)
    sent = b"".join(content for board in BOARDS for _, content in run.sent[board])
    assert str(tmp_path / "kubeconfig").encode() not in sent


@pytest.mark.parametrize("way", ["ssh", "kubeconfig"])
@pytest.mark.parametrize("playbook", ["verify", "status", "drift", "upgrade", "reboot", "reset", "forget"])
@pytest.mark.acceptance
def test_playbooks_of_every_day_change_the_boards_and_no_server(
    tmp_path: Path, way: str, playbook: str
) -> None:
    if (way, playbook) in (("kubeconfig", "verify"), ("kubeconfig", "upgrade")):
        pytest.skip("the pods of the verification need a cluster: tests/acceptance/test_existing_cluster.py")
    cluster = Existing(tmp_path, way)
    run = cluster.play(playbook, *(["--limit=jetson-3"] if playbook == "forget" else []))
    assert run.code in ((0, 1) if playbook == "drift" else (0,)), run.logged or run.said
    assert {module for host, module, _ in run.calls if host == SERVER} <= OF_API | OBSERVES
    leaving = {"reset": list(BOARDS), "forget": ["jetson-3"]}.get(playbook, [])
    forgotten = [one["name"] for _, module, one in run.calls if one.get("state") == "forgotten"]
    deleted = [command[-1] for command in cluster.commands() if "delete" in command and "node" in command]
    assert sorted(forgotten if way == "ssh" else deleted) == leaving  # boards run side by side
    if (way, playbook) == ("ssh", "reset"):
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
