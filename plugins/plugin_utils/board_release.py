# SPDX-License-Identifier: Apache-2.0
"""How the files of a bundle are chosen for a board: its architecture, and the generation of its JetPack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# `uname -m` of a board -> Debian's architecture, which is in the names of the bundle's files.
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
# The release of Ubuntu below each generation of JetPack.
CODENAMES = {"4": "bionic", "5": "focal", "6": "jammy", "7": "noble"}


def architecture(machine: str) -> str:
    """Debian's architecture for a `uname -m`. One that is not known keeps its name: preflight refuses it."""
    return ARCHITECTURES.get(machine, machine)


def generation(jetpack: str | None) -> str:
    """The first number of a JetPack, '0' for a board without one."""
    return (jetpack or "0").split(".")[0]


def codename(jetpack: str | None) -> str:
    """The codename of the Ubuntu below a JetPack, '' if it is not known."""
    return CODENAMES.get(generation(jetpack), "")


def own_codename(jetson: Mapping[str, Any]) -> str:
    """The codename of the board's system if it is another one than its JetPack's; '' otherwise.

    Its owner has installed it. A virtual board has the system of its image.
    """
    system = jetson.get("apt", {}).get("system", {})
    said, usual = str(system.get("codename") or ""), codename(jetson["jetpack"])
    is_name = re.fullmatch("[a-z]{2,20}", said) is not None
    return said if is_name and usual and said != usual and not jetson.get("simulated") else ""


def packages_archive(jetson: Mapping[str, Any]) -> str:
    """The bundle's file with Debian packages for a board. They depend on its release of Ubuntu.

    A name without a release is of the JetPack's own one.
    """
    release = own_codename(jetson)
    name = f"debs-jetpack{generation(jetson['jetpack'])}{f'-{release}' if release else ''}"
    return f"{name}-{architecture(jetson['arch'])}.tar"


FILTERS = {"board_architecture": architecture, "board_packages_archive": packages_archive}
