# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the released executable, or the same version compiled from its Go modules.

`python -m tests.lab.k3s` gets it and prints where it is.
"""

import os
import sys
from pathlib import Path

from tests.lab import gomodules, k3s_release
from tests.lab.gomodules import Recipe
from tools import debian
from tools.process import ToolError, print_path

VERSION = "v1.25.4+k3s1"
COMMIT = "0dc63334c0db"
PACKAGE = "github.com/k3s-io/k3s/pkg/version"
# K3s' own tags (its scripts/build), without those that need more C libraries than libc: seccomp, libsqlite3.
TAGS = (
    "apparmor", "netgo", "osusergo", "providerless", "urfave_cli_no_docs", "static_build",
    "sqlite_omit_load_extension",
)  # fmt: skip
# With cgroup v1 all virtual boards share a tree, where each kubelet would remove the others' pods.
BOARD_SETTINGS = "kubelet-arg+: [cgroups-per-qos=false, enforce-node-allocatable=]\n"
# By this variable K3s has its containerd ask systemd for cgroups, which needs those of QoS classes.
UNIT_SETTINGS = "[Service]\nUnsetEnvironment=INVOCATION_ID\n"
# What K3s runs from images that the lab does not have; network policies need ipset.
SERVER_SETTINGS = {
    "disable": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
    "disable-helm-controller": True,
    "disable-network-policy": True,
}


def k3s(arch: str | None = None, which: str = "") -> Path:
    """Return the executable; `arch` is as Debian names it, this machine's unless given.

    `which` is the version of a release or the path of an executable. Without it VERSION is downloaded where
    the release page answers, and compiled where not. Raises ToolError when it cannot be had.
    """
    arch = arch or debian.architecture()
    if which and not k3s_release.VERSION.fullmatch(which):
        return _own(which)
    if which not in ("", VERSION):
        return k3s_release.executable(which, arch)
    if gomodules.is_compiled("k3s", arch, recipe()):  # a page that does not answer takes its time
        return compiled(arch)
    try:
        return k3s_release.executable(VERSION, arch)
    except k3s_release.UnreachableError as unreachable:
        try:
            return compiled(arch)
        except ToolError as error:
            raise ToolError(
                f"K3s {VERSION} cannot be had. One of the two is needed: its release page ({unreachable}), "
                f"or Go and a module proxy to compile it ({error})."
            ) from error


def compiled(arch: str | None = None, suffix: str = "", minors: int = 0) -> Path:
    """Return the compiled executable from the cache, built when it is absent.

    For tests of upgrades the same program calls itself by a SIMULATED version, that of `named_version`.
    Raises ToolError when it cannot be built.
    """
    return gomodules.programs("k3s", arch or debian.architecture(), recipe(suffix, minors)) / "k3s"


def recipe(suffix: str = "", minors: int = 0) -> Recipe:
    """Return how K3s is compiled that calls itself by that version."""
    return Recipe(TAGS, cgo=True, linker_flags=version_flags(suffix, minors), keep_objects=True)


def cni_plugins(arch: str | None = None) -> Path:
    return gomodules.programs("cni", arch or debian.architecture())


def named_version(suffix: str = "", minors: int = 0) -> str:
    major, minor, patch = VERSION.split(".", 2)
    return f"{major}.{int(minor) + minors}.{patch}{suffix}"


def version_flags(suffix: str = "", minors: int = 0) -> tuple[str, ...]:
    """Return the linker's flags by which the program knows its version, as in K3s' scripts/build."""
    version = named_version(suffix, minors)
    facts = {f"{PACKAGE}.Version": version, f"{PACKAGE}.GitCommit": COMMIT[:8]}
    for package in ("k8s.io/client-go/pkg/version", "k8s.io/component-base/version"):
        facts |= {
            f"{package}.gitVersion": version,
            f"{package}.gitCommit": COMMIT,
            f"{package}.gitTreeState": "clean",
        }
    return tuple(f"-X {name}={value}" for name, value in facts.items())


def _own(given: str) -> Path:
    path = Path(given).expanduser().resolve()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ToolError(
            f"{given} is neither the version of a K3s release, as {VERSION}, nor an executable file"
        )
    return path


WHICH = f"another K3s: the version of a release, or the path of an executable (default: {VERSION})"

if __name__ == "__main__":
    sys.exit(print_path(k3s))
