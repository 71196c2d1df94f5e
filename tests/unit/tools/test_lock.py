# SPDX-License-Identifier: Apache-2.0
"""The lists of packages and hashes are those of pyproject.toml."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.docs import CHECKOUT
from tools import lock

PROJECT = lock.read_project()
RULES = CHECKOUT / "roles/preflight/vars/main/compatibility.yml"


def test_lists_are_written_from_these_sources() -> None:
    assert lock.different(PROJECT) == []
    assert {one.path for one in lock.LOCKS} >= set(lock.LISTS.glob("*.txt"))


def test_each_list_with_another_requirement_is_named() -> None:
    project = copy.deepcopy(PROJECT)
    project["dependency-groups"]["ansible-2-19"].append("requests")
    named = ["tools/requirements/dev.txt", "tools/requirements/ansible-2.19.txt"]
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


def test_supported_ansible_is_that_of_the_lists() -> None:
    groups = [name for name in PROJECT["dependency-groups"] if name.startswith("ansible-")]
    lines = sorted((2, int(name.rpartition("-")[2])) for name in groups)
    (oldest, newest) = (f"{major}.{minor}" for major, minor in (lines[0], lines[-1]))
    end = f"2.{lines[-1][1] + 1}"
    required = yaml.safe_load((CHECKOUT / "meta/runtime.yml").read_text())["requires_ansible"]
    assert required == f">={oldest}.0,<{end}.0"
    rules = {rule["id"]: rule for rule in yaml.safe_load(RULES.read_text())["__preflight_rules"]}
    assert rules["ansible-core"]["require"]["from"] == oldest
    untested = rules["ansible-core-untested"]
    assert untested["require"]["below"] == end
    assert untested["expected"].startswith(f"ansible-core {oldest} to {newest},")
