# SPDX-License-Identifier: Apache-2.0
"""Runs playbooks and modules on this machine, for the tests that need no board."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.ansible_core import OWN, core
from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, Data

LOCAL = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}


@dataclass(frozen=True)
class Run:
    returncode: int
    stdout: str

    @property
    def said(self) -> str:
        """The output as one line, wherever Ansible has broken it, and without YAML's second apostrophe."""
        return " ".join(self.stdout.split()).replace("''", "'")


def write_inventory(directory: Path, groups: Mapping[str, Iterable[str]], **variables: Any) -> Path:
    """An inventory of boards that are this machine; a group may give variables of each board."""
    children = {
        name: {"hosts": dict(boards) if isinstance(boards, Mapping) else dict.fromkeys(boards)}
        for name, boards in groups.items()
    }
    path = directory / "inventory.yml"
    path.write_text(json.dumps({"all": {"children": children, "vars": LOCAL | variables}}))
    return path


def play(inventory: Path, playbook: str | Path, *arguments: str, line: str = OWN, **environment: str) -> Run:
    return play_in(CHECKOUT, inventory, playbook, *arguments, line=line, **environment)


def play_in(
    directory: Path,
    inventory: Path,
    playbook: str | Path,
    *arguments: str,
    line: str = OWN,
    **environment: str,
) -> Run:
    """Run a playbook as it is typed in this directory, with a release of ansible-core."""
    release = core(line)
    settings = {
        "PYTHONPATH": release.pythonpath(os.environ.get("PYTHONPATH", "")),
        # As in the project's own playbooks: otherwise each task's process loads the filters.
        "ANSIBLE_CALLBACKS_ENABLED": f"{COLLECTION}.preload",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONFIG": f"{CHECKOUT}/ansible.cfg",
    }
    ran = subprocess.run(
        [*release.program("playbook"), f"--inventory={inventory}", *arguments, playbook],
        cwd=directory,
        env=os.environ | settings | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return Run(ran.returncode, ran.stdout)


def play_text(
    directory: Path,
    text: str,
    *arguments: str,
    groups: Mapping[str, Iterable[str]] | None = None,
    variables: Mapping[str, Any] | None = None,
    fails: bool = False,
    line: str = OWN,
    **environment: str,
) -> Run:
    """Run a playbook with this text, by default on a server, which has to succeed, or to fail.

    `variables` are above those of the roles.
    """
    inventory = write_inventory(directory, groups or {"server": ["localhost"]})
    (directory / "play.yml").write_text(text)
    (directory / "variables.json").write_text(json.dumps(variables or {}))
    extra = f"--extra-vars=@{directory}/variables.json"
    run = play(inventory, directory / "play.yml", extra, *arguments, line=line, **environment)
    assert (run.returncode != 0) is fails, run.stdout
    return run


# A module as Ansible starts it on a board. Its line for the board's log is on standard error.
MODULE = """\
import runpy, sys
from ansible.module_utils import basic
basic.AnsibleModule.log = lambda module, text, log_args=None: sys.stderr.write(text)
name = sys.argv.pop()  # a module takes a file that is named there for its arguments
runpy.run_module(name, run_name="__main__")
"""


def run_module(
    module: str, arguments: Mapping[str, Any], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a module by itself; its answer is JSON on standard output."""
    return subprocess.run(
        [sys.executable, "-c", MODULE, f"ansible_collections.{COLLECTION}.plugins.modules.{module}"],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": f"{CHECKOUT}/.collections"} | environment,
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
    )


def answer(module: str, arguments: Mapping[str, Any], **environment: str) -> Data:
    ran = run_module(module, arguments, **environment)
    assert ran.stdout, ran.stderr
    said: Data = json.loads(ran.stdout)
    return said


class EndedError(Exception):
    """A module has given its result."""


def outcome(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, params: Mapping[str, Any], check_mode: bool = False
) -> Data:
    """What a module's main function says, in this process, so that a test can put fakes into it."""

    def end(**result: Any) -> None:
        raise EndedError(result)

    fake = SimpleNamespace(
        params=params,
        check_mode=check_mode,
        exit_json=end,
        fail_json=lambda **result: end(failed=True, **result),
    )
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: fake)
    with pytest.raises(EndedError) as ended:
        module.main()
    result: Data = ended.value.args[0]
    return result
