# SPDX-License-Identifier: Apache-2.0
"""Many light boards on this machine, and the real playbooks over them with the stubs of `stubs`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.ansible_core import LINES as CORES
from tests.ansible_core import OWN, core
from tests.docs import CHECKOUT
from tests.fleet import stubs
from tests.following import Process, follow
from tests.unit.roles.places import stub_collection
from tests.unit.roles.playing import LOCAL, write_inventory
from tests.unit.roles.preflight_facts import with_facts

HERE = Path(__file__).parent
# What makes verify.yml reboot the boards, and what it knows then: on each a pod runs that has the GPU.
REBOOTS = ("--extra-vars=gpu_verify_mode=full", "--extra-vars=gpu_verify_reboot=true")
POD_STARTED = {
    "before_reboot": {"restarts": 0},
    "checks": {},
    "gpu": {},
    "api": "device-plugin",
    "kind": "board",
}
# A run takes 20 to 40 seconds of processor time, most of it Ansible's own for each task and board.
TIMEOUT_SECONDS = 1800
# First the one in which Ansible ignores any_errors_fatal for a failure in a block with an `always` section.
# `make unit` leaves the other ones to `make acceptance`.
LINES = (CORES[0], *(pytest.param(line, marks=pytest.mark.acceptance) for line in CORES[1:]))
BANNER = "RESULT OF THE ROLLOUT"


@dataclass(frozen=True)
class Ran:
    """`steps` are the lines of the log that this run has added."""

    returncode: int
    stdout: str
    steps: list[str]

    @property
    def result(self) -> list[str]:
        """The lines below the banner of the result."""
        _, found, below = self.stdout.partition(BANNER)
        return below.strip("* \n").splitlines() if found else []

    def boards(self, step: str) -> list[str]:
        """The boards on which a step has run, in order."""
        found = (line.removeprefix(f"{step} ") for line in self.steps if line.startswith(f"{step} "))
        return [line.split()[0] for line in found]

    def recap(self, board: str) -> dict[str, int]:
        """Ansible's counts of a board."""
        (line,) = (one for one in self.stdout.splitlines() if one.split(" ")[0] == board and " ok=" in one)
        return {key: int(value) for key, _, value in (word.partition("=") for word in line.split()[2:])}


class Fleet:
    """Servers and agents, which keep their state from run to run."""

    def __init__(self, root: Path, servers: Iterable[str], agents: Iterable[str], line: str = OWN) -> None:
        self.root, self.line = root, line
        collection = stub_collection(root)
        stubs.write(collection / "roles")
        self.actions = collection / "plugins/action"
        for path in (HERE / "action_plugins").glob("*.py"):
            (self.actions / path.name).symlink_to(path)
        self.groups: dict[str, dict[str, Any]] = {
            "server": {name: {} for name in servers},
            "agent": {name: {} for name in agents},
        }
        (root / "log").touch()
        (root / "facts.json").write_text(json.dumps(with_facts()))
        for name in (*servers, *agents):
            (root / name).mkdir()
            (root / name / "version").write_text(stubs.OLD)
            (root / name / f"k3s-{stubs.OLD}").touch()
            (root / name / "k3s").symlink_to(f"k3s-{stubs.OLD}")

    def lock(self, board: str) -> dict[str, Any]:
        """The lock of a board, {} without one."""
        path = self.root / board / "lock/lock.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def locked(self) -> list[str]:
        """The boards that are locked."""
        return sorted(path.parents[1].name for path in self.root.glob("*/lock/lock.json"))

    def command(self, playbook: str, *arguments: str, **variables: Any) -> list[str]:
        """The command of a run."""
        boards = {name: one for group in self.groups.values() for name, one in group.items()}
        board = f"{self.root}/{{{{ inventory_hostname }}}}"
        given: dict[str, Any] = {
            "fleet": str(self.root),
            "pending": [],
            "gpu_verify_reports": str(self.root / "reports"),
            # The locks of other servers are read in a loop, by tasks that are delegated to them.
            "__run_lock_path": f"{self.root}/{{{{ item | default(inventory_hostname) }}}}/lock/lock.json",
            "__run_lock_uploads": str(self.root),
            "__k3s_upgrade_link": f"{board}/k3s",
            "__k3s_upgrade_record": f"{board}/k3s.previous",
            "__k3s_upgrade_to": stubs.NEW,
            "power_mode_nvpmodel": f"{board}/rebooted",
            "gpu_device_plugin_api": "device-plugin",
        }
        rotated = {"open": True, "closed": True, "trusts_replaced": True}
        given |= {"k3s_ca_rotation": rotated, "jetson_k3s_confirm": ["reboot"]}
        (self.root / "variables.json").write_text(json.dumps(given | variables))
        inventory = write_inventory(self.root, self.groups | {"k3s_cluster": boards}, **LOCAL)
        extra = f"--extra-vars=@{self.root}/variables.json"
        program = core(self.line).program("playbook")
        return [
            *program,
            f"--inventory={inventory}",
            extra,
            *arguments,
            str(CHECKOUT / "playbooks" / f"{playbook}.yml"),
        ]

    def environment(self, broken: Mapping[str, str], lost: Mapping[str, str], locks: bool) -> dict[str, str]:
        """The environment of a run."""
        unlocked = self.actions / "run_lock.py"
        unlocked.unlink(missing_ok=True)
        if not locks:
            unlocked.symlink_to(HERE / "unlocked/run_lock.py")
        return {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")} | {
            "ANSIBLE_CONFIG": f"{CHECKOUT}/ansible.cfg",
            "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection_plugins"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_COLLECTIONS_PATH": str(self.root / "collections"),
            "BROKEN": json.dumps(broken),
            "FLEET": str(self.root),
            "LOST": json.dumps(lost),
            "PYTHONPATH": core(self.line).pythonpath(),
        }

    def play(
        self,
        playbook: str,
        *arguments: str,
        broken: Mapping[str, str] = MappingProxyType({}),
        lost: Mapping[str, str] = MappingProxyType({}),
        locks: bool = False,
        on_line: Callable[[str, Process], None] = lambda _line, _process: None,
        **variables: Any,
    ) -> Ran:
        """Run a playbook; `on_line` gets each line of its output, and its process.

        `broken` and `lost` have the step in which a board fails or is lost. Without `locks` none is taken.
        """
        before = len((self.root / "log").read_text().splitlines())
        ran = follow(
            self.command(playbook, *arguments, **variables),
            self.root,
            self.environment(dict(broken), dict(lost), locks),
            seconds=TIMEOUT_SECONDS,
            on_line=on_line,
        )
        steps = (self.root / "log").read_text().splitlines()[before:]
        return Ran(ran.returncode, ran.output, steps)
