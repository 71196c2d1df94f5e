# SPDX-License-Identifier: Apache-2.0
"""A board that downloads K3s takes the pinned binary, or without a pin the one of the release's checksums."""

import hashlib
from pathlib import Path

import pytest

from tests.unit.roles.playing import play_text

PLAYBOOK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64}, cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: binary.yml}
"""
RELEASED, REPLACED = b"K3s", b"another K3s with checksums that fit"
PIN = {"arm64": hashlib.sha256(RELEASED).hexdigest()}


@pytest.mark.parametrize(
    ("page", "pins", "installed"),
    [(RELEASED, {}, RELEASED), (RELEASED, PIN, RELEASED), (REPLACED, PIN, None)],
)
def test_pinned_binary_is_the_only_one_that_is_taken(
    tmp_path: Path, page: bytes, pins: dict[str, str], installed: bytes | None
) -> None:
    release = tmp_path / "v1"
    release.mkdir()
    (release / "k3s-arm64").write_bytes(page)
    (release / "sha256sum-arm64.txt").write_text(f"{hashlib.sha256(page).hexdigest()}  k3s-arm64\n")
    variables = {
        "k3s_version": "v1",
        "__k3s_release_url": tmp_path.as_uri(),
        "k3s_sha256": pins,
        "__k3s_binary": str(tmp_path / "k3s"),
        "__k3s_marker": str(tmp_path / "run/restart"),
    }
    play_text(tmp_path, PLAYBOOK, variables=variables, fails=installed is None)
    assert ((tmp_path / "k3s").read_bytes() if (tmp_path / "k3s").exists() else None) == installed
