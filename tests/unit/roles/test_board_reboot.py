# SPDX-License-Identifier: Apache-2.0
"""Reboots of boards: which need one, and how a run stops. The real playbook runs with stubs of the roles."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import Run, play_text

filters = load("board_reboot/filter_plugins/board_reboot.py")
status = load("gpu_status/filter_plugins/gpu_status_reboots.py")
facts = load("jetson_facts/module_utils/jetson_reboot.py")

NONE = {"required": False, "packages": [], "kernel": None}
KERNEL = {"required": True, "packages": [], "kernel": "5.15.2-tegra"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, NONE),
        ({"run/reboot-required": ""}, NONE | {"required": True}),
        (
            {"run/reboot-required": "", "run/reboot-required.pkgs": "linux-base\nlibc6\nlinux-base\n"},
            {"required": True, "packages": ["libc6", "linux-base"], "kernel": None},
        ),
        ({"lib/modules/5.15.2-tegra/modules.dep": "new"}, KERNEL),
        # It was there when the board started, with the one that runs.
        ({"lib/modules/5.15.2-tegra/modules.dep": "old"}, NONE),
        # DKMS has made a module for it.
        ({"lib/modules/5.15.1-tegra/modules.dep": "new"}, NONE),
    ],
)
def test_board_that_needs_a_reboot_is_known(
    tmp_path: Path, files: dict[str, str], expected: dict[str, Any]
) -> None:
    for name, text in ({"proc/stat": "cpu 1\nbtime 2000\n"} | files).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (3000, 3000) if text == "new" else (1000, 1000))
    assert facts.reboot_facts(str(tmp_path), "5.15.1-tegra") == expected


def test_status_names_boards_that_need_a_reboot_with_the_command() -> None:
    boards = [{"name": name, "reboot": one} for name, one in (("a", None), ("b", NONE), ("c", KERNEL))]
    shown = status.table({"boards": boards})
    assert shown == f"c needs a reboot for kernel 5.15.2-tegra\n{status.ADVICE}"
    assert status.table({"boards": boards[:2]}) == "No board that answered needs a reboot."


@pytest.mark.parametrize(
    ("only_if_required", "lines"),
    [
        (True, ["b: is to reboot (kernel 5.15.2-tegra)", "a: is left alone, no reboot required"]),
        (False, ["a: is to reboot", "b: is to reboot (kernel 5.15.2-tegra)"]),
    ],
)
def test_plan_names_the_boards(only_if_required: bool, lines: list[str]) -> None:
    boards = {"a": {"reboot": NONE}, "b": {"reboot": KERNEL}}
    assert filters.plan(boards, only_if_required, False).splitlines() == lines


def test_board_that_did_not_come_back_is_named_with_the_way_on() -> None:
    progress = {"a": "rebooted", "b": "cordoned", "c": "planned"}
    assert filters.stopped(progress, "b", "Reboot the board: timed out").splitlines() == [
        "b: is not back in service. Reboot the board: timed out",
        "Cordoned until a run has finished with them: b.",
        "Repair the cause, then run the same command with --limit b,c. It goes on from here.",
    ]
    # A single board is not drained.
    assert "Cordoned" not in filters.stopped({"a": "down"}, "a", "timed out")


SCHEDULE = """
- ansible.builtin.shell: echo "{{{{ __k3s_node_state }}}} {{{{ inventory_hostname }}}}" >> '{log}'
- ansible.builtin.fail: {{msg: a bare pod}}
  when: __k3s_node_state == 'drained' and inventory_hostname in undrainable
- ansible.builtin.set_fact: {{k3s_node_scheduled: {{offers: {{}}, capacity: {{}}, cordoned: false}}}}
"""
FACTS = """
- ansible.builtin.set_fact:
    cacheable: true
    jetson:
      k3s: {server: {installed: true}, agent: {installed: true}}
      reboot: {required: true, packages: [], kernel: null}
"""


def run(directory: Path, undrainable: Sequence[str] = ()) -> tuple[Run, list[str]]:
    """Run reboot.yml on three agents and two servers; give the run and the steps of the nodes."""
    log = directory / "log"
    log.touch()
    stubs = {"k3s/tasks/schedule.yml": SCHEDULE.format(log=log), "jetson_facts/tasks/main.yml": FACTS}
    stubs |= {f"run_lock/tasks/{name}.yml": "[]" for name in ("main", "release")}
    stubs |= {f"preflight/tasks/{name}.yml": "[]" for name in ("node", "asked", "controller")}
    stubs |= {f"os_update/tasks/{name}.yml": "[]" for name in ("main", "plan")}
    for path, text in stubs.items():
        file = directory / "roles" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(ROLES / "board_reboot", directory / "roles/board_reboot")
    reboot = directory / "roles/board_reboot/tasks/reboot.yml"
    steps = yaml.safe_load(reboot.read_text())
    steps = [one for one in steps if "ansible.builtin.reboot" not in one]
    reboot.write_text(yaml.safe_dump(steps))
    plays = yaml.safe_load((CHECKOUT / "playbooks/reboot.yml").read_text())[1:]
    ran = play_text(
        directory,
        yaml.safe_dump([one | {"become": False, "gather_facts": False} for one in plays], sort_keys=False),
        groups={"server": "st", "agent": "abc", "k3s_cluster": "stabc"},
        variables={"jetson_k3s_serial": [2, 1], "undrainable": undrainable},
        fails=bool(undrainable),
        ANSIBLE_ROLES_PATH=str(directory / "roles"),
        ANSIBLE_INJECT_FACT_VARS="False",
    )
    return ran, log.read_text().split("\n")[:-1]


def test_agents_come_in_batches_and_the_first_server_last(tmp_path: Path) -> None:
    ran, lines = run(tmp_path)
    drained = [line[-1] for line in lines if line.startswith("drained")]
    assert (set(drained[:2]), drained[2:]) == (set("ab"), ["c", "t", "s"])
    assert "rebooted: s, t, a, b, c" in ran.said


def test_run_stops_at_the_first_failure_and_says_how_to_go_on(tmp_path: Path) -> None:
    ran, lines = run(tmp_path, undrainable=["b"])
    for words in (
        "b: has not rebooted, and takes pods as before.",
        "a bare pod",
        "c: not touched, because this run failed on b (see above).",
        "with --limit s,t,b,c.",
    ):
        assert words in ran.said, ran.stdout
    assert not [line for line in lines if line[-1] in "cst" and line.startswith("drained")]
    assert "schedulable b" in lines
