# SPDX-License-Identifier: Apache-2.0
"""Whether a board could install packages, what preflight says about it, and whose kernel runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_apt
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_release,
    nvidia_docker,
    preflight_packages,
)

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import with_facts

STATUS = """\
Package: nvidia-l4t-kernel
{kernel}
Version: 5.15

Package: base
Essential: yes
Status: install ok installed

Package: docker-ce-cli
Status: install ok installed

Package: docker-ce
Status: deinstall ok config-files

Package: old
Status: hold ok installed
Description: Status: install ok half-configured
"""


def written(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("Status: install ok installed", []),
        ("Status: install ok half-configured", ["nvidia-l4t-kernel (half-configured)"]),
        ("Status: install ok unpacked", ["nvidia-l4t-kernel (unpacked)"]),
        ("Status: deinstall ok half-installed", ["nvidia-l4t-kernel (half-installed)"]),
        ("Status: install reinstreq installed", ["nvidia-l4t-kernel (reinstreq, installed)"]),
        ("Status: install ok triggers-awaited", []),  # apt goes on
        ("Status: hold ok installed", []),  # a finding of its own
    ],
)
def test_incomplete_packages_are_named(tmp_path: Path, kernel: str, found: list[str]) -> None:
    lists = {f"{jetson_apt.LISTS}/{name}.list": "" for name in ("docker-ce", "docker-ce-cli")}
    files = {jetson_apt.STATUS: STATUS.format(kernel=kernel), "usr/bin/apt-get": ""}
    root = written(tmp_path, files | lists)
    facts = jetson_apt.apt_facts(root)
    assert (facts["manager"], facts["incomplete"], facts["conflicts"]) == ("apt", found, ["docker-ce-cli"])
    assert not facts["interrupted"]


def test_interrupted_dpkg_and_the_holder_of_a_lock_are_known(tmp_path: Path) -> None:
    root = written(tmp_path, {"var/lib/dpkg/updates/0001": "", "var/lib/dpkg/lock-frontend": ""})
    inode = (tmp_path / "var/lib/dpkg/lock-frontend").stat().st_ino
    assert jetson_apt.locked_by(root) is None
    lock = f"POSIX  ADVISORY  WRITE {{}} b3:01:{inode} 0 EOF\n"
    written(tmp_path, {"proc/locks": f"1: {lock.format(812)}1: -> {lock.format(9)}"})
    assert jetson_apt.locked_by(root) == "process 812"
    written(tmp_path, {"proc/812/comm": "unattended-upgr\n"})
    facts = jetson_apt.apt_facts(root)
    assert (facts["locked_by"], facts["interrupted"]) == ("unattended-upgr", True)


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        (["usr/bin/apt-get", jetson_apt.STATUS], "apt"),
        (["usr/bin/apt-get"], None),  # dpkg's database is not there
        (["usr/bin/apt-get", "usr/bin/dnf"], "dnf"),
        (["usr/bin/opkg"], "opkg"),
        ([], None),
    ],
)
def test_package_manager(tmp_path: Path, programs: list[str], found: str | None) -> None:
    root = written(tmp_path, dict.fromkeys(programs, "x"))
    assert jetson_apt.manager(root) == found
    assert jetson_apt.system(root) == dict.fromkeys(("id", "version", "codename", "name"))


SOURCES = """\
deb http://ports.ubuntu.com/ubuntu-ports/ focal main
# deb http://ports.ubuntu.com/ubuntu-ports/ jammy main
deb-src http://ports.ubuntu.com/ubuntu-ports/ noble main
deb [arch=arm64 signed-by=/a] https://user:secret@mirror.example/ubuntu focal-updates main
deb cdrom:[Ubuntu]/ focal main
"""
DEB822 = """\
Types: deb
URIs: http://ports.ubuntu.com/ubuntu-ports
Suites: jammy jammy-security
# a comment
Components: main

Enabled: no
Types: deb
URIs: http://ports.ubuntu.com/ubuntu-ports
Suites: noble
"""
NVIDIA = "deb https://repo.download.nvidia.com/jetson/{} r36.4 main\n"


def test_sources_are_read_in_both_forms_without_secrets(tmp_path: Path) -> None:
    directory = "etc/apt/sources.list.d"
    files = {"etc/apt/sources.list": SOURCES, f"{directory}/ubuntu.sources": DEB822}
    root = written(tmp_path, files | {f"{directory}/nvidia.list": NVIDIA.format("common")})
    assert jetson_apt.source_facts(root) == {
        "count": 5,
        "ubuntu": ["focal", "jammy"],
        "l4t": ["r36.4"],
        "unfilled": [],
    }
    written(tmp_path, {f"{directory}/nvidia.list": NVIDIA.format("<SOC>")})
    assert jetson_apt.source_facts(root)["unfilled"] == [f"/{directory}/nvidia.list"]


NVIDIAS = "Linux version 5.15.148-tegra (buildbrain@mobile-u64-6519-d7000) #1 SMP\n"
OWN_BUILD = "Linux version 5.15.148-tegra (me@laptop) #1 SMP\n"
MODULES = "/lib/modules\n/lib/modules/{0}\n/lib/modules/{0}/kernel\n"
HEADERS = "/lib/modules/{0}\n/lib/modules/{0}/build\n"


@pytest.mark.parametrize(
    ("package", "text", "built", "found"),
    [
        ("nvidia-l4t-kernel", MODULES, NVIDIAS, "nvidia-l4t-kernel"),
        ("nvidia-l4t-kernel", MODULES, None, "nvidia-l4t-kernel"),
        ("nvidia-l4t-kernel", MODULES, OWN_BUILD, None),  # built again, of the same name
        ("nvidia-l4t-rt-kernel", MODULES, NVIDIAS, "nvidia-l4t-rt-kernel"),
        ("nvidia-l4t-kernel-headers", HEADERS, NVIDIAS, None),
        ("nvidia-l4t-kernel", MODULES.replace("{0}", "5.15.136-tegra"), NVIDIAS, None),
        (
            "linux-image-5.15.148-tegra",
            MODULES.replace("/lib", "/usr/lib"),
            OWN_BUILD,
            "linux-image-5.15.148-tegra",
        ),
        ("vendor-kernel", MODULES, OWN_BUILD, "vendor-kernel"),
    ],
)
def test_package_of_the_running_kernel(
    tmp_path: Path, package: str, text: str, built: str | None, found: str | None
) -> None:
    release = "5.15.148-tegra"
    files = {f"var/lib/dpkg/info/{package}.list": text.format(release)}
    root = written(tmp_path, files | ({"proc/version": built} if built else {}))
    assert jetson_apt.kernel_package(root, release) == found


FOCAL: Data = {"id": "ubuntu", "version": "20.04", "codename": "focal", "name": "Ubuntu 20.04.6 LTS"}
OWNERS: Data = {"jetpack": "4.6.1", "l4t": "32.7.1", "apt__system": FOCAL, "apt__sources__ubuntu": ["focal"]}
OWNERS = OWNERS | {"apt__sources__l4t": ["r32.7"]}
HAS: Data = {"debs-jetpack4-arm64.tar": {"packages": {"docker.io": "20.10"}}}
HAS_FOCAL: Data = {"debs-jetpack4-focal-arm64.tar": {"packages": {"docker.io": "20.10"}}}
NO_APT = {"apt__manager": None, "apt__system__name": "Poky (Yocto Project)"}
RPM = {
    "apt__manager": "dnf",
    "apt__system": FOCAL | {"codename": None, "name": "Red Hat Enterprise Linux 9.4"},
}

KERNEL: Data = {"apt__incomplete": ["nvidia-l4t-kernel (half-configured)"]}
NANO: Data = {"apt__incomplete": ["nano (unpacked)"]}
CARRIER = "If nvidia-l4t-kernel fails again, its script does not know this carrier board"
LOCKED: Data = {"apt__locked_by": "unattended-upgr"}
LEFT: Data = {"apt__conflicts": ["containerd.io"]}
# Changes of a good board that lacks docker.io, files of the bundle, and the only finding.
FINDINGS: list[tuple[Data, Data, str, str, str]] = [
    ({}, {}, "", "", ""),
    (KERNEL, {}, "packages-incomplete", "half-configured", CARRIER),
    (NANO, {}, "packages-incomplete", "nano (unpacked)", "dpkg --configure -a"),
    ({"apt__interrupted": True}, {}, "packages-incomplete", "run of dpkg", "dpkg --configure -a"),
    (LOCKED, {}, "packages-locked", "unattended-upgr uses apt", "unattended-upgr has"),
    (LEFT, {}, "packages-conflict", "containerd.io without", "remove containerd.io`"),
    ({"apt__sources__count": 0}, {}, "packages-sources", "no package source", "debs-jetpack6-arm64.tar"),
    (
        {"apt__sources__unfilled": ["/etc/a.list"]},
        {},
        "packages-sources",
        "/etc/a.list",
        "Write t234 in the place",
    ),
    ({"apt__sources__ubuntu": ["bionic"]}, {}, "packages-sources-release", "bionic", "Correct bionic in"),
    ({"apt__sources__l4t": ["r35.4"]}, {}, "packages-sources-release", "r35.4", "Correct r35.4 in"),
    ({"default_route": False}, {}, "packages-unreachable", "no default route", "jetson_k3s_proxy"),
    (NO_APT, {}, "packages-no-apt", "Poky (Yocto Project), where it has no package manager", "meta-tegra"),
    (
        RPM,
        {},
        "packages-no-apt",
        "Red Hat Enterprise Linux 9.4, where its package manager is dnf",
        "docker.io",
    ),
    (OWNERS, {}, "packages-system", "Ubuntu 20.04.6 LTS (focal) with L4T 32.7.1", "Accept the warning"),
    (OWNERS, HAS, "packages-release", "packages for bionic only", "writes debs-jetpack4-focal-arm64.tar"),
    (OWNERS, HAS_FOCAL, "packages-system", "focal", "Accept"),
    (OWNERS | {"simulated": True, "apt__sources__ubuntu": []}, HAS, "", "", ""),
]


def judged(facts: Data, files: Data, missing: list[str], proxy: bool = False) -> list[dict[str, str]]:
    plan: Any = {
        "archive": board_release.packages_archive(facts),
        "missing": missing,
        "engine_packages": [one for one in missing if one == "docker.io"],
    }
    wanted = preflight_packages.due(facts, plan, {"files": files}, proxy)
    return preflight_packages.findings_of_packages(facts, wanted)


@pytest.mark.parametrize(("changes", "files", "found", "words", "fix"), FINDINGS)
def test_packages_that_are_due_can_be_installed(
    changes: Data, files: Data, found: str, words: str, fix: str
) -> None:
    facts = with_facts(**changes)
    findings = judged(facts, files, ["docker.io"])
    assert [one["id"] for one in findings] == [found] * bool(found)
    assert all(words in one["found"] and fix in one["fix"] for one in findings)
    # Where nothing is due, only the system of an owner is named.
    assert {one["id"] for one in judged(facts, files, [])} <= {"packages-system"}


def test_sources_do_not_matter_where_the_bundle_has_the_packages() -> None:
    changes = {"apt__sources__count": 0, "default_route": False, "apt__interrupted": True}
    files: Data = {"debs-jetpack6-arm64.tar": {"packages": {"docker.io": "24"}}}
    assert [one["id"] for one in judged(with_facts(**changes), files, ["docker.io"])] == [
        "packages-incomplete"
    ]
    assert judged(with_facts(default_route=False), {}, ["docker.io"], proxy=True) == []


@pytest.mark.parametrize(
    ("changes", "archive", "release"),
    [
        ({}, "debs-jetpack6-arm64.tar", "jammy"),
        (OWNERS, "debs-jetpack4-focal-arm64.tar", "focal"),
        (OWNERS | {"simulated": True}, "debs-jetpack4-arm64.tar", "bionic"),
        ({"apt__system__codename": "bookworm"}, "debs-jetpack6-bookworm-arm64.tar", "bookworm"),
        ({"apt__system__codename": "../x"}, "debs-jetpack6-arm64.tar", "jammy"),
        ({"apt__system__codename": None}, "debs-jetpack6-arm64.tar", "jammy"),
    ],
)
def test_archive_of_packages_carries_the_release_of_ubuntu(changes: Data, archive: str, release: str) -> None:
    facts = with_facts(**changes)
    settings: Any = {"engine_packages": ["docker.io"], "runtime_packages": [], "supply_host": ""}
    collected = nvidia_docker.collection(facts, settings, "b")
    assert (collected["archive"], collected["codename"], collected["refused"]) == (archive, release, [])
    assert preflight_packages.release_of(archive) == release
    assert re.fullmatch(nvidia_docker.PACKAGES_ARCHIVE, archive)
