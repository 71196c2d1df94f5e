# SPDX-License-Identifier: Apache-2.0
"""Git checkouts to release from, with a small image in place of the plugin's, and a release that was made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from release import identity
from release.plan import REQUIRED
from release.version import CHECKOUT
from tools import suites
from tools.process import run

# Instead of what a container builder makes in minutes; the real code packs it.
SMALL_IMAGE = '''

def _built(arch: str, base: str | None) -> Path:
    """A layer with one file, for the tests."""
    made, out = revision(), Path(tempfile.mkdtemp())
    layer = out / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.addfile(tarfile.TarInfo(made.id))
    image = pack.image(arch, {}, layer, created=made.moment, names=[reference()])
    pack.write_docker_archive(out / "image.tar.gz", [image])
    sbom.write(out / "sbom.spdx.json", image, reference(), made.moment)
    return out


import tarfile
'''
# Where the tests have something else happen during the build.
DURING_BUILD = "    made, out = "
MAIN = '\n\nif __name__ == "__main__":'
CHANGES = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- One thing.\n"
IDENTITY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example",
}
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | IDENTITY


@dataclass(frozen=True)
class Checkout:
    """A checkout on `main` with an origin; `path` is where it is, `key` signs its releases."""

    path: Path
    key: Path

    def git(self, *arguments: str | Path) -> str:
        return run(["git", "-C", self.path, *arguments], env=ENVIRONMENT).stdout.rstrip("\n")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=Change")
        self.record_tests()

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new, 1))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "release", *arguments],
            cwd=self.path,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def release(self, *arguments: str, signed: bool = True) -> tuple[int, str]:
        process = self.start(*arguments, *([f"--key={self.key}"] if signed else []))
        said, _ = process.communicate()
        return process.returncode, said

    def record_tests(self) -> None:
        """Have it recorded that each suite has one test, which passes on the last commit."""
        for suite in REQUIRED:
            path = suites.record(self.path, suite)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (
                {"commit": self.git("rev-parse", "HEAD"), "tests": 1},
                {"id": "one", "outcome": "passed"},
            )
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def state(self) -> dict[str, object]:
        return {
            "branch": self.git("branch", "--show-current"),
            "refs": self.git("for-each-ref"),
            "changes": self.git("status", "--porcelain"),
            "tags": self.git("tag"),
            "worktrees": len(self.git("worktree", "list").splitlines()),
            "dist": sorted(path.name for path in (self.path / "dist").glob("*")),
            "hidden": sorted(path.name for path in (self.path / "dist").glob(".*")),
        }


def make_key(path: Path) -> Path:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "maintainer@example", "-f", path])
    return path


def copy_files(path: Path) -> None:
    """Copy this checkout's files, uncommitted changes included."""
    listed = run(
        ["git", "-C", CHECKOUT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = CHECKOUT / name
        if source.exists():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path / name, follow_symlinks=False)


def make(directory: Path) -> Checkout:
    """Make a checkout of this one's files, uncommitted changes included, that has never been released."""
    path, origin = directory / "checkout", directory / "origin.git"
    copy_files(path)
    run(["git", "init", "--quiet", "--bare", origin], env=ENVIRONMENT)
    run(["git", "init", "--quiet", "--initial-branch=main", path], env=ENVIRONMENT)
    checkout = Checkout(path, make_key(directory / "key"))
    checkout.write("CHANGELOG.md", CHANGES)
    for file, text in identity.set_to("somebody", path).items():
        file.write_text(text)
    checkout.replace("images/arm64/build.py", MAIN, SMALL_IMAGE + MAIN)
    checkout.git("remote", "add", "origin", origin)
    checkout.git("push", "--quiet", "origin", "main")
    return checkout


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make(tmp_path_factory.mktemp("template"))


@pytest.fixture
def checkout(_template: Checkout, tmp_path: Path) -> Checkout:
    return Checkout(shutil.copytree(_template.path, tmp_path / "checkout", symlinks=True), _template.key)


@pytest.fixture(scope="session")
def released(_template: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    own = tmp_path_factory.mktemp("released") / "checkout"
    checkout = Checkout(shutil.copytree(_template.path, own, symlinks=True), _template.key)
    code, said = checkout.release("0.2.0")
    assert code == 0, said
    return checkout
