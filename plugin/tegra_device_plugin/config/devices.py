# SPDX-License-Identifier: Apache-2.0
"""`devices` of the file: cameras, serial ports and other devices of the board as extended resources.

The schema follows generic-device-plugin's (squat/generic-device-plugin, config.go and deviceplugin/path.go).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

from tegra_device_plugin.config.units import PRESETS as UNIT_PRESETS
from tegra_device_plugin.system.kubernetes import resource_name

if TYPE_CHECKING:
    from tegra_device_plugin.config.document import Section

DOMAIN = "jetson-k3s.github.io"
DEVICES, INTERFACES = "/dev/", "/sys/class/net/"
MAX_COUNT = 128
"""Containers that can have one device at the same time."""

Kind = Literal["Device", "Interface", "Socket"]
"""A node below /dev, a network interface (only counted), or a unix socket on which a process listens."""

# Domains of other device plugins and of Kubernetes itself. `resource_name` rejects kubernetes.io as well.
_OTHERS = {name.partition("/")[0] for preset in UNIT_PRESETS.values() for name in preset.names} - {DOMAIN}
_FOREIGN_DOMAINS = ("kubernetes.io", "k8s.io", "amd.com", "intel.com", *sorted(_OTHERS))
_OF_THE_GPU = f"{DOMAIN}/gpu"
_MAGIC = re.compile(r"[*?[]")
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,128}")

_GPU = "the GPU, which has a resource of its own"
# Nodes that give the machine away, by their names without /dev/. sharing/device_nodes.py has those by number.
_REFUSED = (
    *(("sd[a-z]*", "a disk"), ("vd[a-z]*", "a disk"), ("mmcblk*", "a disk"), ("nvme*", "a disk")),
    *(("ng[0-9]*", "a disk"), ("loop*", "a disk"), ("dm-*", "a disk"), ("md[0-9]*", "a disk")),
    *(("zram*", "a disk"), ("ram[0-9]*", "a disk"), ("sr[0-9]*", "a disk"), ("nbd*", "a disk")),
    *(("disk", "disks"), ("disk/*", "disks"), ("block/*", "disks"), ("mapper/*", "disks")),
    *(("sg[0-9]*", "raw access to a disk"), ("bsg/*", "raw access to a disk"), ("raw/*", "a disk")),
    *(("mtd*", "the flash memory that the board boots from"), ("ubi*", "flash memory")),
    *(("mem", "all memory"), ("kmem", "all memory"), ("port", "all I/O ports"), ("oldmem", "all memory")),
    *(("kmsg", "the kernel's log"), ("snapshot", "all memory"), ("nvram", "the firmware's settings")),
    *(("console", "the console"), ("tty", "the console"), ("tty[0-9]*", "the console")),
    *(("nvmap", _GPU), ("nvhost-gpu", _GPU), ("nvhost-*-gpu", _GPU), ("nvgpu/*", _GPU), ("nvidia*", _GPU)),
    *(("shm/*", "a file"), ("mqueue/*", "a file")),
    *(("ptmx", "terminals"), ("pts/*", "terminals"), ("vcs*", "the console")),
)
# A node for each of these. A pattern that matches one of them is rejected wherever the file is read.
_WELL_KNOWN = (
    *("sda", "mmcblk0", "nvme0", "nvme0n1", "loop0", "dm-0", "sg0", "mtd0", "mem", "kmsg", "console", "tty"),
    *("tty0", "ptmx", "disk/by-id", "mapper/control", "nvhost-gpu", "nvmap", "nvidia0"),
)


class Match(NamedTuple):
    """Devices by path, which may be a pattern, and by udev properties; without a path by these alone."""

    path: str
    mount_path: str | None = None
    permissions: str = "rw"
    kind: Kind = "Device"
    udev: tuple[tuple[str, str], ...] = ()
    optional: bool = False
    """A board without this device does not advertise it."""

    @property
    def is_pattern(self) -> bool:
        """Whether the board decides how many devices there are."""
        return self.optional or not self.path or bool(self.udev) or bool(_MAGIC.search(self.path))


class Group(NamedTuple):
    """One match gives a device for each node that it finds; several give one device with all their nodes.

    Up to `containers` can have a device at the same time.
    """

    matches: tuple[Match, ...]
    containers: int = 1


class DeviceResource(NamedTuple):
    name: str
    groups: tuple[Group, ...]

    @property
    def has_sockets(self) -> bool:
        return any(match.kind == "Socket" for group in self.groups for match in group.matches)


ARGUS_SOCKET = "/tmp/argus_socket"  # noqa: S108 - where nvargus-daemon listens


class Preset(NamedTuple):
    resource: str
    matches: tuple[Match, ...]


def _engines(*paths: str) -> tuple[Match, ...]:
    return tuple(Match(path, optional=True) for path in paths)


# The engines' nodes are those of L4T R32 to R36.
PRESETS = {
    "argus": Preset("jetson-k3s.github.io/argus", (Match(ARGUS_SOCKET, kind="Socket"),)),
    "dla": Preset("jetson-k3s.github.io/dla", _engines("/dev/nvhost-ctrl-nvdla0", "/dev/nvhost-ctrl-nvdla1")),
    "encoder": Preset(
        "jetson-k3s.github.io/encoder",
        _engines("/dev/nvhost-msenc", "/dev/nvhost-nvenc1", "/dev/v4l2-nvenc"),
    ),
    "decoder": Preset(
        "jetson-k3s.github.io/decoder",
        _engines("/dev/nvhost-nvdec", "/dev/nvhost-nvdec1", "/dev/v4l2-nvdec"),
    ),
}


def refused_name(path: str) -> str | None:
    """Give the reason why no container gets this node, None if its name is none of them."""
    name = path.removeprefix(DEVICES)
    return next((why for pattern, why in _REFUSED if fnmatch.fnmatchcase(name, pattern)), None)


def read_devices(sections: list[Section], taken: Collection[str]) -> tuple[DeviceResource, ...]:
    """Give the resources of the list. The sections' document collects errors. `taken` are the GPU's names."""
    found: list[DeviceResource] = []
    for section in sections:
        names = {*taken, *(one.name for one in found)}
        preset = section.text("preset", _preset)
        name = section.text("name", _name(names), required="preset" not in section)
        if preset:
            count = section.integer("count", 1, MAX_COUNT)
            groups = tuple(Group((match,), count or 1) for match in PRESETS[preset].matches)
            name = name or section.check("preset", PRESETS[preset].resource, _name(names))
        else:
            groups = tuple(filter(None, map(_group, section.sections("groups", required=True))))
        section.finish()
        if name and groups:
            found.append(DeviceResource(name, groups))
        _check_first_paths(section, groups, found)
    return tuple(found)


def describe(resource: DeviceResource) -> str:
    """Give a line for each resource, for `config check`."""
    groups = []
    for group in resource.groups:
        paths = " with ".join(map(_described, group.matches))
        sharing = "exclusive" if group.containers == 1 else f"for {group.containers} containers at a time"
        groups.append(f"{paths}, {sharing}")
    return f"{resource.name}: {'; '.join(groups)}"


def _described(match: Match) -> str:
    properties = " ".join(f"{key}={value}" for key, value in match.udev)
    return " ".join(filter(None, (match.path, properties)))


def _group(section: Section) -> Group | None:
    count = section.integer("count", 1, MAX_COUNT)
    matches = list(map(_match, section.sections("paths", required=True)))
    section.finish()
    found = tuple(filter(None, matches))
    if not found or len(found) < len(matches):
        return None
    if len({match.kind for match in found}) > 1:
        section.problem("a group has either nodes or network interfaces")
    paths = [match.mount_path for match in found if match.mount_path]
    if len(set(paths)) < len(paths):
        section.problem("two paths have the same mountPath")
    return Group(found, count or 1)


def _match(section: Section) -> Match | None:
    kind: Kind = section.text("type", _kind) or "Device"
    udev = section.texts("udev", _property)
    path = section.text("path", _interface if kind == "Interface" else _node, required=not udev)
    mount_path = section.text("mountPath", _mount_path)
    permissions = section.text("permissions", _permissions)
    section.finish()
    if kind == "Interface" and (mount_path or permissions or udev):
        section.problem("type Interface is only counted: leave mountPath, permissions and udev out")
    if path is None and not udev:
        return None
    return Match(path or "", mount_path, permissions or "rw", kind, udev)


def _check_first_paths(section: Section, groups: tuple[Group, ...], found: list[DeviceResource]) -> None:
    """The first path of a group is its device: two groups with it would give one device twice."""
    seen = {_described(group.matches[0]) for one in found if one.groups is not groups for group in one.groups}
    for group in groups:
        first = group.matches[0]
        if _described(first) in seen:
            section.problem(
                f"{_described(first)} is the device of another group as well: let one group have it, and set "
                "its count to the number of containers that share it"
            )
        seen.add(_described(first))


def _preset(text: str) -> str:
    if text not in PRESETS:
        raise ValueError(f"allowed: {', '.join(PRESETS)}")
    return text


def _name(taken: Collection[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        full = resource_name(text if "/" in text else f"{DOMAIN}/{text}")
        domain = full.partition("/")[0]
        for foreign in _FOREIGN_DOMAINS:
            if domain == foreign or domain.endswith(f".{foreign}"):
                raise ValueError(
                    f"{foreign} belongs to another device plugin or to Kubernetes: use your own domain, or "
                    f"leave the domain out for {DOMAIN}/{full.partition('/')[2]}"
                )
        if full in taken or full.startswith(_OF_THE_GPU):
            raise ValueError("a resource of the GPU, or of another entry, has this name: use another name")
        return full

    return parse


def _kind(text: str) -> Kind:
    if text == "Device":
        return "Device"
    if text == "Interface":
        return "Interface"
    raise ValueError(
        "allowed: Device, Interface"
        + ("; to mount files of the host, use generic-device-plugin" if text == "Mount" else "")
    )


def _node(text: str) -> str:
    path = _clean(text, DEVICES)
    if why := refused_name(path):
        raise ValueError(f"no container gets {path}: {why}")
    if _MAGIC.search(path):
        for name in _WELL_KNOWN:
            if _matches(f"{DEVICES}{name}", path):
                raise ValueError(
                    f"the pattern also matches {DEVICES}{name}, {refused_name(name)}: use a narrower pattern"
                )
    return path


def _interface(text: str) -> str:
    path = _clean(text, INTERFACES)
    if "/" in path.removeprefix(INTERFACES):
        raise ValueError(f"the name of an interface is needed, such as {INTERFACES}can0")
    return path


def _mount_path(text: str) -> str:
    if _MAGIC.search(text):
        raise ValueError("a path without a pattern is needed")
    return _clean(text, DEVICES)


def _clean(text: str, below: str) -> str:
    parts = text.removeprefix(below).split("/")
    if not text.startswith(below) or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"an absolute path below {below.rstrip('/')} is needed, without `..`")
    return text


def _permissions(text: str) -> str:
    if "m" in text:
        raise ValueError("m lets a container make device nodes; allowed: r, w, rw")
    if text not in ("r", "w", "rw", "wr"):
        raise ValueError("allowed: r, w, rw")
    return "".join(sorted(text))


def _property(key: str, value: str) -> tuple[str, str]:
    if not _PROPERTY.fullmatch(key):
        raise ValueError(f"{key!r} is not the name of a udev property, such as ID_VENDOR_ID")
    if not value:
        raise ValueError("a value is needed; `*` stands for any")
    return key, value


def _matches(path: str, pattern: str) -> bool:
    """Whether HostTree.glob would find the path: `*` stands for characters of one name."""
    names, patterns = path.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns))
