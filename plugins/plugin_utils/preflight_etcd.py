# SPDX-License-Identifier: Apache-2.0
"""Embedded etcd: which release of K3s has which, and the steps that its data do not survive.

Pure functions behind the preflight role. `releases` is the table vars/main/etcd.yml.
"""

from __future__ import annotations

import re
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]
Releases = list[dict[str, str]]

RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)[^+]*(?:\+k3s(\d+))?")
# etcd 3.6 may bring back members that were removed long ago, unless each server has run this etcd before
# (https://etcd.io/blog/2025/zombie_members_upgrade/, https://github.com/k3s-io/k3s/pull/13493).
LAST_STEP = (3, 5, 26)
NEXT = (3, 6)


def release(version: str) -> tuple[int, ...]:
    """Major, minor, patch and K3s' own number of 'v1.33.7+k3s3', for comparisons; ValueError."""
    match = RELEASE.match(version)
    if match is None:
        raise ValueError(f"not a version of K3s: {version!r}")
    return tuple(int(number or 0) for number in match.groups())


def numbers(etcd: str) -> tuple[int, ...]:
    """The numbers of '3.5.26'."""
    return tuple(map(int, etcd.split(".")))


def etcd_of(version: str, releases: Releases) -> str:
    """The etcd of a release of K3s; '' for a release older than the table."""
    found = [entry["etcd"] for entry in releases if release(entry["k3s"]) <= release(version)]
    return found[-1] if found else ""


def step_before(version: str, releases: Releases) -> str:
    """The first release of K3s after this one whose etcd 3.6 can follow."""
    return next(
        entry["k3s"]
        for entry in releases
        if release(entry["k3s"]) > release(version) and LAST_STEP <= numbers(entry["etcd"]) < NEXT
    )


def findings_of_etcd(facts: Facts, releases: Releases) -> list[Finding]:
    """Would this server's embedded etcd go to 3.6 from a release that is too old for the step?"""
    installed, wanted = facts["k3s"]["version"], facts["bundle"].get("k3s_version")
    if facts["role"] != "server" or not facts["k3s"]["etcd"] or installed is None or wanted is None:
        return []
    before, after = etcd_of(installed, releases), etcd_of(wanted, releases)
    if not after or numbers(after) < NEXT or (before and numbers(before) >= LAST_STEP):
        return []
    step = step_before(installed, releases)
    return [
        {
            "id": "k3s-etcd",
            "found": f"K3s {installed} with the embedded etcd {before or 'of an old release'}, and {wanted} "
            "to be installed, which has etcd 3.6",
            "expected": "etcd 3.5.26 or newer on every server before etcd 3.6: otherwise members of the past "
            "may come back, and the cluster loses its majority",
            "fix": f"First upgrade all servers to {step}, with a bundle of it and playbooks/upgrade.yml.",
        }
    ]
