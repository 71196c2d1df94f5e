# SPDX-License-Identifier: Apache-2.0
"""The lists of packages and hashes are those of pyproject.toml."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tools import lock

PROJECT = lock.read_project()


def test_lists_are_written_from_these_sources() -> None:
    assert lock.different(PROJECT) == []
    assert {one.path for one in lock.LOCKS} >= set(lock.LISTS.glob("*.txt"))


def test_each_list_with_another_requirement_is_named() -> None:
    project = copy.deepcopy(PROJECT)
    project["dependency-groups"]["ansible"].append("requests")
    named = ["tools/requirements/dev.txt", "tools/requirements/ansible.txt"]
    assert lock.different(project) == named
    project = copy.deepcopy(PROJECT)
    project["project"]["optional-dependencies"]["dra"].pop()
    assert lock.different(project) == ["tools/requirements/dev.txt", "images/arm64/requirements.txt"]


@pytest.mark.parametrize("name", ["tools/requirements/dev.txt", "images/arm64/requirements.txt"])
def test_list_that_was_edited_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(lock, "CHECKOUT", tmp_path)
    (one,) = (one for one in lock.LOCKS if str(one.path).endswith(name))
    edited = replace(one, path=tmp_path / "list.txt")
    assert lock.different(PROJECT, [edited]) == ["list.txt"]
    shutil.copy(one.path, edited.path)
    assert lock.different(PROJECT, [edited]) == []
    text = edited.path.read_text()
    edited.path.write_text(text.replace("protobuf==7.36.2", "protobuf==7.36.1"))
    assert lock.different(PROJECT, [edited]) == ["list.txt"]
