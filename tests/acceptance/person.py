# SPDX-License-Identifier: Apache-2.0
"""The computer of a person: a checkout, a home and an `ssh` of their own."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import ssh
from tests.lab.images import SUDO_PASSWORD, USER
from tests.release.conftest import copy_files
from tests.terminal import COLUMNS, Terminal

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_KEY = "(yes/no/[fingerprint])? "
YES, NO = "? [Y/n] ", "? [y/N] "
SUDO = "Password of sudo: "


@dataclass(frozen=True)
class Person:
    """`home` also has the checkout, and `bin` with the programs that replace others."""

    home: Path

    @property
    def checkout(self) -> Path:
        """The copy of this checkout's files."""
        return self.home / "jetson-k3s"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a shell."""
        return {"PATH": f"{self.home}/bin:{PATH}", "HOME": str(self.home), "TERM": "xterm"}

    def at_terminal(self, command: Sequence[str], columns: int = COLUMNS, **others: str) -> Terminal:
        """Start a command at a terminal."""
        return Terminal([*command], self.environment | others, self.checkout, columns)


def answers(address: str, ssh_password: str = SUDO_PASSWORD, agrees: str = "y") -> Mapping[str, str]:
    """What a person types at each question, for a board with this address."""
    password = f"{USER}@{address}'s password: "
    return {HOST_KEY: "yes", password: ssh_password, SUDO: SUDO_PASSWORD, YES: agrees, NO: agrees}


def _write_ssh(home: Path, options: Sequence[str]) -> None:
    program = home / "bin/ssh"
    program.parent.mkdir(parents=True, exist_ok=True)
    words = ["exec", shutil.which("ssh") or "ssh", "-F none", *options, '"$@"']
    program.write_text("#!/bin/sh\n" + " ".join(words) + "\n")
    program.chmod(0o755)


def new(home: Path) -> Person:
    """A person who has never used SSH. OpenSSH finds its files by the account's home, not by $HOME."""
    own = home / ".ssh"
    own.mkdir(mode=0o700, parents=True)
    files = {"UserKnownHostsFile": own / "known_hosts", "IdentityFile": own / "id_ed25519"}
    options = [f"-o {shlex.quote(f'{name}={path}')}" for name, path in files.items()]
    _write_ssh(home, [*options, "-o GlobalKnownHostsFile=none", "-o IdentitiesOnly=yes"])
    person = Person(home)
    copy_files(person.checkout)
    return person


def of_lab(home: Path, lab: str) -> Person:
    """A person whose SSH knows the boards of a lab, and whom they know."""
    _write_ssh(home, [*(f"-o {option!r}" for option in ssh.options(lab)), f"-i {ssh.key_path(lab)}"])
    person = Person(home)
    copy_files(person.checkout)
    return person
