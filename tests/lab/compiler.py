# SPDX-License-Identifier: Apache-2.0
"""Debian's C compilers: each runs here and makes programs for one architecture."""

from images.arm64.emulation import MACHINES
from tools.debian import ensure_packages

PACKAGES = {"amd64": ("gcc", "libc6-dev"), "arm64": ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross")}


def tool(name: str, arch: str) -> str:
    """Return the command `name` (gcc, readelf, objdump) for an architecture, installed when absent."""
    ensure_packages(*PACKAGES[arch])
    return f"{MACHINES[arch]}-linux-gnu-{name}"
