# SPDX-License-Identifier: Apache-2.0
"""Releases of ansible-core that tests run playbooks with: that of the tests' environment, and others."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab import newer_python
from tools.cache import cached
from tools.lock import LISTS, LOCKS
from tools.process import run

OWN = "2.19"
"""That of the tests' environment, for boards with JetPack 5."""
OLDEST, NEWEST = "2.16", "2.21"
"""That for boards with JetPack 4, and the newest one for JetPack 6, 7 and plain hosts."""
# The last one without data tagging. No list has it.
UNLISTED = {"2.18": "2.18.12"}
PIP: tuple[str, ...] = (sys.executable, "-m", "pip", "--disable-pip-version-check")
LINES = (OLDEST, *UNLISTED, OWN, "2.20", NEWEST)
CORES = (NEWEST, *(pytest.param(line, marks=pytest.mark.acceptance) for line in (OLDEST, OWN, "2.20")))
"""For tests with each. CI runs them with one, `make acceptance` with the others."""


@dataclass(frozen=True)
class Core:
    """A Python with the package `ansible`, or one that has it in the directory `path`."""

    python: str = sys.executable
    path: str = ""

    def program(self, name: str) -> list[str]:
        """Return the command `ansible-NAME`."""
        return [self.python, "-m", "ansible", name]

    def pythonpath(self, *more: str | Path) -> str:
        """Return the value of the variable PYTHONPATH, with these directories besides."""
        return os.pathsep.join(filter(None, (self.path, *map(str, more))))


def core(line: str) -> Core:
    """Return a release, installed once. Without a Python for it the test is skipped, and fails on GitHub."""
    try:
        return installed(line)
    except newer_python.NoPythonError as error:
        if "GITHUB_ACTIONS" in os.environ:
            raise
        pytest.skip(f"ansible-core {line}: {error}")


def installed(line: str) -> Core:
    """Return a release, installed once. Raises NoPythonError."""
    if line == OWN:
        return Core()
    if line in UNLISTED:
        return Core(
            path=str(cached(f"ansible-core/{UNLISTED[line]}", lambda out: _install_unlisted(line, out)))
        )
    path = LISTS / f"ansible-{line}.txt"
    (pythons,) = (lock.pythons for lock in LOCKS if lock.path == path)
    python = _python(pythons)
    recipe = hashlib.sha256(f"{python}\n{path.read_text()}".encode()).hexdigest()
    made = cached(f"ansible-core/{line}-{recipe[:12]}", lambda out: _install(python, path, out))
    return Core(str(made / "bin/python"))


def _python(pythons: Sequence[str]) -> str:
    """Return the oldest Python of this machine that a list is for, else Debian 13's."""
    return next(_pythons_here(pythons), "") or newer_python.of_debian(pythons)


def _pythons_here(pythons: Sequence[str]) -> Iterator[str]:
    program = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for python in (*(f"python{version}" for version in pythons), sys.executable):
        try:
            ran = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if ran.returncode == 0 and ran.stdout.strip() in pythons:
            yield python


def _install(python: str, path: Path, out: Path) -> None:
    run([python, "-m", "venv", "--without-pip", out])
    install = ("--python", out / "bin/python", "install", "--quiet", "--require-hashes")
    run([*PIP, *install, "--requirement", path])


def _install_unlisted(line: str, out: Path) -> None:
    # Its dependencies are those of the tests' environment.
    run([*PIP, "install", "--quiet", "--no-deps", "--target", out, f"ansible-core=={UNLISTED[line]}"])


def main() -> None:
    """Install all of them, so that no test waits for that."""
    for line in LINES:
        try:
            installed(line)
        except newer_python.NoPythonError as error:
            sys.stderr.write(f"tests with ansible-core {line} are skipped, and fail on GitHub: {error}\n")


if __name__ == "__main__":
    main()
