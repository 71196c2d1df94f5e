# SPDX-License-Identifier: Apache-2.0
"""Run a playbook against a lab, or a command in a checkout, as its user would."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ansible_core import OWN, core
from tests.following import Process, follow
from tests.lab import lab_dir
from tests.reports.schema import validate
from tools.cache import CHECKOUT

RECAP = re.compile(r"^(\S+)\s*: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
# The slowest playbook of the tests on container boards, on a busy two-core machine.
TIMEOUT_SECONDS = 900
# The slowest other command, all Molecule scenarios, on a busy machine. Shorter than the limit of a test.
COMMAND_SECONDS = 3400


@dataclass(frozen=True)
class Recap:
    """The last line about one host."""

    ok: int
    changed: int
    unreachable: int
    failed: int


@dataclass(frozen=True)
class PlaybookRun:
    returncode: int
    output: str
    failed_checks: str = ""
    """Of the verification, from the reports: boards are gone when a failed test is read."""
    logged: str = ""
    """Ansible's own output, if `output` is the screen of a user."""

    @property
    def recap(self) -> dict[str, Recap]:
        """What happened on each board. On localhost the variables are checked and nothing else."""
        hosts = {match[1]: Recap(*map(int, match.groups()[1:])) for match in RECAP.finditer(self.output)}
        return {host: recap for host, recap in hosts.items() if host != "localhost"}

    @property
    def why(self) -> str:
        """What failed and in which task, then all of the output: a log that is cut short names the cause."""
        found, task, failed = [], "", False
        for line in (self.logged or self.output).splitlines():
            if line.startswith(("TASK [", "RUNNING HANDLER [")):
                task = line.rstrip("* ")
            failed = line.startswith(("fatal: ", "failed: ", "[ERROR]")) or (failed and line.startswith(" "))
            if failed:
                found.append(line if line.startswith(" ") else f"{task}\n{line}")
        return "\n".join([f"status {self.returncode}", *found, self.failed_checks, self.output])

    def checked(self) -> "PlaybookRun":
        """Return the run, which has to have succeeded; AssertionError with what failed."""
        assert self.returncode == 0, self.why
        return self

    def unchanged(self) -> "PlaybookRun":
        """Return the run, which has to have succeeded and to have changed nothing on any board."""
        assert {recap.changed for recap in self.checked().recap.values()} == {0}, self.output
        return self


def cluster_status(lab: str, directory: Path) -> dict[str, Any]:
    """What status.yml says of a lab's cluster, by a file in `directory`; it must have changed nothing."""
    file = directory / "status.json"
    run = run_playbook(lab, "status.yml", f"--extra-vars=gpu_status_file={file}").unchanged()
    found: dict[str, Any] = json.loads(file.read_text())
    assert all(node["name"] in run.output for node in found["nodes"])
    return found


def reports_dir(lab: str) -> Path:
    """Where the reports of a lab's boards go: boards of labs that run at the same time share names."""
    return lab_dir(lab) / "reports"


def state_home(lab: str) -> Path:
    return lab_dir(lab) / "state"


def run_playbook(
    lab: str,
    playbook: str,
    *arguments: str,
    inventory: Path | None = None,
    on_line: Callable[[str], object] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    screen: bool = False,
    checkout: Path | None = None,
    release: str = OWN,
) -> PlaybookRun:
    """Run `playbooks/<playbook>` on the boards of `lab`; further arguments are ansible-playbook's.

    With `screen` the output is what a user sees, and else Ansible's own. `checkout` is one of another
    revision, which has an environment of its own. `release` is that of ansible-core.

    `on_line` gets each line of output when it is written, so that something can happen in the middle. Where
    it says True the run is killed.
    The boards' reports are compared with their published schema.
    """
    begun = time.time()
    ansible = core(release)
    logs = lab_dir(lab) / "logs"

    def read(line: str, process: Process) -> None:
        if on_line is not None and on_line(line) is True:
            process.kill()

    ran = follow(
        [
            *([checkout / ".venv/bin/ansible-playbook"] if checkout else ansible.program("playbook")),
            f"--inventory={inventory or lab_dir(lab) / 'inventory.ini'}",
            f"playbooks/{playbook}",
            f"--extra-vars=gpu_verify_reports={reports_dir(lab)}",
            # 0.1.0 refuses this variable.
            *([] if checkout else [f"--extra-vars=k3s_backup_directory={lab_dir(lab) / 'backups'}"]),
            *arguments,
        ],
        checkout or CHECKOUT,
        {
            **{name: value for name, value in os.environ.items() if not checkout or name != "PYTHONPATH"},
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "XDG_STATE_HOME": str(state_home(lab)),  # the record of backups
            "JETSON_K3S_LOG_DIRECTORY": str(logs),
            **({"PYTHONPATH": ansible.pythonpath()} if release != OWN else {}),
            **({"ANSIBLE_STDOUT_CALLBACK": "jetson_k3s.cluster.progress"} if screen else {}),
        },
        seconds=timeout_seconds,
        on_line=read,
    )
    failed = []
    for report in set(reports_dir(lab).glob("*.json")) - {reports_dir(lab) / "index.json"}:
        found = json.loads(report.read_text())
        validate(found)
        if report.stat().st_mtime >= begun:
            failed += [check for check in found["checks"] if check["status"] in ("failed", "error")]
    shown = [f"{check['id']}: {json.dumps(check, indent=1)}" for check in failed]
    logged = "".join(path.read_text() for path in logs.glob("*.log") if path.stat().st_mtime >= begun)
    return PlaybookRun(ran.returncode, ran.output, "\n".join(shown), logged)


def run_here(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; stdout has both of its streams."""
    return run_in(CHECKOUT, os.environ | environment, *argv)


def run_in(
    directory: Path, environment: Mapping[str, str], *argv: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a command in another directory, with these variables alone."""
    return subprocess.run(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
