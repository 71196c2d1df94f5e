# SPDX-License-Identifier: Apache-2.0
"""The directories that the roles write to, and what is mounted there.

The only list of them: facts, preflight, docs/changes.md and the tests read it. Runs on the board, therefore
Python 3.6 compatible.
"""

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import read

# When a run of site.yml writes there.
ALWAYS, DOCKER, PACKAGES, RENAME, REGISTRY, NEVER = (
    "always",
    "docker",
    "packages",
    "rename",
    "registry",
    "never",
)
MB = 1000000


class Place(NamedTuple):
    """A directory. `runs`: programs run from there. `once`: only a new K3s writes there. `bytes` are needed.

    `lasts`: its content has to survive a reboot.
    """

    path: str
    roles: Tuple[str, ...]
    content: str
    when: str = ALWAYS
    runs: bool = False
    once: bool = False
    lasts: bool = True
    bytes: int = MB


PLACES = (
    Place(
        "/etc/systemd/system",
        ("gpu_device_plugin", "image_supply", "jtop", "k3s", "nvidia_docker", "power_mode"),
        "units",
    ),
    Place("/usr/local/bin", ("jtop", "k3s", "k3s_upgrade"), "K3s", runs=True, once=True, bytes=80 * MB),
    Place("/etc/rancher", ("k3s", "k3s_backup", "k3s_reset"), "settings of K3s, password of the node"),
    Place("/var/lib/rancher/k3s", ("k3s", "k3s_backup", "k3s_reset"), "data of K3s"),
    Place("/var/lib/rancher/k3s/data", ("k3s",), "programs and CNI plugins of K3s", runs=True),
    Place("/var/lib/kubelet", ("k3s",), "files of pods", runs=True),
    Place("/var/lib/cni", ("k3s",), "addresses of pods", lasts=False),
    Place(
        "/var/lib/jetson-k3s",
        ("gpu_device_plugin", "jtop", "nvidia_docker", "upload", "user_images"),
        "our files, uploads",
    ),
    Place("/var/lib/tegra-gpu-limit", ("gpu_device_plugin",), "limits of GPU memory"),
    Place("/var/log", ("k3s",), "logs of pods", lasts=False),
    Place(
        "/run",
        ("gpu_device_plugin", "k3s", "nvidia_docker", "run_lock"),
        "sockets, marks, locks, CDI specs",
        lasts=False,
    ),
    Place("/root", ("k3s",), "caches of kubectl, directories of Ansible", lasts=False),
    Place("/etc/tmpfiles.d", ("gpu_device_plugin",), "directories in /run"),
    Place("/etc/docker", ("image_supply", "nvidia_docker"), "settings of Docker", DOCKER),
    Place("/etc/nvidia-container-runtime", ("nvidia_docker",), "strict mode"),
    Place("/etc", ("k3s",), "the hostname", RENAME),
    Place("/usr", ("nvidia_docker", "os_update"), "programs of packages", PACKAGES, bytes=300 * MB),
    Place("/var/cache/apt", ("nvidia_docker", "os_update"), "packages", PACKAGES, lasts=False, bytes=80 * MB),
    Place(
        "/var/lib/dpkg",
        ("nvidia_docker", "os_update"),
        "the list of packages, their scripts",
        PACKAGES,
        runs=True,
    ),
    Place("/etc/alternatives", ("nvidia_docker",), "the variant of iptables", PACKAGES),
    Place("/etc/jetson-k3s-registry", ("image_supply",), "settings of the registry", REGISTRY),
    Place("/var/lib/jetson-k3s-registry", ("image_supply",), "images", REGISTRY, bytes=800 * MB),
    # Written by playbooks without preflight, or by programs that go on without the directory.
    Place("/usr/libexec/kubernetes", ("k3s",), "a directory that the kubelet makes", NEVER),
    Place("/usr/local/lib/jetson-k3s", ("jtop",), "jetson-stats", NEVER, runs=True),
    Place("/usr/local/jtop", ("jtop",), "settings of jetson-stats", NEVER),
    Place("/var/backups/jetson-k3s", ("k3s_backup",), "backups", NEVER),
    Place("/var/lib/nvpmodel", ("power_mode",), "the power mode", NEVER),
    Place("/home", ("jetson_facts",), "directories of Ansible in the home of its account", NEVER),
)

# File systems in memory, and those that nobody can write to.
MEMORY = ("ramfs", "tmpfs")
UPPER = re.compile(r"(?:^|,)upperdir=([^,]+)")
ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of /proc/mounts."""

    point: str
    type: str
    options: str


def unescaped(text: str) -> str:
    """A path of /proc/mounts or /etc/fstab, which have a blank as \\040."""
    return ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)


def mounts(root: str) -> List[Mount]:
    """What is mounted, in the order of mounting."""
    lines = [line.split() for line in (read(root, "proc/mounts") or "").splitlines()]
    return [Mount(unescaped(line[1]), line[2], line[3]) for line in lines if len(line) > 3]  # noqa: PLR2004


def is_below(path: str, point: str) -> bool:
    """Is the path the mount point, or below it?"""
    return point == "/" or (path + "/").startswith(point + "/")


def mount_of(known: List[Mount], path: str) -> Optional[Mount]:
    """The mount that has the path: the longest mount point, and of several mounts on it the last one."""
    above = [(len(mount.point), number) for number, mount in enumerate(known) if is_below(path, mount.point)]
    return known[max(above)[1]] if above else None


def in_memory(known: List[Mount], mount: Mount) -> bool:
    """Does a reboot empty it? An overlay does if its upper directory is in memory, as that of overlayroot."""
    upper = UPPER.search(mount.options)
    if mount.type != "overlay" or upper is None:
        return mount.type in MEMORY
    # Its directory may be of another root, such as that of the initramfs. Then nothing is known.
    below = mount_of([one for one in known if one.type != "overlay"], unescaped(upper.group(1)))
    return below is not None and below.point != "/" and below.type in MEMORY


def nearest(root: str, path: str) -> str:
    """The real path of a directory, or of its nearest parent that exists."""
    there = path
    while there != "/" and not os.path.exists(os.path.join(root, there.lstrip("/"))):
        there = os.path.dirname(there)
    real = os.path.realpath(os.path.join(root, there.lstrip("/")))
    base = os.path.realpath(root).rstrip("/")
    return real[len(base) :] or "/"


def unmounted(root: str, known: List[Mount], path: str) -> Optional[str]:
    """The mount point of /etc/fstab at or above the path where nothing is mounted; None for none."""
    points = {mount.point for mount in known}
    for line in (read(root, "etc/fstab") or "").splitlines():
        fields = line.partition("#")[0].split()
        if len(fields) < 4 or fields[2] == "swap" or "noauto" in fields[3].split(","):  # noqa: PLR2004
            continue
        point = unescaped(fields[1]).rstrip("/")
        if point and point not in points and is_below(path, point):
            return point
    return None


def place_facts(root: str) -> Dict[str, Any]:
    """{places: {directory: its mount point}, mounts: {mount point: what is mounted there}}."""
    known = mounts(root)
    places: Dict[str, str] = {}
    found: Dict[str, Dict[str, Any]] = {}
    for place in PLACES:
        real = nearest(root, place.path)
        mount = mount_of(known, real)
        if mount is None:
            continue
        places[place.path] = mount.point
        if mount.point in found:
            continue
        options = mount.options.split(",")
        usage = os.statvfs(os.path.join(root, real.lstrip("/")))
        found[mount.point] = {
            "type": mount.type,
            "filesystem": os.stat(os.path.join(root, real.lstrip("/"))).st_dev,
            "read_only": "ro" in options,
            "noexec": "noexec" in options,
            "in_memory": in_memory(known, mount),
            "free_bytes": usage.f_bavail * usage.f_frsize,
            # Some file systems, such as btrfs, do not count them.
            "free_inodes": usage.f_favail if usage.f_files else None,
        }
    return {"places": places, "mounts": found}
