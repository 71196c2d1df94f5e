# SPDX-License-Identifier: Apache-2.0
"""A backup that was not made by this computer, or was changed, is refused, encrypted or not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.unit.roles.loading import load

module = load("k3s_backup/library/k3s_backup_record.py")

NAME, OTHER = "k3s-jetson-1-20260102T030405Z.tar.gz.gpg", "k3s-jetson-1-20260103T030405Z.tar.gz.gpg"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def record(tmp_path: Path) -> str:
    path = str(tmp_path / "state" / "jetson-k3s" / "backups.sha256")
    for name in (NAME, OTHER):
        module.add(path, sha256(name), name)
    return path


def test_record_is_one_that_sha256sum_reads_and_of_this_user_alone(record: str) -> None:
    assert Path(record).read_text() == f"{sha256(NAME)}  {NAME}\n{sha256(OTHER)}  {OTHER}\n"
    assert Path(record).stat().st_mode & 0o777 == 0o600
    assert Path(record).parent.stat().st_mode & 0o777 == 0o700


def test_recorded_backup_is_accepted_wherever_it_lies(record: str) -> None:
    module.check(record, f"/media/stick/{NAME}", sha256(NAME), None)


def test_changed_backup_is_refused_with_the_way_to_accept_it(record: str) -> None:
    forged = sha256("forged")
    words = f"did not make it, or it was changed since.* -e k3s_backup_accepted_sha256={forged}$"
    with pytest.raises(module.ArchiveError, match=words):
        module.check(record, f"backups/{NAME}", forged, None)
    module.check(record, f"backups/{NAME}", forged, forged)


def test_old_backup_under_the_name_of_a_newer_one_is_refused(record: str) -> None:
    with pytest.raises(module.ArchiveError, match=f"under another name, {NAME}"):
        module.check(record, f"backups/{OTHER}", sha256(NAME), None)


@pytest.mark.parametrize("accepted", [sha256("another"), "true", "yes"])
def test_acceptance_names_the_very_file(record: str, accepted: str) -> None:
    for found in (sha256(NAME), sha256("forged")):
        with pytest.raises(module.ArchiveError, match=f"its SHA-256 is {found}, not "):
            module.check(record, NAME, found, accepted)


def test_controller_without_a_record_refuses(tmp_path: Path) -> None:
    with pytest.raises(module.ArchiveError, match="is not recorded in"):
        module.check(str(tmp_path / "none"), NAME, sha256(NAME), None)


def test_record_that_others_can_write_proves_nothing(record: str) -> None:
    Path(record).chmod(0o620)
    with pytest.raises(module.ArchiveError, match="can be written by other users"):
        module.check(record, NAME, sha256(NAME), None)


def test_line_that_was_cut_off_spoils_no_other(record: str) -> None:
    with Path(record).open("a") as stream:
        stream.write(sha256("cut off")[:20])
    module.add(record, sha256("next"), "next.gpg")
    module.check(record, "next.gpg", sha256("next"), None)
    module.check(record, NAME, sha256(NAME), None)


@pytest.mark.parametrize(
    ("hashed", "name"),
    [(sha256("x") + "\n" + sha256("y"), NAME), ("", NAME), (sha256("x"), "../x"), (sha256("x"), "a\nb")],
)
def test_answer_of_a_board_adds_one_line_or_none(record: str, hashed: str, name: str) -> None:
    before = Path(record).read_text()
    with pytest.raises(module.ArchiveError, match="cannot be recorded"):
        module.add(record, hashed, name)
    assert Path(record).read_text() == before
