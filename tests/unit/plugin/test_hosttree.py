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


def test_absent_files_are_none_or_empty(tmp_path: Path) -> None:
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


def test_text_and_the_strings_of_a_device_tree_have_no_margin(tmp_path: Path) -> None:
    (tmp_path / "compatible").write_bytes(b"nvidia,p3768\0nvidia,tegra234\0")
    (tmp_path / "text").write_bytes(b"\n\t on \xff off \r\n\0\0")
    (tmp_path / "empty").touch()
    host = HostTree(tmp_path)
    assert host.strings("/compatible") == ("nvidia,p3768", "nvidia,tegra234")
    assert (host.text("/text"), host.strings("/empty")) == ("on \ufffd off", ())


@pytest.mark.parametrize(("links", "ends"), [(40, True), (41, False)])
def test_as_many_links_are_followed_as_the_kernel_follows(links: int, ends: bool, tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    for number in range(links):
        (tmp_path / f"{number + 1}").symlink_to(f"{number}")
    assert (HostTree(tmp_path).link(f"/{links}") == "/0") == ends


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError) as caught:
        HostTree(tmp_path).resolve("/a")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/a/x*", ["/a/x1", "/a/x2", "/a/xdangling"]),
        ("/?/x1", ["/a/x1", "/b/x1", "/l/x1"]),
        ("/a/[xy]1", ["/a/x1", "/a/y1"]),
        ("/a/x1", ["/a/x1"]),
        ("/a/xdangling", ["/a/xdangling"]),
        ("/l/*1", ["/l/x1", "/l/y1"]),
        ("/a/z*", []),
        ("/a/z", []),
        ("/z*/x1", []),
    ],
)
def test_patterns_are_those_of_a_shell(pattern: str, found: list[str], tmp_path: Path) -> None:
    for name in ("a/x1", "a/x2", "a/y1", "b/x1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/xdangling").symlink_to("nowhere")
    (tmp_path / "l").symlink_to("/a")
    assert HostTree(tmp_path).glob(pattern) == found


@pytest.mark.parametrize("path", ["/a\0b", "/a\0b/c", "/*\0/c", "/a/\0"])
def test_a_path_with_a_nul_names_no_file(path: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    host = HostTree(tmp_path)
    found = (host.text(path), host.strings(path), host.names(path), host.link(path), host.target(path))
    assert found == (None, (), [], None, None)
    assert (host.glob(path), host.is_node(path), host.status(path)) == ([], False, None)
    for read in (host.read, host.resolve, host.real):
        with pytest.raises(FileNotFoundError):
            read(path)
