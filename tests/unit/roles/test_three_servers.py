# SPDX-License-Identifier: Apache-2.0
"""What the role k3s writes on boards, as far as it takes Ansible to say it: addresses, and what is hidden."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.unit.roles.playing import Run, play_text

SERVERS = ("jetson-1", "jetson-2", "jetson-3")
AGENT = "jetson-4"
PLAYBOOK = """\
- hosts: server,agent
  gather_facts: false
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
UNIT = {"installed": False, "active": False, "enabled": False, "command": None}
K3S: dict[str, Any] = {
    "server": UNIT,
    "agent": UNIT,
    "kubectl": None,
    "version": None,
    "registries": None,
    "certificates": {"files": [], "started": None, "valid_days": 365},
}
FACTS = {"hostname": "{{ inventory_hostname }}", "arch": "aarch64", "k3s": K3S}
CONFIG = "/etc/rancher/k3s/config.yaml.d/50-jetson-k3s.yaml"


def run(directory: Path, servers: tuple[str, ...], network: str = "10.0.0.", **variables: Any) -> Run:
    """Run preflight's look at the inventory and the k3s role's configuration, all in check mode."""
    addresses = {name: {"ansible_host": f"{network}{number}"} for number, name in enumerate(SERVERS, start=1)}
    groups = {
        "server": {name: addresses[name] for name in servers},
        "agent": {AGENT: {"ansible_host": f"{network}4"}},
    }
    settings = {"k3s_source": "download", "k3s_version": "v1.33.5+k3s1", "written": str(directory)}
    given = {"facts": FACTS, **settings, **variables}
    even = len(servers) % 2 == 0
    return play_text(directory, PLAYBOOK, "--check", groups=groups, variables=given, fails=even)


def written(directory: Path, name: str) -> dict[str, str]:
    """{path: content or target} of a board."""
    content: dict[str, str] = json.loads((directory / f"{name}.json").read_text())
    return content


def test_each_board_gets_what_it_needs_to_join_and_no_token_is_shown(tmp_path: Path) -> None:
    token = "a-token-that-is-long-enough"
    ran = run(tmp_path, SERVERS, "fd00::", k3s_token=token)
    files = {name: written(tmp_path, name) for name in (*SERVERS, AGENT)}
    first, other, _, agent = (yaml.safe_load(files[name][CONFIG]) for name in files)
    assert (first["cluster-init"], first["tls-san"], "server" in first) == (True, ["fd00::1"], False)
    assert (other["server"], other["tls-san"]) == ("https://[fd00::1]:6443", ["fd00::2"])
    assert (agent["server"], "tls-san" in agent) == ("https://[fd00::1]:6443", False)
    for name, unit, role in ((SERVERS[1], "k3s", "server"), (AGENT, "k3s-agent", "agent")):
        started = files[name][f"/etc/systemd/system/{unit}.service"]
        assert f"ExecStart=/usr/local/bin/k3s {role}\n" in started
    assert token not in str(files) + ran.stdout


def test_setting_with_a_secret_hides_the_file(tmp_path: Path) -> None:
    secret = "planted-vpn-key"
    # There is no K3s to be asked which settings it takes.
    absent = {"stat": {"exists": False}}
    ran = run(tmp_path, SERVERS[:1], k3s_server_config={"vpn-auth": secret}, __k3s_installed=absent)
    files = written(tmp_path, SERVERS[0])
    assert "not shown" in files[CONFIG]
    assert secret not in ran.stdout + str(files)


def test_two_servers_are_refused(tmp_path: Path) -> None:
    ran = run(tmp_path, SERVERS[:2])
    assert "[server] has 2 boards; it must have one, or an odd number" in ran.said
    assert not list(tmp_path.glob("jetson-*.json"))
