# SPDX-License-Identifier: Apache-2.0
"""Servers with an embedded etcd: what the playbooks write on each of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.playing import play

SERVERS = ("jetson-1", "jetson-2", "jetson-3")
AGENT = "jetson-4"
TOKEN = "a-token-that-is-long-enough"
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  become: false
  tasks:
    - ansible.builtin.import_role: {name: preflight, tasks_from: inventory.yml}
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: configure.yml}
    - ansible.builtin.copy:
        content: "{{ dict(paths | zip(changes | map(attribute='after'))) | to_json }}"
        dest: "{{ written }}/{{ inventory_hostname }}.json"
        mode: "0600"
      vars: {paths: "{{ __k3s_configured.paths }}", changes: "{{ __k3s_configured.diff }}"}
      check_mode: false
"""
CERTIFICATES: dict[str, Any] = {"files": [], "started": None, "valid_days": 365}
UNIT = {"installed": False, "active": False, "enabled": False, "command": None}
FACTS = {
    "hostname": "{{ inventory_hostname }}",
    "arch": "aarch64",
    "k3s": {
        "server": UNIT,
        "agent": UNIT,
        "kubectl": None,
        "version": None,
        "registries": None,
        "certificates": CERTIFICATES,
    },
}
BUNDLE = {"k3s_version": "v1.33.5+k3s1", "pause_image": "rancher/mirrored-pause:3.6"}


def run(
    directory: Path, servers: tuple[str, ...], network: str = "10.0.0.", **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run preflight's look at the inventory and the k3s role's configuration, all in check mode."""
    hosts = {
        name: {"ansible_host": f"{network}{number}"} for number, name in enumerate((*SERVERS, AGENT), start=1)
    }
    groups = {"server": servers, "agent": (AGENT,)}
    inventory = {
        "all": {
            "hosts": hosts,
            "children": {name: {"hosts": dict.fromkeys(of)} for name, of in groups.items()},
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "facts": FACTS,
                "written": str(directory),
                "k3s_source": "download",
                "k3s_version": BUNDLE["k3s_version"],
                **variables,
            },
        }
    }
    (directory / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (directory / "play.yml").write_text(PLAYBOOK)
    where = directory / "inventory.yml"
    return play(where, directory / "play.yml", "--limit=server,agent", "--check")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """{board: {path: content or target}} for three servers and an agent whose owner has chosen a token."""
    directory = tmp_path_factory.mktemp("three")
    ran = run(directory, SERVERS, k3s_token=TOKEN)
    assert ran.returncode == 0, ran.stdout
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in (*SERVERS, AGENT)}


def config(files: dict[str, str]) -> dict[str, Any]:
    """K3s' configuration of a board."""
    content: dict[str, Any] = yaml.safe_load(files["/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml"])
    return content


def test_first_server_starts_the_etcd_and_the_others_join_it(written: dict[str, dict[str, str]]) -> None:
    first, *others = (config(written[name]) for name in SERVERS)
    assert first["cluster-init"] is True
    assert "server" not in first
    for number, other in enumerate(others, start=2):
        assert "cluster-init" not in other
        assert other["server"] == "https://10.0.0.1:6443"
        assert other["tls-san"] == [f"10.0.0.{number}"]
        assert other["node-name"] == f"jetson-{number}"


def test_agent_joins_the_first_server(written: dict[str, dict[str, str]]) -> None:
    assert config(written[AGENT])["server"] == "https://10.0.0.1:6443"
    assert "tls-san" not in config(written[AGENT])


@pytest.mark.parametrize(
    ("name", "role", "unit"), [("jetson-2", "server", "k3s"), (AGENT, "agent", "k3s-agent")]
)
def test_every_server_is_started_as_one(
    written: dict[str, dict[str, str]], name: str, role: str, unit: str
) -> None:
    started = written[name][f"/etc/systemd/system/{unit}.service"]
    assert f"ExecStart=/usr/local/bin/k3s {role}\n" in started


def test_token_is_in_no_configuration(written: dict[str, dict[str, str]]) -> None:
    assert TOKEN not in str(written)
    assert {config(files)["token-file"] for files in written.values()} == {
        "/etc/rancher/k3s/jetson-k3s.token"
    }


def test_setting_with_a_secret_hides_the_file(tmp_path: Path) -> None:
    secret = "planted-vpn-key"
    # There is no K3s to be asked which settings it takes.
    absent = {"stat": {"exists": False}}
    ran = run(tmp_path, SERVERS[:1], k3s_server_config={"vpn-auth": secret}, __k3s_installed=absent)
    assert ran.returncode == 0, ran.stdout
    written = json.loads((tmp_path / f"{SERVERS[0]}.json").read_text())
    assert "not shown" in written["/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml"]
    assert secret not in ran.stdout + str(written)


def test_addresses_may_be_ipv6(tmp_path: Path) -> None:
    ran = run(tmp_path, SERVERS[:1], "fd00::", k3s_token=TOKEN)
    assert ran.returncode == 0, ran.stdout
    first, agent = (
        config(json.loads((tmp_path / f"{name}.json").read_text())) for name in (SERVERS[0], AGENT)
    )
    assert first["tls-san"] == ["fd00::1"]
    assert agent["server"] == "https://[fd00::1]:6443"


def test_two_servers_are_refused(tmp_path: Path) -> None:
    ran = run(tmp_path, SERVERS[:2])
    assert ran.returncode != 0
    assert "[server] has 2 boards; it must have one, or an odd number" in " ".join(ran.stdout.split())
    assert not list(tmp_path.glob("*.json"))
