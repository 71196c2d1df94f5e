# SPDX-License-Identifier: Apache-2.0
"""What the lab compiles from Go modules, as far as it can be told without compiling."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.lab import gomodules
from tests.lab.gomodules import NoGoError
from tools.process import ToolError

Usage = namedtuple("Usage", "free")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a module that wants a Go of the far future."""
    directory = tmp_path / "kubernetes-9.9"
    directory.mkdir()
    (directory / "go.mod").write_text("module m\n\ngo 9.9.9\n\nrequire example.com/a v1.2.3\n")
    return directory


def test_no_go_is_one_line_that_says_what_to_install(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(source))
    with pytest.raises(NoGoError, match=r"^there is no Go here: install Go 9\.9\.9 or newer"):
        gomodules.ensure_go(source)


@pytest.mark.parametrize("toolchain", ["local", "auto"])
def test_a_go_that_is_too_old_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain: str
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\ncase $2 in GOVERSION) echo go1.26.8;; *) echo {toolchain};; esac\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if toolchain == "auto":
        gomodules.ensure_go(source)
    else:
        with pytest.raises(NoGoError, match=r"Go 1\.26\.8 is too old: install Go 9\.9\.9 or newer"):
            gomodules.ensure_go(source)


def test_no_room_is_said_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000_000_000))
    with pytest.raises(ToolError, match=r"has 1\.0 GB free and compiling takes 4: make room"):
        gomodules.check_room(tmp_path)
