# SPDX-License-Identifier: Apache-2.0
"""Files that roles write on this computer: backups, bundles and kubeconfigs. Boards are scripted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs import CHECKOUT
from tests.hostile import answers
from tests.hostile.site import make_release
from tests.lab import archive
from tests.unit.roles.loading import Data
from tests.unit.roles.playing import Run, play_text
from tests.unit.roles.scripted import BEGIN, SERVER, play_scripted

# Backups

BACKUP = BEGIN.replace("k3s_cluster", "server") + "    - ansible.builtin.import_role: {name: k3s_backup}\n"


def back_up(directory: Path, other: Data | None = None, *, fails: bool = False) -> Run:
    """Fetch a backup of the scripted server to `backups`; `other` is what the server says of it."""
    key = directory / "key.asc"
    key.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    variables: Data = {
        "k3s_backup_recipient": str(key),
        "__k3s_backup_directory": str(directory / "backups"),
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
    - ansible.builtin.import_role: {name: k3s_backup, tasks_from: prune}
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


# Bundles


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A page with a release of K3s."""
    make_release(tmp_path / "release" / answers.NEW)
    return tmp_path / "release"


def bundle(directory: Path, release: Path, *, fails: bool = False, **variables: Any) -> Run:
    image = directory / "dist/tegra-device-plugin-amd64.tar.gz"
    if not image.exists():
        image.parent.mkdir(exist_ok=True)
        archive.write(image, [answers.IMAGES[0]], "amd64", {}, {})
    given = {
        "jetson_k3s_bundle": str(directory / "bundle"),
        "k3s_version": answers.NEW,
        "__bundle_arch": "amd64",
        "__bundle_k3s_release_url": release.as_uri(),
        "bundle_plugin_archive": str(image),
    }
    (directory / "bundle").mkdir(exist_ok=True)
    text = "- {hosts: localhost, gather_facts: false, roles: [bundle]}\n"
    return play_text(directory, text, variables=given | variables, fails=fails)


def test_release_that_changed_since_its_first_download_is_refused(tmp_path: Path, release: Path) -> None:
    run = bundle(tmp_path, release)
    assert f"First use of K3s {answers.NEW}" in run.said
    program, sums = (release / answers.NEW / name for name in ("k3s", "sha256sum-amd64.txt"))
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    program.write_text("replaced")
    sums.write_text(sums.read_text().replace(digest, hashlib.sha256(b"replaced").hexdigest()))
    (tmp_path / "bundle/k3s-amd64").unlink()  # a bundle that is made anew
    run = bundle(tmp_path, release, fails=True)
    assert "The SHA-256 of this release is pinned in" in run.said
    assert not (tmp_path / "bundle/k3s-amd64").exists()


@pytest.mark.parametrize("fits", [True, False])
def test_image_that_is_not_the_releases_is_refused(tmp_path: Path, release: Path, fits: bool) -> None:
    bundle(tmp_path, release)
    image = tmp_path / "dist/tegra-device-plugin-amd64.tar.gz"
    digest = hashlib.sha256(image.read_bytes()).hexdigest() if fits else "0" * 64
    (tmp_path / "dist/SHA256SUMS").write_text(f"{digest}  {image.name}\n")
    run = bundle(tmp_path, release, fails=not fits)
    assert (f"{image}: " in run.said and "Fetch it again" in run.said) is not fits


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
        jetson_k3s_output=str(tmp_path / "anna.yaml"),
    )
    assert "Create a private directory for the key" in run.stdout
    (asked,) = calls.of("k3s_user")
    assert asked.has(name="anna", role="view", state="known")
    assert list((tmp_path / "tmp").glob("kubeconfig.*")) == []
    assert json.dumps(asked.arguments).count("PRIVATE") == 0
