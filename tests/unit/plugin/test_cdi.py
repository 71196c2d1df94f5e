# SPDX-License-Identifier: Apache-2.0
"""CDI specs from a simulated board's CSV files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tegra_device_plugin.board import cdi

from tests import boards


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated board."""
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    return tmp_path


def spec_file(root: Path) -> Path:
    """Where the spec is written."""
    return root / cdi.SPEC_FILE.lstrip("/")


def test_the_spec_names_what_exists_and_nothing_else(root: Path) -> None:
    spec = cdi.spec(root, ("/dev/extra",))
    nodes = [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes[0] == "/dev/extra"
    assert "/dev/nvmap" in nodes
    assert all((root / node[1:]).exists() for node in nodes[1:])
    mounts = [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]
    assert "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1" in mounts
    assert "/etc/nv_tegra_release" in mounts
    assert [device["name"] for device in spec["devices"]] == ["0", "all"]
    hooks = {hook["args"][2]: hook["args"][3:] for hook in spec["containerEdits"]["hooks"]}
    assert hooks["update-ldcache"] == ["--folder", "/usr/lib/aarch64-linux-gnu/nvidia"]


def test_lines_without_sense_are_skipped(root: Path) -> None:
    directory = root / "etc/nvidia-container-runtime/host-files-for-container.d"
    (directory / "zz.csv").write_text("nonsense\n\ndev /dev/null\nfoo, /dev/null\ndev, relative\n,\n")
    assert cdi.spec(root, ()) == cdi.spec(root, ())


def test_a_spec_that_says_the_same_is_left_alone(root: Path) -> None:
    cdi.write(root, ())
    before = spec_file(root).stat()
    cdi.write(root, ())
    assert spec_file(root).stat() == before
    cdi.write(root, ("/dev/more",))
    assert "/dev/more" in json.dumps(json.loads(spec_file(root).read_text()))
    assert [path.name for path in spec_file(root).parent.iterdir()] == [spec_file(root).name]


def test_without_csv_files_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(cdi.NoCsvFilesError, match=r"host-files-for-container\.d"):
        cdi.spec(tmp_path, ())
