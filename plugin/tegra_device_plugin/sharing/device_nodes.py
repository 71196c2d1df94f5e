# SPDX-License-Identifier: Apache-2.0
"""From the host's tree to the devices of `devices` in the configuration, and their resources. Pure functions.

A device that is unplugged and plugged in again keeps its id, also under another number: the id is made of the
configured path, or of udev's link to the node in a directory by-path or by-id. The kubelet gets the link, so
a container that starts again gets the present node.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from tegra_device_plugin.board.health import HEALTHY, Health
from tegra_device_plugin.config.devices import (
    DEVICES,
    INTERFACES,
    DeviceResource,
    Group,
    Match,
    refused_name,
)
from tegra_device_plugin.sharing.allocation import Allocation, DeviceNode, OwnDevice, Resource, Rules
from tegra_device_plugin.sharing.memory_limit import Mount
from tegra_device_plugin.system.hosttree import HostTree

UDEV_DATA = "/run/udev/data"
# Unix sockets of the host's network namespace, which is that of its process 1.
SOCKETS = "/proc/1/net/unix"
_LINK_DIRECTORIES = ("by-path", "by-id")  # by-path first: cameras of one model may share their link in by-id
_LINK = re.compile(r"^/dev/.*/by-(path|id)/")
_CONSOLES = "/sys/class/tty/console/active"
_LISTENS = 0x10000  # linux/net.h, __SO_ACCEPTCON, in the column of flags
_MAX_ID = 58  # characters: with the number of a share not more than 63
MAX_REMEMBERED = 64
"""Unplugged devices of a resource that stay in the node's capacity."""

# By major number, and minor numbers where not all are meant (Documentation/admin-guide/devices.txt).
_REFUSED_NUMBERS = (
    (1, (1, 2, 4, 11, 12), "memory or the kernel's log"),
    (4, range(64), "the console"),
    (5, range(3), "the console or terminals"),
    (7, None, "the console"),
    (21, None, "raw access to a disk"),
    (90, None, "the flash memory that the board boots from"),
    *((major, None, "terminals") for major in range(136, 144)),
    (10, (144, 231, 234, 236, 237), "disks or memory"),
)
_USB = 189
_MASS_STORAGE = "08"  # linux/usb/ch9.h, USB_CLASS_MASS_STORAGE


class Device(NamedTuple):
    """A device of the board as it is now. `owner` is the host path of its node."""

    id: str
    health: Health
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    containers: int = 1
    owner: str = ""
    named_by_link: bool = True
    """The id does not depend on a number that the kernel gives."""


class Found(NamedTuple):
    """The devices of each resource, by name; and problems of the configuration on this board, for people."""

    devices: Mapping[str, tuple[Device, ...]]
    problems: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """The problems that keep this configuration from being used on this board."""
        return tuple(
            f"{name}: {device.health.detail}"
            for name, devices in self.devices.items()
            for device in devices
            if device.health.reason == "refused"
        )

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the resources of which the board has a device."""
        return tuple(
            name for name, devices in self.devices.items() if any(one.health.healthy for one in devices)
        )


class _Hit(NamedTuple):
    path: str
    """As the match found it, possibly a link."""
    node: str
    stable: str
    """A path that stays when the device is plugged in again, if there is one."""
    refused: str | None = None


class _Board:
    """What several matches need of the host, read once."""

    def __init__(self, host: HostTree) -> None:
        self.host = host
        self._links: dict[str, str] | None = None
        self._consoles: frozenset[str] | None = None

    def stable(self, path: str, node: str) -> str:
        return path if path != node else self.links.get(node, node)

    @property
    def links(self) -> Mapping[str, str]:
        """Udev's links by the node that they lead to."""
        if self._links is None:
            found: dict[str, str] = {}
            for directory in _LINK_DIRECTORIES:
                for link in self.host.glob(f"{DEVICES}*/{directory}/*"):
                    if node := self.host.link(link):
                        found.setdefault(node, link)
            self._links = found
        return self._links

    def refusal(self, node: str, status: os.stat_result) -> str | None:
        """Give the reason why no container gets this node; None: it may."""
        return next(self._refusals(node, status), None)

    def _refusals(self, node: str, status: os.stat_result) -> Iterator[str]:
        if not node.startswith(DEVICES):
            yield "not below /dev"
        if stat.S_ISBLK(status.st_mode):
            yield "a block device"
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISREG(status.st_mode)):  # simulated boards have files
            yield "not a device node"
        if why := refused_name(node):
            yield why
        if stat.S_ISCHR(status.st_mode):
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            for refused, minors, why in _REFUSED_NUMBERS:
                if major == refused and (minors is None or minor in minors):
                    yield why
            if major == _USB and self._is_usb_disk(major, minor):
                yield "a USB disk"
        if node.removeprefix(DEVICES) in self.consoles:
            yield "the console"

    @property
    def consoles(self) -> frozenset[str]:
        if self._consoles is None:
            self._consoles = frozenset((self.host.text(_CONSOLES) or "").split())
        return self._consoles

    def _is_usb_disk(self, major: int, minor: int) -> bool:
        classes = self.host.glob(f"/sys/dev/char/{major}:{minor}/*/bInterfaceClass")
        return any(self.host.text(one) == _MASS_STORAGE for one in classes)


def find(host: HostTree, resources: Iterable[DeviceResource]) -> Found:
    """Give the devices of these resources that are there, and those with a fixed path that are not.

    Raises OSError for a shortage of descriptors or memory.
    """
    board, owners = _Board(host), dict[str, tuple[str, str]]()
    problems: list[str] = []
    devices: dict[str, tuple[Device, ...]] = {}
    for resource in resources:
        found: dict[str, Device] = {}
        for group in resource.groups:
            for device in _of_group(board, group):
                own = (resource.name, device.id)
                owner = owners.setdefault(device.owner, own) if device.owner else own
                if owner == own:
                    found.setdefault(device.id, device)
                elif device.id not in found and owner[0] != resource.name:
                    problems.append(f"{resource.name}: {device.owner} is a device of {owner[0]} already")
        devices[resource.name] = tuple(found.values())
    return Found(devices, (*Found(devices).refused, *dict.fromkeys(problems)))


def remember(now: Found, before: Mapping[str, tuple[Device, ...]]) -> Mapping[str, tuple[Device, ...]]:
    """Add the devices that were there before, as unplugged."""
    owners = {device.owner for devices in now.devices.values() for device in devices if device.owner}
    merged = {}
    for resource, devices in now.devices.items():
        present = {device.id for device in devices}
        refused = any(device.health.reason == "refused" for device in devices)
        gone = [
            device._replace(health=_unplugged(_place(device)))
            for device in before.get(resource, ())
            if device.id not in present
            and device.health.reason != "refused"
            and not refused
            # Udev makes the node before its link: then one device had two names.
            and (device.named_by_link or device.owner not in owners)
        ]
        merged[resource] = (*devices, *gone[-MAX_REMEMBERED:])
    return merged


def make_resource(resource: DeviceResource, devices: Iterable[Device]) -> Resource:
    """Give the resource with these devices, each as often as containers can have it."""
    own = {
        share: OwnDevice(device.id, device.health, _allocation(device))
        for device in devices
        for share in _shares(device)
    }
    rules = Rules(checked_at_start=resource.has_sockets)
    return Resource(resource.name, tuple(own), HEALTHY, Allocation(()), rules, own=own)


def describe(device: Device) -> str:
    """Give the paths that a container gets, or the reason why it gets none."""
    if not device.health.healthy:
        return f": {device.health.detail}"
    nodes = [
        f"{one.host} as {one.container}" if one.host != one.container else one.host for one in device.nodes
    ]
    paths = [*nodes, *(mount.host for mount in device.mounts)]
    return f": {' '.join(paths)}" if paths else ""


def directories(resources: Iterable[DeviceResource]) -> tuple[str, ...]:
    """Give the directories of the host, without patterns, in which devices appear and vanish."""
    found = {DEVICES.rstrip("/"): None}
    for resource in resources:
        for group in resource.groups:
            for match in group.matches:
                if match.kind == "Device":
                    parts = match.path.split("/")[2:-1]
                    for depth in range(1, len(parts) + 1):
                        found[DEVICES + "/".join(parts[:depth])] = None
    return tuple(path for path in found if not any(magic in path for magic in "*?["))


def _of_group(board: _Board, group: Group) -> Iterator[Device]:
    hits = [list(_hits(board, match)) for match in group.matches]
    first = group.matches[0]
    fixed_id = _id(first.path or " ".join("=".join(pair) for pair in first.udev))
    if refused := next((hit for found in hits for hit in found if hit.refused), None):
        health = Health(
            False, "refused", f"no container gets {refused.path}: {_where(refused)}{refused.refused}"
        )
        yield Device(fixed_id, health)
        return
    if len(group.matches) == 1 and first.is_pattern:
        for hit in hits[0]:
            yield _device(_id(hit.stable), group, [(first, hit)], hit.stable != hit.node)
        return
    missing = [match.path for match, found in zip(group.matches, hits, strict=True) if not found]
    if missing:
        yield Device(fixed_id, _unplugged(" ".join(missing)), containers=group.containers)
        return
    pairs = [(match, hit) for match, found in zip(group.matches, hits, strict=True) for hit in found]
    yield _device(fixed_id, group, pairs, named_by_link=True)


def _device(id_: str, group: Group, pairs: list[tuple[Match, _Hit]], named_by_link: bool) -> Device:
    nodes = tuple(
        DeviceNode(hit.stable, match.mount_path or hit.path, match.permissions)
        for match, hit in pairs
        if match.kind == "Device"
    )
    mounts = tuple(Mount(hit.path, hit.path) for match, hit in pairs if match.kind == "Socket")
    return Device(id_, HEALTHY, nodes, mounts, group.containers, pairs[0][1].node, named_by_link)


def _hits(board: _Board, match: Match) -> Iterator[_Hit]:
    if match.kind == "Interface":
        yield from (_Hit(path, path, path) for path in board.host.glob(match.path))
        return
    if match.kind == "Socket":
        if match.path in _listening(board.host):
            yield _Hit(match.path, match.path, match.path)
        return
    paths = board.host.glob(match.path) if match.path else _nodes_of_udev(board.host)
    for path in paths:
        node = board.host.link(path)
        status = board.host.status(node) if node else None
        if node is None or status is None or stat.S_ISDIR(status.st_mode):
            continue
        if match.udev and not _has_properties(board.host, status, match.udev):
            continue
        yield _Hit(path, node, board.stable(path, node), board.refusal(node, status))


def _nodes_of_udev(host: HostTree) -> Iterator[str]:
    """Give the character devices that udev knows."""
    for name in host.names(UDEV_DATA):
        if name.startswith("c"):
            uevent = host.text(f"/sys/dev/char/{name[1:]}/uevent") or ""
            for line in uevent.splitlines():
                if line.startswith("DEVNAME="):
                    yield DEVICES + line.removeprefix("DEVNAME=")


def _has_properties(host: HostTree, status: os.stat_result, wanted: Iterable[tuple[str, str]]) -> bool:
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    lines = (host.text_of(f"{UDEV_DATA}/c{number}") or "").splitlines()
    found = dict(line[2:].partition("=")[::2] for line in lines if line.startswith("E:"))
    return all(fnmatchcase(found.get(key, ""), value) and key in found for key, value in wanted)


def _listening(host: HostTree) -> frozenset[str]:
    """Give the paths of the unix sockets on which a process of the host listens."""
    rows = (line.split(maxsplit=7) for line in (host.text_of(SOCKETS) or "").splitlines()[1:])
    return frozenset(row[7] for row in rows if len(row) > 7 and int(row[3], 16) & _LISTENS)  # noqa: PLR2004


def _allocation(device: Device) -> Allocation:
    return Allocation((), mounts=device.mounts, other_nodes=device.nodes)


def _shares(device: Device) -> tuple[str, ...]:
    if device.containers == 1:
        return (device.id,)
    return tuple(f"{device.id}::{number}" for number in range(device.containers))


def _id(path: str) -> str:
    """Give a device's id: the name of udev's link, or the path below /dev with dots."""
    name = _LINK.sub("", path).removeprefix(DEVICES).removeprefix(INTERFACES).strip("/").replace("/", ".")
    if len(name) <= _MAX_ID:
        return name
    return f"{name[: _MAX_ID - 9]}-{zlib.crc32(name.encode()):08x}"


def _place(device: Device) -> str:
    return device.nodes[0].host if device.nodes else device.owner or device.id


def _unplugged(path: str) -> Health:
    return Health(False, "unplugged", f"there is no {path}")


def _where(hit: _Hit) -> str:
    return f"it leads to {hit.node}, " if hit.node != hit.path else ""
