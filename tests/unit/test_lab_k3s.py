# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the release's executable, the user's own, or the same version compiled."""

import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab import gomodules, k3s
from tools.process import ToolError

PROGRAM = b"#!/bin/sh\n" + bytes(100_000)
SUMS = f"{hashlib.sha256(PROGRAM).hexdigest()}  k3s\n{'0' * 64}  k3s-arm64\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a release page, for an empty cache; there is no Go module proxy."""

    def refuse(*_: object) -> Path:
        raise ToolError("go: proxy.golang.org: no such host")

    monkeypatch.setenv("JETSON_K3S_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gomodules, "programs", refuse)
    release = tmp_path / "page" / k3s.VERSION
    release.mkdir(parents=True)
    (release / "k3s").write_bytes(PROGRAM)
    (release / "sha256sum-amd64.txt").write_text(SUMS)
    handler = partial(SimpleHTTPRequestHandler, directory=release.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr(k3s, "PAGE", f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield release
        server.shutdown()


def test_the_release_is_downloaded_once(page: Path) -> None:
    found = k3s.k3s("amd64")
    assert (found.read_bytes(), found.stat().st_mode & 0o777) == (PROGRAM, 0o755)
    (page / "k3s").unlink()
    assert k3s.k3s("amd64") == found


def test_what_is_not_the_released_file_is_not_kept(page: Path, tmp_path: Path) -> None:
    (page / "k3s").write_bytes(PROGRAM + b"changed")
    with pytest.raises(ToolError, match="did not match"):
        k3s.k3s("amd64")
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} <= {".lock"}


def test_it_is_compiled_where_the_page_does_not_have_it(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (page / "k3s").unlink()
    with pytest.raises(
        ToolError, match=r"release page \(.* Error 404.*\), or Go and a module proxy"
    ) as error:
        k3s.k3s("amd64")
    assert "\n" not in str(error.value)
    monkeypatch.setattr(gomodules, "programs", lambda recipe, arch: tmp_path / recipe.name / arch)
    assert k3s.k3s("amd64") == tmp_path / "k3s/amd64/k3s"


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "k3s"
    with pytest.raises(ToolError, match=r"is neither the version of a K3s release.* nor an "):
        k3s.k3s("amd64", str(own))
    own.touch(mode=0o755)
    assert k3s.k3s("amd64", str(own)) == own


def test_what_is_compiled_is_the_version_by_whose_name_it_goes() -> None:
    kubernetes = f"k8s.io/kubernetes => github.com/k3s-io/kubernetes {k3s.VERSION.replace('+', '-')}\n"
    assert kubernetes in gomodules.go_mod("k3s")
    assert re.fullmatch(r"[0-9a-f]{12}", k3s.COMMIT)
