# SPDX-License-Identifier: Apache-2.0
"""What the lab compiles from Go modules, as far as it can be told without compiling."""

import os
import re
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


@pytest.mark.parametrize("name", sorted(path.name for path in gomodules.MODULES.iterdir()))
def test_every_module_pins_what_it_needs(name: str) -> None:
    pinned = gomodules.versions(name)
    replaced = re.findall(
        r"^(?:\t|replace )(\S+) => ", (gomodules.MODULES / name / "go.mod").read_text(), re.MULTILINE
    )
    sums = (gomodules.MODULES / name / "go.sum").read_text()
    assert pinned
    assert all(f"{module} {pinned[module]}" in sums for module in set(pinned) - set(replaced))


def test_kubernetes_knows_its_version() -> None:
    version = gomodules.versions("kubernetes-1.36")["k8s.io/kubernetes"]
    flags = gomodules.version_flags("kubernetes-1.36")
    assert f"-X k8s.io/component-base/version.gitVersion={version}" in flags


def test_helm_knows_its_version() -> None:
    version = gomodules.versions("helm")["helm.sh/helm/v4"]
    assert f"-X helm.sh/helm/v4/internal/version.version={version}" in gomodules.version_flags("helm")


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
