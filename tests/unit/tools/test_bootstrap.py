# SPDX-License-Identifier: Apache-2.0
"""tools/bootstrap.sh installs the wheels of its lists, and no others."""

import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs import CHECKOUT
from tools import wheelhouse
from tools.process import ToolError, run

LISTS = sorted((CHECKOUT / "tools/requirements").glob("*.txt"))
# Not installed beside the others, or what installs and writes them.
NOT_LIKE_DEV = ("ansible-2.16", "lock", "pip")
MINE, OTHER = f"3.{sys.version_info[1]}", f"3.{sys.version_info[1] + 1}"
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """A checkout with a package index of its own."""

    path: Path

    @property
    def index(self) -> dict[str, str]:
        """Pip's variables that name the index."""
        links = str(self.path / "index")
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links, "PIP_CONFIG_FILE": os.devnull}

    def wheel(self, name: str, *needs: str) -> str:
        """Make version 1 of a package; return its SHA-256."""
        path = self.path / f"index/{name}-1-py3-none-any.whl"
        path.parent.mkdir(exist_ok=True)
        about = "".join(f"Requires-Dist: {need}\n" for need in needs)
        files = {
            f"{name}.py": "",
            f"{name}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{about}",
            f"{name}-1.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            f"{name}-1.dist-info/RECORD": "",
        }
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in files.items():
                wheel.writestr(zipfile.ZipInfo(file), text)  # of 1980: the same bytes each time
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def list(self, name: str, listed: str, *pythons: str) -> None:
        """Write a list for these Pythons, by default the one that runs the tests."""
        path = self.path / f"tools/requirements/{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# For Python {' '.join(pythons or [MINE])}\n{listed}")

    def run(self, *arguments: str | Path) -> str:
        """Run it where the tests' Python is the only one; return its messages. Raises ToolError with them."""
        programs = self.path / "programs"
        programs.mkdir(exist_ok=True)
        for name in ("sh", "cat", "find", "id", "dirname", "sed", "sort", "tr", "rm"):
            if not (programs / name).exists():
                (programs / name).symlink_to(shutil.which(name) or name)
        if not (programs / "python3").exists():
            (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (programs / "python3").chmod(0o755)
        script = self.path / "tools/bootstrap.sh"
        script.write_text(script.read_text().replace(" /usr/bin/python3'", "'"))
        ran = run(
            ["sh", script, *arguments], cwd=self.path, env=os.environ | self.index | {"PATH": str(programs)}
        )
        return ran.stdout + ran.stderr

    def bootstrap(self, what: str, listed: str, *bundle: Path) -> str:
        """Run it with a list; return its messages. Raises ToolError with pip's words."""
        self.list(what, listed)
        return self.run(what, *bundle)

    def has(self, name: str) -> bool:
        return bool(list((self.path / ".venv").rglob(f"{name}.py")))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "tools").mkdir()
    shutil.copy(CHECKOUT / "tools/bootstrap.sh", tmp_path / "tools")
    return Checkout(tmp_path)


def test_package_is_installed_by_its_hash_alone(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one')}\n"
    checkout.wheel("one", "another")  # what the index has now
    with pytest.raises(ToolError, match="DO NOT MATCH THE HASHES"):
        checkout.bootstrap("image", listed)
    assert not checkout.has("one")
    checkout.wheel("one")
    checkout.bootstrap("image", listed)
    assert checkout.has("one")


def test_package_without_a_hash_and_a_dependency_that_is_not_listed_are_refused(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one', 'another')}\n"
    checkout.wheel("another")
    for text, refusal in (("another==1\n", "Hashes are required"), (listed, "pinned with ==")):
        with pytest.raises(ToolError, match=refusal):
            checkout.bootstrap("image", text)
        assert not checkout.has("another")


def test_bundle_has_the_wheels_for_a_computer_without_internet(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one')}\n"
    bundle = checkout.path / "bundle"
    bundle.mkdir()
    (checkout.path / "index").rename(bundle / "controller")
    with pytest.raises(ToolError, match="No matching distribution"):
        checkout.bootstrap("ansible-2.16", listed)
    assert "has not all wheels" not in checkout.bootstrap("ansible-2.16", listed, Path("bundle"))
    assert checkout.has("one")


def test_replaced_wheel_of_a_bundle_is_not_installed(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one')}\n"
    replaced = checkout.path / "bundle/controller"
    replaced.mkdir(parents=True)
    replaced.joinpath("one-1-py3-none-any.whl").write_bytes(b"another")
    (checkout.path / "index").rename(checkout.path / "kept")
    with pytest.raises(ToolError, match="has not all wheels"):
        checkout.bootstrap("image", listed, replaced.parent)
    assert not checkout.has("one")
    (checkout.path / "kept").rename(checkout.path / "index")
    assert "has not all wheels" in checkout.bootstrap("image", listed, replaced.parent)
    assert checkout.has("one")


def test_wheelhouse_has_the_wheels_of_each_python(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = {name: checkout.wheel(name) for name in ("one", "another", "third")}
    listed = {name: f"{name}==1 \\\n    --hash=sha256:{digest}\n" for name, digest in hashes.items()}
    old = listed["another"].replace(" \\", " ; python_full_version < '3.11' \\")
    head = "# For Python 3.10 3.13\n--only-binary :all:\n\n"
    (tmp_path / "ansible-2.21.txt").write_text(head + listed["one"])
    (tmp_path / "ansible-2.16.txt").write_text(head + listed["one"] + old)
    (tmp_path / "dev.txt").write_text(head + listed["third"])
    for name, value in checkout.index.items():
        monkeypatch.setenv(name, value)
    wheels = tmp_path / "controller"
    assert wheelhouse.fill(wheels, tmp_path) == ["another-1-py3-none-any.whl", "one-1-py3-none-any.whl"]
    shutil.copy(checkout.path / "index/third-1-py3-none-any.whl", wheels)
    assert wheelhouse.fill(wheels, tmp_path) == []
    assert len([*wheels.iterdir()]) == 2


def test_list_for_other_pythons_is_refused_and_venv_stays(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one')}\n"
    checkout.bootstrap("image", listed)
    checkout.list("ansible-2.21", listed, OTHER)
    with pytest.raises(ToolError) as refused:
        checkout.run("ansible-2.21")
    said = f"error: this computer has Python {MINE} with the module venv. Needed is one of these: "
    assert f"{said}for tools/requirements/ansible-2.21.txt: Python {OTHER} " in " ".join(
        str(refused.value).split()
    )
    assert checkout.has("one") and not (checkout.path / ".venv/.ansible").exists()


ALL = ("2.16", "2.19", "2.20", "2.21")
CHOICES = [
    # The lists for this Python, the list of .venv, the argument: the list of .venv afterwards.
    (ALL, "", "ansible", "2.21"),
    (ALL, "", "refresh", "2.21"),
    (("2.16", "2.19"), "", "refresh", "2.19"),  # Python 3.11
    (("2.16",), "", "refresh", "2.16"),  # Python 3.10
    (ALL, "ansible-2.20", "refresh", "2.20"),
    (ALL, "ansible-2.16", "refresh", "2.16"),
    (ALL, "ansible", "refresh", "2.19"),  # its former name
    (ALL, "ansible-2.16", "ansible", "2.21"),
    (ALL, "", "refresh-2.19", "2.19"),
    (ALL, "ansible-2.16", "refresh-2.19", "2.16"),
    (ALL, "ansible-2.21", "refresh-2.19", "2.19"),
    (ALL, "ansible-2.19", "refresh-2.16", "2.16"),
    (("2.16",), "", "refresh-2.19", "2.16"),
    (ALL, "", "ansible-2.20", "2.20"),
]


@pytest.mark.parametrize(("mine", "there", "asked", "chosen"), CHOICES)
def test_list_is_chosen_by_python_and_by_venv(
    checkout: Checkout, mine: Sequence[str], there: str, asked: str, chosen: str
) -> None:
    for line in ALL:
        checkout.list(f"ansible-{line}", "", MINE if line in mine else OTHER)
    venv = checkout.path / ".venv"
    python = f'#!/bin/sh\n[ "$2" = pip ] && echo "pip $*" || echo {MINE}\n'
    for path in (venv / "bin/python", checkout.path / "programs/python3"):
        path.parent.mkdir(parents=True)
        path.write_text(python)
        path.chmod(0o755)
    if there:
        (venv / ".ansible").write_text(f"{there}\n")
        os.utime(venv / ".ansible", (0, 0))
    installed = f"--require-hashes --requirement tools/requirements/ansible-{chosen}.txt\n"
    assert installed in checkout.run(asked)
    assert (venv / ".ansible").read_text() == f"ansible-{chosen}\n"
    assert asked.startswith("ansible") or checkout.run(asked) == ""  # it is up to date


def test_another_ansible_in_the_development_environment_has_it_made_again(checkout: Checkout) -> None:
    listed = f"one==1 --hash=sha256:{checkout.wheel('one')}\n"
    checkout.bootstrap("image", listed)
    dev = checkout.path / ".venv/.dev"
    for line, stays in (("2.19", True), ("2.21", False)):
        dev.touch()
        checkout.bootstrap(f"ansible-{line}", listed)
        assert dev.exists() is stays


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_list_has_wheels_alone_whose_versions_are_those_of_the_development_environment(path: Path) -> None:
    text = path.read_text()
    assert "--only-binary :all:" in text  # the sources of a package could fetch more to build it
    versions = dict(PINNED.findall(text))
    assert versions
    line = path.stem.removeprefix("ansible-")
    if line != path.stem:
        assert versions["ansible-core"].startswith(f"{line}.")
    if path.stem not in NOT_LIKE_DEV:
        dev = dict(PINNED.findall(path.with_name("dev.txt").read_text()))
        assert dev.pop("ansible-core").startswith("2.19.")
        assert versions.items() - {("ansible-core", versions.get("ansible-core"))} <= dev.items()
