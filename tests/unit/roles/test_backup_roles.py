# SPDX-License-Identifier: Apache-2.0
"""The controller's part of role k3s_backup: it records a backup, reads it, and refuses another file."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.openpgp import keyring
from tests.unit.roles.backups import SECRET, encrypted, packed, write_files
from tests.unit.roles.conftest import Load
from tests.unit.roles.playing import play

NAME = "k3s-jetson-1-20260102T030405Z.tar.gz.gpg"
PLAYBOOK = """\
- hosts: jetson-1
  gather_facts: false
  become: false
  tasks:
    - ansible.builtin.import_role: {name: k3s_backup, tasks_from: record.yml}
      when: record | default(false)
    - ansible.builtin.import_role: {name: k3s_backup, tasks_from: read.yml}
    - ansible.builtin.debug: {msg: "read={{ k3s_backup_manifest.server }}"}
"""


@pytest.fixture(scope="module")
def key() -> Iterator[Path]:
    """The owner's public key."""
    with keyring() as public:
        yield public


@pytest.fixture
def backup(load: Load, tmp_path: Path, key: Path) -> Path:
    """A backup on the controller."""
    path = tmp_path / "backups" / NAME
    path.parent.mkdir()
    content = packed(load("k3s_backup/module_utils/k3s_archive.py"), write_files(tmp_path / "files"))
    path.write_bytes(encrypted(content, key))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(directory: Path, backup: Path, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Record and read a backup."""
    hosts = {"jetson-1": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    (directory / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    (directory / "play.yml").write_text(PLAYBOOK)
    given = {"k3s_backup_file": str(backup), "__k3s_backup_name": NAME, **variables}
    (directory / "variables.yml").write_text(yaml.safe_dump(given))
    extra = f"--extra-vars=@{directory / 'variables.yml'}"
    state = str(directory / "state")
    return play(directory / "inventory.yml", directory / "play.yml", extra, "-vvv", XDG_STATE_HOME=state)


def test_recorded_backup_is_read_and_a_forged_one_is_not(backup: Path, tmp_path: Path, key: Path) -> None:
    made = {"record": True, "k3s_backup_made": {"sha256": sha256(backup)}}
    first = run(tmp_path, backup, **made)
    assert first.returncode == 0, first.stdout
    assert "read=jetson-1" in first.stdout
    assert SECRET not in first.stdout

    # The same files, encrypted once more: anybody can do that who has read them once.
    backup.write_bytes(encrypted(decrypted(backup), key))
    forged = run(tmp_path, backup)
    assert forged.returncode != 0
    said = " ".join(forged.stdout.split())
    assert "this computer did not make it, or it was changed since" in said

    accepted = run(tmp_path, backup, k3s_backup_accepted_sha256=sha256(backup))
    assert accepted.returncode == 0, accepted.stdout
    assert "become those of the cluster, and these files: etc/config.yaml" in " ".join(
        accepted.stdout.split()
    )


def decrypted(path: Path) -> bytes:
    gpg = shutil.which("gpg")
    assert gpg is not None
    argv = [gpg, "--batch", "--quiet", "--decrypt", str(path)]
    return subprocess.run(argv, capture_output=True, check=True).stdout
