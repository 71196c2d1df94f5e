# SPDX-License-Identifier: Apache-2.0
"""Debian packages of a board: installed, pinned, under unattended upgrades, or waiting for a reboot.

Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re
from typing import Any, Dict, Iterable, List, Optional, Sequence

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import parse_version, read
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_commands import Commands

# Names of packages that role nvidia_docker has installed, one in each line.
RECORD = "var/lib/jetson-k3s/installed-packages"
# An update of one of them restarts Docker.
DOCKER = ("docker.io", "containerd")
RUNTIME = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-runtime",
)
WATCHED = (*DOCKER, "runc", *RUNTIME)
# apt's own defaults beside them.
PERIODIC = (("APT::Periodic::Enable", "1"), ("APT::Periodic::Unattended-Upgrade", "0"))
OFF = ("", "0", "false", "no")
BLACKLIST = "Unattended-Upgrade::Package-Blacklist::"
# Packages of Debian and Ubuntu write both, by update-notifier-common. /var/run is /run.
REQUIRED = "run/reboot-required"
REQUIRED_BY = "run/reboot-required.pkgs"
MODULES = "lib/modules/*/modules.dep"


def installed_packages(text: str) -> List[str]:
    """Names of the packages that are installed, in lines of `dpkg-query`: the status, then the name."""
    return sorted(re.findall(r"^installed (\S+)$", text, re.MULTILINE))


def apt_settings(text: str) -> Dict[str, List[str]]:
    """The settings of `apt-config dump`, {name: values}; names of lists end in two colons."""
    settings: Dict[str, List[str]] = {}
    for name, value in re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE):
        settings.setdefault(name, []).append(value)
    return settings


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Does a pattern match the beginning of a package's name? Invalid patterns are skipped."""
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue
    return False


def unattended(settings: Dict[str, List[str]], installed: Sequence[str], held: Sequence[str]) -> List[str]:
    """Packages that unattended-upgrades updates, and whose update restarts Docker."""
    if any(settings.get(name, [default])[-1] in OFF for name, default in PERIODIC):
        return []
    kept = settings.get(BLACKLIST, [])
    return [name for name in DOCKER if name in installed and name not in held and not is_among(name, kept)]


def package_facts(commands: Commands, root: str, timer: Dict[str, str]) -> Dict[str, List[str]]:
    """Lists of packages: installed, pinned by apt-mark, installed by role nvidia_docker, and `unattended`."""
    shown = "--showformat=${db:Status-Status} ${Package}\n"
    installed = installed_packages(commands.partial_output("dpkg-query", "--show", shown, *WATCHED))
    held = commands.output("apt-mark", "showhold").split()
    ours = (read(root, RECORD) or "").split()
    upgrades = timer.get("ActiveState") == "active" and commands.path("unattended-upgrade")
    settings = apt_settings(commands.output("apt-config", "dump")) if upgrades else {}
    return {
        "installed": installed,
        "held": held,
        "ours": ours,
        "unattended": unattended(settings, installed, held),
    }


def installed_kernel(root: str, release: str) -> Optional[str]:
    """Release of another kernel that was installed since the board started, None if there is none.

    `depmod` writes a kernel's list of modules when that kernel is installed. `release` is the running one.
    """
    started = parse_version(r"(?m)^btime (\d+)$", read(root, "proc/stat"))
    newer = [
        (os.path.getmtime(path), os.path.basename(os.path.dirname(path)))
        for path in glob.glob(os.path.join(root, MODULES))
    ]
    since = [(when, name) for when, name in newer if name != release and when > float(started or "inf")]
    return max(since)[1] if since else None


def reboot_facts(root: str, release: str) -> Dict[str, Any]:
    """Is a reboot required, by which packages, and for which kernel?"""
    packages = sorted(set(re.findall(r"\S+", read(root, REQUIRED_BY) or "")))
    kernel = installed_kernel(root, release)
    required = os.path.exists(os.path.join(root, REQUIRED)) or kernel is not None
    return {"required": required, "packages": packages, "kernel": kernel}
