# SPDX-License-Identifier: Apache-2.0
"""The files that the role k3s writes on boards, and the secrets in them, which it does not show."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import load
from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.preflight_facts import GOOD
from tests.unit.roles.test_k3s_registries import HEADER, PASSWORD, REGISTRIES

PLAYBOOK = """\
- hosts: server,agent
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: preflight, tasks_from: inventory.yml}
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: configure.yml}
    - ansible.builtin.copy:
        content: "{{ __k3s_configured | to_json }}"
        dest: "{{ there }}/{{ inventory_hostname }}.json"
        mode: "0600"
      check_mode: false
      diff: false
"""
UNIT = {"installed": True, "active": False, "enabled": True, "command": None}
K3S: dict[str, Any] = {
    "server": UNIT,
    "agent": UNIT,
    "kubectl": "/usr/bin/kubectl",
    "version": None,
    "node_ip": {"owner": [], "role": None},
    "certificates": {"files": [], "started": None, "valid_days": 365},
}


def configure(
    there: Path,
    *arguments: str,
    groups: Mapping[str, Iterable[str]] | None = None,
    written_by: str | None = None,
    fails: bool = False,
    network: dict[str, Any] = GOOD["network"],
    **variables: Any,
) -> Run:
    """Run the role's configuration of boards that are this machine, each with files of its own."""
    given = {
        "facts": {
            "hostname": "{{ inventory_hostname }}",
            "arch": "aarch64",
            "network": network,
            "k3s": K3S | {"registries": written_by},
        },
        "there": str(there),
        "k3s_version": "v1.33.5+k3s1",
        "k3s_container_runtime": "containerd",
        "__k3s_files": [],
        "__k3s_config_path": f"{there}/{{{{ inventory_hostname }}}}.yaml",
        "__k3s_registries_path": str(there / "registries.yaml"),
        "__k3s_marker": str(there / "run/restart"),
    }
    return play_text(there, PLAYBOOK, *arguments, groups=groups, variables=given | variables, fails=fails)


def result(there: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((there / "localhost.json").read_text())
    return answer


def test_registries_are_for_root_alone_and_not_shown(tmp_path: Path) -> None:
    ran = configure(tmp_path, "--diff", "-vvv", k3s_registries=REGISTRIES)
    file, found = tmp_path / "registries.yaml", result(tmp_path)
    assert yaml.safe_load(file.read_text()) == REGISTRIES
    assert file.read_text().startswith(HEADER)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (found["changed"], found["restart_due"]) == (True, True)
    assert (tmp_path / "run/restart").exists()
    assert f"{file} (mode 0600)" in ran.stdout
    assert PASSWORD not in ran.stdout + json.dumps(found)
    configure(tmp_path, k3s_registries=REGISTRIES, written_by="role")
    assert result(tmp_path)["changed"] is False


@pytest.mark.parametrize(("written_by", "stays"), [("role", False), ("owner", True)])
def test_registries_are_removed_with_the_variable_if_the_role_wrote_them(
    tmp_path: Path, written_by: str, stays: bool
) -> None:
    file = tmp_path / "registries.yaml"
    file.write_text(f"configs: {{a: {{auth: {{password: {PASSWORD}}}}}}}\n")
    ran = configure(tmp_path, "--diff", "-vvv", written_by=written_by)
    assert file.exists() is stays
    assert (str(file) in result(tmp_path)["paths"]) is not stays
    assert PASSWORD not in ran.stdout + json.dumps(result(tmp_path))


def test_boards_join_the_first_server_by_its_address(tmp_path: Path) -> None:
    boards: list[dict[str, dict[str, Any]]] = [
        {f"jetson-{number}": {"ansible_host": f"fd00::{number}"}} for number in range(1, 5)
    ]
    boards[3]["jetson-4"]["k3s_board_config"] = {"node-ip": "fd00::14", "kubelet-arg": ["v=4"]}
    groups = {"server": boards[0] | boards[1] | boards[2], "agent": boards[3]}
    k3s = tmp_path / "k3s"
    k3s.write_text(
        "#!/bin/sh\necho '   --vpn-auth value  (agent/networking) Credentials for the VPN provider\n"
        "   --kubelet-arg value  (agent/flags) Customized flag for kubelet process\n"
        "   --node-ip value, -i value  (agent/networking) IPv4/IPv6 addresses to advertise for node'\n"
    )
    k3s.chmod(0o755)
    settings: dict[str, Any] = {
        "k3s_agent_config": {"vpn-auth": "planted-vpn-key", "kubelet-arg": ["v=2"]},
        "__k3s_binary": str(k3s),
    }
    ran = configure(tmp_path, "--diff", groups=groups, **settings)
    files = [yaml.safe_load((tmp_path / f"{name}.yaml").read_text()) for one in boards for name in one]
    first, other, _, agent = files
    assert (first["cluster-init"], first["tls-san"], "server" in first) == (True, ["fd00::1"], False)
    assert (other["server"], other["tls-san"]) == ("https://[fd00::1]:6443", ["fd00::2"])
    assert (agent["server"], "tls-san" in agent) == ("https://[fd00::1]:6443", False)
    assert "cluster-init: true" in ran.stdout
    # Another setting of the inventory is a secret, so the file is not shown.
    assert agent["vpn-auth"] == "planted-vpn-key"
    # The board's own settings leave those of its group, but for a key that both have.
    assert (agent["node-ip"], agent["kubelet-arg"][0]) == ("fd00::14", "v=4")
    assert "planted-vpn-key" not in ran.stdout


def test_address_that_the_role_chooses_is_known_from_the_inventorys(tmp_path: Path) -> None:
    lan = {"device": "eth0", "address": "192.168.1.12/24"}
    network = {"addresses": [lan], "routes": [], "towards_server": "192.168.1.12"}
    # The server runs already, and keeps its address.
    configure(tmp_path, network=network, groups={"server": ["a"], "agent": ["b"]})
    first, agent = ((tmp_path / f"{name}.yaml").read_text() for name in "ab")
    assert "node-ip" not in yaml.safe_load(first)
    written = yaml.safe_load(agent)
    assert (written["node-ip"], written["flannel-iface"]) == ("192.168.1.12", "eth0")
    facts, root = load("jetson_facts/module_utils/jetson_network.py"), tmp_path / "root"
    file = root / (facts.DIRECTORY + facts.ROLE_CONFIG)
    file.parent.mkdir(parents=True)
    file.write_text(agent)
    found = facts.node_ip(str(root), {facts.ROLE_CONFIG: agent}, {}, None)
    assert found == {"owner": [], "role": "192.168.1.12"}


def test_two_servers_are_refused(tmp_path: Path) -> None:
    ran = configure(tmp_path, groups={"server": ["a", "b"]}, fails=True)
    assert "[server] has 2 boards; it must have one, or an odd number" in ran.said
