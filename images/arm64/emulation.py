# SPDX-License-Identifier: Apache-2.0
"""Running the other architecture's programs here: QEMU's user mode, through the kernel's binfmt_misc.

Building needs none of it; running an arm64 image on an amd64 machine does.
"""

import os
from pathlib import Path

from tools.debian import ensure_packages
from tools.process import ToolError, run, step

BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = {"arm64": "qemu-aarch64", "amd64": "qemu-x86_64"}
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}


def native(arch: str) -> bool:
    """Whether this machine is of an architecture."""
    return os.uname().machine == MACHINES[arch]


def can_run(arch: str) -> bool:
    """Whether programs of an architecture run on this machine, by itself or through an emulator."""
    if native(arch):
        return True
    entry = BINFMT / QEMU[arch]
    words = entry.read_text().split() if entry.is_file() else []
    # F: the emulator was opened when it was registered, so containers, which do not have it, can use it too.
    return "enabled" in words and "F" in words[words.index("flags:") + 1]


def how_to(arch: str) -> str:
    """Return what to do to make `can_run` true."""
    return (
        f"to run {arch} programs on this machine, as root: apt-get install qemu-user-static binfmt-support; "
        f"where {BINFMT} is empty: mount -t binfmt_misc binfmt_misc {BINFMT}; "
        f"update-binfmts --enable {QEMU[arch]}"
    )


def ensure(arch: str) -> None:
    """Make `can_run` true: install, mount, register. Raises ToolError, saying how, when it cannot."""
    if can_run(arch):
        return
    if os.geteuid() != 0:
        raise ToolError(how_to(arch))
    with step(f"setting up emulation of {arch}"):
        ensure_packages("qemu-user-static", "binfmt-support")
        if not (BINFMT / "register").exists():
            run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT])
        run(["update-binfmts", "--enable", QEMU[arch]])
    if not can_run(arch):
        raise ToolError(f"{QEMU[arch]} is not registered in {BINFMT}; {how_to(arch)}")
