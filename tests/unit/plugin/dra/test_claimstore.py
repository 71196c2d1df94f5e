# SPDX-License-Identifier: Apache-2.0
"""The file that says which claims are prepared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tegra_device_plugin.dra.claims import ClaimReference, Device, Prepared
from tegra_device_plugin.dra.claimstore import CheckpointError, load, save

CLAIMS = {
    "u1": Prepared(ClaimReference("default", "a", "u1"), (Device("gpu", "igpu-0", "s1", 1 << 30),)),
    "u2": Prepared(
        ClaimReference("team", "b", "u2"), (Device("x", "igpu-0", admin=True), Device("y", "igpu-0"))
    ),
}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    assert load(path) == {}
    save(path, CLAIMS)
    assert load(path) == CLAIMS
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it is damaged"),
        ('{"version": 1, "claims": {"u1": {"name"', "it is damaged"),
        ('{"version": 1, "claims": {"u1": {"name": "a"}}}', "it is damaged"),
        ('{"version": 1, "claims": []}', "it is damaged"),
        ("[]", "it is damaged"),
        ('{"version": 2, "claims": {}}', "it is of version 2, this driver reads 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_left_alone(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=says):
        load(path)
    assert path.read_text() == content


def test_a_device_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    save(path, CLAIMS)
    document = json.loads(path.read_text())
    document["claims"]["u1"]["devices"][0]["colour"] = "green"
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="damaged"):
        load(path)
