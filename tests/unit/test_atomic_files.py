# SPDX-License-Identifier: Apache-2.0
"""Files are replaced whole or not at all, by the plugin and by the roles' modules alike."""

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tegra_device_plugin.system import atomicfile

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import answer

roles = load("atomic_files/module_utils/atomic_files.py")

Replace = Callable[..., None]


@pytest.fixture(params=["plugin", "roles"])
def replace_file(request: pytest.FixtureRequest) -> Replace:
    found: Replace = (atomicfile if request.param == "plugin" else roles).replace_file
    return found


def test_a_reader_has_the_old_file_or_the_new_one(replace_file: Replace, tmp_path: Path) -> None:
    path = tmp_path / "jetson"
    path.write_text("old=1\n")
    path.chmod(0o600)
    with path.open() as reader:
        replace_file(path, "new=Ü\n")
        assert reader.read() == "old=1\n", "whoever reads meanwhile has the whole old file"
    assert path.read_text(encoding="utf-8") == "new=Ü\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_mode_can_be_given(replace_file: Replace, tmp_path: Path) -> None:
    replace_file(tmp_path / "token", "secret\n", 0o600)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("text", "error"), [("new=1\n", IsADirectoryError), ("\ud800", UnicodeEncodeError)])
def test_a_failure_leaves_nothing_behind(
    replace_file: Replace, tmp_path: Path, text: str, error: type[Exception]
) -> None:
    (tmp_path / "jetson/sub").mkdir(parents=True)
    with pytest.raises(error):
        replace_file(tmp_path / "jetson", text)
    assert [path.name for path in tmp_path.iterdir()] == ["jetson"]


def test_a_power_cut_leaves_the_old_file_or_the_new_one(
    replace_file: Replace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes are on the disk before the name points to them, and the name before the call returns.

    What lies beside it until then no reader takes: NFD skips hidden files, CDI reads .json and .yaml.
    """
    path = tmp_path / "spec.json"
    path.write_text("old\n")
    synced: list[tuple[bool, dict[str, str]]] = []

    def look(handle: int) -> None:
        files = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), files))

    monkeypatch.setattr(os, "fsync", look)
    replace_file(path, "new\n")
    (_, there), name_synced = synced
    assert name_synced == (True, {"spec.json": "new\n"})
    assert there.pop("spec.json") == "old\n"
    ((name, text),) = there.items()
    assert text == "new\n"
    assert name.startswith(".")
    assert not name.endswith(".json")


def test_roles_make_missing_directories(tmp_path: Path) -> None:
    roles.replace_file(str(tmp_path / "etc/docker/daemon.json"), "{}\n")
    roles.leave_marker(str(tmp_path / "run/jetson-k3s/docker.restart"))
    assert (tmp_path / "etc/docker/daemon.json").read_text() == "{}\n"
    assert (tmp_path / "run/jetson-k3s/docker.restart").read_text() == ""


def test_marker_that_stands_stays(tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("since yesterday")
    roles.leave_marker(str(tmp_path / "marker"))
    assert (tmp_path / "marker").read_text() == "since yesterday"


@pytest.mark.parametrize("role", sorted({path.parents[1].name for path in ROLES.glob("*/library/*.py")}))
def test_roles_whose_modules_share_files_depend_on_them(role: str) -> None:
    places = (ROLES / role / "library", ROLES / role / "module_utils")
    modules = "".join(path.read_text() for place in places for path in place.glob("*.py"))
    tasks = "".join(path.read_text() for path in (ROLES / role / "tasks").glob("*.yml"))
    meta = ROLES / role / "meta/main.yml"
    shared = {
        "atomic_files": "atomic_files",
        "image_content": "image_content",
        "redact": "redact",
        "upload": "uploads",
    }
    own = {path.stem for path in (ROLES / role / "module_utils").glob("*.py")}
    needed = [
        {"role": name}
        for name, file in shared.items()
        if file not in own
        and (
            re.search(rf"ansible\.module_utils\.{file}\b", modules)
            or any(f" {module.stem}:\n" in tasks for module in (ROLES / name / "library").glob("*.py"))
        )
    ]
    assert (yaml.safe_load(meta.read_text())["dependencies"] if meta.exists() else []) == needed


def test_owners_mode_of_daemon_json_stays_and_his_link_to_it(tmp_path: Path) -> None:
    path, marker = tmp_path / "daemon.json", tmp_path / "run/restart"
    kept = tmp_path / "etc-in-git.json"
    kept.write_text("{}")
    kept.chmod(0o640)
    path.symlink_to(kept.name)
    record = tmp_path / "before"
    asked = {"path": str(path), "config": {"data-root": "/mnt"}, "record": str(record), "marker": str(marker)}
    answer("nvidia_docker", "docker_daemon_config", asked)
    assert json.loads(path.read_text()) == {"data-root": "/mnt"}
    assert path.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o640
    assert record.stat().st_mode & 0o777 == 0o600
    assert marker.exists()
