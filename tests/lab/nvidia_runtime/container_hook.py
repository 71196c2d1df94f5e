#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for `nvidia-ctk hook` on a virtual board: what CDI specs have a container runtime call.

It keeps the contract of NVIDIA's Container Toolkit: the container's state comes on standard input (OCI), and
the work is done in its root file system, which is mounted but not yet the process's own.

hook create-symlinks --link TARGET::LINK ...   makes the links, unless they are there
hook update-ldcache --folder FOLDER ...        lets the dynamic linker find what is in the folders

Difference: the real one guards against a root file system that moves links while it works.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

CONFIGURATION = "etc/ld.so.conf.d/00-jetson-k3s-lab.conf"
MAIN_CONFIGURATION = "etc/ld.so.conf"
INCLUDE = "include /etc/ld.so.conf.d/*.conf\n"


def root_of(state: TextIO) -> Path:
    bundle = Path(json.load(state)["bundle"])
    root: str = json.loads((bundle / "config.json").read_text())["root"]["path"]
    return bundle / root


def inside(root: Path, path: str) -> Path:
    """Return where a container's absolute path is; links of the container are not followed."""
    return root / os.path.normpath(path).lstrip("/")


def create_symlinks(root: Path, links: Sequence[str]) -> None:
    for text in links:
        target, _, name = text.partition("::")
        link = inside(root, name)
        if link.is_symlink():
            if str(link.readlink()) == target:
                continue
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def update_ldcache(root: Path, folders: Sequence[str]) -> None:
    """Have the container's dynamic linker search folders."""
    file = root / CONFIGURATION
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{folder}\n" for folder in folders))
    main = root / MAIN_CONFIGURATION
    if not main.exists():
        main.write_text(INCLUDE)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)


def values(arguments: Sequence[str], flag: str) -> list[str]:
    given = list(zip(arguments[::2], arguments[1::2], strict=True))
    if unknown := [name for name, _ in given if name != flag]:
        raise ValueError(f"this stand-in does not know {unknown[0]}")
    return [value for _, value in given]


HOOKS = {"create-symlinks": (create_symlinks, "--link"), "update-ldcache": (update_ldcache, "--folder")}


def main(argv: Sequence[str]) -> int:
    _, name, *arguments = argv
    if name not in HOOKS:
        sys.stderr.write(f"nvidia-ctk (stand-in): this stand-in does not know the hook {name}\n")
        return 1
    hook, flag = HOOKS[name]
    try:
        hook(root_of(sys.stdin), values(arguments, flag))
    except (ValueError, KeyError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"nvidia-ctk (stand-in): {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
