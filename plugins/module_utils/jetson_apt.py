# SPDX-License-Identifier: Apache-2.0
"""Could this board install packages: its system, the state of dpkg, locks of apt, and package sources.

Only files are read. Runs on the board, therefore Python 3.6 compatible.
"""

import glob
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.deb822 import parse_fields
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_board import first, read

OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
LISTS = "var/lib/dpkg/info"
STATUS, UPDATES = "var/lib/dpkg/status", "var/lib/dpkg/updates"
# Of a board with all of JetPack it has about 4 MB.
STATUS_BYTES = 32 << 20
LOCKS = (
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/lock",
    "var/lib/apt/lists/lock",
    "var/cache/apt/archives/lock",
)
# The programs of package managers, in the order in which they decide.
MANAGERS = (
    ("apt", "usr/bin/apt-get"),
    ("rpm-ostree", "usr/bin/rpm-ostree"),
    ("dnf", "usr/bin/dnf"),
    ("yum", "usr/bin/yum"),
    ("zypper", "usr/bin/zypper"),
    ("pacman", "usr/bin/pacman"),
    ("apk", "sbin/apk"),
    ("opkg", "usr/bin/opkg"),
)
# Packages that conflict with docker.io and its containerd.
CONFLICTS = (
    "containerd.io",
    "docker-ce",
    "docker-ce-cli",
    "moby-cli",
    "moby-containerd",
    "moby-engine",
    "podman-docker",
)
# `Status: WANTED FLAG STATE`. A pattern that begins with a text is fast, which matters for 4 MB.
UNUSUAL = re.compile(rb"\nStatus: (?!install ok installed\n)(\S+) (\S+) (\S+)\n")
# States with which apt stops. It goes on with triggers that are pending.
INCOMPLETE = ("unpacked", "half-installed", "half-configured")
NVIDIA_SOURCE = re.compile(r"//repo\.download\.nvidia\.com/+jetson")
PLACEHOLDER = re.compile(r"<\w+>")
LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)")


def system(root: str) -> Dict[str, Optional[str]]:
    """The id, the version, the codename and the name of the operating system."""
    text = first(read(root, path) for path in OS_RELEASE) or ""
    fields = dict(re.findall(r"""^([A-Z_]+)=["']?([^"'\n]*)["']?$""", text, re.MULTILINE))
    names = ("ID", "VERSION_ID", "VERSION_CODENAME", "PRETTY_NAME")
    id_, version, codename, name = (fields.get(one) or None for one in names)
    return {"id": id_, "version": version, "codename": codename, "name": name}


def manager(root: str) -> Optional[str]:
    """The package manager, None without one. apt without dpkg's database is none."""
    for name, program in MANAGERS:
        if os.path.exists(os.path.join(root, program)):
            if name != "apt" or os.path.exists(os.path.join(root, STATUS)):
                return name
    return None


def unusual(root: str) -> Dict[str, Tuple[str, str]]:
    """{package: (flag, state)} of dpkg's database, of packages that are not simply installed."""
    try:
        with open(os.path.join(root, STATUS), "rb") as handle:
            database = handle.read(STATUS_BYTES)
    except OSError:
        return {}
    found = {}
    for match in UNUSUAL.finditer(database):
        start = database.rfind(b"\n\n", 0, match.start()) + 1
        fields = parse_fields(database[start : match.end()].decode("utf-8", "replace"))
        found[fields.get("Package", "?")] = (match.group(2).decode(), match.group(3).decode())
    return found


def incomplete(packages: Dict[str, Tuple[str, str]]) -> List[str]:
    """Packages whose installation has not ended, each with its state."""
    return [
        "{} ({})".format(name, state if flag == "ok" else "{}, {}".format(flag, state))
        for name, (flag, state) in sorted(packages.items())
        if flag != "ok" or state in INCOMPLETE
    ]


def installed(root: str, packages: Dict[str, Tuple[str, str]], names: Tuple[str, ...]) -> List[str]:
    """Those of the packages that are installed; dpkg keeps a list of files of each."""
    return [
        name
        for name in names
        if os.path.exists(os.path.join(root, LISTS, name + ".list"))
        and packages.get(name, ("ok", "installed"))[1] == "installed"
    ]


def locked_by(root: str) -> Optional[str]:
    """The program that has locked apt or dpkg, by /proc/locks; None for none."""
    inodes = {}
    for path in LOCKS:
        try:
            inodes[str(os.stat(os.path.join(root, path)).st_ino)] = path
        except OSError:
            continue
    for line in (read(root, "proc/locks") or "").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] != "->" and fields[5].rpartition(":")[2] in inodes:  # noqa: PLR2004
            return read(root, "proc/{}/comm".format(fields[4])) or "process {}".format(fields[4])
    return None


def sources(root: str) -> List[Dict[str, str]]:
    """The enabled sources of packages, each with `file`, `uri` and `suite`."""
    found = []
    lists = sorted(glob.glob(os.path.join(root, "etc/apt/sources.list.d/*.list")))
    for path in [os.path.join(root, "etc/apt/sources.list"), *lists]:
        for line in (read(root, path) or "").splitlines():
            match = LINE.match(line.strip())
            if match:
                found.append({"file": path, "uri": match.group(1), "suite": match.group(2)})
    for path in sorted(glob.glob(os.path.join(root, "etc/apt/sources.list.d/*.sources"))):
        text = re.sub(r"(?m)^#.*\n?", "", read(root, path) or "")
        for block in re.split(r"\n\s*\n", text):
            fields = {name.lower(): value for name, value in parse_fields(block).items()}
            enabled = fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0", "off")
            if enabled and "deb" in fields.get("types", "").split():
                for uri in fields.get("uris", "").split():
                    for suite in fields.get("suites", "").split():
                        found.append({"file": path, "uri": uri, "suite": suite})
    return [dict(one, file="/" + os.path.relpath(one["file"], root)) for one in found]


def source_facts(root: str) -> Dict[str, Any]:
    """What the sources say: of Ubuntu the releases, of NVIDIA those of L4T, and places that nobody filled in.

    Addresses may have a password, so they are no facts.
    """
    known = sources(root)
    usable = [one for one in known if not one["uri"].startswith(("cdrom:", "<"))]
    nvidia = [one for one in usable if NVIDIA_SOURCE.search(one["uri"])]
    ubuntu = [one for one in usable if re.search(r"/ubuntu(-ports)?/?$", one["uri"])]
    return {
        "count": len(usable),
        "ubuntu": sorted({one["suite"].partition("-")[0] for one in ubuntu}),
        "l4t": sorted({one["suite"] for one in nvidia}),
        "unfilled": sorted({one["file"] for one in known if PLACEHOLDER.search(one["uri"] + one["suite"])}),
    }


def apt_facts(root: str) -> Dict[str, Any]:
    """Whether and how packages can be installed."""
    packages = unusual(root)
    names = os.listdir(os.path.join(root, UPDATES)) if os.path.isdir(os.path.join(root, UPDATES)) else []
    return {
        "manager": manager(root),
        "system": system(root),
        "incomplete": incomplete(packages),
        "interrupted": any(name.isdigit() for name in names),
        "locked_by": locked_by(root),
        "conflicts": installed(root, packages, CONFLICTS),
        "sources": source_facts(root),
    }


# A line of /proc/version of NVIDIA's own builds. A kernel that somebody has built again has another one.
NVIDIA_BUILD = "buildbrain@"
# Packages that may have a kernel.
KERNELS = re.compile(r"linux-image-.*|.*kernel.*")


def kernel_package(root: str, release: str) -> Optional[str]:
    """The package of the kernel that runs, None if no package has it or if somebody has built it again.

    NVIDIA's package would replace the kernel of another vendor, with its device tree (ark_jetson_kernel#119).
    """
    directory, end = os.path.join(root, LISTS), ".list"
    names = os.listdir(directory) if os.path.isdir(directory) else []
    packages = [name[: -len(end)] for name in names if name.endswith(end) and KERNELS.match(name)]
    # Packages of headers and of further modules have other directories there.
    own = {"{}/lib/modules/{}/kernel".format(usr, release) for usr in ("", "/usr")}
    built = read(root, "proc/version")
    for name in sorted(packages):
        if own.intersection((read(directory, name + end, STATUS_BYTES) or "").splitlines()):
            is_anothers = name.startswith("nvidia-l4t-") and built is not None and NVIDIA_BUILD not in built
            return None if is_anothers else name
    return None
