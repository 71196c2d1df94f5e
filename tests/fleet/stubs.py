# SPDX-License-Identifier: Apache-2.0
"""Stubs of the roles that change boards. SIMULATED: a board is a directory, its K3s a file with a version."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.unit.roles.places import ROLES, Data

OLD, NEW = "v1.33.4+k3s1", "v1.33.5+k3s1"
# What orders and stops a fleet.
REAL = ("k3s_upgrade", "rolling_restart", "rollout", "run_lock", "upload")
# Of other roles: entry points that decide, and what they read.
KEPT = {
    "board_reboot": ("*",),
    "gpu_verify": ("reboot.yml",),
    "k3s": ("schedule.yml", "rotate_ca.yml", "rotate_token.yml"),
    "power_mode": ("*",),
    "k3s_reset": ("forget.yml",),
    "preflight": ("server.yml", "node.yml"),
}
READ = ("defaults", "vars")

FACTS = """\
- jetson_k3s.cluster.step: {name: facts}
- ansible.builtin.set_fact:
    cacheable: true
    jetson: >-
      {{ lookup('ansible.builtin.file', fleet ~ '/facts.json') | from_json | combine({
         'hostname': inventory_hostname, 'machine_id': inventory_hostname,
         'k3s': {'version': lookup('ansible.builtin.file', board ~ '/version'),
                 'server': {'installed': serves, 'active': serves},
                 'agent': {'installed': not serves, 'active': not serves}},
         'reboot': {'required': (board ~ '/rebooted') is not exists, 'packages': [], 'kernel': none}
      }, recursive=true) }}
  vars:
    board: "{{ fleet }}/{{ inventory_hostname }}"
    serves: "{{ inventory_hostname in groups['server'] }}"
"""
# A node has the new version once it is verified: before, an upgrade goes back to the old one.
VERIFIED = """\
- name: verified
  jetson_k3s.cluster.step: {name: verified, writes: {version: "{{ __k3s_upgrade_to }}"}}
"""
# Boards have work in site.yml, unless a test says that they are as they should be.
COMPARED = """\
- ansible.builtin.set_fact:
    k3s_work: "{{ [] if inventory_hostname in settled | default([]) else ['K3s does not run'] }}"
"""
# site.yml postpones a restart of a running K3s on the boards of which a test says so.
K3S = """\
- ansible.builtin.set_fact:
    k3s_restart_waits: "{{ __k3s_staged | default(false) | bool and inventory_hostname in pending }}"
- name: k3s
  jetson_k3s.cluster.step: {name: k3s}
  when: not k3s_restart_waits
"""
SERVER = f"""\
- ansible.builtin.import_tasks: server.yml
- ansible.builtin.set_fact:
    nvidia_docker_plan: {{has_work: true}}
    preflight_bundle_info: {{indexed: true, versions: {{}}, files: {{}}}}
    preflight_outcome: {{server_k3s: {OLD}, no_proxy: {{k3s: [], docker: []}}}}
"""
REBOOT: Data = {
    "jetson_k3s.cluster.step": {
        "name": "reboot",
        "with": "{{ __board_reboot_command | split | first }}",
        "writes": {"rebooted": ""},
    },
}
STAGE: Data = {"jetson_k3s.cluster.step": {"name": "{{ __gpu_verify_stage }}"}}
# Boards that are gone: no node of theirs is Ready.
REMAINING = """\
- ansible.builtin.set_fact:
    preflight_server: "{{ __preflight_remaining | first }}"
    preflight_nodes: []
"""
STEPS = {
    "gpu_device_plugin/main": "plugin",
    "gpu_device_plugin/offered": "offered",
    "gpu_verify/checks": "checked",
    "gpu_verify/report": "reported",
    "image_supply/main": "images",
    "k3s/bring": "brought",
    "k3s/close_ca_rotation": "closed",
    "k3s/close_rotation": "closed",
    "k3s/renew_port": "renewed",
    "k3s_backup/before": "backup",
    "nvidia_docker/main": "docker",
    "nvidia_docker/restart": "docker-restart",
    "nvidia_docker/runtime": "runtime",
    "os_update/main": "updated",
}
TASKS = {
    "gpu_device_plugin/build": "[]",
    "gpu_device_plugin/buildable": "[]",
    "gpu_verify/begin": "[]",
    "gpu_verify/main": VERIFIED,
    "jetson_facts/explain": "[]",
    "jetson_facts/main": FACTS,
    "k3s/compare": COMPARED,
    "k3s/check_ca": "- ansible.builtin.set_fact: {k3s_ca_begins: true}",
    "k3s/main": K3S,
    "k3s/node": "[]",
    "k3s/nodes": "[]",
    "os_update/plan": "- ansible.builtin.set_fact: {os_update_planned: {disruptive: true}}",
    "preflight/controller": "[]",
    "preflight/main": SERVER,
    "preflight/remaining": REMAINING,
}


def edit(path: Path, changed: list[Data]) -> None:
    path.write_text(yaml.safe_dump(changed, sort_keys=False))


def replace(path: Path, action: str, step: Data) -> None:
    """Replace the tasks with this action, in blocks as well."""

    def replaced(tasks: list[Data]) -> list[Data]:
        return [
            {key: one[key] for key in ("name", "vars") if key in one} | step
            if action in one
            else one | {part: replaced(one[part]) for part in ("block", "rescue") if part in one}
            for one in tasks
        ]

    edit(path, replaced(yaml.safe_load(path.read_text())))


def write(roles: Path) -> None:
    """Write the roles of a fleet into a directory."""
    for name in REAL:
        (roles / name).symlink_to(ROLES / name)
    for name, patterns in KEPT.items():
        for part in READ:
            if (ROLES / name / part).exists():
                shutil.copytree(ROLES / name / part, roles / name / part)
        (roles / name / "tasks").mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in patterns for path in (ROLES / name / "tasks").glob(pattern)):
            shutil.copy(path, roles / name / "tasks")
    for entry, text in (
        TASKS
        | {
            entry: f"- name: {step}\n  jetson_k3s.cluster.step: {{name: {step}}}"
            for entry, step in STEPS.items()
        }
    ).items():
        role, _, tasks = entry.partition("/")
        (roles / role / "tasks").mkdir(parents=True, exist_ok=True)
        (roles / role / "tasks" / f"{tasks}.yml").write_text(text)
    # The check of etcd's majority stays, all else is a step.
    for name in ("rotate_ca", "rotate_token"):
        path = roles / f"k3s/tasks/{name}.yml"
        edit(
            path,
            [
                *yaml.safe_load(path.read_text())[:1],
                {"name": "rotated", "jetson_k3s.cluster.step": {"name": "rotated"}},
            ],
        )
    # Ansible would reboot this machine.
    replace(roles / "board_reboot/tasks/boot.yml", "ansible.builtin.reboot", REBOOT)
    replace(roles / "gpu_verify/tasks/reboot.yml", "jetson_k3s.cluster.gpu_checks", STAGE)
