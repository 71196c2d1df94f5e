# SPDX-License-Identifier: Apache-2.0
"""K3s for virtual boards: the released executable, or the same version compiled from its Go modules.

`python -m tests.lab.k3s` gets it and prints where it is.
"""

import json
import os
import re
import sys
import urllib.parse
from pathlib import Path

from tests.lab import gomodules
from tests.lab.gomodules import Recipe
from tools import debian
from tools.cache import cached
from tools.process import ToolError, print_path, run, step

VERSION = "v1.25.4+k3s1"
COMMIT = gomodules.required("k3s", "github.com/k3s-io/k3s").rpartition("-")[2]
PAGE = "https://github.com/k3s-io/k3s/releases/download"
RELEASE = re.compile(r"v\d+\.\d+\.\d+\+k3s\d+")
RELEASE_NAMES = {"amd64": "k3s", "arm64": "k3s-arm64"}
TIMEOUT_SECONDS = 20
"""Of each answer of the page."""
PACKAGE = "github.com/k3s-io/k3s/pkg/version"
# K3s' own tags (its scripts/build), without those that need more C libraries than libc: seccomp, libsqlite3.
TAGS = (
    "apparmor", "netgo", "osusergo", "providerless", "urfave_cli_no_docs", "static_build",
    "sqlite_omit_load_extension",
)  # fmt: skip
CNI = Recipe("cni", gomodules.imports("cni"))
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
    if which and not RELEASE.fullmatch(which):
        return _own(which)
    if which not in ("", VERSION):
        return released(which, arch)
    if gomodules.is_compiled(recipe(), arch):  # a page that does not answer takes its time
        return compiled(arch)
    try:
        return released(VERSION, arch)
    except ToolError as not_released:
        try:
            return compiled(arch)
        except ToolError as error:
            raise ToolError(
                f"K3s {VERSION} cannot be had. One of the two is needed: its release page ({not_released}), "
                f"or Go and a module proxy to compile it ({error})."
            ) from error


def compiled(arch: str | None = None, suffix: str = "", minors: int = 0) -> Path:
    """Return the compiled executable from the cache, built when it is absent.

    For tests of upgrades the same program calls itself by a SIMULATED version, that of `named_version`.
    Raises ToolError when it cannot be built.
    """
    return gomodules.programs(recipe(suffix, minors), arch or debian.architecture()) / "k3s"


def recipe(suffix: str = "", minors: int = 0) -> Recipe:
    """Return how K3s is compiled that calls itself by that version."""
    return Recipe("k3s", tags=TAGS, cgo=True, linker_flags=version_flags(suffix, minors), keep_objects=True)


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


def released(version: str, arch: str) -> Path:
    """Return the cached executable, downloaded when it is absent; `arch` is as Debian names it.

    Raises ToolError when it cannot be downloaded, or is not what the release's own list of checksums has.
    """

    def download(out: Path) -> None:
        address = f"{PAGE}/{urllib.parse.quote(version)}"
        wanted = {
            "url": f"{address}/{RELEASE_NAMES[arch]}",
            "checksum": f"sha256:{address}/sha256sum-{arch}.txt",
            "dest": str(out),
            "mode": "0755",
            "timeout": TIMEOUT_SECONDS,
        }
        ansible = (Path(sys.executable).with_name("ansible"), "localhost")
        get_url = ("--module-name=ansible.builtin.get_url", f"--args={json.dumps(wanted)}")
        with step(f"downloading K3s {version} ({arch})"):
            done = run([*ansible, *get_url], cwd=out.parent, check=False)
        if done.returncode != 0:
            said = re.findall(r'"(?:msg|response)": "(.*)"', done.stdout) or [done.stderr]
            raise ToolError(f"{wanted['url']}: {'; '.join(said)}")

    return cached(f"k3s-release/{version}-{arch}", download)


WHICH = f"another K3s: the version of a release, or the path of an executable (default: {VERSION})"

if __name__ == "__main__":
    sys.exit(print_path(k3s))
