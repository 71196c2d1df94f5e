# SPDX-License-Identifier: Apache-2.0
"""Directories without a mount. Real mounts: tests/conformance/test_mounts.py."""

from pathlib import Path

import pytest
from tegra_device_plugin.system.mounts import check_mounts


def test_a_directory_that_is_just_being_deleted_is_no_stale_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mounts([tmp_path])
    check_mounts([tmp_path / "absent"])
    (tmp_path / "file").touch()
    check_mounts([tmp_path / "file/below"])
    going = tmp_path / "going"
    going.mkdir()
    monkeypatch.chdir(going)  # a working directory outlives its name
    going.rmdir()
    assert Path().stat().st_nlink == 0
    check_mounts([Path()])
