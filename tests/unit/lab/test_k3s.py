# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the release's executable, or the same version compiled."""

import hashlib
from pathlib import Path

import pytest

from tests.lab import gomodules, k3s, k3s_release
from tools.process import ToolError

PROGRAM = b"#!/bin/sh\n"
SUMS = f"{hashlib.sha256(PROGRAM).hexdigest()}  k3s\n{'0' * 64}  k3s-arm64\n".encode()
RELEASE = "v1.33.5+k3s1"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release on a page that is a directory; the cache is empty."""
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(k3s_release, "PAGE", (tmp_path / "page").as_uri())
    files = tmp_path / "page" / RELEASE
    files.mkdir(parents=True)
    (files / "k3s").write_bytes(PROGRAM)
    (files / "sha256sum-amd64.txt").write_bytes(SUMS)
    return files


def test_the_release_is_downloaded_once(page: Path) -> None:
    found = k3s.k3s("amd64", RELEASE)
    assert (found.read_bytes(), found.stat().st_mode & 0o777) == (PROGRAM, 0o755)
    (page / "k3s").unlink()
    assert k3s.k3s("amd64", RELEASE) == found


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("k3s", PROGRAM + b"changed", "the release's own list says .* Nothing was kept"),
        ("sha256sum-amd64.txt", b"<html>Sign in</html>", "has no checksum of k3s"),
    ],
)
def test_what_is_not_the_released_file_is_not_kept(
    page: Path, tmp_path: Path, file: str, content: bytes, words: str
) -> None:
    (page / file).write_bytes(content)
    with pytest.raises(ToolError, match=words):
        k3s.k3s("amd64", RELEASE)
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} <= {".lock"}


@pytest.mark.usefixtures("page")
def test_without_both_one_line_says_which_two_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise ToolError("go: proxy.golang.org: no such host")

    monkeypatch.setattr(gomodules, "programs", refuse)
    with pytest.raises(ToolError, match=r"release page \(.*\), or Go and a module proxy") as error:
        k3s.k3s("amd64")
    assert "\n" not in str(error.value)


def test_the_sources_are_of_the_commit_that_the_program_names() -> None:
    assert gomodules.versions("k3s")["github.com/k3s-io/k3s"].endswith(f"-{k3s.COMMIT}")
