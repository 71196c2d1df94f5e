# SPDX-License-Identifier: Apache-2.0
"""Can the roles write to the directories that they need, and run programs there?

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_places
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.jetson_places import Place

Finding = dict[str, str]
Facts = dict[str, Any]

# Files that an installation makes on a file system, beside images.
INODES = 5000
# File systems of images, which nobody can write to.
IMAGES = ("cramfs", "erofs", "iso9660", "squashfs")


def due(facts: Facts, conditions: Iterable[str]) -> list[Place]:
    """The places that this run writes to: `conditions` are those of places.

    Where K3s has its version already, its program stays as it is.
    """
    there = facts["k3s"]["version"] == facts["bundle"].get("k3s_version")
    met = {jetson_places.ALWAYS, *conditions}
    return [place for place in jetson_places.PLACES if place.when in met and not (place.once and there)]


def by_mount(facts: Facts, places: Iterable[Place]) -> dict[str, list[Place]]:
    """The places of each mount point, without those of which nothing is known."""
    known, mounts = facts["places"]["places"], facts["places"]["mounts"]
    found: dict[str, list[Place]] = {}
    for place in places:
        if known.get(place.path) in mounts:
            found.setdefault(known[place.path], []).append(place)
    return found


def named(places: Iterable[Place]) -> str:
    """The paths of places."""
    return ", ".join(place.path for place in places)


def shown(point: str, mount: Facts, places: list[Place]) -> str:
    """A mount point with its places."""
    return f"{named(places)} on {point} ({mount['type']})"


def writable(point: str, mount: Facts, places: list[Place]) -> str:
    """How the directories of a read-only mount become writable."""
    if mount["type"] in ("aufs", "overlay"):
        return (
            "Switch the overlay off (overlayroot: `overlayroot=disabled` in /etc/overlayroot.local.conf, "
            "then reboot)."
        )
    own = f"Mount a writable file system on each of these directories: {named(places)}."
    if mount["type"] in IMAGES:
        return own
    return (
        f"If `sudo dmesg` says that {point} had errors, check the file system by `fsck`. Otherwise `sudo "
        f"mount -o remount,rw {point}`, and correct its options in /etc/fstab. If the system is made to be "
        f"read-only (Yocto): {own}"
    )


def findings_of_places(
    facts: Facts, conditions: Iterable[str], reported: Iterable[int] = ()
) -> list[Finding]:
    """What is wrong with the directories that this run writes to, one finding for each kind.

    `reported` are file systems that have a finding already, which is not repeated.
    """
    mounts: dict[str, Facts] = facts["places"]["mounts"]
    groups = {
        point: places
        for point, places in by_mount(facts, due(facts, conditions)).items()
        if mounts[point]["filesystem"] not in reported
    }
    read_only = {point: places for point, places in groups.items() if mounts[point]["read_only"]}
    rest = {point: places for point, places in groups.items() if point not in read_only}
    runs = {point: [one for one in places if one.runs] for point, places in rest.items()}
    noexec = {point: places for point, places in runs.items() if places and mounts[point]["noexec"]}
    lasts = {point: [one for one in places if one.lasts] for point, places in rest.items()}
    lost = {point: places for point, places in lasts.items() if places and mounts[point]["in_memory"]}
    full = {point: places for point, places in rest.items() if lacks_room(mounts[point], places)}

    def words(some: dict[str, list[Place]]) -> str:
        return "; ".join(shown(point, mounts[point], places) for point, places in some.items())

    findings = [
        {
            "id": "place-read-only",
            "found": f"read-only: {words(read_only)}",
            "expected": "directories that the roles can write to (docs/changes.md)",
            "fix": " ".join(writable(point, mounts[point], places) for point, places in read_only.items()),
        },
        {
            "id": "place-noexec",
            "found": f"mounted with noexec: {words(noexec)}",
            "expected": "directories from which programs run (docs/changes.md)",
            "fix": " ".join(
                f"`sudo mount -o remount,exec {point}`, and take noexec out of its options in /etc/fstab."
                for point in noexec
            ),
        },
        {
            "id": "place-in-memory",
            "found": f"in memory: {words(lost)}",
            "expected": "directories that keep their files over a reboot",
            "fix": f"Mount a file system of a disk there, or switch the overlay of {', '.join(lost)} off "
            "(overlayroot: `overlayroot=disabled` in /etc/overlayroot.local.conf, then reboot).",
        },
        {
            "id": "place-full",
            "found": "; ".join(
                f"{shown(point, mounts[point], places)} has {mounts[point]['free_bytes'] / 1e6:.0f} MB "
                f"and {mounts[point]['free_inodes']} inodes free"
                for point, places in full.items()
            ),
            "expected": "; ".join(
                f"{sum(place.bytes for place in places) / 1e6:.0f} MB and {INODES} inodes on {point}"
                for point, places in full.items()
            ),
            "fix": " ".join(
                f"Free space on {point}: `sudo du -xh --max-depth=2 {point}` shows the space, and `sudo du "
                f"--inodes -x --max-depth=2 {point}` the number of files."
                for point in full
            ),
        },
    ]
    there = (read_only, noexec, lost, full)
    return [finding for finding, some in zip(findings, there, strict=True) if some]


def lacks_room(mount: Facts, places: list[Place]) -> bool:
    """Is the file system too full for these places?"""
    inodes = mount["free_inodes"]
    too_small = mount["free_bytes"] < sum(place.bytes for place in places)
    return too_small or (inodes is not None and inodes < INODES)


def findings_of_unmounted(facts: Facts) -> list[Finding]:
    """Would K3s or Docker write to a directory on which /etc/fstab has a disk that is not mounted?"""
    missing = {
        disk["unmounted"]: disk["path"]
        for disk in facts["disks"].values()
        if disk.get("unmounted") is not None
    }
    return [
        {
            "id": "disk-unmounted",
            "found": "; ".join(f"/etc/fstab has {point}, and nothing is mounted there" for point in missing),
            "expected": f"the disk below {', '.join(missing.values())}, which would be filled in its place",
            "fix": " ".join(
                f"`sudo mount {point}`. If the disk is gone, take {point} out of /etc/fstab."
                for point in missing
            ),
        }
    ] * bool(missing)
