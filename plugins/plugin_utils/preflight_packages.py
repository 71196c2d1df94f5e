# SPDX-License-Identifier: Apache-2.0
"""Can this board install the packages that are due?

Pure functions behind the preflight role. A finding has id, found, expected and fix. Nothing is judged where
no package is due, but for a system of another release than JetPack's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_release,
    host_kinds,
    nvidia_docker,
)

Finding = dict[str, str]
Facts = dict[str, Any]


class Due(TypedDict):
    """The packages that are due, and where they come from."""

    packages: list[str]
    engine: bool
    """Whether Docker is among them."""
    archive: str
    """The bundle's file for this board."""
    from_bundle: bool
    others: list[str]
    """Archives of packages in the bundle that this board cannot use."""
    proxy: bool
    otherwise: str
    """How the host gets its packages without a package source: the expected state."""
    fix: str


# No bundle has packages for a plain host.
ON_PLAIN = (
    "docker.io installed by you",
    "Install docker.io yourself, or set k3s_container_runtime to containerd for this host",
)


def due(facts: Facts, plan: Mapping[str, Any], bundle: Mapping[str, Any], proxy: bool) -> Due:
    """The packages by the plan of role nvidia_docker. `bundle` is what the module bundle_info has found."""
    archive = plan["archive"]
    expected, fix = (
        ON_PLAIN
        if facts["host_kind"] == host_kinds.PLAIN
        else (f"{archive} in the bundle", f"Put {archive} into the bundle (docs/offline.md)")
    )
    suffix = f"-{board_release.architecture(facts['arch'])}.tar"
    return {
        "packages": plan["missing"],
        "engine": bool(plan["engine_packages"]),
        "archive": archive,
        "from_bundle": nvidia_docker.bundle_has(bundle, archive, plan["missing"]),
        "others": [
            name
            for name in bundle["files"]
            if name.startswith("debs-") and name.endswith(suffix) and name != archive
        ],
        "proxy": proxy,
        "otherwise": expected,
        "fix": fix,
    }


def release_of(archive: str) -> str:
    """The release of Ubuntu of an archive: in its name, else that of the JetPack in its name."""
    parts = archive.removesuffix(".tar").split("-")
    return parts[2] if len(parts) > 3 else board_release.codename(parts[1].removeprefix("jetpack"))  # noqa: PLR2004


def findings_of_release(facts: Facts, wanted: Due) -> list[Finding]:
    """Does the board have the operating system of its JetPack, or has its owner installed another one?"""
    here = board_release.own_codename(facts)
    if not here:
        return []
    name, made_for = facts["apt"]["system"]["name"], board_release.codename(facts["jetpack"])
    other = f"{name} ({here}) with L4T {facts['l4t']}, which is made for {made_for}"
    unusable = [one for one in wanted["others"] if release_of(one) != here]
    if wanted["packages"] and unusable and not wanted["from_bundle"]:
        return [
            {
                "id": "packages-release",
                "found": f"{other}; the bundle has packages for {', '.join(map(release_of, unusable))} only "
                f"({', '.join(unusable)}), and {', '.join(wanted['packages'])} is missing",
                "expected": f"{wanted['archive']} in the bundle, or packages that you install yourself",
                "fix": f"Collect the packages on a board with {here} and Internet: bundle.yml -e "
                f"bundle_debs_from=BOARD writes {wanted['archive']}. Or install "
                f"{', '.join(wanted['packages'])} on this board, or flash it with its JetPack.",
            }
        ]
    return [
        {
            "id": "packages-system",
            "found": other,
            "expected": f"Ubuntu {made_for}, with which JetPack and these roles are tested",
            "fix": "Accept the warning if the board works. Otherwise flash it with its JetPack.",
        }
    ]


def findings_of_dpkg(apt: Facts, wanted: Due) -> list[Finding]:
    """Would apt refuse to install anything, or end in the middle?"""
    findings = []
    incomplete, packages = apt["incomplete"], ", ".join(wanted["packages"])
    if incomplete or apt["interrupted"]:
        states = ", ".join(incomplete) or "an interrupted run of dpkg (/var/lib/dpkg/updates)"
        boot = [one.partition(" ")[0] for one in incomplete if one.startswith("nvidia-l4t-")]
        findings.append(
            {
                "id": "packages-incomplete",
                "found": f"{states}; {packages} is missing, and apt would fail",
                "expected": "packages that are installed and configured",
                "fix": "`sudo dpkg --configure -a`, then `sudo apt --fix-broken install`."
                + (
                    f" If {', '.join(boot)} fails again, its script does not know this carrier board: ask "
                    "the vendor of the board for its package."
                    if boot
                    else ""
                ),
            }
        )
    if apt["locked_by"]:
        findings.append(
            {
                "id": "packages-locked",
                "found": f"{apt['locked_by']} uses apt or dpkg now, and {packages} is missing",
                "expected": "no other installation; the roles wait five minutes",
                "fix": f"Wait until {apt['locked_by']} has ended, then run this again.",
            }
        )
    if wanted["engine"] and apt["conflicts"]:
        there = " ".join(apt["conflicts"])
        findings.append(
            {
                "id": "packages-conflict",
                "found": f"{there.replace(' ', ', ')} without a Docker engine; docker.io conflicts with it",
                "expected": "no part of another Docker or of Podman beside docker.io",
                "fix": f"`sudo apt remove {there}`. Or install the engine that belongs to it yourself.",
            }
        )
    return findings


def unfilled(facts: Facts) -> Finding:
    """NVIDIA's source as it is in the root file system before its first boot."""
    files = ", ".join(facts["apt"]["sources"]["unfilled"])
    soc = f"t{facts['soc'].removeprefix('tegra')}" if facts.get("soc") else "that of the board, such as t234"
    return {
        "id": "packages-sources",
        "found": f"{files} has a placeholder in the place of the board's SoC",
        "expected": "package sources that apt can read",
        "fix": f"Write {soc} in the place of <SOC> in {files}, then `sudo apt update`.",
    }


def findings_of_sources(facts: Facts, wanted: Due) -> list[Finding]:
    """Does apt know where the packages come from, and can it get there?"""
    sources, here = facts["apt"]["sources"], facts["apt"]["system"]["codename"]
    packages = ", ".join(wanted["packages"])
    if sources["unfilled"]:
        return [unfilled(facts)]
    if not sources["count"]:
        return [
            {
                "id": "packages-sources",
                "found": f"no package source in /etc/apt, and {packages} is missing",
                "expected": f"package sources, or {wanted['otherwise']}",
                "fix": f"{wanted['fix']}, or restore the sources in /etc/apt/sources.list.d.",
            }
        ]
    foreign = [one for one in sources["ubuntu"] if here and one != here]
    lines = {".".join(str(facts["l4t"]).split(".")[:1])}
    other = [one for one in sources["l4t"] if facts["l4t"] and one.lstrip("r").split(".")[0] not in lines]
    if foreign or other:
        return [
            {
                "id": "packages-sources-release",
                "found": f"package sources of {', '.join([*foreign, *other])} on a board with "
                f"{facts['apt']['system']['name']}" + (f" and L4T {facts['l4t']}" if facts["l4t"] else ""),
                "expected": "package sources of the board's own releases: apt would mix them",
                "fix": f"Correct {', '.join([*foreign, *other])} in /etc/apt/sources.list and "
                "/etc/apt/sources.list.d, then `sudo apt update`.",
            }
        ]
    if not (facts["default_route"] or wanted["proxy"]):
        return [
            {
                "id": "packages-unreachable",
                "found": f"no default route, and {packages} is missing in the bundle and on the board",
                "expected": f"a way to the package sources, or {wanted['otherwise']}",
                "fix": f"{wanted['fix']}, or set jetson_k3s_proxy. "
                "If the sources are in the network of the board, accept the warning.",
            }
        ]
    return []


def findings_of_packages(facts: Facts, wanted: Due) -> list[Finding]:
    """All that stands in the way of the packages that are due."""
    apt, missing, plain = facts["apt"], wanted["packages"], facts["host_kind"] == host_kinds.PLAIN
    if missing and apt["manager"] != "apt":
        tool = f"its package manager is {apt['manager']}" if apt["manager"] else "it has no package manager"
        return [
            {
                "id": "packages-no-apt",
                "found": f"{apt['system']['name'] or 'an unknown system'}, where {tool}, lacks "
                f"{', '.join(missing)}",
                "expected": f"a system with apt and dpkg, or one that has {', '.join(missing)}",
                "fix": f"Install {' and '.join(missing)} with the means of this system"
                + ("" if plain else " (Yocto: put them into the image, layer meta-tegra)")
                + ", then run this again.",
            }
        ]
    release = findings_of_release(facts, wanted)
    if not missing or any(one["id"] == "packages-release" for one in release):
        return release
    sources = [] if wanted["from_bundle"] else findings_of_sources(facts, wanted)
    return release + findings_of_dpkg(apt, wanted) + sources
