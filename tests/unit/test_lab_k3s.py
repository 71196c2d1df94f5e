# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the release's executable, the user's own, or the same version compiled."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab import gomodules, k3s
from tools.process import ToolError

PROGRAM = b"#!/bin/sh\n" + bytes(100_000)
SUMS = f"{hashlib.sha256(PROGRAM).hexdigest()}  k3s\n{'0' * 64}  k3s-arm64\n".encode()


class Page:
    """A release page with files by the last part of the path. `k3s` may be cut off."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | None] = {"sha256sum-amd64.txt": SUMS, "k3s": PROGRAM}
        self.requests: list[str] = []
        self.cut_off = False
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.requests.append(self.path)
                content = page.files.get(self.path.rpartition("/")[2])
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:1000] if page.cut_off else content)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A release page that K3s is downloaded from, into an empty cache; there is no Go module proxy."""

    def refuse(*_: object) -> Path:
        raise ToolError("go: proxy.golang.org: no such host")

    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gomodules, "programs", refuse)
    served = Page()
    monkeypatch.setattr(k3s, "PAGE", f"http://127.0.0.1:{served.server.server_port}/download")
    with served.server:
        threading.Thread(target=served.server.serve_forever, daemon=True).start()
        yield served
        served.server.shutdown()


@pytest.mark.parametrize("version", ["v1.25.4+k3s1", "v1.33.5+k3s1"])
def test_the_release_is_downloaded_once(page: Page, version: str) -> None:
    found = k3s.k3s("amd64", version)
    assert (found.read_bytes(), found.stat().st_mode & 0o777) == (PROGRAM, 0o755)
    assert page.requests[1] == f"/download/{version.replace('+', '%2B')}/k3s"
    assert k3s.k3s("amd64", version) == found
    assert len(page.requests) == 2


@pytest.mark.parametrize(
    ("files", "cut_off", "words"),
    [
        ({"k3s": PROGRAM + b"changed"}, False, "the release's own list says .* Nothing was kept"),
        ({"sha256sum-amd64.txt": b"<html>Sign in</html>"}, False, "has no checksum of k3s"),
        ({}, True, "cut off after 1000 of 100010 bytes"),
        ({"sha256sum-amd64.txt": None}, False, r"%2Bk3s1/sha256sum-amd64\.txt: HTTP status 404"),
    ],
)
def test_what_is_not_the_released_file_is_not_kept(
    page: Page, tmp_path: Path, files: dict[str, bytes | None], cut_off: bool, words: str
) -> None:
    page.files |= files
    page.cut_off = cut_off
    with pytest.raises(ToolError, match=words):
        k3s.k3s("amd64", "v1.33.5+k3s1")
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} <= {".lock"}


def test_it_is_compiled_where_the_page_does_not_answer(
    page: Page, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page.server.server_close()
    monkeypatch.setattr(k3s, "TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(gomodules, "programs", lambda recipe, arch: tmp_path / recipe.name / arch)
    assert k3s.k3s("arm64") == tmp_path / "k3s/arm64/k3s"


def test_without_both_one_line_says_which_two_are_needed(page: Page) -> None:
    page.files.clear()
    with pytest.raises(ToolError, match=r"release page \(.* status 404\), or Go and a module proxy") as error:
        k3s.k3s("amd64")
    assert "\n" not in str(error.value)


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "k3s"
    with pytest.raises(ToolError, match=r"is neither the version of a K3s release.* nor an "):
        k3s.k3s("amd64", str(own))
    own.touch(mode=0o755)
    assert k3s.k3s("amd64", str(own)) == own
