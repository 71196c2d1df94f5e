# SPDX-License-Identifier: Apache-2.0
"""Three servers and an agent as directories of this machine, and the plays of restore.yml over them.

Roles k3s_backup, run_lock and rollout are real, with their modules. SIMULATED: systemd and K3s are scripts,
and what other roles do to a board is a line in the log.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_archive

from tests.ansible_core import OWN, core
from tests.docs import CHECKOUT
from tests.unit.roles.places import ROLES, stub_collection
from tests.unit.roles.preflight_facts import WITHOUT_BUNDLE

HERE = Path(__file__).parent
FIRST, SECOND, THIRD = SERVERS = ("s1", "s2", "s3")
AGENT = "a1"
REAL = ("k3s_backup", "rollout", "run_lock", "upload")
MINE, RESTORED = "mine", "of the backup"
TIMEOUT_SECONDS = 600  # 6 s on a machine without other work
PROGRAMS = {
    "systemctl": """\
#!/bin/sh
board=$(dirname "$(dirname "$0")")
case "$*" in
*show*) printf 'LoadState=loaded\\nActiveState=%s\\n' "$(cat "$board/active")"; exit ;;
*is-active*) cat "$board/active"; grep -qx active "$board/active"; exit ;;
*is-enabled*) echo enabled; exit ;;
esac
echo "$(basename "$board") $*" >> "$board/../log"
case "$*" in
*stop*) echo inactive > "$board/active" ;;
*start*) if [ -e "$board/broken" ]; then exit 1; fi; echo active > "$board/active" ;;
esac
""",
    "k3s": """\
#!/bin/sh
board=$(dirname "$(dirname "$0")")
echo "$(basename "$board") cluster-reset" >> "$board/../log"
if [ -e "$board/reset-fails" ]; then echo "no such snapshot" >&2; exit 1; fi
snapshot=${3#--cluster-reset-restore-path=}
cat "$snapshot" > "$board/k3s/server/db/state"
""",
}
LOG = "- ansible.builtin.shell: echo '{{{{ inventory_hostname }}}} {0}' >> '{{{{ fleet }}}}/log'\n"
# What the real ones do to the board, by task file; `ping` is the wait for the node.
STUBS = {
    "k3s": {
        "prepare": LOG.format("prepare"),
        "binary": LOG.format("binary"),
        "restored": LOG.format("configured"),
        "main": "- ansible.builtin.systemd_service: {name: k3s, state: restarted}\n- ansible.builtin.ping:\n",
    },
    "nvidia_docker": {"main": LOG.format("docker")},
    "jetson_facts": {"main": "[]\n"},
}
FACTS = """\
- hosts: k3s_cluster
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        cacheable: true
        jetson:
          k3s:
            server: {installed: true, active: "{{ active }}"}
            agent: {installed: true, active: true}
      vars:
        file: "{{ fleet }}/{{ inventory_hostname }}/active"
        active: "{{ lookup('ansible.builtin.file', file) == 'active' }}"
"""


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    log: list[str]

    @property
    def said(self) -> str:
        return " ".join(self.stdout.split())


class Servers:
    """Directories with K3s' data, and a backup of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.fleet = root, root / "fleet"
        roles = stub_collection(root) / "roles"
        for role in REAL:
            (roles / role).symlink_to(ROLES / role)
        for role, files in STUBS.items():
            tasks = roles / role / "tasks"
            tasks.mkdir(parents=True)
            for name, text in files.items():
                (tasks / f"{name}.yml").write_text("---\n" + text)
        for name in (*SERVERS, AGENT):
            self.board(name)
        self.backup = self.pack()

    def board(self, name: str) -> None:
        board = self.fleet / name
        for directory in ("bin", "k3s/server/tls", "k3s/server/db", "k3s/agent", "uploads"):
            (board / directory).mkdir(parents=True)
        for program, text in PROGRAMS.items():
            (board / "bin" / program).write_text(text)
            (board / "bin" / program).chmod(0o755)
        (board / "k3s/server/db/state").write_text(MINE)
        (board / "k3s/server/tls/server-ca.crt").write_text("ca")
        (board / "k3s/agent/server-ca.crt").write_text("ca")
        (board / "active").write_text("active\n")
        (board / "faults.json").write_text("{}")

    def pack(self, **facts: str) -> Path:
        files = self.root / "files"
        for name, text in {"server/token": "K10secret", "server/db/snapshot": RESTORED}.items():
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).write_text(text)
        manifest = {
            "server": "of-no-board",
            "k3s_version": "v1.33.5+k3s1",
            "datastore": "etcd",
            "created": "2026-01-02T03:04:05Z",
            "ca": hashlib.sha256(b"ca").hexdigest(),
        }
        stream = io.BytesIO()
        k3s_archive.write(stream, str(files), manifest | facts)
        (self.root / "backup.tar.gz").write_bytes(stream.getvalue())
        return self.root / "backup.tar.gz"

    def breaks(self, **faults: dict[str, str]) -> None:
        """By board: {"MODULE CALL": "lost" or a message}."""
        for name, one in faults.items():
            (self.fleet / name / "faults.json").write_text(json.dumps(one))

    def plays(self) -> str:
        """The plays of restore.yml without those of other playbooks, after the facts that preflight sets."""
        plays = yaml.safe_load((CHECKOUT / "playbooks/restore.yml").read_text())
        return FACTS + yaml.safe_dump([one for one in plays if "hosts" in one], sort_keys=False)

    def variables(self) -> dict[str, Any]:
        board = f"{self.fleet}/{{{{ inventory_hostname }}}}"
        return {
            "fleet": str(self.fleet),
            "k3s_backup_file": str(self.backup),
            "k3s_backup_accepted_sha256": hashlib.sha256(self.backup.read_bytes()).hexdigest(),
            "k3s_version": "v1.33.5+k3s1",
            "preflight_bundle_info": WITHOUT_BUNDLE,
            "__k3s_backup_data": f"{board}/k3s",
            "__k3s_backup_record": f"{self.root}/record",
            "__k3s_backup_upload_base": f"{board}/uploads",
            "__k3s_backup_k3s": f"{board}/bin/k3s",
            "__k3s_backup_start_checks": 1,
            "__run_lock_path": f"{board}/lock/lock.json",
            "__run_lock_uploads": f"{board}/uploads",
        }

    def play(self, *arguments: str, line: str = OWN, variables: dict[str, Any] | None = None) -> Ran:
        inventory = {
            "all": {
                "vars": {"ansible_connection": "breakable", "ansible_python_interpreter": sys.executable},
                "children": {
                    "k3s_cluster": {
                        "children": {
                            "server": {"hosts": dict.fromkeys(SERVERS)},
                            "agent": {"hosts": dict.fromkeys([AGENT])},
                        }
                    }
                },
            }
        }
        for name, content in {
            "inventory.yml": inventory,
            "variables.json": self.variables() | (variables or {}),
        }.items():
            (self.root / name).write_text(json.dumps(content))
        (self.root / "plays.yml").write_text(self.plays())
        (self.fleet / "log").write_text("")
        release = core(line)
        environment = {
            "ANSIBLE_CONNECTION_PLUGINS": f"{HERE}/connection_plugins",
            "ANSIBLE_CALLBACK_PLUGINS": f"{CHECKOUT}/playbooks/callback_plugins",
            "ANSIBLE_COLLECTIONS_PATH": str(self.root / "collections"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_BECOME_ASK_PASS": "0",
            "FLEET": str(self.fleet),
            "PYTHONPATH": release.pythonpath(CHECKOUT),
        }
        ran = subprocess.run(
            [
                *(*release.program("playbook"), f"--inventory={self.root}/inventory.yml"),
                *(f"--extra-vars=@{self.root}/variables.json", "--extra-vars={ansible_become: false}"),
                *arguments,
                f"{self.root}/plays.yml",
            ],
            cwd=CHECKOUT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, (self.fleet / "log").read_text().splitlines())

    def state(self, name: str) -> tuple[str, str]:
        """Whether K3s runs, and which data it has there."""
        path = self.fleet / name / "k3s/server/db/state"
        runs = (self.fleet / name / "active").read_text().strip()
        return runs, path.read_text() if path.exists() else "none"

    def states(self) -> dict[str, tuple[str, str]]:
        return {name: self.state(name) for name in SERVERS}

    def left(self) -> list[str]:
        """Locks, uploads and records of unfinished restores."""
        patterns = ("*/lock/lock.json", "*/uploads/**/backup", "*/k3s/restore.json")
        return sorted(str(path.relative_to(self.fleet)) for one in patterns for path in self.fleet.glob(one))

    def heal(self) -> None:
        """What was broken works, and lost boards answer."""
        for name in (*SERVERS, AGENT):
            for path in ("lost", "broken", "reset-fails", "calls.json"):
                (self.fleet / name / path).unlink(missing_ok=True)
            (self.fleet / name / "faults.json").write_text("{}")
