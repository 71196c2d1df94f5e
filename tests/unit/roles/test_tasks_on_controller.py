# SPDX-License-Identifier: Apache-2.0
"""Files that roles write on this computer: backups and kubeconfigs. Boards are scripted."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docs import CHECKOUT
from tests.hostile import answers
from tests.unit.roles.places import Data
from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.scripted import BEGIN, SERVER, play_scripted

# Backups

BACKUP = (
    BEGIN.replace("k3s_cluster", "server")
    + "    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s_backup}\n"
)


def back_up(directory: Path, other: Data | None = None, *, fails: bool = False) -> Run:
    """Fetch a backup of the scripted server to `backups`; `other` is what the server says of it."""
    key = directory / "key.asc"
    key.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    variables: Data = {
        "k3s_backup_recipient": str(key),
        "k3s_backup_directory": str(directory / "backups"),
        "__k3s_backup_record": str(directory / "state/backups.sha256"),
    }
    said = {SERVER: {"k3s_backup": other}} if other else None
    run, calls = play_scripted(directory, BACKUP, answers=said, fails=fails, **variables)
    removed = [call.arguments["path"] for call in calls.of("file", state="absent")]
    assert "/var/tmp/b" in removed, "the server keeps its copy"
    return run


def test_backup_is_for_its_user_alone_and_recorded(tmp_path: Path) -> None:
    back_up(tmp_path)
    (file,) = (tmp_path / "backups").iterdir()
    assert file.name.startswith(f"k3s-{SERVER}-")
    assert file.read_bytes() == answers.CONTENT
    assert (tmp_path / "backups").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/backups.sha256").read_text() == f"{answers.CONTENT_SHA256}  {file.name}\n"


def test_backup_that_changed_on_its_way_is_neither_recorded_nor_kept_under_its_name(tmp_path: Path) -> None:
    back_up(tmp_path, {"sha256": "0" * 64}, fails=True)
    assert {path.suffix for path in (tmp_path / "backups").iterdir()} == {".partial"}
    assert not (tmp_path / "state").exists()


PRUNE = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s_backup, tasks_from: prune}
      vars: {__k3s_backup_pruned: "{{ there }}"}
"""


def test_oldest_backups_and_partial_files_of_the_server_go(tmp_path: Path) -> None:
    kept = {f"k3s-localhost-2026010{day}T030405Z.tar.gz.gpg" for day in range(3, 10)}
    others = {"k3s-other-20250101T030405Z.tar.gz.gpg", "k3s-localhost-notes.txt"}
    gone = {f"k3s-localhost-2026010{day}T030405Z.tar.gz" for day in (1, 2)}
    gone.add("k3s-localhost-20260109T040506Z.tar.gz.gpg.partial")
    there = tmp_path / "backups"
    there.mkdir()
    for name in kept | others | gone:
        (there / name).touch()
    play_text(tmp_path, PRUNE, variables={"there": str(there)})
    assert {path.name for path in there.iterdir()} == kept | others


# Kubeconfigs


def test_user_gets_the_role_view_and_no_copy_of_a_key_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    # The scripted server has no API, so the key is made and not used.
    run, calls = play_scripted(
        tmp_path,
        CHECKOUT / "playbooks/kubeconfig.yml",
        fails=True,
        environment={"TMPDIR": str(tmp_path / "tmp")},
        kubeconfig_user="anna",
        kubeconfig_file=str(tmp_path / "anna.yaml"),
    )
    assert "Create a private directory for the key" in run.stdout
    (asked,) = calls.of("k3s_user")
    assert asked.has(name="anna", role="view", state="known")
    assert list((tmp_path / "tmp").glob("kubeconfig.*")) == []
    assert json.dumps(asked.arguments).count("PRIVATE") == 0
