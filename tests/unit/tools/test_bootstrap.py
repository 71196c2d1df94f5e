# SPDX-License-Identifier: Apache-2.0
"""tools/bootstrap.sh installs the wheels of its lists, and no others."""

import hashlib
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs import CHECKOUT
from tools.process import ToolError, run

LISTS = sorted((CHECKOUT / "tools/requirements").glob("*.txt"))
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """A checkout with a package index of its own."""

    path: Path

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

    def bootstrap(self, what: str, listed: str) -> None:
        """Run it with a list. Raises ToolError with pip's words."""
        lists = self.path / "tools/requirements"
        lists.mkdir(exist_ok=True)
        (lists / f"{what}.txt").write_text(listed)
        index = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.path / "index"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        run(["sh", "tools/bootstrap.sh", what], cwd=self.path, env=os.environ | index)

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


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_list_has_wheels_alone_whose_versions_are_those_of_the_development_environment(path: Path) -> None:
    text = path.read_text()
    assert "--only-binary :all:" in text  # the sources of a package could fetch more to build it
    versions = dict(PINNED.findall(text))
    if path.stem == "ansible-2.16":
        assert versions["ansible-core"].startswith("2.16.")
        return
    constraints = (CHECKOUT / "constraints.txt").read_text().lower().replace("_", "-")
    assert versions
    assert versions.items() <= dict(PINNED.findall(constraints)).items()
