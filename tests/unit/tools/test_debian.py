# SPDX-License-Identifier: Apache-2.0
"""Debian packages that are missing and cannot be installed are named."""

import os
import shutil

import pytest

from tools import debian
from tools.process import ToolError


def test_without_apt_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ToolError, match=r"no apt-get.*docker\.io iptables"):
        debian.ensure_packages("docker.io", "iptables")


def test_without_root_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(debian, "installed", lambda name: name == "iptables")
    with pytest.raises(ToolError, match=r"only root .*apt-get install docker\.io$"):
        debian.ensure_packages("docker.io", "iptables")
