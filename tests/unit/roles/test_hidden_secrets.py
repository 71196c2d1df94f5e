# SPDX-License-Identifier: Apache-2.0
"""No secret of a board is on the screen, in a diff or in facts, however talkative Ansible is."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.planted import COMMAND, EXEC_START, FLAGS, PLANTED, UNIT, leaked
from tests.unit.roles.conftest import Load
from tests.unit.roles.playing import play

PROXY = f"http://somebody:{PLANTED['proxy']}@proxy.example:3128"


@pytest.fixture
def secrets(load: Load) -> ModuleType:
    return load("hidden_secrets/module_utils/hidden_secrets.py")


@pytest.mark.parametrize(
    "text",
    [
        COMMAND,
        COMMAND.replace(" --", " --docker --").replace(" planted", "=planted"),
        UNIT,
        yaml.safe_dump(FLAGS),
        json.dumps(FLAGS, indent=1),
        json.dumps({"proxies": {"https-proxy": PROXY}}),
        f"K3S_DATASTORE_ENDPOINT='{PLANTED['datastore-endpoint']}'\nAWS_SECRET_ACCESS_KEY=planted/secret+key\n",
        "k3s agent -t planted-join-token",
    ],
)
def test_secrets_are_hidden_wherever_they_stand(secrets: ModuleType, text: str) -> None:
    assert leaked(text)
    hidden = secrets.without_secrets(text)
    assert leaked(hidden) == []
    assert len(hidden.splitlines()) == len(text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "/usr/local/bin/k3s server --docker --token-file /etc/t --vpn-auth-file=/etc/v --disable traefik",
        "token-file: /etc/rancher/k3s/jetson-k3s.token\nserver: https://jetson-1:6443\n",
        "k3s server --token --docker",
        "ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock",
        '{"registry-mirrors": ["https://mirror.example:5000"]}',
    ],
)
def test_what_is_no_secret_stays(secrets: ModuleType, text: str) -> None:
    assert secrets.without_secrets(text) == text


@pytest.fixture
def programs(tmp_path: Path) -> str:
    """A PATH on which systemd tells of the stock script's unit, and nobody asks this machine's Docker."""
    directory = tmp_path / "bin"
    directory.mkdir()
    units = f"Id=k3s.service\nLoadState=loaded\nActiveState=active\nExecStart={EXEC_START}\n"
    for name, script in {"systemctl": f"cat <<'END'\n{units}END\n", "docker": "exit 1\n"}.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}")
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def ansible(tmp_path: Path, path: str, playbook: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook on this machine as the server, as talkative as can be."""
    inventory = tmp_path / "inventory"
    local = "localhost ansible_connection=local ansible_become=false"
    inventory.write_text(
        f"[server]\n{local} ansible_python_interpreter={sys.executable}\n[k3s_cluster:children]\nserver\n"
    )
    return play(inventory, playbook, "--diff", "-vvv", *arguments, timeout=150, PATH=path)


def test_preflight_tells_of_a_unit_with_secrets_but_not_the_secrets(tmp_path: Path, programs: str) -> None:
    run = ansible(
        tmp_path, programs, CHECKOUT / "playbooks/preflight.yml", f"-ejetson_k3s_bundle={tmp_path}/none"
    )
    assert "k3s-foreign-unit" in run.stdout
    assert "--datastore-endpoint (hidden)" in run.stdout
    assert leaked(run.stdout) == []


def test_taking_over_keeps_the_secrets_and_does_not_tell_them(tmp_path: Path, programs: str) -> None:
    unit, config = tmp_path / "k3s.service", tmp_path / "40-migrated.yaml"
    unit.write_text(UNIT)
    variables = {
        "k3s_migrate": True,
        "__k3s_config_shown": [],
        "__k3s_files": [{"path": str(unit), "content": "ours\n", "mode": "0644"}],
        "__k3s_kubectl_link": [{"path": str(tmp_path / "kubectl"), "link": "k3s"}],
        "__k3s_migrated_path": str(config),
        "__k3s_marker": str(tmp_path / "marker"),
    }
    playbook = tmp_path / "playbook.yml"
    playbook.write_text("""\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_facts}
    - ansible.builtin.import_role: {name: k3s, tasks_from: configure.yml}
""")
    run = ansible(tmp_path, programs, playbook, f"-e{json.dumps(variables)}")
    assert run.returncode == 0, run.stdout
    kept = yaml.safe_load(config.read_text())
    assert {"token", "agent-token"}.isdisjoint(kept)
    assert kept == {name: value for name, value in FLAGS.items() if "token" not in name}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert "+ours" in run.stdout
    assert leaked(run.stdout) == []


def test_diff_of_daemon_json_has_no_password(tmp_path: Path, programs: str) -> None:
    config, playbook = tmp_path / "daemon.json", tmp_path / "playbook.yml"
    config.write_text(json.dumps({"proxies": {"https-proxy": PROXY}}))
    module = {
        "path": str(config),
        "config": {"debug": True},
        "record": str(tmp_path / "record"),
        "marker": str(tmp_path / "marker"),
    }
    playbook.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "server",
                    "gather_facts": False,
                    # A role's modules are found once the role is named.
                    "tasks": [
                        {"ansible.builtin.import_role": {"name": "nvidia_docker"}, "when": False},
                        {"docker_daemon_config": module},
                    ],
                }
            ]
        )
    )
    run = ansible(tmp_path, programs, playbook)
    assert run.returncode == 0, run.stdout
    assert '"debug": true' in run.stdout
    assert json.loads(config.read_text())["proxies"]["https-proxy"] == PROXY
    assert leaked(run.stdout) == []
