# SPDX-License-Identifier: Apache-2.0
"""Of an archive's packages a board gets those that it lacks, and keeps the engine that it has."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import answer

module = load("nvidia_docker/library/debs_needed.py")

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
def test_what_is_missing_is_chosen(packages: list[str], more: dict[str, str | None], names: str) -> None:
    found = module.needed(packages, DEBS, {**BOARD, **more}, compare)
    assert found == [f"/d/{name}.deb" for name in names.split()]


def test_package_that_the_archive_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="docker-ce"):
        module.needed(["docker.io", "docker-ce"], DEBS, BOARD, compare)


def test_dependencies_are_read_as_debian_writes_them() -> None:
    fields = module.parse_fields("Package: a\nDepends: libc6:any (>= 2.34), b | c (<< 2~rc1),\n d\n")
    assert fields["Package"] == "a"
    assert module.alternatives(fields["Depends"]) == [
        [("libc6", ">=", "2.34")],
        [("b", "", ""), ("c", "<<", "2~rc1")],
        [("d", "", "")],
    ]


def test_only_what_is_installed_counts() -> None:
    shown = "installed\ta\t1\tx (= 1), y\nconfig-files\tb\t2\t\ninstalled\ty\t3\t\n"
    assert module.installed_packages(shown) == {"a": "1", "x": None, "y": "3"}


def test_real_packages_are_read_by_dpkg(tmp_path: Path) -> None:
    """The module itself: one package of two is needed for what this machine lacks."""
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
    found = answer("nvidia_docker", "debs_needed", asked)
    assert found["paths"] == [f"{tmp_path}/jetson-k3s-test-a.deb"]
