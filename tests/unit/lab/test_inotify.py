# SPDX-License-Identifier: Apache-2.0
"""The machine's limit of inotify instances: raised where it is too low, never lowered."""

from pathlib import Path

import pytest

from tests.lab import inotify


@pytest.mark.parametrize(("before", "after"), [(128, 1024), (1024, 1024), (8192, 8192)])
def test_limit_is_raised_and_not_lowered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int, after: int
) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text(f"{before}\n")
    monkeypatch.setattr(inotify, "LIMIT", limit)
    inotify.ensure_room()
    assert int(limit.read_text()) == after


def test_who_may_not_raise_it_is_told_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text("128\n")
    monkeypatch.setattr(inotify, "LIMIT", limit)

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "write_text", refused)
    inotify.ensure_room()
    said = "".join(capsys.readouterr())
    assert "Operation not permitted" in said
    assert "sudo sysctl fs.inotify.max_user_instances=1024" in said
