# SPDX-License-Identifier: Apache-2.0
"""The stand-in for `nvidia-ctk hook` does to a container's root what NVIDIA's does."""

import io
import json
from pathlib import Path

import pytest

from tests.lab.nvidia_runtime import container_hook


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container's root file system, whose state a hook reads."""
    root = tmp_path / "bundle" / "rootfs"
    root.mkdir(parents=True)
    (tmp_path / "bundle" / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    state = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "bundle": str(tmp_path / "bundle")}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(state)))
    return root


def test_links_are_made_in_the_container_and_an_older_one_is_replaced(root: Path) -> None:
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/libcuda.so").symlink_to("old")
    links = ["--link", "libcuda.so.1::/usr/lib/libcuda.so", "--link", "/x/y::/deep/er/link"]
    assert container_hook.main(["hook", "create-symlinks", *links]) == 0
    assert (root / "usr/lib/libcuda.so").readlink() == Path("libcuda.so.1")
    assert (root / "deep/er/link").readlink() == Path("/x/y")


def test_a_file_is_not_replaced_by_a_link(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "there").write_text("the image's own")
    assert container_hook.main(["hook", "create-symlinks", "--link", "a::/there"]) == 1
    assert "there" in capsys.readouterr().err
    assert (root / "there").read_text() == "the image's own"


def test_no_link_leads_out_of_the_container(root: Path) -> None:
    assert container_hook.main(["hook", "create-symlinks", "--link", "a::/../../outside"]) == 0
    assert (root / "outside").is_symlink()


def test_the_linker_is_told_of_folders(root: Path) -> None:
    (root / "etc").mkdir()
    assert container_hook.main(["hook", "update-ldcache", "--folder", "/usr/lib/a", "--folder", "/b"]) == 0
    assert (root / container_hook.CONFIGURATION).read_text() == "/usr/lib/a\n/b\n"
    assert (root / "etc/ld.so.cache").exists()


@pytest.mark.parametrize("arguments", [["chmod"], ["create-symlinks", "--path", "a"]])
def test_what_it_does_not_know_is_an_error(
    root: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert container_hook.main(["hook", *arguments]) == 1
    assert "does not know" in capsys.readouterr().err
