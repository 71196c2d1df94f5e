# SPDX-License-Identifier: Apache-2.0
"""Holds of apt: the role's own, the owner's, and Docker's packages that update themselves."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import answer

packages = load("jetson_facts/module_utils/jetson_packages.py")

# SIMULATED: the packages that are installed and those that are held are lines of two files.
DPKG_QUERY = """#!/bin/sh
shift 2
for name in "$@"; do grep --quiet --line-regexp "$name" HERE/installed && echo "installed $name"; done
true
"""
APT_MARK = """#!/bin/sh
case $1 in
showhold) cat HERE/held ;;
hold) shift && printf '%s\\n' "$@" >> HERE/held ;;
unhold) shift && for name in "$@"; do sed --in-place "/^$name$/d" HERE/held; done ;;
esac
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"dpkg-query": DPKG_QUERY, "apt-mark": APT_MARK}.items():
        (tmp_path / name).write_text(text.replace("HERE", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "installed").write_text("docker.io\ncontainerd\nvim\n")
    (tmp_path / "held").write_text("vim\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_only_what_the_role_has_installed_is_held_and_released(board: Path) -> None:
    record = board / "state/installed-packages"

    def run(**arguments: Any) -> tuple[bool, list[str]]:
        said = answer("nvidia_docker", "package_holds", {"record": str(record), **arguments})
        return said["changed"], said["packages"]

    def held() -> list[str]:
        return (board / "held").read_text().split()

    assert run(state="absent") == (False, [])
    assert run(state="held") == (False, [])
    assert run(installs=["docker.io", "containerd", "runc"], state="released") == (True, [])
    # apt has installed no runc.
    assert run(state="held", _ansible_check_mode=True) == (True, ["containerd", "docker.io"])
    assert held() == ["vim"]
    assert run(state="held") == (True, ["containerd", "docker.io"])
    assert record.read_text().split() == ["containerd", "docker.io"]
    assert run(state="held") == (False, [])
    assert run(state="released") == (True, ["containerd", "docker.io"])
    assert (held(), record.exists()) == (["vim"], True)
    assert run(state="held") == (True, ["containerd", "docker.io"])
    assert run(state="absent") == (True, ["containerd", "docker.io"])
    assert (held(), record.exists()) == (["vim"], False)


ON = (
    'APT::Periodic::Unattended-Upgrade "1";\n'
    'Unattended-Upgrade::Allowed-Origins "";\n'
    'Unattended-Upgrade::Allowed-Origins:: "${distro_id}:${distro_codename}-security";\n'
)
BLACKLIST = 'Unattended-Upgrade::Package-Blacklist:: "{}";\n'


@pytest.mark.parametrize(
    ("settings", "installed", "held", "updated"),
    [
        (ON, ["docker.io", "containerd"], [], ["docker.io", "containerd"]),
        (ON, ["docker.io", "containerd"], ["docker.io"], ["containerd"]),
        (ON, ["docker.io"], [], ["docker.io"]),
        (ON, [], [], []),
        (ON + BLACKLIST.format("docker"), ["docker.io", "containerd"], [], ["containerd"]),
        (ON + BLACKLIST.format("*"), ["docker.io"], [], ["docker.io"]),
        (ON + BLACKLIST.format(".*"), ["docker.io"], [], []),
        (ON + 'Unattended-Upgrade::Package-Whitelist:: "linux-";\n', ["docker.io"], [], []),
        (ON + 'APT::Periodic::Enable "0";\n', ["docker.io"], [], []),
        ('APT::Periodic::Unattended-Upgrade "0";\n', ["docker.io"], [], []),
        ("", ["docker.io"], [], []),
        (ON, ["docker-ce", "containerd.io"], [], []),
        (
            ON + 'Unattended-Upgrade::Allowed-Origins:: "Docker:jammy";\n',
            ["docker-ce", "containerd.io"],
            ["docker-ce"],
            ["containerd.io"],
        ),
    ],
)
def test_packages_that_restart_docker_unattended(
    settings: str, installed: list[str], held: list[str], updated: list[str]
) -> None:
    assert packages.unattended(packages.apt_settings(settings), installed, held) == updated


class Commands:
    """SIMULATED: a board with Docker, whose timer runs unattended-upgrades."""

    def path(self, name: str) -> str:
        return f"/usr/bin/{name}"

    def partial_output(self, *_: str) -> str:
        return "installed docker.io\nconfig-files containerd\n"

    def output(self, *argv: str) -> str:
        return {"apt-mark": "vim\n", "apt-config": ON}[argv[0]]


@pytest.mark.parametrize(("state", "updated"), [("active", ["docker.io"]), ("inactive", [])])
def test_facts_about_packages(tmp_path: Path, state: str, updated: list[str]) -> None:
    (tmp_path / packages.RECORD).parent.mkdir(parents=True)
    (tmp_path / packages.RECORD).write_text("runc\n")
    assert packages.package_facts(Commands(), str(tmp_path), {"ActiveState": state}) == {
        "installed": ["docker.io"],
        "held": ["vim"],
        "ours": ["runc"],
        "unattended": updated,
    }
