# SPDX-License-Identifier: Apache-2.0
"""Write the lists of packages and hashes from pyproject.toml, or compare: `python -m tools.lock --check`.

A list keeps its versions where pyproject.toml permits them; --upgrade takes newer ones. The lists of Ansible
from 2.19 on, `image`, and that of the image's wheels, have the versions of the list `dev` where they can. The
comparison needs no network: the head of a list has the SHA-256 of its sources and of the lines below.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from images.arm64 import lock as image_wheels
from tools.cache import CHECKOUT
from tools.process import ToolError, run

LISTS = CHECKOUT / "tools/requirements"
# A wheel runs no code when it is installed; the sources of a package could fetch more to build it.
WHEELS = "--only-binary :all:"
PINNED = re.compile(r"^([a-z0-9.-]+==[^\s;]+)", re.MULTILINE)
# tools/bootstrap.sh refuses other Pythons, and tools/wheelhouse.py has the wheels of these.
FOR = "# For Python "
HEAD = "# Written by `make lock`. SHA-256 of the sources in pyproject.toml and of the lines below:\n# {}\n"


@dataclass(frozen=True)
class Lock:
    """A list: its file, its sources in pyproject.toml, and the Pythons that install it, the oldest first."""

    path: Path
    group: str = ""
    extras: Sequence[str] = ()
    pythons: Sequence[str] = ("3.11", "3.12", "3.13")
    like_dev: bool = True
    apart: Sequence[str] = ()
    """Packages whose version is not that of the list `dev`."""

    def sources(self, project: dict[str, Any]) -> list[str]:
        """Return what pyproject.toml requires for this list."""
        found = [*of_group(self.group, project)] if self.group else []
        if self.extras:
            found += project["project"]["dependencies"]
        for extra in self.extras:
            found += project["project"]["optional-dependencies"][extra]
        return found

    def digest(self, project: dict[str, Any], body: str) -> str:
        """Return what the head of the list says."""
        return hashlib.sha256(json.dumps([self.sources(project), self.pythons[0], body]).encode()).hexdigest()


DEV = Lock(LISTS / "dev.txt", "dev", ["dra"], like_dev=False)
IMAGE_WHEELS = Lock(image_wheels.LIST, extras=["dra"])
NEW = ("3.12", "3.13", "3.14")
LOCKS = (
    DEV,
    # The Pythons of a controller, by ansible-core's table of releases.
    Lock(LISTS / "ansible-2.16.txt", "ansible-2-16", pythons=("3.10", "3.11", "3.12"), like_dev=False),
    Lock(LISTS / "ansible-2.19.txt", "ansible-2-19"),
    Lock(LISTS / "ansible-2.20.txt", "ansible-2-20", pythons=NEW, apart=["ansible-core"]),
    Lock(LISTS / "ansible-2.21.txt", "ansible-2-21", pythons=NEW, apart=["ansible-core"]),
    Lock(LISTS / "image.txt", "image", pythons=("3.10", "3.11", "3.12", "3.13", "3.14")),
    Lock(LISTS / "lock.txt", "lock", like_dev=False),
    Lock(LISTS / "pip.txt", "pip", like_dev=False),
    Lock(CHECKOUT / "roles/bundle/files/requirements-jtop.txt", "jtop", pythons=["3.8"], like_dev=False),
    IMAGE_WHEELS,
)


def of_group(name: str, project: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of a dependency group, with those of the groups that it includes."""
    for one in project["dependency-groups"][name]:
        if isinstance(one, str):
            yield one
        else:
            yield from of_group(one["include-group"], project)


def read_project() -> dict[str, Any]:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def different(project: dict[str, Any], locks: Sequence[Lock] = LOCKS) -> list[str]:
    """Return the lists that were not written from these sources, or were changed since."""
    found = []
    for lock in locks:
        text = lock.path.read_text() if lock.path.exists() else ""
        body = "".join(text.splitlines(keepends=True)[HEAD.count("\n") :])
        if text != HEAD.format(lock.digest(project, body)) + body:
            found.append(str(lock.path.relative_to(CHECKOUT)))
    return found


def write(lock: Lock, project: dict[str, Any], upgrade: Sequence[str]) -> None:
    """Resolve a list and write it, unless it is the same. Raises ToolError with the resolver's reason."""
    with tempfile.TemporaryDirectory() as scratch:
        pins, made = Path(scratch, "pins.txt"), Path(scratch, "made.txt")
        like = [
            pin for pin in PINNED.findall(DEV.path.read_text()) if pin.partition("==")[0] not in lock.apart
        ]
        pins.write_text("\n".join(like) if lock.like_dev else "")
        if lock is IMAGE_WHEELS:
            body = image_wheels.resolve(lock.sources(project), pins)
        else:
            if lock.path.exists():
                made.write_text(lock.path.read_text())
            compiled(lock.sources(project), made, lock.pythons[0], ["--constraints", str(pins), *upgrade])
            body = made.read_text()
        if lock.path.parent == LISTS:
            body = f"{FOR}{' '.join(lock.pythons)}\n{body}"
    text = HEAD.format(lock.digest(project, body)) + body
    if not lock.path.exists() or lock.path.read_text() != text:
        lock.path.write_text(text)
        sys.stdout.write(f"{lock.path.relative_to(CHECKOUT)}\n")


def compiled(sources: Sequence[str], out: Path, python: str, options: Sequence[str]) -> None:
    """Have uv write a list for all platforms and for all Pythons from this one on."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--universal", *WHEELS.split(), "--emit-build-options"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--python-version", python]
    command += ["--output-file", str(out), *options, "-"]
    run(command, stdin="\n".join(sources), env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"})


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the lists that differ")
    parser.add_argument("--upgrade", metavar="NAME", help="take the newest version of a package, or of `all`")
    options = parser.parse_args()
    project = read_project()
    if options.check:
        differing = different(project)
        for name in differing:
            sys.stderr.write(f"{name} differs from pyproject.toml, or was edited. Run: make lock\n")
        return int(bool(differing))
    upgrade = [f"--upgrade-package={options.upgrade}"] if options.upgrade else []
    if options.upgrade == "all":
        upgrade = ["--upgrade"]
    try:
        for lock in LOCKS:
            write(lock, project, upgrade)
    except (ToolError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
