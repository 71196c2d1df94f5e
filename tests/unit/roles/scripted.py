# SPDX-License-Identifier: Apache-2.0
"""Plays on scripted boards: real playbooks and roles, and all modules that ran on each board, in order.

The boards are those of tests/hostile, and honest: a cluster of three amd64 boards with an older K3s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs import CHECKOUT
from tests.hostile.site import calls, make_bundle
from tests.unit.roles.places import Data
from tests.unit.roles.playing import Run, play, write_inventory

SERVER, AGENT, OTHER_AGENT = BOARDS = ("jetson-1", "jetson-2", "jetson-3")
CLUSTER = {"server": [SERVER], "agent": [AGENT, OTHER_AGENT], "k3s_cluster": BOARDS}
HOSTILE = CHECKOUT / "tests/hostile/connection_plugins"
# A play with the facts of its boards and of the bundle, as a playbook has them after preflight.
BEGIN = """\
- hosts: k3s_cluster
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.jetson_facts}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: bundle}
    - ansible.builtin.set_fact:
        preflight_node: "{{ inventory_hostname }}"
        preflight_server: "{{ groups.server[0] }}"
"""


@dataclass(frozen=True)
class Call:
    """A module that a board has run."""

    board: str
    module: str
    arguments: Data

    @property
    def changes(self) -> bool:
        """Whether the module may change something."""
        return not self.arguments.get("_ansible_check_mode")

    def has(self, **arguments: Any) -> bool:
        """Whether the module was called with these arguments, among others."""
        return all(self.arguments.get(name) == value for name, value in arguments.items())


class Calls(list[Call]):
    """What ran on the boards, in order."""

    def of(self, module: str, board: str = "", **arguments: Any) -> Calls:
        """Calls of a module, on one board, and with some arguments."""
        return Calls(
            call
            for call in self
            if call.module == module and board in ("", call.board) and call.has(**arguments)
        )

    @property
    def boards(self) -> list[str]:
        return [call.board for call in self]


def play_scripted(
    directory: Path,
    playbook: str | Path,
    *arguments: str,
    answers: Mapping[str, Mapping[str, Data]] | None = None,
    groups: Mapping[str, Iterable[str]] = CLUSTER,
    fails: bool = False,
    environment: Mapping[str, str] | None = None,
    **variables: Any,
) -> tuple[Run, Calls]:
    """Run a playbook, or one with this text, which has to succeed, or to fail.

    `answers` are those of a board by `MODULE` or `MODULE TEXT`, a text in the arguments. They go over the
    honest ones (tests/hostile/answers.py).
    The bundle and what comes to the controller are below the directory.
    """
    bundle, boards = directory / "bundle", directory / "boards"
    sums = directory / "sums.json"
    if not bundle.exists():
        sums.write_text(json.dumps(make_bundle(bundle)))
    place = boards / str(len(list(boards.glob("*"))))
    (place / "uploads").mkdir(parents=True)
    if isinstance(playbook, str):
        (directory / "play.yml").write_text(playbook)
        playbook = directory / "play.yml"
    given = {"jetson_k3s_bundle": str(bundle), "gpu_verify_reports": str(directory / "reports")} | variables
    (directory / "variables.json").write_text(json.dumps(given))
    others = [
        {"boards": [board], "module": key.partition(" ")[0], "text": key.partition(" ")[2], "answer": answer}
        for board, by_module in (answers or {}).items()
        for key, answer in by_module.items()
    ]
    inventory = write_inventory(
        directory,
        groups,
        ansible_connection="scripted",
        ansible_python_interpreter="/usr/bin/python3",
    )
    run = play(
        inventory,
        playbook,
        f"--extra-vars=@{directory}/variables.json",
        *arguments,
        ANSIBLE_CONNECTION_PLUGINS=str(HOSTILE),
        PYTHONPATH=str(CHECKOUT),
        SCRIPTED_BOARDS=str(place),
        SCRIPTED_ATTACKS="{}",
        SCRIPTED_SUMS=sums.read_text(),
        SCRIPTED_ANSWERS=json.dumps(others),
        XDG_STATE_HOME=str(directory / "state"),
        **(environment or {}),
    )
    assert (run.returncode != 0) is fails, run.stdout
    ran = Calls(Call(*one) for one in calls(place))
    unasked = {other["module"] for other in others} - {call.module for call in ran}
    assert not unasked, f"no task of this run uses {unasked}"
    return run, ran
