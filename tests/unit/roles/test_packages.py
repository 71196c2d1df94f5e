# SPDX-License-Identifier: Apache-2.0
"""Packages that the roles install: missing packages, package holds, and findings about both."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import deb822
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_packages as packages
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_commands import Commands
from ansible_collections.jetson_k3s.cluster.plugins.modules import debs_needed as debs

from tests.unit.roles.playing import answer, play_text
from tests.unit.roles.preflight_facts import with_facts

DEBS = {
    "/d/docker.io.deb": {
        "Package": "docker.io",
        "Depends": "containerd (>= 1.6), runc (>= 1.1), libc6 (>= 2.34)",
    },
    "/d/containerd.deb": {"Package": "containerd", "Depends": "runc (>= 1.1~)"},
    "/d/runc.deb": {"Package": "runc", "Depends": "libseccomp2 (>= 2.5)"},
    "/d/toolkit.deb": {
        "Package": "nvidia-container-toolkit",
        "Pre-Depends": "nvidia-container-toolkit-base (= 1.18.0-1)",
        "Depends": "libnvidia-container-tools (>= 1.18.0-1), default-mta | mail-agent",
    },
    "/d/base.deb": {"Package": "nvidia-container-toolkit-base"},
    "/d/tools.deb": {"Package": "libnvidia-container-tools"},
    "/d/mta.deb": {"Package": "exim4", "Provides": "mail-agent (= 1)"},
}
BOARD = {"libc6": "2.35", "libseccomp2": "2.5.3"}


def compare(one: str, operator: str, other: str) -> bool:
    keys = [
        [int(part) for part in text.replace("-", ".").replace("~", "").split(".")] for text in (one, other)
    ]
    return {">=": keys[0] >= keys[1], "=": keys[0] == keys[1]}[operator]


@pytest.mark.parametrize(
    ("packages", "more", "names"),
    [
        (["docker.io"], {}, "containerd docker.io runc"),
        (["docker.io"], {"runc": "1.1.12"}, "containerd docker.io"),
        (["docker.io"], {"runc": "1.0.3"}, "containerd docker.io runc"),
        # The board has an engine, of whichever package: nothing of it is touched.
        (["nvidia-container-toolkit"], {"docker-ce": "27.5.1"}, "base mta toolkit tools"),
        (["nvidia-container-toolkit"], {"mail-agent": None}, "base toolkit tools"),
        (
            ["nvidia-container-toolkit"],
            {
                "mail-agent": None,
                "libnvidia-container-tools": "1.18.0-1",
                "nvidia-container-toolkit-base": "1.16.2-1",
            },
            "base toolkit",
        ),
    ],
)
def test_missing_packages_are_chosen(packages: list[str], more: dict[str, str | None], names: str) -> None:
    found = debs.needed(packages, DEBS, {**BOARD, **more}, compare)
    assert found == [f"/d/{name}.deb" for name in names.split()]


def test_package_that_the_archive_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="docker-ce"):
        debs.needed(["docker.io", "docker-ce"], DEBS, BOARD, compare)


def test_packages_are_read_by_dpkg(tmp_path: Path) -> None:
    depends = {"jetson-k3s-test-a": "dpkg (>= 1.0), jetson-k3s-test-b", "jetson-k3s-test-c": "dpkg"}
    for name, needs in depends.items():
        control = tmp_path / name / "DEBIAN/control"
        control.parent.mkdir(parents=True)
        control.write_text(
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: x\n"
            f"Depends: {needs}\n"
        )
        subprocess.run(["dpkg-deb", "--build", tmp_path / name, tmp_path / f"{name}.deb"], check=True)
    asked = {"directory": str(tmp_path), "packages": ["jetson-k3s-test-a"]}
    found = answer("debs_needed", asked)
    assert found["paths"] == [f"{tmp_path}/jetson-k3s-test-a.deb"]


def test_dependencies_are_read_as_debian_writes_them() -> None:
    fields = deb822.parse_fields("Package: a\nDepends: libc6:any (>= 2.34), b | c (<< 2~rc1),\n d\n")
    assert fields["Package"] == "a"
    assert debs.alternatives(fields["Depends"]) == [
        [("libc6", ">=", "2.34")],
        [("b", "", ""), ("c", "<<", "2~rc1")],
        [("d", "", "")],
    ]


def test_removed_packages_are_not_installed() -> None:
    shown = "installed\ta\t1\tx (= 1), y\nconfig-files\tb\t2\t\ninstalled\ty\t3\t\n"
    assert debs.installed_packages(shown) == {"a": "1", "x": None, "y": "3"}


# SIMULATED: installed packages, and those with an apt hold, are lines of two files.
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


def test_only_the_roles_packages_are_held(board: Path) -> None:
    record = board / "state/installed-packages"

    def run(**arguments: Any) -> tuple[bool, list[str]]:
        said = answer("package_holds", {"record": str(record), **arguments})
        return said["changed"], said["packages"]

    def held() -> list[str]:
        return (board / "held").read_text().split()

    assert run(state="absent") == (False, [])
    assert run(state="present") == (False, [])
    assert run(installs=["docker.io", "containerd", "runc"], state="released") == (True, [])
    # apt has installed no runc.
    assert run(state="present", _ansible_check_mode=True) == (True, ["containerd", "docker.io"])
    assert held() == ["vim"]
    assert run(state="present") == (True, ["containerd", "docker.io"])
    assert record.read_text().split() == ["containerd", "docker.io"]
    assert run(state="present") == (False, [])
    assert run(state="released") == (True, ["containerd", "docker.io"])
    assert (held(), record.exists()) == (["vim"], True)
    assert run(state="present") == (True, ["containerd", "docker.io"])
    assert run(state="absent") == (True, ["containerd", "docker.io"])
    assert (held(), record.exists()) == (["vim"], False)


ON = 'APT::Periodic::Unattended-Upgrade "1";\n'
BLACKLIST = 'Unattended-Upgrade::Package-Blacklist:: "{}";\n'


@pytest.mark.parametrize(
    ("settings", "installed", "held", "updated"),
    [
        (ON, ["docker.io", "containerd"], [], ["docker.io", "containerd"]),
        (ON, ["docker.io", "containerd"], ["docker.io"], ["containerd"]),
        (ON + BLACKLIST.format("docker"), ["docker.io", "containerd"], [], ["containerd"]),
        (ON + BLACKLIST.format("*"), ["docker.io"], [], ["docker.io"]),
        (ON + BLACKLIST.format(".*"), ["docker.io"], [], []),
        (ON + 'APT::Periodic::Enable "0";\n', ["docker.io"], [], []),
        ('APT::Periodic::Unattended-Upgrade "0";\n', ["docker.io"], [], []),
        ("", ["docker.io"], [], []),
    ],
)
def test_unattended_upgrades_of_docker_are_found(
    settings: str, installed: list[str], held: list[str], updated: list[str]
) -> None:
    assert packages.unattended(packages.apt_settings(settings), installed, held) == updated


class DockerBoard(Commands):
    """SIMULATED: a board with Docker, whose timer runs unattended-upgrades."""

    def __init__(self) -> None:
        pass

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
    assert packages.package_facts(DockerBoard(), str(tmp_path), {"ActiveState": state}) == {
        "installed": ["docker.io"],
        "held": ["vim"],
        "ours": ["runc"],
        "unattended": updated,
    }


INSTALLED = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {indexed: true, versions: "{{ bundled }}"}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.preflight, tasks_from: installed}
"""


def test_engine_that_does_not_fit_is_refused_once_it_is_there(tmp_path: Path) -> None:
    given = with_facts(docker__min_api_version="1.44", bundle__k3s_version="v1.27.16+k3s1")
    variables = {"given": given, "bundled": given["bundle"]}
    run = play_text(tmp_path, INSTALLED, variables=variables, fails=True)
    assert "it was just installed, and nothing else was changed" in run.said
    assert "k3s-docker-api-dropped" in run.said
