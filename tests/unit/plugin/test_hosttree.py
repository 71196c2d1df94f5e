# SPDX-License-Identifier: Apache-2.0
"""Reading below a root: links, limits, and files that would make others wait."""

import errno
import os
from pathlib import Path

import pytest
from tegra_device_plugin.system.hosttree import HostTree


@pytest.mark.parametrize(
    ("link", "target", "resolved"),
    [
        ("a/link", "file", "/a/file"),
        ("a/link", "../b/file", "/b/file"),
        ("a/link", "/b/file", "/b/file"),
        ("a/link", "../../../../b/file", "/b/file"),
        ("a/link", ".", "/a"),
        ("link", "a/../b", "/b"),
    ],
)
def test_links_are_followed_as_the_host_would(link: str, target: str, resolved: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / link).symlink_to(target)
    assert HostTree(tmp_path).resolve(f"/{link}") == resolved


def test_a_chain_of_links_through_directories(tmp_path: Path) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "real/deep/file").write_text("found\n")
    (tmp_path / "one").symlink_to("/two")
    (tmp_path / "two").symlink_to("real")
    assert HostTree(tmp_path).text("/one/deep/../deep/file") == "found"


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError) as caught:
        HostTree(tmp_path).resolve("/a")
    assert caught.value.errno == errno.ELOOP


def test_nothing_outside_is_reached(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    root.mkdir()
    (root / "up").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    host = HostTree(root)
    assert [host.text("/up"), host.text("/absolute"), host.text("/../secret")] == [None, None, None]
    assert not host.is_node("/up")


def test_reads_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100000)
    assert len(HostTree(tmp_path).read("/large")) == 4096


def test_a_fifo_does_not_make_it_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert HostTree(tmp_path).text("/fifo") == ""


def test_what_is_absent_or_refused_is_none_or_empty(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    (tmp_path / "directory").mkdir()
    assert (host.text("/no"), host.strings("/no"), host.names("/no"), host.link("/no")) == (
        None,
        (),
        [],
        None,
    )
    assert host.text("/directory") is None
    with pytest.raises(FileNotFoundError):
        host.read("/no")


def test_device_tree_strings_and_text(tmp_path: Path) -> None:
    (tmp_path / "compatible").write_bytes(b"nvidia,p3768\0nvidia,tegra234\0")
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson\0")
    host = HostTree(tmp_path)
    assert host.strings("/compatible") == ("nvidia,p3768", "nvidia,tegra234")
    assert host.text("/model") == "NVIDIA Jetson"
