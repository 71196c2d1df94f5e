# SPDX-License-Identifier: Apache-2.0
"""The roles use no directory of all users, and upload by the role upload."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.loading import ROLES
from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.test_uploads import base, needs_root

__all__ = ["base"]

SHARED = re.compile(r"(?<![\w.-])/(?:var/)?tmp\b|/dev/shm\b")
# mkdtemp's names, for what is encrypted: the user who logs in fetches it.
EXCUSED = {"roles/k3s_backup/library/k3s_backup.py"}
WHEEL = "a-1-py3-none-any.whl"


def test_nothing_that_runs_on_boards_has_a_name_in_a_directory_of_all_users() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for place in ("roles", "playbooks", "collection", "plugin/deploy")
        for path in (CHECKOUT / place).rglob("*")
        if path.suffix in {".py", ".yml", ".yaml", ".j2", ".sh"} and SHARED.search(path.read_text())
    }
    assert found - EXCUSED == set()


def test_every_upload_is_removed_in_an_always_section() -> None:
    uploads = removals = 0
    for path in ROLES.glob("*/tasks/*.yml"):
        for block in (task for task in yaml.safe_load(path.read_text()) or [] if "block" in task):
            for inner in [block, *(task for task in block["block"] if "block" in task)]:
                direct = [task.get("ansible.builtin.import_role", {}) for task in inner["block"]]
                if {"name": "upload", "tasks_from": "copy.yml"} in direct:
                    uploads += 1
                    last = [task.get("ansible.builtin.import_role", {}) for task in inner["always"]]
                    removals += {"name": "upload", "tasks_from": "remove.yml"} in last
    everywhere = "".join(path.read_text() for path in ROLES.glob("*/tasks/*.yml"))
    assert uploads == removals == everywhere.count("name: upload\n") // 2 > 0


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.mkdir()
    with zipfile.ZipFile(path / WHEEL, "w") as archive:
        archive.writestr("a.py", "'of the bundle'\n")
    return path


PLAYBOOK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jtop, tasks_from: packages.yml}
"""


def install(tmp_path: Path, base: Path, bundle: Path, digest: str, *arguments: str, fails: bool) -> Run:
    variables = {
        "__upload_base": str(base),
        "__jtop_root": str(tmp_path / "installed"),
        "__jtop_bundled": {"version": "1", "wheels": [WHEEL]},
        "preflight_bundle_info": {"path": str(bundle), "files": {WHEEL: {"sha256": digest}}},
    }
    return play_text(tmp_path, PLAYBOOK, *arguments, variables=variables, fails=fails)


@needs_root
def test_upload_that_is_not_the_bundles_is_not_used_and_is_gone(
    tmp_path: Path, base: Path, bundle: Path
) -> None:
    run = install(tmp_path, base, bundle, "0" * 64, fails=True)
    assert f"{WHEEL} has the SHA-256 " in run.said
    assert not (tmp_path / "installed").exists()
    assert list((base / "jetson-k3s").iterdir()) == []


@needs_root
def test_check_mode_tells_the_change_and_makes_nothing(tmp_path: Path, base: Path, bundle: Path) -> None:
    digest = hashlib.sha256((bundle / WHEEL).read_bytes()).hexdigest()
    run = install(tmp_path, base, bundle, digest, "--check", fails=False)
    assert re.search(r"changed=[1-9]", run.stdout), run.stdout
    assert list(base.iterdir()) == []
