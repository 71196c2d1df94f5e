# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the release's executable, one's own, or the same compiled."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab import gomodules, k3s, k3s_release
from tools.cache import cache
from tools.process import ToolError

PROGRAM = b"#!/bin/sh\n" + bytes(100_000)
SUM = hashlib.sha256(PROGRAM).hexdigest()
SUMS = f"{SUM}  k3s\n{'0' * 64}  k3s-arm64\n{SUM}  k3s-airgap-images-amd64.tar\n"


class Page:
    """A release page: content and told length by the last part of the path; it records what is asked."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int | None]] = {
            "sha256sum-amd64.txt": (SUMS.encode(), None),
            "k3s": (PROGRAM, None),
        }
        self.asked: list[str] = []
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked.append(self.path)
                name = self.path.rpartition("/")[2]
                if name not in page.files:
                    self.send_error(404)
                    return
                content, length = page.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(length or len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A release page that K3s is downloaded from, into an empty cache."""
    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    served = Page()
    monkeypatch.setattr(k3s_release, "PAGE", f"http://127.0.0.1:{served.server.server_port}/download")
    with served.server:
        threading.Thread(target=served.server.serve_forever, daemon=True).start()
        yield served
        served.server.shutdown()


@pytest.fixture
def _no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise ToolError("go: proxy.golang.org: no such host")

    monkeypatch.setattr(gomodules, "programs", refuse)


def kept(tmp_path: Path) -> list[str]:
    """What is in the cache, and what a download has left there."""
    return [
        path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"
    ]


def test_the_release_is_downloaded_once(page: Page) -> None:
    found = k3s.k3s("amd64")
    assert (found.read_bytes(), found.stat().st_mode & 0o777) == (PROGRAM, 0o755)
    assert page.asked[1] == "/download/v1.25.4%2Bk3s1/k3s"
    assert k3s.k3s("amd64") == found
    assert len(page.asked) == 2


def test_another_release_is_named_by_its_version(page: Page) -> None:
    k3s.k3s("amd64", "v1.33.5+k3s1")
    assert page.asked[1] == "/download/v1.33.5%2Bk3s1/k3s"


@pytest.mark.usefixtures("_no_modules")
def test_a_file_with_another_checksum_is_not_kept(page: Page, tmp_path: Path) -> None:
    page.files["k3s"] = (PROGRAM + b"changed", None)
    with pytest.raises(ToolError, match=r"the release's own list says .* Nothing was kept"):
        k3s.k3s("amd64")
    assert kept(tmp_path) == []


@pytest.mark.usefixtures("_no_modules")
def test_a_list_without_the_file_is_told(page: Page) -> None:
    page.files["sha256sum-amd64.txt"] = (b"<html>Sign in to this network</html>", None)
    with pytest.raises(ToolError, match="has no checksum of k3s"):
        k3s.k3s("amd64")


def test_a_download_that_is_cut_off_is_not_kept(page: Page, tmp_path: Path) -> None:
    page.files["k3s"] = (PROGRAM[:1000], len(PROGRAM))
    with pytest.raises(ToolError, match="cut off after 1000 of 100010 bytes"):
        k3s.k3s("amd64", "v1.33.5+k3s1")
    assert kept(tmp_path) == []


def test_a_release_that_is_not_there_is_told(page: Page) -> None:
    page.files.clear()
    with pytest.raises(ToolError, match=r"v1\.99\.0%2Bk3s1/sha256sum-amd64\.txt: HTTP status 404"):
        k3s.k3s("amd64", "v1.99.0+k3s1")


def test_it_is_compiled_where_the_page_does_not_answer(
    page: Page, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page.server.server_close()
    monkeypatch.setattr(k3s_release, "TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(gomodules, "programs", lambda name, arch, _: tmp_path / name / arch)
    assert k3s.k3s("arm64") == tmp_path / "k3s/arm64/k3s"


def test_the_page_is_not_asked_where_it_is_compiled_already(page: Page) -> None:
    compiled = cache() / gomodules.entry("k3s", "amd64", k3s.recipe()) / "k3s"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert (k3s.k3s("amd64"), page.asked) == (compiled, [])


@pytest.mark.usefixtures("_no_modules")
def test_without_both_one_line_says_which_two_are_needed(page: Page) -> None:
    page.files.clear()
    with pytest.raises(ToolError, match=r"release page \(.* status 404\), or Go and a module proxy") as told:
        k3s.k3s("amd64")
    assert "\n" not in str(told.value)


def test_what_is_no_k3s_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"absent is neither the version of a K3s release.* nor an "):
        k3s.k3s("amd64", str(tmp_path / "absent"))


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "k3s"
    own.touch(mode=0o755)
    assert k3s.k3s("amd64", str(own)) == own


def test_the_sources_are_of_the_commit_that_the_program_names() -> None:
    assert gomodules.versions("k3s")["github.com/k3s-io/k3s"].endswith(f"-{k3s.COMMIT}")


@pytest.mark.parametrize(
    ("suffix", "minors", "expected"),
    [("", 0, "v1.25.4+k3s1"), ("2", 0, "v1.25.4+k3s12"), ("", 2, "v1.27.4+k3s1")],
)
def test_another_version_is_named_for_upgrades(suffix: str, minors: int, expected: str) -> None:
    assert k3s.named_version(suffix, minors) == expected
    assert f"-X k8s.io/component-base/version.gitVersion={expected}" in k3s.version_flags(suffix, minors)
