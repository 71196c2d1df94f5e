# SPDX-License-Identifier: Apache-2.0
"""Which packages an update of the operating system changes: this computer's apt decides."""

from __future__ import annotations

import fcntl
import functools
import shutil
import threading
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import answer

module = load("os_update/library/os_packages.py")

LEFT = yaml.safe_load((ROLES / "os_update/vars/main.yml").read_text())["__os_update_left"]
LEFT["sites"].append("127.0.0.1")
INSTALLED = (
    "libssl", "tzdata", "base", "docker.io", "containerd", "nvidia-l4t-core", "nvidia-container-toolkit",
    "docker-user", "base-user", "kernel", "tool",
)  # fmt: skip
# Archive: packages as name, version, depends. The newest tzdata has no security fix, an older one has.
ARCHIVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "jammy-security": (("libssl", "2"), ("tzdata", "2"), ("kernel", "2", "kernel-2"), ("kernel-2", "2")),
    "jammy-updates": (
        ("libssl", "2"), ("tzdata", "3"), ("base", "2"), ("docker.io", "2"), ("containerd", "2"),
        ("docker-user", "2"), ("base-user", "2", "docker.io (>= 2)"),
    ),
    "stable": (("nvidia-l4t-core", "2"), ("nvidia-container-toolkit", "2"), ("tool", "2")),
}  # fmt: skip


def stanza(name: str, version: str, depends: str = "", status: str = "") -> str:
    """An entry of a list of packages, or of dpkg's status."""
    more = f"Depends: {depends}\n" if depends else ""
    more += f"Status: {status}\n" if status else f"Filename: ./{name}.deb\nSize: 1\nSHA256: {'0' * 64}\n"
    return f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: m\n{more}Description: d\n\n"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A board whose apt is configured below `tmp_path`: the environment with which apt finds it.

    The archive `stable` is that of a web server, as NVIDIA's is.
    """
    for directory in ("etc/preferences.d", "etc/apt.conf.d", "state/lists/partial", "cache/archives/partial"):
        (tmp_path / directory).mkdir(parents=True)
    write_status(tmp_path)
    for suite, packages in ARCHIVES.items():
        archive = tmp_path / "archives" / suite
        archive.mkdir(parents=True)
        (archive / "Packages").write_text("".join(stanza(*package) for package in packages))
        (archive / "Release").write_text(f"Suite: {suite}\nOrigin: SIMULATED\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "archives")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        at = dict.fromkeys(ARCHIVES, f"file:{tmp_path}/archives")
        at["stable"] = f"http://127.0.0.1:{server.server_port}"
        sources = "".join(f"deb [trusted=yes] {place}/{suite} ./\n" for suite, place in at.items())
        (tmp_path / "etc/sources.list").write_text(sources)
        places = {
            "Dir::Etc": "etc",
            "Dir::State": "state",
            "Dir::Cache": "cache",
            "Dir::State::status": "status",
        }
        settings = {key: str(tmp_path / place) for key, place in places.items()}
        settings |= {"APT::Architecture": "amd64", "APT::Sandbox::User": "", "Acquire::http::Proxy": "DIRECT"}
        text = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        (tmp_path / "apt.conf").write_text(text)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {"APT_CONFIG": f"{tmp_path}/apt.conf"}
        server.shutdown()
        thread.join()


def write_status(root: Path, held: tuple[str, ...] = ()) -> None:
    """What dpkg has installed, and which packages the owner holds."""
    words = {name: "hold" if name in held else "install" for name in INSTALLED}
    text = "".join(stanza(name, "1", status=f"{word} ok installed") for name, word in words.items())
    (root / "status").write_text(text)


def packages(board: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """What the module says in check mode."""
    given = {"left": LEFT, "_ansible_check_mode": True} | options
    return answer("os_update", "os_packages", given, **board)


def fetch(board: Mapping[str, str]) -> str:
    """Fetch the lists, and say why that failed."""
    given = {"fetch": True, "lock_timeout": 0}
    return str(answer("os_update", "os_packages", given, **board).get("msg", ""))


SECURITY = {"libssl": "2", "tzdata": "2", "kernel": "2", "kernel-2": "2"}
# base-user would need a newer docker.io.
ALL = SECURITY | {"tzdata": "3", "base": "2"}
L4T = {"nvidia-l4t-core": "2"}


def test_packages_that_are_left_alone_are_updated_only_if_named(board: dict[str, str]) -> None:
    assert fetch(board) == ""
    for options, updates, disruptive in (
        ({}, SECURITY, False),
        ({"security": False}, ALL, False),
        ({"also": ["docker.io"]}, SECURITY | {"docker.io": "2"}, True),
        ({"security": False, "also": ["nvidia-l4t-*", "tool"]}, ALL | L4T | {"tool": "2"}, True),
        ({"security": False, "also": ["docker.io"]}, ALL | {"docker.io": "2", "base-user": "2"}, True),
    ):
        found = packages(board, **options)
        assert (found.get("updates"), found.get("disruptive")) == (updates, disruptive), found
    assert "left alone: containerd 2, docker-user 2, nvidia-container-toolkit 2" in found["summary"]


def test_owners_holds_and_preferences_stay_in_force(board: dict[str, str], tmp_path: Path) -> None:
    assert fetch(board) == ""
    write_status(tmp_path, held=("libssl", "docker.io"))
    (tmp_path / "etc/preferences.d/own").write_text("Package: tzdata\nPin: release *\nPin-Priority: -1\n")
    kept = {name: version for name, version in SECURITY.items() if name not in ("libssl", "tzdata")}
    found = packages(board)
    assert found.get("updates") == kept, found
    named = packages(board, also=["docker*"])
    assert "os_update_packages names docker.io, which apt-mark holds on this board." in named["msg"]
    assert "sudo apt-mark unhold docker.io" in named["msg"]


def test_list_that_cannot_be_fetched_is_an_error(board: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "state/lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # unattended-upgrades are at work
        assert "Could not get lock" in fetch(board)
    shutil.rmtree(tmp_path / "archives/stable")
    said = fetch(board)
    assert "the package lists could not be fetched, so updates may be missing." in said
    assert "E: Failed to fetch http://127.0.0.1" in said
