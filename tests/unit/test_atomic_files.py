# SPDX-License-Identifier: Apache-2.0
"""Files are replaced atomically, by the plugin and by the roles' modules alike."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import atomic_files as roles
from tegra_device_plugin.system import atomicfile

from tests.unit.roles.playing import answer

Replace = Callable[..., None]


@pytest.fixture(params=["plugin", "roles"])
def replace_file(request: pytest.FixtureRequest) -> Replace:
    found: Replace = (atomicfile if request.param == "plugin" else roles).replace_file
    return found


def test_reader_has_a_complete_file(replace_file: Replace, tmp_path: Path) -> None:
    path = tmp_path / "jetson"
    path.write_text("old=1\n")
    path.chmod(0o600)
    with path.open() as reader:
        replace_file(path, "new=Ü\n")
        assert reader.read() == "old=1\n", "a reader keeps the complete old file"
    assert path.read_text(encoding="utf-8") == "new=Ü\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]
    replace_file(path, "secret\n", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("text", "error"), [("new=1\n", IsADirectoryError), ("\ud800", UnicodeEncodeError)])
def test_failure_leaves_no_file(
    replace_file: Replace, tmp_path: Path, text: str, error: type[Exception]
) -> None:
    (tmp_path / "jetson/sub").mkdir(parents=True)
    with pytest.raises(error):
        replace_file(tmp_path / "jetson", text)
    assert [path.name for path in tmp_path.iterdir()] == ["jetson"]


def test_power_cut_leaves_a_complete_file(
    replace_file: Replace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes are on the disk before the name points to them, and the name before the call returns.

    Until then no reader uses the partial file: NFD skips hidden files, CDI reads .json and .yaml.
    """
    path = tmp_path / "spec.json"
    path.write_text("old\n")
    synced: list[tuple[bool, dict[str, str]]] = []

    def fsync(handle: int) -> None:
        files = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), files))

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, "new\n")
    (_, there), name_synced = synced
    assert name_synced == (True, {"spec.json": "new\n"})
    assert there.pop("spec.json") == "old\n"
    ((name, text),) = there.items()
    assert text == "new\n"
    assert name.startswith(".")
    assert not name.endswith(".json")


def test_roles_make_missing_directories_and_leave_a_marker_that_exists(tmp_path: Path) -> None:
    roles.replace_file(str(tmp_path / "etc/docker/daemon.json"), "{}\n")
    assert (tmp_path / "etc/docker/daemon.json").read_text() == "{}\n"
    marker = tmp_path / "run/jetson-k3s/docker.restart"
    roles.leave_marker(str(marker))
    assert marker.read_text() == ""
    marker.write_text("since yesterday")
    roles.leave_marker(str(marker))
    assert marker.read_text() == "since yesterday"


def test_owners_mode_of_daemon_json_stays_and_his_link_to_it(tmp_path: Path) -> None:
    path, marker = tmp_path / "daemon.json", tmp_path / "run/restart"
    kept = tmp_path / "etc-in-git.json"
    kept.write_text("{}")
    kept.chmod(0o640)
    path.symlink_to(kept.name)
    record = tmp_path / "before"
    asked = {"path": str(path), "config": {"data-root": "/mnt"}, "record": str(record), "marker": str(marker)}
    answer("docker_daemon_config", asked)
    assert json.loads(path.read_text()) == {"data-root": "/mnt"}
    assert path.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o640
    assert record.stat().st_mode & 0o777 == 0o600
    assert marker.exists()
