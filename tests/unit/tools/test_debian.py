# SPDX-License-Identifier: Apache-2.0
"""What the lab says when it cannot install a package of Debian's."""

import os
import platform
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


@pytest.mark.parametrize(
    ("system", "user", "there", "can"),
    [
        ("debian", 0, False, True),
        ("debian", 1000, False, False),
        ("ubuntu", 0, False, False),
        ("ubuntu", 1000, True, True),
    ],
)
def test_packages_are_installed_unasked_on_debian_only(
    system: str, user: int, there: bool, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": system})
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(debian, "installed", lambda _name: there)
    assert debian.can_unpack() is can
