# SPDX-License-Identifier: Apache-2.0
"""The version by the metadata's directory that an installer puts beside the package."""

from pathlib import Path

import pytest
from tegra_device_plugin import version


def test_the_version_is_that_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_PACKAGE", tmp_path / "tegra_device_plugin")
    assert version.package_version() == "unknown"
    (tmp_path / "tegra_device_plugin-1.2.3.dist-info").mkdir()
    assert version.package_version() == "1.2.3"


def test_the_revision_is_that_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_PACKAGE", tmp_path)
    assert version.git_revision() == "unknown"
    (tmp_path / "REVISION").write_text("abc\n")
    assert version.git_revision() == "abc"
