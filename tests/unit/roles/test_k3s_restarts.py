# SPDX-License-Identifier: Apache-2.0
"""A changed configuration restarts a fleet's K3s in batches; a first start waits for nobody.

Ansible runs the role's task with a systemctl that only counts.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.playing import play

AT_ONCE = int(yaml.safe_load((CHECKOUT / "roles/k3s/vars/main.yml").read_text())["__k3s_restarts_at_once"])
BOARDS = AT_ONCE + 3
# Who starts waits for all the others to begin, but not for ever.
SYSTEMCTL = """#!{python}
import pathlib, sys, time
log = pathlib.Path({log!r})
def say(word):
    with log.open("a") as file:
        file.write(word + "\\n")
if "show" in sys.argv:
    print("LoadState=loaded\\nActiveState={state}\\nUnitFileState=enabled")
elif sys.argv[1] in ("start", "restart"):
    say("begins")
    end = time.monotonic() + {patience}
    while time.monotonic() < end and log.read_text().count("begins") < {boards}:
        time.sleep(0.05)
    say("ends")
elif sys.argv[1] == "is-enabled":
    print("enabled")
"""
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  become: false
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ facts }}", cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: service.yml}
"""


def most_at_once(directory: Path, *, active: bool, patience_seconds: float) -> int:
    """Start K3s on all boards, and give how many were at it at the same time."""
    log, systemctl = directory / "log", directory / "systemctl"
    log.touch()
    state = "active" if active else "inactive"
    settings = {"log": str(log), "state": state, "boards": BOARDS, "patience": patience_seconds}
    systemctl.write_text(SYSTEMCTL.format(python=sys.executable, **settings))
    systemctl.chmod(0o755)
    unit = {"installed": True, "active": active, "enabled": True, "command": None}
    certificates: dict[str, Any] = {"files": [], "started": None, "valid_days": 365}
    variables: dict[str, Any] = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "facts": {"k3s": {"server": unit, "agent": unit, "version": None, "certificates": certificates}},
        "__k3s_configured": {"restart_due": active},
        "k3s_server_host": "jetson-0",
        "__k3s_marker": str(directory / "marker"),
    }
    boards = {f"jetson-{number}": None for number in range(BOARDS)}
    inventory = {"all": {"children": {"agent": {"hosts": boards}, "server": {}}, "vars": variables}}
    (directory / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (directory / "play.yml").write_text(PLAYBOOK)
    ran = play(directory / "inventory.yml", directory / "play.yml", PATH=f"{directory}:/usr/bin:/bin")
    assert ran.returncode == 0, ran.stdout
    now = most = 0
    for line in log.read_text().splitlines():
        now += 1 if line == "begins" else -1
        most = max(most, now)
    assert now == 0
    return most


def test_a_running_fleet_starts_again_in_batches(tmp_path: Path) -> None:
    assert most_at_once(tmp_path, active=True, patience_seconds=10) == AT_ONCE


def test_a_first_start_waits_for_nobody(tmp_path: Path) -> None:
    assert most_at_once(tmp_path, active=False, patience_seconds=100) == BOARDS
