# SPDX-License-Identifier: Apache-2.0
"""The inventory of a lab, for `ansible-playbook -i`: the first board is the server, the others are agents.

Tests of several servers render one of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import k3s, lab_dir, ssh
from tests.lab.board import Board
from tests.lab.images import USER
from tests.lab.vm.machine import Machine

# A Unix socket's path has 107 bytes, of which ssh and Ansible use some 30 for the name.
LONGEST_SOCKET_DIRECTORY = 75


def bundle_path(lab: str) -> Path:
    return lab_dir(lab) / "bundle"


def control_directory(lab: str) -> Path:
    """Return the directory of the sockets of ssh connections that Ansible keeps open."""
    return lab_dir(lab) / "cp"


def render(lab: str, boards: Sequence[Board | Machine], servers: int = 1) -> str:
    hosts = [
        " ".join([board.name, *_assignments({"ansible_host": board.address, **board.variables})])
        for board in boards
    ]
    variables = {
        "ansible_user": USER,
        "ansible_ssh_private_key_file": f'"{ssh.key_path(lab)}"',
        "ansible_ssh_common_args": f"'{ssh.common_args(lab)}'",
        "jetson_k3s_bundle": f'"{bundle_path(lab)}"',
    }
    if len(str(control_directory(lab))) <= LONGEST_SOCKET_DIRECTORY:
        variables["ansible_control_path_dir"] = f'"{control_directory(lab)}"'
    lines = [
        f"# Virtual boards of the lab {lab!r}, written by `python -m tests.lab up`.",
        "[server]",
        *hosts[:servers],
        "",
        "[agent]",
        *hosts[servers:],
        "",
        "[k3s_cluster:children]",
        "server",
        "agent",
        "",
        "[k3s_cluster:vars]",
        *_assignments(variables),
        "",
        "[server:vars]",
        *_assignments({"k3s_server_config": k3s.SERVER_SETTINGS}),
    ]
    return "".join(f"{line}\n" for line in lines)


def _assignments(variables: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def write(lab: str, boards: Sequence[Board | Machine]) -> Path:
    path = lab_dir(lab) / "inventory.ini"
    path.write_text(render(lab, boards))
    return path
