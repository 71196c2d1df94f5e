# SPDX-License-Identifier: Apache-2.0
"""No secret of a board is on the screen, in a diff or in facts, however talkative Ansible is."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.planted import EXEC_START, FLAGS, JOURNAL, PLANTED, UNIT, leaked, processes, watched
from tests.unit.roles.places import k3s_paths
from tests.unit.roles.playing import Run, play

PROXY = f"http://somebody:{PLANTED['proxy']}@proxy.example:3128"


@pytest.fixture
def programs(tmp_path: Path) -> str:
    """A PATH with systemd's answers about the stock script's unit, and without this machine's Docker."""
    directory = tmp_path / "bin"
    directory.mkdir()
    units = (
        f"Id=k3s.service\nLoadState=loaded\nActiveState=active\nExecStart={EXEC_START}\n"
        f'Environment="K3S_TOKEN=two {PLANTED["token"]}" HTTPS_PROXY={PROXY}\n'
    )
    for name, text in {"systemctl": units, "journalctl": JOURNAL}.items():
        (directory / f"{name}.txt").write_text(text)
    for name, script in {
        "systemctl": f"exec cat {directory}/systemctl.txt",
        "journalctl": f"exec cat {directory}/journalctl.txt",
        "docker": "exit 1",
    }.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def ansible(tmp_path: Path, path: str, playbook: Path, *arguments: str) -> Run:
    """Run a playbook on this machine as the server, and search its complete output for secrets.

    The fact cache and the process list are searched, too.
    """
    inventory = tmp_path / "inventory"
    local = "localhost ansible_connection=local ansible_become=false"
    inventory.write_text(
        f"[server]\n{local} ansible_python_interpreter={sys.executable}\n[k3s_cluster:children]\nserver\n"
    )
    cache = tmp_path / "cache"
    environment = {
        "PATH": path,
        "ANSIBLE_CACHE_PLUGIN": "ansible.builtin.jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(cache),
        "JETSON_K3S_TEST": str(tmp_path),
    }
    with watched(lambda: processes(f"JETSON_K3S_TEST={tmp_path}")) as lines:
        run = play(inventory, playbook, "--diff", "-vvv", *arguments, **environment)
    assert any("-m ansible playbook" in line for line in lines)
    assert leaked("\n".join(lines)) == []
    assert leaked(run.stdout) == []
    assert leaked(cache) == []
    return run


def test_preflight_shows_a_unit_without_its_secrets(tmp_path: Path, programs: str) -> None:
    run = ansible(
        tmp_path, programs, CHECKOUT / "playbooks/preflight.yml", f"-ejetson_k3s_bundle={tmp_path}/none"
    )
    assert "k3s-foreign-unit" in run.stdout
    assert "--datastore-endpoint (hidden)" in run.stdout
    (cached,) = (tmp_path / "cache").iterdir()
    assert "--datastore-endpoint (hidden)" in cached.read_text()


def test_explanation_of_a_failure_shows_the_journal_without_its_secrets(
    tmp_path: Path, programs: str
) -> None:
    playbook = tmp_path / "playbook.yml"
    playbook.write_text("""\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jetson_facts, tasks_from: explain}
      vars: {__jetson_facts_unit: k3s, __jetson_facts_trouble: K3s has ended.}
""")
    run = ansible(tmp_path, programs, playbook)
    assert run.returncode != 0
    assert "K3s has ended." in run.stdout
    assert "kept: the service has ended" in run.stdout
    assert "kept: restart it" in run.stdout


@pytest.mark.acceptance
def test_taking_over_keeps_the_secrets_and_does_not_tell_them(tmp_path: Path, programs: str) -> None:
    unit, config = tmp_path / "k3s.service", tmp_path / "40-migrated.yaml"
    unit.write_text(UNIT)
    variables = {
        "jetson_k3s_confirm": ["migrate"],
        "preflight_bundle_info": {"indexed": False, "versions": {"k3s_version": "v1.33.5+k3s1"}, "files": {}},
        "__k3s_paths": k3s_paths(tmp_path, unit="k3s.service"),
        "__k3s_marker": str(tmp_path / "marker"),
        "__k3s_token_file": str(tmp_path / "token"),
        "__k3s_agent_token_file": str(tmp_path / "agent-token"),
    }
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"k3s_token": PLANTED["token"], "k3s_agent_token": PLANTED["agent-token"]}))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text("""\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jetson_facts}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: server_token}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: configure}
""")
    run = ansible(tmp_path, programs, playbook, f"-e{json.dumps(variables)}", f"-e@{tokens}")
    assert run.returncode == 0, run.stdout
    kept = yaml.safe_load(config.read_text())
    assert {"token", "agent-token"}.isdisjoint(kept)
    assert kept == {name: value for name, value in FLAGS.items() if "token" not in name}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert "+ExecStart=/usr/local/bin/k3s server" in run.stdout
    assert (tmp_path / "token").read_text().strip() == PLANTED["token"]
