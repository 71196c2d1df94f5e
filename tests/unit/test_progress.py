# SPDX-License-Identifier: Apache-2.0
"""What a run shows: a line for each step, messages, failures with their reason, a line for each board."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_python
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.progress import Step, block, message

from tests.ansible_core import CORES, OWN, core
from tests.docs import CHECKOUT
from tests.terminal import CLOCK, COLOUR, Terminal

INVENTORY = """\
[boards]
a
b
[boards:vars]
ansible_connection=local
ansible_python_interpreter={python}
"""
PLAYBOOK = """\
- name: Check the boards
  hosts: boards
  gather_facts: false
  tasks:
    - {name: Gather the facts of the board, ansible.builtin.command: "true", changed_when: false}
    - {name: Show the warnings, ansible.builtin.debug: {msg: Both boards have little memory.}}
- name: Plan
  hosts: boards
  gather_facts: false
  tasks:
    - {name: Plan, ansible.builtin.set_fact: {planned: true}}
- name: Prepare Docker
  hosts: boards
  gather_facts: false
  tasks:
    - name: Write daemon.json
      ansible.builtin.copy: {content: x, dest: "{{ playbook_dir }}/{{ inventory_hostname }}"}
    - name: Start Docker
      block:
        - {name: Ensure Docker runs, ansible.builtin.command: "false"}
      rescue:
        - name: Explain the failure with the journal
          ansible.builtin.fail:
            msg: >-
              {{ inventory_hostname }}: Docker does not start: the disk is full.
              Delete what is not needed, and run it again.
          when: inventory_hostname == 'b'
    - {name: May fail, ansible.builtin.command: "false", ignore_errors: true, changed_when: false}
- name: Install K3s
  hosts: boards
  gather_facts: false
  tasks:
    - name: Try each
      ansible.builtin.command: sh -c '{{ item }}'
      loop: ["true", "echo no space left >&2; exit 3"]
      changed_when: false
"""
# Of the playbook, as a program reads it.
FAILED = [
    "T  Check the boards: a, b ok",
    "      Both boards have little memory.",
    "      FAILED b: Explain the failure with the journal (Prepare Docker)",
    "        b: Docker does not start: the disk is full. Delete what is not needed, and run it again.",
    "T  Prepare Docker: a 1 change, b FAILED",
    "      FAILED a: Try each (Install K3s)",
    "        no space left",
    "T  Install K3s: a FAILED",
    "a  : ok=5  changed=1  unreachable=0  failed=1",
    "b  : ok=4  changed=1  unreachable=0  failed=1",
    "FAILED on a, b of 2 boards, in T min.",
]


def command(directory: Path, *arguments: str, line: str = OWN, playbook: str = PLAYBOOK) -> list[str]:
    (directory / "inventory").write_text(INVENTORY.format(python=sys.executable))
    (directory / "play.yml").write_text(playbook)
    program = core(line).program("playbook")
    return [*program, "--inventory", str(directory / "inventory"), *arguments, str(directory / "play.yml")]


def environment(directory: Path, line: str = OWN, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "ANSIBLE_STDOUT_CALLBACK"}
    path = core(line).pythonpath(os.environ.get("PYTHONPATH", ""))
    own = {"JETSON_K3S_LOG_DIRECTORY": str(directory / "logs"), "PYTHONPATH": path, "TERM": "xterm"}
    return kept | {"ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")} | own | more


def piped(directory: Path, *arguments: str, line: str = OWN, playbook: str = PLAYBOOK) -> list[str]:
    """The lines that a program reads, without their times and without the first one."""
    ran = subprocess.run(
        command(directory, *arguments, line=line, playbook=playbook),
        cwd=CHECKOUT,
        env=environment(directory, line),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert "\x1b" not in ran.stdout and "\r" not in ran.stdout
    return [CLOCK.sub("T", one) for one in ran.stdout.splitlines()]


@pytest.mark.parametrize("line", CORES)
def test_run_has_a_line_for_each_step_and_board_and_each_failure_once(tmp_path: Path, line: str) -> None:
    where, *lines = piped(tmp_path, line=line)
    assert lines == FAILED
    log = Path(where.removeprefix("play.yml. Ansible's own output is in "))
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    text = log.read_text()
    assert "TASK [Ensure Docker runs]" in text and "fatal: [b]: FAILED! =>" in text and "PLAY RECAP" in text


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_shows_what_runs_and_keeps_the_same_lines(tmp_path: Path, no_color: str) -> None:
    terminal = Terminal(
        command(tmp_path), environment(tmp_path, **({"NO_COLOR": no_color} if no_color else {}))
    )
    terminal.until("")
    assert "Check the boards: Gather the facts of the board (a, b)" in terminal.written
    assert bool(COLOUR.search(terminal.written)) is not bool(no_color)
    wrapped = [
        "        b: Docker does not start: the disk is full. Delete what is not needed,",
        "        and run it again.",
    ]
    assert terminal.screen[-12:] == [*FAILED[:3], *wrapped, *FAILED[4:]]
    assert max(map(len, terminal.screen[-12:])) <= 80


def test_check_mode_says_what_would_change_and_that_nothing_was(tmp_path: Path) -> None:
    lines = piped(tmp_path, "--check", "--limit=a", playbook=PLAYBOOK.replace('"false"', '"true"'))
    assert "T  Prepare Docker: a 1 change" in lines
    assert "      a would change: Write daemon.json" in lines
    assert lines[-1] == "1 board checked, 1 change to make, in T min. Check mode: nothing was changed."
    assert not (tmp_path / "a").exists()


def test_verbose_run_has_ansibles_own_output_on_the_screen(tmp_path: Path) -> None:
    lines = piped(tmp_path, "-v", "--limit=a")
    assert any(one.startswith("TASK [Write daemon.json]") for one in lines)
    assert not (tmp_path / "logs").exists()


WARNS = """\
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({})
module.warn("The disk of the board is\\nnearly full. " + "Delete what is not needed. " * 4)
module.exit_json()
"""
WITH_WARNINGS = """\
- name: Prepare Docker
  hosts: boards
  gather_facts: false
  tasks:
    - {name: Warn, warns: {}}
    - name: Write a line
      ansible.builtin.lineinfile:
        path: "{{ playbook_dir }}/lines"
        line: "{{ inventory_hostname }}"
        create: true
      throttle: 1
"""


@pytest.mark.parametrize("line", CORES)
def test_warning_is_one_line_and_a_fresh_home_is_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library/warns.py").write_text(WARNS)
    (tmp_path / "home").mkdir()
    fresh = {"HOME": str(tmp_path / "home"), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "controller")}
    terminal = Terminal(
        command(tmp_path, line=line, playbook=WITH_WARNINGS),
        environment(tmp_path, line, COLUMNS="80", **fresh),
    )
    terminal.until("")
    warnings = [one for one in terminal.screen if "WARNING" in one]
    assert warnings == ["[WARNING]: The disk of the board is nearly full. Delete what is not needed. ..."]
    assert terminal.screen[-4].startswith("T  Prepare Docker: a 1 change, b 1 change")
    assert list((tmp_path / "home").glob("ansible-*")) == []
    (log,) = (tmp_path / "logs").iterdir()
    assert f"nearly full. {'Delete what is not needed. ' * 4}".strip() in log.read_text()


def test_run_goes_on_where_no_log_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    where, *lines = piped(tmp_path)
    assert re.fullmatch(r"play.yml. Ansible's own output is in no file: .*File exists: .*logs'", where)
    assert lines == FAILED


@pytest.mark.parametrize(
    ("caller", "said"),
    [({}, ["[ERROR]: User interrupted execution"]), ({"JETSON_K3S_SAYS_INTERRUPTED": "1"}, [""])],
    ids=["alone", "by install.sh"],
)
def test_interruption_is_one_line(tmp_path: Path, caller: dict[str, str], said: list[str]) -> None:
    slow = PLAYBOOK.replace('ansible.builtin.command: "true"', "ansible.builtin.command: sleep 60")
    terminal = Terminal(command(tmp_path, playbook=slow), environment(tmp_path) | caller)
    terminal.until("Gather the facts of the board (a, b)")
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.until("")
    assert terminal.process.returncode != 0
    assert terminal.screen[1:] == said


def test_action_of_an_interruption_is_the_same_after_a_fork() -> None:
    """After the first Ctrl-C Ansible sets the default action, which ends the run at the second one."""
    program = """
import os, signal
from ansible_collections.jetson_k3s.cluster.plugins.callback.progress import Interruption
signal.signal(signal.SIGINT, signal.SIG_DFL)
Interruption()
if os.fork() == 0:
    os._exit(0)
os.wait()
print(signal.getsignal(signal.SIGINT) == signal.SIG_DFL)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(CHECKOUT / ".collections")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ran.stdout == "True\n"


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "notes.txt").write_text("of the user")
    for number in range(60):
        path = logs / f"site-20260101-0000{number:02d}-1.log"
        path.touch()
        os.utime(path, (number, number))
    piped(tmp_path, "--list-hosts")
    assert len(list(logs.iterdir())) == 61, "nothing runs"
    piped(tmp_path, "--limit=a")
    assert sorted(path.name for path in logs.glob("site-*"))[0] == "site-20260101-000011-1.log"
    assert len(list(logs.glob("*.log"))) == 50 and (logs / "notes.txt").exists()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "K3s did not start.\nIts journal:\n  x"}, "K3s did not start.\nIts journal:\n  x"),
        ({"msg": ["one", "two"]}, "one\ntwo"),
        ({"msg": "non-zero return code", "stderr": "E: no space\n"}, "E: no space"),
        ({"msg": "non-zero return code", "stderr": "", "stdout": "why"}, "why"),
        ({"msg": "The command exited with a non-zero return code.", "stderr": "why"}, "why"),
        ({"msg": "MODULE FAILURE", "module_stderr": "\n".join("123456789")}, "\n".join("23456789")),
        ({}, "no reason given"),
        ({"censored": "hidden", "msg": "x"}, "its output is hidden, because it may have a secret (no_log)"),
        (
            {
                "msg": "One or more items failed",
                "results": [{"failed": True, "msg": "x"}] * 2 + [{"msg": "y"}],
            },
            "x",
        ),
        # As in ansible-core 2.21.
        (
            {
                "msg": "One or more items failed",
                "results": [
                    {"msg": "x", "exception": "(traceback unavailable)"},
                    {"msg": "y", "failed_when_result": True, "exception": "(traceback unavailable)"},
                    {"msg": "z", "failed_when_result": False, "exception": "(traceback unavailable)"},
                    {"msg": ""},
                ],
            },
            "x\ny",
        ),
    ],
)
def test_message_of_a_failure(result: Mapping[str, object], text: str) -> None:
    assert message(result) == text


@pytest.mark.parametrize(
    "said",
    [
        "ansible-core requires a minimum of Python version 3.8. Current version: 3.6.9 (default)",
        "Ansible requires Python 3.9 or newer on the target. Current version: 3.8.10",
    ],
)
def test_python_that_is_too_old_is_explained_once_in_every_playbook(said: str) -> None:
    text = message({"msg": said})
    assert text.splitlines() == [said, board_python.OTHER]
    assert (
        message({"msg": f"cannot gather facts: {said} {board_python.OTHER}"}).count(board_python.OTHER) == 1
    )


def test_line_of_many_boards_has_numbers() -> None:
    step = Step("Join the agents", 10.0, {f"jetson-{n}": ["x"] * (n % 3) for n in range(20)}, {"jetson-19"})
    line = step.line(95.0, 80)
    assert line == "1:25  Join the agents: 18 changes on 12 boards, 7 boards ok, 1 FAILED"


def test_long_lines_break_only_on_a_terminal() -> None:
    text = "cause:\n  " + "word " * 30
    assert block(text, None) == "      cause:\n        " + "word " * 30
    assert max(map(len, block(text, 80).splitlines())) <= 80
    assert all(one.startswith("        word") for one in block(text, 80).splitlines()[1:])
