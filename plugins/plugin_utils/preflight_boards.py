# SPDX-License-Identifier: Apache-2.0
"""Findings about the boards of a run: clocks, memory and disk space.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import re
import time
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]

# Seconds. Certificates that K3s makes while a clock is wrong are as wrong for a year: a day is no mere drift.
# A node behind its server takes no certificate of a new cluster before its own clock has reached it, and the
# roles wait 300 s (jetson_k3s_timeout). Tokens of pods are taken up to 60 s early (go-jose's leeway).
CLOCK_WRONG, CLOCK_TOO_FAR, CLOCK_DRIFT = 86400, 300, 60
# Bytes that an installation takes: images, the unpacked K3s with its data, the largest archive on its way.
INSTALLED = {
    "docker": {"docker": 800_000_000, "k3s": 400_000_000, "uploads": 300_000_000},
    "containerd": {"k3s": 1_200_000_000, "uploads": 300_000_000},
}
# Where the engine says that its images are (imagefs), and the kubelet keeps its pods (nodefs). K3s has the
# kubelet evict pods where less than 5 % of either are free (pkg/daemons/agent: eviction-hard).
WATCHED = {"docker": ("docker", "kubelet"), "containerd": ("k3s", "kubelet")}
EVICTION = 0.05
# Ubuntu's overlayroot, file systems in memory: a reboot empties them.
VOLATILE = ("aufs", "overlay", "ramfs", "tmpfs")


def findings_of_disks(facts: Facts) -> list[Finding]:
    """Is there disk space for the installation, and beyond that enough for the kubelet not to evict pods?"""
    return [finding for _, finding in judged_disks(facts)]


def ill_filesystems(facts: Facts) -> set[int]:
    """File systems that these findings are about."""
    return {filesystem for filesystem, _ in judged_disks(facts)}


def judged_disks(facts: Facts) -> list[tuple[int, Finding]]:
    """The findings about disks, each with its file system."""
    runtime = facts["container_runtime"]
    there = facts["k3s"]["version"] == facts["bundle"].get("k3s_version")
    needs = {} if there else dict(INSTALLED.get(runtime, {}))
    engine = "docker" if runtime == "docker" else "k3s"
    for name, size in ((engine, facts["user_images"]["stored"]), ("uploads", facts["user_images"]["sent"])):
        needs[name] = needs.get(name, 0) + size
    if "docker" in needs:
        needs[images_disk(facts)] = needs.pop("docker")
    places: dict[int, list[str]] = {}
    for name in ("kubelet", "uploads", *data_disks(facts)):
        places.setdefault(facts["disks"][name]["filesystem"], []).append(name)
    findings = volatile_disks(facts)
    for filesystem, names in places.items():
        total, free = (facts["disks"][names[0]][key] for key in ("total_bytes", "free_bytes"))
        need = sum(needs.get(name, 0) for name in names)
        kept = EVICTION * total if set(names) & set(WATCHED.get(runtime, ())) else 0
        if free >= need + kept:
            continue
        where = ", ".join(facts["disks"][name]["path"] for name in names)
        full = free < need
        finding = {
            "id": "disk-full" if full else "disk-eviction",
            "found": f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free on the disk with {where}",
            "expected": f"{need / 1e9:.1f} GB for K3s, images and their archives"
            if full
            else f"{(need + kept) / 1e9:.1f} GB: where less than 5 % are free, the kubelet evicts pods",
            "fix": "Make room. " + larger_disk(names, facts, needs),
        }
        findings.append((filesystem, finding))
    return findings


def data_disks(facts: Facts) -> tuple[str, ...]:
    """The disks with the data of K3s and of the engine."""
    if facts["container_runtime"] != "docker":
        return ("k3s",)
    return tuple(dict.fromkeys(("k3s", "docker", images_disk(facts))))


def images_disk(facts: Facts) -> str:
    """The disk with Docker's images. With the containerd image store, data-root does not say where they are.

    https://github.com/moby/moby/issues/50517
    """
    docker = facts["docker"]
    managed = str(docker["containerd_root"]).startswith(f"{docker['data_root'].rstrip('/')}/")
    return "containerd" if docker["containerd_store"] and not managed else "docker"


def larger_disk(names: list[str], facts: Facts, needs: dict[str, int]) -> str:
    """How the directory that takes most gets another disk."""
    most = max(names, key=lambda name: needs.get(name, 0))
    if most == "containerd":
        return (
            "`sudo docker system df` shows what Docker keeps. Docker has the containerd image store, so its "
            f"images are in {facts['disks'][most]['path']}: mount a larger disk there. data-root does not "
            "move them."
        )
    if most == "docker":
        return (
            "`sudo docker system df` shows what Docker keeps. Or set data-root in "
            "nvidia_docker_daemon_config to a directory on a larger disk."
        )
    return f"Or mount a larger disk on {facts['disks'][most]['path']}."


def volatile_disks(facts: Facts) -> list[tuple[int, Finding]]:
    """Would K3s or Docker lose its data at a reboot, or be unable to write them?"""
    found: dict[tuple[int, str], list[str]] = {}
    for name in data_disks(facts):
        disk = facts["disks"][name]
        if disk["read_only"] or disk["type"] in VOLATILE:
            kind = "read-only" if disk["read_only"] else disk["type"]
            found.setdefault((disk["filesystem"], kind), []).append(disk["path"])
    return [
        (
            filesystem,
            {
                "id": "disk-volatile",
                "found": f"{', '.join(paths)}: {kind} file system",
                "expected": "a file system that can be written and keeps its files over a reboot",
                "fix": "Switch the overlay or read-only root off (overlayroot: `overlayroot=disabled` "
                "in /etc/overlayroot.local.conf, then reboot). Or mount a partition on "
                f"{' and on '.join(paths)}.",
            },
        )
        for (filesystem, kind), paths in found.items()
    ]


def offset(clock: Facts, now: float) -> tuple[float, float]:
    """Least and greatest seconds that a board's clock is ahead of the controller's.

    The board has read its clock between `controller` and `now`.
    """
    return clock["board"] - now, clock["board"] - clock["controller"]


def apart(one: tuple[float, float], other: tuple[float, float] = (0, 0)) -> float:
    """Seconds that two offsets are apart at least."""
    return max(one[0] - other[1], other[0] - one[1], 0)


def findings_of_clock(host: str, fleet: dict[str, Facts], server: str, now: float) -> list[Finding]:
    """Is the board's clock that of the controller, and that of its server?

    `fleet` is {inventory name: facts}, `now` the controller's clock in seconds since 1970. A server that is
    not among the boards cannot be compared.
    """
    mine = offset(fleet[host]["clock"], now)
    theirs = offset(fleet[server]["clock"], now) if server in fleet else mine

    def clock_text(ahead: tuple[float, float]) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now + ahead[0]))

    def fix(wrong: str) -> str:
        return (
            f"On {wrong}: sudo timedatectl set-ntp true. Without a time server: "
            f"sudo date --utc --set '{clock_text((0, 0))}', and put a battery on its RTC connector."
        )

    here = f"this computer has {clock_text((0, 0))} (all UTC)"
    if apart(mine) > CLOCK_WRONG:
        return [
            {
                "id": "clock",
                "found": f"the board's clock says {clock_text(mine)}, and {here}",
                "expected": "the same time, within a day: each board judges the server's certificates by its "
                "own clock",
                "fix": fix(host),
            }
        ]
    distance = apart(mine, theirs)
    if distance <= CLOCK_DRIFT:
        return []
    return [
        {
            "id": "clock-server" if distance > CLOCK_TOO_FAR else "clock-server-drift",
            "found": f"the board's clock says {clock_text(mine)}, that of its server {server} "
            f"{clock_text(theirs)}, and {here}",
            "expected": "the server's time, within a minute: certificates and tokens of the future are "
            "refused",
            "fix": fix(max((mine, host), (theirs, server), key=lambda known: apart(known[0]))[1]),
        }
    ]


def kernel_facts(facts: Facts) -> Facts:
    """Features that the kernel lacks, without those whose one cause is that all of its modules are missing.

    `kernel_modules` is None, or has the missing directory and the other kernels whose modules are there.
    """
    lacks, missing = facts["kernel_lacks"], facts["kernel_modules"]
    if missing is None:
        return {"kernel_lacks": lacks, "kernel_modules": None}
    return {
        "kernel_lacks": {name: why for name, why in lacks.items() if name not in missing["features"]},
        "kernel_modules": {"path": missing["path"], "others": ", ".join(missing["kernels"]) or "no kernel"},
    }


QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([mkKMGTPE]?)(i?)")
POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def quantity(text: str) -> float | None:
    """Bytes of a Kubernetes quantity (apimachinery, pkg/api/resource/quantity.go), None for another text."""
    match = QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix, binary = match.groups()
    if suffix == "m":
        return None if binary else float(number) / 1000
    return float(number) * (1024.0 if binary else 1000.0) ** POWERS[suffix]


def memory_left(total: int, units: str, requests: str) -> int | None:
    """Bytes of `total` that are neither in `units` (a quantity) nor in the pods' `requests` (quantities).

    None without units. Other checks reject an invalid quantity; here it counts as 0.
    """
    if not units:
        return None
    return round(total - sum(quantity(text) or 0 for text in [units, *requests.split()]))
