# SPDX-License-Identifier: Apache-2.0
"""A file is replaced whole, or not at all."""

import os
from pathlib import Path

import pytest
from tegra_device_plugin.system.atomicfile import replace_file


def test_a_reader_has_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "jetson"
    path.write_text("old=1\n")
    path.chmod(0o600)
    with path.open() as reader:
        replace_file(path, "new=Ü\n")
        assert reader.read() == "old=1\n", "whoever reads meanwhile has the whole old file"
    assert path.read_text(encoding="utf-8") == "new=Ü\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_mode_can_be_given(tmp_path: Path) -> None:
    replace_file(tmp_path / "token", "secret\n", 0o600)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("text", "error"), [("new=1\n", IsADirectoryError), ("\ud800", UnicodeEncodeError)])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / "jetson/sub").mkdir(parents=True)
    with pytest.raises(error):
        replace_file(tmp_path / "jetson", text)
    assert [path.name for path in tmp_path.iterdir()] == ["jetson"]


def test_what_lies_beside_it_meanwhile_no_reader_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFD skips hidden files, CDI takes those that end in .json and .yaml."""
    beside: dict[str, str] = {}

    def look(_fresh: Path, _target: Path) -> None:
        beside.update((entry.name, entry.read_text()) for entry in tmp_path.iterdir())

    monkeypatch.setattr(Path, "replace", look)
    replace_file(tmp_path / "spec.json", "{}\n")
    ((name, text),) = beside.items()
    assert name.startswith(".")
    assert not name.endswith(".json")
    assert text == "{}\n", "whole before it gets its name"


def test_a_power_cut_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(os.fstat(handle).st_size))
    monkeypatch.setattr(Path, "replace", lambda _fresh, target: steps.append(target.name))
    replace_file(tmp_path / "jetson", "new=1\n")
    assert steps == [6, "jetson"], "all bytes are on the disk before the name points to them"
