# SPDX-License-Identifier: Apache-2.0
"""Where a board's Docker engine comes from, and where it keeps its images.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import re
from typing import Any, Dict, Optional

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import first, read

# Packages with a dockerd: of Debian and Ubuntu, of Docker, of Microsoft, of balena.
PACKAGES = ("docker.io", "docker-ce", "moby-engine", "balena-engine", "docker-engine")
DPKG = "var/lib/dpkg/info"
SNAPS = ("snap/docker/current", "var/lib/snapd/snap/docker/current")
SNAP_UNIT = "etc/systemd/system/snap.docker.dockerd.service"
PIDS = ("run/docker.pid", "var/run/docker.pid")
# Its file says that it is Podman (package podman-docker).
CLIENT = "usr/bin/docker"

CONTAINERD = "/var/lib/containerd"
CONTAINERD_CONFIG = "etc/containerd/config.toml"
CONTAINERD_ROOT = re.compile(r"""^\s*root\s*=\s*["']([^"']+)["']""", re.MULTILINE)
# New installations of Docker have the containerd image store from this release on.
STORE_SINCE = 29


def running_program(root: str) -> Optional[str]:
    """The program of the engine that runs, None without one."""
    pid = (first(read(root, path) for path in PIDS) or "").strip()
    try:
        return os.readlink(os.path.join(root, "proc", pid, "exe")) if pid.isdigit() else None
    except OSError:
        return None


def package_of(root: str, program: str) -> Optional[str]:
    """The Debian package that has the program, None for none of those that bring an engine."""
    paths = {program, re.sub("^/usr", "", program), "/usr" + program}
    for name in PACKAGES:
        text = read(root, os.path.join(DPKG, name + ".list"))
        if text is not None and paths.intersection(text.splitlines()):
            return name
    return None


def engine_facts(root: str, program: Optional[str]) -> Dict[str, Any]:
    """{origin, path, package}: `origin` is package, snap, static, podman or other; null without an engine.

    `program` is the dockerd of PATH. Without dpkg nobody knows whether a package has it: `other`.
    """
    snap = any(os.path.isdir(os.path.join(root, path)) for path in SNAPS)
    snap = snap or os.path.exists(os.path.join(root, SNAP_UNIT))
    path = running_program(root) or program
    package = package_of(root, path) if path else None
    if snap:
        origin: Optional[str] = "snap"
    elif path is None:
        origin = "podman" if "podman" in (read(root, CLIENT, 4096) or "") else None
    elif package:
        origin = "package"
    else:
        origin = "static" if os.path.isdir(os.path.join(root, DPKG)) else "other"
    return {"origin": origin, "path": path, "package": package}


def uses_containerd_store(info: Dict[str, Any], marker: Any, version: Optional[str], data_root: str) -> bool:
    """Does the engine keep its images in containerd? One that does not run decides it by its version.

    `marker` is the entry of DriverStatus that says so. Docker 29 goes on with images of an earlier release.
    """
    if info.get("ServerVersion"):
        return marker in (info.get("DriverStatus") or [])
    major = re.match(r"(\d+)", version or "")
    there = os.path.isdir(os.path.join(data_root, "image"))
    return bool(major) and int(major.group(1)) >= STORE_SINCE and not there if major else False


def containerd_root(root: str, command: Optional[str], data_root: str) -> str:
    """Where the containerd of the engine keeps images, which data-root does not say (moby daemon/daemon.go).

    An engine whose `command` names no containerd, and that finds none, starts one below its data-root.
    """
    socket = os.path.exists(os.path.join(root, "run/containerd/containerd.sock"))
    if "--containerd" not in (command or "") and command and not socket:
        return os.path.join(data_root, "containerd", "daemon")
    said = CONTAINERD_ROOT.search(read(root, CONTAINERD_CONFIG) or "")
    return said.group(1) if said else CONTAINERD
