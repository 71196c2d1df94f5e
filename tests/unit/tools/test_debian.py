# SPDX-License-Identifier: Apache-2.0
"""Which archives the lab takes Debian from, and what it says when it cannot install."""

import os
import shutil
from pathlib import Path

import pytest

from tools import debian
from tools.process import ToolError

DEB822 = """\
Types: deb deb-src
# the mirror of this site
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://vendor.example/node
Suites: nodistro
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components:
 main
Enabled: yes

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/some/key.gpg] http://other.example/debian bookworm main non-free # ours
deb-src http://other.example/debian bookworm main
deb https://download.vendor.example/linux/debian bookworm stable
deb http://short.example/debian
"""


def test_only_debians_own_archives_are_used(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert [(source.uri, source.suites, source.components) for source in debian.debian_sources(tmp_path)] == [
        ("http://other.example/debian", ("bookworm",), ("main",)),
        ("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main",)),
        ("http://mirror.example/debian-security", ("bookworm-security",), ("main",)),
    ]


def test_a_machine_without_debian_sources_uses_the_public_archive(tmp_path: Path) -> None:
    assert [source.uri for source in debian.debian_sources(tmp_path)] == [
        "http://deb.debian.org/debian",
        "http://deb.debian.org/debian-security",
    ]


def test_without_apt_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ToolError, match=r"no apt-get.*docker\.io iptables"):
        debian.ensure_packages("docker.io", "iptables")


def test_without_root_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(debian, "installed", lambda name: name == "iptables")
    with pytest.raises(ToolError, match=r"only root .*apt-get install docker\.io$"):
        debian.ensure_packages("docker.io", "iptables")
